package devices

import (
	"testing"

	resourcev1 "k8s.io/api/resource/v1"
	fwk "k8s.io/kube-scheduler/framework"
)

// TestTheManagerOfDevices is what a plugin of one's own sees, which promises devices as upstream's does.
func TestTheManagerOfDevices(t *testing.T) {
	d := plugin(t, claim("open", "1"), claim("has", "2", "x"))
	var m fwk.SharedDRAManager = d.Manager
	claims := m.ResourceClaims()
	taken := func(want int) {
		t.Helper()
		all, err := claims.ListAllAllocatedDevices()
		if err != nil || all.Len() != want {
			t.Errorf("%d devices are taken, want %d (%v)", all.Len(), want, err)
		}
		state, err := claims.GatherAllocatedState()
		if err != nil || state.AllocatedDevices.Len() != want {
			t.Errorf("the state has %d devices, want %d (%v)", state.AllocatedDevices.Len(), want, err)
		}
	}
	allocated := func(want bool) {
		t.Helper()
		got, err := claims.Get("ns", "open")
		if err != nil || (got.Status.Allocation != nil) != want {
			t.Errorf("the claim is %+v, %v; allocated: want %t", got, err, want)
		}
		if has := claims.GetPendingAllocation("open") != nil; has != want {
			t.Errorf("something is pending: %t, want %t", has, want)
		}
		all, err := claims.List()
		if err != nil || len(all) != 2 {
			t.Errorf("there are %d claims (%v)", len(all), err)
		}
	}
	taken(1)
	allocated(false)
	for range 2 { // two pods share it
		if err := claims.SignalClaimPendingAllocation("open", claim("open", "1", "y")); err != nil {
			t.Fatal(err)
		}
	}
	taken(2)
	allocated(true)
	if claims.MaybeRemoveClaimPendingAllocation("open", false) {
		t.Error("it is gone with the first of two")
	}
	taken(2)
	if !claims.MaybeRemoveClaimPendingAllocation("open", false) || claims.MaybeRemoveClaimPendingAllocation("open", false) {
		t.Error("it is not gone once with the second")
	}
	taken(1)
	allocated(false)
	if err := claims.AssumeClaimAfterAPICall(claim("open", "5", "z")); err != nil {
		t.Fatal(err)
	}
	taken(2)
	claims.AssumedClaimRestore("ns", "open")
	taken(1)
	for what, bad := range map[string]*resourcev1.ResourceClaim{"nothing": nil, "no devices": claim("open", "1"), "another one": claim("has", "2", "x")} {
		if err := claims.SignalClaimPendingAllocation("open", bad); err == nil {
			t.Errorf("%s can be promised", what)
		}
	}
	if _, err := claims.Get("ns", "none"); err == nil {
		t.Error("there is a claim that does not exist")
	}
	if list, err := m.ResourceSlices().ListWithDeviceTaintRules(); err != nil || len(list) != 0 {
		t.Errorf("slices: %v, %v", list, err)
	}
	if list, err := m.DeviceClasses().List(); err != nil || len(list) != 0 || m.DeviceClassResolver().GetDeviceClass("example.com/gpu") != nil {
		t.Errorf("classes: %v, %v", list, err)
	}
}
