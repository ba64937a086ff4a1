package podworker

import (
	"time"

	v1 "k8s.io/api/core/v1"

	"wherry.dev/internal/kubelet/podplan"
)

// report hands the status over. An orphan has nobody to report to.
func (w *Worker) report(in *podplan.Input, plan *podplan.Plan, now time.Time) {
	if in.Absent || in.Forgotten {
		return
	}
	w.status = podplan.Status(*in, now)
	if starting(in, plan, &w.status) {
		w.deps.Status.PutSoon(in.Pod, w.status)
	} else {
		w.deps.Status.Put(in.Pod, w.status)
	}
	w.tell(in)
	if w.deps.Started != nil && w.status.Phase == v1.PodRunning && in.Reported.Phase == v1.PodPending {
		w.mu.Lock()
		seen := w.since
		w.mu.Unlock()
		w.deps.Started(in.Pod, seen, w.pulling)
	}
}

// starting tells whether a pod is on its way up, with nothing to tell but that.
func starting(in *podplan.Input, plan *podplan.Plan, st *v1.PodStatus) bool {
	if st.Phase != v1.PodPending || in.Record.Ending != nil || len(in.Failures) > 0 {
		return false
	}
	for _, op := range plan.Ops {
		switch op.Kind {
		case podplan.RunSandbox, podplan.CreateContainer, podplan.StartContainer, podplan.PullImage:
			return true
		}
	}
	return false
}

// tell says by events, after the status has gone out, what the plan decided and no
// op will speak of.
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
