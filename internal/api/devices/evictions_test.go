package devices

import (
	"testing"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestEvictions(t *testing.T) {
	added := metav1.NewTime(time.Unix(1000, 0))
	broken := Taint{DeviceTaint: resourcev1.DeviceTaint{Key: "broken", Value: "yes", Effect: resourcev1.DeviceTaintEffectNoExecute, TimeAdded: &added}}
	exists := resourcev1.DeviceToleration{Key: "broken", Operator: resourcev1.DeviceTolerationOpExists}
	evicting := exists
	evicting.Effect = resourcev1.DeviceTaintEffectNoExecute
	seconds := func(tol resourcev1.DeviceToleration, n int64) resourcev1.DeviceToleration {
		tol.TolerationSeconds = &n
		return tol
	}
	equal := evicting
	equal.Operator, equal.Value = resourcev1.DeviceTolerationOpEqual, "no"
	schedule := exists
	schedule.Effect = resourcev1.DeviceTaintEffectNoSchedule
	for name, tc := range map[string]struct {
		tolerations []resourcev1.DeviceToleration
		stays       bool
		after       time.Duration
	}{
		"not tolerated":                    {},
		"another effect tolerated":         {tolerations: []resourcev1.DeviceToleration{schedule}},
		"another value tolerated":          {tolerations: []resourcev1.DeviceToleration{equal}},
		"tolerated":                        {tolerations: []resourcev1.DeviceToleration{evicting}, stays: true},
		"all effects tolerated":            {tolerations: []resourcev1.DeviceToleration{exists}, stays: true},
		"for a while":                      {tolerations: []resourcev1.DeviceToleration{seconds(evicting, 30)}, after: 30 * time.Second},
		"the shorter of two":               {tolerations: []resourcev1.DeviceToleration{seconds(evicting, 30), seconds(evicting, 20)}, after: 20 * time.Second},
		"one for ever":                     {tolerations: []resourcev1.DeviceToleration{seconds(evicting, 30), evicting}, stays: true},
		"a negative time is none":          {tolerations: []resourcev1.DeviceToleration{seconds(evicting, -1)}},
		"a time counts for NoExecute only": {tolerations: []resourcev1.DeviceToleration{seconds(exists, 5)}, stays: true},
	} {
		t.Run(name, func(t *testing.T) {
			claim := &resourcev1.ResourceClaim{Status: resourcev1.ResourceClaimStatus{Allocation: &resourcev1.AllocationResult{}}}
			claim.Status.Allocation.Devices.Results = []resourcev1.DeviceRequestAllocationResult{
				{Driver: "d", Pool: "p", Device: "fine"}, {Driver: "d", Pool: "p", Device: "broken", Tolerations: tc.tolerations},
			}
			causes := Evictions(claim, func(d Device) []Taint {
				if d.Name == "broken" {
					return []Taint{broken}
				}
				return nil
			})
			if tc.stays != (len(causes) == 0) {
				t.Fatalf("causes: %+v", causes)
			}
			if !tc.stays && !Earliest(causes).Equal(added.Add(tc.after)) {
				t.Errorf("at %v, want after %v", Earliest(causes), tc.after)
			}
		})
	}
}

func TestOnlyTheLastGenerationOfAPoolCounts(t *testing.T) {
	slice := func(name string, generation int64, effect resourcev1.DeviceTaintEffect) *resourcev1.ResourceSlice {
		s := &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: name}}
		s.Spec.Pool.Generation = generation
		s.Spec.Devices = []resourcev1.Device{{Name: "dev"}}
		if effect != "" {
			s.Spec.Devices[0].Taints = []resourcev1.DeviceTaint{{Key: "k", Effect: effect}}
		}
		return s
	}
	old, fine, broken := slice("old", 1, "NoExecute"), slice("fine", 2, "NoSchedule"), slice("broken", 2, "NoExecute")
	for _, tc := range []struct {
		slices []*resourcev1.ResourceSlice
		want   int
	}{
		{nil, 0}, {[]*resourcev1.ResourceSlice{old}, 1}, {[]*resourcev1.ResourceSlice{old, fine}, 0}, {[]*resourcev1.ResourceSlice{fine, old}, 0},
		{[]*resourcev1.ResourceSlice{fine, old, broken}, 1}, {[]*resourcev1.ResourceSlice{slice("none", 3, ""), broken}, 0},
	} {
		if got := ByDriver(tc.slices, "dev"); len(got) != tc.want {
			t.Errorf("%d slices: %d taints, want %d", len(tc.slices), len(got), tc.want)
		}
	}
}
