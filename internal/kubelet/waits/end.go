package waits

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/api/report"
	"wherry.dev/internal/kubelet/podplan"
)

// ending explains what the kubelet still has to remove.
func (r *reporter) ending() {
	for i := range r.in.Containers {
		if c := &r.in.Containers[i]; c.Live() {
			r.stopping(c)
		}
	}
	if len(*r.to) > 0 {
		return
	}
	for _, f := range r.dump.InFlight {
		if r.in.Failures[f.Op.Key()].Message == "" {
			r.wait(report.Wait{Step: opLabel(f.Op), Since: report.When(f.Since), Said: "it runs", Next: "it finishes"})
		}
	}
	for _, key := range slices.Sorted(maps.Keys(r.in.Failures)) {
		failure := r.in.Failures[key]
		for _, op := range r.ops(key) {
			r.wait(report.Wait{
				Step: opLabel(op), Since: r.failingSince(key, failure), Said: failure.Message,
				Retry: report.When(podplan.TryAgain(op.Kind, failure)), Next: "its cause is fixed on the node",
			})
		}
	}
}

// ops returns the newest op with a key, if it is one that removes something.
func (r *reporter) ops(key podplan.Key) []podplan.Op {
	for _, t := range slices.Backward(r.dump.Transitions) {
		if op := t.Op; op != nil && op.Key() == key {
			switch op.Kind {
			case podplan.ClearVolumes, podplan.UnprepareClaims, podplan.StopSandbox, podplan.RemoveSandbox, podplan.RemoveCgroup, podplan.RemoveContainer, podplan.Forget:
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
	case podplan.UnprepareClaims:
		return "giving the pod's devices back to their drivers"
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
func (r *reporter) stopping(c *podplan.Container) {
	spec := pods.FindContainer(r.in.Pod, c.Name)
	w := report.Wait{Step: "end of container " + c.Name, Said: "it was asked to stop and has not ended", Next: "it ends"}
	f := r.flight(podplan.StopKey(c.ID))
	failure, failed := r.in.Failures[podplan.StopKey(c.ID)]
	hook := r.flight(podplan.PreStopKey(c.ID))
	switch {
	case f == nil && hook != nil:
		w.Step, w.Since, w.Said = "preStop hook of container "+c.Name, report.When(hook.Since), "it has not returned"
		w.Next = fmt.Sprintf("it returns, or the container is asked to stop at %s", hook.Op.Deadline.UTC().Format("15:04:05 UTC"))
	case f != nil:
		w.Since = report.When(f.Since)
		w.Next = fmt.Sprintf("it ends, or is killed at %s", f.Op.Deadline.UTC().Format("15:04:05 UTC"))
		if f.Op.Deadline.Before(r.now) {
			w.Said = "it has not ended even after SIGKILL: its process may hang in the kernel, on a disk or a network file system"
		}
	case failed:
		w.Since, w.Said, w.Retry = r.failingSince(podplan.StopKey(c.ID), failure), failure.Message, report.When(podplan.TryAgain(podplan.StopContainer, failure))
		w.Next = "the container runtime can stop it"
	case spec != nil && pods.IsSidecar(spec):
		w.Said, w.Next = "it is a sidecar: it is stopped after the others", "the other containers end"
	}
	r.wait(w)
}
