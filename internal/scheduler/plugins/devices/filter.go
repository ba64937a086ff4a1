package devices

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
)

// Deallocated is what is said of a pod, or a group, that has given up devices which kept it off other nodes.
const Deallocated = "deallocation of ResourceClaim completed"

// Elsewhere is why a pod cannot run on a node that the devices of one of its claims are not for.
const Elsewhere = "resourceclaim not available on the node"

// PreFilter finds out what the pod's claims and extended resources need. It skips pods that have none.
func (d *Devices) PreFilter(ctx context.Context, cycle fwk.CycleState, pod *v1.Pod,
	_ []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
	all, err := d.claimsOf(pod)
	if err != nil {
		return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, err.Error())
	}
	s := &state{
		extended: backed(pod, d.classes), stale: d.staleOf(pod, all),
		plans: map[string]plan{}, needs: map[string]*need{}, elsewhere: sets.New[*podClaim](),
	}
	switch {
	case len(s.stale) > 0:
		cycle.Write(stateKey, s) // for PostFilter
		return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, Stale)
	case s.extended != nil:
		cycle.Write(backedKey, s.extended)
	case len(all) == 0 && pod.Status.ExtendedResourceClaimStatus == nil:
		return nil, fwk.NewStatus(fwk.Skip)
	}
	users, err := d.usersOf(pod)
	if err != nil {
		return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, err.Error())
	}
	for _, claim := range all {
		c, st := d.usable(cycle, claim, users[claim.Name], pod.UID)
		if !st.IsSuccess() {
			return nil, st
		}
		s.claims = append(s.claims, c)
	}
	if len(s.openClaims()) > 0 || s.extended != nil {
		if s.allocator, err = d.allocator(ctx); err != nil {
			return nil, fwk.AsStatus(err)
		}
	}
	cycle.Write(stateKey, s)
	return nil, nil
}

// PreFilterExtensions returns nil: other pods do not matter, only their claims do.
func (*Devices) PreFilterExtensions() fwk.PreFilterExtensions { return nil }

// usable returns the claim as the pod can use it, or why it cannot. user is for whom it is reserved.
func (d *Devices) usable(cycle fwk.CycleState, claim *resourcev1.ResourceClaim,
	user resourcev1.ResourceClaimConsumerReference, pod types.UID) (*podClaim, *fwk.Status) {
	c := &podClaim{ResourceClaim: claim, key: claim.UID, user: user}
	if claim.Status.Allocation == nil {
		if p := d.claims.promised(claim.UID); p != nil {
			if group := cycleOf(cycle); group == nil || p.cycle != group {
				// The claim's next version helps, at once.
				return nil, fwk.NewStatus(fwk.Pending,
					fmt.Sprintf("resource claim %s is in the process of being allocated", klog.KObj(claim)))
			}
			c.allocation = p.claim.Status.Allocation
		}
	}
	if c.open() {
		return c, d.classesExist(claim)
	}
	if len(claim.Status.ReservedFor) >= resourcev1.ResourceClaimReservedForMaxSize && !c.reservedFor(pod) {
		return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "resourceclaim in use")
	}
	var err error
	if c.evicts, err = d.slices.evicts(claim, time.Now()); err != nil {
		return nil, fwk.AsStatus(err)
	}
	if where := c.decided().NodeSelector; where != nil {
		if c.nodes, err = nodeaffinity.NewNodeSelector(where); err != nil {
			return nil, fwk.AsStatus(err)
		}
	}
	return c, nil
}

// classesExist rejects a claim of which a request names a class that does not exist.
func (d *Devices) classesExist(claim *resourcev1.ResourceClaim) *fwk.Status {
	for request, class := range classesOf(claim) {
		if _, err := d.classes.Get(class); apierrors.IsNotFound(err) {
			return fwk.NewStatus(fwk.UnschedulableAndUnresolvable,
				fmt.Sprintf("request %s: device class %s does not exist", request, class))
		} else if err != nil {
			return fwk.AsStatus(err)
		}
	}
	return nil
}

// classesOf yields the claim's requests, alternatives as REQUEST/ALTERNATIVE, and their classes.
func classesOf(claim *resourcev1.ResourceClaim) func(yield func(request, class string) bool) {
	return func(yield func(request, class string) bool) {
		for i := range claim.Spec.Devices.Requests {
			r := &claim.Spec.Devices.Requests[i]
			if r.Exactly != nil && !yield(r.Name, r.Exactly.DeviceClassName) {
				return
			}
			for j := range r.FirstAvailable {
				sub := &r.FirstAvailable[j]
				if !yield(resourceclaim.CreateSubRequestRef(r.Name, sub.Name), sub.DeviceClassName) {
					return
				}
			}
		}
	}
}

// allocator returns one that knows which devices there are, and which of them are taken.
func (d *Devices) allocator(ctx context.Context) (structured.Allocator, error) {
	there, err := d.slices.ListWithDeviceTaintRules()
	if err != nil {
		return nil, err
	}
	return structured.NewAllocator(ctx, features, d.claims.taken(), d.classes, there, d.cel)
}

// Filter rejects nodes on which allocated claims cannot be used, and those without devices for the others.
func (d *Devices) Filter(ctx context.Context, cycle fwk.CycleState, pod *v1.Pod, info fwk.NodeInfo) *fwk.Status {
	s := stateOf(cycle)
	if s == nil {
		return nil
	}
	p, st := d.planFor(ctx, s, pod, info)
	if st.IsSuccess() && (len(p.allocations) > 0 || s.extended != nil) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.plans[info.Node().Name] = p
	}
	return st
}

// planFor looks for what the pod needs on a node. Allocated claims come last: one that cannot be used here is only in
// the pod's way, and may be given up, if there is everything else.
func (d *Devices) planFor(ctx context.Context, s *state, pod *v1.Pod, info fwk.NodeInfo) (plan, *fwk.Status) {
	need, err := s.needOn(info)
	if err != nil {
		return plan{}, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, err.Error())
	}
	open := s.openClaims()
	if need != nil {
		open = append(open, special(pod, need))
	}
	var found []resourcev1.AllocationResult
	if len(open) > 0 {
		var st *fwk.Status
		if found, st = d.search(ctx, s.allocator, info.Node(), open); !st.IsSuccess() {
			return plan{}, st
		}
	}
	if unusable := d.unusableOn(s, info.Node(), time.Now()); len(unusable) > 0 {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.elsewhere.Insert(unusable...)
		return plan{}, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, Elsewhere)
	}
	return plan{found, need}, nil
}

// needOn returns what the pod's extended resources need on the node; nil if the node has them all.
func (s *state) needOn(node fwk.NodeInfo) (*need, error) {
	resources := s.extended.on(node)
	if len(resources) == 0 {
		return nil, nil
	}
	key := fmt.Sprint(resources)
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.needs[key]; n != nil {
		return n, nil
	}
	n, err := s.extended.needs(resources)
	if err == nil {
		s.needs[key] = n
	}
	return n, err
}

// unusableOn returns the allocated claims that cannot be used on the node.
func (d *Devices) unusableOn(s *state, node *v1.Node, now time.Time) []*podClaim {
	var out []*podClaim
	for _, c := range s.claims {
		if c.evicts || c.nodes != nil && !c.nodes.Match(node) || d.failed(c.ResourceClaim, now) {
			out = append(out, c)
		}
	}
	return out
}

// search looks for devices on the node.
func (d *Devices) search(ctx context.Context, a structured.Allocator, node *v1.Node,
	open []*resourcev1.ResourceClaim) ([]resourcev1.AllocationResult, *fwk.Status) {
	limited := ctx
	if d.filterTimeout > 0 {
		var cancel context.CancelFunc
		limited, cancel = context.WithTimeout(ctx, d.filterTimeout)
		defer cancel()
	}
	plan, err := a.Allocate(limited, node, open)
	switch {
	case err == nil && len(plan) == len(open):
		return plan, nil
	case err == nil:
		return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "cannot allocate all claims")
	case ctx.Err() != nil:
		return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable,
			fmt.Sprintf("asked by caller to stop allocating devices: %v", context.Cause(ctx)))
	case errors.Is(err, context.DeadlineExceeded):
		// An error, so that the pod is tried again after a while: no event would tell that it takes less time now.
		return nil, fwk.AsStatus(fmt.Errorf("node %s: timed out trying to allocate devices", node.Name))
	case errors.Is(err, structured.ErrFailedAllocationOnNode):
		return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, err.Error())
	}
	return nil, fwk.AsStatus(err)
}

// PostFilter deletes what a former attempt has left behind, or gives up an allocated claim that cannot be used on some
// node, if nobody but the pod uses it. The end of the one, or the next version of the other, has the pod tried again.
func (d *Devices) PostFilter(ctx context.Context, cycle fwk.CycleState, pod *v1.Pod,
	statuses fwk.NodeToStatusReader) (*fwk.PostFilterResult, *fwk.Status) {
	s := stateOf(cycle)
	if s == nil {
		return nil, fwk.NewStatus(fwk.Unschedulable)
	}
	if len(s.stale) > 0 {
		if err := d.removeStale(ctx, s.stale, pod); err != nil {
			return nil, fwk.AsStatus(err)
		}
		return nil, fwk.NewStatus(fwk.Unschedulable, "deletion of ResourceClaim completed")
	}
	if err := d.lookPastPreemption(ctx, s, pod, statuses); err != nil {
		return nil, fwk.AsStatus(err)
	}
	users := d.hopeful(pod)
	for c := range s.elsewhere {
		if c.Status.Allocation == nil || !idle(c.ResourceClaim, users) {
			continue
		}
		if err := d.giveUp(ctx, c, users); err != nil {
			return nil, fwk.AsStatus(err)
		}
		return nil, fwk.NewStatus(fwk.Unschedulable, Deallocated)
	}
	return nil, fwk.NewStatus(fwk.Unschedulable)
}

// PodGroupPostFilter has a pod group that fits nowhere begin anew: it deletes what former attempts have left behind, and
// gives up the devices of its claims that cannot be used on every node, if nobody else uses them. The next versions of
// these have the group tried again.
func (d *Devices) PodGroupPostFilter(ctx context.Context, _ fwk.PodGroupCycleState, group fwk.PodGroupInfo,
	_ fwk.PodGroupSchedulingFunc) (*fwk.PodGroupPostFilterResult, *fwk.Status) {
	users := sets.New[types.UID]()
	for _, pod := range group.GetUnscheduledPods() {
		users = users.Union(d.hopeful(pod))
	}
	given, now := sets.New[types.UID](), time.Now()
	for _, pod := range group.GetUnscheduledPods() {
		all, err := d.claimsOf(pod)
		if err != nil {
			continue // it waits for a claim
		}
		if err := d.removeStale(ctx, d.staleOf(pod, all), pod); err != nil {
			return nil, fwk.AsStatus(err)
		}
		for _, claim := range all {
			if given.Has(claim.UID) || !idle(claim, users) || !d.restricts(claim, now) {
				continue
			}
			if err := d.giveUp(ctx, &podClaim{ResourceClaim: claim, key: claim.UID}, users); err != nil {
				return nil, fwk.AsStatus(err)
			}
			given.Insert(claim.UID)
		}
	}
	if given.Len() > 0 {
		return nil, fwk.NewStatus(fwk.Unschedulable, Deallocated)
	}
	return nil, fwk.NewStatus(fwk.Unschedulable)
}

// restricts reports whether a claim has devices that cannot be used on every node.
func (d *Devices) restricts(claim *resourcev1.ResourceClaim, now time.Time) bool {
	if claim.Status.Allocation == nil {
		return false
	}
	tainted, err := d.slices.evicts(claim, now)
	return claim.Status.Allocation.NodeSelector != nil || err == nil && tainted || d.failed(claim, now)
}

// lookPastPreemption remembers idle claims that cannot be used on a node that another plugin has rejected before Filter
// was asked, and on which room could be made. Upstream does not look there: then a claim keeps its pod off such a node,
// although nobody uses it.
func (d *Devices) lookPastPreemption(ctx context.Context, s *state, pod *v1.Pod, statuses fwk.NodeToStatusReader) error {
	users := d.hopeful(pod)
	inTheWay := func(c *podClaim) bool { return c.Status.Allocation != nil && idle(c.ResourceClaim, users) }
	if !slices.ContainsFunc(s.claims, inTheWay) {
		return nil
	}
	nodes, err := statuses.NodesForStatusCode(d.handle.SnapshotSharedLister().NodeInfos(), fwk.Unschedulable)
	if err != nil {
		return err
	}
	now := time.Now()
	for _, n := range nodes {
		if !slices.ContainsFunc(d.unusableOn(s, n.Node(), now), inTheWay) {
			continue
		}
		if _, st := d.planFor(ctx, s, pod, n); st.Code() == fwk.Error {
			return st.AsError()
		} else if st.Message() == Elsewhere {
			return nil // one is enough
		}
	}
	return nil
}

// giveUp deallocates a claim, unless others than these use it now, or it has other devices than it had.
func (d *Devices) giveUp(ctx context.Context, c *podClaim, users sets.Set[types.UID]) error {
	_, err := d.update(ctx, c, func(ctx context.Context, latest *resourcev1.ResourceClaim) (*resourcev1.ResourceClaim, error) {
		if !idle(latest, users) || !same(latest.Status.Allocation, c.Status.Allocation) {
			return latest, nil // what has changed has the pod tried again
		}
		latest.Status = resourcev1.ResourceClaimStatus{}
		return d.api(latest).UpdateStatus(ctx, latest, metav1.UpdateOptions{})
	})
	if err != nil {
		return fmt.Errorf("deallocate resource claim %s: %w", klog.KObj(c), err)
	}
	return nil
}
