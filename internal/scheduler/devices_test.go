package scheduler_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"
	configv1 "k8s.io/kube-scheduler/config/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"wherry.dev/internal/api/report"
	"wherry.dev/internal/controller/resourceclaim"
	"wherry.dev/internal/scheduler"
	"wherry.dev/internal/scheduler/framework"
)

const driver = "driver.example.com"

// deviceClass selects the devices of the driver whose kind is gpu.
func deviceClass(name string) *resourcev1.DeviceClass {
	return &resourcev1.DeviceClass{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: resourcev1.DeviceClassSpec{Selectors: []resourcev1.DeviceSelector{{CEL: &resourcev1.CELDeviceSelector{
			Expression: fmt.Sprintf(`device.driver == %q && device.attributes[%q].kind == "gpu"`, driver, driver),
		}}}},
	}
}

// deviceSlice offers devices of kind gpu on a node.
func deviceSlice(node string, devices ...string) *resourcev1.ResourceSlice {
	s := &resourcev1.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: "slice-" + node},
		Spec: resourcev1.ResourceSliceSpec{
			Driver: driver, NodeName: &node, Pool: resourcev1.ResourcePool{Name: node, Generation: 1, ResourceSliceCount: 1},
		},
	}
	for _, d := range devices {
		s.Spec.Devices = append(s.Spec.Devices, resourcev1.Device{
			Name: d, Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{"kind": {StringValue: new("gpu")}},
		})
	}
	return s
}

// deviceClaim asks for devices of a class.
func deviceClaim(name, class string, count int64) *resourcev1.ResourceClaim {
	return &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID(name), ResourceVersion: "1"},
		Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{{
			Name: "r", Exactly: &resourcev1.ExactDeviceRequest{
				DeviceClassName: class, AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: count,
			},
		}}}},
	}
}

// withTemplate has a claim made for the pod from a template.
func withTemplate(name string) func(*v1.Pod) {
	return func(p *v1.Pod) {
		p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, v1.PodResourceClaim{Name: "dev", ResourceClaimTemplateName: &name})
	}
}

// withDevices has the pod use claims that users make.
func withDevices(claims ...string) func(*v1.Pod) {
	return func(p *v1.Pod) {
		for _, c := range claims {
			p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, v1.PodResourceClaim{Name: c, ResourceClaimName: new(c)})
		}
	}
}

// startDevices starts a scheduler, and the controller of claims, in a cluster that has the class gpu.
func startDevices(t *testing.T, cfg scheduler.Config, objs ...runtime.Object) *cluster {
	t.Helper()
	client := fake.NewClientset(append([]runtime.Object{deviceClass("gpu")}, objs...)...)
	bindPods(client)
	versioned(client, func(ktesting.Action) error { return nil })
	named(client)
	stop := runClaims(t, client)
	c := startClient(t, cfg, client, client)
	scheduler := c.stop
	c.stop = func() {
		scheduler()
		stop()
	}
	return c
}

// runClaims runs the controller of claims until it is stopped.
func runClaims(t *testing.T, client kubernetes.Interface) (stop func()) {
	t.Helper()
	f := informers.NewSharedInformerFactory(client, 0)
	k, err := resourceclaim.New(client, f, true)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	f.Start(ctx.Done())
	ended := make(chan error, 1)
	go func() { ended <- k.Run(ctx) }()
	return func() {
		cancel()
		f.Shutdown()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

func (c *cluster) deviceClaim(name string) *resourcev1.ResourceClaim {
	c.t.Helper()
	got, err := c.client.ResourceV1().ResourceClaims("default").Get(c.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	return got
}

// has returns the devices of a claim, as "pool/device pool/device".
func (c *cluster) has(name string) string {
	c.t.Helper()
	var out []string
	if a := c.deviceClaim(name).Status.Allocation; a != nil {
		for _, r := range a.Devices.Results {
			out = append(out, r.Pool+"/"+r.Device)
		}
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func (c *cluster) wantDevices(claim, devices string) {
	c.t.Helper()
	if got := c.has(claim); got != devices {
		c.t.Errorf("claim %s has %q, want %q", claim, got, devices)
	}
}

func (c *cluster) addClaim(claim *resourcev1.ResourceClaim) {
	c.t.Helper()
	if _, err := c.client.ResourceV1().ResourceClaims("default").Create(c.t.Context(), claim, metav1.CreateOptions{}); err != nil {
		c.t.Fatal(err)
	}
	synctest.Wait()
}

// setClaim changes the status of claim c.
func (c *cluster) setClaim(change func(*resourcev1.ResourceClaimStatus)) {
	c.t.Helper()
	claim := c.deviceClaim("c")
	change(&claim.Status)
	if _, err := c.client.ResourceV1().ResourceClaims("default").UpdateStatus(c.t.Context(), claim, metav1.UpdateOptions{}); err != nil {
		c.t.Fatal(err)
	}
	synctest.Wait()
}

const noDevices = ". preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling."

func TestEveryClaimHasDevicesOfItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startDevices(t, scheduler.DefaultConfig(), node("n1", "4"), deviceSlice("n1", "a", "b", "c"),
			deviceClaim("one", "gpu", 1), deviceClaim("two", "gpu", 2), deviceClaim("more", "gpu", 1))
		defer c.stop()
		c.create(pod("p", "1", withDevices("one", "two")))
		c.wantNode("p", "n1")
		if one, two := c.has("one"), c.has("two"); len(one) != 4 || len(two) != 9 || strings.Contains(two, one) {
			t.Errorf("one has %q, two has %q", one, two)
		}
		c.create(pod("q", "1", withDevices("more")))
		c.wantMessage("q", "0/1 nodes are available: 1 cannot allocate all claims"+noDevices)
		if g := c.reported("q").Nodes; len(g) != 1 || len(g[0].Fixes) != 2 ||
			!strings.HasPrefix(g[0].Fixes[0], "free devices on node n1, as claim more asks for") {
			t.Errorf("report: %+v", g)
		}
		c.delete("p")
		c.settle()
		c.wantNode("q", "n1")
		if got := c.has("one") + c.has("two"); got != "" {
			t.Errorf("claims that nobody uses have %q", got)
		}
	})
}

// TestAClaimIsShared: its second user goes where its devices are, and keeps them when the first one goes.
func TestAClaimIsShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startDevices(t, scheduler.DefaultConfig(), node("n1", "4"), node("n2", "4"),
			deviceSlice("n1", "a"), deviceSlice("n2", "a"), deviceClaim("c", "gpu", 1))
		defer c.stop()
		c.create(pod("p", "3", withDevices("c")))
		first := c.get("p").Spec.NodeName
		c.create(pod("q", "1", withDevices("c")))
		c.wantNode("q", first)
		if n := len(c.deviceClaim("c").Status.ReservedFor); n != 2 {
			t.Errorf("it is reserved for %d pods", n)
		}
		c.delete("p")
		if c.has("c") != first+"/a" {
			t.Error("it has lost its device")
		}
		c.delete("q")
		c.wantDevices("c", "")
	})
}

// TestAPodWaitsForItsClaims, and says for which.
func TestAPodWaitsForItsClaims(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startDevices(t, scheduler.DefaultConfig(), node("n1", "4"), deviceSlice("n1", "a", "b"))
		defer c.stop()
		gated := func(name, why string) {
			t.Helper()
			if q := c.reported(name).Queue; q.Place != "gated" || q.Gate != why {
				t.Errorf("%s is %s: %q", name, q.Place, q.Gate)
			}
		}
		c.create(pod("p", "1", withDevices("c")))
		gated("p", `could not find ResourceClaim "default/c"`)
		c.create(pod("made", "1", withTemplate("t")))
		gated("made", `pod "default/made": ResourceClaim not created yet`)
		c.addClaim(deviceClaim("c", "gpu", 1))
		c.wantNode("p", "n1")
		template := &resourcev1.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Name: "t", Namespace: "default"}}
		template.Spec.Spec = deviceClaim("", "gpu", 1).Spec
		if _, err := c.client.ResourceV1().ResourceClaimTemplates("default").Create(t.Context(), template, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		c.wantNode("made", "n1")
	})
}

// TestWhatIsMissingHelpsWhenItComes: that a class is missing is said, and the class helps when it comes, as devices do.
func TestWhatIsMissingHelpsWhenItComes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startDevices(t, scheduler.DefaultConfig(), node("n1", "4"), deviceClaim("c", "fpga", 1))
		defer c.stop()
		c.create(pod("p", "1", withDevices("c")))
		c.wantMessage("p", "0/1 nodes are available: request r: device class fpga does not exist."+
			" preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling.")
		if _, err := c.client.ResourceV1().DeviceClasses().Create(t.Context(), deviceClass("fpga"), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		c.after(2 * time.Second)
		c.wantMessage("p", "0/1 nodes are available: 1 cannot allocate all claims"+noDevices)
		if _, err := c.client.ResourceV1().ResourceSlices().Create(t.Context(), deviceSlice("n1", "a"), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		c.after(3 * time.Second)
		c.wantNode("p", "n1")
	})
}

// TestAnIdleClaimIsGivenUp if its devices are where the pod cannot run.
func TestAnIdleClaimIsGivenUp(t *testing.T) {
	for name, tc := range map[string]struct {
		users []resourcev1.ResourceClaimConsumerReference
		where string
		msg   string
	}{
		"idle": {nil, "n2", ""},
		"used by another pod": {[]resourcev1.ResourceClaimConsumerReference{{Resource: "pods", Name: "other", UID: "other"}}, "",
			"0/2 nodes are available: 1 node(s) were unschedulable, 1 resourceclaim not available on the node. preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling."},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				claim := deviceClaim("c", "gpu", 1)
				claim.Finalizers = []string{resourcev1.Finalizer}
				claim.Status = resourcev1.ResourceClaimStatus{ReservedFor: tc.users, Allocation: onNode("n1", "a")}
				c := startDevices(t, scheduler.DefaultConfig(),
					node("n1", "4", func(n *v1.Node) { n.Spec.Unschedulable = true }), node("n2", "4"),
					deviceSlice("n1", "a"), deviceSlice("n2", "a"), claim, pod("other", "1", on("n1"), withDevices("c")))
				defer c.stop()
				if tc.users == nil {
					c.delete("other")
					c.setClaim(func(s *resourcev1.ResourceClaimStatus) { s.Allocation, s.ReservedFor = onNode("n1", "a"), nil })
				}
				c.create(pod("p", "1", withDevices("c")))
				if tc.msg != "" {
					c.wantMessage("p", tc.msg)
					i := slices.IndexFunc(c.reported("p").Nodes, func(g report.NodeGroup) bool { return g.Plugin == "DynamicResources" })
					if fix := c.reported("p").Nodes[i].Fixes; len(fix) != 1 || !strings.HasPrefix(fix[0], "room on a node that the devices of claim c can reach") {
						t.Errorf("fixes: %q", fix)
					}
				}
				c.settle()
				c.wantNode("p", tc.where)
			})
		})
	}
}

// TestAnIdleClaimIsGivenUpForANodeWithoutRoom: preemption used to fail there, because of the claim's devices elsewhere.
func TestAnIdleClaimIsGivenUpForANodeWithoutRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		claim := deviceClaim("c", "gpu", 1)
		claim.Finalizers, claim.Status.Allocation = []string{resourcev1.Finalizer}, onNode("n2", "a")
		c := startDevices(t, scheduler.DefaultConfig(), node("n1", "1"), node("n2", "4", func(n *v1.Node) { n.Spec.Unschedulable = true }),
			deviceSlice("n1", "a"), deviceSlice("n2", "a"), claim, pod("low", "1", on("n1")))
		defer c.stop()
		c.create(pod("p", "1", priority(1), withDevices("c")))
		c.settle()
		c.wantNode("p", "n1")
		c.wantDevices("c", "n1/a")
	})
}

// TestAnIdleClaimIsNotGivenUpInVain: the pod's other claim finds nothing on the node, with or without room.
func TestAnIdleClaimIsNotGivenUpInVain(t *testing.T) {
	for _, cpu := range []string{"4", "1"} {
		synctest.Test(t, func(t *testing.T) {
			claim := deviceClaim("c", "gpu", 1)
			claim.Finalizers, claim.Status.Allocation = []string{resourcev1.Finalizer}, onNode("n2", "a")
			c := startDevices(t, scheduler.DefaultConfig(), node("n1", cpu), node("n2", "4", func(n *v1.Node) { n.Spec.Unschedulable = true }),
				deviceSlice("n1", "a"), deviceSlice("n2", "a", "b"), claim, deviceClaim("more", "gpu", 2), pod("low", "1", on("n1")))
			defer c.stop()
			c.create(pod("p", "1", priority(1), withDevices("c", "more")))
			c.settle()
			c.wantNode("p", "")
			c.wantDevices("c", "n2/a")
		})
	}
}

// onNode returns the allocation of a device that can be used on its node.
func onNode(node, device string) *resourcev1.AllocationResult {
	return &resourcev1.AllocationResult{
		Devices: resourcev1.DeviceAllocationResult{Results: []resourcev1.DeviceRequestAllocationResult{
			{Request: "r", Driver: driver, Pool: node, Device: device},
		}},
		NodeSelector: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{MatchFields: []v1.NodeSelectorRequirement{
			{Key: "metadata.name", Operator: v1.NodeSelectorOpIn, Values: []string{node}},
		}}}},
	}
}

// TestDevicesOfAPodThatIsNotBoundAreFree: whoever waits for them hears of it, although no object changes.
func TestDevicesOfAPodThatIsNotBoundAreFree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &gate{wait: time.Hour}
		cfg := scheduler.DefaultConfig()
		cfg.Registry = framework.Registry{"Gate": func(_ context.Context, _ runtime.Object, h fwk.Handle) (fwk.Plugin, error) {
			g.h = h
			return g, nil
		}}
		cfg.Profiles[0].Plugins = &configv1.Plugins{Permit: configv1.PluginSet{Enabled: []configv1.Plugin{{Name: "Gate"}}}}
		c := startDevices(t, cfg, node("n1", "4"), deviceSlice("n1", "a"), deviceClaim("c", "gpu", 1), deviceClaim("d", "gpu", 1))
		defer c.stop()
		c.create(pod("p", "1", withDevices("c")))
		c.create(pod("q", "1", withDevices("d")))
		c.create(pod("also", "1", withDevices("c")))
		c.wantMessage("q", "0/1 nodes are available: 1 cannot allocate all claims"+noDevices)
		c.wantMessage("also", "0/1 nodes are available: resource claim default/c is in the process of being allocated."+
			" preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling.")
		c.delete("also")
		c.after(2 * time.Second)
		c.delete("p")
		c.after(time.Second)
		if g.h.GetWaitingPod("q") == nil {
			t.Fatal("the device stays promised to a claim whose pod is gone")
		}
		g.h.GetWaitingPod("q").Allow("Gate")
		synctest.Wait()
		c.wantNode("q", "n1")
		c.wantDevices("c", "")
		c.wantDevices("d", "n1/a")
	})
}

// TestALostAnswerIsLookedUp: the devices are the claim's, and no other claim's.
func TestALostAnswerIsLookedUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startDevices(t, scheduler.DefaultConfig(), node("n1", "4"), deviceSlice("n1", "a"), deviceClaim("c", "gpu", 1))
		defer c.stop()
		lost := false
		c.client.PrependReactor("update", "resourceclaims", func(a ktesting.Action) (bool, runtime.Object, error) {
			if lost || a.GetSubresource() != "status" {
				return false, nil, nil
			}
			lost = true
			u, _ := a.(ktesting.UpdateAction)
			claim, _ := u.GetObject().(*resourcev1.ResourceClaim)
			claim = claim.DeepCopy()
			claim.ResourceVersion = "100"
			if err := c.client.Tracker().Update(a.GetResource(), claim, "default"); err != nil {
				return true, nil, err
			}
			return true, nil, errors.New("the connection was lost")
		})
		c.create(pod("p", "1", withDevices("c")))
		c.wantNode("p", "n1")
		c.wantDevices("c", "n1/a")
	})
}

// TestNoMoreThan256PodsUseAClaim: the next one waits for one of them to go.
func TestNoMoreThan256PodsUseAClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		claim := deviceClaim("c", "gpu", 1)
		claim.Finalizers, claim.Status.Allocation = []string{resourcev1.Finalizer}, onNode("n1", "a")
		objs := []runtime.Object{node("n1", "4"), deviceSlice("n1", "a"), claim}
		for i := range resourcev1.ResourceClaimReservedForMaxSize {
			user := pod(fmt.Sprintf("u%d", i), "0", on("elsewhere"), withDevices("c"))
			claim.Status.ReservedFor = append(claim.Status.ReservedFor,
				resourcev1.ResourceClaimConsumerReference{Resource: "pods", Name: user.Name, UID: user.UID})
			objs = append(objs, user)
		}
		c := startDevices(t, scheduler.DefaultConfig(), objs...)
		defer c.stop()
		c.create(pod("p", "1", withDevices("c")))
		c.wantMessage("p", "0/1 nodes are available: resourceclaim in use. preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling.")
		c.after(2 * time.Second)
		c.delete("u7")
		c.after(time.Second)
		c.wantNode("p", "n1")
	})
}

// TestAGangSharesAClaim: all its pods are placed before any of them has written the allocation.
func TestAGangSharesAClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := scheduler.DefaultConfig()
		cfg.PodGroups = true
		c := startDevices(t, cfg, node("n1", "4"), node("n2", "4", room(10)), deviceSlice("n2", "a"), deviceClaim("c", "gpu", 1), gang("g", 4))
		defer c.stop()
		for i := range 4 {
			c.create(pod(fmt.Sprintf("m%d", i), "1", member("g"), withDevices("c")))
		}
		c.settle()
		for i := range 4 {
			c.wantNode(fmt.Sprintf("m%d", i), "n2")
		}
		if n := len(c.deviceClaim("c").Status.ReservedFor); n != 4 {
			t.Errorf("it is reserved for %d pods", n)
		}
	})
}

// TestABrokenSelectorIsTold: it is the user's error, and the pod is tried again once in a while, as upstream does.
func TestABrokenSelectorIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		claim := deviceClaim("c", "gpu", 1)
		claim.Spec.Devices.Requests[0].Exactly.Selectors = []resourcev1.DeviceSelector{{CEL: &resourcev1.CELDeviceSelector{
			Expression: fmt.Sprintf(`device.attributes[%q].colour == "red"`, driver),
		}}}
		c := startDevices(t, scheduler.DefaultConfig(), node("n1", "4"), deviceSlice("n1", "a"), claim)
		defer c.stop()
		c.create(pod("p", "1", withDevices("c")))
		c.wantNode("p", "")
		if said := c.said(v1.PodReasonSchedulerError); !strings.Contains(said, "claim default/c: selector #0") || !strings.Contains(said, "no such key: colour") {
			t.Errorf("it is told %q", said)
		}
	})
}

func TestArgumentsOfDynamicResources(t *testing.T) {
	for want, args := range map[string]*configv1.DynamicResourcesArgs{
		"":                              {FilterTimeout: &metav1.Duration{}},
		"filterTimeout: Invalid value":  {FilterTimeout: &metav1.Duration{Duration: -1}},
		"bindingTimeout: Invalid value": {BindingTimeout: &metav1.Duration{Duration: time.Millisecond}},
	} {
		cfg := scheduler.DefaultConfig()
		cfg.Profiles[0].Args = map[string]runtime.Object{"DynamicResources": args}
		_, err := scheduler.New(t.Context(), fake.NewClientset(), cfg)
		if (err != nil) != (want != "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", want, err)
		}
	}
}
