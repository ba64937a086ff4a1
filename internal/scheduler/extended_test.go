package scheduler_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	ktesting "k8s.io/client-go/testing"
	configv1 "k8s.io/kube-scheduler/config/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"wherry.dev/internal/scheduler"
	"wherry.dev/internal/scheduler/framework"
)

// extendedGPU is the extended resource that stands for devices of class gpu, if the class says so.
const extendedGPU = "example.com/gpu"

// standsFor has devices of a class stand for a resource.
func standsFor(resource string) *resourcev1.DeviceClass {
	c := deviceClass("gpu")
	c.Spec.ExtendedResourceName = &resource
	return c
}

// asks has the pod's container ask for an amount of an extended resource.
func asks(name v1.ResourceName, amount string) func(*v1.Pod) {
	return func(p *v1.Pod) { ask(&p.Spec.Containers[0], name, amount) }
}

func ask(c *v1.Container, name v1.ResourceName, amount string) {
	if c.Resources.Requests == nil {
		c.Resources.Requests = v1.ResourceList{}
	}
	c.Resources.Requests[name] = resource.MustParse(amount)
	c.Resources.Limits = v1.ResourceList{name: resource.MustParse(amount)}
}

// offers has a device plugin offer a resource on the node.
func offers(amount string) func(*v1.Node) {
	return func(n *v1.Node) { n.Status.Allocatable[extendedGPU] = resource.MustParse(amount) }
}

// setClass replaces a class, or adds it.
func (c *cluster) setClass(class *resourcev1.DeviceClass) {
	c.t.Helper()
	api := c.client.ResourceV1().DeviceClasses()
	_, err := api.Update(c.t.Context(), class, metav1.UpdateOptions{})
	if err != nil {
		_, err = api.Create(c.t.Context(), class, metav1.CreateOptions{})
	}
	if err != nil {
		c.t.Fatal(err)
	}
	synctest.Wait()
}

// special returns the claim that stands for the pod's extended resources, or nil; it complains if there are several, or
// if the pod's status says something else.
func (c *cluster) special(name string) *resourcev1.ResourceClaim {
	c.t.Helper()
	p := c.get(name)
	list, err := c.client.ResourceV1().ResourceClaims("default").List(c.t.Context(), metav1.ListOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	var found *resourcev1.ResourceClaim
	for i := range list.Items {
		its := &list.Items[i]
		if its.Annotations[resourcev1.ExtendedResourceClaimAnnotation] != "true" || !metav1.IsControlledBy(its, p) {
			continue
		}
		if found != nil {
			c.t.Errorf("claims %s and %s are both pod %s's", found.Name, its.Name, name)
		}
		found = its
	}
	told, want := "", ""
	if s := p.Status.ExtendedResourceClaimStatus; s != nil {
		told = s.ResourceClaimName
	}
	if found != nil {
		want = found.Name
	}
	if told != want {
		c.t.Errorf("pod %s has claim %q, its status names %q", name, want, told)
	}
	return found
}

// wantSpecial checks which devices the pod's extended resources are, as "pool/device pool/device".
func (c *cluster) wantSpecial(name, devices string) {
	c.t.Helper()
	its := c.special(name)
	if its == nil {
		if devices != "" {
			c.t.Errorf("pod %s has no devices, want %s", name, devices)
		}
		return
	}
	if got := c.has(its.Name); got != devices {
		c.t.Errorf("pod %s has %q, want %q", name, got, devices)
	}
	if r := its.Status.ReservedFor; len(r) != 1 || r[0].UID != c.get(name).UID {
		c.t.Errorf("the claim of pod %s is reserved for %v", name, r)
	}
}

// TestExtendedResourcesAreDevices: a claim is made for the pod, which has what upstream's has, and lasts as long as the
// pod. Whoever waits for the devices gets them then.
func TestExtendedResourcesAreDevices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startDevices(t, scheduler.DefaultConfig(), node("n1", "4"), node("n2", "4"), deviceSlice("n2", "a", "b"))
		defer c.stop()
		c.setClass(standsFor(extendedGPU))
		c.create(pod("p", "1", asks(extendedGPU, "2")))
		c.wantNode("p", "n2")
		c.wantSpecial("p", "n2/a n2/b")
		p, its := c.get("p"), c.special("p")
		switch requests, mapped := its.Spec.Devices.Requests, p.Status.ExtendedResourceClaimStatus.RequestMappings; {
		case its.GenerateName != "p-extended-resources-", !slices.Contains(its.Finalizers, resourcev1.Finalizer):
			t.Errorf("claim: %+v", its.ObjectMeta)
		case len(its.OwnerReferences) != 1, its.OwnerReferences[0].APIVersion != "v1", its.OwnerReferences[0].Kind != "Pod":
			t.Errorf("owners: %+v", its.OwnerReferences)
		case len(requests) != 1, requests[0].Name != "container-0-request-1", requests[0].Exactly.DeviceClassName != "gpu", requests[0].Exactly.Count != 2:
			t.Errorf("requests: %+v", requests)
		case len(mapped) != 1, mapped[0] != v1.ContainerExtendedResourceRequest{ContainerName: p.Spec.Containers[0].Name, ResourceName: extendedGPU, RequestName: "container-0-request-1"}:
			t.Errorf("mappings: %+v", mapped)
		}
		c.create(pod("q", "1", asks("deviceclass.resource.kubernetes.io/gpu", "1")))
		c.wantMessage("q", "0/2 nodes are available: 2 cannot allocate all claims. preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling.")
		c.after(2 * time.Second)
		c.delete("p")
		c.after(time.Second)
		c.wantNode("q", "n2")
		c.wantSpecial("q", "n2/a")
	})
}

// TestANodeThatHasTheResourceItself uses that, also if it has such devices, too.
func TestANodeThatHasTheResourceItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startDevices(t, scheduler.DefaultConfig(), node("n1", "4", offers("1")), deviceSlice("n1", "a", "b"))
		defer c.stop()
		c.setClass(standsFor(extendedGPU))
		c.create(pod("p", "1", asks(extendedGPU, "1")))
		c.wantNode("p", "n1")
		c.wantSpecial("p", "")
		c.create(pod("q", "1", asks(extendedGPU, "1")))
		c.wantMessage("q", "0/1 nodes are available: 1 Insufficient example.com/gpu. preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod.")
		c.create(pod("mixed", "1", asks(extendedGPU, "1"), asks("deviceclass.resource.kubernetes.io/gpu", "1")))
		c.wantNode("mixed", "")
		c.delete("p")
		c.delete("q")
		c.settle()
		c.wantNode("mixed", "n1")
		c.wantSpecial("mixed", "n1/a")
	})
}

// TestWhatANodeHasItselfIsNotUsedByDevices: a device plugin that comes later finds all that it offers free.
func TestWhatANodeHasItselfIsNotUsedByDevices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startDevices(t, scheduler.DefaultConfig(), node("n1", "4"), deviceSlice("n1", "a"))
		defer c.stop()
		c.setClass(standsFor(extendedGPU))
		c.create(pod("p", "1", asks(extendedGPU, "1")))
		c.wantSpecial("p", "n1/a")
		c.create(pod("q", "1", asks(extendedGPU, "1")))
		c.wantNode("q", "")
		if _, err := c.client.CoreV1().Nodes().Update(t.Context(), node("n1", "4", offers("1")), metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		c.settle()
		c.wantNode("q", "n1")
		c.wantSpecial("q", "")
	})
}

// TestClassesOfExtendedResourcesComeAndGo: a pod hears of each change that may help, and is told what it lacks now.
func TestClassesOfExtendedResourcesComeAndGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startDevices(t, scheduler.DefaultConfig(), node("n1", "4"), deviceSlice("n1", "a"))
		defer c.stop()
		const lacks = "0/1 nodes are available: 1 Insufficient example.com/gpu. preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling."
		c.create(pod("p", "1", asks(extendedGPU, "1")))
		c.wantMessage("p", lacks)
		c.after(2 * time.Second)
		newest := standsFor(extendedGPU)
		newest.Name, newest.Spec.Selectors[0].CEL.Expression = "newest", "false"
		newest.CreationTimestamp = metav1.Now()
		c.setClass(newest)
		c.after(2 * time.Second)
		c.wantMessage("p", "0/1 nodes are available: 1 cannot allocate all claims"+noDevices)
		if err := c.client.ResourceV1().DeviceClasses().Delete(t.Context(), "newest", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		c.after(5 * time.Second)
		c.wantMessage("p", lacks)
		c.setClass(newest)
		c.setClass(standsFor(extendedGPU)) // an older one, for when the newer one steps back
		c.after(5 * time.Second)
		c.wantNode("p", "")
		newest = newest.DeepCopy()
		newest.Spec.ExtendedResourceName = nil
		c.setClass(newest)
		c.after(10 * time.Second)
		c.wantNode("p", "n1")
		c.wantSpecial("p", "n1/a")
	})
}

// heldInPermit starts a scheduler that lets pods wait in Permit until they are allowed to go on.
func heldInPermit(t *testing.T, objs ...runtime.Object) (*cluster, *gate) {
	t.Helper()
	g := &gate{wait: time.Hour}
	cfg := scheduler.DefaultConfig()
	cfg.Registry = framework.Registry{"Gate": func(_ context.Context, _ runtime.Object, h fwk.Handle) (fwk.Plugin, error) {
		g.h = h
		return g, nil
	}}
	cfg.Profiles[0].Plugins = &configv1.Plugins{Permit: configv1.PluginSet{Enabled: []configv1.Plugin{{Name: "Gate"}}}}
	c := startDevices(t, cfg, objs...)
	c.setClass(standsFor(extendedGPU))
	return c, g
}

func (g *gate) allow(uid types.UID) bool {
	wp := g.h.GetWaitingPod(uid)
	if wp != nil {
		wp.Allow("Gate")
		synctest.Wait()
	}
	return wp != nil
}

// TestTheLastDeviceIsPromisedOnce, and free again if the pod goes before it is bound.
func TestTheLastDeviceIsPromisedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, g := heldInPermit(t, node("n1", "4"), deviceSlice("n1", "a"))
		defer c.stop()
		c.create(pod("p", "1", asks(extendedGPU, "1")))
		c.create(pod("q", "1", asks(extendedGPU, "1")))
		c.wantMessage("q", "0/1 nodes are available: 1 cannot allocate all claims"+noDevices)
		c.after(2 * time.Second)
		c.delete("p")
		c.after(time.Second)
		if !g.allow("q") {
			t.Fatal("the device stays promised to a pod that is gone")
		}
		c.wantNode("q", "n1")
		c.wantSpecial("q", "n1/a")
	})
}

// TestClassesChangeBehindAPodInFlight: what was decided holds; the claim names the class as it was.
func TestClassesChangeBehindAPodInFlight(t *testing.T) {
	for name, change := range map[string]func(*cluster){
		"renamed": func(c *cluster) { c.setClass(standsFor("example.com/else")) },
		"deleted": func(c *cluster) {
			if err := c.client.ResourceV1().DeviceClasses().Delete(c.t.Context(), "gpu", metav1.DeleteOptions{}); err != nil {
				c.t.Fatal(err)
			}
		},
		"slice withdrawn": func(c *cluster) {
			if err := c.client.ResourceV1().ResourceSlices().Delete(c.t.Context(), "slice-n1", metav1.DeleteOptions{}); err != nil {
				c.t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, g := heldInPermit(t, node("n1", "4"), deviceSlice("n1", "a"))
				defer c.stop()
				c.create(pod("p", "1", asks(extendedGPU, "1")))
				change(c)
				synctest.Wait()
				if !g.allow("p") {
					t.Fatal("it does not wait")
				}
				c.wantNode("p", "n1")
				c.wantSpecial("p", "n1/a")
			})
		})
	}
}

// TestAPodThatCannotBeBoundGivesItsClaimBack, wherever it fails: the claim is deleted, its status forgets it, and
// somebody else can have the device.
func TestAPodThatCannotBeBoundGivesItsClaimBack(t *testing.T) {
	for name, at := range map[string]struct{ verb, resource, sub string }{
		"make":     {"create", "resourceclaims", ""},
		"allocate": {"update", "resourceclaims", "status"},
		"tell":     {"patch", "pods", "status"},
		"bind":     {"create", "pods", "binding"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := startDevices(t, scheduler.DefaultConfig(), node("n1", "4"), deviceSlice("n1", "a"))
				defer c.stop()
				c.setClass(standsFor(extendedGPU))
				var once sync.Once
				c.client.PrependReactor(at.verb, at.resource, func(a ktesting.Action) (handled bool, _ runtime.Object, err error) {
					if a.GetSubresource() == at.sub {
						once.Do(func() { handled, err = true, errors.New("the API server is busy") })
					}
					return handled, nil, err
				})
				c.create(pod("p", "1", asks(extendedGPU, "1")))
				c.wantNode("p", "")
				if its := c.special("p"); its != nil {
					t.Errorf("claim %s is left", its.Name)
				}
				c.create(pod("q", "1", priority(1), asks(extendedGPU, "1")))
				c.wantNode("q", "n1")
				c.wantSpecial("q", "n1/a")
				c.delete("q")
				c.settle()
				c.wantNode("p", "n1")
				c.wantSpecial("p", "n1/a")
			})
		})
	}
}

// TestASchedulerThatDiedLeavesAClaim: the next one deletes it, whatever it has and wherever, and makes another one.
func TestASchedulerThatDiedLeavesAClaim(t *testing.T) {
	left := func(change ...func(*resourcev1.ResourceClaim)) *resourcev1.ResourceClaim {
		its := deviceClaim("left", "gpu", 1)
		its.Annotations, its.Finalizers = map[string]string{resourcev1.ExtendedResourceClaimAnnotation: "true"}, []string{resourcev1.Finalizer}
		its.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "p", UID: "p", Controller: new(true)}}
		for _, f := range change {
			f(its)
		}
		return its
	}
	allocated := func(c *resourcev1.ResourceClaim) { c.Status.Allocation = onNode("n1", "a") }
	reserved := func(c *resourcev1.ResourceClaim) {
		c.Status.ReservedFor = []resourcev1.ResourceClaimConsumerReference{{Resource: "pods", Name: "p", UID: "p"}}
	}
	told := func(p *v1.Pod) {
		p.Status.ExtendedResourceClaimStatus = &v1.PodExtendedResourceClaimStatus{ResourceClaimName: "left", RequestMappings: []v1.ContainerExtendedResourceRequest{{}}}
	}
	for name, tc := range map[string]struct {
		claim *resourcev1.ResourceClaim
		pod   *v1.Pod
		node  *v1.Node
		where string // the device is then
	}{
		"just made":             {left(), pod("p", "1", asks(extendedGPU, "1")), node("n1", "4"), "n1/a"},
		"with its device":       {left(allocated, reserved), pod("p", "1", asks(extendedGPU, "1")), node("n1", "4"), "n1/a"},
		"and told":              {left(allocated, reserved), pod("p", "1", asks(extendedGPU, "1"), told), node("n1", "4"), "n1/a"},
		"the node has its own":  {left(allocated, reserved), pod("p", "1", asks(extendedGPU, "1"), told), node("n1", "4", offers("1")), ""},
		"gone, but still named": {nil, pod("p", "1", asks(extendedGPU, "1"), told), node("n1", "4", offers("1")), ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				class := standsFor(extendedGPU) // from the start: only the end of the claim wakes the pod
				class.Name = "from-the-start"
				objs := []runtime.Object{class, tc.node, deviceSlice("n1", "a"), tc.pod}
				if tc.claim != nil {
					objs = append(objs, tc.claim)
				}
				c := startDevices(t, scheduler.DefaultConfig(), objs...)
				defer c.stop()
				c.settle()
				c.wantNode("p", "n1")
				c.wantSpecial("p", tc.where)
			})
		})
	}
}

// TestExtendedResourcesBesideClaims: both are found on one node, or it is none.
func TestExtendedResourcesBesideClaims(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startDevices(t, scheduler.DefaultConfig(), node("n1", "4"), node("n2", "4"),
			deviceSlice("n1", "a", "b"), deviceSlice("n2", "a", "b", "c"), deviceClaim("c", "gpu", 1), deviceClaim("d", "gpu", 2))
		defer c.stop()
		c.setClass(standsFor(extendedGPU))
		c.create(pod("p", "1", withDevices("c"), asks(extendedGPU, "2")))
		c.wantNode("p", "n2")
		if one, two := c.has("c"), c.has(c.special("p").Name); len(one) != 4 || len(two) != 9 || strings.Contains(two, one) {
			t.Errorf("the claim has %q, the resource is %q", one, two)
		}
		c.create(pod("q", "1", withDevices("d"), asks(extendedGPU, "1")))
		c.wantNode("q", "")
		c.wantDevices("d", "")
		c.delete("p")
		c.settle()
		c.wantNode("q", "n2")
	})
}

// TestAbsurdAmountsOfExtendedResources: none is none, and more than a claim can have is told.
func TestAbsurdAmountsOfExtendedResources(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startDevices(t, scheduler.DefaultConfig(), node("n1", "4"), deviceSlice("n1", "a"))
		defer c.stop()
		c.setClass(standsFor(extendedGPU))
		c.create(pod("none", "1", asks(extendedGPU, "0")))
		c.wantNode("none", "n1")
		c.wantSpecial("none", "")
		for _, amount := range []string{"33", "9223372036854775807", "1e30"} {
			name := "p" + strings.ToLower(amount)
			c.create(pod(name, "1", asks(extendedGPU, amount)))
			c.wantMessage(name, "0/1 nodes are available: 1 extended resources need more than 32 devices"+noDevices)
		}
	})
}

// TestInitContainersAndSidecarsShareDevices as they share the node's own resources.
func TestInitContainersAndSidecarsShareDevices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startDevices(t, scheduler.DefaultConfig(), node("n1", "4"), deviceSlice("n1", "a", "b", "c"))
		defer c.stop()
		c.setClass(standsFor(extendedGPU))
		c.create(pod("p", "1", asks(extendedGPU, "1"), func(p *v1.Pod) {
			side, first := v1.Container{Name: "side", RestartPolicy: new(v1.ContainerRestartPolicyAlways)}, v1.Container{Name: "first"}
			ask(&side, extendedGPU, "1")
			ask(&first, extendedGPU, "2")
			p.Spec.InitContainers = []v1.Container{side, first}
		}))
		c.wantNode("p", "n1")
		c.wantSpecial("p", "n1/a n1/b n1/c")
	})
}

// TestPodsOfOneShapeDoNotShareDevices: what is remembered of nodes is not what they have of devices.
func TestPodsOfOneShapeDoNotShareDevices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		objs := []runtime.Object{}
		for i := range 40 {
			name := fmt.Sprintf("n%d", i)
			objs = append(objs, node(name, "4"))
			if i%8 == 0 {
				objs = append(objs, deviceSlice(name, "a"))
			}
		}
		c := startDevices(t, scheduler.DefaultConfig(), objs...)
		defer c.stop()
		c.setClass(standsFor(extendedGPU))
		seen := map[string]bool{}
		for i := range 5 {
			name := fmt.Sprintf("p%d", i)
			c.create(pod(name, "1", asks(extendedGPU, "1")))
			its := c.special(name)
			if its == nil || seen[c.has(its.Name)] {
				t.Fatalf("pod %s has %v", name, its)
			}
			seen[c.has(its.Name)] = true
		}
		c.create(pod("more", "1", asks(extendedGPU, "1")))
		c.wantNode("more", "")
		c.delete("p3")
		c.settle()
		c.wantSpecial("more", c.get("more").Spec.NodeName+"/a")
	})
}
