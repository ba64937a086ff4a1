package eviction

import (
	"fmt"
	"slices"
	"sync/atomic"

	v1 "k8s.io/api/core/v1"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"
	"k8s.io/kubectl/pkg/util/qos"

	"wherry.dev/internal/api/pods"
)

// Conditions are the node's conditions of pressure. The Guard is their only writer.
type Conditions struct {
	list atomic.Pointer[[]v1.NodeConditionType]
}

// List returns the conditions that hold, in a fixed order.
func (c *Conditions) List() []v1.NodeConditionType {
	if l := c.list.Load(); l != nil {
		return *l
	}
	return nil
}

// Has reports whether a condition holds.
func (c *Conditions) Has(t v1.NodeConditionType) bool { return slices.Contains(c.List(), t) }

func (c *Conditions) set(list []v1.NodeConditionType) (changed bool) {
	old := c.List()
	c.list.Store(&list)
	return !slices.Equal(old, list)
}

// Refuses reports whether a node with these conditions does not admit a pod, and says why. Critical pods
// are always admitted; with too little memory, and nothing else, so are those that have asked for some, or
// tolerate that.
func Refuses(pod *v1.Pod, conditions []v1.NodeConditionType) (message string, refused bool) {
	if len(conditions) == 0 || pods.IsCritical(pod) {
		return "", false
	}
	if slices.Equal(conditions, []v1.NodeConditionType{v1.NodeMemoryPressure}) {
		taint := &v1.Taint{Key: v1.TaintNodeMemoryPressure, Effect: v1.TaintEffectNoSchedule}
		if qos.GetPodQOS(pod) != v1.PodQOSBestEffort || corev1helpers.TolerationsTolerateTaint(klog.Background(), pod.Spec.Tolerations, taint, true) {
			return "", false
		}
	}
	return fmt.Sprintf("The node had condition: %v. ", conditions), true
}
