// Package explain says in plain words why an object is where it is: the step that it waits for, since
// when, what that step last reported, and what would let it continue. It knows pods, what makes them
// (deployments, sets, jobs, cron jobs), and what stands before them (services, autoscalers, claims).
//
// It is pure: each function turns facts into an Explanation. `wherry explain` gathers the facts from
// the API server and, through it, from the kubelet of a pod's node. What holds up a workload or a
// service is in the end a pod: Ask names the pods whose own explanations Add takes.
package explain

import (
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/api/report"
	"wherry.dev/internal/kubelet/podplan"
)

// Facts is what is known about a pod and about what it depends on.
type Facts struct {
	Now    time.Time
	Pod    *v1.Pod
	Events []v1.Event
	// Node that the pod is bound to; nil if there is none or it may not be read.
	Node *v1.Node
	// NodeGone: the pod is bound to a node that does not exist.
	NodeGone bool
	// Kubelet is what the node's kubelet reports about the pod.
	Kubelet *report.Pod
	// KubeletGone: the kubelet answered, and does not know the pod.
	KubeletGone bool
	// Scheduling is what the scheduler reports about the pod, and SchedulerErr why it could not be asked.
	Scheduling   *report.Scheduling
	SchedulerErr string
	// KubeletErr says why the kubelet could not be asked.
	KubeletErr string
}

// Explanation explains an object.
type Explanation struct {
	// Kind of the object, as the API has it.
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid"`
	Node      string `json:"node,omitempty"`
	// State as kubectl shows it.
	State string `json:"state"`
	// Since is when the object entered that state.
	Since   *time.Time `json:"since,omitempty"`
	Summary string     `json:"summary"`
	// Waits has what the object waits for; the first one holds up the others.
	Waits []report.Wait `json:"waits,omitempty"`
	// Nodes says why a pod without a node does not fit on them.
	Nodes []report.NodeGroup `json:"nodes,omitempty"`
	// Choice is how a pod's node was chosen, if that is what was asked for.
	Choice *report.Choice `json:"choice,omitempty"`
	Notes  []string       `json:"notes,omitempty"`
	// Pods explains pods that hold the object up, one of each sort.
	Pods []Explanation `json:"pods,omitempty"`

	ask []*v1.Pod
}

// explainer builds the explanation of a pod.
type explainer struct {
	findings
	Facts
	// status is the newest available: the kubelet's, or the API server's.
	status v1.PodStatus
}

// Explain explains a pod.
func Explain(f Facts) Explanation {
	p := f.Pod
	e := &explainer{findings: newFindings("Pod", p, About{Now: f.Now, Events: f.Events}), Facts: f, status: p.Status}
	e.out.Node = p.Spec.NodeName
	if f.Kubelet != nil && f.Kubelet.Status.Phase != "" {
		e.status = f.Kubelet.Status
	}
	switch {
	case p.DeletionTimestamp != nil:
		e.terminating()
	case pods.IsTerminal(e.status.Phase):
		e.ended()
	case p.Spec.NodeName == "":
		e.scheduling()
	default:
		e.running()
	}
	e.volumesHealth()
	if f.KubeletErr != "" {
		e.note("the kubelet of node %s could not be asked: %s", p.Spec.NodeName, f.KubeletErr)
	}
	return e.out
}

// reported takes over what the kubelet waits for, with what events say about it.
func (e *explainer) reported(waits []report.Wait) {
	for _, w := range waits {
		if of := w.Event; of != nil {
			w.Event = nil
			if ev := e.event(of.Reason, of.Container, of.Text); ev != nil && eventTime(ev).After(of.Since) {
				w.Said = ev.Message
			}
		}
		e.wait(w)
	}
}

// ended explains a pod that has run.
func (e *explainer) ended() {
	e.out.State = string(e.status.Phase)
	if e.status.Reason != "" {
		e.out.State = e.status.Reason
	}
	e.out.Summary = "It has ended and waits for nothing."
	if m := e.status.Message; m != "" {
		e.out.Summary = "It has ended and waits for nothing: " + m
	}
	for _, c := range slices.Concat(e.status.InitContainerStatuses, e.status.ContainerStatuses) {
		if t := c.State.Terminated; t != nil {
			e.note("container %s ended with exit code %d%s", c.Name, t.ExitCode, report.Details(t.Reason, t.Message))
			if e.out.Since == nil || t.FinishedAt.After(*e.out.Since) {
				e.out.Since = report.When(t.FinishedAt.Time)
			}
		}
	}
}

// scheduling explains a pod without a node.
func (e *explainer) scheduling() {
	e.out.State, e.out.Since = "Pending", report.When(e.Pod.CreationTimestamp.Time)
	e.out.Summary = "It has no node yet."
	scheduled := pods.FindCondition(&e.status, v1.PodScheduled)
	if gates := e.Pod.Spec.SchedulingGates; len(gates) > 0 {
		var names []string
		for _, g := range gates {
			names = append(names, g.Name)
		}
		e.out.State = "SchedulingGated"
		e.wait(report.Wait{
			Step: "scheduling gates " + strings.Join(names, ", "), Since: e.out.Since,
			Said: "the scheduler does not look at the pod while it has gates",
			Next: "the controllers that set the gates remove them from spec.schedulingGates",
		})
		return
	}
	name := e.Pod.Spec.SchedulerName
	if name == "" {
		name = v1.DefaultSchedulerName
	}
	if e.Scheduling != nil && e.Scheduling.Queue != nil && e.Scheduling.Queue.Gate != "" {
		w := report.Wait{
			Step: "scheduler " + name, Since: e.out.Since, Said: e.Scheduling.Queue.Gate,
			Next: "that changes; until then the scheduler does not look for a node",
		}
		e.queued(&w)
		e.wait(w)
		return
	}
	if scheduled == nil || scheduled.Status != v1.ConditionFalse {
		e.wait(report.Wait{
			Step: "scheduler " + name, Since: e.out.Since, Said: "nothing: it has not looked at the pod",
			Next: fmt.Sprintf("a scheduler named %s runs and picks the pod up", name),
		})
		return
	}
	w := report.Wait{
		Step: "scheduler " + name, Since: report.When(scheduled.LastTransitionTime.Time), Said: scheduled.Message,
		Next: "a node is added or changes, or room is freed, so that the pod fits; the scheduler then retries on its own",
	}
	if ev := e.event("FailedScheduling", "", ""); ev != nil && w.Said == "" {
		w.Said = ev.Message
	}
	if n := e.status.NominatedNodeName; n != "" {
		w.Next = fmt.Sprintf("the pods that are preempted on node %s end", n)
	}
	e.queued(&w)
	e.wait(w)
}

// queued adds what the scheduler itself reports.
func (e *explainer) queued(w *report.Wait) {
	if e.SchedulerErr != "" {
		e.note("the scheduler could not be asked: %s", e.SchedulerErr)
	}
	if e.Scheduling == nil || e.Scheduling.Queue == nil {
		return
	}
	q := e.Scheduling.Queue
	e.out.Nodes = e.Scheduling.Nodes
	w.Retry = q.Retry
	for _, a := range q.WaitsFor {
		if len(a.Events) > 0 {
			e.note("plugin %s waits for: %s", a.Plugin, strings.Join(a.Events, ", "))
		}
	}
	e.note("in the scheduler's queue it is %s, after %s", q.Place, count(q.Attempts, "attempt"))
}

// WhyNode explains how the node of a pod was chosen.
func WhyNode(f Facts) Explanation {
	e := &explainer{findings: newFindings("Pod", f.Pod, About{Now: f.Now}), Facts: f, status: f.Pod.Status}
	e.out.Node, e.out.State = f.Pod.Spec.NodeName, string(f.Pod.Status.Phase)
	switch {
	case f.SchedulerErr != "":
		e.out.Summary = "The scheduler could not be asked: " + f.SchedulerErr
	case f.Scheduling == nil || f.Scheduling.Choice == nil:
		e.out.Summary = "The scheduler does not remember how this node was chosen: it keeps the last pods only, and knows nothing of pods that others have bound."
	default:
		c := f.Scheduling.Choice
		e.out.Choice = c
		switch {
		case c.Feasible == 1 && c.Nodes == 1:
			e.out.Summary = "It is the only node."
		case c.Feasible == 1:
			e.out.Summary = fmt.Sprintf("It is the only one of %d nodes on which the pod could run.", c.Nodes)
		default:
			e.out.Summary = fmt.Sprintf("Of %d nodes, %d on which the pod could run were compared.", c.Nodes, c.Feasible)
		}
	}
	return e.out
}

// node explains a node that is missing or unhealthy, and reports whether that holds up the pod.
func (e *explainer) node() bool {
	if e.NodeGone {
		e.wait(report.Wait{
			Step: "node " + e.Pod.Spec.NodeName, Said: "the node does not exist",
			Next: "the node registers again, or the pod is deleted (the pod garbage collector does it after a while)",
		})
		return true
	}
	if e.Node == nil {
		return false
	}
	for _, c := range e.Node.Status.Conditions {
		if c.Type == v1.NodeReady && c.Status != v1.ConditionTrue {
			e.wait(report.Wait{
				Step: "node " + e.Node.Name, Since: report.When(c.LastTransitionTime.Time), Said: strings.TrimPrefix(report.Details(c.Reason, c.Message), " "),
				Next: "the node's kubelet reports Ready again",
			})
			return c.Status == v1.ConditionUnknown
		}
	}
	return false
}

// running explains a pod that has a node.
func (e *explainer) running() {
	e.out.State = state(e.Pod, &e.status)
	if c := pods.FindCondition(&e.status, v1.PodReady); c != nil {
		e.out.Since = report.When(c.LastTransitionTime.Time)
	}
	held := e.node()
	switch {
	case e.Kubelet != nil:
		e.reported(e.Kubelet.Starting)
		e.out.Notes = append(e.out.Notes, e.Kubelet.Notes...)
	case e.KubeletGone && !held:
		e.wait(report.Wait{
			Step: "kubelet of node " + e.Pod.Spec.NodeName, Since: report.When(e.Pod.CreationTimestamp.Time), Said: "it has not picked the pod up yet",
			Next: "its watch of the API server delivers the pod",
		})
	default:
		e.statuses()
	}
	e.gates()
	e.resize()
	e.told()
	e.concludePod()
}

// told notes where the API server keeps showing that a container has ended: it does not take back a
// container that was reported to have ended for good.
func (e *explainer) told() {
	shown := podplan.Acceptable(e.Pod, e.Pod.Status, e.status)
	api := slices.Concat(shown.InitContainerStatuses, shown.ContainerStatuses)
	for i, now := range slices.Concat(e.status.InitContainerStatuses, e.status.ContainerStatuses) {
		if end := api[i].State.Terminated; end != nil && now.State.Terminated == nil {
			e.note("the API server still shows container %s as ended with exit code %d, although the kubelet has started it again", now.Name, end.ExitCode)
		}
	}
}

// gates explains the conditions of others that the pod requires.
func (e *explainer) gates() {
	for _, gate := range e.Pod.Spec.ReadinessGates {
		c := pods.FindCondition(&e.Pod.Status, gate.ConditionType)
		if c != nil && c.Status == v1.ConditionTrue {
			continue
		}
		w := report.Wait{
			Step: fmt.Sprintf("readiness gate %s", gate.ConditionType), Said: "the pod does not have the condition",
			Next: "the controller that the gate belongs to sets the condition to True in the pod's status",
		}
		if c != nil {
			w.Since, w.Said = report.When(c.LastTransitionTime.Time), fmt.Sprintf("the condition is %s%s", c.Status, report.Details(c.Reason, c.Message))
		}
		e.wait(w)
	}
}

func (e *explainer) resize() {
	for _, kind := range []v1.PodConditionType{v1.PodResizePending, v1.PodResizeInProgress} {
		c := pods.FindCondition(&e.status, kind)
		if c == nil || c.Status != v1.ConditionTrue {
			continue
		}
		next := "the kubelet has changed what runs"
		switch c.Reason {
		case v1.PodReasonDeferred:
			next = "other pods on the node end or shrink; the kubelet retries on its own"
		case v1.PodReasonError:
			next = "its cause is fixed, for example less memory is in use than the new limit; the kubelet retries on its own"
		case v1.PodReasonInfeasible:
			next = "the pod asks for resources that this node has; until then it runs with what it has now"
		}
		e.wait(report.Wait{Step: "resize", Since: report.When(c.LastTransitionTime.Time), Said: strings.TrimPrefix(report.Details(c.Reason, c.Message), " "), Next: next})
	}
}

// conclude writes the summary of a pod that has a node.
func (e *explainer) concludePod() {
	ready := pods.FindCondition(&e.status, v1.PodReady)
	isReady := ready != nil && ready.Status == v1.ConditionTrue
	switch {
	case len(e.out.Waits) == 0 && isReady:
		e.out.Summary = "It runs and is ready; it waits for nothing."
	case len(e.out.Waits) == 0 && ready != nil && ready.Message != "":
		e.out.Summary = "It is not ready: " + ready.Message
	case len(e.out.Waits) == 0:
		e.out.Summary = "It is starting; nothing holds it up."
	case isReady:
		e.out.Summary = "It runs and is ready, but it waits for: " + e.out.Waits[0].Step + "."
	default:
		e.out.Summary = "It waits for: " + e.out.Waits[0].Step + "."
	}
}

// state returns what kubectl shows for a pod.
func state(p *v1.Pod, st *v1.PodStatus) string {
	for i := range st.InitContainerStatuses {
		c := &st.InitContainerStatuses[i]
		sidecar := i < len(p.Spec.InitContainers) && pods.IsSidecar(&p.Spec.InitContainers[i])
		switch {
		case c.State.Terminated != nil && c.State.Terminated.ExitCode == 0, sidecar && c.Started != nil && *c.Started:
			continue
		case c.State.Waiting != nil && c.State.Waiting.Reason != podplan.ReasonPodInitializing:
			return "Init:" + c.State.Waiting.Reason
		case c.State.Terminated != nil:
			return "Init:" + c.State.Terminated.Reason
		default:
			return fmt.Sprintf("Init:%d/%d", i, len(st.InitContainerStatuses))
		}
	}
	for i := range st.ContainerStatuses {
		if w := st.ContainerStatuses[i].State.Waiting; w != nil && w.Reason != "" {
			return w.Reason
		}
	}
	if st.Phase == v1.PodRunning {
		if c := pods.FindCondition(st, v1.PodReady); c == nil || c.Status != v1.ConditionTrue {
			return "Running, not ready"
		}
	}
	if st.Phase == "" {
		return string(v1.PodPending)
	}
	return string(st.Phase)
}
