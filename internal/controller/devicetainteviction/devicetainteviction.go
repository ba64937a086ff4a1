// Package devicetainteviction deletes pods that use devices with a NoExecute taint that their claims do not tolerate, at
// once or when the time for which they tolerate it is over (KEP-5055).
//
// A driver taints its devices in its slices, an administrator by a DeviceTaintRule. Two loops run: that of pods deletes
// them, and that of rules reports how far the eviction has come, or would go, in the rule's status. Nothing is kept but
// which pods are to go, for an event that says so if they need not any more, and how many have gone for each rule.
package devicetainteviction

import (
	"context"
	"errors"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	clientset "k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	resourcelisters "k8s.io/client-go/listers/resource/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"wherry.dev/internal/api/devices"
	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/controller"
	"wherry.dev/internal/controller/disrupt"
)

// Upstream's names: of the controller, and of the event about a pod.
const (
	controllerName = "device-taint-eviction-controller"
	evictionEvent  = "DeviceTaintManagerEviction"
)

// statusPeriod is the least time between two reports of a rule.
const statusPeriod = 10 * time.Second

// Indices: of slices and of allocated claims by their pools, of pods by their groups.
const (
	byPool  = "wherry/devicepool"
	byGroup = "wherry/devicetaintpodgroup"
)

// Controller evicts pods. Create one with New.
type Controller struct {
	client    clientset.Interface
	evictions *controller.Loop // of pods
	reports   *controller.Loop // of rules
	events    record.EventRecorder

	podLister corelisters.PodLister
	claims    resourcelisters.ResourceClaimLister
	rules     resourcelisters.DeviceTaintRuleLister
	ofPods    cache.Indexer
	ofClaims  cache.Indexer
	ofSlices  cache.Indexer

	mu sync.Mutex
	// going has the pods that are to be evicted, by key, with the rules that want it.
	going map[string]leaving
	// evicted is how many pods have gone because of a rule, since the start.
	evicted map[types.UID]int
}

type leaving struct {
	uid   types.UID
	rules []string
}

// New returns the controller, with the informers of f.
func New(client clientset.Interface, f informers.SharedInformerFactory) (*Controller, error) {
	api, all := f.Resource().V1(), f.Core().V1().Pods()
	claims, slices, rules := api.ResourceClaims(), api.ResourceSlices(), api.DeviceTaintRules()
	c := &Controller{
		client: client, podLister: all.Lister(), claims: claims.Lister(), rules: rules.Lister(),
		ofPods: all.Informer().GetIndexer(), ofClaims: claims.Informer().GetIndexer(), ofSlices: slices.Informer().GetIndexer(),
		going: map[string]leaving{}, evicted: map[types.UID]int{},
	}
	c.evictions = controller.NewLoop("device_taint_eviction", c.evict)
	c.reports = controller.NewLoop("device_taint_rule_status", c.report)
	// Either loop needs what the other one watches to be there.
	return c, errors.Join(
		all.Informer().AddIndexers(cache.Indexers{byGroup: controller.IndexBy(controller.GroupOf)}),
		claims.Informer().AddIndexers(cache.Indexers{byPool: controller.IndexBy(poolsOf)}),
		slices.Informer().AddIndexers(cache.Indexers{byPool: controller.IndexBy(func(s *resourcev1.ResourceSlice) []string {
			return []string{poolKey(s.Spec.Driver, s.Spec.Pool.Name)}
		})}),
		c.reports.Watch(rules.Informer(), c.ruleReported), c.reports.Watch(slices.Informer(), ignore),
		c.reports.Watch(claims.Informer(), ignore), c.reports.Watch(all.Informer(), ignore),
		c.evictions.Watch(rules.Informer(), c.ruleChanged), c.evictions.Watch(slices.Informer(), c.sliceChanged),
		c.evictions.Watch(claims.Informer(), c.claimChanged), c.evictions.Watch(all.Informer(), c.podChanged),
	)
}

func ignore(_, _ any) {}

// Run evicts pods until ctx ends.
func (c *Controller) Run(ctx context.Context) error {
	events, stop := controller.Recorder(ctx, c.client, controllerName)
	defer stop()
	c.events = events
	ended := make(chan error, 1)
	go func() { ended <- c.reports.Run(ctx) }()
	err := c.evictions.Run(ctx)
	return errors.Join(err, <-ended)
}

// poolKey has a separator that no name of a driver has.
func poolKey(driver, pool string) string { return driver + "/" + pool }

func poolsOf(claim *resourcev1.ResourceClaim) []string {
	var keys []string
	if claim.Status.Allocation != nil {
		for _, r := range claim.Status.Allocation.Devices.Results {
			keys = append(keys, poolKey(r.Driver, r.Pool))
		}
	}
	return keys
}

// ruleReported wakes a rule that is new or says something else.
func (c *Controller) ruleReported(old, obj any) {
	was, _ := old.(*resourcev1.DeviceTaintRule)
	rule, _ := obj.(*resourcev1.DeviceTaintRule)
	if was != nil && (rule == nil || rule.UID != was.UID) {
		c.mu.Lock()
		delete(c.evicted, was.UID)
		c.mu.Unlock()
	}
	if rule != nil && (was == nil || was.UID != rule.UID || was.Generation != rule.Generation) {
		c.reports.Add(rule.Name)
	}
}

// ruleChanged wakes the pods whose devices a rule taints, or tainted.
func (c *Controller) ruleChanged(old, obj any) {
	was, _ := old.(*resourcev1.DeviceTaintRule)
	rule, _ := obj.(*resourcev1.DeviceTaintRule)
	if was != nil && rule != nil && equality.Semantic.DeepEqual(was.Spec, rule.Spec) {
		return
	}
	for _, r := range []*resourcev1.DeviceTaintRule{was, rule} {
		if r == nil || r.Spec.Taint.Effect != resourcev1.DeviceTaintEffectNoExecute {
			continue
		}
		for _, claim := range c.claimsOf(r) {
			c.wake(claim)
		}
	}
}

// claimsOf returns the claims that have a device which the rule selects.
func (c *Controller) claimsOf(r *resourcev1.DeviceTaintRule) []*resourcev1.ResourceClaim {
	all, err := c.claims.List(labels.Everything())
	if err != nil {
		return nil // cannot happen: a lister fails only for a selector that does not parse
	}
	var out []*resourcev1.ResourceClaim
	for _, claim := range all {
		if selected(r, claim) > 0 {
			out = append(out, claim)
		}
	}
	return out
}

// selected returns how many devices of a claim the rule selects.
func selected(r *resourcev1.DeviceTaintRule, claim *resourcev1.ResourceClaim) (n int) {
	if claim.Status.Allocation == nil {
		return 0
	}
	for _, d := range claim.Status.Allocation.Devices.Results {
		if devices.Tainted(r, devices.Device{Driver: d.Driver, Pool: d.Pool, Name: d.Device}) {
			n++
		}
	}
	return n
}

// sliceChanged wakes the pods that have devices of the slice's pool, if any of these has or had a taint that evicts: a
// slice that goes may have been the last one of its generation.
func (c *Controller) sliceChanged(old, obj any) {
	for _, o := range []any{old, obj} {
		s, ok := o.(*resourcev1.ResourceSlice)
		if !ok {
			continue
		}
		key := poolKey(s.Spec.Driver, s.Spec.Pool.Name)
		others, err := controller.LookUp[*resourcev1.ResourceSlice](c.ofSlices, byPool, key)
		if err != nil {
			return // the index exists
		}
		tainted := devices.Evicts(s)
		for _, other := range others {
			tainted = tainted || devices.Evicts(other)
		}
		if !tainted {
			continue
		}
		claims, err := controller.LookUp[*resourcev1.ResourceClaim](c.ofClaims, byPool, key)
		if err != nil {
			return // the index exists
		}
		for _, claim := range claims {
			c.wake(claim)
		}
	}
}

// claimChanged wakes the pods for which an allocated claim is or was reserved.
func (c *Controller) claimChanged(old, obj any) {
	for _, o := range []any{old, obj} {
		if claim, ok := o.(*resourcev1.ResourceClaim); ok && claim.Status.Allocation != nil {
			c.wake(claim)
		}
	}
}

// wake wakes the pods for which a claim is reserved.
func (c *Controller) wake(claim *resourcev1.ResourceClaim) {
	for _, pod := range c.users(claim) {
		c.evictions.Add(cache.MetaObjectToName(pod).String())
	}
}

// users returns the pods for which a claim is reserved, by themselves or with their group.
func (c *Controller) users(claim *resourcev1.ResourceClaim) []*v1.Pod {
	var out []*v1.Pod
	for _, user := range claim.Status.ReservedFor {
		switch {
		case user.APIGroup == "" && user.Resource == "pods":
			if pod, err := c.podLister.Pods(claim.Namespace).Get(user.Name); err == nil && pod.UID == user.UID {
				out = append(out, pod)
			}
		case user.APIGroup == schedulingv1beta1.GroupName && user.Resource == "podgroups":
			members, err := controller.LookUp[*v1.Pod](c.ofPods, byGroup, claim.Namespace+"/"+user.Name)
			if err != nil {
				continue // the index exists
			}
			out = append(out, members...)
		}
	}
	return out
}

// podChanged wakes a pod that got a node or claims, and one that is over.
func (c *Controller) podChanged(old, obj any) {
	was, _ := old.(*v1.Pod)
	pod, ok := obj.(*v1.Pod)
	switch {
	case !ok:
		if was != nil && usesDevices(was) {
			c.evictions.Add(cache.MetaObjectToName(was).String())
		}
	case !usesDevices(pod), was != nil && was.Spec.NodeName == pod.Spec.NodeName && was.DeletionTimestamp.Equal(pod.DeletionTimestamp) &&
		was.Status.Phase == pod.Status.Phase && equality.Semantic.DeepEqual(was.Status.ResourceClaimStatuses, pod.Status.ResourceClaimStatuses) &&
		equality.Semantic.DeepEqual(was.Status.ExtendedResourceClaimStatus, pod.Status.ExtendedResourceClaimStatus):
	default:
		c.evictions.Add(cache.MetaObjectToName(pod).String())
	}
}

func usesDevices(pod *v1.Pod) bool {
	return len(pod.Spec.ResourceClaims) > 0 || pod.Status.ExtendedResourceClaimStatus != nil
}

// taints returns the taints of a device that evict.
func (c *Controller) taints(rules []*resourcev1.DeviceTaintRule) func(devices.Device) []devices.Taint {
	return func(d devices.Device) []devices.Taint {
		slices, err := controller.LookUp[*resourcev1.ResourceSlice](c.ofSlices, byPool, poolKey(d.Driver, d.Pool))
		if err != nil {
			return nil // the index exists
		}
		return append(devices.ByDriver(slices, d.Name), devices.ByRules(rules, d)...)
	}
}

// causes returns why a pod has to go. One without a node has no devices yet, and one that is over needs none any more.
func (c *Controller) causes(pod *v1.Pod, rules []*resourcev1.DeviceTaintRule) []devices.Eviction {
	if pod.Spec.NodeName == "" || pod.DeletionTimestamp != nil || pods.IsTerminal(pod.Status.Phase) {
		return nil
	}
	var out []devices.Eviction
	for name, its := range resourceclaim.PodClaims(pod) {
		claim, err := c.claims.ResourceClaims(pod.Namespace).Get(name)
		if err != nil || its && resourceclaim.IsForPod(pod, claim, true) != nil || !resourceclaim.IsReservedForPod(pod, claim, true) {
			continue // there is none, or it is somebody else's
		}
		out = append(out, devices.Evictions(claim, c.taints(rules))...)
	}
	return out
}

// evict evicts a pod if it has to go, or looks again when its time comes.
func (c *Controller) evict(ctx context.Context, key string) error {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return err
	}
	pod, err := c.podLister.Pods(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		c.stay(key, nil)
		return nil
	}
	if err != nil {
		return err
	}
	rules, err := c.rules.List(labels.Everything())
	if err != nil {
		return err
	}
	causes := c.causes(pod, rules)
	if len(causes) == 0 {
		c.stay(key, pod)
		return nil
	}
	c.leave(key, pod, causes)
	at := devices.Earliest(causes)
	if wait := time.Until(at); wait > 0 {
		c.evictions.AddAfter(key, wait)
		return nil
	}
	if holds, err := c.holds(ctx, causes); err != nil || !holds {
		return err
	}
	gone, err := disrupt.Delete(ctx, c.client, c.events, pod, disrupt.Cause{
		Reason: "DeletionByDeviceTaintManager", Message: "Device Taint manager: deleting due to NoExecute taint",
		Event: evictionEvent, Note: "Marking for deletion",
	})
	if !gone {
		return err
	}
	deleted(at)
	c.mu.Lock()
	defer c.mu.Unlock()
	for rule := range rulesOf(causes) {
		c.evicted[rule.UID]++
	}
	return nil
}

// leave notes that a pod is to go. The rules that want it report that.
func (c *Controller) leave(key string, pod *v1.Pod, causes []devices.Eviction) {
	l := leaving{uid: pod.UID}
	for rule := range rulesOf(causes) {
		l.rules = append(l.rules, rule.Name)
		c.reports.AddAfter(rule.Name, statusPeriod)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.going[key] = l
}

// stay notes that a pod need not go, or is gone if pod is nil or on its way.
func (c *Controller) stay(key string, pod *v1.Pod) {
	c.mu.Lock()
	l, was := c.going[key]
	delete(c.going, key)
	c.mu.Unlock()
	if !was {
		return
	}
	for _, rule := range l.rules {
		c.reports.AddAfter(rule, statusPeriod)
	}
	if pod != nil && pod.UID == l.uid && pod.DeletionTimestamp == nil && !pods.IsTerminal(pod.Status.Phase) {
		c.events.Event(pod, v1.EventTypeNormal, evictionEvent, "Cancelling deletion")
	}
}

// rulesOf returns the rules among causes.
func rulesOf(causes []devices.Eviction) map[*resourcev1.DeviceTaintRule]bool {
	out := map[*resourcev1.DeviceTaintRule]bool{}
	for _, c := range causes {
		if c.Rule != nil {
			out[c.Rule] = true
		}
	}
	return out
}

// holds reports whether one of the causes whose time has come is still there: the informers may be behind.
func (c *Controller) holds(ctx context.Context, causes []devices.Eviction) (bool, error) {
	now := time.Now()
	for i := range causes {
		if causes[i].At.After(now) {
			continue
		}
		if holds, err := c.still(ctx, &causes[i].Taint); err != nil || holds {
			return holds, err
		}
	}
	return false, nil
}

// still reports whether devices have the taint.
func (c *Controller) still(ctx context.Context, t *devices.Taint) (bool, error) {
	if t.Rule != nil {
		rule, err := c.client.ResourceV1().DeviceTaintRules().Get(ctx, t.Rule.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return false, nil
		}
		return err == nil && rule.UID == t.Rule.UID && equality.Semantic.DeepEqual(rule.Spec, t.Rule.Spec), err
	}
	slice, err := c.client.ResourceV1().ResourceSlices().Get(ctx, t.Slice.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	for _, is := range devices.ByDriver([]*resourcev1.ResourceSlice{slice}, t.Name) {
		if equality.Semantic.DeepEqual(is.DeviceTaint, t.DeviceTaint) {
			return true, nil
		}
	}
	return false, nil
}
