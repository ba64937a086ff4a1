package admission

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"wherry.dev/internal/kubelet/devices"
	"wherry.dev/internal/kubelet/podplan"
)

// unexpected is the verdict on a pod whose devices cannot be had, in upstream's words.
func unexpected(err error) podplan.Verdict {
	return podplan.Verdict{Reason: "UnexpectedAdmissionError", Message: fmt.Sprintf("Allocate failed due to %v, which is unexpected", err)}
}

// chooseLocked chooses a pod's devices, nil if it asks for none. soon means that there are enough once others have ended
// that are about to.
func (a *Admission) chooseLocked(pod *v1.Pod, preferred devices.Preferred) (chosen podplan.Devices, soon bool, err error) {
	chosen, err = a.cfg.Devices.Choose(pod, a.devicesLocked(pod.UID, func(types.UID) bool { return true }), preferred)
	if err != nil {
		_, later := a.cfg.Devices.Choose(pod, a.devicesLocked(pod.UID, func(uid types.UID) bool { return !a.pods.Leaving(uid) }), nil)
		soon = later == nil
	}
	return chosen, soon, err
}

// devicesLocked returns the devices of all pods that hold some, but for one pod, and for those that count does not want.
func (a *Admission) devicesLocked(but types.UID, count func(types.UID) bool) []podplan.Devices {
	var out []podplan.Devices
	for _, s := range a.pods.List() {
		uid := s.Pod.UID
		if uid == but || s.AtRest() || !count(uid) {
			continue
		}
		held := a.chosen[uid]
		if v := s.Input.Record.Verdict; v != nil {
			delete(a.chosen, uid)
			held = v.Devices
		}
		if held != nil {
			out = append(out, held)
		}
	}
	return out
}

// ask asks plugins which devices they would give to a pod.
func (a *Admission) ask(ctx context.Context, pod *v1.Pod) devices.Preferred {
	if !a.cfg.Devices.Prefers(pod) {
		return nil
	}
	a.mu.Lock()
	held := a.devicesLocked(pod.UID, func(types.UID) bool { return true })
	a.mu.Unlock()
	return a.cfg.Devices.Ask(ctx, pod, held)
}

// allocate completes the verdict on a pod that was admitted with devices. If a plugin refuses them, the pod is refused.
func (a *Admission) allocate(ctx context.Context, pod *v1.Pod, v podplan.Verdict) podplan.Verdict {
	given, err := a.cfg.Devices.Allocate(ctx, v.Devices)
	if err == nil {
		v.Devices = given
		return v
	}
	a.mu.Lock()
	delete(a.admitting, pod.UID)
	delete(a.chosen, pod.UID)
	a.mu.Unlock()
	if ctx.Err() != nil {
		return podplan.Verdict{} // the next kubelet decides
	}
	v = unexpected(err)
	a.cfg.Refused(pod, v)
	a.Freed()
	return v
}
