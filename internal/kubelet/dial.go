package kubelet

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"k8s.io/client-go/kubernetes"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	remote "k8s.io/cri-client/pkg"
	"k8s.io/klog/v2"

	"wherry.dev/internal/kubelet/certificates"
	"wherry.dev/internal/kubelet/config"
)

// DialRuntime connects to a CRI runtime, such as containerd, and to its image service, which is at
// imageEndpoint if that is set. An endpoint without a scheme is the path of a socket.
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

// Connect returns a client of the API server according to --kubeconfig, which it bootstraps first
// if --bootstrap-kubeconfig is set; it returns nil without a kubeconfig. New must be called with
// the same cfg.
func Connect(ctx context.Context, cfg *config.Config) (kubernetes.Interface, error) {
	if cfg.Kubeconfig == "" {
		if cfg.BootstrapKubeconfig != "" {
			return nil, errors.New("--bootstrap-kubeconfig needs --kubeconfig, which names the file to write")
		}
		return nil, nil
	}
	if err := cfg.Complete(); err != nil {
		return nil, fmt.Errorf("kubelet configuration: %w", err)
	}
	paths := certificates.Paths{Kubeconfig: cfg.Kubeconfig, Bootstrap: cfg.BootstrapKubeconfig, CertDir: cfg.CertDir}
	client, hangUp, err := certificates.ClientConfig(ctx, paths, cfg.NodeName, cfg.RotateCertificates)
	if err != nil {
		return nil, err
	}
	cfg.HangUp = hangUp
	cfg.LimitRequests(client)
	return kubernetes.NewForConfig(client)
}

// waitRuntime asks the runtime for its version until it answers.
func (k *Kubelet) waitRuntime(ctx context.Context) (*runtimeapi.VersionResponse, error) {
	log := klog.FromContext(ctx)
	wait := 20 * time.Millisecond
	for {
		v, err := k.deps.Runtime.Version(ctx, "v1")
		if err == nil {
			return v, nil
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if wait > time.Second {
			log.Error(err, "Container runtime is not answering yet")
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
		wait = min(wait*2, 5*time.Second)
	}
}

// systemd reports whether the runtime creates cgroups through systemd. What the runtime says takes
// precedence over the configuration (KEP-4033).
func (k *Kubelet) systemd(ctx context.Context) bool {
	cfg, err := k.deps.Runtime.RuntimeConfig(ctx)
	if err != nil || cfg.GetLinux() == nil {
		return k.cfg.CgroupDriver == "systemd"
	}
	return cfg.Linux.CgroupDriver == runtimeapi.CgroupDriver_SYSTEMD
}
