package criconfig

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/api/pods"
)

// PageSizes returns the sizes of huge pages that a node has, from its resources.
func PageSizes(node v1.ResourceList) []string {
	var out []string
	for name := range node {
		if size, ok := strings.CutPrefix(string(name), v1.ResourceHugePagesPrefix); ok {
			out = append(out, size)
		}
	}
	slices.Sort(out)
	return out
}

// kernelSize returns a page size as the kernel writes it: 2MB for 2Mi.
func kernelSize(size string) string { return strings.TrimSuffix(size, "i") + "B" }

// hugepages returns a container's limits, for each size that the node has and each that it
// requests. It may not have what it does not request, unless its pod as a whole does.
func hugepages(pod *v1.Pod, c *v1.Container, sizes []string) []*runtimeapi.HugepageLimit {
	var out []*runtimeapi.HugepageLimit
	for size, bytes := range pageLimits(sizes, c.Resources.Limits, podLevelLimits(pod)) {
		out = append(out, &runtimeapi.HugepageLimit{PageSize: size, Limit: uint64(bytes)})
	}
	slices.SortFunc(out, func(a, b *runtimeapi.HugepageLimit) int { return strings.Compare(a.PageSize, b.PageSize) })
	return out
}

// PodHugePages returns the limits of the pod's cgroup.
func PodHugePages(pod *v1.Pod, sizes []string) []specs.LinuxHugepageLimit {
	var out []specs.LinuxHugepageLimit
	for size, bytes := range pageLimits(sizes, resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})) {
		out = append(out, specs.LinuxHugepageLimit{Pagesize: size, Limit: uint64(bytes)})
	}
	slices.SortFunc(out, func(a, b specs.LinuxHugepageLimit) int { return strings.Compare(a.Pagesize, b.Pagesize) })
	return out
}

// pageLimits returns, by the kernel's name of the size, the limits of the first list that has it.
func pageLimits(sizes []string, lists ...v1.ResourceList) map[string]int64 {
	out := map[string]int64{}
	for _, size := range sizes {
		out[kernelSize(size)] = 0
	}
	for _, l := range slices.Backward(lists) {
		for name, q := range l {
			if size, ok := strings.CutPrefix(string(name), v1.ResourceHugePagesPrefix); ok {
				out[kernelSize(size)] = q.Value()
			}
		}
	}
	return out
}

func podLevelLimits(pod *v1.Pod) v1.ResourceList {
	if pod.Spec.Resources == nil {
		return nil
	}
	return pod.Spec.Resources.Limits
}

// PageSize returns the page size of an emptyDir of huge pages, in bytes: that of its medium, or the
// one that the pod requests. Limits and requests are the same.
func PageSize(pod *v1.Pod, medium v1.StorageMedium) (int64, error) {
	want := int64(0)
	if size, ok := strings.CutPrefix(string(medium), string(v1.StorageMediumHugePagesPrefix)); ok {
		q, err := resource.ParseQuantity(size)
		if err != nil {
			return 0, fmt.Errorf("medium %s: %w", medium, err)
		}
		want = q.Value()
	}
	found := map[int64]bool{}
	lists := []v1.ResourceList{podLevelRequests(pod)}
	for c := range pods.Containers(&pod.Spec) {
		lists = append(lists, c.Resources.Requests)
	}
	for _, l := range lists {
		for _, size := range PageSizes(l) {
			q, err := resource.ParseQuantity(size)
			if err != nil {
				return 0, fmt.Errorf("%s%s: %w", v1.ResourceHugePagesPrefix, size, err)
			}
			found[q.Value()] = true
		}
	}
	if want == 0 && len(found) > 1 {
		return 0, errors.New("medium: HugePages can't be used if container requests multiple huge page sizes")
	}
	for size := range found {
		if want == 0 || size == want {
			return size, nil
		}
	}
	return 0, fmt.Errorf("medium %s: hugePages storage requested, but there is no resource request for huge pages", medium)
}

func podLevelRequests(pod *v1.Pod) v1.ResourceList {
	if pod.Spec.Resources == nil {
		return nil
	}
	return pod.Spec.Resources.Requests
}
