package kubelet

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
)

// TestCriticalPodPreempts: the one that goes says why, and the other starts when it
// is gone, not before.
func TestCriticalPodPreempts(t *testing.T) {
	run(t, func(w *world) {
		w.sized("filler", w.free(100))
		p := plainPod("critical", v1.RestartPolicyAlways, container("c"))
		p.Spec.Priority = ptr.To[int32](2000001000)
		p.Spec.Containers[0].Resources.Requests = v1.ResourceList{v1.ResourceCPU: resource.MustParse("200m")}
		w.create(p)
		w.until("critical runs", func() bool { return condition(w.get("critical"), v1.PodReady) == v1.ConditionTrue })
		filler := w.get("filler")
		if filler.Status.Phase != v1.PodFailed || filler.Status.Reason != "Preempting" || filler.Status.Message != "Preempted in order to admit critical pod" {
			t.Errorf("status %+v", filler.Status)
		}
		for _, c := range filler.Status.Conditions {
			if c.Type == v1.DisruptionTarget && (c.Reason != v1.PodReasonTerminationByKubelet || c.Message != "Pod was preempted by Kubelet to accommodate a critical pod.") {
				t.Errorf("condition %+v", c)
			}
		}
		if condition(filler, v1.DisruptionTarget) != v1.ConditionTrue {
			t.Error("no DisruptionTarget")
		}
		w.wantEvent("Preempting: Preempted in order to admit critical pod")
		small := plainPod("small", v1.RestartPolicyAlways, container("c"))
		small.Spec.Containers[0].Resources.Requests = v1.ResourceList{v1.ResourceCPU: resource.MustParse(w.free(0))}
		w.create(small)
		w.until("an ordinary one is refused", func() bool { return w.get("small").Status.Reason == "OutOfcpu" })
	})
}
