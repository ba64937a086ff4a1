package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	internalapi "k8s.io/cri-api/pkg/apis"
	remote "k8s.io/cri-client/pkg"

	"wherry.dev/internal/cgroup"
	"wherry.dev/internal/kubelet"
)

func kubeletCommand() *cobra.Command {
	cfg := kubelet.DefaultConfig()
	cmd := &cobra.Command{
		Use:   "kubelet",
		Short: "The kubelet alone, with upstream's flags, on any CRI runtime",
		Long: `Runs the pods of one node on the container runtime at --container-runtime-endpoint.
Flags and the file of --config (KubeletConfiguration) are upstream's; one that has no
effect here warns. Without --kubeconfig it runs static pods only.`,
		Example: `  wherry kubelet --kubeconfig /etc/kubernetes/kubelet.conf --config /var/lib/kubelet/config.yaml \
    --container-runtime-endpoint unix:///run/containerd/containerd.sock`,
		Args: cobra.NoArgs,
	}
	cfg.AddFlags(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := cfg.LoadFiles(cmd.Flags()); err != nil {
			return err
		}
		groups, err := cgroup.System()
		if err != nil {
			return err
		}
		deps := kubelet.Deps{Cgroups: groups}
		if deps.Runtime, deps.Images, err = dialRuntime(cmd, cfg); err != nil {
			return err
		}
		if deps.Client, err = kubeletClient(cfg.Kubeconfig); err != nil {
			return err
		}
		k, err := kubelet.New(cfg, deps)
		if err != nil {
			return err
		}
		return notify(cmd.Context(), k.Ready(), k.Run)
	}
	return cmd
}

func kubeletClient(kubeconfig string) (kubernetes.Interface, error) {
	if kubeconfig == "" {
		return nil, nil
	}
	rest, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig: %w", err)
	}
	rest.QPS, rest.ContentType = -1, "application/vnd.kubernetes.protobuf"
	return kubernetes.NewForConfig(rest)
}

func dialRuntime(cmd *cobra.Command, cfg kubelet.Config) (internalapi.RuntimeService, internalapi.ImageManagerService, error) {
	endpoint := cfg.ContainerRuntimeEndpoint
	if endpoint == "" {
		return nil, nil, errors.New("--container-runtime-endpoint is required, such as unix:///run/wherry/cri.sock")
	}
	if !strings.Contains(endpoint, "://") {
		endpoint = "unix://" + endpoint
	}
	imageEndpoint := cfg.ImageServiceEndpoint
	if imageEndpoint == "" {
		imageEndpoint = endpoint
	}
	timeout := cfg.RuntimeRequestTimeout.Duration
	runtime, err := remote.NewRemoteRuntimeServiceBuilder().WithEndpoint(endpoint).WithConnectionTimeout(timeout).Build(cmd.Context())
	if err != nil {
		return nil, nil, fmt.Errorf("--container-runtime-endpoint %s: %w", endpoint, err)
	}
	images, err := remote.NewRemoteImageServiceBuilder().WithEndpoint(imageEndpoint).WithConnectionTimeout(timeout).Build(cmd.Context())
	if err != nil {
		return nil, nil, fmt.Errorf("--image-service-endpoint %s: %w", imageEndpoint, err)
	}
	return runtime, images, nil
}
