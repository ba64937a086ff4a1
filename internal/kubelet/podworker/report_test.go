package podworker

import (
	"testing"

	v1 "k8s.io/api/core/v1"

	"wherry.dev/internal/kubelet/podplan"
)

// TestAPodThatMountsIsStarting: the status of a pod whose sandbox was ready before its volumes was
// written at once, only to be replaced some milliseconds later. In a burst of jobs, whose tokens
// take longer than their sandboxes, that was most of them.
func TestAPodThatMountsIsStarting(t *testing.T) {
	for name, tt := range map[string]struct {
		phase  v1.PodPhase
		op     podplan.Kind
		failed bool
		want   bool
	}{
		"cgroup":                    {v1.PodPending, podplan.EnsureCgroup, false, true},
		"volume":                    {v1.PodPending, podplan.MountVolume, false, true},
		"sandbox":                   {v1.PodPending, podplan.RunSandbox, false, true},
		"volume that fails":         {v1.PodPending, podplan.MountVolume, true, false},
		"volume of a pod that runs": {v1.PodRunning, podplan.MountVolume, false, false},
		"end":                       {v1.PodPending, podplan.StopSandbox, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			op := podplan.Op{Kind: tt.op, Name: "v"}
			in := podplan.Input{}
			if tt.failed {
				in.Failures = map[podplan.Key]podplan.Failure{op.Key(): {}}
			}
			if got := starting(&in, &podplan.Plan{Ops: []podplan.Op{op}}, &v1.PodStatus{Phase: tt.phase}); got != tt.want {
				t.Errorf("starting is %v", got)
			}
		})
	}
}
