package criconfig

import (
	"strconv"

	v1 "k8s.io/api/core/v1"
	"k8s.io/kubectl/pkg/util/qos"

	"wherry.dev/internal/api/pods"
)

// Swap is what containers may swap out (KEP-2400); it needs cgroup v2.
type Swap struct {
	// Limited lets containers of burstable pods use their share of Capacity; nobody
	// may use any otherwise.
	Limited bool
	// Capacity is the node's swap in bytes.
	Capacity int64
}

// limit is how many bytes a container may swap out: of the swap what it requests of
// the memory. Who is not to wait for a disk gets none: critical pods, and containers
// whose memory is guaranteed.
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

// settings are for the container's cgroup.
func (s *Swap) settings(pod *v1.Pod, c *v1.Container, nodeMemory int64) map[string]string {
	if s == nil {
		return nil
	}
	return map[string]string{"memory.swap.max": strconv.FormatInt(s.limit(pod, c, nodeMemory), 10)}
}
