package podplan

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
)

// resizeMessage is what the condition PodResizePending says: this kubelet changes
// no running pod, and says so instead of letting the wish stand unanswered (KEP-1287).
const resizeMessage = "In-place resize is not supported by this node; delete the pod and create it anew with the resources that it is to have"

// WithAllocated returns the pod with the resources that it was admitted with, which
// are what it runs with, whatever its spec asks for by now. The pod itself is
// returned when nothing differs; it is never changed.
func WithAllocated(pod *v1.Pod, v *Verdict) *v1.Pod {
	if pod == nil || !resizeWanted(pod, v) {
		return pod
	}
	out := pod.DeepCopy()
	for _, list := range [][]v1.Container{out.Spec.InitContainers, out.Spec.Containers} {
		for i := range list {
			if a, ok := v.Allocated[list[i].Name]; ok {
				list[i].Resources.Requests, list[i].Resources.Limits = a.Requests.DeepCopy(), a.Limits.DeepCopy()
			}
		}
	}
	return out
}

// resizeWanted tells whether the spec asks for other resources than were allocated.
func resizeWanted(pod *v1.Pod, v *Verdict) bool {
	if v == nil || !v.Admitted {
		return false
	}
	for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			a, ok := v.Allocated[list[i].Name]
			r := &list[i].Resources
			if ok && (!equality.Semantic.DeepEqual(a.Requests, r.Requests) || !equality.Semantic.DeepEqual(a.Limits, r.Limits)) {
				return true
			}
		}
	}
	return false
}
