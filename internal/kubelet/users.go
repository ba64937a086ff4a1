package kubelet

import (
	"context"
	"fmt"
	"math"
	goruntime "runtime"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/api/pods"
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
	return userns.Open(userns.Config{Pods: k.dirs.Pods(), IDsPerPod: uint32(ids), Host: host, MaxPods: int(k.cfg.PodLimit(int64(goruntime.NumCPU()))), Shown: k.shownUsers})
}

// shownUsers returns the range of IDs that the runtime reports for a pod's sandboxes.
func (k *Kubelet) shownUsers(ctx context.Context, uid types.UID) (userns.Range, bool, error) {
	list, err := k.deps.Runtime.ListPodSandbox(ctx, &runtimeapi.PodSandboxFilter{LabelSelector: map[string]string{pods.LabelPodUID: string(uid)}})
	if err != nil {
		return userns.Range{}, false, fmt.Errorf("list sandboxes: %w", err)
	}
	for _, s := range list {
		st, err := k.deps.Runtime.PodSandboxStatus(ctx, s.Id, false)
		if grpcstatus.Code(err) == codes.NotFound {
			continue
		}
		if err != nil {
			return userns.Range{}, false, fmt.Errorf("status of sandbox %s: %w", s.Id, err)
		}
		for _, m := range st.GetStatus().GetLinux().GetNamespaces().GetOptions().GetUsernsOptions().GetUids() {
			return userns.Range{First: m.GetHostId(), Length: m.GetLength()}, true, nil
		}
	}
	return userns.Range{}, false, nil
}
