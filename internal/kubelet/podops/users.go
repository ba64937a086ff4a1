package podops

import (
	"context"
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/kubelet/criconfig"
	"wherry.dev/internal/kubelet/userns"
)

// UserNamespaces gives pods ranges of the host's IDs.
type UserNamespaces interface {
	Get(ctx context.Context, uid types.UID) (userns.Range, error)
	Release(uid types.UID) error
}

// userNamespace returns the user namespace of a pod with hostUsers false, nil for others.
func (o *Ops) userNamespace(ctx context.Context, pod *v1.Pod, handler string) (*runtimeapi.UserNamespace, error) {
	if !criconfig.OwnUsers(pod) {
		return nil, nil
	}
	features, err := o.features(ctx, handler)
	if err != nil {
		return nil, fmt.Errorf("can't set `spec.hostUsers: false`: %w", err)
	}
	if !features.GetUserNamespaces() {
		if handler != "" {
			return nil, fmt.Errorf("can't set `spec.hostUsers: false`, RuntimeClass handler %q does not support user namespaces", handler)
		}
		return nil, errors.New("can't set `spec.hostUsers: false`, runtime does not support user namespaces")
	}
	return o.pullUsers(ctx, pod)
}

// pullUsers is userNamespace for when it does not matter whether the runtime supports it.
func (o *Ops) pullUsers(ctx context.Context, pod *v1.Pod) (*runtimeapi.UserNamespace, error) {
	if !criconfig.OwnUsers(pod) {
		return nil, nil
	}
	r, err := o.Users.Get(ctx, pod.UID)
	if err != nil {
		return nil, fmt.Errorf("create user namespace: %w", err)
	}
	ids := []*runtimeapi.IDMapping{{HostId: r.First, Length: r.Length}}
	return &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_POD, Uids: ids, Gids: ids}, nil
}

// features asks the runtime what a handler supports; nil if it does not say.
func (o *Ops) features(ctx context.Context, handler string) (*runtimeapi.RuntimeHandlerFeatures, error) {
	st, err := o.Runtime.Status(ctx, false)
	if err != nil {
		return nil, fmt.Errorf("status of the runtime: %w", err)
	}
	for _, h := range st.GetRuntimeHandlers() {
		if h.GetName() == handler {
			return h.GetFeatures(), nil
		}
	}
	return nil, nil
}
