package kubelet

import (
	"context"
	"maps"
	"path/filepath"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"wherry.dev/internal/kubelet/devices"
	"wherry.dev/internal/kubelet/dra"
	"wherry.dev/internal/kubelet/numa"
	"wherry.dev/internal/kubelet/podresources"
	"wherry.dev/internal/kubelet/podsapi"
	"wherry.dev/internal/kubelet/podworker"
)

func (k *Kubelet) newDevices(nodes numa.Nodes) (*devices.Manager, error) {
	return devices.New(devices.Config{
		Dir: filepath.Join(k.cfg.RootDir, "device-plugins"), State: filepath.Join(k.cfg.RootDir, "device_resources.json"), Changed: k.devicesChanged,
		Nodes: nodes,
	})
}

// newClaims returns what prepares resource claims. A pod whose driver has come goes on.
func (k *Kubelet) newClaims(pods *podworker.Pods) (*dra.Manager, error) {
	m, err := dra.New(filepath.Join(k.cfg.RootDir, "dra"))
	if err != nil {
		return nil, err
	}
	m.Client, m.Retry = k.deps.Client, pods.ObjectChanged
	m.Look = func(uid types.UID) { k.table.Wake(uid) }
	return m, nil
}

// removeSlices removes what drivers that are away have told the cluster of this node's devices.
func (k *Kubelet) removeSlices(ctx context.Context) error {
	if !k.watchPlugins {
		return nil
	}
	return k.claims.RemoveSlices(ctx, k.cfg.NodeName)
}

func (k *Kubelet) runDevices(ctx context.Context) error {
	if !k.watchPlugins {
		return nil
	}
	return apart(ctx, k.devices.Run)
}

// apart runs what most pods do not need: if it cannot be served, the kubelet goes on without it.
func apart(ctx context.Context, run func(context.Context) error) error {
	if err := run(ctx); err != nil {
		klog.FromContext(ctx).Error(err, "The kubelet goes on without one of its services")
	}
	return nil
}

// tellResources tells agents on the node which devices pods have.
func (k *Kubelet) tellResources(ctx context.Context) error {
	if !k.watchPlugins {
		return nil
	}
	return apart(ctx, func(ctx context.Context) error {
		return podresources.Run(ctx, podresources.Config{
			Socket: filepath.Join(k.cfg.RootDir, "pod-resources", "kubelet.sock"), Pods: k.table.List, Devices: k.devices.Devices, Claims: k.claims.Given, CPUs: k.cpus.Assignable,
			Memory: k.memory.Allocatable,
		})
	})
}

// tellPods tells agents on the node which pods it has.
func (k *Kubelet) tellPods(ctx context.Context) error {
	if !k.watchPlugins || !k.cfg.PodsAPI() {
		return nil
	}
	return apart(ctx, func(ctx context.Context) error {
		return podsapi.Run(ctx, filepath.Join(k.cfg.RootDir, "pods-api", "pods-api.sock"), k.table.Pods)
	})
}

// devicesChanged reports the devices, to the pods that have some too, and decides on pods that wait for some.
func (k *Kubelet) devicesChanged() {
	k.node.Trigger()
	k.admission.Freed()
	for _, p := range k.table.List() {
		if v := p.Input.Record.Verdict; v != nil && v.Devices != nil {
			k.table.Wake(p.Pod.UID)
		}
	}
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
