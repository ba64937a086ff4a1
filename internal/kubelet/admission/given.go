package admission

import (
	"context"
	"errors"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"wherry.dev/internal/kubelet/cpus"
	"wherry.dev/internal/kubelet/devices"
	"wherry.dev/internal/kubelet/metrics"
	"wherry.dev/internal/kubelet/numa"
	"wherry.dev/internal/kubelet/podplan"
)

// unexpected is the verdict on a pod whose devices, CPUs or memory cannot be had, in upstream's words.
func unexpected(err error) podplan.Verdict {
	if _, ok := errors.AsType[*cpus.SMTAlignmentError](err); ok {
		return podplan.Verdict{Reason: "SMTAlignmentError", Message: err.Error()}
	}
	if _, ok := errors.AsType[*numa.AffinityError](err); ok {
		return podplan.Verdict{Reason: "TopologyAffinityError", Message: err.Error()}
	}
	return podplan.Verdict{Reason: "UnexpectedAdmissionError", Message: fmt.Sprintf("Allocate failed due to %v, which is unexpected", err)}
}

// choose chooses a pod's devices, CPUs and memory among what nobody holds, aligned with NUMA nodes if the node does that.
func (a *Admission) choose(pod *v1.Pod, held []given, preferred devices.Preferred) (given, DeviceChoice, error) {
	d := a.cfg.Devices.Choose(pod, devicesOf(held), preferred)
	c := a.cfg.CPUs.Choose(pod, cpusOf(held))
	m := a.cfg.Memory.Choose(pod, memoryOf(held))
	err := a.cfg.NUMA.Align(pod, d, c, m)
	return given{d.Chosen(), c.Chosen(), m.Chosen()}, d, err
}

// chooseLocked chooses for a pod, against all that others hold. soon means that it works out once others have ended that
// are about to.
func (a *Admission) chooseLocked(pod *v1.Pod, preferred devices.Preferred) (chosen given, soon bool, err error) {
	began := time.Now()
	chosen, _, err = a.choose(pod, a.givenLocked(pod.UID, everyone), preferred)
	a.count(pod, err, time.Since(began))
	if err != nil {
		_, _, later := a.choose(pod, a.givenLocked(pod.UID, a.staying), nil)
		soon = later == nil
	}
	return chosen, soon, err
}

// count notes how a choice went.
func (a *Admission) count(pod *v1.Pod, err error, took time.Duration) {
	if a.cfg.CPUs.Wants(pod) {
		metrics.CPUPinnings.Inc()
	}
	if a.cfg.Memory.Wants(pod) {
		metrics.MemoryPinnings.Inc()
	}
	if err != nil && a.cfg.CPUs.Wants(pod) {
		metrics.CPUPinningErrors.Inc()
	}
	if err != nil && a.cfg.Memory.Wants(pod) {
		metrics.MemoryPinningErrors.Inc()
	}
	if a.cfg.NUMA == nil {
		return
	}
	metrics.TopologyAdmissions.Inc()
	metrics.TopologyAdmissionDuration.Observe(float64(took) / float64(time.Millisecond))
	scope, all := a.cfg.NUMA.Guarantees()
	switch _, apart := errors.AsType[*numa.AffinityError](err); {
	case apart && all:
		metrics.AlignmentFailures.WithLabelValues(scope, "numa_node").Inc()
	case err == nil && all:
		metrics.Alignments.WithLabelValues(scope, "numa_node").Inc()
	}
	if err != nil {
		metrics.TopologyAdmissionErrors.Inc()
	}
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
	memory  podplan.Memory
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
			held = given{v.Devices, v.CPUs, v.Memory}
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

func memoryOf(all []given) (out []podplan.Memory) {
	for _, g := range all {
		if g.memory != nil {
			out = append(out, g.memory)
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
	held := a.givenLocked(pod.UID, everyone)
	a.mu.Unlock()
	_, d, err := a.choose(pod, held, nil)
	if err != nil {
		return nil
	}
	return d.Ask(ctx)
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
