package kubelet

import (
	"cmp"
	"context"
	"path/filepath"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"wherry.dev/internal/kubelet/csi"
	"wherry.dev/internal/kubelet/plugins"
	"wherry.dev/internal/kubelet/volume"
	"wherry.dev/internal/kubelet/volumehealth"
)

// csiVolumes returns what CSI volumes need, and the drivers that register; nil without an API server.
func (k *Kubelet) csiVolumes() *volume.CSI {
	if k.deps.Client == nil {
		return nil
	}
	node := &csi.Node{Client: k.deps.Client, Name: k.cfg.NodeName}
	return &volume.CSI{
		Drivers: &csi.Drivers{
			Install: node.Install, Update: node.Update, Uninstall: node.Uninstall, Came: func(driver string) { k.volumes.DriverCame(driver) },
		},
		Client: k.deps.Client,
	}
}

// findPlugins takes the plugins that register with the kubelet.
func (k *Kubelet) findPlugins(ctx context.Context) error {
	if k.volumes.CSI == nil || !k.watchPlugins {
		return nil
	}
	w := plugins.Watcher{
		Dir:      filepath.Join(k.cfg.RootDir, "plugins_registry"),
		Handlers: map[string]plugins.Handler{registration.CSIPlugin: k.volumes.CSI.Drivers, registration.DRAPlugin: k.claims},
	}
	return w.Run(ctx)
}

// volumeHealth returns what asks CSI drivers for the health of volumes; nil if it is off.
func (k *Kubelet) volumeHealth() *volumehealth.Manager {
	if k.volumes.CSI == nil || !k.watchPlugins || !k.cfg.VolumeHealth() {
		return nil
	}
	return &volumehealth.Manager{
		Drivers: k.volumes.CSI.Drivers, Client: k.deps.Client, NodeName: k.cfg.NodeName,
		Volumes: func() ([]volume.Attempted, error) { return volume.AttemptedOf(k.dirs) },
		Period:  cmp.Or(max(k.cfg.VolumeStatsAggPeriod.Duration, 0), time.Minute),
		Changed: func(uid types.UID) { k.table.Wake(uid) },
	}
}

// watchVolumes follows the health of volumes.
func (k *Kubelet) watchVolumes(ctx context.Context) error {
	if k.health == nil {
		return nil
	}
	return k.health.Run(ctx)
}

// followLimits keeps what the cluster knows of how many volumes the node can have.
func (k *Kubelet) followLimits(ctx context.Context) error {
	if k.volumes.CSI == nil || !k.watchPlugins {
		return nil
	}
	return k.volumes.CSI.Drivers.FollowLimits(ctx, k.deps.Client)
}

// volumesInUse are the attached volumes that nobody may detach from the node.
func (k *Kubelet) volumesInUse(before []v1.UniqueVolumeName) []v1.UniqueVolumeName {
	now, err := volume.VolumesInUse(k.dirs)
	if err != nil { // what was in use, may still be
		klog.Background().Error(err, "Cannot tell which volumes the node uses")
		return before
	}
	return now
}

// nodeSeen takes over the node's object as the API server has it.
func (k *Kubelet) nodeSeen(n *v1.Node) {
	k.node.Observe(n)
	k.podRange.observe(n)
	k.volumes.Attached.NodeSeen(n)
}

// usageTime is how long a driver may take to tell how full a volume is.
const usageTime = time.Second

// driverUsage returns what asks the driver of a volume how full it is.
func (k *Kubelet) driverUsage(ctx context.Context) func(path string) ([]*csipb.VolumeUsage, error) {
	return func(path string) ([]*csipb.VolumeUsage, error) {
		ctx, cancel := context.WithTimeout(ctx, usageTime)
		defer cancel()
		return k.volumes.DriverUsage(ctx, path)
	}
}
