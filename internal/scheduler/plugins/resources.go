package plugins

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	configv1 "k8s.io/kube-scheduler/config/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/utils/ptr"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/scheduler/framework"
	"wherry.dev/internal/scheduler/plugins/devices"
)

// NodeResourcesFit keeps nodes from being overcommitted, and scores them by what would be left, or
// used, of their resources.
type NodeResourcesFit struct {
	ignored       sets.Set[string] // resources
	ignoredGroups sets.Set[string] // the part of a resource's name before the slash
	allocation
	score func(requested, allocatable int64) int64
	// rounded is for a ratio with a shape: resources that score nothing do not count, and the mean is
	// rounded.
	rounded bool
}

func newNodeResourcesFit(_ context.Context, args *configv1.NodeResourcesFitArgs, h fwk.Handle) (fwk.Plugin, error) {
	strategy := configv1.ScoringStrategy{Type: configv1.LeastAllocated}
	if args.ScoringStrategy != nil {
		strategy = *args.ScoringStrategy
	}
	resources, err := weighted(strategy.Resources)
	if err != nil {
		return nil, fmt.Errorf("scoringStrategy.%w", err)
	}
	for _, name := range slices.Concat(args.IgnoredResources) {
		if pods.NativeResource(v1.ResourceName(name)) {
			return nil, fmt.Errorf("ignoredResources: Invalid value: %q: only extended resources can be ignored", name)
		}
	}
	for _, group := range args.IgnoredResourceGroups {
		if group == "" || strings.Contains(group, "/") {
			return nil, fmt.Errorf("ignoredResourceGroups: Invalid value: %q: must not be empty or contain a slash", group)
		}
	}
	f := NodeResourcesFit{
		ignored: sets.New(args.IgnoredResources...), ignoredGroups: sets.New(args.IgnoredResourceGroups...),
		allocation: allocation{resources: resources, assumeRequests: true, handle: h},
	}
	switch strategy.Type {
	case configv1.LeastAllocated, "":
		f.score = least
	case configv1.MostAllocated:
		f.score = most
	case configv1.RequestedToCapacityRatio:
		if strategy.RequestedToCapacityRatio == nil {
			return nil, fmt.Errorf("scoringStrategy.requestedToCapacityRatio: Required value: the strategy %s needs a shape", strategy.Type)
		}
		shape, err := framework.NewShape(strategy.RequestedToCapacityRatio.Shape)
		if err != nil {
			return nil, fmt.Errorf("scoringStrategy.requestedToCapacityRatio.%w", err)
		}
		f.score, f.rounded = shape.Score, true
	default:
		return nil, fmt.Errorf("scoringStrategy.type: Unsupported value: %q: want LeastAllocated, MostAllocated or RequestedToCapacityRatio", strategy.Type)
	}
	return f, nil
}

const fitKey fwk.StateKey = "NodeResourcesFit"

// fitState holds the pod's requests, computed once for all nodes.
type fitState struct{ fwk.PodResource }

// Clone returns the state itself, because it does not change.
func (s fitState) Clone() fwk.StateData { return s }

// Name returns upstream's name.
func (NodeResourcesFit) Name() string { return "NodeResourcesFit" }

// PreFilter computes the pod's requests.
func (NodeResourcesFit) PreFilter(_ context.Context, state fwk.CycleState, pod *v1.Pod, _ []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
	info, err := framework.InfoOf(state, pod)
	if err != nil {
		return nil, fwk.AsStatus(err)
	}
	state.Write(fitKey, fitState{info.CalculateResource()})
	return nil, nil
}

// PreFilterExtensions returns nil: Filter looks at the node itself.
func (NodeResourcesFit) PreFilterExtensions() fwk.PreFilterExtensions { return nil }

// Filter names every resource that is short. If the node could never provide it, the pod is
// unresolvable there: removing other pods would not help. Resources of which the node has none are for
// DynamicResources to find, if it sees to them.
func (f NodeResourcesFit) Filter(_ context.Context, state fwk.CycleState, _ *v1.Pod, n fwk.NodeInfo) *fwk.Status {
	want, st := framework.ReadState[fitState](state, fitKey)
	if !st.IsSuccess() {
		return st
	}
	backed := func(name v1.ResourceName) bool { return devices.Backed(state, name) }
	reasons, never := f.short(want.Resource, n.GetAllocatable(), n.GetRequested(), len(n.GetPods()), backed)
	switch {
	case len(reasons) == 0:
		return nil
	case never:
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, reasons...)
	}
	return fwk.NewStatus(fwk.Unschedulable, reasons...)
}

// short returns what a node lacks for one more pod, and whether an empty one would lack it, too. It need not have
// what is backed by devices.
func (f NodeResourcesFit) short(want, has, used fwk.Resource, pods int,
	backed func(v1.ResourceName) bool) (reasons []string, never bool) {
	check := func(name v1.ResourceName, ask, used, has int64) {
		if ask > 0 && ask > has-used {
			reasons = append(reasons, insufficient(name))
			never = never || ask > has
		}
	}
	if pods+1 > has.GetAllowedPodNumber() {
		reasons = append(reasons, "Too many pods")
	}
	check(v1.ResourceCPU, want.GetMilliCPU(), used.GetMilliCPU(), has.GetMilliCPU())
	check(v1.ResourceMemory, want.GetMemory(), used.GetMemory(), has.GetMemory())
	check(v1.ResourceEphemeralStorage, want.GetEphemeralStorage(), used.GetEphemeralStorage(), has.GetEphemeralStorage())
	for name, ask := range want.GetScalarResources() {
		there := has.GetScalarResources()[name]
		if !f.ignores(name) && (there > 0 || ask == 0 || !backed(name)) {
			check(name, ask, used.GetScalarResources()[name], there)
		}
	}
	return reasons, never
}

// insufficient returns the reason that there is too little of a resource. That for the usual ones is the same string for
// all nodes, of which there may be thousands, and which are counted by it.
func insufficient(name v1.ResourceName) string {
	switch name {
	case v1.ResourceCPU:
		return "Insufficient cpu"
	case v1.ResourceMemory:
		return "Insufficient memory"
	case v1.ResourceEphemeralStorage:
		return "Insufficient ephemeral-storage"
	}
	return "Insufficient " + string(name)
}

// ignores reports whether the profile leaves this resource to somebody else.
func (f NodeResourcesFit) ignores(name v1.ResourceName) bool {
	if f.ignored.Len()+f.ignoredGroups.Len() == 0 || pods.NativeResource(name) {
		return false
	}
	group, _, _ := strings.Cut(string(name), "/")
	return f.ignored.Has(string(name)) || f.ignoredGroups.Has(group)
}

// EventsToRegister returns the events that free or add resources.
func (f NodeResourcesFit) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	events := []fwk.ClusterEventWithHint{
		{Event: fwk.ClusterEvent{Resource: fwk.Pod, ActionType: fwk.Delete | fwk.UpdatePodScaleDown}, QueueingHintFn: f.freed},
		{Event: fwk.ClusterEvent{Resource: fwk.Node, ActionType: fwk.Add | fwk.UpdateNodeAllocatable}, QueueingHintFn: f.hint},
	}
	if f.classes() != nil {
		events = append(events, framework.Event(fwk.DeviceClass, fwk.Add|fwk.Update, f.classHint))
	}
	return events, nil
}

// known returns what is known of devices; nil if no plugin sees to them.
func (a allocation) known() fwk.SharedDRAManager {
	h, ok := a.handle.(interface{ KnownDevices() fwk.SharedDRAManager })
	if !ok {
		return nil
	}
	return h.KnownDevices()
}

// classes returns the device classes of extended resources; nil if no plugin sees to them.
func (a allocation) classes() fwk.DeviceClassResolver {
	if m := a.known(); m != nil {
		return m.DeviceClassResolver()
	}
	return nil
}

// backed reports whether a resource stands for devices of a class, as far as is known now. Which resources are found
// among devices in a cycle, devices.Backed says.
func (a allocation) backed(name v1.ResourceName) bool {
	c := a.classes()
	return c != nil && c.GetDeviceClass(name) != nil
}

// classHint is about a class whose devices one of the pod's extended resources means now.
func (f NodeResourcesFit) classHint(_ klog.Logger, pod *v1.Pod, oldObj, newObj any) (fwk.QueueingHint, error) {
	old, class, err := framework.EventObjects[*resourcev1.DeviceClass](oldObj, newObj)
	if err != nil {
		return fwk.Queue, err
	}
	is := func(name v1.ResourceName, c *resourcev1.DeviceClass) bool {
		return c != nil && (string(name) == resourcev1.ResourceDeviceClassPrefix+c.Name ||
			string(name) == ptr.Deref(c.Spec.ExtendedResourceName, ""))
	}
	return framework.QueueWhen(slices.ContainsFunc(devices.ExtendedResources(pod), func(name v1.ResourceName) bool {
		return is(name, class) && !is(name, old)
	}))
}

// freed reports whether a pod that went or shrank had, or was to get, room on a node where that is enough for the pod,
// once those are preempted that can be. Upstream tries every pod again.
func (f NodeResourcesFit) freed(_ klog.Logger, pod *v1.Pod, oldObj, _ any) (fwk.QueueingHint, error) {
	old, ok := oldObj.(*v1.Pod)
	if !ok {
		return fwk.Queue, fmt.Errorf("not a pod: %T", oldObj)
	}
	node := cmp.Or(old.Spec.NodeName, old.Status.NominatedNodeName)
	if node == "" {
		return fwk.QueueSkip, nil
	}
	h, ok := f.handle.(interface {
		Taken(node string, by *v1.Pod) (has, taken fwk.Resource, pods int, known bool)
	})
	if !ok {
		return fwk.Queue, nil
	}
	has, taken, others, known := h.Taken(node, pod)
	if !known {
		return fwk.Queue, nil
	}
	reasons, _ := f.short(framework.NewResource(framework.Requests(pod)), has, taken, others, f.backed)
	return framework.QueueWhen(len(reasons) == 0)
}

// HintShape returns what a pod asks for, and what its priority is or depends on: nothing else of it matters to the hints.
func (NodeResourcesFit) HintShape(pod *v1.Pod) string {
	asks := framework.Requests(pod)
	group, _ := pods.Group(pod)
	var b strings.Builder
	fmt.Fprint(&b, framework.Priority(pod), group, devices.ExtendedResources(pod))
	for _, name := range slices.Sorted(maps.Keys(asks)) {
		q := asks[name]
		b.WriteString(string(" " + name + "=" + v1.ResourceName(q.String())))
	}
	return b.String()
}

// hint reports whether the pod would fit on the node if it had it for itself.
func (f NodeResourcesFit) hint(_ klog.Logger, pod *v1.Pod, _, newObj any) (fwk.QueueingHint, error) {
	n, ok := newObj.(*v1.Node)
	if !ok {
		return fwk.Queue, fmt.Errorf("not a node: %T", newObj)
	}
	want := framework.NewResource(framework.Requests(pod))
	if reasons, _ := f.short(want, framework.NewResource(n.Status.Allocatable), &framework.Resource{}, 0, f.backed); len(reasons) > 0 {
		return fwk.QueueSkip, nil
	}
	return fwk.Queue, nil
}

// PreScore counts devices, if the strategy names a resource that stands for some and that the pod asks for.
func (f NodeResourcesFit) PreScore(_ context.Context, state fwk.CycleState, pod *v1.Pod, _ []fwk.NodeInfo) *fwk.Status {
	info, err := framework.InfoOf(state, pod)
	if err != nil {
		return fwk.AsStatus(err)
	}
	return fwk.AsStatus(f.countDevices(state, info.CalculateResource()))
}

// Score returns the weighted mean of the resources' scores.
func (f NodeResourcesFit) Score(ctx context.Context, state fwk.CycleState, pod *v1.Pod, n fwk.NodeInfo) (int64, *fwk.Status) {
	info, err := framework.InfoOf(state, pod)
	if err != nil {
		return 0, fwk.AsStatus(err)
	}
	want := info.CalculateResource()
	var sum, weights int64
	for _, r := range f.resources {
		ask, used, has := f.of(ctx, r.name, want, n, state)
		if has == 0 {
			continue
		}
		s := f.score(used+ask, has)
		if f.rounded && s == 0 {
			continue
		}
		sum += s * r.weight
		weights += r.weight
	}
	switch {
	case weights == 0:
		return 0, nil
	case f.rounded:
		return (sum + weights/2) / weights, nil
	}
	return sum / weights, nil
}

// ScoreExtensions returns nil: the score is on the right scale already.
func (NodeResourcesFit) ScoreExtensions() fwk.ScoreExtensions { return nil }

var _ fwk.PlacementScorePlugin = NodeResourcesFit{}

// ScorePlacement prefers to fill a pod group's nodes: it is the share that is used of them together, with the group's pods.
func (f NodeResourcesFit) ScorePlacement(ctx context.Context, _ fwk.PlacementCycleState, _ fwk.PodGroupInfo,
	placed *fwk.PodGroupAssignments,
) (int64, *fwk.Status) {
	var sum, weights int64
	for _, r := range f.resources {
		var used, has int64
		for i, a := range placed.ProposedAssignments {
			want := a.GetPodInfo().CalculateResource()
			for j, n := range placed.Nodes {
				if i > 0 && j > 0 {
					break // every node counts once, and so does every pod
				}
				ask, there, all := f.of(ctx, r.name, want, n, a.GetCycleState())
				if i == 0 {
					used, has = used+there, has+all
				}
				if j == 0 {
					used += ask
				}
			}
		}
		if has > 0 {
			sum += most(used, has) * r.weight
			weights += r.weight
		}
	}
	return sum / max(1, weights), nil
}

// PlacementScoreExtensions returns nil: the score is on the right scale already.
func (NodeResourcesFit) PlacementScoreExtensions() fwk.PlacementScoreExtensions { return nil }

// least scores the share that is left.
func least(requested, has int64) int64 {
	if requested > has {
		return 0
	}
	return (has - requested) * fwk.MaxScore / has
}

// most scores the share that is used.
func most(requested, has int64) int64 {
	return min(requested, has) * fwk.MaxScore / has
}

// allocation looks up resources for scoring.
type allocation struct {
	resources []weightedResource
	// assumeRequests counts CPU and memory for containers that request none.
	assumeRequests bool
	handle         fwk.Handle // may be nil
}

// devicesKey is where an attempt has the devices that were counted for scores.
const devicesKey fwk.StateKey = "DeviceTotals"

type deviceTotals struct{ *devices.Totals }

// Clone returns the state itself, because it does not change.
func (t deviceTotals) Clone() fwk.StateData { return t }

// countDevices counts the devices that there are for an attempt, if a resource of the strategy stands for some that the pod
// asks for; once for all plugins.
func (a allocation) countDevices(state fwk.CycleState, want fwk.PodResource) error {
	counts := slices.ContainsFunc(a.resources, func(r weightedResource) bool {
		return pods.MayBeDevices(r.name) && want.Resource.GetScalarResources()[r.name] > 0 && a.backed(r.name)
	})
	if !counts {
		return nil
	}
	if _, err := state.Read(devicesKey); err == nil {
		return nil
	}
	m, ok := a.known().(*devices.Manager)
	if !ok {
		return nil
	}
	totals, err := m.Totals()
	if err == nil {
		state.Write(devicesKey, deviceTotals{totals})
	}
	return err
}

type weightedResource struct {
	name   v1.ResourceName
	weight int64
}

// weighted checks the resources of a strategy; none means CPU and memory alike.
func weighted(in []configv1.ResourceSpec) ([]weightedResource, error) {
	if len(in) == 0 {
		return []weightedResource{{v1.ResourceCPU, 1}, {v1.ResourceMemory, 1}}, nil
	}
	var out []weightedResource
	for i, r := range in {
		if r.Weight == 0 {
			r.Weight = 1
		}
		if r.Weight < 1 || r.Weight > 100 {
			return nil, fmt.Errorf("resources[%d].weight: Invalid value: %d: resource weight of %s not in valid range [1-100]", i, r.Weight, r.Name)
		}
		if slices.ContainsFunc(out, func(w weightedResource) bool { return string(w.name) == r.Name }) {
			return nil, fmt.Errorf("resources[%d].name: Duplicate value: %q", i, r.Name)
		}
		out = append(out, weightedResource{v1.ResourceName(r.Name), r.Weight})
	}
	return out, nil
}

// of returns how much of a resource the pod asks for, how much is used, and how much there is. A node's
// amount is 0 if an extended resource does not matter to the pod. Of one that the node does not offer itself, the devices
// count that it stands for.
func (a allocation) of(ctx context.Context, name v1.ResourceName, want fwk.PodResource, n fwk.NodeInfo, state fwk.CycleState) (ask, used, has int64) {
	all, requested := n.GetAllocatable(), n.GetRequested()
	if a.assumeRequests && (name == v1.ResourceCPU || name == v1.ResourceMemory) {
		requested = n.GetNonZeroRequested()
	}
	switch name {
	case v1.ResourceCPU:
		ask = want.Resource.GetMilliCPU()
		if a.assumeRequests {
			ask = want.Non0CPU
		}
		return ask, requested.GetMilliCPU(), all.GetMilliCPU()
	case v1.ResourceMemory:
		ask = want.Resource.GetMemory()
		if a.assumeRequests {
			ask = want.Non0Mem
		}
		return ask, requested.GetMemory(), all.GetMemory()
	case v1.ResourceEphemeralStorage:
		return want.Resource.GetEphemeralStorage(), requested.GetEphemeralStorage(), all.GetEphemeralStorage()
	}
	if ask = want.Resource.GetScalarResources()[name]; ask == 0 {
		return 0, 0, 0
	}
	if used, has = requested.GetScalarResources()[name], all.GetScalarResources()[name]; has > 0 {
		return ask, used, has
	}
	if data, err := state.Read(devicesKey); err == nil {
		if all, given := data.(deviceTotals).Of(ctx, name, n.Node()); all > 0 {
			return ask, given, all
		}
	}
	return ask, used, has
}
