package framework

import (
	"math/rand/v2"
	"reflect"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// TestPlainPodsCountAsAllOthers compares the quick way to a pod's requests with the library's.
func TestPlainPodsCountAsAllOthers(t *testing.T) {
	dice := rand.New(rand.NewPCG(1, 2))
	amounts := map[v1.ResourceName][]string{
		v1.ResourceCPU:              {"0", "1m", "250m", "1", "1.5", "2500m"},
		v1.ResourceMemory:           {"0", "1", "100M", "500Mi", "1.5Gi", "2e9", "128974848", "1500m"},
		v1.ResourceEphemeralStorage: {"1Gi", "10M"},
		"example.com/gpu":           {"1", "4"},
		"hugepages-2Mi":             {"2Mi"},
	}
	plain := 0
	for range 2000 {
		pod := &v1.Pod{}
		for range dice.IntN(4) {
			c := v1.Container{Resources: v1.ResourceRequirements{Requests: v1.ResourceList{}}}
			for name, of := range amounts {
				if dice.IntN(2) == 0 {
					c.Resources.Requests[name] = resource.MustParse(of[dice.IntN(len(of))])
				}
			}
			pod.Spec.Containers = append(pod.Spec.Containers, c)
		}
		got, ok := plainResource(pod)
		if !ok {
			continue
		}
		plain++
		slow := *pod
		slow.Spec.Overhead = v1.ResourceList{} // enough for the long way
		want := podResource(&slow)
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("%v\ncounts as %+v (%+v),\nbut is %+v (%+v)", pod.Spec.Containers, got, got.Resource, want, want.Resource)
		}
	}
	if plain < 500 {
		t.Errorf("only %d pods took the quick way", plain)
	}
}

// TestResourcesOfThePodAreNotAddedUpWithDefaults: where a pod requests memory as a whole, or any of its containers does,
// nothing is assumed for its other containers.
func TestResourcesOfThePodAreNotAddedUpWithDefaults(t *testing.T) {
	list := func(cpu, memory string) v1.ResourceList {
		out := v1.ResourceList{}
		for name, q := range map[v1.ResourceName]string{v1.ResourceCPU: cpu, v1.ResourceMemory: memory} {
			if q != "" {
				out[name] = resource.MustParse(q)
			}
		}
		return out
	}
	for _, tt := range []struct {
		name        string
		pod         v1.ResourceList
		containers  []v1.ResourceList
		cpu, memory int64
	}{
		{"none requests memory", list("2", ""), []v1.ResourceList{list("1", ""), {}}, 2000, 2 * defaultMemoryRequest},
		{"one container does", list("2", ""), []v1.ResourceList{list("", "1Mi"), {}}, 2000, 1 << 20},
		{"without resources of the pod", nil, []v1.ResourceList{list("", "1Mi"), {}}, 2 * defaultMilliCPURequest, 1<<20 + defaultMemoryRequest},
	} {
		pod := &v1.Pod{}
		if tt.pod != nil {
			pod.Spec.Resources = &v1.ResourceRequirements{Requests: tt.pod}
		}
		for _, c := range tt.containers {
			pod.Spec.Containers = append(pod.Spec.Containers, v1.Container{Resources: v1.ResourceRequirements{Requests: c}})
		}
		if got := podResource(pod); got.Non0CPU != tt.cpu || got.Non0Mem != tt.memory {
			t.Errorf("%s: counts for %d mCPU and %d bytes, want %d and %d", tt.name, got.Non0CPU, got.Non0Mem, tt.cpu, tt.memory)
		}
	}
}
