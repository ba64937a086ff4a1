// Package numa aligns what containers get with the NUMA nodes of the machine (the topology manager, KEP-693).
//
// Whoever gives something out is a Source: it says from which sets of nodes a request could be met (hints), and takes what
// is asked for near the set that was agreed on. A Manager finds that set, and refuses pods for which there is none if its
// policy says so. All of that happens when a pod is admitted, on copies: nothing is decided before everything is.
package numa

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"

	v1 "k8s.io/api/core/v1"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"

	"wherry.dev/internal/api/pods"
)

// Options of all policies but none.
const (
	preferClosest = "prefer-closest-numa-nodes"
	maxAllowable  = "max-allowable-numa-nodes"
)

// defaultMaxNodes is how many nodes a machine may have, unless an option permits more: all sets of them are looked at.
const defaultMaxNodes = 8

// Hint is a set of nodes from which a request could be met. No nodes stand for any: it does not matter.
type Hint struct {
	Nodes Nodes
	// Preferred: no smaller set could meet the request, even if nothing else were in use.
	Preferred bool
}

// Hints are those of each resource. A resource without a list has no preference; one with an empty list cannot be aligned.
type Hints map[string][]Hint

// Source gives something to the containers of one pod.
type Source interface {
	// Hints returns from where a container's request could be met, or that of the whole pod if c is nil.
	Hints(c *v1.Container) Hints
	// Take meets a container's request, from the hint's nodes as far as it can.
	Take(c *v1.Container, hint Hint) error
}

// AffinityError refuses a pod whose resources cannot be aligned.
type AffinityError struct{}

func (*AffinityError) Error() string { return "Resources cannot be allocated with Topology locality" }

// Config is what a Manager needs to know.
type Config struct {
	// Policy is none, best-effort, restricted or single-numa-node; Scope is container or pod.
	Policy, Scope string
	Options       map[string]string
	// Nodes are those of the machine; Distances, by node, are those to each of the Nodes, in ascending order.
	Nodes     Nodes
	Distances map[int][]int
}

// Manager aligns what pods get. It is immutable; nil is the policy none, under which nothing is aligned.
type Manager struct {
	cfg     Config
	closest bool
}

// Check returns what is wrong with a policy, its scope and its options; errors name the field.
func Check(policy, scope string, options map[string]string) error {
	var errs []error
	policies := []string{
		kubeletconfig.NoneTopologyManagerPolicy, kubeletconfig.BestEffortTopologyManagerPolicy,
		kubeletconfig.RestrictedTopologyManagerPolicy, kubeletconfig.SingleNumaNodeTopologyManagerPolicy,
	}
	if !slices.Contains(policies, policy) {
		errs = append(errs, fmt.Errorf("topologyManagerPolicy (--topology-manager-policy) %q must be one of: %q", policy, policies))
	}
	scopes := []string{kubeletconfig.ContainerTopologyManagerScope, kubeletconfig.PodTopologyManagerScope}
	if !slices.Contains(scopes, scope) {
		errs = append(errs, fmt.Errorf("topologyManagerScope (--topology-manager-scope) %q must be one of: %q", scope, scopes))
	}
	for name, value := range options {
		what := "topologyManagerPolicyOptions (--topology-manager-policy-options): " + name
		switch name {
		case preferClosest:
			if _, err := strconv.ParseBool(value); err != nil {
				errs = append(errs, fmt.Errorf("%s: bad value %q: want true or false", what, value))
			}
		case maxAllowable:
			if n, err := strconv.Atoi(value); err != nil || n < defaultMaxNodes {
				errs = append(errs, fmt.Errorf("%s: bad value %q: want a number from %d", what, value, defaultMaxNodes))
			}
		default:
			errs = append(errs, fmt.Errorf("%s: unknown option", what))
		}
	}
	return errors.Join(errs...)
}

// New returns a Manager; nil for the policy none.
func New(cfg Config) (*Manager, error) {
	if err := Check(cfg.Policy, cfg.Scope, cfg.Options); err != nil {
		return nil, err
	}
	if cfg.Policy == kubeletconfig.NoneTopologyManagerPolicy {
		return nil, nil
	}
	most := defaultMaxNodes
	if value, ok := cfg.Options[maxAllowable]; ok {
		most, _ = strconv.Atoi(value) // Check has seen it
	}
	if cfg.Nodes.Count() > most {
		return nil, fmt.Errorf("topologyManagerPolicy (--topology-manager-policy) %s: the machine has %d NUMA nodes, more than %d: "+
			"raise %s in topologyManagerPolicyOptions, or use the policy none", cfg.Policy, cfg.Nodes.Count(), most, maxAllowable)
	}
	m := &Manager{cfg: cfg}
	if m.closest = cfg.Options[preferClosest] != ""; m.closest {
		m.closest, _ = strconv.ParseBool(cfg.Options[preferClosest])
	}
	if m.closest {
		for _, id := range cfg.Nodes.IDs() {
			if len(cfg.Distances[id]) != cfg.Nodes.Count() {
				return nil, fmt.Errorf("topologyManagerPolicyOptions: %s: the machine does not tell how far NUMA node %d is from the others", preferClosest, id)
			}
		}
	}
	return m, nil
}

// Guarantees reports whether pods are refused unless all that each of the scope's units gets comes from one node, and what
// such a unit is: container or pod.
func (m *Manager) Guarantees() (scope string, all bool) {
	if m == nil {
		return "", false
	}
	return m.cfg.Scope, m.cfg.Policy == kubeletconfig.SingleNumaNodeTopologyManagerPolicy
}

// Align has the sources meet the requests of a pod's containers. The first error ends it.
func (m *Manager) Align(pod *v1.Pod, sources ...Source) error {
	var hint Hint
	var ok bool
	if m != nil && m.cfg.Scope == kubeletconfig.PodTopologyManagerScope {
		if hint, ok = m.merge(ask(sources, nil)); !ok {
			return &AffinityError{}
		}
	}
	for c := range pods.Containers(&pod.Spec) {
		if m != nil && m.cfg.Scope == kubeletconfig.ContainerTopologyManagerScope {
			if hint, ok = m.merge(ask(sources, c)); !ok {
				return &AffinityError{}
			}
		}
		for _, s := range sources {
			if err := s.Take(c, hint); err != nil {
				return err
			}
		}
	}
	return nil
}

// ask returns the lists of hints of all resources, each of them with at least one hint.
func ask(sources []Source, c *v1.Container) [][]Hint {
	var out [][]Hint
	for _, s := range sources {
		for _, list := range s.Hints(c) {
			switch {
			case list == nil:
				list = []Hint{{Preferred: true}}
			case len(list) == 0:
				list = []Hint{{}}
			}
			out = append(out, list)
		}
	}
	return out
}

// merge returns the best set of nodes that hints of all resources have in common, and whether the policy admits it.
func (m *Manager) merge(all [][]Hint) (Hint, bool) {
	single := m.cfg.Policy == kubeletconfig.SingleNumaNodeTopologyManagerPolicy
	// need is how many nodes the resource needs that needs the most.
	need := 0
	// found are the sets that hints have in common so far, as they would be if these hints were taken. One that is preferred
	// comes from hints that are all preferred and alike.
	type common struct {
		Hint
		any bool // no hint so far named nodes
	}
	found := map[common]bool{{Hint{m.cfg.Nodes, true}, true}: true}
	for _, hints := range all {
		least := 0
		next := map[common]bool{}
		for _, h := range hints {
			if single && (!h.Preferred || h.Nodes.Count() > 1) {
				continue
			}
			if n := h.Nodes.Count(); n > 0 && (least == 0 || n < least) {
				least = n
			}
			for f := range found {
				now := common{Hint{f.Nodes, f.Preferred && h.Preferred}, f.any}
				if h.Nodes != 0 {
					now.Nodes, now.any = f.Nodes&h.Nodes, false
					now.Preferred = now.Preferred && (f.any || f.Nodes == h.Nodes)
				}
				if now.Nodes != 0 {
					next[now] = true
				}
			}
		}
		found, need = next, max(need, least)
	}
	best := Hint{Nodes: m.cfg.Nodes}
	first := true
	for f := range found {
		if first || m.order(f.Hint, best, need) < 0 {
			best, first = f.Hint, false
		}
	}
	if single && best.Nodes == m.cfg.Nodes {
		best.Nodes = 0
	}
	return best, best.Preferred || m.cfg.Policy == kubeletconfig.BestEffortTopologyManagerPolicy
}

// order orders merged hints, the best one first: preferred ones, then those of as many nodes as are needed, then
// smaller ones (the largest first), then larger ones.
func (m *Manager) order(a, b Hint, need int) int {
	if a.Preferred != b.Preferred {
		if a.Preferred {
			return -1
		}
		return 1
	}
	if !a.Preferred {
		if order := cmp.Compare(short(a.Nodes.Count(), need), short(b.Nodes.Count(), need)); order != 0 {
			return order
		}
	}
	if m.closest && m.cfg.Policy != kubeletconfig.SingleNumaNodeTopologyManagerPolicy && a.Nodes.Count() == b.Nodes.Count() {
		return cmp.Or(cmp.Compare(m.distance(a.Nodes), m.distance(b.Nodes)), cmp.Compare(a.Nodes, b.Nodes))
	}
	return narrower(a.Nodes, b.Nodes)
}

// short says how far a number of nodes is from what is needed; too many are worse than any that are too few.
func short(n, need int) int {
	if n > need {
		return MaxNodes + n
	}
	return need - n
}

// distance returns the sum of the distances between all pairs of nodes.
func (m *Manager) distance(n Nodes) int {
	sum := 0
	for at, to := range m.cfg.Nodes.IDs() {
		if !n.Has(to) {
			continue
		}
		for _, from := range n.IDs() {
			sum += m.cfg.Distances[from][at]
		}
	}
	return sum
}
