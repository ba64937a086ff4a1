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

// TestAnImageThatChanges is not seen as a pod that is not ready, if the new one runs in a moment: that the old container had
// ended was reported a few milliseconds before the new one ran. A container that ends by itself is reported at once.
func TestAnImageThatChanges(t *testing.T) {
	old := podplan.Container{Name: "c", State: podplan.Exited}
	next := func(attempt uint32, s podplan.State) podplan.Container {
		return podplan.Container{Name: "c", Attempt: attempt, State: s}
	}
	for name, tt := range map[string]struct {
		containers []podplan.Container
		ending     bool
		failed     bool
		want       bool
	}{
		"the old one is being stopped": {[]podplan.Container{next(0, podplan.Running)}, false, false, true},
		"the old one has ended":        {[]podplan.Container{old}, false, false, true},
		"the new one is there":         {[]podplan.Container{old, next(1, podplan.Created)}, false, false, true},
		"the new one runs":             {[]podplan.Container{old, next(1, podplan.Running)}, false, false, false},
		"the new one has ended":        {[]podplan.Container{next(1, podplan.Exited), old}, false, false, false},
		"the new one cannot start":     {[]podplan.Container{old, next(1, podplan.Created)}, false, true, false},
		"the pod ends":                 {[]podplan.Container{old}, true, false, false},
		"nothing of it is left":        {nil, false, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			in := podplan.Input{Containers: tt.containers, Record: podplan.Record{Containers: map[string]podplan.History{"c": {Replace: 1}, "other": {}}}}
			if tt.ending {
				in.Record.Ending = &podplan.Ending{}
			}
			if tt.failed {
				in.Failures = map[podplan.Key]podplan.Failure{podplan.ContainerKey("c"): {}}
			}
			if got := podplan.Replacing(&in); got != tt.want {
				t.Errorf("replacing is %v", got)
			}
		})
	}
}
