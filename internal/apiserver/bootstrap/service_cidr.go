package bootstrap

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	"wherry.dev/internal/apiserver/registry/service"
)

// ensureServiceCIDR publishes the ranges of services' addresses, and says that they are ready. A range of a
// second family is added to the object. If it shows another range otherwise it is left as it is: only an
// administrator knows which one is meant.
func (o *Objects) ensureServiceCIDR(ctx context.Context) error {
	api := o.cfg.Client.NetworkingV1().ServiceCIDRs()
	var want []string
	for _, n := range o.cfg.ServiceCIDRs {
		want = append(want, n.String())
	}
	c, err := api.Get(ctx, service.DefaultCIDR, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		c = &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: service.DefaultCIDR}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: want}}
		if c, err = api.Create(ctx, c, metav1.CreateOptions{}); apierrors.IsAlreadyExists(err) {
			return nil // another server was faster, and says that it is ready
		}
	}
	if err == nil && len(want) == 2 && slices.Equal(c.Spec.CIDRs, want[:1]) {
		c.Spec.CIDRs = want
		c, err = api.Update(ctx, c, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("service CIDR %s: %w", service.DefaultCIDR, err)
	}
	if !slices.Equal(c.Spec.CIDRs, want) {
		klog.FromContext(ctx).Info("The default ServiceCIDR does not match the configured ranges; services get addresses of both",
			"serviceCIDR", c.Spec.CIDRs, "configured", want)
		return nil
	}
	if meta.FindStatusCondition(c.Status.Conditions, networkingv1.ServiceCIDRConditionReady) != nil || c.DeletionTimestamp != nil {
		return nil
	}
	meta.SetStatusCondition(&c.Status.Conditions, metav1.Condition{
		Type: networkingv1.ServiceCIDRConditionReady, Status: metav1.ConditionTrue, Message: "Kubernetes default Service CIDR is ready",
	})
	if _, err := api.UpdateStatus(ctx, c, metav1.UpdateOptions{}); err != nil && !apierrors.IsConflict(err) {
		return fmt.Errorf("status of service CIDR %s: %w", service.DefaultCIDR, err)
	}
	return nil
}

// keepServiceCIDR makes the default ServiceCIDR again when it is gone, until ctx ends.
func (o *Objects) keepServiceCIDR(ctx context.Context) error {
	k := ownObject{group: networkingv1.GroupName, resource: "servicecidrs", name: service.DefaultCIDR}
	return keep[*networkingv1.ServiceCIDR](ctx, o.cfg.Store(k.group, k.resource), k, o.ensureServiceCIDR)
}

// repairServices keeps the objects of services' addresses true while the server runs, and says in events
// what was wrong.
func (o *Objects) repairServices(ctx context.Context) error {
	events := record.NewBroadcaster(record.WithContext(ctx))
	defer events.Shutdown()
	events.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: o.cfg.Client.CoreV1().Events("")})
	recorder := events.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "ipallocator-repair-controller"})
	o.cfg.Services.RunRepair(ctx, func(about runtime.Object, reason, message string) {
		recorder.Event(about, corev1.EventTypeWarning, reason, message)
	})
	return nil
}

// logRepair reports what is repaired before anybody can be told by an event.
func logRepair(ctx context.Context) service.Report {
	return func(_ runtime.Object, reason, message string) { klog.FromContext(ctx).Info(message, "reason", reason) }
}
