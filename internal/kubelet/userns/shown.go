package userns

import (
	"context"
	"fmt"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/api/pods"
)

// Sandboxes is a runtime that reports the ranges of its sandboxes.
type Sandboxes interface {
	ListPodSandbox(ctx context.Context, filter *runtimeapi.PodSandboxFilter) ([]*runtimeapi.PodSandbox, error)
	PodSandboxStatus(ctx context.Context, id string, verbose bool) (*runtimeapi.PodSandboxStatusResponse, error)
}

// Shown returns the range of IDs that the runtime reports for a pod's sandboxes, if any.
func Shown(ctx context.Context, rt Sandboxes, uid types.UID) (Range, bool, error) {
	list, err := rt.ListPodSandbox(ctx, &runtimeapi.PodSandboxFilter{LabelSelector: map[string]string{pods.LabelPodUID: string(uid)}})
	if err != nil {
		return Range{}, false, fmt.Errorf("list sandboxes: %w", err)
	}
	for _, s := range list {
		st, err := rt.PodSandboxStatus(ctx, s.Id, false)
		if grpcstatus.Code(err) == codes.NotFound {
			continue
		}
		if err != nil {
			return Range{}, false, fmt.Errorf("status of sandbox %s: %w", s.Id, err)
		}
		for _, m := range st.GetStatus().GetLinux().GetNamespaces().GetOptions().GetUsernsOptions().GetUids() {
			return Range{First: m.GetHostId(), Length: m.GetLength()}, true, nil
		}
	}
	return Range{}, false, nil
}
