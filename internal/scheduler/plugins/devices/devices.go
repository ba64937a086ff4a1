package devices

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/dynamic-resource-allocation/structured"
	configv1 "k8s.io/kube-scheduler/config/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/utils/ptr"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/scheduler/framework"
	"wherry.dev/internal/scheduler/groups"
)

// Devices is DynamicResources.
type Devices struct {
	*Manager
	handle fwk.Handle
	client kubernetes.Interface
	// filterTimeout limits the search for devices on one node (0: it does not), bindingTimeout the wait for devices to
	// become ready.
	filterTimeout, bindingTimeout time.Duration
}

var (
	_ fwk.PreEnqueuePlugin         = (*Devices)(nil)
	_ fwk.PreFilterPlugin          = (*Devices)(nil)
	_ fwk.FilterPlugin             = (*Devices)(nil)
	_ fwk.PostFilterPlugin         = (*Devices)(nil)
	_ fwk.PodGroupPostFilterPlugin = (*Devices)(nil)
	_ fwk.PreScorePlugin           = (*Devices)(nil)
	_ fwk.ScorePlugin              = (*Devices)(nil)
	_ fwk.ReservePlugin            = (*Devices)(nil)
	_ fwk.PreBindPlugin            = (*Devices)(nil)
	_ fwk.SignPlugin               = (*Devices)(nil)
	_ fwk.EnqueueExtensions        = (*Devices)(nil)
)

// features are those of the allocator whose gates are on by default in Kubernetes 1.37.
var features = structured.Features{
	AdminAccess:             true,
	ConsumableCapacity:      true,
	DeviceBindingAndStatus:  true,
	DeviceTaints:            true,
	FractionalCapacityRange: true,
	PartitionableDevices:    true,
	PrioritizedList:         true,
}

// New returns a DynamicResources for one profile.
func New(_ context.Context, args *configv1.DynamicResourcesArgs, h fwk.Handle) (fwk.Plugin, error) {
	m, ok := h.SharedDRAManager().(*Manager)
	if !ok {
		return nil, errors.New("there is no manager of devices")
	}
	d := &Devices{
		Manager: m, handle: h, client: h.ClientSet(),
		filterTimeout:  duration(args.FilterTimeout, configv1.DynamicResourcesFilterTimeoutDefault),
		bindingTimeout: duration(args.BindingTimeout, configv1.DynamicResourcesBindingTimeoutDefault),
	}
	var errs []error
	if d.filterTimeout < 0 {
		errs = append(errs, fmt.Errorf("filterTimeout: Invalid value: %q: must be zero or positive", d.filterTimeout))
	}
	if d.bindingTimeout < time.Second {
		errs = append(errs, fmt.Errorf("bindingTimeout: Invalid value: %q: must be at least 1 second", d.bindingTimeout))
	}
	return d, errors.Join(errs...)
}

func duration(set *metav1.Duration, byDefault time.Duration) time.Duration {
	return ptr.Deref(set, metav1.Duration{Duration: byDefault}).Duration
}

func keyOf(claim *resourcev1.ResourceClaim) string { return cache.MetaObjectToName(claim).String() }

const stateKey fwk.StateKey = "DynamicResources"

// state belongs to one attempt to schedule one pod. What Filter writes, for many nodes at once, does not depend on
// other pods, so that clones share it.
type state struct {
	claims    []*podClaim
	extended  *extended            // nil if the pod asks for nothing that classes back
	stale     []*podClaim          // that were made for the pod, and are in its way
	allocator structured.Allocator // nil if nothing is to be allocated

	mu sync.Mutex
	// plans has what Filter has found, by node.
	plans map[string]plan
	// needs has what the extended resources need, by their names: it is the same on most nodes.
	needs map[string]*need
	// elsewhere are the claims that cannot be used on some node.
	elsewhere sets.Set[*podClaim]
}

// plan is what the pod gets on a node.
type plan struct {
	// allocations are those of the open claims, in their order, and then that of the one that is to be made.
	allocations []resourcev1.AllocationResult
	need        *need // nil if none is to be made
}

// Clone returns the state itself.
func (s *state) Clone() fwk.StateData { return s }

// podClaim is a claim of the pod.
type podClaim struct {
	// ResourceClaim is as it was at the beginning of the attempt or, since PreBind, as it was written.
	*resourcev1.ResourceClaim
	// key is the UID under which devices are promised: the claim's, but for one that does not exist yet.
	key types.UID
	// mappings say which containers' extended resources it is; nil for one of the pod's own.
	mappings []v1.ContainerExtendedResourceRequest
	// user is for whom the claim is reserved: the pod or, if they have it in common, its group.
	user resourcev1.ResourceClaimConsumerReference
	// told says that the pod's status may name the claim.
	told bool
	// nodes are those on which its devices can be used; nil if that does not matter, or is not decided.
	nodes *nodeaffinity.NodeSelector
	// evicts says that a device has a taint for which those who use the claim have to go.
	evicts bool
	// allocation is what was decided and is to be written, by Reserve, or before for another pod of the same group.
	allocation *resourcev1.AllocationResult
}

// reservedFor reports whether the claim is reserved for a pod, by itself or with its group.
func (c *podClaim) reservedFor(pod types.UID) bool {
	return pods.ReservedFor(c.ResourceClaim, pod) || pods.ReservedFor(c.ResourceClaim, c.user.UID)
}

// open reports whether devices are still to be found for the claim.
func (c *podClaim) open() bool { return c.Status.Allocation == nil && c.allocation == nil }

// decided returns the allocation, written or not; nil if there is none.
func (c *podClaim) decided() *resourcev1.AllocationResult {
	if c.Status.Allocation != nil {
		return c.Status.Allocation
	}
	return c.allocation
}

// openClaims returns the pod's own claims for which devices are to be found.
func (s *state) openClaims() []*resourcev1.ResourceClaim {
	var out []*resourcev1.ResourceClaim
	for _, c := range s.claims {
		if c.open() {
			out = append(out, c.ResourceClaim)
		}
	}
	return out
}

// special returns the claim that is made for the pod on the node that it was given; nil if it needs none there.
func (s *state) special() *podClaim {
	if n := len(s.claims); n > 0 && s.claims[n-1].mappings != nil {
		return s.claims[n-1]
	}
	return nil
}

// stateOf returns nil for a pod without claims, or one that PreFilter rejected.
func stateOf(cycle fwk.CycleState) *state {
	s, st := framework.ReadState[*state](cycle, stateKey)
	if !st.IsSuccess() {
		return nil
	}
	return s
}

// Name returns upstream's name.
func (*Devices) Name() string { return "DynamicResources" }

// SignPod signs pods without claims: they are all alike. What a node has for others depends on what was promised
// elsewhere, too.
func (d *Devices) SignPod(_ context.Context, pod *v1.Pod) ([]fwk.SignFragment, *fwk.Status) {
	if len(pod.Spec.ResourceClaims) > 0 {
		return nil, fwk.NewStatus(fwk.Unschedulable, "pods with dra resource claims are not signable")
	}
	if backed(pod, d.classes) != nil {
		return nil, fwk.NewStatus(fwk.Unschedulable, "pods with extended resources of device classes are not signable")
	}
	return nil, nil
}

// PreEnqueue lets a pod wait for its claims.
func (d *Devices) PreEnqueue(_ context.Context, pod *v1.Pod) *fwk.Status {
	if _, err := d.claimsOf(pod); err != nil {
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, err.Error())
	}
	return nil
}

// claimsOf returns the claims of a pod, each of them once. An error says why it cannot use one of them.
func (d *Devices) claimsOf(pod *v1.Pod) ([]*resourcev1.ResourceClaim, error) {
	var out []*resourcev1.ResourceClaim
	for i := range pod.Spec.ResourceClaims {
		name, made, err := resourceclaim.Name(pod, &pod.Spec.ResourceClaims[i])
		if err != nil {
			return nil, err
		}
		if name == nil {
			continue // it turned out that none is needed
		}
		claim, err := d.claims.get(pod.Namespace, *name)
		if err != nil {
			return nil, err
		}
		if claim.DeletionTimestamp != nil {
			return nil, fmt.Errorf("resourceclaim %q is being deleted", claim.Name)
		}
		if made {
			if err := resourceclaim.IsForPod(pod, claim, true); err != nil {
				return nil, err
			}
		}
		if !slices.ContainsFunc(out, func(c *resourcev1.ResourceClaim) bool { return c.UID == claim.UID }) {
			out = append(out, claim)
		}
	}
	return out, nil
}

// needsDevices reports whether devices are still to be found for the pod: for one of its claims, all of which exist, or
// for extended resources.
func (d *Devices) needsDevices(pod *v1.Pod) bool {
	return d.hasOpen(pod, anyClaim) || backed(pod, d.classes) != nil
}

// hasOpen reports whether the pod has claims, all of which exist, and devices are still to be found for one of them.
func (d *Devices) hasOpen(pod *v1.Pod, is func(*resourcev1.ResourceClaim) bool) bool {
	all, err := d.claimsOf(pod)
	return err == nil && slices.ContainsFunc(all, func(c *resourcev1.ResourceClaim) bool {
		return c.Status.Allocation == nil && is(c)
	})
}

// usersOf returns for whom each of a pod's claims is reserved, by the names of the claims: for the pod or, if that is how
// its group has them, for the group.
func (d *Devices) usersOf(pod *v1.Pod) (map[string]resourcev1.ResourceClaimConsumerReference, error) {
	group := d.groupOf(pod)
	out := map[string]resourcev1.ResourceClaimConsumerReference{}
	for i := range pod.Spec.ResourceClaims {
		ref := &pod.Spec.ResourceClaims[i]
		name, _, err := resourceclaim.Name(pod, ref)
		if err != nil {
			return nil, err
		}
		if name == nil {
			continue // it turned out that none is needed
		}
		user, err := resourceclaim.BindTo(pod, group, ref)
		if err != nil {
			return nil, err
		}
		if out[*name].UID == "" || user.UID != pod.UID {
			out[*name] = user
		}
	}
	return out, nil
}

// groupOf returns the pod's group, or nil.
func (d *Devices) groupOf(pod *v1.Pod) *schedulingv1beta1.PodGroup {
	return groups.Of(d.handle.PodGroupManager().PodGroups(), pod)
}

// idle reports whether nobody uses the claim but these.
func idle(claim *resourcev1.ResourceClaim, users sets.Set[types.UID]) bool {
	return !slices.ContainsFunc(claim.Status.ReservedFor, func(r resourcev1.ResourceClaimConsumerReference) bool {
		return !users.Has(r.UID)
	})
}

// hopeful returns the pod and, as long as none of its pods has a node, its group: what they have of devices, nobody uses
// yet.
func (d *Devices) hopeful(pod *v1.Pod) sets.Set[types.UID] {
	out := sets.New(pod.UID)
	group := d.groupOf(pod)
	if group == nil {
		return out
	}
	state, err := d.handle.PodGroupManager().PodGroupStates().Get(group.Namespace, group.Name)
	if err == nil && state.ScheduledPodsCount() == 0 {
		out.Insert(group.UID)
	}
	return out
}

// cycleOf returns the cycle in which the pod is scheduled together with others, or nil.
func cycleOf(cycle fwk.CycleState) *framework.GroupCycle {
	group, _ := cycle.GetPodGroupSchedulingCycle().(*framework.GroupCycle)
	return group
}
