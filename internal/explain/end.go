package explain

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/kubelet/podplan"
)

// statuses explains by the containers' statuses alone, for a kubelet that does not tell.
func (e *explainer) statuses() {
	for _, c := range slices.Concat(e.status.InitContainerStatuses, e.status.ContainerStatuses) {
		switch w := c.State.Waiting; {
		case w != nil && w.Reason == podplan.ReasonPodInitializing && len(e.out.Waits) > 0:
		case w != nil:
			e.wait(Wait{Step: "container " + c.Name, Said: said(w.Reason, w.Message), Next: "what it says is put right"})
		case c.State.Running != nil && !c.Ready && (c.Started == nil || *c.Started):
			wait := Wait{Step: "readiness of container " + c.Name, Since: when(c.State.Running.StartedAt.Time), Next: "its readiness probe passes"}
			if ev := e.event("Unhealthy", c.Name, ""); ev != nil {
				wait.Said = ev.Message
			}
			e.wait(wait)
		}
	}
}

// terminating explains a pod that is being deleted.
func (e *explainer) terminating() {
	e.out.State = "Terminating"
	asked := e.Pod.DeletionTimestamp.Time
	if g := e.Pod.DeletionGracePeriodSeconds; g != nil {
		asked = asked.Add(-time.Duration(*g) * time.Second)
	}
	e.out.Since = when(asked)
	done := e.Pod.Spec.NodeName == "" || e.WorkerGone || pods.IsTerminal(e.Pod.Status.Phase) && e.in == nil
	held := false
	if e.Pod.Spec.NodeName != "" && !e.WorkerGone {
		held = e.node()
		if held {
			e.out.Waits[0].Next += "; or, once it is certain that the node is off: kubectl delete pod --force --grace-period=0"
		}
	}
	if e.in != nil && !held {
		done = e.Worker.Plan.Done || e.in.Forgotten
		e.teardown()
	}
	if f := e.Pod.Finalizers; len(f) > 0 {
		w := Wait{
			Step: "finalizers " + strings.Join(f, ", "), Since: when(asked), Said: "they keep the object from going",
			Next: "the controllers that they belong to remove them from metadata.finalizers",
		}
		if !done {
			w.Said += "; the node is not done yet, either"
		}
		e.wait(w)
	}
	switch {
	case len(e.out.Waits) > 0:
		e.out.Summary = "It is being deleted and waits for: " + e.out.Waits[0].Step + "."
	case done:
		e.out.Summary = "It is being deleted; nothing of it is left but its object, which goes now."
	default:
		e.out.Summary = "It is being deleted; nothing holds it."
	}
}

// teardown explains what the kubelet still has to take away.
func (e *explainer) teardown() {
	for i := range e.in.Containers {
		if c := &e.in.Containers[i]; c.Live() {
			e.stopping(c)
		}
	}
	if len(e.out.Waits) > 0 {
		return
	}
	for _, f := range e.Worker.InFlight {
		if e.in.Failures[f.Op.Key()].Message == "" {
			e.wait(Wait{Step: opLabel(f.Op), Since: when(f.Since), Said: "it runs", Next: "it is done"})
		}
	}
	for _, key := range slices.Sorted(maps.Keys(e.in.Failures)) {
		failure := e.in.Failures[key]
		for _, op := range e.ops(key) {
			e.wait(Wait{
				Step: opLabel(op), Since: e.failingSince(key, failure), Said: failure.Message,
				Retry: when(podplan.TryAgain(op.Kind, failure)), Next: "what it says is put right on the node",
			})
		}
	}
}

// ops returns what the kubelet last did or wants under a key, of those that take away.
func (e *explainer) ops(key podplan.Key) []podplan.Op {
	for _, t := range slices.Backward(e.Worker.Transitions) {
		if op := t.Op; op != nil && op.Key() == key {
			switch op.Kind {
			case podplan.ClearVolumes, podplan.StopSandbox, podplan.RemoveSandbox, podplan.RemoveCgroup, podplan.RemoveContainer, podplan.Forget:
				return []podplan.Op{*op}
			}
			return nil
		}
	}
	return nil
}

func opLabel(op podplan.Op) string {
	switch op.Kind {
	case podplan.ClearVolumes:
		return "unmounting the pod's volumes"
	case podplan.StopSandbox, podplan.RemoveSandbox:
		return "removing the pod's sandbox and network"
	case podplan.RemoveCgroup:
		return "removing the pod's cgroup"
	case podplan.RemoveContainer:
		return "removing container " + op.Name
	case podplan.Forget:
		return "deleting the pod's last traces and its object"
	default:
		return strings.TrimSpace(fmt.Sprintf("%s %s, which was cancelled", op.Kind, op.Name))
	}
}

// stopping explains a container that has not ended yet.
func (e *explainer) stopping(c *podplan.Container) {
	spec := pods.FindContainer(e.in.Pod, c.Name)
	w := Wait{Step: "end of container " + c.Name, Said: "it was asked to stop and has not ended", Next: "it ends"}
	f := e.flight(podplan.StopKey(c.ID))
	failure, failed := e.in.Failures[podplan.StopKey(c.ID)]
	hook := e.flight(podplan.PreStopKey(c.ID))
	switch {
	case f == nil && hook != nil:
		w.Step, w.Since, w.Said = "preStop hook of container "+c.Name, when(hook.Since), "it has not returned"
		w.Next = fmt.Sprintf("it returns, or the container is asked to stop at %s", hook.Op.Deadline.UTC().Format("15:04:05 UTC"))
	case f != nil:
		w.Since = when(f.Since)
		w.Next = fmt.Sprintf("it ends, or is killed at %s", f.Op.Deadline.UTC().Format("15:04:05 UTC"))
		if f.Op.Deadline.Before(e.Now) {
			w.Said = "it does not end, even by SIGKILL: its process may hang in the kernel, on a disk or a network file system"
		}
	case failed:
		w.Since, w.Said, w.Retry = e.failingSince(podplan.StopKey(c.ID), failure), failure.Message, when(podplan.TryAgain(podplan.StopContainer, failure))
		w.Next = "the container runtime can stop it"
	case spec != nil && pods.IsSidecar(spec):
		w.Said, w.Next = "it is a sidecar: it is stopped after the others", "the other containers end"
	}
	e.wait(w)
}
