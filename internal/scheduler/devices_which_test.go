package scheduler_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	configv1 "k8s.io/kube-scheduler/config/v1"

	"wherry.dev/internal/scheduler"
)

func TestWhichDevices(t *testing.T) {
	gpu := func(name string, change func(*resourcev1.Device)) resourcev1.Device {
		d := deviceSlice("", name).Spec.Devices[0]
		if change != nil {
			change(&d)
		}
		return d
	}
	size := func(gi int64) func(*resourcev1.Device) {
		return func(d *resourcev1.Device) { d.Attributes["size"] = resourcev1.DeviceAttribute{IntValue: &gi} }
	}
	larger := func(gi int) []resourcev1.DeviceSelector {
		return []resourcev1.DeviceSelector{{CEL: &resourcev1.CELDeviceSelector{
			Expression: fmt.Sprintf(`device.attributes[%q].size >= %d`, driver, gi),
		}}}
	}
	exactly := func(change func(*resourcev1.ExactDeviceRequest)) func(*resourcev1.ResourceClaim) {
		return func(c *resourcev1.ResourceClaim) { change(c.Spec.Devices.Requests[0].Exactly) }
	}
	either := func(subs ...resourcev1.DeviceSubRequest) func(*resourcev1.ResourceClaim) {
		return func(c *resourcev1.ResourceClaim) {
			for i := range subs {
				subs[i].DeviceClassName, subs[i].AllocationMode = "gpu", resourcev1.DeviceAllocationModeExactCount
				subs[i].Count = max(1, subs[i].Count)
			}
			c.Spec.Devices.Requests[0] = resourcev1.DeviceRequest{Name: "r", FirstAvailable: subs}
		}
	}
	tainted := func(d *resourcev1.Device) {
		d.Taints = []resourcev1.DeviceTaint{{Key: "k", Effect: resourcev1.DeviceTaintEffectNoSchedule}}
	}
	shared := func(d *resourcev1.Device) {
		d.AllowMultipleAllocations = new(true)
		d.Capacity = map[resourcev1.QualifiedName]resourcev1.DeviceCapacity{"memory": {Value: resource.MustParse("4Gi")}}
	}
	part := func(gi string) func(*resourcev1.ResourceClaim) {
		return exactly(func(e *resourcev1.ExactDeviceRequest) {
			e.Capacity = &resourcev1.CapacityRequirements{Requests: map[resourcev1.QualifiedName]resource.Quantity{"memory": resource.MustParse(gi)}}
		})
	}
	for name, tc := range map[string]struct {
		devices map[string][]resourcev1.Device // by node
		claims  []func(*resourcev1.ResourceClaim)
		// want has for each claim its devices; "" if its pod waits.
		want []string
	}{
		"that a selector selects": {map[string][]resourcev1.Device{"n1": {gpu("a", size(8)), gpu("b", size(16))}},
			[]func(*resourcev1.ResourceClaim){exactly(func(e *resourcev1.ExactDeviceRequest) { e.Selectors = larger(10) })}, []string{"n1/b"}},
		"all of a node": {map[string][]resourcev1.Device{"n1": {gpu("a", nil), gpu("b", nil)}},
			[]func(*resourcev1.ResourceClaim){exactly(func(e *resourcev1.ExactDeviceRequest) {
				e.AllocationMode, e.Count = resourcev1.DeviceAllocationModeAll, 0
			})}, []string{"n1/a n1/b"}},
		"the best alternative on any node": {map[string][]resourcev1.Device{"n1": {gpu("small", size(8))}, "n2": {gpu("large", size(16))}, "n3": {gpu("small", size(8))}},
			[]func(*resourcev1.ResourceClaim){either(resourcev1.DeviceSubRequest{Name: "large", Selectors: larger(10)}, resourcev1.DeviceSubRequest{Name: "any"})},
			[]string{"n2/large"}},
		"the next alternative": {map[string][]resourcev1.Device{"n1": {gpu("a", size(8)), gpu("b", size(8))}},
			[]func(*resourcev1.ResourceClaim){either(resourcev1.DeviceSubRequest{Name: "large", Selectors: larger(10)}, resourcev1.DeviceSubRequest{Name: "two", Count: 2})},
			[]string{"n1/a n1/b"}},
		"not one with a taint": {map[string][]resourcev1.Device{"n1": {gpu("a", tainted)}}, []func(*resourcev1.ResourceClaim){nil}, []string{""}},
		"one whose taint is tolerated": {map[string][]resourcev1.Device{"n1": {gpu("a", tainted)}},
			[]func(*resourcev1.ResourceClaim){exactly(func(e *resourcev1.ExactDeviceRequest) {
				e.Tolerations = []resourcev1.DeviceToleration{{Operator: resourcev1.DeviceTolerationOpExists}}
			})}, []string{"n1/a"}},
		"shares of one, as far as they go": {map[string][]resourcev1.Device{"n1": {gpu("a", shared)}},
			[]func(*resourcev1.ResourceClaim){part("3Gi"), part("2Gi"), part("1Gi")}, []string{"n1/a", "", "n1/a"}},
		"one that is taken, for an administrator": {map[string][]resourcev1.Device{"n1": {gpu("a", nil)}},
			[]func(*resourcev1.ResourceClaim){nil, exactly(func(e *resourcev1.ExactDeviceRequest) { e.AdminAccess = new(true) })}, []string{"n1/a", "n1/a"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var objs []runtime.Object
				for n, devices := range tc.devices {
					s := deviceSlice(n)
					s.Spec.Devices = devices
					objs = append(objs, node(n, "4"), s)
				}
				c := startDevices(t, scheduler.DefaultConfig(), objs...)
				defer c.stop()
				for i, change := range tc.claims {
					name := fmt.Sprintf("c%d", i)
					claim := deviceClaim(name, "gpu", 1)
					if change != nil {
						change(claim)
					}
					c.addClaim(claim)
					c.create(pod("p"+name, "1", withDevices(name)))
				}
				c.settle()
				for i, want := range tc.want {
					name := fmt.Sprintf("c%d", i)
					c.wantDevices(name, want)
					where, _, _ := strings.Cut(want, "/")
					c.wantNode("p"+name, where)
				}
			})
		})
	}
}

// TestPartsOfADevice: what one of them uses of the whole, others do not get.
func TestPartsOfADevice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		whole := deviceSlice("n1", "half-1", "half-2", "half-3")
		whole.Spec.Pool.ResourceSliceCount = 2
		counters := whole.DeepCopy()
		counters.Name, counters.Spec.Devices = "counters", nil
		counters.Spec.SharedCounters = []resourcev1.CounterSet{{Name: "card", Counters: map[string]resourcev1.Counter{"units": {Value: resource.MustParse("2")}}}}
		for i := range whole.Spec.Devices {
			whole.Spec.Devices[i].ConsumesCounters = []resourcev1.DeviceCounterConsumption{{
				CounterSet: "card", Counters: map[string]resourcev1.Counter{"units": {Value: resource.MustParse("1")}},
			}}
		}
		c := startDevices(t, scheduler.DefaultConfig(), node("n1", "4"), whole, counters,
			deviceClaim("a", "gpu", 1), deviceClaim("b", "gpu", 1), deviceClaim("c", "gpu", 1))
		defer c.stop()
		for _, name := range []string{"a", "b", "c"} {
			c.create(pod("p"+name, "1", withDevices(name)))
		}
		c.settle()
		c.wantNode("pa", "n1")
		c.wantNode("pb", "n1")
		c.wantNode("pc", "")
	})
}

// TestDevicesThatMustGetReady: a pod is bound when they are; if they do not get ready, others are tried.
func TestDevicesThatMustGetReady(t *testing.T) {
	is := func(name string, status metav1.ConditionStatus) func(*resourcev1.ResourceClaimStatus) {
		return func(s *resourcev1.ResourceClaimStatus) {
			r := s.Allocation.Devices.Results[0]
			s.Devices = []resourcev1.AllocatedDeviceStatus{{Driver: r.Driver, Pool: r.Pool, Device: r.Device, Conditions: []metav1.Condition{
				{Type: name, Status: status, Reason: "Told", Message: "so"},
			}}}
		}
	}
	for name, tc := range map[string]struct {
		happens func(c *cluster)
		where   string
	}{
		"nothing happens yet": {func(*cluster) {}, ""},
		"something else":      {func(c *cluster) { c.setClaim(is("warm", metav1.ConditionTrue)) }, ""},
		"not ready":           {func(c *cluster) { c.setClaim(is("ready", metav1.ConditionFalse)) }, ""},
		"ready":               {func(c *cluster) { c.setClaim(is("ready", metav1.ConditionTrue)) }, "n1"},
		"broken, the other is tried": {func(c *cluster) {
			first := c.has("c")
			c.setClaim(is("broken", metav1.ConditionTrue))
			s := deviceSlice("n1", "b") // the driver takes it out of service
			s.Spec.Pool.Generation = 2
			if _, err := c.client.ResourceV1().ResourceSlices().Update(c.t.Context(), s, metav1.UpdateOptions{}); err != nil {
				c.t.Fatal(err)
			}
			c.settle()
			if got := c.has("c"); got == first || got == "" {
				c.t.Errorf("it has %q after %q", got, first)
			}
		}, "n1"},
		"too late, it is tried anew": {func(c *cluster) {
			before := c.deviceClaim("c").Status.Allocation.AllocationTimestamp
			c.after(61 * time.Second)
			c.settle()
			if a := c.deviceClaim("c").Status.Allocation; a == nil || !before.Before(a.AllocationTimestamp) {
				c.t.Errorf("allocated at %v, then %+v", before, a)
			}
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := deviceSlice("n1", "a")
				s.Spec.Devices[0].BindingConditions, s.Spec.Devices[0].BindingFailureConditions = []string{"ready"}, []string{"broken"}
				cfg := scheduler.DefaultConfig()
				cfg.Profiles[0].Args = map[string]runtime.Object{"DynamicResources": &configv1.DynamicResourcesArgs{BindingTimeout: &metav1.Duration{Duration: time.Minute}}}
				c := startDevices(t, cfg, node("n1", "4"), s, deviceClaim("c", "gpu", 1))
				defer c.stop()
				c.create(pod("p", "1", withDevices("c")))
				c.wantNode("p", "")
				c.wantDevices("c", "n1/a")
				c.wantEvent("p", "BindingConditionsPending", "waiting for binding conditions for device on node n1")
				tc.happens(c)
				c.wantNode("p", tc.where)
			})
		})
	}
}
