package podplan

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// advance lets time pass up to the next thing that happens, and makes it happen.
func (m *model) advance(recheck time.Time) error {
	next := m.now.Add(simHorizon)
	soon := func(t time.Time) {
		if !t.IsZero() && t.Before(next) {
			next = t
		}
	}
	soon(recheck)
	for _, f := range m.flights {
		soon(f.ends)
	}
	for _, t := range m.exits {
		soon(t)
	}
	if m.pod.DeletionTimestamp == nil && !m.absent {
		soon(m.deleted)
	}
	if m.now.Before(m.faults) && m.chance(0.2) {
		soon(m.now.Add(m.upTo(10 * time.Second))) // something from outside
	}
	if next.After(m.now) {
		m.now = next
	} else {
		m.now = m.now.Add(time.Millisecond)
	}
	m.land()
	m.exitContainers()
	m.userActs()
	if m.now.Before(m.faults) {
		m.mishap()
	}
	return m.checkWorld()
}

// land ends the flights whose time has come.
func (m *model) land() {
	var keys []Key
	for k, f := range m.flights {
		if !f.ends.After(m.now) {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	for _, k := range keys {
		f := m.flights[k]
		delete(m.flights, k)
		err := m.outcome(f)
		m.logf("%v done %+v: %v", m.now.Sub(simStart), f.Op, err)
		switch {
		case err == nil:
			delete(m.failures, k)
		case f.Canceled:
		default:
			old := m.failures[k]
			fail := Failure{Count: old.Count + 1, At: m.now, Message: err.Error(), Objects: m.objects, Attempt: f.Op.Attempt, Reason: reasonOf(f.Op.Kind)}
			if f.Op.Backoff {
				fail = old
				fail.LookedAt = m.now
			}
			m.failures[k] = fail
		}
	}
}

func reasonOf(k Kind) string {
	switch k {
	case PullImage:
		return ReasonErrImagePull
	case CreateContainer:
		return ReasonCreateContainerError
	case StartContainer:
		return ReasonRunContainerError
	default:
		return ""
	}
}

var errSim = errors.New("mishap")

// outcome decides whether an op takes effect and what it answers: all four
// combinations are possible while things go wrong.
func (m *model) outcome(f *simFlight) error {
	effect, answer := true, true
	if m.now.Before(m.faults) && m.chance(0.15) {
		effect, answer = m.chance(0.5), false
	}
	if f.Canceled {
		effect, answer = m.chance(0.5), false
	}
	if effect {
		if err := m.effect(f.Op, answer); err != nil {
			return err
		}
	}
	if !answer {
		return errSim
	}
	return nil
}

// effect changes the world; only an answer changes the worker's memory.
func (m *model) effect(op Op, answer bool) error {
	switch op.Kind {
	case EnsureCgroup:
		m.residue.Cgroup = true
		m.cgroup = m.cgroup || answer
	case RemoveCgroup:
		m.residue.Cgroup = false
		m.cgroup = false
	case MountVolume:
		m.residue.Volumes = true
		if answer {
			m.volumes[op.Name] = Volume{Mounted: true, Objects: op.Objects}
		}
	case ClearVolumes:
		m.residue.Volumes = false
		clear(m.volumes)
	case PullImage:
		if op.Backoff && m.chance(0.7) {
			return errSim
		}
		if answer {
			m.images[op.Name] = Image{Attempt: op.Attempt, Ref: "ref"}
		}
	case RunHook:
		if answer {
			m.hooks[op.ID] = Hook{Done: true}
			if m.chance(0.1) {
				m.hooks[op.ID] = Hook{Failed: "no"}
			}
		}
	case ResizePod:
		if answer {
			m.resized = op.Attempt
		}
	case Forget:
		if len(m.boxes) > 0 {
			return errors.New("sandboxes are left")
		}
		m.forgotten = m.forgotten || answer
	default:
		return m.runtimeEffect(op, answer)
	}
	return nil
}

func (m *model) runtimeEffect(op Op, answer bool) error {
	switch op.Kind {
	case RunSandbox:
		if !slices.ContainsFunc(m.boxes, func(s Sandbox) bool { return s.Attempt == op.Attempt }) {
			m.boxes = append(m.boxes, Sandbox{ID: m.id("s"), Attempt: op.Attempt, Ready: true, Created: m.now, IPs: []string{"10.0.0.1"}})
		}
	case StopSandbox, RemoveSandbox:
		m.dropSandbox(op.ID, op.Kind == RemoveSandbox)
	case CreateContainer:
		return m.createContainer(op, answer)
	case StartContainer:
		return m.startContainer(op.ID)
	case StopContainer:
		m.exit(op.ID, 137)
	case RemoveContainer:
		m.exit(op.ID, 137)
		m.ctrs = slices.DeleteFunc(m.ctrs, func(c Container) bool { return c.ID == op.ID })
		if answer {
			delete(m.failures, ContainerKey(op.Name))
		}
	default:
		return fmt.Errorf("unknown op %s", op.Kind)
	}
	return nil
}

func (m *model) id(prefix string) string {
	m.next++
	return fmt.Sprintf("%s%d", prefix, m.next)
}

func (m *model) createContainer(op Op, answer bool) error {
	i := slices.IndexFunc(m.boxes, func(s Sandbox) bool { return s.ID == op.SandboxID && s.Ready })
	if i < 0 {
		return errors.New("no such sandbox")
	}
	if slices.ContainsFunc(m.ctrs, func(c Container) bool {
		return c.Name == op.Name && c.SandboxID == op.SandboxID && c.Attempt == op.Attempt
	}) {
		return nil // a retry joins
	}
	m.ctrs = append(m.ctrs, Container{
		ID: m.id("c"), Name: op.Name, SandboxID: op.SandboxID, Attempt: op.Attempt, State: Created, Created: m.now,
	})
	if answer {
		delete(m.images, op.Name)
	}
	return nil
}

func (m *model) startContainer(id string) error {
	for i := range m.ctrs {
		c := &m.ctrs[i]
		if c.ID != id || c.State != Created {
			continue
		}
		if m.now.Before(m.faults) && m.chance(0.05) {
			return errSim
		}
		c.State, c.Started = Running, m.now
		switch {
		case m.crashes[c.Name]:
			m.exits[id], m.codes[id] = m.now.Add(m.upTo(3*time.Second)), 1
		case isInit(m.pod, c.Name) && !IsSidecar(FindContainer(m.pod, c.Name)), m.chance(0.5), isEphemeral(m.pod, c.Name):
			m.exits[id] = m.now.Add(m.upTo(20 * time.Minute))
			if m.chance(0.5) {
				m.exits[id] = m.now.Add(m.upTo(10 * time.Second))
			}
			if m.chance(0.3) {
				m.codes[id] = 1
			}
		}
		return nil
	}
	return nil
}

func (m *model) exit(id string, code int32) {
	for i := range m.ctrs {
		if c := &m.ctrs[i]; c.ID == id && c.Live() {
			if c.State == Running {
				c.Started = c.Created
			}
			c.State, c.Finished, c.ExitCode = Exited, m.now, code
			delete(m.exits, id)
		}
	}
}

func (m *model) dropSandbox(id string, remove bool) {
	for i := range m.ctrs {
		if m.ctrs[i].SandboxID == id {
			m.exit(m.ctrs[i].ID, 137)
		}
	}
	for i := range m.boxes {
		if m.boxes[i].ID == id {
			m.boxes[i].Ready = false
		}
	}
	if remove {
		m.boxes = slices.DeleteFunc(m.boxes, func(s Sandbox) bool { return s.ID == id })
		m.ctrs = slices.DeleteFunc(m.ctrs, func(c Container) bool { return c.SandboxID == id })
	}
}

func (m *model) exitContainers() {
	var due []string
	for id, t := range m.exits {
		if !t.After(m.now) {
			due = append(due, id)
		}
	}
	slices.Sort(due)
	for _, id := range due {
		m.exit(id, m.codes[id])
		delete(m.exits, id)
	}
	for i := range m.ctrs {
		m.probe(&m.ctrs[i])
	}
}

// probe gives answers of a container's probes.
func (m *model) probe(c *Container) {
	p, probed := m.probes[c.ID]
	spec := FindContainer(m.pod, c.Name)
	if !probed || c.State != Running || spec == nil {
		return
	}
	if spec.StartupProbe != nil && (p.Started == nil || !*p.Started) {
		p.Started = new(!m.now.Before(m.faults) || m.chance(0.5))
	}
	if spec.ReadinessProbe != nil {
		p.Ready = new(m.chance(0.7))
	}
	if spec.LivenessProbe != nil && m.now.Before(m.faults) && m.chance(0.02) {
		p.Failed, p.FailedKind = "no", "liveness"
	}
	m.probes[c.ID] = p
}

func (m *model) userActs() {
	if m.pod.DeletionTimestamp == nil && !m.absent && !m.now.Before(m.deleted) {
		m.logf("%v deleted", m.now.Sub(simStart))
		if m.chance(0.1) {
			m.absent = true
			return
		}
		p := m.pod.DeepCopy()
		g := m.r.Int64N(40)
		p.DeletionGracePeriodSeconds = &g
		p.DeletionTimestamp = &metav1.Time{Time: m.now.Add(time.Duration(g) * time.Second)}
		m.pod = p
		return
	}
	if m.pod.DeletionTimestamp != nil && m.chance(0.01) {
		p := m.pod.DeepCopy()
		p.DeletionGracePeriodSeconds = new(*p.DeletionGracePeriodSeconds / 2)
		m.pod = p
	}
}

// mishap is what goes wrong by itself.
func (m *model) mishap() {
	switch {
	case m.chance(0.01):
		m.logf("%v the kubelet is killed", m.now.Sub(simStart))
		flights := m.flights
		m.restart()
		for _, key := range slices.Sorted(maps.Keys(flights)) { // what was cut off may have taken effect
			if m.chance(0.5) {
				_ = m.effect(flights[key].Op, false) // nobody is left to be told
			}
		}
	case m.chance(0.01) && len(m.boxes) > 0:
		m.logf("%v a sandbox dies", m.now.Sub(simStart))
		m.dropSandbox(m.boxes[m.r.IntN(len(m.boxes))].ID, m.chance(0.1))
	case m.chance(0.01) && len(m.ctrs) > 0:
		m.exit(m.ctrs[m.r.IntN(len(m.ctrs))].ID, 9)
	case m.chance(0.02) && m.pod.DeletionTimestamp == nil:
		p := m.pod.DeepCopy()
		p.Generation++
		p.Spec.Containers[0].Resources.Requests = v1.ResourceList{v1.ResourceCPU: *resource.NewQuantity(m.r.Int64N(3), resource.DecimalSI)}
		m.pod = p
	case m.chance(0.02):
		m.objects++
	case m.chance(0.005) && len(m.ctrs) > 0:
		i := m.r.IntN(len(m.ctrs))
		m.logf("%v container %s is removed from outside", m.now.Sub(simStart), m.ctrs[i].ID)
		m.ctrs = slices.Delete(m.ctrs, i, i+1)
	}
}

// checkWorld holds what must be true of the node at any time.
func (m *model) checkWorld() error {
	live := map[string]string{}
	for i := range m.ctrs {
		c := &m.ctrs[i]
		if c.Attempt < m.maxRun[c.Name] && c.Live() {
			return fmt.Errorf("attempt of %s fell to %d", c.Name, c.Attempt)
		}
		m.maxRun[c.Name] = max(m.maxRun[c.Name], c.Attempt)
		if !c.Live() {
			continue
		}
		if other, twice := live[c.Name]; twice {
			return fmt.Errorf("%s and %s live, both %s", other, c.ID, c.Name)
		}
		live[c.Name] = c.ID
	}
	return nil
}
