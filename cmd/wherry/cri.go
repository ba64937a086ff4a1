package main

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"wherry.dev/internal/component"
	"wherry.dev/internal/config"
	"wherry.dev/internal/cri"
	"wherry.dev/internal/daemon"
	"wherry.dev/internal/version"
)

// fromKubelet is the value of --pod-cidr of a runtime whose kubelet tells it the node's range.
const fromKubelet = "kubelet"

func criCommand(d *dirs) *cobra.Command {
	var listen, podCIDR, file string
	cfg := cri.Config{InstanceID: "cri", Version: version.Version}
	registries := config.Default()
	cmd := &cobra.Command{
		Use:   "cri",
		Short: "The container runtime alone, for crictl and other kubelets",
		Long: `Serves the CRI v1 RuntimeService and ImageService on a socket. Containers keep
running when it stops; the next start on the same folders finds them.`,
		Example: `  wherry cri --listen unix:///run/wherry/cri.sock
  crictl --runtime-endpoint unix:///run/wherry/cri.sock ps`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			data, run, err := d.resolve()
			if err != nil {
				return err
			}
			if err := runtimesOf(&cfg, &registries, cmd.Flags(), file); err != nil {
				return err
			}
			if cfg.AwaitPodCIDR = podCIDR == fromKubelet; cfg.AwaitPodCIDR {
				cfg.PodCIDR, cfg.PodCIDR2 = netip.Prefix{}, netip.Prefix{}
			} else if cfg.PodCIDR, cfg.PodCIDR2, err = config.PodNetworks(podCIDR); err != nil {
				return err
			}
			if cfg.Socket, err = socketPath(listen, run); err != nil {
				return err
			}
			r, err := daemon.OpenRuntime(cmd.Context(), daemon.RuntimeConfig{DataDir: data, RunDir: run, CRI: cfg, Images: daemon.ImageConfig(&registries)})
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, r.Close()) }()
			ready := make(chan struct{})
			close(ready) // everything has been recovered; what is left is to listen
			return component.Notify(cmd.Context(), ready, r.Run)
		},
	}
	f := cmd.Flags()
	f.StringVar(&listen, "listen", "", "socket to serve on, unix://PATH (default RUN-DIR/cri.sock)")
	f.StringVar(&podCIDR, "pod-cidr", "10.88.0.0/16", "network that pods get their addresses from, unless a CNI network is configured; for dual-stack pods an IPv4 and an IPv6 network, separated by a comma; "+fromKubelet+" for the node's own range (spec.podCIDRs), which its kubelet tells")
	f.StringVar(&cfg.CNIConfDir, "cni-conf-dir", "/etc/cni/net.d", "folder of CNI networks; if it has none, Wherry's own bridge is used")
	f.BoolVar(&cfg.CNIOnly, "cni-only", false, "do not use Wherry's own bridge: the network is not ready until --cni-conf-dir has one")
	f.StringSliceVar(&cfg.CNIBinDirs, "cni-bin-dir", []string{"/opt/cni/bin"}, "folders of CNI plugins")
	f.StringVar(&file, "config", "", "file with runtimes, default-ulimits, cdi-spec-dirs and image settings, as for wherry up")
	f.StringVar(&cfg.DefaultRuntime, "runtime", "", "OCI runtime: crun or runc (default: the first one installed)")
	f.StringVar(&cfg.StreamAddress, "stream-address", "127.0.0.1:0", "address for exec, attach and port-forward streams")
	registries.AddImageFlags(f)
	f.StringVar(&cfg.InstanceID, "instance-id", cfg.InstanceID, "makes the bridge, nftables table and cgroups unique among the runtimes on a machine")
	return cmd
}

// runtimesOf takes from a node's config file what the runtime alone can use; flags that were given
// take precedence.
func runtimesOf(cfg *cri.Config, images *config.Config, flags *pflag.FlagSet, file string) error {
	if file == "" {
		return nil
	}
	c := config.Default()
	if err := c.Load(file); err != nil {
		return err
	}
	cfg.Runtimes, cfg.DefaultUlimits, cfg.CDISpecDirs = daemon.Runtimes(&c), c.DefaultUlimits, c.CDISpecDirs
	if cfg.DefaultRuntime == "" {
		cfg.DefaultRuntime = c.Runtime
	}
	if !flags.Changed("registry-certs-dir") {
		images.RegistryCertsDirs = c.RegistryCertsDirs
	}
	if !flags.Changed("image-pull-progress-timeout") {
		images.ImagePullProgressTimeout = c.ImagePullProgressTimeout
	}
	if !flags.Changed("pinned-images") {
		images.PinnedImages = c.PinnedImages
	}
	return nil
}

func socketPath(listen, runDir string) (string, error) {
	if listen == "" {
		return filepath.Join(runDir, "cri.sock"), nil
	}
	path, ok := strings.CutPrefix(listen, "unix://")
	if !ok || !filepath.IsAbs(path) {
		return "", fmt.Errorf("--listen %q: want unix:// and an absolute path", listen)
	}
	return path, nil
}
