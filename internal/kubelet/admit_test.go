package kubelet

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	"wherry.dev/test/fakecri"
)

// TestCriticalPodPreempts: the victim says why it ends, and the other pod starts when the victim is
// gone, not before.
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

// A pod that came right after the forced deletion of another used to be refused because of what
// that one still held, and failed for good.
func TestPodWaitsForOneThatWasDeletedByForce(t *testing.T) {
	run(t, func(w *world) {
		w.rt.Behave = func(*runtimeapi.ContainerConfig) fakecri.Behaviour { return fakecri.Behaviour{IgnoreTerm: true} }
		w.sized("old", w.free(100))
		ask := func(name string) {
			p := plainPod(name, v1.RestartPolicyAlways, container("c"))
			p.Spec.Containers[0].Resources.Requests = v1.ResourceList{v1.ResourceCPU: resource.MustParse(w.free(50))}
			w.create(p)
		}
		if err := w.client.CoreV1().Pods("default").Delete(t.Context(), "old", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		ask("new")
		w.pass(100 * time.Millisecond)
		if got := w.get("new").Status; len(w.rt.Live("uid-old", "c")) != 1 || got.Phase == v1.PodFailed || len(w.rt.Live("uid-new", "c")) != 0 {
			w.dump()
			t.Fatalf("while the other ends: %+v", got)
		}
		w.until("it runs", func() bool { return condition(w.get("new"), v1.PodReady) == v1.ConditionTrue })
		ask("newer")
		w.until("it is refused, for nobody goes", func() bool { return w.get("newer").Status.Reason == "OutOfcpu" })
	})
}
