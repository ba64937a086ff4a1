package criconfig

import (
	"strconv"

	v1 "k8s.io/api/core/v1"
	"k8s.io/kubectl/pkg/util/qos"

	"wherry.dev/internal/api/pods"
)

// Swap is how much containers may swap out (KEP-2400); it needs cgroup v2.
type Swap struct {
	// Limited lets containers of burstable pods use their share of Capacity. Otherwise no container
	// may use any.
	Limited bool
	// Capacity is the node's swap in bytes.
	Capacity int64
}

// limit returns how many bytes a container may swap out: the same share of the swap as it requests
// of the memory. Containers that must not wait for a disk get none: those of critical pods, and
// those whose memory is guaranteed.
func (s Swap) limit(pod *v1.Pod, c *v1.Container, nodeMemory int64) int64 {
	request, limit := c.Resources.Requests.Memory(), c.Resources.Limits.Memory()
	switch {
	case !s.Limited || nodeMemory <= 0 || pods.IsCritical(pod) || qos.GetPodQOS(pod) != v1.PodQOSBurstable:
		return 0
	case request.IsZero() && limit.IsZero() || request.Cmp(*limit) == 0:
		return 0
	}
	return int64(float64(request.Value()) / float64(nodeMemory) * float64(s.Capacity))
}

// settings returns settings for the container's cgroup.
func (s *Swap) settings(pod *v1.Pod, c *v1.Container, nodeMemory int64) map[string]string {
	if s == nil {
		return nil
	}
	return map[string]string{"memory.swap.max": strconv.FormatInt(s.limit(pod, c, nodeMemory), 10)}
}
