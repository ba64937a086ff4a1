package criconfig

import (
	"maps"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func memory(request, limit string) v1.ResourceRequirements {
	r := v1.ResourceRequirements{Requests: v1.ResourceList{}, Limits: v1.ResourceList{}}
	if request != "" {
		r.Requests[v1.ResourceMemory] = resource.MustParse(request)
	}
	if limit != "" {
		r.Limits[v1.ResourceMemory] = resource.MustParse(limit)
	}
	return r
}

func guaranteed(size string) v1.ResourceRequirements {
	r := memory(size, size)
	r.Requests[v1.ResourceCPU], r.Limits[v1.ResourceCPU] = resource.MustParse("1"), resource.MustParse("1")
	return r
}

// The formula is KEP-2570's: the request, and a part of what lies between it and the limit, in whole pages.
func TestMemoryQoSOfAContainer(t *testing.T) {
	const allocatable = 1000 << 20
	for name, tc := range map[string]struct {
		qos  *MemoryQoS
		r    v1.ResourceRequirements
		want map[string]string
	}{
		"cgroup v1":              {nil, memory("100Mi", "200Mi"), nil},
		"as by default":          {&MemoryQoS{}, memory("100Mi", "200Mi"), nil},
		"burstable":              {&MemoryQoS{Throttling: 0.9}, memory("100Mi", "200Mi"), map[string]string{MemoryHigh: "199229440"}},
		"in whole pages":         {&MemoryQoS{Throttling: 0.5}, memory("100Mi", "104869888"), map[string]string{MemoryHigh: "104861696"}},
		"at the limit":           {&MemoryQoS{Throttling: 1}, memory("100Mi", "200Mi"), map[string]string{MemoryHigh: "209715200"}},
		"without a limit":        {&MemoryQoS{Throttling: 0.5}, memory("100Mi", ""), map[string]string{MemoryHigh: "576716800"}},
		"best effort":            {&MemoryQoS{Throttling: 0.5, Tiered: true}, memory("", ""), map[string]string{MemoryHigh: "524288000"}},
		"guaranteed":             {&MemoryQoS{Throttling: 0.9, Tiered: true}, guaranteed("100Mi"), map[string]string{MemoryMin: "104857600"}},
		"as much as the limit":   {&MemoryQoS{Throttling: 0.9, Tiered: true}, memory("100Mi", "100Mi"), map[string]string{MemoryLow: "104857600"}},
		"reserved":               {&MemoryQoS{Tiered: true}, memory("100Mi", "200Mi"), map[string]string{MemoryLow: "104857600"}},
		"more than there is":     {&MemoryQoS{Throttling: 0.9}, memory("2Gi", ""), nil},
		"too little for a page":  {&MemoryQoS{Throttling: 0.9}, memory("", "4095"), nil},
		"reserved and throttled": {&MemoryQoS{Throttling: 0.5, Tiered: true}, memory("100Mi", "300Mi"), map[string]string{MemoryLow: "104857600", MemoryHigh: "209715200"}},
	} {
		pod := &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{{Name: "a", Resources: tc.r}}}}
		got := tc.qos.container(pod, &pod.Spec.Containers[0], allocatable)
		if !maps.Equal(got, tc.want) {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}

// The limit of the pod as a whole counts where a container has none.
func TestMemoryQoSBelowThePodsLimit(t *testing.T) {
	r := memory("200Mi", "400Mi")
	pod := &v1.Pod{Spec: v1.PodSpec{Resources: &r, Containers: []v1.Container{{Name: "a", Resources: memory("100Mi", "")}}}}
	q := &MemoryQoS{Throttling: 0.5, Tiered: true}
	if got := q.container(pod, &pod.Spec.Containers[0], 1<<40); got[MemoryHigh] != "262144000" {
		t.Errorf("%v", got)
	}
	if got := q.Pod(pod); !maps.Equal(got, map[string]string{MemoryLow: "209715200"}) {
		t.Errorf("the pod: %v", got)
	}
}

// A resize changes what is reserved and where it is slowed down, last; what no longer applies is taken back.
func TestResizeStepsOfMemoryQoS(t *testing.T) {
	pod := func(r v1.ResourceRequirements) *v1.Pod {
		return &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{{Name: "a", Resources: r}}}}
	}
	q := &MemoryQoS{Throttling: 0.5, Tiered: true}
	last := func(old, next v1.ResourceRequirements) (container, group map[string]string) {
		for _, s := range ResizeSteps(pod(old), pod(next), []string{"a"}, CFS{}, q, 1<<40) {
			switch {
			case s.Container != "" && s.Limits.Unified != nil:
				container = s.Limits.Unified
			case s.Pod != nil && s.Pod.Unified != nil:
				group = s.Pod.Unified
			}
		}
		return container, group
	}
	c, g := last(memory("100Mi", "200Mi"), memory("100Mi", "300Mi"))
	if !maps.Equal(c, map[string]string{MemoryHigh: "209715200"}) || g != nil {
		t.Errorf("another limit: %v, %v", c, g)
	}
	c, g = last(memory("100Mi", "200Mi"), memory("200Mi", "200Mi"))
	if !maps.Equal(c, map[string]string{MemoryHigh: "max", MemoryLow: "209715200"}) || !maps.Equal(g, map[string]string{MemoryLow: "209715200"}) {
		t.Errorf("no room between them: %v, %v", c, g)
	}
	if c, g = last(memory("100Mi", "200Mi"), memory("100Mi", "200Mi")); c != nil || g != nil {
		t.Errorf("nothing new: %v, %v", c, g)
	}
}
