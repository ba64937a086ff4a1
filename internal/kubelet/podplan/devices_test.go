package podplan

import (
	"testing"

	v1 "k8s.io/api/core/v1"
)

// A resize allocates processors and memory anew; the pod keeps its devices.
func TestResizeKeepsDevices(t *testing.T) {
	p := &v1.Pod{}
	p.Spec.Containers = []v1.Container{{Name: "c"}}
	given := Devices{"c": {{Resource: "example.com/gpu", IDs: []string{"a"}}}}
	in := &Input{Pod: p, Record: Record{Verdict: &Verdict{Admitted: true, Devices: given}}}
	TakeResize(in, ResizeDecision{Allocate: true})
	if got := in.Record.Verdict.Devices["c"]; len(got) != 1 || got[0].IDs[0] != "a" {
		t.Errorf("after the resize the container has %v", got)
	}
}

func TestHealthOfDevices(t *testing.T) {
	r := &reporter{view: &view{in: &Input{
		Record:       Record{Verdict: &Verdict{Devices: Devices{"c": {{Resource: "example.com/gpu", IDs: []string{"a", "b"}}}}}},
		DeviceHealth: map[string]map[string]v1.ResourceHealthStatus{"example.com/gpu": {"a": v1.ResourceHealthStatusUnhealthy}},
	}}}
	got := r.deviceStatus("c")
	if len(got) != 1 || got[0].Name != "example.com/gpu" || len(got[0].Resources) != 2 ||
		got[0].Resources[0] != (v1.ResourceHealth{ResourceID: "a", Health: v1.ResourceHealthStatusUnhealthy}) ||
		got[0].Resources[1] != (v1.ResourceHealth{ResourceID: "b", Health: v1.ResourceHealthStatusUnknown}) {
		t.Errorf("%+v", got)
	}
	if got := r.deviceStatus("other"); got != nil {
		t.Errorf("%+v", got)
	}
}
