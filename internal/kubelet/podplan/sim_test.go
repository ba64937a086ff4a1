package podplan

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

var (
	lives = flag.Uint64("lives", fromEnv("LIVES", 2000), "how many random pod lives to play")
	seed  = flag.Uint64("seed", fromEnv("SEED", 0), "play only the life of this seed, and print it")
)

// fromEnv lets make set what go test cannot pass to several packages at once.
func fromEnv(name string, otherwise uint64) uint64 {
	if n, err := strconv.ParseUint(os.Getenv(name), 10, 64); err == nil {
		return n
	}
	return otherwise
}

// TestSimLives plays whole lives of random pods against a model of a node in virtual
// time: ops that take long, fail, or take effect and fail; containers that exit;
// sandboxes that die; kubelets that are killed. It checks what must always hold.
func TestSimLives(t *testing.T) {
	if *seed != 0 {
		if err := play(*seed, t.Logf); err != nil {
			t.Fatalf("seed %d: %v", *seed, err)
		}
		return
	}
	for s := uint64(1); s <= *lives; s++ {
		if err := play(s, nil); err != nil {
			t.Fatalf("seed %d: %v (play it alone with -seed=%d)", s, err, s)
		}
	}
}

func FuzzSimLives(f *testing.F) {
	f.Add(uint64(1))
	f.Fuzz(func(t *testing.T, s uint64) {
		if err := play(s, nil); err != nil {
			t.Fatalf("seed %d: %v", s, err)
		}
	})
}

// model is a node with one pod.
type model struct {
	r    *rand.Rand
	logf func(string, ...any)
	now  time.Time

	pod     *v1.Pod
	absent  bool
	record  Record
	boxes   []Sandbox
	ctrs    []Container
	exits   map[string]time.Time // when a container will exit by itself
	codes   map[string]int32
	residue Residue
	next    int

	// the worker's memory, lost with the kubelet
	volumes   map[string]Volume
	images    map[string]Image
	hooks     map[string]Hook
	failures  map[Key]Failure
	flights   map[Key]*simFlight
	probes    map[string]Probe
	cgroup    bool
	forgotten bool
	resized   uint32
	objects   uint64

	status  v1.PodStatus
	faults  time.Time // until when things go wrong
	deleted time.Time // when the user deletes the pod
	started int       // ops, for the rate
	maxRun  map[string]uint32
	counts  map[string]int32
	creates map[string]int
	crashes map[string]bool // containers that never live long
}

type simFlight struct {
	Flight
	ends time.Time
}

const simHorizon = 24 * time.Hour

func play(s uint64, logf func(string, ...any)) error {
	m := newModel(s, logf)
	for steps := 0; ; steps++ {
		done, recheck, err := m.step()
		if err != nil {
			return fmt.Errorf("at %v: %w", m.now.Sub(simStart), err)
		}
		if done {
			if n := len(m.boxes) + len(m.ctrs); n > 0 || m.residue != (Residue{}) {
				return fmt.Errorf("done, but %d sandboxes and containers and %+v are left", n, m.residue)
			}
			return nil
		}
		if m.now.Sub(simStart) > simHorizon {
			return fmt.Errorf("did not converge: %v", m.dump())
		}
		if steps > 20000 {
			return fmt.Errorf("too many steps, %d ops started: %v", m.started, m.dump())
		}
		if err := m.advance(recheck); err != nil {
			return err
		}
	}
}

var simStart = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func newModel(s uint64, logf func(string, ...any)) *model {
	if logf == nil {
		logf = func(string, ...any) {}
	}
	m := &model{
		r: rand.New(rand.NewPCG(s, 7)), logf: logf, now: simStart, exits: map[string]time.Time{}, codes: map[string]int32{},
		maxRun: map[string]uint32{}, counts: map[string]int32{}, creates: map[string]int{}, crashes: map[string]bool{},
	}
	m.restart()
	m.pod = m.randomPod()
	m.faults = simStart.Add(m.upTo(20 * time.Minute))
	m.deleted = simStart.Add(m.upTo(40 * time.Minute))
	return m
}

func (m *model) upTo(d time.Duration) time.Duration { return time.Duration(m.r.Int64N(int64(d)) + 1) }
func (m *model) chance(p float64) bool              { return m.r.Float64() < p }

// restart loses what only the kubelet's memory held. What was in flight is cut off.
func (m *model) restart() {
	m.volumes, m.images, m.hooks = map[string]Volume{}, map[string]Image{}, map[string]Hook{}
	m.failures, m.flights, m.probes = map[Key]Failure{}, map[Key]*simFlight{}, map[string]Probe{}
	m.cgroup, m.forgotten, m.resized = false, false, 0
}

func (m *model) randomPod() *v1.Pod {
	policies := []v1.RestartPolicy{v1.RestartPolicyAlways, v1.RestartPolicyOnFailure, v1.RestartPolicyNever}
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: types.UID("u"), Generation: 1},
		Spec: v1.PodSpec{
			RestartPolicy:                 policies[m.r.IntN(3)],
			TerminationGracePeriodSeconds: new(m.r.Int64N(60)),
			HostNetwork:                   m.chance(0.1),
		},
	}
	if m.chance(0.2) {
		pod.Spec.ActiveDeadlineSeconds = new(m.r.Int64N(1200) + 1)
	}
	for i := range m.r.IntN(3) {
		pod.Spec.Volumes = append(pod.Spec.Volumes, v1.Volume{Name: fmt.Sprintf("v%d", i), VolumeSource: v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{}}})
	}
	pod.Spec.Volumes = append(pod.Spec.Volumes, v1.Volume{Name: "image", VolumeSource: v1.VolumeSource{Image: &v1.ImageVolumeSource{}}})
	for i := range m.r.IntN(4) {
		c := m.randomContainer(fmt.Sprintf("i%d", i))
		if m.chance(0.4) {
			c.RestartPolicy = ptr.To(v1.ContainerRestartPolicyAlways)
		} else {
			c.Lifecycle, c.StartupProbe, c.LivenessProbe, c.ReadinessProbe = nil, nil, nil, nil
		}
		pod.Spec.InitContainers = append(pod.Spec.InitContainers, c)
	}
	for i := range m.r.IntN(3) + 1 {
		pod.Spec.Containers = append(pod.Spec.Containers, m.randomContainer(fmt.Sprintf("c%d", i)))
	}
	if m.chance(0.2) {
		pod.Spec.EphemeralContainers = []v1.EphemeralContainer{{EphemeralContainerCommon: v1.EphemeralContainerCommon{Name: "e"}}}
	}
	return pod
}

func (m *model) randomContainer(name string) v1.Container {
	c := v1.Container{Name: name, Image: "img"}
	m.crashes[name] = m.chance(0.15)
	if m.chance(0.15) {
		actions := []v1.ContainerRestartRuleAction{v1.ContainerRestartRuleActionRestart, v1.ContainerRestartRuleActionRestartAllContainers}
		c.RestartPolicy = ptr.To(v1.ContainerRestartPolicyNever)
		c.RestartPolicyRules = []v1.ContainerRestartRule{{Action: actions[m.r.IntN(2)], ExitCodes: &v1.ContainerRestartRuleOnExitCodes{
			Operator: v1.ContainerRestartRuleOnExitCodesOpIn, Values: []int32{1},
		}}}
	}
	if m.chance(0.1) {
		c.VolumeMounts = []v1.VolumeMount{{Name: "image", MountPath: "/image"}}
	}
	if m.chance(0.2) {
		c.ResizePolicy = []v1.ContainerResizePolicy{{ResourceName: v1.ResourceCPU, RestartPolicy: v1.RestartContainer}}
	}
	if m.chance(0.2) {
		c.Lifecycle = &v1.Lifecycle{PostStart: &v1.LifecycleHandler{}}
	}
	for _, p := range []**v1.Probe{&c.StartupProbe, &c.LivenessProbe, &c.ReadinessProbe} {
		if m.chance(0.2) {
			*p = &v1.Probe{}
		}
	}
	return c
}

func (m *model) input() Input {
	in := Input{
		Pod: m.pod, Absent: m.absent, Record: m.record, Sandboxes: slices.Clone(m.boxes), Containers: slices.Clone(m.ctrs),
		Volumes: maps.Clone(m.volumes), Residue: m.residue, Forgotten: m.forgotten, CgroupReady: m.cgroup, Images: maps.Clone(m.images),
		Probes: maps.Clone(m.probes), Hooks: maps.Clone(m.hooks), InFlight: map[Key]Flight{}, Failures: maps.Clone(m.failures),
		Objects: m.objects, Resized: m.resized, Reported: *m.status.DeepCopy(),
		Node: Node{HostIPs: []string{"192.0.2.1"}, RuntimeName: "sim", CgroupsManaged: true},
	}
	for k, f := range m.flights {
		in.InFlight[k] = f.Flight
	}
	return in
}

func (m *model) dump() string {
	in := m.input()
	data, err := json.Marshal(struct {
		In   Input
		Plan Plan
	}{in, Next(in, m.now)})
	if err != nil {
		return err.Error()
	}
	return string(data)
}

// step is what the pod's worker does.
func (m *model) step() (done bool, recheck time.Time, err error) {
	in := m.input()
	if in.Record.Verdict == nil && !m.absent && m.pod.DeletionTimestamp == nil {
		in.Record.Verdict = &Verdict{Admitted: !m.chanceOnce(0.05)}
		if !in.Record.Verdict.Admitted {
			in.Record.Verdict.Reason = "OutOfcpu"
		} else {
			in.Record.Verdict.Allocated = allocated(m.pod)
		}
	}
	if ResizeDue(&in) {
		TakeResize(&in, []ResizeDecision{
			{Allocate: true}, {Allocate: true}, {Reason: v1.PodReasonDeferred}, {Reason: v1.PodReasonInfeasible}, {},
		}[m.r.IntN(5)])
	}
	plan := Next(in, m.now)
	again := Next(in, m.now)
	if diff := cmp.Diff(plan, again); diff != "" {
		return false, recheck, fmt.Errorf("the same input gives two plans:\n%s", diff)
	}
	if err := m.checkRecord(plan.Record); err != nil {
		return false, recheck, err
	}
	m.record = plan.Record
	in.Record = plan.Record
	if !m.absent {
		st := Status(in, m.now)
		if err := m.checkStatus(&st); err != nil {
			return false, recheck, err
		}
		m.status = st
	}
	m.syncProbes(plan)
	return plan.Done, plan.RecheckAt, m.carry(plan)
}

func (m *model) chanceOnce(p float64) bool { return m.now.Equal(simStart) && m.chance(p) }

func (m *model) checkRecord(r Record) error {
	if m.record.Ending != nil && (r.Ending == nil || r.Ending.Since != m.record.Ending.Since) {
		return fmt.Errorf("the ending was taken back: %+v", r.Ending)
	}
	for name, h := range m.record.Containers {
		if r.Containers[name].Attempt < h.Attempt {
			return fmt.Errorf("attempt of %s fell in the record", name)
		}
	}
	return nil
}

// checkStatus holds what must be true of every status that goes out.
func (m *model) checkStatus(st *v1.PodStatus) error {
	live := slices.ContainsFunc(m.ctrs, func(c Container) bool { return c.Live() })
	switch {
	case IsTerminal(m.status.Phase) && st.Phase != m.status.Phase:
		return fmt.Errorf("phase went from %s to %s", m.status.Phase, st.Phase)
	case IsTerminal(st.Phase) && live:
		return fmt.Errorf("phase %s while containers live", st.Phase)
	case st.ObservedGeneration < m.status.ObservedGeneration:
		return fmt.Errorf("observed generation fell")
	case len(st.ContainerStatuses) != len(m.pod.Spec.Containers) && (m.record.Verdict == nil || m.record.Verdict.Admitted):
		return fmt.Errorf("%d container statuses", len(st.ContainerStatuses))
	}
	for _, list := range [][]v1.ContainerStatus{st.InitContainerStatuses, st.ContainerStatuses} {
		for _, c := range list {
			if c.RestartCount < m.counts[c.Name] {
				return fmt.Errorf("restart count of %s fell from %d to %d", c.Name, m.counts[c.Name], c.RestartCount)
			}
			m.counts[c.Name] = c.RestartCount
			n := 0
			for _, set := range []bool{c.State.Waiting != nil, c.State.Running != nil, c.State.Terminated != nil} {
				if set {
					n++
				}
			}
			if n != 1 {
				return fmt.Errorf("state of %s is %+v", c.Name, c.State)
			}
			if c.Ready && c.State.Running == nil && c.State.Terminated == nil {
				return fmt.Errorf("%s is ready and does not run", c.Name)
			}
		}
	}
	return nil
}

func (m *model) syncProbes(plan Plan) {
	keep := map[string]Probe{}
	for _, t := range plan.Probes {
		keep[t.ID] = m.probes[t.ID]
	}
	m.probes = keep
}

// carry cancels and starts ops.
func (m *model) carry(plan Plan) error {
	wanted := map[Key]Op{}
	for _, op := range plan.Ops {
		if _, twice := wanted[op.Key()]; twice {
			return fmt.Errorf("two ops of key %s", op.Key())
		}
		wanted[op.Key()] = op
	}
	for _, key := range slices.Sorted(maps.Keys(m.flights)) {
		f := m.flights[key]
		if op, ok := wanted[key]; (!ok || op != f.Op) && !f.Canceled {
			m.logf("%v cancel %+v", m.now.Sub(simStart), f.Op)
			f.Canceled = true
			f.ends = m.now.Add(m.upTo(time.Second))
		}
	}
	for _, op := range plan.Ops {
		if _, flying := m.flights[op.Key()]; flying {
			continue
		}
		if plan.Record.Ending != nil && !op.Kind.teardown() {
			return fmt.Errorf("%s is started while the pod ends", op.Kind)
		}
		if err := m.checkStart(op); err != nil {
			return err
		}
		if err := m.checkTeardown(op, plan); err != nil {
			return err
		}
		m.logf("%v start %+v", m.now.Sub(simStart), op)
		m.started++
		m.flights[op.Key()] = &simFlight{Flight: Flight{Op: op, Since: m.now}, ends: m.now.Add(m.duration(op))}
	}
	if m.started > 150+int(m.now.Sub(simStart)/time.Second) {
		return fmt.Errorf("%d ops in %v: something is repeated without a cause", m.started, m.now.Sub(simStart))
	}
	return nil
}

func (m *model) duration(op Op) time.Duration {
	switch op.Kind {
	case StopContainer:
		if m.chance(0.3) {
			return max(op.Deadline.Sub(m.now), 0) + time.Millisecond // it ignores the signal
		}
		return min(m.upTo(5*time.Second), max(op.Deadline.Sub(m.now), 0)+time.Millisecond)
	case PullImage, RunHook:
		if m.chance(0.1) {
			return m.upTo(time.Minute)
		}
		return m.upTo(time.Second)
	default:
		return m.upTo(2 * time.Second)
	}
}

// checkTeardown holds what must be true before what others stand on is taken away.
func (m *model) checkTeardown(op Op, plan Plan) error {
	if plan.Record.Ending == nil {
		return nil
	}
	switch op.Kind {
	case ClearVolumes, RemoveCgroup, RemoveSandbox, Forget:
	default:
		return nil
	}
	for key, f := range m.flights {
		if !f.Op.Kind.teardown() {
			return fmt.Errorf("%s begins while %s has not returned", op.Kind, key)
		}
	}
	for i := range m.ctrs {
		if m.ctrs[i].Live() {
			return fmt.Errorf("%s begins while %s lives", op.Kind, m.ctrs[i].ID)
		}
	}
	return nil
}

// checkStart holds what must be true when an op that makes something begins.
func (m *model) checkStart(op Op) error {
	if op.Kind != CreateContainer {
		return nil
	}
	m.creates[op.Name]++
	if n, most := m.creates[op.Name], 12+int(m.now.Sub(simStart)/time.Minute)*2; n > most {
		return fmt.Errorf("%s was created %d times in %v: it is not backed off", op.Name, n, m.now.Sub(simStart))
	}
	for i := range m.ctrs {
		if c := &m.ctrs[i]; c.Name == op.Name && c.Live() {
			return fmt.Errorf("%s is created while %s lives", op.Name, c.ID)
		}
	}
	if isInit(m.pod, op.Name) || isEphemeral(m.pod, op.Name) {
		return m.initOrder(op)
	}
	for i := range m.pod.Spec.InitContainers {
		if ic := &m.pod.Spec.InitContainers[i]; !m.passed(ic, op.SandboxID) && !m.appRan(op.SandboxID) {
			return fmt.Errorf("%s is created before init container %s is done", op.Name, ic.Name)
		}
	}
	return nil
}

func (m *model) initOrder(op Op) error {
	if m.appRan(op.SandboxID) {
		return nil
	}
	for i := range m.pod.Spec.InitContainers {
		ic := &m.pod.Spec.InitContainers[i]
		if ic.Name == op.Name || isEphemeral(m.pod, op.Name) {
			return nil
		}
		if !m.passed(ic, op.SandboxID) && !IsSidecar(ic) {
			return fmt.Errorf("init container %s is created before %s is done", op.Name, ic.Name)
		}
	}
	return nil
}

func (m *model) passed(ic *v1.Container, sandbox string) bool {
	return slices.ContainsFunc(m.ctrs, func(c Container) bool {
		return c.Name == ic.Name && c.SandboxID == sandbox && (IsSidecar(ic) || c.State == Exited && c.ExitCode == 0)
	})
}

func (m *model) appRan(sandbox string) bool {
	return slices.ContainsFunc(m.ctrs, func(c Container) bool {
		return c.SandboxID == sandbox && !isInit(m.pod, c.Name) && !isEphemeral(m.pod, c.Name)
	})
}
