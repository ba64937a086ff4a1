// Package podcgroups owns the control groups that contain those of the pods: one for all pods and one
// for each QoS class, what they are limited to, and how they weigh against each other. It also holds
// the system's and Kubernetes' own groups to what is reserved for them. The groups of pods are made
// by podops, those of containers by the runtime.
package podcgroups

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"wherry.dev/internal/kubelet/config"
	"wherry.dev/internal/kubelet/criconfig"
	"wherry.dev/internal/kubelet/nodestatus"
)

// Tree has the control groups; paths are relative to the root of the hierarchies. *cgroup.Tree
// implements it.
type Tree interface {
	Ensure(path string, limits *specs.LinuxResources) error
	Exists(path string) bool
	Children(path string) ([]string, error)
}

// Events records which limits hold, and which do not.
type Events interface {
	Eventf(object runtime.Object, eventType, reason, format string, args ...any)
}

// Config says where the groups are and what limits them.
type Config struct {
	// Tree, if nil, leaves all groups to the runtime.
	Tree    Tree
	Layout  criconfig.Layout
	Kubelet config.Config
	// MemoryQoS is what the kernel is told of memory; nil without cgroup v2.
	MemoryQoS *criconfig.MemoryQoS
	Node      func() *v1.Node
	Events    Events
	// Ref is the object of the events.
	Ref func() *v1.ObjectReference
}

// Groups are the groups of one node.
type Groups struct {
	cfg     Config
	changed chan struct{}
}

// New returns the groups; Ensure creates them.
func New(cfg Config) *Groups { return &Groups{cfg: cfg, changed: make(chan struct{}, 1)} }

var classes = []v1.PodQOSClass{v1.PodQOSGuaranteed, v1.PodQOSBurstable, v1.PodQOSBestEffort}

// Ensure creates the groups that contain the pods' groups, and sets the limits that
// enforceNodeAllocatable asks for.
func (g *Groups) Ensure(ctx context.Context) error {
	if g.cfg.Tree == nil {
		return nil
	}
	least := uint64(criconfig.Shares(0))
	for _, class := range classes {
		res := &specs.LinuxResources{}
		if class == v1.PodQOSBestEffort {
			res.CPU = &specs.LinuxCPU{Shares: &least}
		}
		if g.cfg.MemoryQoS != nil && !g.cfg.MemoryQoS.Tiered { // an earlier kubelet may have reserved some
			res.Unified = map[string]string{criconfig.MemoryMin: "0", criconfig.MemoryLow: "0"}
		}
		if err := g.cfg.Tree.Ensure(g.cfg.Layout.QOS(class), res); err != nil {
			return fmt.Errorf("cgroup of QoS class %s: %w", class, err)
		}
	}
	if err := g.limitPods(ctx); err != nil {
		return err
	}
	return g.limitReserved()
}

// Pods returns the UIDs of the pods that have a group.
func (g *Groups) Pods() ([]types.UID, error) {
	if g.cfg.Tree == nil {
		return nil, nil
	}
	var out []types.UID
	for _, class := range classes {
		names, err := g.cfg.Tree.Children(g.cfg.Layout.QOS(class))
		if err != nil {
			return out, err
		}
		for _, name := range names {
			if uid, ok := g.cfg.Layout.UID(name); ok {
				out = append(out, types.UID(uid))
			}
		}
	}
	return out, nil
}

// limitPods limits all pods together to what is allocatable.
func (g *Groups) limitPods(ctx context.Context) error {
	if !slices.Contains(g.cfg.Kubelet.EnforceNodeAllocatable, "pods") {
		return nil
	}
	limits, err := g.podsLimits()
	if err != nil {
		return err
	}
	// Pods that already use more keep it: a node without this limit is better than none.
	if err := g.cfg.Tree.Ensure(g.cfg.Layout.QOS(v1.PodQOSGuaranteed), limits); err != nil {
		klog.FromContext(ctx).Error(err, "Failed to enforce the node's allocatable limits on pods")
		g.cfg.Events.Eventf(g.cfg.Ref(), v1.EventTypeWarning, "FailedNodeAllocatableEnforcement", "Failed to update Node Allocatable Limits %q: %v", g.cfg.Layout.QOS(v1.PodQOSGuaranteed), err)
		return nil
	}
	g.cfg.Events.Eventf(g.cfg.Ref(), v1.EventTypeNormal, "NodeAllocatableEnforced", "Updated Node Allocatable limit across pods")
	return nil
}

// limitReserved limits the cgroups of the system and of Kubernetes, which somebody else has
// created, to what is reserved for them. If it cannot, that is an error: a user who asks for the
// limit does not want the node without it.
func (g *Groups) limitReserved() error {
	for _, r := range []struct {
		what, title, group string
		list               map[string]string
	}{
		{"system-reserved", "System Reserved", g.cfg.Kubelet.SystemReservedCgroup, g.cfg.Kubelet.SystemReserved},
		{"kube-reserved", "Kube Reserved", g.cfg.Kubelet.KubeReservedCgroup, g.cfg.Kubelet.KubeReserved},
	} {
		for _, compressible := range []bool{false, true} {
			key, title := r.what, r.title
			if compressible {
				key, title = key+"-compressible", title+" Compressible"
			}
			if !slices.Contains(g.cfg.Kubelet.EnforceNodeAllocatable, key) {
				continue
			}
			if err := g.limitExisting(r.group, r.list, compressible); err != nil {
				message := fmt.Sprintf("Failed to enforce %s Cgroup Limits on %q: %v", title, r.group, err)
				g.cfg.Events.Eventf(g.cfg.Ref(), v1.EventTypeWarning, "FailedNodeAllocatableEnforcement", "%s", message)
				return errors.New(message)
			}
			g.cfg.Events.Eventf(g.cfg.Ref(), v1.EventTypeNormal, "NodeAllocatableEnforced", "Updated limits on %s cgroup %s", strings.ToLower(r.title), r.group)
		}
	}
	return nil
}

// limitExisting limits a cgroup that already exists.
func (g *Groups) limitExisting(group string, reserved map[string]string, compressible bool) error {
	limits, err := reservedLimits(reserved, compressible)
	if err != nil {
		return err
	}
	path := group
	if g.cfg.Layout.Systemd {
		path = slicePath(group)
	}
	if !g.cfg.Tree.Exists(path) {
		return fmt.Errorf("cgroup %s does not exist", path)
	}
	if q := g.cfg.MemoryQoS; q != nil && q.Tiered && limits.Memory != nil {
		limits.Unified = map[string]string{criconfig.MemoryMin: strconv.FormatInt(*limits.Memory.Limit, 10)}
	}
	return g.cfg.Tree.Ensure(path, limits)
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
func (g *Groups) podsLimits() (*specs.LinuxResources, error) {
	without := g.cfg.Kubelet
	without.EvictionHard = nil
	reserved, err := without.Reserved(0, 0)
	if err != nil {
		return nil, err
	}
	capacity := g.cfg.Node().Status.Capacity
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
