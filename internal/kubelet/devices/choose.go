package devices

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/kubelet/numa"
	"wherry.dev/internal/kubelet/podplan"
)

// Preferred are the devices that plugins would rather give, by container and resource.
type Preferred map[string]map[string][]string

// Choice decides which devices each container of one pod gets, one after the other, among those that were there when it
// began. It is a numa.Source.
type Choice struct {
	m         *Manager
	pod       *v1.Pod
	stock     map[string]stock // by resource that the pod asks for
	taken     map[string]map[string]bool
	preferred Preferred
	// again are devices of init containers that have ended by the time that the next container is started.
	again  map[string][]string
	chosen podplan.Devices
	// from has what each container's devices were chosen from.
	from map[string]map[string][]string
}

// stock is what a plugin has of one resource.
type stock struct {
	healthy []string              // sorted
	nodes   map[string]numa.Nodes // of all devices, none if the plugin does not say
	all     numa.Nodes
}

// Choose begins to choose for a pod. held are the devices of all other pods.
func (m *Manager) Choose(pod *v1.Pod, held []podplan.Devices, preferred Preferred) *Choice {
	c := &Choice{
		m: m, pod: pod, stock: map[string]stock{}, taken: map[string]map[string]bool{}, preferred: preferred,
		again: map[string][]string{}, from: map[string]map[string][]string{},
	}
	m.mu.Lock()
	for container := range pods.Containers(&pod.Spec) {
		for name := range container.Resources.Limits {
			if of := m.known[string(name)]; of != nil {
				c.stock[string(name)] = of.stock(m.cfg.Nodes)
			}
		}
	}
	m.mu.Unlock()
	for _, devices := range held {
		for _, grants := range devices {
			for _, g := range grants {
				c.take(g.Resource, g.IDs)
			}
		}
	}
	return c
}

func (of *inventory) stock(machine numa.Nodes) stock {
	s := stock{healthy: of.healthy(), nodes: map[string]numa.Nodes{}}
	for id, d := range of.devices {
		for _, n := range d.GetTopology().GetNodes() {
			s.nodes[id] |= numa.NodesOf(int(n.GetID())) & machine
		}
		s.all |= s.nodes[id]
	}
	return s
}

// Chosen returns what was taken; nil if the pod asks for nothing that a plugin has.
func (c *Choice) Chosen() podplan.Devices { return c.chosen }

// wanted returns how many devices a container asks for, by resource.
func (c *Choice) wanted(container *v1.Container) map[string]int {
	out := map[string]int{}
	for name, q := range container.Resources.Limits {
		if _, ok := c.stock[string(name)]; ok && q.Value() > 0 {
			out[string(name)] = int(q.Value())
		}
	}
	return out
}

// wantedByPod returns the most devices that a pod's containers have at one time.
func (c *Choice) wantedByPod() map[string]int {
	long, peak := map[string]int{}, map[string]int{} // what goes on running, and the most while init containers run
	for container := range pods.Containers(&c.pod.Spec) {
		ends := pods.IsInit(c.pod, container.Name) && !pods.IsSidecar(container)
		for name, n := range c.wanted(container) {
			if ends {
				peak[name] = max(peak[name], long[name]+n)
			} else {
				long[name] += n
			}
		}
	}
	for name, n := range peak {
		long[name] = max(long[name], n)
	}
	return long
}

// Hints implements numa.Source. Resources whose plugins do not say where their devices are have no preference.
func (c *Choice) Hints(container *v1.Container) numa.Hints {
	want := c.wantedByPod
	if container != nil {
		want = func() map[string]int { return c.wanted(container) }
	}
	out := numa.Hints{}
	for name, n := range want() {
		out[name] = c.hints(name, n)
	}
	return out
}

// hints returns from which NUMA nodes n devices can be had, among them those that init containers leave.
func (c *Choice) hints(name string, n int) []numa.Hint {
	s := c.stock[name]
	if s.all == 0 {
		return nil
	}
	free, again := c.free(name), c.again[name]
	least := s.all.Count()
	out := []numa.Hint{}
	for nodes := range s.all.Subsets() {
		near := func(id string) bool { return s.nodes[id]&nodes != 0 }
		all := 0
		for id := range s.nodes {
			if near(id) {
				all++
			}
		}
		if all >= n {
			least = min(least, nodes.Count())
		}
		if slices.ContainsFunc(again, func(id string) bool { return s.nodes[id] != 0 && !near(id) }) {
			continue
		}
		if count(free, near)+count(again, near) >= n {
			out = append(out, numa.Hint{Nodes: nodes})
		}
	}
	for i := range out {
		out[i].Preferred = out[i].Nodes.Count() == least
	}
	return out
}

func count(ids []string, is func(string) bool) (n int) {
	for _, id := range ids {
		if is(id) {
			n++
		}
	}
	return n
}

// free returns the healthy devices that nobody has, sorted.
func (c *Choice) free(name string) []string {
	return slices.DeleteFunc(slices.Clone(c.stock[name].healthy), func(id string) bool { return c.taken[name][id] })
}

func (c *Choice) take(resource string, ids []string) {
	if c.taken[resource] == nil {
		c.taken[resource] = map[string]bool{}
	}
	for _, id := range ids {
		c.taken[resource][id] = true
	}
}

// Take implements numa.Source. Errors are in upstream's words.
func (c *Choice) Take(container *v1.Container, hint numa.Hint) error {
	ends := pods.IsInit(c.pod, container.Name) && !pods.IsSidecar(container)
	want := c.wanted(container)
	for _, name := range sorted(container.Resources.Limits) {
		n, ok := want[name]
		if !ok {
			continue
		}
		ids, err := c.devices(container.Name, name, n, hint.Nodes)
		if err != nil {
			return err
		}
		if c.chosen == nil {
			c.chosen = podplan.Devices{}
		}
		c.chosen[container.Name] = append(c.chosen[container.Name], podplan.Grant{Resource: name, IDs: ids})
		c.take(name, ids)
		// Later containers may have those of an init container, unless it goes on running.
		rest := slices.DeleteFunc(c.again[name], func(id string) bool { return slices.Contains(ids, id) })
		if ends {
			rest = append(rest, ids...)
		}
		c.again[name] = rest
	}
	return nil
}

// devices chooses n devices: first those that init containers leave, then those near the NUMA nodes, then others whose
// place is known. Of these, what the plugin prefers comes first.
func (c *Choice) devices(container, name string, n int, near numa.Nodes) ([]string, error) {
	s := c.stock[name]
	if len(s.healthy) == 0 {
		return nil, fmt.Errorf("no healthy devices present; cannot allocate unhealthy devices %s", name)
	}
	ids := slices.Clone(c.again[name][:min(n, len(c.again[name]))])
	free := c.free(name)
	place := func(id string) int {
		switch {
		case near == 0 || s.all == 0 || s.nodes[id]&near != 0:
			return 0
		case s.nodes[id] != 0:
			return 1
		}
		return 2
	}
	from := free
	if aligned := count(free, func(id string) bool { return place(id) == 0 }); aligned > n-len(ids) {
		from = slices.DeleteFunc(slices.Clone(free), func(id string) bool { return place(id) > 0 })
	}
	c.note(container, name, slices.Concat(ids, from))
	rank := map[string]int{} // those that the plugin does not name come last
	preferred := c.preferred[container][name]
	for i, id := range preferred {
		rank[id] = i - len(preferred)
	}
	slices.SortStableFunc(free, func(a, b string) int {
		return cmp.Or(cmp.Compare(place(a), place(b)), cmp.Compare(rank[a], rank[b]))
	})
	ids = append(ids, free[:min(len(free), n-len(ids))]...)
	if len(ids) < n {
		return nil, fmt.Errorf("requested number of devices unavailable for %s. Requested: %d, Available: %d", name, n, len(ids))
	}
	slices.Sort(ids)
	return ids, nil
}

func (c *Choice) note(container, name string, ids []string) {
	if c.from[container] == nil {
		c.from[container] = map[string][]string{}
	}
	c.from[container][name] = ids
}

// Ask asks the plugins which devices they would give to each container instead, of those from which its were chosen. It is
// advice: a plugin that does not answer has no preference.
func (c *Choice) Ask(ctx context.Context) Preferred {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	out := Preferred{}
	given := map[string][]string{} // to containers before this one, by resource
	for container := range pods.Containers(&c.pod.Spec) {
		for _, g := range c.chosen[container.Name] {
			p := c.m.pluginOf(g.Resource)
			if p == nil || !p.options.GetGetPreferredAllocationAvailable() {
				continue
			}
			from := slices.DeleteFunc(slices.Clone(c.from[container.Name][g.Resource]), func(id string) bool {
				return slices.Contains(given[g.Resource], id)
			})
			answer, err := p.client.GetPreferredAllocation(ctx, &pluginapi.PreferredAllocationRequest{
				ContainerRequests: []*pluginapi.ContainerPreferredAllocationRequest{{AvailableDeviceIDs: from, AllocationSize: int32(len(g.IDs))}},
			})
			if err != nil || len(answer.GetContainerResponses()) != 1 {
				continue
			}
			if out[container.Name] == nil {
				out[container.Name] = map[string][]string{}
			}
			ids := answer.GetContainerResponses()[0].GetDeviceIDs()
			out[container.Name][g.Resource] = ids
			if !pods.IsInit(c.pod, container.Name) || pods.IsSidecar(container) {
				given[g.Resource] = append(given[g.Resource], ids...)
			}
		}
	}
	return out
}

func sorted(list v1.ResourceList) []string {
	var out []string
	for name := range list {
		out = append(out, string(name))
	}
	slices.Sort(out)
	return out
}
