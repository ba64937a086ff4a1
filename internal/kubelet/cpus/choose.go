package cpus

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"

	v1 "k8s.io/api/core/v1"
	"k8s.io/kubectl/pkg/util/qos"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/cpuset"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/kubelet/numa"
	"wherry.dev/internal/kubelet/podplan"
)

// Names of the policies.
const (
	None   = "none"
	Static = "static"
)

// Options of the policy static.
const (
	fullCores         = "full-pcpus-only"
	strictReservation = "strict-cpu-reservation"
	acrossNUMA        = "distribute-cpus-across-numa"
	fewCaches         = "prefer-align-cpus-by-uncorecache"
	acrossCores       = "distribute-cpus-across-cores"
	bySocket          = "align-by-socket"
)

// AlphaOptions is the feature gate without which some options are refused.
const AlphaOptions = "CPUManagerPolicyAlphaOptions"

var (
	options = []string{fullCores, strictReservation, acrossNUMA, fewCaches, acrossCores, bySocket}
	alpha   = []string{acrossCores, bySocket}
	// apart are options that contradict each other.
	apart = [][2]string{{fullCores, acrossCores}, {acrossNUMA, acrossCores}, {fewCaches, acrossCores}, {fewCaches, acrossNUMA}}
)

// Manager decides which CPUs containers get. It is immutable; nil is the policy none, under which no container has CPUs
// of its own.
type Manager struct {
	topology       Topology
	on             map[string]bool // by option
	how            how
	threadsPerCore int
	all, reserved  cpuset.CPUSet
	assignable     cpuset.CPUSet
	nodes          numa.Nodes
	nodesPerSocket int
}

// Config is what a Manager needs to know.
type Config struct {
	Policy  string
	Options map[string]string
	// Alpha: the feature gate AlphaOptions is on.
	Alpha bool
	// Topology of the machine, as far as its pods may use it.
	Topology Topology
	// Reserved is how many CPUs the system and Kubernetes keep, in thousandths; or ReservedCPUs which, if it is not empty.
	Reserved     int64
	ReservedCPUs cpuset.CPUSet
	// NUMAPolicy is the topology manager's.
	NUMAPolicy string
}

// Check returns what is wrong with a policy and its options; errors name the field.
func Check(policy string, given map[string]string, alphaOptions bool) error {
	var errs []error
	if policy != None && policy != Static && policy != "" {
		return fmt.Errorf("cpuManagerPolicy (--cpu-manager-policy): unknown policy: %q: want %s or %s", policy, None, Static)
	}
	const field = "cpuManagerPolicyOptions (--cpu-manager-policy-options)"
	for name, value := range given {
		what := field + ": " + name
		switch {
		case policy != Static:
			errs = append(errs, fmt.Errorf("%s: only the policy %s has options", what, Static))
		case !slices.Contains(options, name):
			errs = append(errs, fmt.Errorf("%s: unknown option", what))
		case slices.Contains(alpha, name) && !alphaOptions:
			errs = append(errs, fmt.Errorf("%s: this option needs the feature gate %s", what, AlphaOptions))
		default:
			if _, err := strconv.ParseBool(value); err != nil {
				errs = append(errs, fmt.Errorf("%s: bad value %q: want true or false", what, value))
			}
		}
	}
	for _, pair := range apart {
		if isOn(given, pair[0]) && isOn(given, pair[1]) {
			errs = append(errs, fmt.Errorf("%s: %s and %s can not be used at the same time", field, pair[0], pair[1]))
		}
	}
	return errors.Join(errs...)
}

func isOn(given map[string]string, option string) bool {
	on, err := strconv.ParseBool(given[option])
	return err == nil && on
}

// New returns a Manager; nil for the policy none.
func New(cfg Config) (*Manager, error) {
	if err := Check(cfg.Policy, cfg.Options, cfg.Alpha); err != nil {
		return nil, err
	}
	if cfg.Policy != Static {
		return nil, nil
	}
	m := &Manager{
		topology: cfg.Topology, all: cfg.Topology.All(), threadsPerCore: cfg.Topology.ThreadsPerCore(),
		on: map[string]bool{}, reserved: cfg.ReservedCPUs, nodes: cfg.Topology.nodes(),
	}
	for _, option := range options {
		m.on[option] = isOn(cfg.Options, option)
	}
	m.how = how{spread: m.on[acrossCores], caches: m.on[fewCaches]}
	if m.on[acrossNUMA] {
		if m.how.even = 1; m.on[fullCores] {
			m.how.even = m.threadsPerCore
		}
	}
	if n := m.nodes.Count(); m.on[acrossNUMA] && n > numa.MostSets {
		return nil, fmt.Errorf("cpuManagerPolicyOptions: %s is not possible on a machine with %d NUMA nodes, more than %d", acrossNUMA, n, numa.MostSets)
	}
	if err := m.checkSockets(cfg.NUMAPolicy); err != nil {
		return nil, err
	}
	return m, m.reserve(cfg.Reserved)
}

// checkSockets wants sockets to consist of NUMA nodes if pods are to be aligned with them.
func (m *Manager) checkSockets(policy string) error {
	sockets := len(m.topology.sizes(socketOf))
	m.nodesPerSocket = m.nodes.Count() / sockets
	switch {
	case !m.on[bySocket]:
	case policy == kubeletconfig.SingleNumaNodeTopologyManagerPolicy:
		return fmt.Errorf("cpuManagerPolicyOptions: %s does not go together with topologyManagerPolicy %s", bySocket, policy)
	case m.nodesPerSocket == 0:
		return fmt.Errorf("cpuManagerPolicyOptions: %s is not possible on a machine with more sockets than NUMA nodes", bySocket)
	}
	return nil
}

// reserve sets aside the CPUs that no container has for itself: a number of them, in thousandths, unless it is given which.
func (m *Manager) reserve(milli int64) error {
	if m.reserved.IsEmpty() {
		n := int(math.Ceil(float64(milli) / 1000))
		if n == 0 {
			return errors.New("cpuManagerPolicy static: containers without CPUs of their own need some that are reserved: set reservedSystemCPUs " +
				"(--reserved-cpus), or cpu in systemReserved or kubeReserved to more than zero")
		}
		var err error
		if m.reserved, err = m.how.take(m.topology, m.all, n); err != nil {
			return fmt.Errorf("cpuManagerPolicy static: reserved CPUs: %w", err)
		}
	}
	if off := m.reserved.Difference(m.all); !off.IsEmpty() {
		return fmt.Errorf("reservedSystemCPUs (--reserved-cpus): the CPUs %s are not online", off)
	}
	m.assignable = m.all.Difference(m.reserved)
	if m.on[strictReservation] && m.assignable.IsEmpty() {
		return errors.New("cpuManagerPolicyOptions: strict-cpu-reservation: all CPUs are reserved, and none is left for pods")
	}
	return nil
}

// SMTAlignmentError refuses a container that cannot have whole cores for itself: it wants a part of one, or more than are
// free.
type SMTAlignmentError struct {
	Requested, PerCore int
	// Available CPUs are in whole cores, of which nothing is reserved; only if that is too few.
	Available int
	Short     bool
}

func (e *SMTAlignmentError) Error() string {
	if e.Short {
		return fmt.Sprintf("SMT Alignment Error: not enough free physical CPUs: available physical CPUs = %d, requested CPUs = %d, CPUs per core = %d",
			e.Available, e.Requested, e.PerCore)
	}
	return fmt.Sprintf("SMT Alignment Error: requested %d cpus not multiple cpus per core = %d", e.Requested, e.PerCore)
}

// wanted returns how many CPUs of its own a container gets: all that it asks for, if these are whole ones and its pod is
// Guaranteed. The resources of a pod as a whole are shared by its containers.
func wanted(pod *v1.Pod, c *v1.Container) int {
	if qos.GetPodQOS(pod) != v1.PodQOSGuaranteed || pod.Spec.Resources != nil {
		return 0
	}
	cpu := c.Resources.Requests.Cpu()
	if cpu.MilliValue()%1000 != 0 {
		return 0
	}
	return int(cpu.Value())
}

// Wants reports whether a pod wants CPUs of its own.
func (m *Manager) Wants(pod *v1.Pod) bool {
	if m == nil {
		return false
	}
	for c := range pods.Containers(&pod.Spec) {
		if wanted(pod, c) > 0 {
			return true
		}
	}
	return false
}

// Choice decides for the containers of one pod, one after the other. It is a numa.Source.
type Choice struct {
	m     *Manager
	pod   *v1.Pod
	wants bool
	// free CPUs are nobody's; left are those of init containers that have ended by the time of the next container.
	free, left cpuset.CPUSet
	chosen     podplan.CPUs
}

var _ numa.Source = (*Choice)(nil)

// Choose begins to choose for a pod. held are the CPUs of all others; nil-safe.
func (m *Manager) Choose(pod *v1.Pod, held []podplan.CPUs) *Choice {
	c := &Choice{m: m, pod: pod, wants: m.Wants(pod)}
	if c.wants {
		c.free = m.assignable.Difference(Union(held))
	}
	if c.wants && m.on[fullCores] {
		all, free := m.topology.sizes(coreOf), m.topology.Only(c.free).sizes(coreOf)
		c.free = m.topology.near(coreOf, func(core int) bool { return free[core] == all[core] })
	}
	return c
}

// Chosen returns what was taken; nil if nothing was.
func (c *Choice) Chosen() podplan.CPUs { return c.chosen }

// Hints implements numa.Source.
func (c *Choice) Hints(container *v1.Container) numa.Hints {
	if !c.wants {
		return nil
	}
	n := 0
	if container != nil {
		n = wanted(c.pod, container)
	} else {
		n = wantedByPod(c.pod)
	}
	if n == 0 {
		return nil
	}
	return numa.Hints{string(v1.ResourceCPU): c.hints(n)}
}

// hints returns from which NUMA nodes n CPUs can be had, among them those that are left.
func (c *Choice) hints(n int) []numa.Hint {
	least := c.m.nodes.Count()
	own, free, left := c.m.topology.sizes(numaOf), c.m.topology.Only(c.free).sizes(numaOf), c.m.topology.Only(c.left)
	out := []numa.Hint{}
	for nodes := range c.m.nodes.Subsets() {
		all, there := 0, 0
		for _, id := range nodes.IDs() {
			all, there = all+own[id], there+free[id]
		}
		if all >= n {
			least = min(least, nodes.Count())
		}
		if left.nodes()&^nodes == 0 && there+len(left) >= n {
			out = append(out, numa.Hint{Nodes: nodes})
		}
	}
	for i, h := range out {
		out[i].Preferred = h.Nodes.Count() == least || c.m.on[bySocket] && c.m.fewestSockets(h.Nodes, least)
	}
	return out
}

// fewestSockets reports whether nodes are in no more sockets than are needed for the least number of nodes.
func (m *Manager) fewestSockets(nodes numa.Nodes, least int) bool {
	sockets := m.topology.Only(m.topology.near(numaOf, nodes.Has)).sizes(socketOf)
	return len(sockets) == (least+m.nodesPerSocket-1)/m.nodesPerSocket
}

// Take implements numa.Source. Containers may have again what init containers before them have left.
func (c *Choice) Take(container *v1.Container, hint numa.Hint) error {
	if !c.wants {
		return nil
	}
	n := wanted(c.pod, container)
	if n == 0 {
		return nil
	}
	if err := c.checkCores(n); err != nil {
		return err
	}
	from := c.left
	if c.left.Size() < n {
		from = c.left.Union(c.free)
	}
	if from.Size() < n {
		return errShort(n, from.Size())
	}
	set := cpuset.New()
	if hint.Nodes != 0 {
		near := c.m.near(hint.Nodes).Intersection(from)
		aligned, err := c.m.how.take(c.m.topology, near, min(n, near.Size()))
		if err != nil {
			return err
		}
		set = aligned
	}
	rest, err := c.m.how.take(c.m.topology, from.Difference(set), n-set.Size())
	if err != nil {
		return err
	}
	set = set.Union(rest)
	if c.chosen == nil {
		c.chosen = podplan.CPUs{}
	}
	c.chosen[container.Name] = set.String()
	c.free, c.left = c.free.Difference(set), c.left.Difference(set)
	if pods.IsInit(c.pod, container.Name) && !pods.IsSidecar(container) {
		c.left = c.left.Union(set)
	}
	return nil
}

// near returns the CPUs of NUMA nodes; of their sockets, if these are what counts.
func (m *Manager) near(nodes numa.Nodes) cpuset.CPUSet {
	set := m.topology.near(numaOf, nodes.Has)
	if m.on[bySocket] {
		sockets := m.topology.Only(set).sizes(socketOf)
		set = m.topology.near(socketOf, func(id int) bool { return sockets[id] > 0 })
	}
	return set
}

// checkCores refuses a container that would not have its cores for itself.
func (c *Choice) checkCores(n int) error {
	if !c.m.on[fullCores] {
		return nil
	}
	if n%c.m.threadsPerCore != 0 {
		return &SMTAlignmentError{Requested: n, PerCore: c.m.threadsPerCore}
	}
	if there := c.free.Union(c.left).Size(); n > there {
		return &SMTAlignmentError{Requested: n, PerCore: c.m.threadsPerCore, Available: there, Short: true}
	}
	return nil
}

// wantedByPod returns the most CPUs of their own that a pod's containers have at one time.
func wantedByPod(pod *v1.Pod) int {
	long, peak := 0, 0 // what goes on running, and the most while init containers run
	for c := range pods.Containers(&pod.Spec) {
		n := wanted(pod, c)
		if pods.IsInit(pod, c.Name) && !pods.IsSidecar(c) {
			peak = max(peak, long+n)
		} else {
			long += n
		}
	}
	return max(long, peak)
}

// Union returns all CPUs that some container has for itself. What is not a set counts for none: records are our own.
func Union(held []podplan.CPUs) cpuset.CPUSet {
	out := cpuset.New()
	for _, of := range held {
		for _, s := range of {
			if set, err := cpuset.Parse(s); err == nil {
				out = out.Union(set)
			}
		}
	}
	return out
}

// Shared returns the CPUs of containers that have none of their own: all that nobody has, also those that are reserved,
// unless these are strictly.
func (m *Manager) Shared(held []podplan.CPUs) cpuset.CPUSet {
	out := m.all.Difference(Union(held))
	if m.on[strictReservation] {
		out = out.Difference(m.reserved)
	}
	return out
}

// Assignable returns the CPUs that containers may have for themselves; nil-safe.
func (m *Manager) Assignable() cpuset.CPUSet {
	if m == nil {
		return cpuset.New()
	}
	return m.assignable
}
