package devices

import (
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/kubelet/podplan"
)

// Preferred are the devices that plugins would rather give, by container and resource.
type Preferred map[string]map[string][]string

// Choose decides which devices each container of a pod gets, if it asks for any: nil if it asks for none that a plugin
// has. held are the devices of all other pods. Errors are in upstream's words.
func (m *Manager) Choose(pod *v1.Pod, held []podplan.Devices, preferred Preferred) (podplan.Devices, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.wantedLocked(pod) {
		return nil, nil
	}
	c := newChoice(m, held, preferred)
	out := podplan.Devices{}
	for container := range pods.Containers(&pod.Spec) {
		grants, err := c.container(container)
		if err != nil {
			return nil, err
		}
		if len(grants) == 0 {
			continue
		}
		out[container.Name] = grants
		c.reuse(grants, pods.IsInit(pod, container.Name) && !pods.IsSidecar(container))
	}
	return out, nil
}

// wantedLocked reports whether a pod asks for devices of plugins.
func (m *Manager) wantedLocked(pod *v1.Pod) bool {
	for c := range pods.Containers(&pod.Spec) {
		for name := range c.Resources.Limits {
			if m.known[string(name)] != nil {
				return true
			}
		}
	}
	return false
}

// choice is the state of one decision.
type choice struct {
	m         *Manager
	taken     map[string]map[string]bool // by resource
	preferred Preferred
	// again are devices of init containers that have ended by the time that the next container is started.
	again map[string][]string
}

func newChoice(m *Manager, held []podplan.Devices, preferred Preferred) *choice {
	c := &choice{m: m, taken: map[string]map[string]bool{}, preferred: preferred, again: map[string][]string{}}
	for _, devices := range held {
		for _, grants := range devices {
			for _, g := range grants {
				c.take(g.Resource, g.IDs)
			}
		}
	}
	return c
}

// free returns the healthy devices that nobody has, sorted.
func (c *choice) free(name string, of *inventory) []string {
	return slices.DeleteFunc(of.healthy(), func(id string) bool { return c.taken[name][id] })
}

func (c *choice) take(resource string, ids []string) {
	if c.taken[resource] == nil {
		c.taken[resource] = map[string]bool{}
	}
	for _, id := range ids {
		c.taken[resource][id] = true
	}
}

// reuse says whether later containers may have the devices of this one, too: those of an init container, unless it goes
// on running.
func (c *choice) reuse(grants []podplan.Grant, ends bool) {
	for _, g := range grants {
		c.take(g.Resource, g.IDs)
		rest := slices.DeleteFunc(c.again[g.Resource], func(id string) bool { return slices.Contains(g.IDs, id) })
		if ends {
			rest = append(rest, g.IDs...)
		}
		c.again[g.Resource] = rest
	}
}

func (c *choice) container(container *v1.Container) ([]podplan.Grant, error) {
	var out []podplan.Grant
	for _, name := range sorted(container.Resources.Limits) {
		q := container.Resources.Limits[v1.ResourceName(name)]
		of := c.m.known[name]
		if of == nil || q.Value() <= 0 {
			continue
		}
		ids, err := c.devices(name, of, int(q.Value()), c.preferred[container.Name][name])
		if err != nil {
			return nil, err
		}
		out = append(out, podplan.Grant{Resource: name, IDs: ids})
	}
	return out, nil
}

// devices chooses n devices: first those that init containers leave, then what the plugin prefers, then any.
func (c *choice) devices(name string, of *inventory, n int, preferred []string) ([]string, error) {
	if len(of.healthy()) == 0 {
		return nil, fmt.Errorf("no healthy devices present; cannot allocate unhealthy devices %s", name)
	}
	free := c.free(name, of)
	ids := slices.Clone(c.again[name][:min(n, len(c.again[name]))])
	left := map[string]bool{}
	for _, id := range free {
		left[id] = true
	}
	for _, list := range [][]string{preferred, free} {
		for _, id := range list {
			if len(ids) < n && left[id] {
				ids = append(ids, id)
				delete(left, id)
			}
		}
	}
	if len(ids) < n {
		return nil, fmt.Errorf("requested number of devices unavailable for %s. Requested: %d, Available: %d", name, n, len(ids))
	}
	slices.Sort(ids)
	return ids, nil
}

func sorted(list v1.ResourceList) []string {
	var out []string
	for name := range list {
		out = append(out, string(name))
	}
	slices.Sort(out)
	return out
}
