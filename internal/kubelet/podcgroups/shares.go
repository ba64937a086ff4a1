package podcgroups

import (
	"context"
	"strconv"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	v1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"
	"k8s.io/klog/v2"
	"k8s.io/kubectl/pkg/util/qos"

	"wherry.dev/internal/kubelet/criconfig"
	"wherry.dev/internal/kubelet/metrics"
)

// Changed says that the sum of what pods request may have changed.
func (g *Groups) Changed() {
	select {
	case g.changed <- struct{}{}:
	default:
	}
}

// Run gives the group of the burstable pods the CPU shares that they request together, so that the
// group weighs against guaranteed pods what its pods do, and reserves memory for the groups of both, if it is to. It is
// called once the pods are known; holding returns those that hold resources of the node.
func (g *Groups) Run(ctx context.Context, holding func() []*v1.Pod) error {
	if g.cfg.Tree == nil {
		return nil
	}
	const first, most = 100 * time.Millisecond, time.Minute
	wait, has := first, sums{}
	for ctx.Err() == nil {
		want := sumsOf(holding())
		if q := g.cfg.MemoryQoS; q == nil || !q.Tiered {
			want.guaranteed, want.burstable = 0, 0
		}
		var again <-chan time.Time
		if want != has {
			err := g.apply(want)
			if err == nil {
				has, wait = want, first
			} else {
				klog.FromContext(ctx).Error(err, "Cannot set the CPU shares and the memory of the pods' cgroups")
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

// sums are what pods request together.
type sums struct {
	shares                uint64 // CPU shares of the burstable ones
	guaranteed, burstable int64  // bytes of memory
}

func sumsOf(pods []*v1.Pod) sums {
	milli, s := int64(0), sums{}
	for _, pod := range pods {
		requests := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{UseStatusResources: true})
		switch qos.GetPodQOS(pod) {
		case v1.PodQOSGuaranteed:
			s.guaranteed += requests.Memory().Value()
		case v1.PodQOSBurstable:
			s.burstable += requests.Memory().Value()
			milli += requests.Cpu().MilliValue()
		}
	}
	s.shares = uint64(criconfig.Shares(milli))
	return s
}

// apply writes the settings of the groups. What a group reserves counts only as far as the group around it reserves it, of
// either sort for itself; the group of all pods is the one around both classes. Its memory.min is upstream's.
func (g *Groups) apply(s sums) error {
	burstable := &specs.LinuxResources{CPU: &specs.LinuxCPU{Shares: &s.shares}}
	if q := g.cfg.MemoryQoS; q != nil && q.Tiered {
		all := s.guaranteed + s.burstable
		err := g.cfg.Tree.Ensure(g.cfg.Layout.QOS(v1.PodQOSGuaranteed), &specs.LinuxResources{Unified: map[string]string{
			criconfig.MemoryMin: strconv.FormatInt(all, 10), criconfig.MemoryLow: strconv.FormatInt(s.burstable, 10),
		}})
		if err != nil {
			return err
		}
		burstable.Unified = map[string]string{criconfig.MemoryLow: strconv.FormatInt(s.burstable, 10)}
	}
	if err := g.cfg.Tree.Ensure(g.cfg.Layout.QOS(v1.PodQOSBurstable), burstable); err != nil {
		return err
	}
	metrics.MemoryMin.Set(float64(s.guaranteed))
	metrics.MemoryLow.Set(float64(s.burstable))
	return nil
}
