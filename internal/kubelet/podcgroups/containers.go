package podcgroups

import (
	v1 "k8s.io/api/core/v1"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/ptr"

	"wherry.dev/internal/cgroup"
	"wherry.dev/internal/kubelet/config"
	"wherry.dev/internal/kubelet/criconfig"
)

// Swap returns how much of the node's swap containers may use; nil if it cannot be limited.
func Swap(cfg *config.Config, node *v1.Node) *criconfig.Swap {
	if !isV2() {
		return nil
	}
	s := &criconfig.Swap{Limited: cfg.MemorySwap.SwapBehavior == config.SwapLimited}
	if info := node.Status.NodeInfo.Swap; info != nil && info.Capacity != nil {
		s.Capacity = *info.Capacity
	}
	return s
}

// MemoryQoS returns what the kernel is told of the memory of pods; nil if it cannot be told.
func MemoryQoS(cfg *config.Config) *criconfig.MemoryQoS {
	if !isV2() {
		return nil
	}
	return &criconfig.MemoryQoS{
		Throttling: ptr.Deref(cfg.MemoryThrottlingFactor, 0),
		Tiered:     cfg.MemoryReservationPolicy == kubeletconfig.TieredReservationMemoryReservationPolicy,
	}
}

// OOMGroup reports whether all processes of a container are killed when one runs out of memory.
// Only cgroup v2 can do that.
func OOMGroup(cfg *config.Config) bool {
	return isV2() && !ptr.Deref(cfg.SingleProcessOOMKill, false)
}

func isV2() bool {
	mode, err := cgroup.Version()
	return err == nil && mode == cgroup.V2
}
