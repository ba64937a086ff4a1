package explain

import (
	"slices"
	"strings"
	"time"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/api/report"
	"wherry.dev/internal/kubelet/podplan"
)

// statuses explains from the containers' statuses alone, for a kubelet that does not report waits.
func (e *explainer) statuses() {
	for _, c := range slices.Concat(e.status.InitContainerStatuses, e.status.ContainerStatuses) {
		switch w := c.State.Waiting; {
		case w != nil && w.Reason == podplan.ReasonPodInitializing && len(e.out.Waits) > 0:
		case w != nil:
			e.wait(report.Wait{Step: "container " + c.Name, Said: report.Said(w.Reason, w.Message), Next: "its cause is fixed"})
		case c.State.Running != nil && !c.Ready && (c.Started == nil || *c.Started):
			wait := report.Wait{Step: "readiness of container " + c.Name, Since: report.When(c.State.Running.StartedAt.Time), Next: "its readiness probe passes"}
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
	e.out.Since = report.When(asked)
	done := e.Pod.Spec.NodeName == "" || e.KubeletGone || pods.IsTerminal(e.Pod.Status.Phase) && e.Kubelet == nil
	held := false
	if e.Pod.Spec.NodeName != "" && !e.KubeletGone {
		held = e.node()
		if held {
			e.out.Waits[0].Next += "; or, once it is certain that the node is off: kubectl delete pod --force --grace-period=0"
		}
	}
	if e.Kubelet != nil && !held {
		done = e.Kubelet.Gone
		e.reported(e.Kubelet.Ending)
	}
	if f := e.Pod.Finalizers; len(f) > 0 {
		w := report.Wait{
			Step: "finalizers " + strings.Join(f, ", "), Since: report.When(asked), Said: "they keep the object from being deleted",
			Next: "their controllers remove them from metadata.finalizers",
		}
		if !done {
			w.Said += "; the node is not done yet either"
		}
		e.wait(w)
	}
	switch {
	case len(e.out.Waits) > 0:
		e.out.Summary = "It is being deleted and waits for: " + e.out.Waits[0].Step + "."
	case done:
		e.out.Summary = "It is being deleted: only its object is left, and that is going now."
	default:
		e.out.Summary = "It is being deleted; nothing holds it up."
	}
}
