// Package endpointslicemirroring copies Endpoints objects that somebody wrote for a service without
// a selector into EndpointSlices, which the proxy and everything else reads.
//
// What to write is decided by a pure function (planFor). Labels, annotations and reasons of events
// are upstream's.
package endpointslicemirroring

import (
	"context"
	"errors"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"wherry.dev/internal/controller"
	"wherry.dev/internal/controller/backing"
	"wherry.dev/internal/controller/written"
)

const (
	// manager is the value of the label managed-by on our slices.
	manager = "endpointslicemirroring-controller.k8s.io"
)

// Controller mirrors Endpoints. Create one with New.
type Controller struct {
	client clientset.Interface
	loop   *controller.Loop
	events record.EventRecorder

	services, endpoints, slices cache.Indexer
	writes                      *written.Log // by the service's key
	totals                      totals
}

// New returns the controller, with the informers of f.
func New(client clientset.Interface, f informers.SharedInformerFactory) (*Controller, error) {
	register()
	services, endpoints := f.Core().V1().Services().Informer(), f.Core().V1().Endpoints().Informer()
	own := f.Discovery().V1().EndpointSlices().Informer()
	if err := backing.IndexSlices(own); err != nil {
		return nil, err
	}
	c := &Controller{
		client: client, services: services.GetIndexer(), endpoints: endpoints.GetIndexer(), slices: own.GetIndexer(),
		writes: written.New(own.GetIndexer()), totals: totals{of: map[string]total{}},
	}
	c.loop = controller.NewLoop("endpoint_slice_mirroring", c.reconcile)
	c.loop.WaitFor(c.writes)
	if err := c.loop.Watch(services, c.serviceChanged); err != nil {
		return nil, err
	}
	if err := c.loop.Watch(endpoints, c.endpointsChanged); err != nil {
		return nil, err
	}
	return c, c.loop.Watch(own, c.sliceChanged)
}

// Run mirrors until ctx ends.
func (c *Controller) Run(ctx context.Context) error {
	events, stop := controller.Recorder(ctx, c.client, "endpoint-slice-mirroring-controller")
	defer stop()
	c.events = events
	return c.loop.Run(ctx)
}

// serviceChanged wakes a service whose selector comes or goes, and one that itself does without one.
func (c *Controller) serviceChanged(old, obj any) {
	was, _ := old.(*v1.Service)
	svc, _ := obj.(*v1.Service)
	switch {
	case was != nil && svc != nil && (was.Spec.Selector == nil) != (svc.Spec.Selector == nil),
		was == nil && svc.Spec.Selector == nil:
		c.loop.Add(svc.Namespace + "/" + svc.Name)
	case svc == nil && was.Spec.Selector == nil:
		c.loop.Add(was.Namespace + "/" + was.Name)
	}
}

func (c *Controller) endpointsChanged(old, obj any) {
	for _, o := range []any{old, obj} {
		if e, ok := o.(*v1.Endpoints); ok && mirrored(e) {
			c.loop.Add(e.Namespace + "/" + e.Name)
		}
	}
}

func (c *Controller) sliceChanged(old, obj any) {
	for _, o := range []any{old, obj} {
		if s, ok := o.(*discoveryv1.EndpointSlice); ok && s.Labels[discoveryv1.LabelManagedBy] == manager && backing.ServiceOf(s) != "" {
			c.loop.Add(backing.ServiceOf(s))
		}
	}
}

func (c *Controller) reconcile(ctx context.Context, key string) error {
	began := time.Now()
	err := c.sync(ctx, key)
	syncDuration.Observe(time.Since(began).Seconds())
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return fmt.Errorf("%w: %w", controller.ErrBehind, err)
	}
	return err
}

func (c *Controller) sync(ctx context.Context, key string) error {
	e, err := c.source(key)
	if err != nil {
		return err
	}
	have, err := backing.Slices(c.slices, key, manager)
	if err != nil {
		return err
	}
	if e == nil {
		c.totals.set(key, total{})
		return c.write(ctx, key, plan{remove: have})
	}
	p := planFor(e, have)
	c.observe(e, key, p)
	if e.DeletionTimestamp != nil {
		p.create = nil
	}
	return c.write(ctx, key, p)
}

// source returns the Endpoints to mirror for the service with the key, or nil.
func (c *Controller) source(key string) (*v1.Endpoints, error) {
	item, exists, err := c.endpoints.GetByKey(key)
	if err != nil || !exists || !mirrored(item.(*v1.Endpoints)) {
		return nil, err
	}
	svc, exists, err := c.services.GetByKey(key)
	if err != nil || !exists || svc.(*v1.Service).Spec.Selector != nil {
		return nil, err
	}
	return item.(*v1.Endpoints), nil
}

// observe says what a plan leaves out, and counts.
func (c *Controller) observe(e *v1.Endpoints, key string, p plan) {
	addedPerSync.Observe(float64(p.added))
	updatedPerSync.Observe(float64(p.updated))
	removedPerSync.Observe(float64(p.gone))
	skippedPerSync.Observe(float64(p.skipped))
	t := total{slices: len(p.groups)}
	for _, n := range p.groups {
		t.endpoints += n
	}
	c.totals.set(key, t)
	if p.invalid > 0 {
		c.events.Eventf(e, v1.EventTypeWarning, "InvalidIPAddress",
			"Skipped %d invalid IP addresses when mirroring to EndpointSlices", p.invalid)
	}
	if p.skipped > p.invalid {
		c.events.Eventf(e, v1.EventTypeWarning, "TooManyAddressesToMirror",
			"A max of %d addresses can be mirrored to EndpointSlices per Endpoints subset. %d addresses were skipped", perSubset, p.skipped)
	}
}

// write carries a plan out.
func (c *Controller) write(ctx context.Context, key string, p plan) error {
	for _, s := range p.create {
		got, err := c.client.DiscoveryV1().EndpointSlices(s.Namespace).Create(ctx, s, metav1.CreateOptions{})
		if apierrors.HasStatusCause(err, v1.NamespaceTerminatingCause) {
			return nil // nothing can be created there any more, and nothing has to be
		}
		if err != nil {
			return fmt.Errorf("failed to create EndpointSlice for Endpoints %s: %w", key, err)
		}
		c.writes.Wrote(key, got)
		changes.WithLabelValues("create").Inc()
	}
	for _, s := range p.update {
		got, err := c.client.DiscoveryV1().EndpointSlices(s.Namespace).Update(ctx, s, metav1.UpdateOptions{})
		if err != nil {
			return fmt.Errorf("failed to update %s EndpointSlice for Endpoints %s: %w", s.Name, key, err)
		}
		c.writes.Wrote(key, got)
		changes.WithLabelValues("update").Inc()
	}
	var errs []error
	for _, s := range p.remove {
		err := c.client.DiscoveryV1().EndpointSlices(s.Namespace).Delete(ctx, s.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &s.UID}})
		if err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("failed to delete %s EndpointSlice for Endpoints %s: %w", s.Name, key, err))
			continue
		}
		c.writes.Deleted(key, s)
		changes.WithLabelValues("delete").Inc()
	}
	return errors.Join(errs...)
}
