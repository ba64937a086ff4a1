package podplan

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	helper "k8s.io/component-helpers/resource"
)

func cpu(s string) v1.ResourceRequirements {
	return v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse(s)}}
}

// A resize was accepted, never carried out, and counted by the scheduler for ever.
func TestResizeThatIsNotCarriedOutIsReportedAsInfeasible(t *testing.T) {
	pod := &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{{Name: "c", Resources: cpu("64")}}}}
	verdict := &Verdict{Admitted: true, Allocated: map[string]v1.ResourceRequirements{"c": cpu("100m")}}
	running := []Container{{ID: "1", Name: "c", State: Running, Started: time.Unix(900, 0)}}
	pod.Status = Status(Input{Pod: pod, Record: Record{Verdict: verdict}, Containers: running}, time.Unix(1000, 0))
	if !helper.IsPodResizeInfeasible(pod) {
		t.Errorf("conditions: %+v", pod.Status.Conditions)
	}
	if got := helper.PodRequests(pod, helper.PodResourcesOptions{UseStatusResources: true}); got.Cpu().String() != "100m" {
		t.Errorf("the scheduler counts %s", got.Cpu())
	}
	if got := WithAllocated(pod, verdict).Spec.Containers[0].Resources.Requests.Cpu().String(); got != "100m" {
		t.Errorf("a container would be created with %s", got)
	}
	pod.Spec.Containers[0].Resources = cpu("100m") // the wish is taken back
	if st := Status(Input{Pod: pod, Record: Record{Verdict: verdict}, Reported: pod.Status}, time.Unix(1001, 0)); len(st.Conditions) != 5 {
		t.Errorf("conditions: %+v", st.Conditions)
	}
	if WithAllocated(pod, verdict) != pod {
		t.Error("a pod without a wish was copied")
	}
}
