// Package endpointslice keeps the EndpointSlices of services that select pods. What a service's
// slices should be is decided, and written, by Kubernetes' own library (k8s.io/endpointslice); this
// package finds out which service to look at and when, and waits until the informers have what was
// written before.
package endpointslice

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/informers"
	clientset "k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	library "k8s.io/endpointslice"
	"k8s.io/endpointslice/metrics"
	"k8s.io/endpointslice/topologycache"
	endpointsliceutil "k8s.io/endpointslice/util"
	"k8s.io/klog/v2"

	"wherry.dev/internal/api/nodes"
	apipods "wherry.dev/internal/api/pods"
	"wherry.dev/internal/controller"
	"wherry.dev/internal/controller/backing"
	"wherry.dev/internal/controller/written"
	"wherry.dev/internal/trace"
)

const (
	// manager is the value of the label managed-by on our slices.
	manager = "endpointslice-controller.k8s.io"
	// perSlice is how many endpoints a slice has at most.
	perSlice = 100
	// topologyKey is the key under which the nodes are looked at. No service has it: theirs have a
	// slash.
	topologyKey = "topology"
)

// Controller keeps slices. Create one with New.
type Controller struct {
	client clientset.Interface
	loop   *controller.Loop
	events record.EventRecorder

	services, pods, slices cache.Indexer
	nodes                  corelisters.NodeLister
	writes                 *written.Log // by the service's key
	behind                 sync.Map     // keys of services whose slices the informer has an old state of

	reconciler *library.Reconciler
	tracker    *endpointsliceutil.EndpointSliceTracker // the library wants one; writes is what we go by
	triggers   *endpointsliceutil.TriggerTimeTracker
	topology   *topologycache.TopologyCache
}

// New returns the controller, with the informers of f.
func New(client clientset.Interface, f informers.SharedInformerFactory) (*Controller, error) {
	metrics.RegisterMetrics()
	core := f.Core().V1()
	services, pods, nodes := core.Services().Informer(), core.Pods().Informer(), core.Nodes().Informer()
	own := f.Discovery().V1().EndpointSlices().Informer()
	if err := backing.IndexServices(services); err != nil {
		return nil, err
	}
	if err := backing.IndexSlices(own); err != nil {
		return nil, err
	}
	c := &Controller{
		client: client, services: services.GetIndexer(), pods: pods.GetIndexer(), slices: own.GetIndexer(), nodes: core.Nodes().Lister(),
		writes: written.New(own.GetIndexer()), tracker: endpointsliceutil.NewEndpointSliceTracker(),
		triggers: endpointsliceutil.NewTriggerTimeTracker(), topology: topologycache.NewTopologyCache(),
	}
	c.loop = controller.NewLoop("endpoint_slice", c.reconcile)
	c.loop.WaitFor(counted{c.writes})
	for _, w := range []struct {
		informer cache.SharedIndexInformer
		handle   func(old, obj any)
	}{{services, c.loop.AddObject}, {pods, c.podChanged}, {own, c.sliceChanged}, {nodes, c.nodeChanged}} {
		if err := c.loop.Watch(w.informer, w.handle); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// Run keeps the slices until ctx ends.
func (c *Controller) Run(ctx context.Context) error {
	events, stop := controller.Recorder(ctx, c.client, "endpoint-slice-controller")
	defer stop()
	c.events = events
	recording := recordingClient{Interface: c.client, log: c.writes, slices: c.slices, behind: &c.behind}
	c.reconciler = library.NewReconciler(recording, c.nodes, perSlice, c.tracker, c.topology, c.events, manager,
		library.WithPreferSameTrafficDistributionEnabled(true))
	return c.loop.Run(ctx)
}

func (c *Controller) podChanged(old, obj any) {
	was, _ := old.(*v1.Pod)
	pod, _ := obj.(*v1.Pod)
	keys, err := backing.Services(c.services, was, pod)
	if err != nil {
		utilruntime.HandleError(fmt.Errorf("controller endpoint_slice: %w", err))
	}
	for _, key := range keys {
		c.loop.Add(key)
	}
}

// sliceChanged wakes the service of a slice of ours, also when somebody else changed whose it is.
func (c *Controller) sliceChanged(old, obj any) {
	for _, o := range []any{old, obj} {
		if s, ok := o.(*discoveryv1.EndpointSlice); ok && s.Labels[discoveryv1.LabelManagedBy] == manager {
			if key := backing.ServiceOf(s); key != "" {
				c.loop.Add(key)
			}
		}
	}
}

func (c *Controller) nodeChanged(old, obj any) {
	was, _ := old.(*v1.Node)
	node, _ := obj.(*v1.Node)
	if was == nil || node == nil || nodes.IsReady(was) != nodes.IsReady(node) || was.Labels[v1.LabelTopologyZone] != node.Labels[v1.LabelTopologyZone] {
		c.loop.Add(topologyKey)
	}
}

func (c *Controller) reconcile(ctx context.Context, key string) error {
	if key == topologyKey {
		return c.lookAtNodes(ctx)
	}
	err := c.sync(ctx, key)
	if _, behind := c.behind.LoadAndDelete(key); behind && err != nil {
		metrics.EndpointSliceSyncs.WithLabelValues("stale").Inc()
		return fmt.Errorf("%w: %w", controller.ErrBehind, err)
	}
	if err != nil {
		metrics.EndpointSliceSyncs.WithLabelValues("error").Inc()
		return fmt.Errorf("endpoint slices of service %s: %w", key, err)
	}
	metrics.EndpointSliceSyncs.WithLabelValues("success").Inc()
	return nil
}

// counted counts the syncs that wait.
type counted struct{ *written.Log }

func (c counted) Caught(key string) bool {
	caught := c.Log.Caught(key)
	if !caught {
		metrics.EndpointSliceSyncs.WithLabelValues("stale").Inc()
	}
	return caught
}

func (c *Controller) lookAtNodes(ctx context.Context) error {
	nodes, err := c.nodes.List(labels.Everything())
	if err != nil {
		return err
	}
	c.topology.SetNodes(klog.FromContext(ctx), nodes)
	for _, key := range c.topology.GetOverloadedServices() {
		c.loop.Add(key)
	}
	return nil
}

func (c *Controller) sync(ctx context.Context, key string) error {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return err
	}
	item, exists, err := c.services.GetByKey(key)
	if err != nil {
		return err
	}
	if !exists { // the garbage collector deletes the slices
		c.triggers.DeleteService(namespace, name)
		c.reconciler.DeleteService(namespace, name)
		return nil
	}
	svc := item.(*v1.Service)
	if !backing.Selects(svc) {
		return nil
	}
	pods, err := backing.Pods(c.pods, svc)
	if err != nil {
		return err
	}
	have, err := c.current(key)
	if err != nil {
		return err
	}
	triggered := c.triggers.ComputeEndpointLastChangeTriggerTime(namespace, svc, pods)
	began, known := time.Now(), readyIn(have)
	err = c.reconciler.Reconcile(klog.FromContext(ctx), svc, pods, have, triggered)
	c.tracker.DeleteService(namespace, name)
	if err == nil {
		for _, p := range pods {
			if _, ready := apipods.ReadySince(p); ready && p.DeletionTimestamp == nil && !known[p.UID] {
				trace.Record(ctx, string(p.UID), "endpointslice: ready for service "+name, began, time.Now())
			}
		}
	}
	if _, behind := c.behind.Load(key); err != nil && !behind {
		c.events.Eventf(svc, v1.EventTypeWarning, "FailedToUpdateEndpointSlices",
			"Error updating Endpoint Slices for Service %s/%s: %v", namespace, name, err)
	}
	return err
}

// readyIn returns the pods that are ready endpoints in slices.
func readyIn(all []*discoveryv1.EndpointSlice) map[types.UID]bool {
	out := map[types.UID]bool{}
	for _, s := range all {
		for _, e := range s.Endpoints {
			if e.TargetRef != nil && e.Conditions.Ready != nil && *e.Conditions.Ready {
				out[e.TargetRef.UID] = true
			}
		}
	}
	return out
}

// current returns our slices of a service that are not being deleted. The library sorts their ports
// in place, and the informer's objects have other readers: it gets copies.
func (c *Controller) current(key string) ([]*discoveryv1.EndpointSlice, error) {
	all, err := backing.Slices(c.slices, key, manager)
	if err != nil {
		return nil, err
	}
	var out []*discoveryv1.EndpointSlice
	for _, s := range all {
		if s.DeletionTimestamp == nil {
			mine := *s
			mine.Ports = slices.Clone(s.Ports)
			out = append(out, &mine)
		}
	}
	return out, nil
}
