package defaults

import (
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ResourceClaim asks for one device where the claim does not say how many, and compares taints by their value.
func ResourceClaim(c *resourcev1.ResourceClaim) {
	deviceRequests(c.Spec.Devices.Requests)
	if a := c.Status.Allocation; a != nil {
		for i := range a.Devices.Results {
			deviceTolerations(a.Devices.Results[i].Tolerations)
		}
	}
}

// ResourceClaimTemplate does the same for the claims that are made from it.
func ResourceClaimTemplate(t *resourcev1.ResourceClaimTemplate) {
	deviceRequests(t.Spec.Spec.Devices.Requests)
}

func deviceRequests(requests []resourcev1.DeviceRequest) {
	for i := range requests {
		r := &requests[i]
		if r.Exactly != nil {
			deviceCount(&r.Exactly.AllocationMode, &r.Exactly.Count)
			deviceTolerations(r.Exactly.Tolerations)
		}
		for j := range r.FirstAvailable {
			deviceCount(&r.FirstAvailable[j].AllocationMode, &r.FirstAvailable[j].Count)
			deviceTolerations(r.FirstAvailable[j].Tolerations)
		}
	}
}

func deviceTolerations(list []resourcev1.DeviceToleration) {
	for i := range list {
		set(&list[i].Operator, resourcev1.DeviceTolerationOpEqual)
	}
}

func deviceCount(mode *resourcev1.DeviceAllocationMode, count *int64) {
	set(mode, resourcev1.DeviceAllocationModeExactCount)
	if *mode == resourcev1.DeviceAllocationModeExactCount {
		set(count, 1)
	}
}

// ResourceSlice says since when devices have their taints. A stored slice has the times.
func ResourceSlice(s *resourcev1.ResourceSlice) {
	for i := range s.Spec.Devices {
		d := &s.Spec.Devices[i]
		for j := range d.Taints {
			deviceTaint(&d.Taints[j])
		}
	}
}

// DeviceTaintRule says since when devices have its taint. A stored rule has the time.
func DeviceTaintRule(r *resourcev1.DeviceTaintRule) { deviceTaint(&r.Spec.Taint) }

// deviceTaint says since when there is a taint: since now, unless it is known. This is the only default that looks at
// the clock.
func deviceTaint(t *resourcev1.DeviceTaint) {
	setPtr(&t.TimeAdded, metav1.Time{Time: time.Now().Truncate(time.Second)})
}
