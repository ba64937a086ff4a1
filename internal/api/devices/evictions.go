package devices

import (
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
)

// Taint is one with the effect NoExecute, which a device has by a rule, or by what its driver says in a slice.
type Taint struct {
	resourcev1.DeviceTaint
	Rule  *resourcev1.DeviceTaintRule // nil for a taint by the driver
	Slice *resourcev1.ResourceSlice   // nil for a taint by a rule
	Name  string                      // of the device
}

// Eviction is what a taint does that a claim does not tolerate, or not for ever.
type Eviction struct {
	Taint
	At time.Time // when the claim's pods have to go
}

// Evictions returns why the pods that use a claim have to go. taints returns the taints of a device that evict.
func Evictions(claim *resourcev1.ResourceClaim, taints func(Device) []Taint) []Eviction {
	var out []Eviction
	if claim.Status.Allocation == nil {
		return nil
	}
	results := claim.Status.Allocation.Devices.Results
	for i := range results {
		r := &results[i]
		for _, t := range taints(Device{Driver: r.Driver, Pool: r.Pool, Name: r.Device}) {
			after, forever := tolerated(r.Tolerations, &t.DeviceTaint)
			if forever {
				continue
			}
			c := Eviction{Taint: t}
			if t.TimeAdded != nil { // one without a time has always been there
				c.At = t.TimeAdded.Add(after)
			}
			out = append(out, c)
		}
	}
	return out
}

// tolerated returns for how long a taint is tolerated: for the shortest time of all tolerations that limit it. One
// without an effect is for all effects, and has no limit.
func tolerated(tolerations []resourcev1.DeviceToleration, t *resourcev1.DeviceTaint) (after time.Duration, forever bool) {
	limited := false
	for i := range tolerations {
		tol := &tolerations[i]
		if !resourceclaim.ToleratesTaint(*tol, *t) {
			continue
		}
		if tol.TolerationSeconds == nil || tol.Effect != resourcev1.DeviceTaintEffectNoExecute {
			return 0, true
		}
		d := time.Duration(max(0, *tol.TolerationSeconds)) * time.Second
		if !limited || d < after {
			after, limited = d, true
		}
	}
	return after, false
}

// Earliest returns when the first of the evictions is due. There is at least one.
func Earliest(evictions []Eviction) time.Time {
	at := evictions[0].At
	for _, e := range evictions[1:] {
		if e.At.Before(at) {
			at = e.At
		}
	}
	return at
}

// Current returns the slices of a pool that count: those of its last generation.
func Current(slices []*resourcev1.ResourceSlice) []*resourcev1.ResourceSlice {
	var out []*resourcev1.ResourceSlice
	for _, s := range slices {
		switch g := s.Spec.Pool.Generation; {
		case len(out) == 0 || g > out[0].Spec.Pool.Generation:
			out = append(out[:0], s)
		case g == out[0].Spec.Pool.Generation:
			out = append(out, s)
		}
	}
	return out
}

// ByDriver returns the taints that evict which a driver has given its device. slices are those of the device's pool.
func ByDriver(slices []*resourcev1.ResourceSlice, name string) []Taint {
	var out []Taint
	for _, s := range Current(slices) {
		for i := range s.Spec.Devices {
			d := &s.Spec.Devices[i]
			if d.Name != name {
				continue
			}
			for _, t := range d.Taints {
				if t.Effect == resourcev1.DeviceTaintEffectNoExecute {
					out = append(out, Taint{DeviceTaint: t, Slice: s, Name: name})
				}
			}
		}
	}
	return out
}

// ByRules returns the taints that a device has by rules that evict.
func ByRules(rules []*resourcev1.DeviceTaintRule, d Device) []Taint {
	var out []Taint
	for _, r := range rules {
		if r.Spec.Taint.Effect == resourcev1.DeviceTaintEffectNoExecute && Tainted(r, d) {
			out = append(out, Taint{DeviceTaint: r.Spec.Taint, Rule: r, Name: d.Name})
		}
	}
	return out
}

// Evicts reports whether a slice has a taint that evicts.
func Evicts(s *resourcev1.ResourceSlice) bool {
	for i := range s.Spec.Devices {
		for _, t := range s.Spec.Devices[i].Taints {
			if t.Effect == resourcev1.DeviceTaintEffectNoExecute {
				return true
			}
		}
	}
	return false
}
