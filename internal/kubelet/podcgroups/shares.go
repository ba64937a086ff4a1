package podcgroups

import (
	"context"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	v1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"
	"k8s.io/klog/v2"
	"k8s.io/kubectl/pkg/util/qos"

	"wherry.dev/internal/kubelet/criconfig"
)

// Changed says that the sum of what burstable pods request may have changed.
func (g *Groups) Changed() {
	select {
	case g.changed <- struct{}{}:
	default:
	}
}

// Run gives the group of the burstable pods the CPU shares that they request together, so that the
// group weighs against guaranteed pods what its pods do. It is called once the pods are known;
// holding returns those that hold resources of the node.
func (g *Groups) Run(ctx context.Context, holding func() []*v1.Pod) error {
	if g.cfg.Tree == nil {
		return nil
	}
	const first, most = 100 * time.Millisecond, time.Minute
	wait, has := first, uint64(0)
	for ctx.Err() == nil {
		want := burstableShares(holding())
		var again <-chan time.Time
		if want != has {
			err := g.cfg.Tree.Ensure(g.cfg.Layout.QOS(v1.PodQOSBurstable), &specs.LinuxResources{CPU: &specs.LinuxCPU{Shares: &want}})
			if err == nil {
				has, wait = want, first
			} else {
				klog.FromContext(ctx).Error(err, "Cannot set the CPU shares of the Burstable pods' cgroup")
				again = time.After(wait)
				wait = min(2*wait, most)
			}
		}
		select {
		case <-ctx.Done():
		case <-g.changed:
		case <-again:
		}
	}
	return nil
}

// burstableShares returns the CPU shares of all burstable pods among them together.
func burstableShares(pods []*v1.Pod) uint64 {
	milli := int64(0)
	for _, pod := range pods {
		if qos.GetPodQOS(pod) == v1.PodQOSBurstable {
			requests := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{UseStatusResources: true})
			milli += requests.Cpu().MilliValue()
		}
	}
	return uint64(criconfig.Shares(milli))
}
