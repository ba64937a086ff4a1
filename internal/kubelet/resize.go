package kubelet

import (
	"cmp"
	"context"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	resourcehelper "k8s.io/component-helpers/resource"

	"wherry.dev/internal/kubelet/podplan"
	"wherry.dev/internal/kubelet/podworker"
)

// decideResize decides, one pod at a time, whether a pod can have the resources that
// its spec asks for by now. A pod that wants more than it has lets those go first that
// have waited with a better claim, and for which there is room.
func (k *Kubelet) decideResize(_ context.Context, in *podplan.Input) podplan.ResizeDecision {
	select {
	case <-k.apiListed:
	default:
		return podplan.ResizeDecision{} // who else there is will be known in a moment
	}
	k.admitMu.Lock()
	defer k.admitMu.Unlock()
	uid := in.Pod.UID
	d := k.fits(in.Pod)
	if d.Allocate && grows(in.Pod, in.Record.Verdict) {
		if before := k.firstLocked(in); before != "" {
			k.table.Wake(before)
			d = podplan.ResizeDecision{Reason: v1.PodReasonDeferred, Message: "waits for the resize of another pod that comes first"}
		}
	}
	if d.Reason == v1.PodReasonDeferred {
		k.deferred[uid] = true
	} else {
		delete(k.deferred, uid)
	}
	if d.Allocate {
		k.granted[uid] = in.Pod
	}
	return d
}

func (k *Kubelet) fits(pod *v1.Pod) podplan.ResizeDecision {
	return podplan.DecideResize(podplan.AdmitInput{Pod: pod, Node: k.node.Node(), Others: k.othersLocked(pod.UID)})
}

// firstLocked is a deferred pod that comes before this one and fits.
func (k *Kubelet) firstLocked(in *podplan.Input) types.UID {
	for uid := range k.deferred {
		s, ok := k.table.Get(uid)
		if !ok || s.Pod == nil || !podplan.ResizeDue(&s.Input) {
			delete(k.deferred, uid)
			continue
		}
		if uid != in.Pod.UID && podplan.ResizeOrder(&s.Input, in) < 0 && k.fits(s.Pod).Allocate {
			return uid
		}
	}
	return ""
}

// grows tells whether a pod asks for more than was allocated to it.
func grows(pod *v1.Pod, v *podplan.Verdict) bool {
	opts := resourcehelper.PodResourcesOptions{}
	want, has := resourcehelper.PodRequests(pod, opts), resourcehelper.PodRequests(podplan.WithAllocated(pod, v), opts)
	return cmp.Or(max(want.Cpu().Cmp(*has.Cpu()), 0), max(want.Memory().Cmp(*has.Memory()), 0)) > 0
}

// freed lets the pods look again that wait for room, and decides on those that wait to be
// admitted, in their order.
func (k *Kubelet) freed() {
	k.sharesChanged()
	for _, uid := range k.takeFreed() {
		k.table.Wake(uid)
	}
}

// takeFreed returns whom to wake.
func (k *Kubelet) takeFreed() []types.UID {
	k.admitMu.Lock()
	defer k.admitMu.Unlock()
	unknown := func(uid types.UID) bool {
		_, ok := k.table.Get(uid)
		return !ok
	}
	for _, set := range []map[types.UID]bool{k.deferred, k.admitting, k.waiting} {
		maps.DeleteFunc(set, func(uid types.UID, _ bool) bool { return unknown(uid) })
	}
	maps.DeleteFunc(k.decided, func(uid types.UID, _ podplan.Verdict) bool { return unknown(uid) })
	for uid, g := range k.granted {
		if s, ok := k.table.Get(uid); !ok || podplan.WithAllocated(g, s.Input.Record.Verdict) == g && s.Input.Record.Verdict != nil {
			delete(k.granted, uid) // published, or gone
		}
	}
	var waiting []podworker.Snapshot
	for uid := range k.waiting {
		if s, ok := k.table.Get(uid); ok && !k.table.Leaving(uid) {
			waiting = append(waiting, s)
		} else {
			delete(k.waiting, uid) // it claims nothing any more
		}
	}
	wake := slices.Collect(maps.Keys(k.deferred))
	k.decideAllLocked(waiting)
	for _, s := range waiting {
		if !k.waiting[s.Pod.UID] {
			wake = append(wake, s.Pod.UID)
		}
	}
	return wake
}
