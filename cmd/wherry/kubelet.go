package main

import (
	"fmt"

	"github.com/spf13/cobra"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/klog/v2"

	"wherry.dev/internal/cgroup"
	"wherry.dev/internal/component"
	"wherry.dev/internal/kubelet"
	kubeletconfig "wherry.dev/internal/kubelet/config"
	"wherry.dev/internal/kubelet/host"
	"wherry.dev/internal/kubelet/oom"
	"wherry.dev/internal/mount"
)

func kubeletCommand() *cobra.Command {
	cfg := kubeletconfig.Default()
	cmd := &cobra.Command{
		Use:   "kubelet",
		Short: "The kubelet alone, with upstream's flags, on any CRI runtime",
		Long: `Runs the pods of one node on the container runtime at --container-runtime-endpoint.
Flags and the file of --config (KubeletConfiguration) are upstream's; one that has no
effect here logs a warning. Without --kubeconfig it runs static pods only; if that file does not
exist yet, --bootstrap-kubeconfig gets it from the API server.`,
		Example: `  wherry kubelet --kubeconfig /etc/kubernetes/kubelet.conf --config /var/lib/kubelet/config.yaml \
    --container-runtime-endpoint unix:///run/containerd/containerd.sock`,
		Args: cobra.NoArgs,
	}
	component.AddVersion(cmd)
	cfg.AddFlags(cmd.Flags())
	cfg.Flags = cmd.Flags()
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := cfg.LoadFiles(cmd.Flags()); err != nil {
			return err
		}
		if err := logsapi.ValidateAndApply(&cfg.Logging, nil); err != nil {
			return fmt.Errorf("logging: %w", err)
		}
		if err := cfg.Validate(); err != nil { // before waiting for anything
			return err
		}
		host.SetUpProcess(klog.FromContext(cmd.Context()), &cfg)
		groups, err := cgroup.System()
		if err != nil {
			return err
		}
		deps := kubelet.Deps{Cgroups: groups, WatchMemory: cgroup.WatchMemory, Share: mount.Share, KernelLog: oom.KernelLog}
		if deps.Runtime, deps.Images, err = kubelet.DialRuntime(cmd.Context(), cfg.ContainerRuntimeEndpoint, cfg.ImageServiceEndpoint, cfg.RuntimeRequestTimeout.Duration); err != nil {
			return err
		}
		if deps.Client, err = kubelet.Connect(cmd.Context(), &cfg); err != nil {
			return err
		}
		k, err := kubelet.New(cfg, deps)
		if err != nil {
			return err
		}
		return component.Watched(cmd.Context(), k.Serves(), k.Healthy, k.Run)
	}
	return cmd
}
