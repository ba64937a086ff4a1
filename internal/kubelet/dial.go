package kubelet

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	internalapi "k8s.io/cri-api/pkg/apis"
	remote "k8s.io/cri-client/pkg"
)

// DialRuntime connects to a CRI runtime, such as containerd, and to its images, which
// imageEndpoint leads to if they are elsewhere. An endpoint without a scheme is the
// path of a socket.
func DialRuntime(ctx context.Context, endpoint, imageEndpoint string, timeout time.Duration) (internalapi.RuntimeService, internalapi.ImageManagerService, error) {
	if endpoint == "" {
		return nil, nil, errors.New("--container-runtime-endpoint is required, such as unix:///run/wherry/cri.sock")
	}
	if !strings.Contains(endpoint, "://") {
		endpoint = "unix://" + endpoint
	}
	if imageEndpoint == "" {
		imageEndpoint = endpoint
	}
	runtime, err := remote.NewRemoteRuntimeServiceBuilder().WithEndpoint(endpoint).WithConnectionTimeout(timeout).Build(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("--container-runtime-endpoint %s: %w", endpoint, err)
	}
	images, err := remote.NewRemoteImageServiceBuilder().WithEndpoint(imageEndpoint).WithConnectionTimeout(timeout).Build(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("--image-service-endpoint %s: %w", imageEndpoint, err)
	}
	return runtime, images, nil
}
