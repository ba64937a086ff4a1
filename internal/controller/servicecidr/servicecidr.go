// Package servicecidr says which ServiceCIDRs can be used (condition Ready), and keeps one that is deleted
// for as long as a service has an address that no other range contains (KEP-1880).
package servicecidr

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	clientset "k8s.io/client-go/kubernetes"
	networkinglisters "k8s.io/client-go/listers/networking/v1"

	"wherry.dev/internal/controller"
)

const (
	finalizer = "networking.k8s.io/service-cidr-finalizer"
	managedBy = "ipallocator.k8s.io"
	// grace is how long a deleted range is kept in any case: API servers may not have heard of the
	// deletion, and still give addresses of it to services.
	grace = 10 * time.Second
)

// Controller is the controller of ServiceCIDRs. Create one with New.
type Controller struct {
	client    clientset.Interface
	cidrs     networkinglisters.ServiceCIDRLister
	addresses networkinglisters.IPAddressLister
	loop      *controller.Loop
}

// New returns the controller, with the informers of f.
func New(client clientset.Interface, f informers.SharedInformerFactory) (*Controller, error) {
	cidrs, addresses := f.Networking().V1().ServiceCIDRs(), f.Networking().V1().IPAddresses()
	c := &Controller{client: client, cidrs: cidrs.Lister(), addresses: addresses.Lister()}
	c.loop = controller.NewLoop("servicecidr", c.reconcile)
	if err := c.loop.Watch(cidrs.Informer(), c.cidrChanged); err != nil {
		return nil, err
	}
	return c, c.loop.Watch(addresses.Informer(), c.addressChanged)
}

// Run runs the controller until ctx ends.
func (c *Controller) Run(ctx context.Context) error { return c.loop.Run(ctx) }

// cidrChanged wakes the range, and those that are being deleted: they may wait for another that contains
// their addresses.
func (c *Controller) cidrChanged(old, obj any) {
	c.loop.AddObject(old, obj)
	c.wakeDeleted()
}

// addressChanged wakes the ranges that may wait for the end of an address.
func (c *Controller) addressChanged(old, obj any) {
	if old == nil || obj == nil {
		c.wakeDeleted()
	}
}

func (c *Controller) wakeDeleted() {
	all, err := c.cidrs.List(labels.Everything())
	if err != nil {
		return // the lister of an informer has no errors
	}
	for _, cidr := range all {
		if cidr.DeletionTimestamp != nil {
			c.loop.Add(cidr.Name)
		}
	}
}

func (c *Controller) reconcile(ctx context.Context, name string) error {
	known, err := c.cidrs.Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	cidr := known.DeepCopy()
	if cidr.DeletionTimestamp != nil {
		return c.end(ctx, cidr)
	}
	if !slices.Contains(cidr.Finalizers, finalizer) {
		cidr.Finalizers = append(cidr.Finalizers, finalizer)
		if cidr, err = c.client.NetworkingV1().ServiceCIDRs().Update(ctx, cidr, metav1.UpdateOptions{}); err != nil {
			return ignoreGone(fmt.Errorf("finalizer of ServiceCIDR %s: %w", name, err))
		}
	}
	return c.setReady(ctx, cidr, metav1.Condition{Status: metav1.ConditionTrue, Message: "Kubernetes Service CIDR is ready"})
}

// end lets go of a deleted range once nothing needs it.
func (c *Controller) end(ctx context.Context, cidr *networkingv1.ServiceCIDR) error {
	if !slices.Contains(cidr.Finalizers, finalizer) {
		return nil
	}
	needed, err := c.needed(cidr)
	if err != nil {
		return err
	}
	if needed {
		return c.setReady(ctx, cidr, metav1.Condition{
			Status: metav1.ConditionFalse, Reason: networkingv1.ServiceCIDRReasonTerminating,
			Message: "There are still IPAddresses referencing the ServiceCIDR, please remove them or create a new ServiceCIDR",
		})
	}
	if left := grace - time.Since(cidr.DeletionTimestamp.Time); left > 0 {
		c.loop.AddAfter(cidr.Name, left)
		return nil
	}
	cidr.Finalizers = slices.DeleteFunc(cidr.Finalizers, func(f string) bool { return f == finalizer })
	if _, err := c.client.NetworkingV1().ServiceCIDRs().Update(ctx, cidr, metav1.UpdateOptions{}); err != nil {
		return ignoreGone(fmt.Errorf("finalizer of ServiceCIDR %s: %w", cidr.Name, err))
	}
	return nil
}

func (c *Controller) setReady(ctx context.Context, cidr *networkingv1.ServiceCIDR, want metav1.Condition) error {
	want.Type = networkingv1.ServiceCIDRConditionReady
	if !meta.SetStatusCondition(&cidr.Status.Conditions, want) {
		return nil
	}
	if _, err := c.client.NetworkingV1().ServiceCIDRs().UpdateStatus(ctx, cidr, metav1.UpdateOptions{}); err != nil {
		return ignoreGone(fmt.Errorf("status of ServiceCIDR %s: %w", cidr.Name, err))
	}
	return nil
}

func ignoreGone(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// needed reports whether a service has an address that only this range contains.
func (c *Controller) needed(cidr *networkingv1.ServiceCIDR) (bool, error) {
	own := prefixes(cidr)
	all, err := c.cidrs.List(labels.Everything())
	if err != nil {
		return false, err
	}
	var others []netip.Prefix
	for _, o := range all {
		// One that is being deleted itself keeps nothing: otherwise each of two would let the other go.
		if o.Name != cidr.Name && o.DeletionTimestamp == nil {
			others = append(others, prefixes(o)...)
		}
	}
	addresses, err := c.addresses.List(labels.SelectorFromSet(labels.Set{networkingv1.LabelManagedBy: managedBy}))
	if err != nil {
		return false, err
	}
	for _, a := range addresses {
		if ip, err := netip.ParseAddr(a.Name); err == nil && contain(own, ip) && !contain(others, ip) {
			return true, nil
		}
	}
	return false, nil
}

func prefixes(cidr *networkingv1.ServiceCIDR) (out []netip.Prefix) {
	for _, s := range cidr.Spec.CIDRs {
		if p, err := netip.ParsePrefix(s); err == nil {
			out = append(out, p)
		}
	}
	return out
}

func contain(prefixes []netip.Prefix, ip netip.Addr) bool {
	return slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(ip) })
}
