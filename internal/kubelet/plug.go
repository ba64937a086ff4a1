package kubelet

import (
	"context"
	"maps"
	"path/filepath"

	v1 "k8s.io/api/core/v1"

	"wherry.dev/internal/kubelet/devices"
	"wherry.dev/internal/kubelet/podresources"
)

func (k *Kubelet) newDevices() (*devices.Manager, error) {
	return devices.New(devices.Config{
		Dir: filepath.Join(k.cfg.RootDir, "device-plugins"), State: filepath.Join(k.cfg.RootDir, "device_resources.json"), Changed: k.devicesChanged,
	})
}

func (k *Kubelet) runDevices(ctx context.Context) error {
	if !k.watchPlugins {
		return nil
	}
	return k.devices.Run(ctx)
}

// tellResources tells agents on the node which devices pods have.
func (k *Kubelet) tellResources(ctx context.Context) error {
	if !k.watchPlugins {
		return nil
	}
	return podresources.Run(ctx, podresources.Config{
		Socket: filepath.Join(k.cfg.RootDir, "pod-resources", "kubelet.sock"), Pods: k.table.List, Devices: k.devices.Devices,
	})
}

// devicesChanged reports the devices, and decides on pods that wait for some.
func (k *Kubelet) devicesChanged() {
	k.node.Trigger()
	k.admission.Freed()
}

// nodeWithDevices returns the node as it was last seen, with the devices as they are now.
func (k *Kubelet) nodeWithDevices() *v1.Node {
	n := k.node.Node()
	_, healthy := k.devices.Resources()
	if len(healthy) == 0 {
		return n
	}
	with := *n
	with.Status.Allocatable = maps.Clone(n.Status.Allocatable)
	if with.Status.Allocatable == nil {
		with.Status.Allocatable = v1.ResourceList{}
	}
	maps.Copy(with.Status.Allocatable, healthy)
	return &with
}
