package podplan

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
)

// A final phase lets others have the pod's devices: it must not be reported before these are given back, and they must
// not be given back while anything of the pod may use them.
func TestDevicesAreGivenBackBeforeTheEndIsTold(t *testing.T) {
	in := lifeOf(v1.RestartPolicyNever, has(Container{ID: "1", Name: "c", State: Exited}))
	in.Sandboxes[0].Ready = true
	in.Residue = Residue{Claims: true, Volumes: true}
	plan := Next(in, noon)
	wantOps(t, "the container has ended", plan, "sandbox/"+Key(in.Sandboxes[0].ID), "volumes")
	in.Record = plan.Record
	in.Sandboxes[0].Ready = false
	plan = Next(in, noon.Add(time.Second))
	wantOps(t, "the sandbox has stopped", plan, "claims", "volumes")
	if st := Status(in, noon.Add(time.Second)); st.Phase == v1.PodSucceeded {
		t.Errorf("the end was told: %v", st.Phase)
	}
	in.follow(plan, noon.Add(time.Second))
	in.Failures = map[Key]Failure{"claims": {Count: 1, At: noon.Add(time.Second), Message: "the driver is away"}}
	delete(in.InFlight, "claims")
	in.Residue.Volumes, in.InFlight = false, nil
	if plan = Next(in, noon.Add(time.Second)); plan.Life == PodTerminated || plan.RecheckAt.IsZero() {
		t.Errorf("life %v, next look at %v", plan.Life, plan.RecheckAt)
	}
	in.Residue = Residue{}
	if plan = Next(in, noon.Add(time.Minute)); plan.Life != PodTerminated {
		t.Errorf("life %v", plan.Life)
	}
	if st := Status(in, noon.Add(time.Minute)); st.Phase != v1.PodSucceeded {
		t.Errorf("phase %v", st.Phase)
	}
}

// A container that waits for its image has its devices already; their health used to be reported from its start on.
func TestHealthOfDevicesOfAContainerThatWaits(t *testing.T) {
	in := lifeOf(v1.RestartPolicyAlways)
	in.Record.Verdict = &Verdict{Admitted: true, Devices: Devices{"c": {{Resource: "example.com/gpu", IDs: []string{"a"}}}}}
	in.DeviceHealth = map[string]map[string]v1.ResourceHealthStatus{"example.com/gpu": {"a": v1.ResourceHealthStatusUnhealthy}}
	got := Status(in, noon).ContainerStatuses[0].AllocatedResourcesStatus
	if len(got) != 1 || got[0].Name != "example.com/gpu" || got[0].Resources[0] != (v1.ResourceHealth{ResourceID: "a", Health: v1.ResourceHealthStatusUnhealthy}) {
		t.Errorf("%+v", got)
	}
}
