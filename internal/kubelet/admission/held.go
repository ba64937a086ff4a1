package admission

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"wherry.dev/internal/kubelet/podplan"
	"wherry.dev/internal/kubelet/podworker"
)

// Holding returns the pods that hold resources of the node, with what they hold, and those that
// wait for what they were promised.
func (a *Admission) Holding() []*v1.Pod {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.othersLocked("")
}

// othersLocked is Holding without one pod.
func (a *Admission) othersLocked(uid types.UID) []*v1.Pod {
	var others []*v1.Pod
	for _, s := range a.pods.List() {
		if s.Input.Record.Verdict != nil {
			delete(a.admitting, s.Pod.UID)
		}
		if s.Pod.UID == uid || s.AtRest() || !Holds(s) && !a.promised(s.Pod.UID) {
			continue
		}
		others = append(others, a.held(s))
	}
	return others
}

// promised reports whether a pod waits to be admitted, or has been admitted and its worker has not
// published that yet.
func (a *Admission) promised(uid types.UID) bool {
	return a.admitting[uid] || a.waiting[uid] || a.decided[uid].Admitted
}

// held returns a pod with the resources that it holds: its spec has those that it may have, its
// status those that it still has. The status is our newest one: it may not have come back from the
// API server yet, though others have seen it there.
func (a *Admission) held(s *podworker.Snapshot) *v1.Pod {
	pod := podplan.WithAllocated(s.Pod, s.Input.Record.Verdict)
	if g := a.granted[s.Pod.UID]; g != nil {
		pod = g
	}
	with := *pod
	with.Status = s.Status
	return &with
}

// Holds reports whether a pod holds resources of the node: from its admission until nothing of it
// runs any more, which is before its final phase is reported.
func Holds(s *podworker.Snapshot) bool {
	v := s.Input.Record.Verdict
	return v != nil && v.Admitted && !s.AtRest()
}
