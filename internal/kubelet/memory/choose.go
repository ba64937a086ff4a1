package memory

import (
	"cmp"
	"errors"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/kubelet/numa"
	"wherry.dev/internal/kubelet/podplan"
)

// Choice decides for the containers of one pod, one after the other. It is a numa.Source.
type Choice struct {
	m      *Manager
	pod    *v1.Pod
	wants  bool
	groups []group
	chosen podplan.Memory
	// left is what init containers that have ended leave to those after them, by group.
	left map[numa.Nodes]Sizes
}

var _ numa.Source = (*Choice)(nil)

// Choose begins to choose for a pod. held is what all others have; nil-safe.
func (m *Manager) Choose(pod *v1.Pod, held []podplan.Memory) *Choice {
	return &Choice{m: m, pod: pod, wants: m.Wants(pod), groups: groups(held), left: map[numa.Nodes]Sizes{}}
}

// Chosen returns what was taken; nil if nothing was.
func (c *Choice) Chosen() podplan.Memory { return c.chosen }

// Hints implements numa.Source. If memory is short everywhere, it has no preference: Take fails.
func (c *Choice) Hints(container *v1.Container) numa.Hints {
	if !c.wants {
		return nil
	}
	want := wantedByPod(c.pod)
	if container != nil {
		want = wanted(container)
	}
	hints := c.hints(want)
	if len(hints) == 0 {
		return nil
	}
	out := numa.Hints{}
	for name := range want {
		out[string(name)] = hints
	}
	return out
}

// hints returns from which nodes something can be had. All of it has to come from the same ones.
func (c *Choice) hints(want Sizes) []numa.Hint {
	least := c.m.nodes.Count()
	var out []numa.Hint
	for nodes := range c.m.nodes.Subsets() {
		if !c.m.sum(nodes).covers(want) {
			continue
		}
		least = min(least, nodes.Count())
		free, ok := c.free(nodes)
		if !ok {
			continue
		}
		for name, n := range c.left[nodes] {
			free[name] += n
		}
		if free.covers(want) {
			out = append(out, numa.Hint{Nodes: nodes})
		}
	}
	for i := range out {
		out[i].Preferred = out[i].Nodes.Count() == least
	}
	return out
}

// sum returns what nodes may give together when nobody has anything.
func (m *Manager) sum(nodes numa.Nodes) Sizes {
	out := Sizes{}
	for _, id := range nodes.IDs() {
		for name, n := range m.free[id] {
			out[name] += n
		}
	}
	return out
}

// free returns what nodes can still give together, and false if they cannot: some of them belong to other groups.
func (c *Choice) free(nodes numa.Nodes) (Sizes, bool) {
	out := c.m.sum(nodes)
	for _, g := range c.groups {
		switch {
		case g.nodes == nodes:
			for name, n := range g.taken {
				out[name] -= min(n, out[name])
			}
		case g.nodes&nodes != 0:
			return nil, false
		}
	}
	return out, true
}

func (s Sizes) covers(want Sizes) bool {
	for name, n := range want {
		if s[name] < n {
			return false
		}
	}
	return true
}

// Take implements numa.Source. Errors are in upstream's words.
func (c *Choice) Take(container *v1.Container, hint numa.Hint) error {
	if !c.wants {
		return nil
	}
	want := wanted(container)
	nodes := hint.Nodes
	if nodes == 0 {
		best, ok := best(c.hints(want))
		switch {
		case !ok:
			return errors.New("[memorymanager] failed to get the default NUMA affinity, no NUMA nodes with enough memory is available")
		case hint.Preferred && !best.Preferred:
			return errors.New("[memorymanager] failed to find the default preferred hint")
		}
		nodes = best.Nodes
	}
	if free, ok := c.free(nodes); !ok || !free.covers(want) {
		// The hint is what all resources had in common: memory may need more nodes.
		best, found := best(slices.DeleteFunc(c.hints(want), func(h numa.Hint) bool { return h.Nodes&nodes != nodes }))
		switch {
		case !found && !ok:
			return errors.New("[memorymanager] preferred hint violates NUMA node allocation")
		case !found:
			return errors.New("[memorymanager] failed to find NUMA nodes to extend the current topology hint")
		case hint.Preferred && !best.Preferred:
			return errors.New("[memorymanager] failed to find the extended preferred hint")
		}
		nodes = best.Nodes
	}
	c.take(container, nodes, want)
	return nil
}

// best returns a preferred hint if there is one, and one with few nodes.
func best(hints []numa.Hint) (numa.Hint, bool) {
	if len(hints) == 0 {
		return numa.Hint{}, false
	}
	return slices.MinFunc(hints, func(a, b numa.Hint) int {
		if a.Preferred != b.Preferred {
			if a.Preferred {
				return -1
			}
			return 1
		}
		return cmp.Or(cmp.Compare(a.Nodes.Count(), b.Nodes.Count()), cmp.Compare(a.Nodes, b.Nodes))
	}), true
}

func (c *Choice) take(container *v1.Container, nodes numa.Nodes, want Sizes) {
	if c.chosen == nil {
		c.chosen = podplan.Memory{}
	}
	if c.left[nodes] == nil {
		c.left[nodes] = Sizes{}
	}
	left := c.left[nodes]
	for _, name := range slices.Sorted(maps.Keys(want)) {
		b := podplan.MemoryBlock{Resource: string(name), Nodes: nodes.String(), Size: want[name], Reused: min(want[name], left[name])}
		c.chosen[container.Name] = append(c.chosen[container.Name], b)
		c.groups = add(c.groups, nodes, b)
		if pods.IsInit(c.pod, container.Name) && !pods.IsSidecar(container) {
			left[name] = max(left[name], want[name])
		} else {
			left[name] -= b.Reused
		}
	}
}

// NodesOf returns from which nodes a container has its memory, as the kernel writes them; "" if from any.
func NodesOf(m podplan.Memory, container string) string {
	var out numa.Nodes
	for _, b := range m[container] {
		if nodes, err := numa.Parse(b.Nodes); err == nil {
			out |= nodes
		}
	}
	if out == 0 {
		return ""
	}
	return out.String()
}
