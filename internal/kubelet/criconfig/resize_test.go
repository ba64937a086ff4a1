package criconfig

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// limits of CPU and memory, which are requests, too.
func limits(cpu, memory string) v1.ResourceRequirements {
	l := v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpu), v1.ResourceMemory: resource.MustParse(memory)}
	return v1.ResourceRequirements{Requests: l, Limits: l}
}

func sized(a, b v1.ResourceRequirements) *v1.Pod {
	return &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{{Name: "a", Resources: a}, {Name: "b", Resources: b}}}}
}

// TestResizeStepsKeepContainersBelowTheirPod: each step is written as the change it makes.
func TestResizeStepsKeepContainersBelowTheirPod(t *testing.T) {
	small, big := limits("100m", "100Mi"), limits("200m", "200Mi")
	for name, tc := range map[string]struct {
		old, next *v1.Pod
		want      []string
	}{
		"nothing":       {sized(small, small), sized(small, small), nil},
		"one grows":     {sized(small, small), sized(big, small), []string{"pod memory 300", "a memory 200", "pod quota 30000", "pod shares 307", "a cpu 20000"}},
		"one shrinks":   {sized(big, small), sized(small, small), []string{"a memory 100!", "pod memory 200!", "a cpu 10000", "pod shares 204", "pod quota 20000"}},
		"they exchange": {sized(small, big), sized(big, small), []string{"b memory 100!", "a memory 200", "b cpu 10000", "a cpu 20000"}},
	} {
		var got []string
		for _, s := range ResizeSteps(tc.old, tc.next, []string{"a", "b"}, CFS{}, nil, 0) {
			got = append(got, describe(s))
		}
		if !slices.Equal(got, tc.want) {
			t.Errorf("%s: got\n%s\nwant\n%s", name, strings.Join(got, "\n"), strings.Join(tc.want, "\n"))
		}
	}
	if steps := ResizeSteps(sized(small, small), sized(big, small), nil, CFS{}, nil, 0); len(steps) != 3 {
		t.Errorf("containers that are not to be changed are: %+v", steps)
	}
}

func describe(s ResizeStep) string {
	mark := ""
	if s.Memory > 0 {
		mark = "!"
	}
	switch {
	case s.Container != "" && s.Limits.MemoryLimitInBytes > 0:
		return fmt.Sprintf("%s memory %d%s", s.Container, s.Limits.MemoryLimitInBytes>>20, mark)
	case s.Container != "":
		return fmt.Sprintf("%s cpu %d%s", s.Container, s.Limits.CpuQuota, mark)
	case s.Pod.Memory != nil:
		return fmt.Sprintf("pod memory %d%s", *s.Pod.Memory.Limit>>20, mark)
	case s.Pod.CPU.Quota != nil:
		return fmt.Sprintf("pod quota %d", *s.Pod.CPU.Quota)
	default:
		return fmt.Sprintf("pod shares %d", *s.Pod.CPU.Shares)
	}
}

// TestPodLevelResources apply to containers that have no limits of their own.
func TestPodLevelResources(t *testing.T) {
	pod := sized(v1.ResourceRequirements{}, limits("100m", "100Mi"))
	pod.Spec.Resources = new(limits("1", "1Gi"))
	if r := ContainerResources(pod, &pod.Spec.Containers[0], CFS{}); r.CpuQuota != 100000 || r.MemoryLimitInBytes != 1<<30 {
		t.Errorf("without own limits: %+v", r)
	}
	if r := ContainerResources(pod, &pod.Spec.Containers[1], CFS{}); r.CpuQuota != 10000 || r.MemoryLimitInBytes != 100<<20 {
		t.Errorf("with own limits: %+v", r)
	}
	if r := PodCgroupResources(pod, 0, CFS{}); *r.CPU.Quota != 100000 || *r.CPU.Shares != 1024 || *r.Memory.Limit != 1<<30 {
		t.Errorf("pod: %+v", r)
	}
	pod.Spec.Resources.Limits = nil // Burstable
	if got := OOMScoreAdj(pod, &pod.Spec.Containers[0], 10<<30); got != 1000-1000*((1<<30-100<<20)/2)/(10<<30) {
		t.Errorf("OOM score %d", got)
	}
}

// TestOverhead of a RuntimeClass is the pod's, not its containers'.
func TestOverhead(t *testing.T) {
	pod := sized(limits("100m", "100Mi"), limits("100m", "100Mi"))
	pod.Spec.Overhead = v1.ResourceList{v1.ResourceCPU: resource.MustParse("50m"), v1.ResourceMemory: resource.MustParse("20Mi")}
	if r := PodCgroupResources(pod, 0, CFS{}); *r.CPU.Quota != 25000 || *r.CPU.Shares != 256 || *r.Memory.Limit != 220<<20 {
		t.Errorf("cgroup: quota %d, shares %d, memory %d", *r.CPU.Quota, *r.CPU.Shares, *r.Memory.Limit)
	}
	overhead, rest := SandboxResources(pod, CFS{})
	if overhead.MemoryLimitInBytes != 20<<20 || rest.MemoryLimitInBytes != 200<<20 {
		t.Errorf("the runtime is told %v and %v", overhead, rest)
	}
	if r := ContainerResources(pod, &pod.Spec.Containers[0], CFS{}); r.MemoryLimitInBytes != 100<<20 {
		t.Errorf("container: %v", r)
	}
}

// TestCPUQuotas: with another period, and none if limits are not enforced.
func TestCPUQuotas(t *testing.T) {
	pod := sized(limits("200m", "1Mi"), limits("0", "1Mi"))
	pod.Spec.Containers = pod.Spec.Containers[:1]
	for cfs, want := range map[CFS][2]int64{{}: {100000, 20000}, {Period: 10 * time.Millisecond}: {10000, 2000}, {Period: time.Millisecond}: {1000, 1000}, {Off: true}: {}} {
		c, group := ContainerResources(pod, &pod.Spec.Containers[0], cfs), PodCgroupResources(pod, 0, cfs).CPU
		if got := [2]int64{c.CpuPeriod, c.CpuQuota}; got != want {
			t.Errorf("%+v: container %v, want %v", cfs, got, want)
		}
		if cfs.Off != (group.Quota == nil) || !cfs.Off && (*group.Quota != want[1] || int64(*group.Period) != want[0]) {
			t.Errorf("%+v: cgroup of the pod %+v", cfs, group)
		}
	}
}

// TestHugePageLimits: a container gets only what it requests, unless the pod as a whole requests
// it.
func TestHugePageLimits(t *testing.T) {
	pages := v1.ResourceList{"hugepages-2Mi": resource.MustParse("4Mi")}
	has := v1.Container{Name: "has", Resources: v1.ResourceRequirements{Requests: pages, Limits: pages}}
	pod := &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{has, {Name: "none"}}}}
	sizes := PageSizes(v1.ResourceList{"cpu": resource.MustParse("1"), "hugepages-1Gi": {}, "hugepages-2Mi": {}})
	limits := func(c *v1.Container) string {
		text := ""
		for _, l := range hugepages(pod, c, sizes) {
			text += fmt.Sprintf("%s=%d ", l.PageSize, l.Limit)
		}
		return text
	}
	if got := limits(&pod.Spec.Containers[0]); got != "1GB=0 2MB=4194304 " {
		t.Errorf("limits %s", got)
	}
	if got := limits(&pod.Spec.Containers[1]); got != "1GB=0 2MB=0 " {
		t.Errorf("a container that asks for none: %s", got)
	}
	if got := fmt.Sprint(PodHugePages(pod, sizes)); got != "[{1GB 0} {2MB 4194304}]" {
		t.Errorf("cgroup of the pod %s", got)
	}
	pod.Spec.Resources = &v1.ResourceRequirements{Requests: pages, Limits: pages}
	if got := limits(&pod.Spec.Containers[1]); got != "1GB=0 2MB=4194304 " {
		t.Errorf("with limits of the pod: %s", got)
	}
}

// TestResourceFields of every kind of container, with divisors, and where nothing is set.
func TestResourceFields(t *testing.T) {
	list := func(pairs ...string) v1.ResourceList {
		l := v1.ResourceList{}
		for i := 0; i < len(pairs); i += 2 {
			l[v1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
		}
		return l
	}
	always := v1.ContainerRestartPolicyAlways
	pod := &v1.Pod{Spec: v1.PodSpec{
		InitContainers: []v1.Container{
			{Name: "init", Resources: v1.ResourceRequirements{Limits: list("cpu", "1500m"), Requests: list("memory", "100M")}},
			{Name: "side", RestartPolicy: &always, Resources: v1.ResourceRequirements{Limits: list("memory", "1Gi", "hugepages-2Mi", "4Mi")}},
		},
		Containers: []v1.Container{{Name: "app"}},
	}}
	node := list("cpu", "4", "memory", "8Gi", "ephemeral-storage", "10Gi", "hugepages-2Mi", "64Mi")
	for _, tc := range []struct{ container, field, divisor, want string }{
		{"init", "limits.cpu", "", "2"},
		{"init", "limits.cpu", "1m", "1500"},
		{"init", "requests.cpu", "", "0"},
		{"init", "requests.memory", "1Mi", "96"},
		{"init", "limits.memory", "1Gi", "8"},
		{"side", "limits.memory", "1k", "1073742"},
		{"side", "limits.hugepages-2Mi", "2Mi", "2"},
		{"side", "limits.cpu", "", "4"},
		{"app", "limits.hugepages-2Mi", "", "0"},
		{"app", "limits.ephemeral-storage", "1Gi", "10"},
		{"app", "limits.example.com/x", "", "unsupported container resource : limits.example.com/x"},
		{"app", "requests.pods", "", "unsupported container resource : requests.pods"},
	} {
		ref := &v1.ResourceFieldSelector{Resource: tc.field}
		if tc.divisor != "" {
			ref.Divisor = resource.MustParse(tc.divisor)
		}
		got, err := ResourceField(ref, pod, findContainer(pod, tc.container), node)
		if err != nil {
			got = err.Error()
		}
		if got != tc.want {
			t.Errorf("%s of %s by %q: %s, want %s", tc.field, tc.container, tc.divisor, got, tc.want)
		}
	}
	pod.Spec.Resources = &v1.ResourceRequirements{Limits: list("cpu", "2")}
	for _, field := range []string{"limits.cpu", "limits.memory"} {
		got, err := ResourceField(&v1.ResourceFieldSelector{Resource: field}, pod, &pod.Spec.Containers[0], node)
		if want := map[string]string{"limits.cpu": "2", "limits.memory": "8589934592"}[field]; got != want || err != nil {
			t.Errorf("%s under limits of the pod: %s, %v", field, got, err)
		}
	}
}
