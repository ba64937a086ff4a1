// Package horizontalpodautoscaler gives workloads the size with which their metrics meet the targets of
// a HorizontalPodAutoscaler.
//
// An autoscaler is looked at when it appears, when its spec changes, and every 15 seconds: metrics
// have no events. A look
//
//  1. waits until the informer has the status that the last one wrote (package written),
//  2. reads the target's size, at its /scale, and the metrics, if these decide,
//  3. plans: start, propose and normalize are pure functions,
//  4. sets the size, unless somebody else has set it meanwhile, tells of it, and writes the status.
//
// Reasons, messages and metrics are upstream's. What autoscalers remember (history) is in memory only.
package horizontalpodautoscaler

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	clientset "k8s.io/client-go/kubernetes"
	autoscalinglisters "k8s.io/client-go/listers/autoscaling/v2"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/scale"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	"wherry.dev/internal/controller"
	"wherry.dev/internal/controller/written"
)

// tries is how often a size is set while others write to the target.
const tries = 5

// mapper finds the resources of a kind.
type mapper interface {
	RESTMappings(gk schema.GroupKind, versions ...string) ([]*meta.RESTMapping, error)
	// Reset forgets what the API server serves.
	Reset()
}

// Controller sizes the targets of autoscalers. Create one with New.
type Controller struct {
	client  clientset.Interface
	hpas    autoscalinglisters.HorizontalPodAutoscalerLister
	pods    corelisters.PodLister
	scales  scale.ScalesGetter
	mapper  mapper
	source  source
	loop    *controller.Loop
	events  record.EventRecorder
	writes  *written.Log
	options Options

	mu       sync.Mutex
	memories map[string]*remembered
}

// remembered is what is kept of an autoscaler. Only one look at a time touches its history.
type remembered struct {
	history  history
	selector labels.Selector // of the target's pods, at the last look
}

// New returns the controller, with the informers of f. It reads metrics and sizes as the user of cfg.
func New(client clientset.Interface, cfg *rest.Config, f informers.SharedInformerFactory, o Options) (*Controller, error) {
	found := memory.NewMemCacheClient(client.Discovery())
	m := restmapper.NewDeferredDiscoveryRESTMapper(found)
	scales, err := scale.NewForConfig(cfg, m, dynamic.LegacyAPIPathResolverFunc, scale.NewDiscoveryScaleKindResolver(client.Discovery()))
	if err != nil {
		return nil, fmt.Errorf("client of scales: %w", err)
	}
	metrics, err := newAPIs(cfg, client.Discovery(), m)
	if err != nil {
		return nil, err
	}
	return build(client, f, scales, m, metrics, o)
}

func build(client clientset.Interface, f informers.SharedInformerFactory, scales scale.ScalesGetter, m mapper, s source, o Options) (*Controller, error) {
	hpas, pods := f.Autoscaling().V2().HorizontalPodAutoscalers(), f.Core().V1().Pods()
	c := &Controller{
		client: client, hpas: hpas.Lister(), pods: pods.Lister(), scales: scales, mapper: m, source: s,
		writes: written.New(hpas.Informer().GetIndexer()), options: o, memories: map[string]*remembered{},
	}
	c.loop = controller.NewLoop("horizontalpodautoscaler", c.reconcile)
	c.loop.WaitFor(c.writes)
	if err := c.loop.Watch(hpas.Informer(), c.changed); err != nil {
		return nil, err
	}
	return c, c.loop.Watch(pods.Informer(), func(_, _ any) {})
}

// Run sizes until ctx ends.
func (c *Controller) Run(ctx context.Context) error {
	events, stop := controller.Recorder(ctx, c.client, "horizontal-pod-autoscaler")
	defer stop()
	c.events = events
	return c.loop.Run(ctx)
}

func keyOf(o metav1.Object) string { return cache.MetaObjectToName(o).String() }

// changed looks at once at what is new, gone, or has another spec. A status is our own.
func (c *Controller) changed(old, obj any) {
	was, _ := old.(*autoscalingv2.HorizontalPodAutoscaler)
	hpa, _ := obj.(*autoscalingv2.HorizontalPodAutoscaler)
	switch {
	case hpa == nil && was != nil:
		c.loop.Add(keyOf(was))
	case hpa != nil && (was == nil || was.UID != hpa.UID || was.Generation != hpa.Generation):
		c.loop.Add(keyOf(hpa))
	}
}

// recall returns what is remembered of an autoscaler.
func (c *Controller) recall(key string) *remembered {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.memories[key]
	if m == nil {
		m = &remembered{}
		c.memories[key] = m
		autoscalers.Set(float64(len(c.memories)))
	}
	return m
}

func (c *Controller) forget(namespace, name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := namespace + "/" + name
	delete(c.memories, key)
	autoscalers.Set(float64(len(c.memories)))
	desired.DeleteLabelValues(namespace, name)
}

func (c *Controller) reconcile(ctx context.Context, key string) error {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return err
	}
	hpa, err := c.hpas.HorizontalPodAutoscalers(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		c.forget(namespace, name)
		return nil
	}
	if err != nil {
		return err
	}
	began, m := time.Now(), c.recall(key)
	p, err := c.look(ctx, hpa, m)
	if p != nil {
		m.history = p.history // also if the status could not be written: the size may be set
		reconciled(p, err, time.Since(began))
		desired.WithLabelValues(namespace, name).Set(float64(p.status.DesiredReplicas))
	}
	if apierrors.IsConflict(err) {
		return err
	}
	c.loop.AddAfter(key, c.options.Period)
	if err != nil {
		return err
	}
	if p.failed != nil {
		// The condition and an event tell of it; the next look may find it gone.
		klog.FromContext(ctx).V(2).Info("Autoscaler cannot decide", "key", key, "err", p.failed)
	}
	return nil
}

// look plans, and carries out the plan.
func (c *Controller) look(ctx context.Context, hpa *autoscalingv2.HorizontalPodAutoscaler, m *remembered) (*plan, error) {
	target, resource, err := c.target(ctx, hpa)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil {
		p := unreachable(hpa, m.history, time.Now(), err)
		return p, c.tell(ctx, hpa, p)
	}
	o := &observed{Options: &c.options, hpa: hpa, scale: target, history: m.history, now: time.Now()}
	p, byMetrics := start(o)
	if byMetrics {
		c.measure(ctx, o, p, m)
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if p.resizes() {
		if p.size == 0 {
			if hpa, err = c.announceZero(ctx, hpa, true); err != nil {
				return nil, err
			}
		}
		if err := c.resize(ctx, hpa, target, resource, p.size); apierrors.IsConflict(err) {
			if p.size == 0 { // somebody else has just set the size, perhaps to zero
				_, withdrawn := c.announceZero(ctx, hpa, false)
				err = errors.Join(err, withdrawn)
			}
			return nil, err
		} else if err != nil {
			p.notResized(o.now, hpa.Status.DesiredReplicas, err)
		} else {
			p.resized(o.now)
			klog.FromContext(ctx).Info("Rescaled", "autoscaler", klog.KObj(hpa), "from", p.current, "to", p.size, "reason", p.reason)
		}
	}
	return p, c.tell(ctx, hpa, p)
}

// announceZero writes that the autoscaler scales its target to zero, before it does, or that it has not: if it were killed in
// between, nobody would know any more whether it was somebody else, who wants no pods.
func (c *Controller) announceZero(ctx context.Context, hpa *autoscalingv2.HorizontalPodAutoscaler, yes bool) (*autoscalingv2.HorizontalPodAutoscaler, error) {
	p := begin(hpa, history{})
	p.zeroed(time.Now(), yes)
	return c.write(ctx, hpa, p)
}

// write writes the plan's status, and returns the autoscaler with it.
func (c *Controller) write(ctx context.Context, hpa *autoscalingv2.HorizontalPodAutoscaler, p *plan) (*autoscalingv2.HorizontalPodAutoscaler, error) {
	next := hpa.DeepCopy()
	next.Status = p.status
	got, err := c.client.AutoscalingV2().HorizontalPodAutoscalers(hpa.Namespace).UpdateStatus(ctx, next, metav1.UpdateOptions{})
	if err != nil {
		return nil, fmt.Errorf("update the status of autoscaler %s/%s: %w", hpa.Namespace, hpa.Name, err)
	}
	c.writes.Wrote(keyOf(hpa), got)
	return got, nil
}

// target returns the size of what an autoscaler scales, as it is now.
func (c *Controller) target(ctx context.Context, hpa *autoscalingv2.HorizontalPodAutoscaler) (*autoscalingv1.Scale, schema.GroupResource, error) {
	none, ref := schema.GroupResource{}, hpa.Spec.ScaleTargetRef
	gv, err := schema.ParseGroupVersion(ref.APIVersion)
	if err != nil {
		return nil, none, err
	}
	mappings, err := c.mapper.RESTMappings(schema.GroupKind{Group: gv.Group, Kind: ref.Kind})
	if meta.IsNoMatchError(err) {
		c.mapper.Reset() // the next look may find a kind that is new
	}
	if err != nil {
		return nil, none, err
	}
	var first error
	for _, m := range mappings {
		resource := m.Resource.GroupResource()
		s, err := c.scales.Scales(hpa.Namespace).Get(ctx, resource, ref.Name, metav1.GetOptions{})
		if err == nil {
			return s, resource, nil
		}
		if first == nil {
			first = err
		}
	}
	if first == nil {
		first = errors.New("unrecognized resource")
	}
	return nil, none, first
}

// measure reads the metrics and completes the plan.
func (c *Controller) measure(ctx context.Context, o *observed, p *plan, m *remembered) {
	selector, why, err := c.find(o, m)
	if err != nil {
		if why.event != "" {
			p.warn(why.event, err.Error())
		}
		p.inactive(o.now, why.told, err)
		return
	}
	proposals := make([]proposal, len(o.hpa.Spec.Metrics))
	for i := range o.hpa.Spec.Metrics {
		spec, began := &o.hpa.Spec.Metrics[i], time.Now()
		r := read(ctx, c.source, o.hpa.Namespace, selector, spec)
		o.now = time.Now()
		proposals[i] = propose(o, spec, &r)
		computed(&proposals[i], p.current, spec.Type, time.Since(began))
	}
	p.bounds.now = o.now
	p.byMetrics(o, proposals)
}

// refusal says why a selector cannot be used.
type refusal struct {
	event string
	told  told
}

// find finds the target's pods. They must not be those of another autoscaler's target, too.
func (c *Controller) find(o *observed, m *remembered) (labels.Selector, refusal, error) {
	text := o.scale.Status.Selector
	if text == "" {
		return nil, refusal{"SelectorRequired", told{"InvalidSelector", "the HPA target's scale is missing a selector"}}, errors.New("selector is required")
	}
	selector, err := labels.Parse(text)
	if err != nil {
		err = fmt.Errorf("couldn't convert selector into a corresponding internal selector object: %w", err)
		return nil, refusal{"InvalidSelector", told{"InvalidSelector", err.Error()}}, err
	}
	c.mu.Lock()
	m.selector = selector
	c.mu.Unlock()
	if o.pods, err = c.pods.Pods(o.hpa.Namespace).List(selector); err != nil {
		return nil, refusal{told: told{"InvalidSelector", err.Error()}}, err
	}
	if keys := c.claimants(o.hpa.Namespace, o.pods); len(keys) > 1 {
		err := fmt.Errorf("pods by selector %v are controlled by multiple HPAs: %v", text, keys)
		return nil, refusal{"AmbiguousSelector", told{"AmbiguousSelector", err.Error()}}, err
	}
	return selector, refusal{}, nil
}

// claimants returns the autoscalers of a namespace whose targets have any of the pods.
func (c *Controller) claimants(namespace string, list []*v1.Pod) (keys []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key, m := range c.memories {
		if ns, _, err := cache.SplitMetaNamespaceKey(key); err != nil || ns != namespace || m.selector == nil {
			continue
		}
		if slices.ContainsFunc(list, func(p *v1.Pod) bool { return m.selector.Matches(labels.Set(p.Labels)) }) {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

// resize sets the size. If others write to the target it is tried again, as long as the size is the
// one from which the new one was computed.
func (c *Controller) resize(ctx context.Context, hpa *autoscalingv2.HorizontalPodAutoscaler, s *autoscalingv1.Scale, resource schema.GroupResource, size int32) error {
	api, was := c.scales.Scales(hpa.Namespace), s.Spec.Replicas
	var err error
	for range tries {
		s.Spec.Replicas = size
		if _, err = api.Update(ctx, resource, s, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
			return err
		}
		now, getErr := api.Get(ctx, resource, hpa.Spec.ScaleTargetRef.Name, metav1.GetOptions{})
		if getErr != nil {
			return getErr
		}
		if now.Spec.Replicas != was || now.UID != s.UID {
			return err
		}
		s = now
	}
	return err
}

// tell records the plan's events and writes its status.
func (c *Controller) tell(ctx context.Context, hpa *autoscalingv2.HorizontalPodAutoscaler, p *plan) error {
	for _, e := range p.events {
		c.events.Event(hpa, e.kind, e.reason, e.message)
	}
	if !p.news(hpa) {
		return nil
	}
	if _, err := c.write(ctx, hpa, p); !apierrors.IsNotFound(err) {
		return err
	}
	return nil
}
