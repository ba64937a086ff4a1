// Package memory gives the containers of Guaranteed pods memory and huge pages of certain NUMA nodes (the memory manager's
// policy Static, KEP-1769).
//
// Which nodes a container gets is decided when its pod is admitted, and is in the pod's record: what is free is what no
// record of a pod that may still run names. A node's memory goes either to containers that have it from this node alone, or
// to those that share one group of nodes. The kernel keeps a container's memory on its nodes; it does not keep others away
// from them.
package memory

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/kubectl/pkg/util/qos"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/kubelet/numa"
	"wherry.dev/internal/kubelet/podplan"
)

// Sizes are bytes of memory and of huge pages.
type Sizes map[v1.ResourceName]uint64

// Manager decides from which nodes containers get their memory. It is immutable; nil is the policy None, under which it
// may come from anywhere.
type Manager struct {
	nodes numa.Nodes
	// free is what each node may give when nobody has anything.
	free map[int]Sizes
}

// Config is what a Manager needs to know.
type Config struct {
	Policy  string
	Machine numa.Machine
	// Reserved is what each node keeps for the system and Kubernetes; Total is what the whole machine is to keep.
	Reserved []kubeletconfig.MemoryReservation
	Total    v1.ResourceList
}

// Check returns what is wrong with a policy and its reservations; errors name the field.
func Check(policy string, reserved []kubeletconfig.MemoryReservation) error {
	var errs []error
	if policy != kubeletconfig.NoneMemoryManagerPolicy && policy != kubeletconfig.StaticMemoryManagerPolicy {
		errs = append(errs, fmt.Errorf("memoryManagerPolicy (--memory-manager-policy): unknown policy: %q: want %s or %s",
			policy, kubeletconfig.NoneMemoryManagerPolicy, kubeletconfig.StaticMemoryManagerPolicy))
	}
	type place struct {
		node int32
		name v1.ResourceName
	}
	seen := map[place]bool{}
	for _, r := range reserved {
		for _, name := range slices.Sorted(maps.Keys(r.Limits)) {
			what := fmt.Sprintf("reservedMemory (--reserved-memory): NUMA node %d: %s", r.NumaNode, name)
			q := r.Limits[name]
			switch {
			case !Counts(name):
				errs = append(errs, fmt.Errorf("%s: only memory and hugepages-<size> can be reserved", what))
			case q.Sign() <= 0:
				errs = append(errs, fmt.Errorf("%s: want more than zero, or nothing", what))
			case seen[place{r.NumaNode, name}]:
				errs = append(errs, fmt.Errorf("%s: it is there twice", what))
			}
			seen[place{r.NumaNode, name}] = true
		}
	}
	return errors.Join(errs...)
}

// Counts reports whether nodes have a resource of their own: memory and huge pages.
func Counts(name v1.ResourceName) bool {
	return name == v1.ResourceMemory || strings.HasPrefix(string(name), v1.ResourceHugePagesPrefix)
}

// New returns a Manager; nil for the policy None.
func New(cfg Config) (*Manager, error) {
	if err := Check(cfg.Policy, cfg.Reserved); err != nil {
		return nil, err
	}
	if cfg.Policy == kubeletconfig.NoneMemoryManagerPolicy {
		return nil, nil
	}
	if n := cfg.Machine.Nodes.Count(); n > numa.MostSets {
		return nil, fmt.Errorf("memoryManagerPolicy (--memory-manager-policy) Static: the machine has %d NUMA nodes, more than %d: use the policy None",
			n, numa.MostSets)
	}
	m := &Manager{nodes: cfg.Machine.Nodes, free: map[int]Sizes{}}
	for id, has := range cfg.Machine.Memory {
		m.free[id] = Sizes{}
		huge := uint64(0)
		for name, size := range has {
			if m.free[id][name] = size; name != v1.ResourceMemory {
				huge += size
			}
		}
		m.free[id][v1.ResourceMemory] -= min(huge, m.free[id][v1.ResourceMemory])
	}
	sum := v1.ResourceList{}
	for _, r := range cfg.Reserved {
		if !cfg.Machine.Nodes.Has(int(r.NumaNode)) {
			return nil, fmt.Errorf("reservedMemory (--reserved-memory): the machine has no NUMA node %d: it has %s", r.NumaNode, cfg.Machine.Nodes)
		}
		for name, q := range r.Limits {
			has := m.free[int(r.NumaNode)]
			if uint64(q.Value()) > has[name] {
				return nil, fmt.Errorf("reservedMemory (--reserved-memory): NUMA node %d: %s: %s is more than the node has", r.NumaNode, name, q.String())
			}
			has[name] -= uint64(q.Value())
			total := sum[name]
			total.Add(q)
			sum[name] = total
		}
	}
	if q := sum[v1.ResourceMemory]; q.IsZero() {
		return nil, errors.New("memoryManagerPolicy Static: reserve memory on some NUMA node for the system, " +
			"in reservedMemory (--reserved-memory): as much as systemReserved, kubeReserved and the hard eviction threshold keep")
	}
	return m, same(sum, cfg.Total)
}

// same wants the nodes together to keep what the machine keeps: the scheduler counts on it.
func same(nodes, machine v1.ResourceList) error {
	names := map[v1.ResourceName]bool{}
	for _, list := range []v1.ResourceList{nodes, machine} {
		for name := range list {
			names[name] = Counts(name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if a, b := nodes[name], machine[name]; names[name] && a.Cmp(b) != 0 {
			return fmt.Errorf("reservedMemory (--reserved-memory): the NUMA nodes keep %s of %s, and the machine %s (systemReserved, "+
				"kubeReserved and the hard eviction threshold together): they have to be the same", a.String(), name, b.String())
		}
	}
	return nil
}

// Allocatable returns what each node may give, by node; nil-safe.
func (m *Manager) Allocatable() map[int]Sizes {
	if m == nil {
		return nil
	}
	return m.free
}

// Wants reports whether a pod gets memory of certain nodes. The resources of a pod as a whole are shared by its containers.
func (m *Manager) Wants(pod *v1.Pod) bool {
	return m != nil && qos.GetPodQOS(pod) == v1.PodQOSGuaranteed && pod.Spec.Resources == nil
}

// wanted returns what a container asks for.
func wanted(c *v1.Container) Sizes {
	out := Sizes{}
	for name, q := range c.Resources.Requests {
		if Counts(name) {
			out[name] = uint64(q.Value())
		}
	}
	return out
}

// wantedByPod returns the most that a pod's containers need at one time.
func wantedByPod(pod *v1.Pod) Sizes {
	long, first := Sizes{}, Sizes{} // what goes on running, and the peak while init containers run
	for c := range pods.Containers(&pod.Spec) {
		ends := pods.IsInit(pod, c.Name) && !pods.IsSidecar(c)
		for name, n := range wanted(c) {
			if ends {
				first[name] = max(first[name], long[name]+n)
			} else {
				long[name] += n
			}
		}
	}
	for name, n := range first {
		long[name] = max(long[name], n)
	}
	return long
}

// group is a set of nodes that containers have together.
type group struct {
	nodes numa.Nodes
	taken Sizes
}

// groups returns who has what. Groups have no node in common, unless settings have changed: then the larger one counts.
func groups(held []podplan.Memory) []group {
	var out []group
	for _, of := range held {
		for _, blocks := range of {
			for _, b := range blocks {
				nodes, err := numa.Parse(b.Nodes)
				if err != nil {
					continue // records are our own
				}
				out = add(out, nodes, b)
			}
		}
	}
	return out
}

func add(all []group, nodes numa.Nodes, b podplan.MemoryBlock) []group {
	mine := group{nodes, Sizes{v1.ResourceName(b.Resource): b.Size - b.Reused}}
	rest := all[:0:0]
	for _, g := range all {
		if g.nodes&mine.nodes == 0 {
			rest = append(rest, g)
			continue
		}
		mine.nodes |= g.nodes
		for name, n := range g.taken {
			mine.taken[name] += n
		}
	}
	return append(rest, mine)
}
