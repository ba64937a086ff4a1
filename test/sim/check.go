package sim

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/kubelet/podplan"
)

// Checker reads the history of one pod's life, event by event, and knows what must
// always hold:
//
//   - never two live instances of one container;
//   - no app container before its init containers are done and its sidecars started;
//   - init containers one after another, and none again once there was an app container;
//   - attempts and restart counts never fall;
//   - nothing starts once the pod ends, or is asked to go;
//   - a terminal phase only when nothing runs, and then for ever;
//   - no observedGeneration falls, no state of a container is missing or duplicated;
//   - nothing that a live container needs is removed;
//   - no op is repeated, and no step made, for ever without a cause.
//
// What must hold in the end (everything is gone, everything is at rest) is checked by the player:
// it knows when the end has come.
type Checker struct {
	pod       *v1.Pod
	instances map[string]*instance
	sandboxes map[string]*box
	there     map[string]bool   // sandboxes that have not been removed
	byOthers  bool              // something was removed from outside
	highest   map[string]uint32 // highest attempt of each container that was started
	ending    bool
	asked     time.Duration // 0: not yet
	up        time.Duration // since when the kubelet has been running, 0: it is not
	faultless time.Duration // since when, 0: not yet
	born      time.Duration // when the last life of a static pod of this UID was over
	flying    map[podplan.Key]podplan.Op
	begun     map[string][]time.Duration
	steps     []time.Duration
	words     map[string]string // the latest of each instance, by ID
	status    *v1.PodStatus
	// Counts of restarts as the worker reports them, and as the API server has them.
	counts, writtenCounts map[string]int32
}

type instance struct {
	name, sandbox string
	attempt       uint32
	exited        bool
}

// box is what happened in one sandbox.
type box struct {
	done, started, passed map[string]bool
	app                   bool // an app container was created in it
}

// NewChecker returns a checker for one life.
func NewChecker() *Checker {
	return &Checker{
		instances: map[string]*instance{}, sandboxes: map[string]*box{}, there: map[string]bool{}, highest: map[string]uint32{},
		words: map[string]string{}, flying: map[podplan.Key]podplan.Op{}, begun: map[string][]time.Duration{}, counts: map[string]int32{}, writtenCounts: map[string]int32{},
	}
}

// Check takes the next event, and returns an error that says what it violates.
func (c *Checker) Check(e Event) error {
	switch e.What {
	case PodSet:
		c.pod = e.Pod
		if pods.IsStatic(c.pod) {
			c.asked = 0 // its manifest may have been put back
		}
	case PodAsked:
		if c.asked == 0 {
			c.asked = e.At
		}
	case KubeletUp:
		c.up = e.At
	case KubeletDown:
		c.up = 0
		clear(c.flying)
	case FaultsEnd:
		c.faultless = e.At
	case RemovedByOthers:
		c.byOthers = true
	case SandboxMade:
		c.sandboxes[e.Sandbox], c.there[e.Sandbox] = newBox(), true
	case SandboxRemoved:
		delete(c.there, e.Sandbox)
	case Created, Started, Exited, Removed:
		return c.container(e)
	case StartupPassed:
		if i := c.instances[e.ID]; i != nil && c.sandboxes[i.sandbox] != nil {
			c.sandboxes[i.sandbox].passed[i.name] = true
		}
	case OpBegins:
		return c.op(e)
	case OpEnds:
		delete(c.flying, e.Op.Key())
		if e.Op.Kind == podplan.Forget && e.Text == opDone && pods.IsStatic(c.pod) {
			c.anew(e.At)
		}
	case Stepped:
		return c.step(e)
	case StatusPut:
		if c.byOthers {
			clear(c.counts) // a static pod has no status of its own at the API server to remember it
		}
		if err := c.message(e.Status); err != nil {
			return err
		}
		return shape(e.Status, c.counts)
	case StatusWritten:
		return c.written(e)
	case ObjectGone:
		return c.gone()
	}
	return nil
}

// anew forgets a static pod that is gone: its manifest may be put back.
func (c *Checker) anew(at time.Duration) {
	fresh := NewChecker()
	fresh.pod, fresh.up, fresh.faultless, fresh.asked, fresh.begun, fresh.born = c.pod, c.up, c.faultless, c.asked, c.begun, at
	*c = *fresh
}

func (c *Checker) container(e Event) error {
	switch e.What {
	case Created:
		return c.created(e)
	case Started:
		c.highest[e.Name] = max(c.highest[e.Name], e.Attempt)
		if b := c.sandboxes[e.Sandbox]; b != nil {
			b.started[e.Name] = true
		}
	case Exited:
		if i := c.instances[e.ID]; i != nil {
			i.exited = true
		}
		c.words[e.ID] = lastWords(e.Name, e.Attempt, e.Code)
		if b := c.sandboxes[e.Sandbox]; b != nil && e.Code == 0 {
			b.done[e.Name] = true
		}
	case Removed:
		delete(c.instances, e.ID)
		c.emptied(e.Sandbox)
	}
	return nil
}

// emptied notes that a sandbox whose containers are all removed starts over.
func (c *Checker) emptied(sandbox string) {
	if c.byOthers {
		return
	}
	for _, i := range c.instances {
		if i.sandbox == sandbox && !slices.ContainsFunc(c.pod.Spec.EphemeralContainers, func(e v1.EphemeralContainer) bool { return e.Name == i.name }) {
			return
		}
	}
	if c.sandboxes[sandbox] != nil {
		c.sandboxes[sandbox] = newBox()
	}
}

func newBox() *box {
	return &box{done: map[string]bool{}, started: map[string]bool{}, passed: map[string]bool{}}
}

func (c *Checker) created(e Event) error {
	for id, i := range c.instances {
		if i.name == e.Name && !i.exited {
			return fmt.Errorf("%s is created while %s lives, of the same container %s", e.ID, id, e.Name)
		}
	}
	if ran, ok := c.highest[e.Name]; ok && e.Attempt <= ran && !c.byOthers {
		return fmt.Errorf("attempt of %s fell from %d to %d", e.Name, ran, e.Attempt)
	}
	c.instances[e.ID] = &instance{name: e.Name, sandbox: e.Sandbox, attempt: e.Attempt}
	b := c.sandboxes[e.Sandbox]
	if b == nil {
		return fmt.Errorf("%s is created in %s, which nobody made", e.ID, e.Sandbox)
	}
	return c.order(e.Name, b)
}

// order checks that it is the container's turn.
func (c *Checker) order(name string, b *box) error {
	inits := c.pod.Spec.InitContainers
	at := slices.IndexFunc(inits, func(i v1.Container) bool { return i.Name == name })
	app := slices.ContainsFunc(c.pod.Spec.Containers, func(i v1.Container) bool { return i.Name == name })
	switch {
	case at >= 0 && b.app && !pods.IsSidecar(&inits[at]) && !c.byOthers:
		return fmt.Errorf("init container %s is created although an app container was there", name)
	case at >= 0 && b.app:
		return nil
	case at < 0 && !app:
		return nil // ephemeral
	case at < 0:
		at = len(inits)
	}
	for i := range inits[:at] {
		before := &inits[i]
		switch sidecar := pods.IsSidecar(before); {
		case app && b.app:
		case !sidecar && !b.done[before.Name]:
			return fmt.Errorf("%s is created before init container %s is done", name, before.Name)
		case sidecar && !b.started[before.Name]:
			return fmt.Errorf("%s is created before sidecar %s was started", name, before.Name)
		case sidecar && before.StartupProbe != nil && !b.passed[before.Name]:
			return fmt.Errorf("%s is created before sidecar %s passed its startup probe", name, before.Name)
		}
	}
	b.app = b.app || app
	return nil
}

// makes reports whether an op brings something to life.
func makes(k podplan.Kind) bool {
	switch k {
	case podplan.EnsureCgroup, podplan.MountVolume, podplan.RunSandbox, podplan.PullImage, podplan.CreateContainer,
		podplan.StartContainer, podplan.RunHook, podplan.ResizePod:
		return true
	default:
		return false
	}
}

// slowest is how long a worker may take to notice that its pod is asked to go: its look at the
// runtime may hang, and it backs off afterwards.
const slowest = 4 * time.Minute

func (c *Checker) op(e Event) error {
	if other, ok := c.flying[e.Op.Key()]; ok {
		return fmt.Errorf("%s begins while %s of the same key has not ended", opText(e.Op), opText(other))
	}
	c.flying[e.Op.Key()] = e.Op
	if e.Op.Kind == podplan.CreateContainer {
		for _, op := range c.flying {
			if op.Kind == podplan.RemoveContainer && op.Name == e.Op.Name && op.Attempt == e.Op.Attempt {
				return fmt.Errorf("%s begins while %s has not ended: they share files", opText(e.Op), opText(op))
			}
		}
	}
	if makes(e.Op.Kind) {
		switch {
		case e.Ending, c.ending:
			return fmt.Errorf("%s begins although the pod ends", opText(e.Op))
		case c.asked != 0 && c.up != 0 && e.At > max(c.asked, c.up)+slowest:
			return fmt.Errorf("%s begins, %v after the pod was asked to go", opText(e.Op), e.At-c.asked)
		}
	}
	c.ending = c.ending || e.Ending
	if err := c.teardown(e); err != nil {
		return err
	}
	return c.rate(e)
}

// teardown checks that nothing is removed from under a live container.
func (c *Checker) teardown(e Event) error {
	switch e.Op.Kind {
	case podplan.ClearVolumes, podplan.UnprepareClaims, podplan.RemoveCgroup, podplan.Forget:
	case podplan.RemoveSandbox, podplan.StopSandbox:
		for id, i := range c.instances {
			if !i.exited && i.sandbox == e.Op.ID {
				return fmt.Errorf("%s begins while %s lives in it", opText(e.Op), id)
			}
		}
		return nil
	default:
		return nil
	}
	if id := c.live(); id != "" {
		return fmt.Errorf("%s begins while %s lives", opText(e.Op), id)
	}
	for _, op := range c.flying {
		if makes(op.Kind) || e.Op.Kind == podplan.Forget && op.Kind != podplan.Forget {
			return fmt.Errorf("%s begins while %s has not ended", opText(e.Op), opText(op))
		}
	}
	return nil
}

func (c *Checker) live() string {
	for id, i := range c.instances {
		if !i.exited {
			return id
		}
	}
	return ""
}

// rate checks that an op is not repeated faster than any back-off would allow.
func (c *Checker) rate(e Event) error {
	key := string(e.Op.Kind) + " " + cmp.Or(e.Op.Name, e.Op.ID)
	if e.Op.Backoff {
		key += " look"
	}
	c.begun[key] = within(append(c.begun[key], e.At), e.At-10*time.Minute)
	most := 100
	switch calm := c.faultless != 0 && e.At-10*time.Minute > c.faultless; {
	case e.Op.Backoff:
		most = 150
	case calm && c.asked == 0 && (e.Op.Kind == podplan.CreateContainer || e.Op.Kind == podplan.RunSandbox && sandboxless(c.pod)):
		most = 80 // what the node refuses is tried again every ten seconds
	case calm && c.asked == 0:
		most = 30
	}
	if n := len(c.begun[key]); n > most {
		return fmt.Errorf("%s was begun %d times in ten minutes: it is repeated without a cause", key, n)
	}
	if n := len(within(c.begun[key], e.At-time.Minute)); n > 40 {
		return fmt.Errorf("%s was begun %d times in a minute: it is not backed off", key, n)
	}
	return nil
}

func within(times []time.Duration, since time.Duration) []time.Duration {
	i := 0
	for i < len(times) && times[i] < since {
		i++
	}
	return times[i:]
}

// step checks that the worker is not in a busy loop.
func (c *Checker) step(e Event) error {
	c.steps = within(append(c.steps, e.At), e.At-10*time.Second)
	if n := len(c.steps); n > 1000 {
		return fmt.Errorf("%d steps in ten seconds", n)
	}
	return nil
}

// written checks a status that has reached the API server.
func (c *Checker) written(e Event) error {
	st, before := e.Status, c.status
	if c.born > 0 && st.StartTime != nil && !st.StartTime.After(dawn.Add(c.born)) {
		return nil // it is from the kubelet's last life, and was on its way
	}
	c.status = st
	if c.byOthers && pods.IsStatic(c.pod) {
		clear(c.writtenCounts) // see StatusPut
	}
	if pods.IsTerminal(st.Phase) {
		if id := c.live(); id != "" {
			return fmt.Errorf("phase %s is written while %s lives", st.Phase, id)
		}
	}
	if before == nil {
		return shape(st, c.writtenCounts)
	}
	switch {
	case pods.IsTerminal(before.Phase) && st.Phase != before.Phase:
		return fmt.Errorf("phase went from %s to %q", before.Phase, st.Phase)
	case st.ObservedGeneration < before.ObservedGeneration:
		return fmt.Errorf("observedGeneration fell from %d to %d", before.ObservedGeneration, st.ObservedGeneration)
	case before.StartTime != nil && (st.StartTime == nil || !st.StartTime.Equal(before.StartTime)):
		return fmt.Errorf("startTime went from %v to %v", before.StartTime, st.StartTime)
	}
	return shape(st, c.writtenCounts)
}

// message checks that the message reported for an instance that ended is that instance's own.
func (c *Checker) message(st *v1.PodStatus) error {
	for _, s := range statuses(st) {
		for _, t := range []*v1.ContainerStateTerminated{s.State.Terminated, s.LastTerminationState.Terminated} {
			if t == nil || t.Reason != "Completed" && t.Reason != "Error" {
				continue
			}
			_, id, _ := strings.Cut(t.ContainerID, "://")
			if want, known := c.words[id]; known && t.Message != want {
				return fmt.Errorf("the end of %s is told with the message %q, not %q", id, t.Message, want)
			}
		}
	}
	return nil
}

// shape checks what must hold for every status by itself, and the counts.
func shape(st *v1.PodStatus, counts map[string]int32) error {
	for _, s := range statuses(st) {
		if s.RestartCount < counts[s.Name] {
			return fmt.Errorf("restart count of %s fell from %d to %d", s.Name, counts[s.Name], s.RestartCount)
		}
		counts[s.Name] = s.RestartCount
		states := 0
		for _, set := range []bool{s.State.Waiting != nil, s.State.Running != nil, s.State.Terminated != nil} {
			if set {
				states++
			}
		}
		if states != 1 {
			return fmt.Errorf("%s has %d states: %+v", s.Name, states, s.State)
		}
		if s.State.Waiting != nil && s.State.Waiting.Reason == "" {
			return fmt.Errorf("%s waits without a reason", s.Name)
		}
		if s.Ready && s.State.Running == nil && s.State.Terminated == nil {
			return fmt.Errorf("%s is ready and does not run", s.Name)
		}
	}
	ready := map[v1.PodConditionType]v1.ConditionStatus{}
	for _, cond := range st.Conditions {
		if _, twice := ready[cond.Type]; twice {
			return fmt.Errorf("condition %s is there twice", cond.Type)
		}
		ready[cond.Type] = cond.Status
	}
	if ready[v1.PodReady] == v1.ConditionTrue && (st.Phase != v1.PodRunning || ready[v1.ContainersReady] != v1.ConditionTrue) {
		return fmt.Errorf("the pod is Ready in phase %s with ContainersReady %s", st.Phase, ready[v1.ContainersReady])
	}
	return nil
}

// gone checks what must be true when the kubelet removes the API object.
func (c *Checker) gone() error {
	if len(c.instances) > 0 {
		return fmt.Errorf("the pod's object is deleted while %d containers are there", len(c.instances))
	}
	return nil
}
