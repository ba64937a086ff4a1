package podplan

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/kubectl/pkg/util/qos"

	"wherry.dev/internal/api/pods"
)

// resizeRetry is how often a resize that waits for room is retried even if no pod went or shrank.
const resizeRetry = 3 * time.Minute

// Resize is the progress of an in-place resize (KEP-1287). A value is never changed, only replaced.
//
//	spec differs ──> Pending{Deferred, Infeasible} ──> Active ──applied──> none
//	     └───────────────── room at once ─────────────────┘
type Resize struct {
	// Seq counts the changes of the allocation.
	Seq uint32
	// Pending: what the spec asks for has not been allocated.
	Pending *PendingResize `json:",omitempty"`
	// Active is the generation whose allocation is not yet applied to everything that runs.
	Active *int64 `json:",omitempty"`
	// PodApplied are the pod-level resources that the pod's cgroup still has.
	PodApplied *v1.ResourceRequirements `json:",omitempty"`
}

// PendingResize says why a resize waits.
type PendingResize struct {
	Reason     string // Deferred or Infeasible
	Message    string
	Generation int64
}

// ResizeDecision is the node's answer to a resize that a spec asks for.
type ResizeDecision struct {
	Allocate bool
	// Reason is Deferred or Infeasible.
	Reason, Message string
}

// ResizeKey is the key of ResizePod.
const ResizeKey Key = "resize"

// ResizeDue reports whether the node has to decide on what the spec asks for. An infeasible resize
// stays infeasible until the spec changes.
func ResizeDue(in *Input) bool {
	if in.Absent || in.Record.Ending != nil || in.Pod.DeletionTimestamp != nil || pods.IsTerminal(in.Reported.Phase) ||
		!resizeWanted(in.Pod, in.Record.Verdict) {
		return false
	}
	r := in.Record.Resize
	return r == nil || r.Pending == nil || r.Pending.Reason != v1.PodReasonInfeasible || r.Pending.Generation != in.Pod.Generation
}

// TakeResize records the node's decision. What runs keeps its resources until the plan has them
// changed.
func TakeResize(in *Input, d ResizeDecision) {
	if d == (ResizeDecision{}) {
		return // not decided yet
	}
	next := Resize{}
	if r := in.Record.Resize; r != nil {
		next = *r
	}
	if !d.Allocate {
		next.Pending = &PendingResize{Reason: d.Reason, Message: d.Message, Generation: in.Pod.Generation}
		in.Record.Resize = &next
		return
	}
	v := newView(in)
	rec := in.Record.clone()
	old, now := in.Record.Verdict, allocated(in.Pod)
	whole := !equality.Semantic.DeepEqual(old.Pod, in.Pod.Spec.Resources)
	for name, was := range old.Allocated {
		h := rec.history(name)
		if h.Applied == nil {
			h.Applied, h.AppliedPod = &was, limitsOf(old.Pod)
		}
		_, making := in.InFlight[ContainerKey(name)]
		want := pods.EffectiveResources(now[name], limitsOf(in.Pod.Spec.Resources))
		has := h.effective()
		if equalCompute(&has, &want) && equalCompute(h.Applied, new(now[name])) || len(v.live(name)) == 0 && !making {
			h.Applied, h.AppliedPod = nil, nil
		}
		if !equality.Semantic.DeepEqual(h, rec.history(name)) {
			rec.setHistory(name, h)
		}
	}
	if next.PodApplied == nil && whole {
		next.PodApplied = orNothing(old.Pod)
	}
	generation := in.Pod.Generation
	next.Seq, next.Pending, next.Active = next.Seq+1, nil, &generation
	rec.Verdict = &Verdict{Admitted: true, Allocated: now, Pod: in.Pod.Spec.Resources.DeepCopy(), Devices: old.Devices}
	rec.Resize = &next
	in.Record = rec
}

func limitsOf(r *v1.ResourceRequirements) v1.ResourceList {
	if r == nil {
		return nil
	}
	return r.Limits
}

// effective returns the resources that the live instance still has while others are allocated.
func (h History) effective() v1.ResourceRequirements {
	return pods.EffectiveResources(*h.Applied, h.AppliedPod)
}

func orNothing(r *v1.ResourceRequirements) *v1.ResourceRequirements {
	if r == nil {
		return &v1.ResourceRequirements{}
	}
	return r
}

// equalCompute reports whether both have the same CPU and memory.
func equalCompute(a, b *v1.ResourceRequirements) bool {
	for _, name := range []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory} {
		if !same(a.Requests, b.Requests, name) || !same(a.Limits, b.Limits, name) {
			return false
		}
	}
	return true
}

func same(a, b v1.ResourceList, name v1.ResourceName) bool {
	qa, qb := a[name], b[name]
	return qa.Equal(qb)
}

// ResizeOrder compares two pods that wait for room to grow: by priority, then QoS class, then how
// long they have waited.
func ResizeOrder(a, b *Input) int {
	priority := func(in *Input) int32 {
		if in.Pod.Spec.Priority == nil {
			return 0
		}
		return *in.Pod.Spec.Priority
	}
	class := func(in *Input) int {
		if qos.GetPodQOS(in.Pod) == v1.PodQOSGuaranteed {
			return 0
		}
		return 1
	}
	since := func(in *Input) time.Time {
		if c := pods.FindCondition(&in.Reported, v1.PodResizePending); c != nil {
			return c.LastTransitionTime.Time
		}
		return time.Unix(1<<40, 0) // it has only just arrived
	}
	return cmp.Or(cmp.Compare(priority(b), priority(a)), cmp.Compare(class(a), class(b)), since(a).Compare(since(b)), cmp.Compare(a.Pod.UID, b.Pod.UID))
}

// bringResize plans the ops that apply a new allocation to what runs: containers whose policy asks
// for it are restarted (tendRunning), then the others and the pod's cgroup are changed in place.
func (p *planner) bringResize() {
	r := p.plan.Record.Resize
	if r == nil {
		return
	}
	if r.Pending != nil && !resizeWanted(p.in.Pod, p.in.Record.Verdict) {
		next := *r
		next.Pending = nil
		p.plan.Record.Resize, r = &next, &next
	}
	if r.Pending != nil && r.Pending.Reason == v1.PodReasonDeferred {
		p.recheck(p.now.Add(resizeRetry))
		p.wait("resize is deferred: %s", r.Pending.Message)
	}
	if r.Active == nil {
		return
	}
	if p.in.Resized == r.Seq {
		p.resized(r)
		return
	}
	for name, h := range p.plan.Record.Containers {
		if h.Applied == nil {
			continue
		}
		if p.busy(name) || p.restartsToResize(name) && len(p.live(name)) > 0 {
			p.wait("resize waits for container %s", name)
			return
		}
	}
	op := Op{Kind: ResizePod, Attempt: r.Seq}
	if p.in.Failures[ResizeKey].Attempt != r.Seq {
		p.want(op) // the failure was of an earlier resize
	} else {
		p.try(op)
	}
}

// growsFirst reports whether a new instance has to wait until the pod's cgroup has grown: its
// limits may be above those that the pod still has. A failed resize holds nothing back, nor does
// one that waits for a container that cannot be stopped.
func (p *planner) growsFirst(name string) bool {
	r := p.plan.Record.Resize
	if r == nil || r.Active == nil || p.in.Resized == r.Seq || p.plan.Record.history(name).Applied == nil {
		return false
	}
	for other := range p.plan.Record.Containers {
		for _, o := range p.live(other) {
			if _, stuck := p.in.Failures[StopKey(o.ID)]; stuck {
				return false
			}
		}
	}
	f, failed := p.in.Failures[ResizeKey]
	return !failed || f.Attempt != r.Seq
}

// resized records that everything that runs has what was allocated.
func (p *planner) resized(r *Resize) {
	for _, name := range slices.Sorted(maps.Keys(p.plan.Record.Containers)) {
		if h := p.plan.Record.history(name); h.Applied != nil {
			h.Applied, h.AppliedPod = nil, nil
			p.plan.Record.setHistory(name, h)
		}
	}
	p.plan.Record.Resize = &Resize{Seq: r.Seq, Pending: r.Pending}
}

// restartsToResize reports whether a container's resize policy requires a restart for the change,
// including a change of a pod-level limit that applies to it.
func (v *view) restartsToResize(name string) bool {
	c, h := pods.FindContainer(v.in.Pod, name), v.in.Record.history(name)
	if c == nil || h.Applied == nil || v.in.Record.Verdict == nil {
		return false
	}
	has, want := h.effective(), pods.EffectiveResources(v.in.Record.Verdict.Allocated[name], limitsOf(v.in.Record.Verdict.Pod))
	return slices.ContainsFunc(c.ResizePolicy, func(rp v1.ContainerResizePolicy) bool {
		return rp.RestartPolicy == v1.RestartContainer &&
			(!same(has.Requests, want.Requests, rp.ResourceName) || !same(has.Limits, want.Limits, rp.ResourceName))
	})
}

// Applying reports whether a resize still has to change an instance in place.
func Applying(rec *Record, c *Container) bool { return c.Live() && rec.history(c.Name).Applied != nil }

// WithAllocated returns the pod with the resources that were allocated to it. They are what it runs
// with, whatever its spec asks for by now. It returns the pod itself if nothing differs, and never
// changes it.
func WithAllocated(pod *v1.Pod, v *Verdict) *v1.Pod {
	if pod == nil || !resizeWanted(pod, v) {
		return pod
	}
	return withResources(pod, v.Pod, func(name string) (v1.ResourceRequirements, bool) {
		a, ok := v.Allocated[name]
		return a, ok
	})
}

// WithApplied returns the pod with the resources that its running containers have now. A container
// without limits of its own gets the pod-level limits that apply to it.
func WithApplied(pod *v1.Pod, rec *Record) *v1.Pod {
	podLevel := rec.Verdict.Pod
	if r := rec.Resize; r != nil && r.PodApplied != nil {
		podLevel = r.PodApplied
	}
	return withResources(pod, podLevel, func(name string) (v1.ResourceRequirements, bool) {
		if h := rec.history(name); h.Applied != nil {
			return h.effective(), true
		}
		a, ok := rec.Verdict.Allocated[name]
		return a, ok
	})
}

func withResources(pod *v1.Pod, podLevel *v1.ResourceRequirements, of func(string) (v1.ResourceRequirements, bool)) *v1.Pod {
	out := pod.DeepCopy()
	out.Spec.Resources = podLevel.DeepCopy()
	for c := range pods.Containers(&out.Spec) {
		if r, ok := of(c.Name); ok {
			c.Resources.Requests, c.Resources.Limits = r.Requests.DeepCopy(), r.Limits.DeepCopy()
		}
	}
	return out
}

// resizeWanted reports whether the spec asks for resources other than those allocated.
func resizeWanted(pod *v1.Pod, v *Verdict) bool {
	if v == nil || !v.Admitted || v.Allocated == nil {
		return false
	}
	if (v.Pod != nil || pod.Spec.Resources != nil) && !equality.Semantic.DeepEqual(v.Pod, pod.Spec.Resources) {
		return true
	}
	for c := range pods.Containers(&pod.Spec) {
		a, ok := v.Allocated[c.Name]
		if ok && (!equalLists(a.Requests, c.Resources.Requests) || !equalLists(a.Limits, c.Resources.Limits)) {
			return true
		}
	}
	return false
}

// equalLists compares without reflection: it runs at every look at a pod.
func equalLists(a, b v1.ResourceList) bool {
	return maps.EqualFunc(a, b, func(x, y resource.Quantity) bool { return x.Cmp(y) == 0 })
}

// resizeConditions returns the conditions of a pod that is being resized.
func (r *reporter) resizeConditions() []v1.PodCondition {
	rs := r.in.Record.Resize
	if rs == nil || r.ending != nil {
		return nil
	}
	var out []v1.PodCondition
	if rs.Pending != nil {
		c := r.stamp(v1.PodCondition{Type: v1.PodResizePending, Status: v1.ConditionTrue, Reason: rs.Pending.Reason, Message: rs.Pending.Message})
		c.ObservedGeneration = rs.Pending.Generation
		out = append(out, c)
	}
	if rs.Active != nil {
		c := v1.PodCondition{Type: v1.PodResizeInProgress, Status: v1.ConditionTrue}
		if f, failed := r.in.Failures[ResizeKey]; failed && f.Attempt == rs.Seq {
			c.Reason, c.Message = v1.PodReasonError, f.Message
		} else if old := pods.FindCondition(&r.in.Reported, c.Type); !failed && old != nil && old.ObservedGeneration == *rs.Active {
			c.Reason, c.Message = old.Reason, old.Message
		}
		c = r.stamp(c)
		c.ObservedGeneration = *rs.Active
		out = append(out, c)
	}
	return out
}

// Event is an event about a pod.
type Event struct{ Type, Reason, Message string }

// ResizeEvents returns events for what a new status says about a resize and the old one did not.
func ResizeEvents(in *Input, now *v1.PodStatus) []Event {
	var out []Event
	tell := func(kind, reason, prefix string, pod *v1.Pod, generation int64, problem string) {
		out = append(out, Event{kind, reason, resizeMessage(prefix, pod, generation, problem)})
	}
	allocated := WithAllocated(in.Pod, in.Record.Verdict)
	was, is := pods.FindCondition(&in.Reported, v1.PodResizePending), pods.FindCondition(now, v1.PodResizePending)
	if is != nil && (was == nil || was.Reason != is.Reason || was.ObservedGeneration != is.ObservedGeneration) {
		tell(v1.EventTypeWarning, "Resize"+is.Reason, "Pod resize "+is.Reason, in.Pod, is.ObservedGeneration, is.Message)
	}
	was, is = pods.FindCondition(&in.Reported, v1.PodResizeInProgress), pods.FindCondition(now, v1.PodResizeInProgress)
	switch {
	case is == nil && was != nil && in.Record.Ending == nil:
		tell(v1.EventTypeNormal, "ResizeCompleted", "Pod resize completed", allocated, was.ObservedGeneration, "")
	case is == nil:
	case was == nil || was.ObservedGeneration != is.ObservedGeneration:
		tell(v1.EventTypeNormal, "ResizeStarted", "Pod resize started", allocated, is.ObservedGeneration, "")
	case is.Reason == v1.PodReasonError && (was.Reason != is.Reason || was.Message != is.Message):
		tell(v1.EventTypeWarning, "ResizeError", "Pod resize error", allocated, is.ObservedGeneration, is.Message)
	}
	return out
}

// resizeMessage returns a prefix followed by all containers' resources, as JSON.
func resizeMessage(prefix string, pod *v1.Pod, generation int64, problem string) string {
	type container struct {
		Name      string                  `json:"name"`
		Resources v1.ResourceRequirements `json:"resources,omitzero"`
	}
	summary := struct {
		InitContainers []container `json:"initContainers,omitempty"`
		Containers     []container `json:"containers,omitempty"`
		Generation     int64       `json:"generation"`
		Error          string      `json:"error,omitempty"`
	}{Generation: generation, Error: problem}
	for i := range pod.Spec.InitContainers {
		summary.InitContainers = append(summary.InitContainers, container{pod.Spec.InitContainers[i].Name, pod.Spec.InitContainers[i].Resources})
	}
	for i := range pod.Spec.Containers {
		summary.Containers = append(summary.Containers, container{pod.Spec.Containers[i].Name, pod.Spec.Containers[i].Resources})
	}
	data, err := json.Marshal(summary)
	if err != nil {
		return prefix
	}
	return fmt.Sprintf("%s: %s", prefix, data)
}
