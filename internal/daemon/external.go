package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/cni"
	"wherry.dev/internal/config"
	"wherry.dev/internal/kubelet"
)

const (
	// dialPatience is how long the start waits for a runtime that is not ours.
	dialPatience = 10 * time.Second
	// callPatience is how long one of its calls may take: upstream's runtimeRequestTimeout. Docker's
	// StopPodSandbox alone gives a container ten seconds to end.
	callPatience = 2 * time.Minute
)

// dialExternal connects to the runtime at --container-runtime-endpoint.
func dialExternal(ctx context.Context, cfg *config.Config) (internalapi.RuntimeService, internalapi.ImageManagerService, error) {
	ctx, cancel := context.WithTimeout(ctx, dialPatience)
	defer cancel()
	return kubelet.DialRuntime(ctx, cfg.RuntimeEndpoint, "", callPatience)
}

// startExternalRuntime uses the runtime at --container-runtime-endpoint instead of our own: images,
// containers and the pods' network are that runtime's. Services stay ours.
func (d *Daemon) startExternalRuntime(ctx, startCtx context.Context) error {
	var err error
	if d.runtime, d.imageService, err = dialExternal(startCtx, &d.cfg); err != nil {
		return err
	}
	d.startControl(ctx, &control{traces: d.traces, elsewhere: d.tracesElsewhere, endpoint: d.cfg.RuntimeEndpoint, api: &d.serving})
	return serviceNetwork(&d.cfg).Bridge.RemoveTable(startCtx)
}

// serviceNetwork returns the network without pods in which older versions had the API server's
// service.
func serviceNetwork(cfg *config.Config) cni.Config {
	return cni.Config{
		PluginsOnly: true,
		Bridge:      cni.BridgeConfig{Name: "wh-" + cfg.InstanceID(), Table: "wherry-" + cfg.InstanceID(), Dir: filepath.Join(cfg.RunDir, "network")},
		Plugins:     cni.PluginsConfig{CacheDir: filepath.Join(cfg.RunDir, "network", "cni")},
	}
}

// teardownExternalRuntime removes this node's pods from the runtime, and nothing else that may run
// there.
func teardownExternalRuntime(ctx context.Context, cfg *config.Config) error {
	entries, err := os.ReadDir(filepath.Join(kubeletDir(cfg.DataDir), "pods"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if len(entries) > 0 {
		if err := removePods(ctx, cfg, entries); err != nil {
			return fmt.Errorf("remove the pods from %s: %w", cfg.RuntimeEndpoint, err)
		}
	}
	return serviceNetwork(cfg).Remove(ctx)
}

func removePods(ctx context.Context, cfg *config.Config, dirs []fs.DirEntry) error {
	runtime, _, err := dialExternal(ctx, cfg)
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	for _, dir := range dirs {
		labels := map[string]string{pods.LabelPodUID: dir.Name()}
		if err := stopContainers(ctx, runtime, labels); err != nil {
			return err
		}
		sandboxes, err := runtime.ListPodSandbox(ctx, &runtimeapi.PodSandboxFilter{LabelSelector: labels})
		if err != nil {
			return err
		}
		for _, s := range sandboxes {
			g.Go(func() error {
				if err := runtime.StopPodSandbox(ctx, s.Id); err != nil {
					return err
				}
				return runtime.RemovePodSandbox(ctx, s.Id)
			})
		}
	}
	return g.Wait()
}
