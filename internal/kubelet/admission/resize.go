package admission

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	resourcehelper "k8s.io/component-helpers/resource"
	"k8s.io/kubectl/pkg/util/qos"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"

	"wherry.dev/internal/kubelet/cpus"
	"wherry.dev/internal/kubelet/podplan"
	"wherry.dev/internal/kubelet/podworker"
)

// Resize implements podworker.Admission: it decides whether a pod can have the resources that its
// spec now asks for. A pod that wants more than it has gives way to pods that have waited with a
// better claim and that fit.
func (a *Admission) Resize(_ context.Context, in *podplan.Input) podplan.ResizeDecision {
	select {
	case <-a.listed:
	default:
		return podplan.ResizeDecision{} // the other pods will be known in a moment
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	uid := in.Pod.UID
	d := a.fits(in.Pod)
	if message := a.infeasible(in); message != "" {
		d = podplan.ResizeDecision{Reason: v1.PodReasonInfeasible, Message: message}
	}
	if d.Allocate && grows(in.Pod, in.Record.Verdict) {
		if before := a.firstLocked(in); before != "" {
			a.pods.Wake(before)
			d = podplan.ResizeDecision{Reason: v1.PodReasonDeferred, Message: "waiting for the resize of another pod, which comes first"}
		}
	}
	if d.Reason == v1.PodReasonDeferred {
		a.deferred[uid] = true
	} else {
		delete(a.deferred, uid)
	}
	if d.Allocate {
		a.granted[uid] = in.Pod
	}
	return d
}

// infeasible says why a pod cannot get other resources: those that were given to it cannot be exchanged while it runs.
func (a *Admission) infeasible(in *podplan.Input) string {
	const message = "Resize is infeasible for Guaranteed Pods alongside %s Manager policy %q"
	switch {
	case qos.GetPodQOS(in.Pod) != v1.PodQOSGuaranteed:
	case a.cfg.CPUs != nil && changes(in.Pod, in.Record.Verdict, v1.ResourceCPU):
		return fmt.Sprintf(message, "CPU", cpus.Static)
	case a.cfg.Memory != nil && changes(in.Pod, in.Record.Verdict, v1.ResourceMemory):
		return fmt.Sprintf(message, "Memory", kubeletconfig.StaticMemoryManagerPolicy)
	}
	return ""
}

func (a *Admission) fits(pod *v1.Pod) podplan.ResizeDecision {
	return podplan.DecideResize(podplan.AdmitInput{Pod: pod, Node: a.cfg.Node(), Others: a.othersLocked(pod.UID)})
}

// firstLocked returns a deferred pod that comes before this one and fits, if there is one.
func (a *Admission) firstLocked(in *podplan.Input) types.UID {
	for uid := range a.deferred {
		s, ok := a.pods.Get(uid)
		if !ok || s.Pod == nil || !podplan.ResizeDue(&s.Input) {
			delete(a.deferred, uid)
			continue
		}
		if uid != in.Pod.UID && podplan.ResizeOrder(&s.Input, in) < 0 && a.fits(s.Pod).Allocate {
			return uid
		}
	}
	return ""
}

// changes reports whether a container would have more or less of a resource than it was given.
func changes(pod *v1.Pod, v *podplan.Verdict, name v1.ResourceName) bool {
	has := podplan.WithAllocated(pod, v)
	same := func(want, is []v1.Container) bool {
		return slices.EqualFunc(want, is, func(a, b v1.Container) bool {
			was := b.Resources.Requests[name]
			return was.Equal(a.Resources.Requests[name])
		})
	}
	return !same(pod.Spec.Containers, has.Spec.Containers) || !same(pod.Spec.InitContainers, has.Spec.InitContainers)
}

// grows reports whether a pod asks for more than was allocated to it.
func grows(pod *v1.Pod, v *podplan.Verdict) bool {
	opts := resourcehelper.PodResourcesOptions{}
	want, has := resourcehelper.PodRequests(pod, opts), resourcehelper.PodRequests(podplan.WithAllocated(pod, v), opts)
	return cmp.Or(max(want.Cpu().Cmp(*has.Cpu()), 0), max(want.Memory().Cmp(*has.Memory()), 0)) > 0
}

// Freed implements podworker.Admission: it wakes the pods that wait for room to grow, and decides
// on those that wait to be admitted, in their order.
func (a *Admission) Freed() {
	a.cfg.Changed()
	for _, uid := range a.takeFreed() {
		a.pods.Wake(uid)
	}
}

// takeFreed returns the pods to wake.
func (a *Admission) takeFreed() []types.UID {
	a.mu.Lock()
	defer a.mu.Unlock()
	unknown := func(uid types.UID) bool {
		_, ok := a.pods.Get(uid)
		return !ok
	}
	for _, set := range []map[types.UID]bool{a.deferred, a.admitting, a.waiting} {
		maps.DeleteFunc(set, func(uid types.UID, _ bool) bool { return unknown(uid) })
	}
	maps.DeleteFunc(a.decided, func(uid types.UID, _ podplan.Verdict) bool { return unknown(uid) })
	maps.DeleteFunc(a.chosen, func(uid types.UID, _ given) bool { return unknown(uid) })
	for uid, g := range a.granted {
		if s, ok := a.pods.Get(uid); !ok || podplan.WithAllocated(g, s.Input.Record.Verdict) == g && s.Input.Record.Verdict != nil {
			delete(a.granted, uid) // published, or gone
		}
	}
	var waiting []*podworker.Snapshot
	for uid := range a.waiting {
		if s, ok := a.pods.Get(uid); ok && !a.pods.Leaving(uid) {
			waiting = append(waiting, &s)
		} else {
			delete(a.waiting, uid) // it no longer claims anything
		}
	}
	wake := slices.Collect(maps.Keys(a.deferred))
	wake = append(wake, a.decideAllLocked(waiting)...)
	for _, s := range waiting {
		if !a.waiting[s.Pod.UID] {
			wake = append(wake, s.Pod.UID)
		}
	}
	return wake
}
