package podworker

import (
	v1 "k8s.io/api/core/v1"

	"wherry.dev/internal/kubelet/podplan"
)

// report hands the status over, and reports what is new in it.
func (w *Worker) report(in *podplan.Input, plan *podplan.Plan) {
	switch {
	case in.Record.Static && !w.mirrorKnown: // nobody can be told yet, and what the mirror says counts first
	case starting(in, plan, &w.status), podplan.Replacing(in), podplan.Vanishing(in.Pod): // then it is most likely never sent
		w.deps.Status.PutSoon(in.Pod, w.status)
	default:
		w.deps.Status.Put(in.Pod, w.status)
	}
	w.tell(in)
	w.countEnds(&in.Reported)
	if w.deps.Started != nil && w.status.Phase == v1.PodRunning && in.Reported.Phase == v1.PodPending {
		w.mu.Lock()
		seen := w.since
		w.mu.Unlock()
		w.deps.Started(in.Pod, seen, w.pulling)
	}
}

// countEnds reports the instances that have ended since an earlier status.
func (w *Worker) countEnds(before *v1.PodStatus) {
	if w.deps.Ended == nil {
		return
	}
	for _, lists := range []struct {
		kind     string
		old, now []v1.ContainerStatus
	}{
		{"init_container", before.InitContainerStatuses, w.status.InitContainerStatuses},
		{"container", before.ContainerStatuses, w.status.ContainerStatuses},
		{"ephemeral_container", before.EphemeralContainerStatuses, w.status.EphemeralContainerStatuses},
	} {
		known := map[string]bool{}
		for i := range lists.old {
			for _, t := range ends(&lists.old[i]) {
				known[lists.old[i].Name+t.ContainerID] = true
			}
		}
		for i := range lists.now {
			for _, t := range ends(&lists.now[i]) {
				if !known[lists.now[i].Name+t.ContainerID] {
					w.deps.Ended(lists.kind, t)
				}
			}
		}
	}
}

// ends returns the terminated states in a container's status.
func ends(st *v1.ContainerStatus) []*v1.ContainerStateTerminated {
	var out []*v1.ContainerStateTerminated
	for _, t := range []*v1.ContainerStateTerminated{st.LastTerminationState.Terminated, st.State.Terminated} {
		if t != nil {
			out = append(out, t)
		}
	}
	return out
}

// starting reports whether a pod is starting up, with nothing else to report.
func starting(in *podplan.Input, plan *podplan.Plan, st *v1.PodStatus) bool {
	if st.Phase != v1.PodPending || in.Record.Ending != nil || len(in.Failures) > 0 {
		return false
	}
	for _, op := range plan.Ops {
		switch op.Kind {
		case podplan.EnsureCgroup, podplan.MountVolume, podplan.RunSandbox, podplan.PullImage,
			podplan.CreateContainer, podplan.StartContainer:
			return true
		}
	}
	return false
}

// tell records events, after the status has gone out, for what the plan decided and no op reports.
func (w *Worker) tell(in *podplan.Input) {
	if w.deps.TellPod != nil {
		for _, e := range podplan.ResizeEvents(in, &w.status) {
			w.deps.TellPod(in.Pod, e)
		}
	}
	if w.deps.Tell == nil {
		return
	}
	for _, list := range [][]v1.ContainerStatus{w.status.InitContainerStatuses, w.status.ContainerStatuses} {
		for i := range list {
			now := list[i].State.Waiting
			if now == nil || now.Reason != podplan.ReasonImagePullBackOff && now.Reason != podplan.ReasonCrashLoopBackOff {
				continue
			}
			if podplan.WaitingReason(&in.Reported, list[i].Name) != now.Reason {
				w.deps.Tell(in.Pod, list[i].Name, now.Reason, now.Message)
			}
		}
	}
	if e := in.Record.Ending; e != nil && e.Reason != "" && w.toldEnding != e.Reason {
		w.toldEnding = e.Reason
		w.deps.Tell(in.Pod, "", e.Reason, e.Message)
	}
}
