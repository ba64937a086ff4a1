// Package devices says which devices are tainted, and what that means for claims that have them, to all who have to know:
// the scheduler and the controller that evicts pods.
package devices

import resourcev1 "k8s.io/api/resource/v1"

// Device is the name of a device, which is unique in its pool.
type Device struct{ Driver, Pool, Name string }

// Tainted reports whether the rule taints a device. Without a selector it taints none.
func Tainted(r *resourcev1.DeviceTaintRule, d Device) bool {
	s := r.Spec.DeviceSelector
	return s != nil && fits(s.Driver, d.Driver) && fits(s.Pool, d.Pool) && fits(s.Device, d.Name)
}

func fits(want *string, is string) bool { return want == nil || *want == is }
