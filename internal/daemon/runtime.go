package daemon

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"

	"wherry.dev/internal/cni"
	"wherry.dev/internal/config"
	"wherry.dev/internal/cri"
	"wherry.dev/internal/image"
	"wherry.dev/internal/version"
)

// criConfig is the runtime of an instance; Down uses it too, on what a daemon left.
func criConfig(cfg *config.Config) (cri.Config, error) {
	pods, pods2, err := config.PodNetworks(cfg.PodCIDR)
	if err != nil {
		return cri.Config{}, err
	}
	return cri.Config{
		Root: filepath.Join(cfg.DataDir, "cri"), State: filepath.Join(cfg.RunDir, "cri"), Socket: cfg.CRISocket(),
		InstanceID: cfg.InstanceID(), DefaultRuntime: cfg.Runtime, Runtimes: Runtimes(cfg),
		DefaultUlimits: cfg.DefaultUlimits, CDISpecDirs: cfg.CDISpecDirs,
		PodCIDR: pods, PodCIDR2: pods2, CNIConfDir: cfg.CNIConfDir, CNIBinDirs: cfg.CNIBinDirs,
		Version: version.Version,
	}, nil
}

// Runtimes are the OCI runtimes that a configuration adds.
func Runtimes(cfg *config.Config) map[string]cri.RuntimeConfig {
	all := map[string]cri.RuntimeConfig{}
	for name, r := range cfg.Runtimes {
		all[name] = cri.RuntimeConfig(r)
	}
	return all
}

// OpenImages opens the image store of an instance whose daemon does not run, as its
// last start was configured.
func OpenImages(dataDir, runDir string) (*image.Store, error) {
	cfg, _, err := lastConfig(dataDir, runDir)
	if err != nil {
		return nil, err
	}
	if cfg.RuntimeEndpoint != "" {
		return nil, errImagesElsewhere(cfg.RuntimeEndpoint)
	}
	return openImages(&cfg)
}

func openImages(cfg *config.Config) (*image.Store, error) {
	c := ImageConfig(cfg)
	c.KeepFree = keepFree
	return image.OpenWith(StoreDir(cfg.DataDir), c)
}

// ImageConfig is what the image store needs of the configuration. Beside a kubelet of its own
// it keeps room free, too: where pods are evicted, that one knows.
func ImageConfig(cfg *config.Config) image.Config {
	return image.Config{
		CertsDirs: cfg.RegistryCertsDirs, ProgressTimeout: cfg.ImagePullProgressTimeout.Duration, Pinned: cfg.PinnedImages,
	}
}

func (d *Daemon) startRuntime(ctx, startCtx context.Context) error {
	if d.cfg.RuntimeEndpoint != "" {
		return d.startExternalRuntime(ctx, startCtx)
	}
	var err error
	if d.images, err = openImages(&d.cfg); err != nil {
		return err
	}
	c := &control{images: d.images, traces: d.traces}
	d.group.start(ctx, "control", func(ctx context.Context) error { return c.serve(ctx, ControlSocket(d.cfg.RunDir)) })
	cc, err := criConfig(&d.cfg)
	if err != nil {
		return err
	}
	cc.Progress = d.progress
	server, err := cri.New(ctx, cc, d.images)
	if err != nil {
		return err
	}
	d.runtime, d.imageService = server.Runtime(), server.Images()
	d.group.start(ctx, "cri", server.Run)
	if err := d.setAPIService(startCtx, server); err != nil {
		return err
	}
	return importImages(startCtx, d.images, d.cfg.ImagesDir(), d.progress)
}

// services can lead an address to others.
type services interface {
	SetService(ctx context.Context, s cni.Service) error
}

// setAPIService leads the address of the service default/kubernetes, the first of
// the service network, to the API server, so that programs in pods reach it by
// their in-cluster configuration.
func (d *Daemon) setAPIService(ctx context.Context, network services) error {
	services, err := netip.ParsePrefix(d.cfg.ServiceCIDR)
	if err != nil {
		return fmt.Errorf("--service-cidr: %w", err)
	}
	node, err := netip.ParseAddr(d.cfg.NodeIP)
	if err != nil {
		return fmt.Errorf("--node-ip: %w", err)
	}
	return network.SetService(ctx, cni.Service{
		VIP: services.Masked().Addr().Next(), Port: 443,
		Backends: []netip.AddrPort{netip.AddrPortFrom(node, uint16(d.cfg.SecurePort))},
	})
}
