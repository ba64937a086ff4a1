package criconfig

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
)

func TestSwapOfAContainer(t *testing.T) {
	const gi = 1 << 30
	memory := func(request, limit string) v1.Container {
		c := v1.Container{Name: "c", Resources: v1.ResourceRequirements{Requests: v1.ResourceList{}, Limits: v1.ResourceList{}}}
		if request != "" {
			c.Resources.Requests[v1.ResourceMemory] = resource.MustParse(request)
		}
		if limit != "" {
			c.Resources.Limits[v1.ResourceMemory] = resource.MustParse(limit)
		}
		return c
	}
	for name, tc := range map[string]struct {
		swap     *Swap
		c        v1.Container
		priority *int32
		want     string
	}{
		"a share":             {&Swap{Limited: true, Capacity: 4 * gi}, memory("2Gi", ""), nil, "1073741824"},
		"NoSwap":              {&Swap{Capacity: 4 * gi}, memory("2Gi", ""), nil, "0"},
		"nothing requested":   {&Swap{Limited: true, Capacity: 4 * gi}, memory("", ""), nil, "0"},
		"request is limit":    {&Swap{Limited: true, Capacity: 4 * gi}, memory("1Gi", "1Gi"), nil, "0"},
		"critical":            {&Swap{Limited: true, Capacity: 4 * gi}, memory("2Gi", ""), ptr.To[int32](2000000000), "0"},
		"cannot be limited":   {nil, memory("2Gi", ""), nil, ""},
		"only a limit is nil": {&Swap{Limited: true, Capacity: 4 * gi}, memory("", "2Gi"), nil, "0"},
	} {
		pod := &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{tc.c}, Priority: tc.priority}}
		pod.Spec.Containers[0].Resources.Requests[v1.ResourceCPU] = resource.MustParse("1m")
		if got := tc.swap.settings(pod, &pod.Spec.Containers[0], 8*gi)["memory.swap.max"]; got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}

func TestOOMKillsAllOfAContainer(t *testing.T) {
	in := ContainerInput{Pod: &v1.Pod{}, Container: &v1.Container{}}
	if got := in.unified(); got != nil {
		t.Errorf("on cgroup v1: %v", got)
	}
	in.OOMGroup, in.Swap = true, &Swap{}
	if got := in.unified(); len(got) != 2 || got["memory.oom.group"] != "1" || got["memory.swap.max"] != "0" {
		t.Errorf("%v", got)
	}
}
