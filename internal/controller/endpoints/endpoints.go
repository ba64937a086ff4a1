// Package endpoints keeps the Endpoints objects of services that select pods, for those who do not
// read EndpointSlices yet. It also deletes the Endpoints of services that are gone: when a service is
// deleted, and at start. Apart from that, Endpoints without a service are left alone; the service may
// come later.
//
// What an object should be is decided by pure functions (subsets.go); the controller compares and
// writes. Annotations, labels and reasons of events are upstream's.
package endpoints

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/informers"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/client-go/tools/record"
	endpointsliceutil "k8s.io/endpointslice/util"

	"wherry.dev/internal/controller"
	"wherry.dev/internal/controller/backing"
	"wherry.dev/internal/controller/written"
)

const (
	managedBy = "endpoints.kubernetes.io/managed-by"
	manager   = "endpoint-controller"
	truncated = "truncated" // value of the annotation for an object that is over capacity
	// leftoversKey is the key under which Endpoints without services are looked for. No service has
	// it: theirs have a slash.
	leftoversKey = "leftovers"
)

// Controller keeps Endpoints. Create one with New.
type Controller struct {
	client clientset.Interface
	loop   *controller.Loop
	events record.EventRecorder

	services, pods, endpoints cache.Indexer
	writes                    *written.Log // by the service's key
	triggers                  *endpointsliceutil.TriggerTimeTracker
	gone                      sync.Map // keys of services whose Endpoints have to be deleted
}

// New returns the controller, with the informers of f.
func New(client clientset.Interface, f informers.SharedInformerFactory) (*Controller, error) {
	services, pods, own := f.Core().V1().Services().Informer(), f.Core().V1().Pods().Informer(), f.Core().V1().Endpoints().Informer()
	if err := backing.IndexServices(services); err != nil {
		return nil, err
	}
	c := &Controller{
		client: client, services: services.GetIndexer(), pods: pods.GetIndexer(), endpoints: own.GetIndexer(),
		writes: written.New(own.GetIndexer()), triggers: endpointsliceutil.NewTriggerTimeTracker(),
	}
	c.loop = controller.NewLoop("endpoint", c.reconcile)
	c.loop.WaitFor(c.writes)
	if err := c.loop.Watch(services, c.serviceChanged); err != nil {
		return nil, err
	}
	if err := c.loop.Watch(own, c.endpointsChanged); err != nil {
		return nil, err
	}
	return c, c.loop.Watch(pods, c.podChanged)
}

// Run keeps the Endpoints until ctx ends.
func (c *Controller) Run(ctx context.Context) error {
	events, stop := controller.Recorder(ctx, c.client, manager)
	defer stop()
	c.events = events
	c.loop.Add(leftoversKey) // the loop waits for the informers first
	return c.loop.Run(ctx)
}

func (c *Controller) serviceChanged(old, obj any) {
	if svc, ok := obj.(*v1.Service); ok {
		c.loop.Add(svc.Namespace + "/" + svc.Name)
	} else if svc, ok := old.(*v1.Service); ok {
		key := svc.Namespace + "/" + svc.Name
		c.gone.Store(key, true)
		c.loop.Add(key)
	}
}

// endpointsChanged wakes the service of the same name.
func (c *Controller) endpointsChanged(old, obj any) {
	for _, o := range []any{old, obj} {
		if e, ok := o.(*v1.Endpoints); ok {
			c.loop.Add(e.Namespace + "/" + e.Name)
			return
		}
	}
}

func (c *Controller) podChanged(old, obj any) {
	was, _ := old.(*v1.Pod)
	pod, _ := obj.(*v1.Pod)
	keys, err := backing.Services(c.services, was, pod)
	if err != nil {
		utilruntime.HandleError(fmt.Errorf("controller endpoint: %w", err))
	}
	for _, key := range keys {
		c.loop.Add(key)
	}
}

func (c *Controller) reconcile(ctx context.Context, key string) error {
	if key == leftoversKey {
		return c.findLeftovers()
	}
	err := c.sync(ctx, key)
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("%w: %w", controller.ErrBehind, err)
	}
	return err
}

// findLeftovers finds Endpoints whose service was deleted while nobody looked.
func (c *Controller) findLeftovers() error {
	for _, key := range c.endpoints.ListKeys() {
		if _, exists, err := c.services.GetByKey(key); err != nil {
			return err
		} else if !exists {
			c.gone.Store(key, true)
			c.loop.Add(key)
		}
	}
	return nil
}

func (c *Controller) sync(ctx context.Context, key string) error {
	item, exists, err := c.services.GetByKey(key)
	if err != nil {
		return err
	}
	have, err := c.current(key)
	if err != nil {
		return err
	}
	if !exists {
		return c.remove(ctx, key, have)
	}
	c.gone.Delete(key)
	svc := item.(*v1.Service)
	if !backing.Selects(svc) {
		return nil
	}
	pods, err := backing.Pods(c.pods, svc)
	if err != nil {
		return err
	}
	triggered := c.triggers.ComputeEndpointLastChangeTriggerTime(svc.Namespace, svc, pods)
	want := wanted(svc, have, pods, triggered)
	if want == nil {
		return nil
	}
	return c.write(ctx, svc, have, want)
}

// current returns the object that the store has; nil if there is none.
func (c *Controller) current(key string) (*v1.Endpoints, error) {
	item, exists, err := c.endpoints.GetByKey(key)
	if err != nil || !exists {
		return nil, err
	}
	return item.(*v1.Endpoints), nil
}

// remove deletes the Endpoints of a service that is gone. Those that old clients elect a leader with
// never had a service.
func (c *Controller) remove(ctx context.Context, key string, have *v1.Endpoints) error {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return err
	}
	c.triggers.DeleteService(namespace, name)
	if _, gone := c.gone.Load(key); !gone {
		return nil
	}
	if have == nil {
		c.gone.Delete(key)
		return nil
	}
	if _, lock := have.Annotations[resourcelock.LeaderElectionRecordAnnotationKey]; lock {
		c.gone.Delete(key)
		return nil
	}
	err = c.client.CoreV1().Endpoints(namespace).Delete(ctx, name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &have.UID}})
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	c.gone.Delete(key)
	c.writes.Deleted(key, have)
	return nil
}

func (c *Controller) write(ctx context.Context, svc *v1.Service, have, want *v1.Endpoints) error {
	api, key := c.client.CoreV1().Endpoints(svc.Namespace), svc.Namespace+"/"+svc.Name
	var got *v1.Endpoints
	var err error
	if have == nil {
		got, err = api.Create(ctx, want, metav1.CreateOptions{})
	} else {
		got, err = api.Update(ctx, want, metav1.UpdateOptions{})
	}
	switch {
	case err == nil:
		c.writes.Wrote(key, got)
		return nil
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err):
		return err
	case apierrors.HasStatusCause(err, v1.NamespaceTerminatingCause):
		return nil // nothing can be created there any more, and nothing has to be
	case have == nil:
		c.events.Eventf(want, v1.EventTypeWarning, "FailedToCreateEndpoint", "Failed to create endpoint for service %v/%v: %v", svc.Namespace, svc.Name, err)
	default:
		c.events.Eventf(want, v1.EventTypeWarning, "FailedToUpdateEndpoint", "Failed to update endpoint %v/%v: %v", svc.Namespace, svc.Name, err)
	}
	return err
}

// wanted returns the Endpoints that a service should have, or nil if those that it has are right.
func wanted(svc *v1.Service, have *v1.Endpoints, pods []*v1.Pod, triggered time.Time) *v1.Endpoints {
	subsets := subsetsOf(svc, pods)
	if have != nil && upToDate(svc, have, subsets) {
		return nil
	}
	out := &v1.Endpoints{ObjectMeta: metav1.ObjectMeta{Name: svc.Name, Namespace: svc.Namespace}}
	if have != nil {
		out = have.DeepCopy()
	}
	if out.Annotations == nil {
		out.Annotations = map[string]string{}
	}
	out.Labels = map[string]string{}
	maps.Copy(out.Labels, svc.Labels)
	out.Labels[managedBy] = manager
	delete(out.Labels, v1.IsHeadlessService)
	if headless(svc) {
		out.Labels[v1.IsHeadlessService] = ""
	}
	delete(out.Annotations, v1.EndpointsLastChangeTriggerTime)
	if !triggered.IsZero() {
		out.Annotations[v1.EndpointsLastChangeTriggerTime] = triggered.UTC().Format(time.RFC3339Nano)
	}
	var over bool
	out.Subsets, over = truncate(subsets)
	delete(out.Annotations, v1.EndpointsOverCapacity)
	if over {
		out.Annotations[v1.EndpointsOverCapacity] = truncated
	}
	return out
}

func headless(svc *v1.Service) bool {
	return svc.Spec.ClusterIP == v1.ClusterIPNone || svc.Spec.ClusterIP == ""
}

// upToDate compares what a service has with its labels and the subsets that it should have.
func upToDate(svc *v1.Service, have *v1.Endpoints, subsets []v1.EndpointSubset) bool {
	want, over := truncate(subsets)
	if (have.Annotations[v1.EndpointsOverCapacity] != "") != over || have.Labels[managedBy] != manager {
		return false
	}
	has := map[string]string{}
	for k, v := range have.Labels {
		if k != managedBy && k != v1.IsHeadlessService {
			has[k] = v
		}
	}
	wants := maps.Clone(svc.Labels)
	delete(wants, managedBy)
	delete(wants, v1.IsHeadlessService)
	return maps.Equal(has, wants) && sameSubsets(backing.Canonical(have.Subsets), want)
}
