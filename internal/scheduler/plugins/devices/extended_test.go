package devices

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	gpu      = "example.com/gpu"
	implicit = "deviceclass.resource.kubernetes.io/nic"
)

// asks returns a container that asks for resources, given as NAME=AMOUNT.
func asks(name string, amounts ...string) v1.Container {
	c := v1.Container{Name: name, Resources: v1.ResourceRequirements{Requests: v1.ResourceList{}}}
	for _, a := range amounts {
		resourceName, amount, _ := strings.Cut(a, "=")
		c.Resources.Requests[v1.ResourceName(resourceName)] = resource.MustParse(amount)
	}
	return c
}

func sidecar(c v1.Container) v1.Container {
	c.RestartPolicy = new(v1.ContainerRestartPolicyAlways)
	return c
}

// TestWhatExtendedResourcesNeed has upstream's rules: containers side by side add up, init containers use what those
// after them have.
func TestWhatExtendedResourcesNeed(t *testing.T) {
	for name, tc := range map[string]struct {
		init, containers []v1.Container
		overhead         v1.ResourceList
		requests, uses   string // as NAME=CLASS*COUNT, and CONTAINER:RESOURCE=REQUEST
	}{
		"one":              {nil, []v1.Container{asks("a", gpu+"=2")}, nil, "container-0-request-0=gpus*2", "a:gpu=container-0-request-0"},
		"beside others":    {nil, []v1.Container{asks("a", "cpu=1", gpu+"=2", "memory=1Gi")}, nil, "container-0-request-1=gpus*2", "a:gpu=container-0-request-1"},
		"nothing":          {nil, []v1.Container{asks("a", "cpu=1", gpu+"=0", "hugepages-2Mi=2Mi")}, nil, "", ""},
		"not of a class":   {nil, []v1.Container{asks("a", "example.com/other=1", "example.com/gpu-2=1")}, nil, "", ""},
		"by a class' name": {nil, []v1.Container{asks("a", implicit+"=1")}, nil, "container-0-request-0=nic*1", "a:nic=container-0-request-0"},
		"half a device":    {nil, []v1.Container{asks("a", implicit+"=500m")}, nil, "container-0-request-0=nic*1", "a:nic=container-0-request-0"},
		"two of one":       {nil, []v1.Container{asks("a", gpu+"=1"), asks("b", gpu+"=2")}, nil, "container-0-request-0=gpus*1 container-1-request-0=gpus*2", "a:gpu=container-0-request-0 b:gpu=container-1-request-0"},
		"two resources":    {nil, []v1.Container{asks("a", gpu+"=1", implicit+"=3")}, nil, "container-0-request-0=nic*3 container-0-request-1=gpus*1", "a:nic=container-0-request-0 a:gpu=container-0-request-1"},
		"init uses what comes later": {[]v1.Container{asks("i", gpu+"=2")}, []v1.Container{asks("a", gpu+"=3")}, nil,
			"container-1-request-0=gpus*3", "a:gpu=container-1-request-0 i:gpu=container-1-request-0"},
		"and no more than it needs": {[]v1.Container{asks("i", gpu+"=2")}, []v1.Container{asks("a", gpu+"=2"), asks("b", gpu+"=1")}, nil,
			"container-1-request-0=gpus*2 container-2-request-0=gpus*1", "a:gpu=container-1-request-0 b:gpu=container-2-request-0 i:gpu=container-1-request-0"},
		"init needs more": {[]v1.Container{asks("i", gpu+"=5")}, []v1.Container{asks("a", gpu+"=2"), asks("b", gpu+"=1")}, nil,
			"container-0-request-0=gpus*2 container-1-request-0=gpus*2 container-2-request-0=gpus*1",
			"a:gpu=container-1-request-0 b:gpu=container-2-request-0 i:gpu=container-1-request-0 i:gpu=container-2-request-0 i:gpu=container-0-request-0"},
		"the neediest one": {[]v1.Container{asks("i", gpu+"=2"), asks("j", gpu+"=4"), asks("k", gpu+"=3")}, []v1.Container{asks("a", gpu+"=1")}, nil,
			"container-1-request-0=gpus*3 container-3-request-0=gpus*1",
			"a:gpu=container-3-request-0 i:gpu=container-3-request-0 i:gpu=container-1-request-0 j:gpu=container-3-request-0 j:gpu=container-1-request-0 k:gpu=container-3-request-0 k:gpu=container-1-request-0"},
		"only init":            {[]v1.Container{asks("i", gpu+"=1")}, []v1.Container{asks("a")}, nil, "container-0-request-0=gpus*1", "i:gpu=container-0-request-0"},
		"a sidecar stays":      {[]v1.Container{sidecar(asks("s", gpu+"=1")), asks("i", gpu+"=1")}, []v1.Container{asks("a")}, nil, "container-0-request-0=gpus*1 container-1-request-0=gpus*1", "s:gpu=container-0-request-0 i:gpu=container-1-request-0"},
		"one that comes then":  {[]v1.Container{asks("i", gpu+"=1"), sidecar(asks("s", gpu+"=1"))}, []v1.Container{asks("a")}, nil, "container-1-request-0=gpus*1", "s:gpu=container-1-request-0 i:gpu=container-1-request-0"},
		"overhead is nobody's": {nil, []v1.Container{asks("a", gpu+"=1")}, v1.ResourceList{gpu: resource.MustParse("1")}, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			p := &v1.Pod{Spec: v1.PodSpec{InitContainers: tc.init, Containers: tc.containers, Overhead: tc.overhead}}
			var requests, uses []string
			if e := backed(p, fixed{gpu: "gpus", implicit: "nic"}); e != nil {
				n, err := e.needs(ExtendedResources(p)[:len(e.classes)])
				if err != nil {
					t.Fatal(err)
				}
				for _, r := range n.requests {
					requests = append(requests, fmt.Sprintf("%s=%s*%d", r.Name, r.Exactly.DeviceClassName, r.Exactly.Count))
				}
				for _, m := range n.mappings {
					uses = append(uses, fmt.Sprintf("%s:%s=%s", m.ContainerName, m.ResourceName[strings.LastIndex(m.ResourceName, "/")+1:], m.RequestName))
				}
			}
			if got := strings.Join(requests, " "); got != tc.requests {
				t.Errorf("requests %s\nwant     %s", got, tc.requests)
			}
			if got := strings.Join(uses, " "); got != tc.uses {
				t.Errorf("uses %s\nwant %s", got, tc.uses)
			}
		})
	}
}

// fixed are classes by the resources that mean them.
type fixed map[v1.ResourceName]string

func (f fixed) GetDeviceClass(name v1.ResourceName) *resourcev1.DeviceClass {
	if f[name] == "" {
		return nil
	}
	return &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: f[name]}}
}

// TestMoreDevicesThanAClaimCanHave: the library would fail, or overflow.
func TestMoreDevicesThanAClaimCanHave(t *testing.T) {
	for _, amounts := range [][]string{
		{"33"}, {"16", "17"}, {"9223372036854775807"}, {"9223372036854775807", "9223372036854775807"}, {"1", "1e30"},
	} {
		p := &v1.Pod{}
		for i, a := range amounts {
			p.Spec.Containers = append(p.Spec.Containers, asks(fmt.Sprint(i), gpu+"="+a))
		}
		if n, err := backed(p, fixed{gpu: "gpus"}).needs([]v1.ResourceName{gpu}); err == nil || n != nil {
			t.Errorf("%q: %v, %v", amounts, n, err)
		}
	}
	p := &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{asks("a", gpu+"=16"), asks("b", gpu+"=16")}}}
	if _, err := backed(p, fixed{gpu: "gpus"}).needs([]v1.ResourceName{gpu}); err != nil {
		t.Errorf("32: %v", err)
	}
}

// TestWhichClassAResourceMeans: the newest one, and whoever was before when that goes.
func TestWhichClassAResourceMeans(t *testing.T) {
	d := plugin(t)
	store := d.handle.SharedInformerFactory().Resource().V1().DeviceClasses().Informer().GetStore()
	class := func(name, resource string, born int) *resourcev1.DeviceClass {
		c := &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.Unix(int64(born), 0)}}
		if resource != "" {
			c.Spec.ExtendedResourceName = &resource
		}
		return c
	}
	put := func(c *resourcev1.DeviceClass) func() error { return func() error { return store.Update(c) } }
	drop := func(c *resourcev1.DeviceClass) func() error { return func() error { return store.Delete(c) } }
	own := func(name string) v1.ResourceName { return v1.ResourceName(resourcev1.ResourceDeviceClassPrefix + name) }
	for i, step := range []struct {
		do   func() error
		want map[v1.ResourceName]string
	}{
		{put(class("nic", "", 1)), map[v1.ResourceName]string{gpu: "", own("nic"): "nic"}},
		{put(class("b", gpu, 2)), map[v1.ResourceName]string{gpu: "b", own("b"): "b"}},
		{put(class("older", gpu, 1)), map[v1.ResourceName]string{gpu: "b", own("older"): "older"}},
		{put(class("a", gpu, 2)), map[v1.ResourceName]string{gpu: "a"}},
		{put(class("c", gpu, 2)), map[v1.ResourceName]string{gpu: "a"}},
		{put(class("z", gpu, 3)), map[v1.ResourceName]string{gpu: "z"}},
		{put(class("z", "example.com/else", 3)), map[v1.ResourceName]string{gpu: "a", "example.com/else": "z", own("z"): "z"}},
		{drop(class("a", gpu, 2)), map[v1.ResourceName]string{gpu: "b", own("a"): ""}},
		{drop(class("b", gpu, 2)), map[v1.ResourceName]string{gpu: "c"}},
		{put(class("c", "", 2)), map[v1.ResourceName]string{gpu: "older", own("c"): "c"}},
		{drop(class("older", gpu, 1)), map[v1.ResourceName]string{gpu: ""}},
	} {
		if err := step.do(); err != nil {
			t.Fatal(err)
		}
		for name, want := range step.want {
			got := ""
			if c := d.classes.GetDeviceClass(name); c != nil {
				got = c.Name
			}
			if got != want {
				t.Errorf("step %d: %s means %q, want %q", i, name, got, want)
			}
		}
	}
}

// TestWhatLooksLikeAClaimThatWasLeftBehind: what others use, and what the pod names itself, is not deleted.
func TestWhatLooksLikeAClaimThatWasLeftBehind(t *testing.T) {
	p := pod("p", "named")
	p.UID = "p"
	left := func(name string, change ...func(*resourcev1.ResourceClaim)) *resourcev1.ResourceClaim {
		c := ownedBy(claim(name, "1", "x"), p)
		c.Annotations = map[string]string{resourcev1.ExtendedResourceClaimAnnotation: "true"}
		for _, f := range change {
			f(c)
		}
		return c
	}
	usedBy := func(pods ...string) func(*resourcev1.ResourceClaim) {
		return func(c *resourcev1.ResourceClaim) {
			for _, user := range pods {
				c.Status.ReservedFor = append(c.Status.ReservedFor, resourcev1.ResourceClaimConsumerReference{Resource: "pods", Name: user, UID: pod(user).UID})
			}
		}
	}
	ending := func(c *resourcev1.ResourceClaim) { c.DeletionTimestamp = new(metav1.NewTime(time.Unix(1, 0))) }
	d := plugin(t, left("named"), left("left"), left("used", usedBy("p")), left("of-another", usedBy("q")), left("shared", usedBy("p", "q")),
		left("ending", ending, func(c *resourcev1.ResourceClaim) { c.Finalizers = []string{resourcev1.Finalizer} }),
		left("held", ending, func(c *resourcev1.ResourceClaim) { c.Finalizers = []string{"example.com/else"} }),
		left("no-mark", func(c *resourcev1.ResourceClaim) { c.Annotations = nil }),
		left("not-true", func(c *resourcev1.ResourceClaim) { c.Annotations[resourcev1.ExtendedResourceClaimAnnotation] = "yes" }),
		left("elsewhere", func(c *resourcev1.ResourceClaim) { c.Namespace = "other" }),
		left("no-controller", func(c *resourcev1.ResourceClaim) { c.OwnerReferences[0].Controller = nil }),
		left("not-a-pod", func(c *resourcev1.ResourceClaim) { c.OwnerReferences[0].Kind = "Job" }),
		left("of-its-predecessor", func(c *resourcev1.ResourceClaim) { c.OwnerReferences[0].UID = "old" }))
	own, err := d.claimsOf(p)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range d.staleOf(p, own) {
		got = append(got, c.Name)
	}
	slices.Sort(got)
	if want := []string{"ending", "left", "used"}; !slices.Equal(got, want) {
		t.Errorf("in the way are %q, want %q", got, want)
	}
}
