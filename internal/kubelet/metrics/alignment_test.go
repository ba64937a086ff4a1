package metrics

import (
	"testing"

	"k8s.io/component-base/metrics/legacyregistry"
)

// A counter that is not there before its first failure tells no rate.
func TestAlignmentsBeginAtZero(t *testing.T) {
	Register()
	BeginAlignments()
	families, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]int{}
	for _, f := range families {
		for _, m := range f.Metric {
			if m.Counter != nil && *m.Counter.Value == 0 {
				got[f.GetName()]++
			}
		}
	}
	for _, name := range []string{"kubelet_container_aligned_compute_resources_count", "kubelet_container_aligned_compute_resources_failure_count"} {
		if got[name] != 2 {
			t.Errorf("%s has %d counters at zero, want those of containers and of pods", name, got[name])
		}
	}
}
