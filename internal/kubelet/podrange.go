package kubelet

import (
	"context"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"
)

// podRange tells the runtime from which networks the node's pods get their addresses, as soon as the node has them
// (spec.podCIDRs), and whenever they change.
type podRange struct {
	seen chan string // capacity 1: the last one
}

func newPodRange() *podRange { return &podRange{seen: make(chan string, 1)} }

// observe takes over the node's ranges. It must not be called by two goroutines at once.
func (r *podRange) observe(n *v1.Node) {
	if len(n.Spec.PodCIDRs) == 0 {
		return
	}
	select { // what nobody has taken is old
	case <-r.seen:
	default:
	}
	r.seen <- strings.Join(n.Spec.PodCIDRs, ",")
}

// tellPodRange runs until ctx ends.
func (k *Kubelet) tellPodRange(ctx context.Context) error {
	const least, most = 100 * time.Millisecond, 10 * time.Second
	var told, latest string
	var retry <-chan time.Time
	wait := least
	for {
		select {
		case latest = <-k.podRange.seen:
		case <-retry:
		case <-ctx.Done():
			return nil
		}
		retry = nil
		if latest == told {
			continue
		}
		err := k.deps.Runtime.UpdateRuntimeConfig(ctx, &runtimeapi.RuntimeConfig{NetworkConfig: &runtimeapi.NetworkConfig{PodCidr: latest}})
		if err != nil {
			if ctx.Err() == nil {
				klog.FromContext(ctx).Error(err, "Cannot tell the runtime the node's addresses for pods, will retry", "podCIDRs", latest, "after", wait)
			}
			retry, wait = time.After(wait), min(2*wait, most)
			continue
		}
		told, wait = latest, least
		k.node.Trigger() // the network may be ready now
	}
}
