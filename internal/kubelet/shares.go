package kubelet

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

// sharesChanged says that the sum of what burstable pods request may have changed.
func (k *Kubelet) sharesChanged() {
	select {
	case k.sharesCh <- struct{}{}:
	default:
	}
}

// followShares gives the group of the burstable pods the CPU shares that they request together, so
// that the group weighs against guaranteed pods what its pods do. It starts only once the pods are
// known.
func (k *Kubelet) followShares(ctx context.Context) error {
	if k.deps.Cgroups == nil {
		return nil
	}
	select {
	case <-k.synced:
	case <-ctx.Done():
		return nil
	}
	const first, most = 100 * time.Millisecond, time.Minute
	wait, has := first, uint64(0)
	for ctx.Err() == nil {
		want := k.burstableShares()
		var again <-chan time.Time
		if want != has {
			err := k.deps.Cgroups.Ensure(k.layout.QOS(v1.PodQOSBurstable), &specs.LinuxResources{CPU: &specs.LinuxCPU{Shares: &want}})
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
		case <-k.sharesCh:
		case <-again:
		}
	}
	return nil
}

// burstableShares returns the CPU shares of all burstable pods together.
func (k *Kubelet) burstableShares() uint64 {
	milli := int64(0)
	for _, pod := range k.admission.Holding() {
		if qos.GetPodQOS(pod) == v1.PodQOSBurstable {
			requests := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{UseStatusResources: true})
			milli += requests.Cpu().MilliValue()
		}
	}
	return uint64(criconfig.Shares(milli))
}
