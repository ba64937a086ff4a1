package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"

	"wherry.dev/internal/api/cluster"
	"wherry.dev/internal/cni/mesh"
	"wherry.dev/internal/config"
	"wherry.dev/internal/cri"
	"wherry.dev/internal/image"
	"wherry.dev/internal/version"
)

// criConfig returns the runtime's configuration for an instance; Down uses it too, on what a daemon
// left behind.
func criConfig(cfg *config.Config) (cri.Config, error) {
	var pods, pods2 netip.Prefix
	var networks []netip.Prefix
	if cfg.OwnRange() {
		var err error
		if pods, pods2, err = config.PodNetworks(cfg.PodCIDR); err != nil {
			return cri.Config{}, err
		}
	}
	if cfg.ClusterCIDR != "" { // a node that takes itself down may not have been told
		networks = cfg.ClusterNetworks()
	}
	return cri.Config{
		AwaitPodCIDR: !cfg.OwnRange(), ClusterCIDRs: networks, Overlay: mesh.LinkName(cfg.InstanceID()),
		CNIOnly: cfg.NetworkMode == cluster.ModeNone,
		Root:    filepath.Join(cfg.DataDir, "cri"), State: filepath.Join(cfg.RunDir, "cri"), Socket: cfg.CRISocket(),
		InstanceID: cfg.InstanceID(), DefaultRuntime: cfg.Runtime, Runtimes: Runtimes(cfg),
		DefaultUlimits: cfg.DefaultUlimits, CDISpecDirs: cfg.CDISpecDirs,
		PodCIDR: pods, PodCIDR2: pods2, CNIConfDir: cfg.CNIConfDir, CNIBinDirs: cfg.CNIBinDirs,
		Version: version.Version,
	}, nil
}

// Runtimes returns the OCI runtimes that a configuration adds.
func Runtimes(cfg *config.Config) map[string]cri.RuntimeConfig {
	all := map[string]cri.RuntimeConfig{}
	for name, r := range cfg.Runtimes {
		all[name] = cri.RuntimeConfig(r)
	}
	return all
}

// OpenImages opens the image store of an instance whose daemon does not run, with the configuration
// of its last start. It does not make a store.
func OpenImages(dataDir, runDir string) (*image.Store, error) {
	cfg, err := imagesConfig(dataDir, runDir)
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(StoreDir(dataDir)); errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("there is no instance with images in %s; name another data dir with --data-dir, or start a node with `wherry up`", dataDir)
	}
	return openImages(&cfg)
}

// MakeImages is OpenImages for whoever adds images: it makes the store if there is none.
func MakeImages(dataDir, runDir string) (*image.Store, error) {
	cfg, err := imagesConfig(dataDir, runDir)
	if err != nil {
		return nil, err
	}
	return openImages(&cfg)
}

// imagesConfig returns the configuration of an instance that has its images itself.
func imagesConfig(dataDir, runDir string) (config.Config, error) {
	cfg, _, err := lastConfig(dataDir, runDir)
	if err == nil && cfg.RuntimeEndpoint != "" {
		err = errImagesElsewhere(cfg.RuntimeEndpoint)
	}
	return cfg, err
}

func openImages(cfg *config.Config) (*image.Store, error) {
	c := ImageConfig(cfg)
	c.KeepFree = keepFree
	return image.OpenWith(StoreDir(cfg.DataDir), c)
}

// ImageConfig returns what the image store needs of the configuration. openImages adds
// KeepFree: next to a kubelet of our own the store also keeps room free, because the thresholds at
// which that kubelet evicts pods are known.
func ImageConfig(cfg *config.Config) image.Config {
	return image.Config{
		CertsDirs: cfg.RegistryCertsDirs, ProgressTimeout: cfg.ImagePullProgressTimeout.Duration, Pinned: cfg.PinnedImages,
	}
}

// startControl serves the control socket.
func (d *Daemon) startControl(ctx context.Context, c *control) {
	d.group.start(ctx, "control", func(ctx context.Context) error { return c.serve(ctx, ControlSocket(d.cfg.RunDir)) })
}

func (d *Daemon) startRuntime(ctx, startCtx context.Context) error {
	if d.cfg.RuntimeEndpoint != "" {
		return d.startExternalRuntime(ctx, startCtx)
	}
	var err error
	if d.images, err = openImages(&d.cfg); err != nil {
		return err
	}
	d.startControl(ctx, &control{images: d.images, traces: d.traces, elsewhere: d.tracesElsewhere, api: &d.serving})
	cc, err := criConfig(&d.cfg)
	if err != nil {
		return err
	}
	cc.Progress, cc.Guard = d.progress, &d.guard
	server, err := cri.New(ctx, cc, d.images)
	if err != nil {
		return err
	}
	d.runtime, d.imageService = server.Runtime(), server.Images()
	d.group.start(ctx, "cri", server.Run)
	return importImages(startCtx, d.images, d.cfg.ImagesDir(), d.progress)
}
