package admission

import (
	"context"
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"wherry.dev/internal/kubelet/cpus"
	"wherry.dev/internal/kubelet/devices"
	"wherry.dev/internal/kubelet/metrics"
	"wherry.dev/internal/kubelet/podplan"
)

// unexpected is the verdict on a pod whose devices or CPUs cannot be had, in upstream's words.
func unexpected(err error) podplan.Verdict {
	if _, ok := errors.AsType[*cpus.SMTAlignmentError](err); ok {
		return podplan.Verdict{Reason: "SMTAlignmentError", Message: err.Error()}
	}
	return podplan.Verdict{Reason: "UnexpectedAdmissionError", Message: fmt.Sprintf("Allocate failed due to %v, which is unexpected", err)}
}

// chooseLocked chooses a pod's devices, nil if it asks for none. soon means that there are enough once others have ended
// that are about to.
func (a *Admission) chooseLocked(pod *v1.Pod, preferred devices.Preferred) (chosen podplan.Devices, soon bool, err error) {
	chosen, err = a.cfg.Devices.Choose(pod, devicesOf(a.givenLocked(pod.UID, everyone)), preferred)
	if err != nil {
		_, later := a.cfg.Devices.Choose(pod, devicesOf(a.givenLocked(pod.UID, a.staying)), nil)
		soon = later == nil
	}
	return chosen, soon, err
}

// chooseCPUsLocked chooses the CPUs that a pod's containers have for themselves, nil if none has any; soon as above.
func (a *Admission) chooseCPUsLocked(pod *v1.Pod) (chosen podplan.CPUs, soon bool, err error) {
	if !a.cfg.CPUs.Wants(pod) {
		return nil, false, nil
	}
	metrics.CPUPinnings.Inc()
	chosen, err = a.cfg.CPUs.Choose(pod, cpusOf(a.givenLocked(pod.UID, everyone)))
	if err != nil {
		metrics.CPUPinningErrors.Inc()
		_, later := a.cfg.CPUs.Choose(pod, cpusOf(a.givenLocked(pod.UID, a.staying)))
		soon = later == nil
	}
	return chosen, soon, err
}

// HeldCPUs returns the CPUs that containers have for themselves.
func (a *Admission) HeldCPUs() []podplan.CPUs {
	a.mu.Lock()
	defer a.mu.Unlock()
	return cpusOf(a.givenLocked("", everyone))
}

func everyone(types.UID) bool { return true }

func (a *Admission) staying(uid types.UID) bool { return !a.pods.Leaving(uid) }

// given is what pods get of which each piece is somebody's alone.
type given struct {
	devices podplan.Devices
	cpus    podplan.CPUs
}

// givenLocked returns what all pods hold, but for one pod, and for those that count does not want.
func (a *Admission) givenLocked(but types.UID, count func(types.UID) bool) (out []given) {
	for _, s := range a.pods.List() {
		uid := s.Pod.UID
		if uid == but || s.AtRest() || !count(uid) {
			continue
		}
		held := a.chosen[uid]
		if v := s.Input.Record.Verdict; v != nil {
			delete(a.chosen, uid)
			held = given{v.Devices, v.CPUs}
		}
		out = append(out, held)
	}
	return out
}

func devicesOf(all []given) (out []podplan.Devices) {
	for _, g := range all {
		if g.devices != nil {
			out = append(out, g.devices)
		}
	}
	return out
}

func cpusOf(all []given) (out []podplan.CPUs) {
	for _, g := range all {
		if g.cpus != nil {
			out = append(out, g.cpus)
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
	held := devicesOf(a.givenLocked(pod.UID, everyone))
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
