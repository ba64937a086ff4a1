package cpus

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"

	v1 "k8s.io/api/core/v1"
	"k8s.io/kubectl/pkg/util/qos"
	"k8s.io/utils/cpuset"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/kubelet/podplan"
)

// Names of the policies.
const (
	None   = "none"
	Static = "static"
)

// Options of the policy static that are there.
const (
	fullCores         = "full-pcpus-only"
	strictReservation = "strict-cpu-reservation"
)

// others are options that upstream has besides.
var others = []string{"distribute-cpus-across-numa", "align-by-socket", "distribute-cpus-across-cores", "prefer-align-cpus-by-uncorecache"}

// Manager decides which CPUs containers get. It is immutable; nil is the policy none, under which no container has CPUs
// of its own.
type Manager struct {
	topology        Topology
	reserved        cpuset.CPUSet
	fullCores       bool
	strictReserved  bool
	threadsPerCore  int
	all, assignable cpuset.CPUSet
}

// Config is what a Manager needs to know.
type Config struct {
	Policy  string
	Options map[string]string
	// Topology of the machine, as far as its pods may use it.
	Topology Topology
	// Reserved is how many CPUs the system and Kubernetes keep, in thousandths; or ReservedCPUs which, if it is not empty.
	Reserved     int64
	ReservedCPUs cpuset.CPUSet
}

// Check returns what is wrong with a policy and its options; errors name the field.
func Check(policy string, options map[string]string) error {
	var errs []error
	if policy != None && policy != Static && policy != "" {
		return fmt.Errorf("cpuManagerPolicy (--cpu-manager-policy): unknown policy: %q: want %s or %s", policy, None, Static)
	}
	for name, value := range options {
		what := fmt.Sprintf("cpuManagerPolicyOptions (--cpu-manager-policy-options): %s", name)
		switch {
		case policy != Static:
			errs = append(errs, fmt.Errorf("%s: only the policy %s has options", what, Static))
		case name == fullCores || name == strictReservation:
			if _, err := strconv.ParseBool(value); err != nil {
				errs = append(errs, fmt.Errorf("%s: bad value %q: want true or false", what, value))
			}
		case slices.Contains(others, name):
			errs = append(errs, fmt.Errorf("%s: this kubelet does not have this option; leave it out", what))
		default:
			errs = append(errs, fmt.Errorf("%s: unknown option", what))
		}
	}
	return errors.Join(errs...)
}

// New returns a Manager; nil for the policy none.
func New(cfg Config) (*Manager, error) {
	if err := Check(cfg.Policy, cfg.Options); err != nil {
		return nil, err
	}
	if cfg.Policy != Static {
		return nil, nil
	}
	on := func(option string) bool {
		set, err := strconv.ParseBool(cfg.Options[option])
		return err == nil && set
	}
	m := &Manager{
		topology: cfg.Topology, all: cfg.Topology.All(), threadsPerCore: cfg.Topology.ThreadsPerCore(),
		fullCores: on(fullCores), strictReserved: on(strictReservation), reserved: cfg.ReservedCPUs,
	}
	if m.reserved.IsEmpty() {
		n := int(math.Ceil(float64(cfg.Reserved) / 1000))
		if n == 0 {
			return nil, errors.New("cpuManagerPolicy static: containers without CPUs of their own need some that are reserved: set reservedSystemCPUs " +
				"(--reserved-cpus), or cpu in systemReserved or kubeReserved to more than zero")
		}
		var err error
		if m.reserved, err = Take(m.topology, m.all, n); err != nil {
			return nil, fmt.Errorf("cpuManagerPolicy static: reserved CPUs: %w", err)
		}
	}
	if off := m.reserved.Difference(m.all); !off.IsEmpty() {
		return nil, fmt.Errorf("reservedSystemCPUs (--reserved-cpus): the CPUs %s are not online", off)
	}
	m.assignable = m.all.Difference(m.reserved)
	if m.strictReserved && m.assignable.IsEmpty() {
		return nil, errors.New("cpuManagerPolicyOptions: strict-cpu-reservation: all CPUs are reserved, and none is left for pods")
	}
	return m, nil
}

// SMTAlignmentError refuses a container that wants a part of a core for itself.
type SMTAlignmentError struct{ Requested, PerCore int }

func (e *SMTAlignmentError) Error() string {
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

// Choose decides which CPUs a pod's containers get, nil if none gets its own. held are those of all others. Containers may
// have again what init containers before them have left.
func (m *Manager) Choose(pod *v1.Pod, held []podplan.CPUs) (podplan.CPUs, error) {
	if !m.Wants(pod) {
		return nil, nil
	}
	free := m.assignable.Difference(Union(held))
	left := cpuset.New() // by init containers that have ended
	out := podplan.CPUs{}
	for c := range pods.Containers(&pod.Spec) {
		n := wanted(pod, c)
		if n == 0 {
			continue
		}
		if m.fullCores && n%m.threadsPerCore != 0 {
			return nil, &SMTAlignmentError{n, m.threadsPerCore}
		}
		from := left
		if left.Size() < n {
			from = left.Union(free)
		}
		set, err := Take(m.topology, from, n)
		if err != nil {
			return nil, err
		}
		out[c.Name] = set.String()
		free, left = free.Difference(set), left.Difference(set)
		if pods.IsInit(pod, c.Name) && !pods.IsSidecar(c) {
			left = left.Union(set)
		}
	}
	return out, nil
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
	if m.strictReserved {
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
