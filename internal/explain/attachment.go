package explain

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"wherry.dev/internal/api/classes"
	"wherry.dev/internal/api/report"
)

// attached says which nodes have a claim's volume, and what keeps others from having it.
func (e *binding) attached() {
	for _, a := range e.Attachments {
		attacher, node := "the external-attacher of driver "+a.Spec.Attacher, a.Spec.NodeName
		w := report.Wait{Since: report.When(a.CreationTimestamp.Time)}
		switch {
		case a.DeletionTimestamp != nil:
			w.Step, w.Since = "its detachment from node "+node, report.When(a.DeletionTimestamp.Time)
			w.Said = answer(a.Status.DetachError)
			w.Next = attacher + " detaches it; until then no other node gets a volume that one node may have"
		case a.Status.Attached:
			e.note("attached to node %s, by driver %s", node, a.Spec.Attacher)
			continue
		default:
			w.Step, w.Said = "its attachment to node "+node, answer(a.Status.AttachError)
			w.Next = attacher + " attaches it: that must run, and its driver must know the node (kubectl get csinodes)"
		}
		e.wait(w)
	}
}

// answer is what an attacher says, if it has said anything.
func answer(err *storagev1.VolumeError) string {
	if err == nil {
		return "the attacher has not answered yet"
	}
	return err.Message
}

// grows says who gives a claim what it asks for beyond what it has.
func (e *binding) grows() {
	wants, has := e.Claim.Spec.Resources.Requests[v1.ResourceStorage], e.Claim.Status.Capacity[v1.ResourceStorage]
	if wants.Cmp(has) <= 0 {
		return
	}
	w := report.Wait{
		Step: "more room", Said: fmt.Sprintf("it has %s and asks for %s", has.String(), wants.String()),
		Next: "whoever makes its volumes makes this one larger",
	}
	v := e.volume(e.Claim.Spec.VolumeName)
	switch {
	case v != nil && v.Spec.CSI != nil:
		w.Next = "the external-resizer of driver " + v.Spec.CSI.Driver + " makes the volume larger: that must run"
	case v != nil && v.Annotations[provisionedVolume] == classes.LocalProvisioner:
		w.Next = "the node of the volume has that much more room on its disk, or the claim asks for no more than it has"
	}
	if said := e.event("VolumeResizeFailed", "", ""); said != nil {
		w.Said = said.Message
	}
	e.wait(w)
}
