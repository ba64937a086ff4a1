package scheduler_test

import (
	"testing"
	"testing/synctest"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	fakediscovery "k8s.io/client-go/discovery/fake"

	"wherry.dev/internal/scheduler"
)

// tainting returns a configuration for an API server that has DeviceTaintRules.
func tainting() scheduler.Config {
	cfg := scheduler.DefaultConfig()
	cfg.Serves = func(schema.GroupVersionResource) bool { return true }
	return cfg
}

// taintRule taints the devices that are called a.
func taintRule(name string, effect resourcev1.DeviceTaintEffect) *resourcev1.DeviceTaintRule {
	now := metav1.Now()
	return &resourcev1.DeviceTaintRule{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: resourcev1.DeviceTaintRuleSpec{
			DeviceSelector: &resourcev1.DeviceTaintSelector{Device: new("a")},
			Taint:          resourcev1.DeviceTaint{Key: "broken", Effect: effect, TimeAdded: &now},
		},
	}
}

func (c *cluster) addTaintRule(r *resourcev1.DeviceTaintRule) {
	c.t.Helper()
	if _, err := c.client.ResourceV1().DeviceTaintRules().Create(c.t.Context(), r, metav1.CreateOptions{}); err != nil {
		c.t.Fatal(err)
	}
	c.settle()
}

// TestDevicesThatARuleTaintsAreNotGiven until the rule goes, but to claims that tolerate it.
func TestDevicesThatARuleTaintsAreNotGiven(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tolerant := deviceClaim("tolerant", "gpu", 1)
		tolerant.Spec.Devices.Requests[0].Exactly.Tolerations = []resourcev1.DeviceToleration{{Operator: resourcev1.DeviceTolerationOpExists}}
		c := startDevices(t, tainting(), node("n1", "1"), deviceSlice("n1", "a"), deviceClaim("fits", "gpu", 1), tolerant,
			taintRule("r", resourcev1.DeviceTaintEffectNoSchedule), taintRule("told", resourcev1.DeviceTaintEffectNone))
		defer c.stop()
		c.create(pod("p", "100m", withDevices("fits")))
		c.wantNode("p", "")
		c.create(pod("q", "100m", withDevices("tolerant")))
		c.wantNode("q", "n1")
		c.delete("q")
		c.after(2 * time.Second)
		c.wantNode("p", "")
		if err := c.client.ResourceV1().DeviceTaintRules().Delete(t.Context(), "r", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		c.after(11 * time.Second) // its back-off at most, and far less than the five minutes after which all are tried again
		c.wantNode("p", "n1")
	})
}

// TestAClaimWhoseDeviceEvictsGetsNoNewPod: the next one would have to go at once. When nobody uses it, it gets another device.
func TestAClaimWhoseDeviceEvictsGetsNoNewPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startDevices(t, tainting(), node("n1", "1"), deviceSlice("n1", "a"), deviceClaim("shared", "gpu", 1))
		defer c.stop()
		c.create(pod("first", "100m", withDevices("shared")))
		c.wantNode("first", "n1")
		c.addTaintRule(taintRule("r", resourcev1.DeviceTaintEffectNoExecute))
		s := deviceSlice("n1", "a", "b")
		if _, err := c.client.ResourceV1().ResourceSlices().Update(t.Context(), s, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		c.create(pod("second", "100m", withDevices("shared")))
		c.after(30 * time.Second)
		c.wantNode("second", "")
		c.wantDevices("shared", "n1/a")
		c.delete("first") // as the controller does that evicts
		c.after(30 * time.Second)
		c.wantNode("second", "n1")
		c.wantDevices("shared", "n1/b")
	})
}

// TestAnOlderServerHasNoTaintRules: it is asked, and devices are given all the same.
func TestAnOlderServerHasNoTaintRules(t *testing.T) {
	for name, has := range map[string]bool{"older": false, "current": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := startDevices(t, scheduler.DefaultConfig(), node("n1", "1"), deviceSlice("n1", "a"), deviceClaim("fits", "gpu", 1),
					taintRule("r", resourcev1.DeviceTaintEffectNoSchedule))
				c.stop()
				if d, ok := c.client.Discovery().(*fakediscovery.FakeDiscovery); ok && has {
					d.Resources = []*metav1.APIResourceList{{GroupVersion: "resource.k8s.io/v1", APIResources: []metav1.APIResource{{Name: "devicetaintrules"}}}}
				}
				c = startClient(t, scheduler.DefaultConfig(), c.client, c.client)
				defer c.stop()
				c.create(pod("p", "100m", withDevices("fits")))
				on := "n1"
				if has {
					on = ""
				}
				c.wantNode("p", on)
			})
		})
	}
}
