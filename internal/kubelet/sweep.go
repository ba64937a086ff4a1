package kubelet

import (
	"context"
	"math/rand/v2"
	"os"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
)

// sweep periodically removes what unknown pods have left: their directories and cgroups. It starts
// only once all sources have said what they want.
func (k *Kubelet) sweep(ctx context.Context) error {
	select {
	case <-k.synced:
	case <-ctx.Done():
		return nil
	}
	for ctx.Err() == nil {
		k.sweepOnce(ctx)
		sleep(ctx, 2*time.Minute+rand.N(time.Minute))
	}
	return nil
}

// sweepOnce gives each such pod a worker, which finds that nobody wants the pod and tears down what
// there is, as for any other. A pod that is known has a worker before it has anything else.
func (k *Kubelet) sweepOnce(ctx context.Context) {
	log := klog.FromContext(ctx)
	left, err := k.leftBehind()
	if err != nil {
		log.Error(err, "Cannot list what removed pods left behind")
	}
	for _, uid := range left {
		if _, known := k.table.Get(uid); known {
			continue
		}
		rec, err := k.records.Read(uid)
		if err != nil {
			log.Error(err, "Cannot read a removed pod's record, cleaning up without it")
		}
		log.Info("Cleaning up what an unknown pod left behind", "podUID", uid)
		k.table.Adopt(recordPod(uid, rec))
	}
}

// leftBehind returns the UIDs of the pods that have a directory or a cgroup.
func (k *Kubelet) leftBehind() ([]types.UID, error) {
	entries, err := os.ReadDir(k.dirs.Pods())
	if err != nil {
		return nil, err
	}
	var out []types.UID
	for _, e := range entries {
		if e.IsDir() {
			out = append(out, types.UID(e.Name()))
		}
	}
	if k.deps.Cgroups == nil {
		return out, nil
	}
	for _, class := range []v1.PodQOSClass{v1.PodQOSGuaranteed, v1.PodQOSBurstable, v1.PodQOSBestEffort} {
		names, err := k.deps.Cgroups.Children(k.layout.QOS(class))
		if err != nil {
			return out, err
		}
		for _, name := range names {
			if uid, ok := k.layout.UID(name); ok {
				out = append(out, types.UID(uid))
			}
		}
	}
	return out, nil
}
