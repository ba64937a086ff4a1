package podplan

import (
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	resourcehelper "k8s.io/component-helpers/resource"
	"k8s.io/kubectl/pkg/util/qos"

	"wherry.dev/internal/api/pods"
)

// reporter builds one status.
type reporter struct {
	*view
	now    time.Time
	ending *Ending
	// rest: the pod is ending and nothing of it runs any more, and no device is prepared for it.
	rest bool
}

// Status returns what to report about the pod. It never takes back what was reported as final, and
// leaves conditions that others own as they are.
func Status(in Input, now time.Time) v1.PodStatus {
	now = now.Round(0).UTC()
	r := &reporter{view: newView(&in), now: now, ending: in.Record.Ending}
	gone := in.Absent || in.Pod.DeletionTimestamp != nil
	r.rest = AtRest(&in) && !in.Residue.Claims
	pod := in.Pod
	st := v1.PodStatus{
		ObservedGeneration: max(pod.Generation, in.Reported.ObservedGeneration),
		QOSClass:           qos.GetPodQOS(pod),
		Message:            in.Reported.Message,
		Reason:             in.Reported.Reason,
		NominatedNodeName:  in.Reported.NominatedNodeName,
		Resize:             in.Reported.Resize,

		ResourceClaimStatuses:       in.Reported.ResourceClaimStatuses,
		ExtendedResourceClaimStatus: in.Reported.ExtendedResourceClaimStatus,
		VolumeHealth:                in.VolumeHealth,
	}
	if start := in.Record.StartTime; !start.IsZero() {
		t := metav1.NewTime(start).Rfc3339Copy()
		st.StartTime = &t
	}
	waiting := ReasonContainerCreating
	if len(pod.Spec.InitContainers) > 0 {
		waiting = ReasonPodInitializing
	}
	for i := range pod.Spec.InitContainers {
		st.InitContainerStatuses = append(st.InitContainerStatuses, r.container(&pod.Spec.InitContainers[i], waiting))
	}
	for i := range pod.Spec.Containers {
		st.ContainerStatuses = append(st.ContainerStatuses, r.container(&pod.Spec.Containers[i], waiting))
	}
	for i := range pod.Spec.EphemeralContainers {
		c := (*v1.Container)(&pod.Spec.EphemeralContainers[i].EphemeralContainerCommon)
		st.EphemeralContainerStatuses = append(st.EphemeralContainerStatuses, r.container(c, ReasonContainerCreating))
	}
	if v := in.Record.Verdict; v != nil && !v.Admitted && len(in.Containers) == 0 {
		// It never had any container; "ContainerCreating" would hide why it was refused.
		st.InitContainerStatuses, st.ContainerStatuses, st.EphemeralContainerStatuses = nil, nil, nil
	}
	r.settlePhase(&st, gone)
	r.settleAddresses(&st)
	r.settleResources(&st)
	st.Conditions = r.conditions(&st)
	return st
}

// AtRest reports whether the pod is ending and nothing of it runs, or can start to run, any more.
// From then on it holds none of the node's resources, and a final phase may be reported.
func AtRest(in *Input) bool {
	ends := in.Record.Ending != nil || in.Absent || in.Pod.DeletionTimestamp != nil
	return ends && !anyLive(in) && !making(in) && !mayAppear(in)
}

// making reports whether an op in flight may still bring a container to life.
func making(in *Input) bool {
	for _, f := range in.InFlight {
		if f.Op.Kind == CreateContainer || f.Op.Kind == StartContainer {
			return true
		}
	}
	return false
}

// mayAppear reports whether an instance may show up that was asked for and never seen: the answer
// to its creation was lost, or nobody waited for it. None can once its sandbox is stopped.
func mayAppear(in *Input) bool {
	if !slices.ContainsFunc(in.Sandboxes, func(s Sandbox) bool { return s.Ready }) {
		return false
	}
	v := newView(in)
	unseen := func(name string) bool {
		last, h := v.last(name), in.Record.history(name)
		return last == nil && h.Dropped == 0 || last != nil && max(last.Attempt, h.Dropped) < h.Attempt
	}
	spec := &in.Pod.Spec
	if slices.ContainsFunc(spec.EphemeralContainers, func(c v1.EphemeralContainer) bool { return unseen(c.Name) }) {
		return true
	}
	for i := range spec.InitContainers {
		c := &spec.InitContainers[i]
		if unseen(c.Name) {
			return true
		}
		if last := v.last(c.Name); !pods.IsSidecar(c) && last != nil && last.ExitCode != 0 {
			return false // it is not yet the turn of the ones after it
		}
	}
	return slices.ContainsFunc(spec.Containers, func(c v1.Container) bool { return unseen(c.Name) })
}

// settleResources sets the resources that the pod was given, and those that are applied.
func (r *reporter) settleResources(st *v1.PodStatus) {
	v := r.in.Record.Verdict
	if v == nil || !v.Admitted || !r.hasResources() {
		return
	}
	opts := resourcehelper.PodResourcesOptions{}
	allocated := WithAllocated(r.in.Pod, v)
	applied := allocated
	if rs := r.in.Record.Resize; rs != nil && rs.Active != nil {
		applied = WithApplied(r.in.Pod, &r.in.Record)
	}
	st.AllocatedResources = orNil(resourcehelper.PodRequests(allocated, opts))
	res := v1.ResourceRequirements{Requests: st.AllocatedResources, Limits: orNil(resourcehelper.PodLimits(applied, opts))}
	if applied != allocated {
		res.Requests = orNil(resourcehelper.PodRequests(applied, opts))
	}
	if res.Requests != nil || res.Limits != nil {
		st.Resources = &res
	}
}

// hasResources reports whether the pod asks for, or was given, any resources. Most pods in a crowd
// of small ones have none, and there is nothing to sum up.
func (r *reporter) hasResources() bool {
	pod := r.in.Pod
	if pod.Spec.Overhead != nil || pod.Spec.Resources != nil || r.in.Record.Resize != nil {
		return true
	}
	for c := range pods.Containers(&pod.Spec) {
		if c.Resources.Requests != nil || c.Resources.Limits != nil {
			return true
		}
	}
	return false
}

func orNil(l v1.ResourceList) v1.ResourceList {
	if len(l) == 0 {
		return nil
	}
	return l
}

// settlePhase sets phase, reason and message. It holds back what is final until nothing runs.
func (r *reporter) settlePhase(st *v1.PodStatus, gone bool) {
	phase := r.phase(st)
	switch {
	case r.rest && r.ending != nil && r.ending.Reason != "" && !pods.IsTerminal(r.in.Reported.Phase):
		phase, st.Reason, st.Message = v1.PodFailed, r.ending.Reason, r.ending.Message
		r.closeContainers(st)
	case r.rest && !pods.IsTerminal(phase) && r.ending != nil && r.ending.Phase != "":
		phase = r.ending.Phase // what the phase was derived from is gone by now
		r.closeContainers(st)
	case r.rest && gone && !pods.IsTerminal(phase):
		phase = v1.PodFailed
		r.closeContainers(st)
	case !r.rest && pods.IsTerminal(phase):
		phase = v1.PodRunning
	}
	if pods.IsTerminal(r.in.Reported.Phase) {
		phase = r.in.Reported.Phase
	}
	st.Phase = phase
}

// closeContainers reports the missing containers of a pod that is gone as ended with an unknown
// outcome, so that nobody takes them for successful. Those whose turn had not come stay waiting:
// all after the last init container that was started, or after the first if none was.
func (r *reporter) closeContainers(st *v1.PodStatus) {
	inits := st.InitContainerStatuses
	if n := len(inits); n > 0 && !r.initialised() {
		last := n - 1
		for last > 0 && inits[last].State.Waiting != nil && inits[last].LastTerminationState.Terminated == nil {
			last--
		}
		inits = inits[:last+1]
	}
	closeAll(inits)
	if r.anyAppRan() || r.initialised() {
		closeAll(st.ContainerStatuses)
	}
}

func closeAll(list []v1.ContainerStatus) {
	for i := range list {
		if list[i].State.Terminated == nil {
			list[i].State = v1.ContainerState{Terminated: &v1.ContainerStateTerminated{
				Reason: ReasonContainerStatusUnknown, Message: messageUnknown, ExitCode: 137,
			}}
		}
	}
}

// settleAddresses sets the addresses. A pod keeps the ones that it had until it gets others.
func (r *reporter) settleAddresses(st *v1.PodStatus) {
	in := r.in
	st.HostIP, st.HostIPs = in.Reported.HostIP, in.Reported.HostIPs
	if ips := in.Node.HostIPs; len(ips) > 0 {
		st.HostIP, st.HostIPs = ips[0], nil
		for _, ip := range ips {
			st.HostIPs = append(st.HostIPs, v1.HostIP{IP: ip})
		}
	}
	ips := []string(nil)
	switch {
	case in.Pod.Spec.HostNetwork && r.newest != nil:
		ips = in.Node.HostIPs
	case r.sandbox != nil:
		ips = r.sandbox.IPs
	}
	if len(ips) == 0 {
		st.PodIP, st.PodIPs = in.Reported.PodIP, in.Reported.PodIPs
		return
	}
	st.PodIP = ips[0]
	for _, ip := range ips {
		st.PodIPs = append(st.PodIPs, v1.PodIP{IP: ip})
	}
}

// phase derives the phase from the containers' states.
func (r *reporter) phase(st *v1.PodStatus) v1.PodPhase {
	pod := r.in.Pod
	if len(st.ContainerStatuses) == 0 {
		return v1.PodPending
	}
	initDone := r.initialised() || r.anyAppRan()
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		last := r.last(c.Name)
		if pods.IsSidecar(c) || initDone || last == nil || last.Live() || last.ExitCode == 0 {
			continue
		}
		if !pods.Restarts(pod, c, last.ExitCode) {
			return v1.PodFailed
		}
	}
	if !initDone {
		return v1.PodPending
	}
	running, waiting, stopped, succeeded, final := 0, 0, 0, 0, 0
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		state := st.ContainerStatuses[i].State
		ended := state.Terminated
		if state.Waiting != nil {
			ended = st.ContainerStatuses[i].LastTerminationState.Terminated
		}
		switch {
		case state.Running != nil:
			running++
		case ended == nil:
			waiting++
		default:
			stopped++
			if ended.ExitCode == 0 {
				succeeded++
			}
			if r.rest || !pods.Restarts(pod, c, ended.ExitCode) && !r.follows(c.Name, r.last(c.Name)) {
				final++
			}
		}
	}
	switch {
	case waiting > 0:
		return v1.PodPending
	case running > 0 || stopped == 0 || final < stopped:
		return v1.PodRunning
	case succeeded == stopped:
		return v1.PodSucceeded
	default:
		return v1.PodFailed
	}
}

// anyAppRan reports whether an app container ever ran, according to the runtime or to earlier
// reports.
func (r *reporter) anyAppRan() bool {
	return slices.ContainsFunc(r.in.Pod.Spec.Containers, func(c v1.Container) bool { return r.last(c.Name) != nil })
}
