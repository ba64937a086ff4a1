package sim

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	"k8s.io/apimachinery/pkg/types"

	"wherry.dev/internal/kubelet/podplan"
	"wherry.dev/test/fakecri"
)

// What is the kind of an event.
type What string

// The kinds of events of a life.
const (
	PodSet          What = "pod"               // the desired state is another
	PodAsked        What = "asked to go"       // deleted, or its object is gone
	KubeletUp       What = "kubelet starts"    //
	KubeletDown     What = "kubelet is gone"   //
	FaultsEnd       What = "faults end"        //
	SandboxMade     What = "sandbox made"      //
	SandboxStopped  What = "sandbox stopped"   //
	SandboxRemoved  What = "sandbox removed"   //
	Created         What = "created"           // a container, in the runtime
	Started         What = "started"           //
	Exited          What = "exited"            //
	Removed         What = "removed"           //
	RemovedByOthers What = "removed by others" // the next removal is nobody's fault
	StartupPassed   What = "startup probe passed"
	OpBegins        What = "op begins"
	OpEnds          What = "op ends"
	StatusPut       What = "status put"     // by the worker
	StatusWritten   What = "status written" // at the API server
	Stepped         What = "step"           // of the worker
	ObjectGone      What = "object gone"    // from the API server
	Note            What = "note"
)

// Event is one thing that happened in a life.
type Event struct {
	At      time.Duration
	What    What
	UID     types.UID // of the pod; empty if it concerns all of them
	Name    string    // of a container
	ID      string    // of a container
	Sandbox string
	Attempt uint32
	Code    int32
	Op      podplan.Op
	// Ending means that the pod's record says that it ends.
	Ending bool
	Status *v1.PodStatus
	Pod    *v1.Pod
	Text   string
}

// FromRuntime returns the event for a change in the fake runtime.
func FromRuntime(c fakecri.Change) Event {
	e := Event{What: What(c.What), UID: types.UID(c.UID), ID: c.ID, Name: c.Name, Sandbox: c.Sandbox, Attempt: c.Attempt, Code: c.Code}
	if c.ID == "" {
		e.What = What("sandbox " + c.What)
	}
	return e
}

func (e Event) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%13s  %s", e.At, e.What)
	if e.Name != "" {
		fmt.Fprintf(&b, " %s/%d", e.Name, e.Attempt)
	}
	if e.ID != "" {
		b.WriteString(" " + e.ID)
	}
	if e.Sandbox != "" {
		b.WriteString(" in " + e.Sandbox)
	}
	if e.What == Exited {
		fmt.Fprintf(&b, " with %d", e.Code)
	}
	if e.Op.Kind != "" {
		fmt.Fprintf(&b, " %s", opText(e.Op))
	}
	if e.Status != nil {
		b.WriteString(" " + statusText(e.Status))
	}
	if e.Pod != nil {
		b.WriteString(" " + string(e.Pod.UID) + " " + podText(e.Pod))
	}
	if e.Text != "" {
		b.WriteString(" " + e.Text)
	}
	return b.String()
}

func opText(op podplan.Op) string {
	out := strings.Join(slices.DeleteFunc([]string{string(op.Kind), op.Name, op.ID}, func(s string) bool { return s == "" }), " ")
	if op.Attempt > 0 {
		out += fmt.Sprintf(" attempt %d", op.Attempt)
	}
	if op.Backoff {
		out += " (look only)"
	}
	if !op.Deadline.IsZero() {
		out += fmt.Sprintf(" by %v", op.Deadline.Sub(dawn))
	}
	return out
}

// dawn is when the clock of a synctest bubble starts.
var dawn = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

func statusText(st *v1.PodStatus) string {
	out := string(st.Phase)
	if st.Reason != "" {
		out += "(" + st.Reason + ")"
	}
	words := []string{out}
	for _, c := range st.Conditions {
		if c.Type == v1.PodReady && c.Status == v1.ConditionTrue {
			words = append(words, "Ready")
		}
	}
	for _, c := range statuses(st) {
		words = append(words, c.Name+"="+stateText(&c))
	}
	return fmt.Sprintf("%s gen %d", strings.Join(words, " "), st.ObservedGeneration)
}

func stateText(c *v1.ContainerStatus) string {
	out := ""
	switch {
	case c.State.Running != nil:
		out = "running"
		if c.Ready {
			out = "ready"
		}
	case c.State.Waiting != nil:
		out = c.State.Waiting.Reason
	case c.State.Terminated != nil:
		out = fmt.Sprintf("%s:%d", c.State.Terminated.Reason, c.State.Terminated.ExitCode)
	}
	return fmt.Sprintf("%s(%d)", out, c.RestartCount)
}

func podText(p *v1.Pod) string {
	var b strings.Builder
	fmt.Fprintf(&b, "gen %d, restartPolicy %s, grace %d;", p.Generation, p.Spec.RestartPolicy, *p.Spec.TerminationGracePeriodSeconds)
	list := func(kind string, cs []v1.Container) {
		for i := range cs {
			fmt.Fprintf(&b, " %s %s(%s)", kind, cs[i].Name, strings.Join(traits(&cs[i]), " "))
		}
	}
	list("init", p.Spec.InitContainers)
	list("app", p.Spec.Containers)
	for i := range p.Spec.EphemeralContainers {
		b.WriteString(" ephemeral " + p.Spec.EphemeralContainers[i].Name)
	}
	if d := p.Spec.ActiveDeadlineSeconds; d != nil {
		fmt.Fprintf(&b, " deadline %ds", *d)
	}
	if p.DeletionTimestamp != nil {
		fmt.Fprintf(&b, ", deleted with grace %d", *p.DeletionGracePeriodSeconds)
	}
	return b.String()
}

// traits names a container's features.
func traits(c *v1.Container) []string {
	out := []string{c.Image}
	if c.RestartPolicy != nil {
		out = append(out, string(*c.RestartPolicy))
	}
	out = append(out, c.Command...)
	for _, p := range []struct {
		name  string
		probe *v1.Probe
	}{{"startup", c.StartupProbe}, {"liveness", c.LivenessProbe}, {"readiness", c.ReadinessProbe}} {
		if p.probe != nil {
			out = append(out, p.name+"="+askText(p.probe.ProbeHandler))
		}
	}
	for _, r := range c.RestartPolicyRules {
		out = append(out, fmt.Sprintf("%s %s %v", r.Action, r.ExitCodes.Operator, r.ExitCodes.Values))
	}
	if l := c.Lifecycle; l != nil && l.PostStart != nil {
		out = append(out, "postStart="+askText(v1.ProbeHandler{Exec: l.PostStart.Exec, HTTPGet: l.PostStart.HTTPGet}))
	}
	if l := c.Lifecycle; l != nil && l.PreStop != nil {
		out = append(out, "preStop="+askText(v1.ProbeHandler{Exec: l.PreStop.Exec, HTTPGet: l.PreStop.HTTPGet}))
	}
	return out
}

// askText describes how a container is probed, and what it answers.
func askText(h v1.ProbeHandler) string {
	how := "sleep"
	switch {
	case h.Exec != nil:
		how = "exec"
	case h.HTTPGet != nil:
		how = "http"
	case h.TCPSocket != nil:
		how = "tcp"
	case h.GRPC != nil:
		how = "grpc"
	}
	if fails(h) {
		return how + "," + sick
	}
	return how
}

// statuses returns the statuses of all containers.
func statuses(st *v1.PodStatus) []v1.ContainerStatus {
	var out []v1.ContainerStatus
	for _, list := range [][]v1.ContainerStatus{st.InitContainerStatuses, st.ContainerStatuses, st.EphemeralContainerStatuses} {
		out = append(out, list...)
	}
	return out
}

// history records events and has each one checked.
type history struct {
	broken chan struct{} // closed at the first violation

	mu       sync.Mutex
	events   []Event
	checkers map[types.UID]*Checker
	uids     []types.UID // of the checkers, in the order in which the pods came
	err      error
	put      string // the newest status that the worker put
}

func newHistory() *history {
	return &history{broken: make(chan struct{}), checkers: map[types.UID]*Checker{}}
}

func (h *history) add(e Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	e.At = time.Since(dawn)
	if e.What != Stepped && !h.stale(e) {
		h.events = append(h.events, e)
	}
	if h.err != nil {
		return
	}
	if err := h.checkLocked(e); err != nil {
		h.failLocked(err)
	}
}

// checkLocked passes an event to the checkers that it concerns. Of pods that follow one another
// through static manifests, only one may have anything in the runtime.
func (h *history) checkLocked(e Event) error {
	if e.What == PodSet {
		e.UID = e.Pod.UID
		if h.checkers[e.UID] == nil {
			h.checkers[e.UID] = NewChecker()
			h.uids = append(h.uids, e.UID)
			for _, other := range h.checkers {
				h.checkers[e.UID].up = other.up
			}
		}
	}
	for _, uid := range h.uids {
		c := h.checkers[uid]
		switch {
		case e.UID == "" || e.UID == uid:
			if err := c.Check(e); err != nil {
				return err
			}
		case e.What == SandboxMade && (c.live() != "" || len(c.there) > 0):
			return fmt.Errorf("%s of %s is made while there is something of %s", e.Sandbox, e.UID, uid)
		}
	}
	return nil
}

// stale reports whether a status has been put before, unchanged.
func (h *history) stale(e Event) bool {
	if e.What != StatusPut {
		return false
	}
	old := h.put
	h.put = string(e.UID) + statusText(e.Status)
	return old == h.put
}

func (h *history) fail(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.err == nil && err != nil {
		h.failLocked(err)
	}
}

func (h *history) failLocked(err error) {
	h.err = err
	h.events = append(h.events, Event{At: time.Since(dawn), What: "VIOLATION", Text: err.Error()})
	close(h.broken)
}

func (h *history) lines() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := make([]string, 0, len(h.events))
	for _, e := range h.events {
		out = append(out, e.String())
	}
	return out
}

func (h *history) failure() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.err
}
