package pods

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Group returns the pod group to which a pod belongs, and false if it belongs to none.
func Group(pod *v1.Pod) (types.NamespacedName, bool) {
	if g := pod.Spec.SchedulingGroup; g != nil && g.PodGroupName != nil {
		return types.NamespacedName{Namespace: pod.Namespace, Name: *g.PodGroupName}, true
	}
	return types.NamespacedName{}, false
}
