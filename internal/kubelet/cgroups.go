package kubelet

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"wherry.dev/internal/cgroup"
	"wherry.dev/internal/kubelet/config"
	"wherry.dev/internal/kubelet/criconfig"
	"wherry.dev/internal/kubelet/nodestatus"
)

// ensureCgroups creates the groups that contain the pods' groups, and limits all pods together to
// what is allocatable if enforceNodeAllocatable says so.
func (k *Kubelet) ensureCgroups(ctx context.Context) error {
	if k.deps.Cgroups == nil {
		return nil
	}
	least := uint64(criconfig.Shares(0))
	for _, class := range []v1.PodQOSClass{v1.PodQOSGuaranteed, v1.PodQOSBurstable, v1.PodQOSBestEffort} {
		res := &specs.LinuxResources{}
		if class == v1.PodQOSBestEffort {
			res.CPU = &specs.LinuxCPU{Shares: &least}
		}
		if err := k.deps.Cgroups.Ensure(k.layout.QOS(class), res); err != nil {
			return fmt.Errorf("cgroup of QoS class %s: %w", class, err)
		}
	}
	if err := k.limitPods(ctx); err != nil {
		return err
	}
	return k.limitReserved()
}

// limitPods limits all pods together to what is allocatable.
func (k *Kubelet) limitPods(ctx context.Context) error {
	if !slices.Contains(k.cfg.EnforceNodeAllocatable, "pods") {
		return nil
	}
	limits, err := k.podsLimits()
	if err != nil {
		return err
	}
	// Pods that already use more keep it: a node without this limit is better than none.
	if err := k.deps.Cgroups.Ensure(k.layout.QOS(v1.PodQOSGuaranteed), limits); err != nil {
		klog.FromContext(ctx).Error(err, "Failed to enforce the node's allocatable limits on pods")
		k.events.Eventf(k.node.Ref(), v1.EventTypeWarning, "FailedNodeAllocatableEnforcement", "Failed to update Node Allocatable Limits %q: %v", k.layout.QOS(v1.PodQOSGuaranteed), err)
		return nil
	}
	k.events.Eventf(k.node.Ref(), v1.EventTypeNormal, "NodeAllocatableEnforced", "Updated Node Allocatable limit across pods")
	return nil
}

// limitReserved limits the cgroups of the system and of Kubernetes, which somebody else has
// created, to what is reserved for them. If it cannot, that is an error: a user who asks for the
// limit does not want the node without it.
func (k *Kubelet) limitReserved() error {
	for _, r := range []struct {
		what, title, group string
		list               map[string]string
	}{
		{"system-reserved", "System Reserved", k.cfg.SystemReservedCgroup, k.cfg.SystemReserved},
		{"kube-reserved", "Kube Reserved", k.cfg.KubeReservedCgroup, k.cfg.KubeReserved},
	} {
		for _, compressible := range []bool{false, true} {
			key, title := r.what, r.title
			if compressible {
				key, title = key+"-compressible", title+" Compressible"
			}
			if !slices.Contains(k.cfg.EnforceNodeAllocatable, key) {
				continue
			}
			if err := k.limitExisting(r.group, r.list, compressible); err != nil {
				message := fmt.Sprintf("Failed to enforce %s Cgroup Limits on %q: %v", title, r.group, err)
				k.events.Eventf(k.node.Ref(), v1.EventTypeWarning, "FailedNodeAllocatableEnforcement", "%s", message)
				return errors.New(message)
			}
			k.events.Eventf(k.node.Ref(), v1.EventTypeNormal, "NodeAllocatableEnforced", "Updated limits on %s cgroup %s", strings.ToLower(r.title), r.group)
		}
	}
	return nil
}

// limitExisting limits a cgroup that already exists.
func (k *Kubelet) limitExisting(group string, reserved map[string]string, compressible bool) error {
	limits, err := reservedLimits(reserved, compressible)
	if err != nil {
		return err
	}
	path := group
	if k.layout.Systemd {
		path = slicePath(group)
	}
	if !k.deps.Cgroups.Exists(path) {
		return fmt.Errorf("cgroup %s does not exist", path)
	}
	return k.deps.Cgroups.Ensure(path, limits)
}

// reservedLimits turns what is reserved into limits; only CPU is compressible.
func reservedLimits(reserved map[string]string, compressible bool) (*specs.LinuxResources, error) {
	res := &specs.LinuxResources{}
	for name, text := range reserved {
		q, err := resource.ParseQuantity(text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if q.Sign() <= 0 || compressible && name != string(v1.ResourceCPU) {
			continue
		}
		n := q.Value()
		switch name {
		case string(v1.ResourceCPU):
			shares := uint64(criconfig.Shares(q.MilliValue()))
			res.CPU = &specs.LinuxCPU{Shares: &shares}
		case string(v1.ResourceMemory):
			res.Memory = &specs.LinuxMemory{Limit: &n}
		case "pid":
			res.Pids = &specs.LinuxPids{Limit: &n}
		}
	}
	return res, nil
}

// slicePath returns where systemd has a slice: a-b.slice is inside a.slice. The name may be given
// as a path of slices, or without the suffix.
func slicePath(group string) string {
	name := strings.TrimSuffix(filepath.Base(group), ".slice")
	path, prefix := "/", ""
	for part := range strings.SplitSeq(name, "-") {
		path = filepath.Join(path, prefix+part+".slice")
		prefix += part + "-"
	}
	return path
}

// podsLimits returns what all pods together may use: the capacity minus what is reserved. The
// eviction thresholds do not count: they are not a limit, but where eviction begins.
func (k *Kubelet) podsLimits() (*specs.LinuxResources, error) {
	without := k.cfg
	without.EvictionHard = nil
	reserved, err := without.Reserved(0, 0)
	if err != nil {
		return nil, err
	}
	capacity := k.node.Node().Status.Capacity
	left := func(name v1.ResourceName) resource.Quantity {
		q := capacity[name].DeepCopy()
		q.Sub(reserved[name])
		return q
	}
	cpu, memory := left(v1.ResourceCPU), left(v1.ResourceMemory)
	shares, bytes := uint64(criconfig.Shares(cpu.MilliValue())), memory.Value()
	res := &specs.LinuxResources{CPU: &specs.LinuxCPU{Shares: &shares}, Memory: &specs.LinuxMemory{Limit: &bytes}}
	for name, q := range capacity {
		if size, ok := strings.CutPrefix(string(name), v1.ResourceHugePagesPrefix); ok {
			res.HugepageLimits = append(res.HugepageLimits, specs.LinuxHugepageLimit{
				Pagesize: strings.ReplaceAll(size, "i", "") + "B", Limit: uint64(q.Value()),
			})
		}
	}
	if pids, ok := reserved["pid"]; ok {
		if most := nodestatus.PIDs(); most > pids.Value() {
			n := most - pids.Value()
			res.Pids = &specs.LinuxPids{Limit: &n}
		}
	}
	return res, nil
}

// swap returns how much of the node's swap containers may use; nil if it cannot be limited.
func (k *Kubelet) swap() *criconfig.Swap {
	mode, err := cgroup.Version()
	if err != nil || mode != cgroup.V2 {
		return nil
	}
	s := &criconfig.Swap{Limited: k.cfg.MemorySwap.SwapBehavior == config.SwapLimited}
	if info := k.node.Node().Status.NodeInfo.Swap; info != nil && info.Capacity != nil {
		s.Capacity = *info.Capacity
	}
	return s
}

// oomGroup reports whether all processes of a container are killed when one runs out of memory.
// Only cgroup v2 can do that.
func (k *Kubelet) oomGroup() bool {
	mode, err := cgroup.Version()
	return err == nil && mode == cgroup.V2 && !ptr.Deref(k.cfg.SingleProcessOOMKill, false)
}
