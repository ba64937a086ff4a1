package kubelet

import (
	"context"
	"fmt"
	"math"
	goruntime "runtime"

	"k8s.io/apimachinery/pkg/types"

	"wherry.dev/internal/kubelet/userns"
)

// userNamespaces opens the ranges of IDs for pods with hostUsers false.
func (k *Kubelet) userNamespaces(ctx context.Context) (*userns.Allocator, error) {
	host, err := userns.HostRange(ctx)
	if err != nil {
		return nil, err
	}
	ids := int64(userns.Unit)
	if c := k.cfg.UserNamespaces; c != nil && c.IDsPerPod != nil {
		ids = *c.IDsPerPod
	}
	if ids <= 0 || ids > math.MaxUint32 {
		return nil, fmt.Errorf("userNamespaces.idsPerPod %d is out of range", ids)
	}
	return userns.Open(userns.Config{Pods: k.dirs.Pods(), IDsPerPod: uint32(ids), Host: host, MaxPods: int(k.cfg.PodLimit(int64(goruntime.NumCPU()))),
		Shown: func(ctx context.Context, uid types.UID) (userns.Range, bool, error) {
			return userns.Shown(ctx, k.deps.Runtime, uid)
		},
	})
}
