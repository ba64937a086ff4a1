package attachdetach

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"wherry.dev/internal/api/nodes"
)

// facts are what decides about a volume.
type facts struct {
	name           v1.UniqueVolumeName
	driver, handle string // of a CSI volume
	// direct says that the node attaches the volume itself, so that there are no attachments of it.
	direct bool
	// attachable says that the driver has volumes attached at all.
	attachable bool
	// exclusive says that one node at a time may have the volume.
	exclusive bool
	places    []place // by node
	now       time.Time
	options   Options
}

// place is a node that has the volume, or is to have it.
type place struct {
	node string
	// state is the node, nil if it is gone.
	state *v1.Node
	// pods are those of the node that need the volume, the oldest first, and volume is by which they have it; nil if there
	// are none. own is what the first pod calls it that describes the volume itself.
	pods   []*v1.Pod
	volume *v1.PersistentVolume
	own    string
	// attachment is the one of volume and node, nil if there is none that the informer knows.
	attachment *storagev1.VolumeAttachment
	// uncertain says that an attachment was asked for, and that nobody has said whether it was made; of a direct volume, that
	// the node may have it, or might when it was there last.
	uncertain bool
	// unneeded is since when no pod has needed the volume there, zero while one does.
	unneeded time.Time
}

// action is a step of a plan.
type action int

const (
	attach   action = iota // make the attachment
	report                 // say in the node's status that the volume is attached
	withdraw               // no longer say so
	detach                 // the same, and delete the attachment unless the node uses the volume even then
)

// Why a volume is detached that is in use, as upstream's label has it.
const (
	timedOut     = "timeout"
	outOfService = "out-of-service"
)

// step is one thing to do at a place.
type step struct {
	action
	at    *place
	force string // why the volume is detached even if it is in use; "" if it is not
}

// saying is an event of a pod. It is news if the last one of the pod had another topic.
type saying struct {
	pod            *v1.Pod
	topic, message string
}

// plan is what to do about a volume.
type plan struct {
	steps []step
	says  []saying
	// again is when to decide anew even if nothing happens; zero is never.
	again time.Time
}

// decide returns what to do about a volume: first what takes it from nodes, then what gives it to others.
func decide(f *facts) plan {
	var p plan
	var needed []*place
	for i := range f.places {
		at := &f.places[i]
		if f.needed(at) {
			needed = append(needed, at)
			continue
		}
		f.release(at, &p)
	}
	slices.SortStableFunc(needed, func(a, b *place) int {
		return a.pods[0].CreationTimestamp.Compare(b.pods[0].CreationTimestamp.Time)
	})
	for _, at := range needed {
		f.provide(at, &p)
	}
	return p
}

// needed reports whether the node is to have the volume.
func (f *facts) needed(at *place) bool { return f.attachable && len(at.pods) > 0 }

// taken reports whether the node may have the volume, or gets it in this plan.
func (f *facts) taken(at *place, p *plan) bool {
	return at.attachment != nil || at.uncertain || f.reported(at) || p.has(attach, at) || p.has(report, at)
}

func (f *facts) reported(at *place) bool { return at.state != nil && reports(at.state, f.name) }

// provide is for a node that is to have the volume.
func (f *facts) provide(at *place, p *plan) {
	if f.direct {
		if !f.reported(at) && f.free(at, p) {
			p.do(report, at)
		}
		return
	}
	a := at.attachment
	attached := a != nil && a.DeletionTimestamp == nil && a.Status.Attached
	switch reported := f.reported(at); {
	case attached && !reported && at.state != nil:
		p.do(report, at)
	case !attached && reported: // somebody has detached it; first of all, the kubelet may not mount it
		p.do(withdraw, at)
	}
	switch {
	case attached:
	case a == nil && f.reported(at): // when the node does not say so any more
	case a == nil:
		f.request(at, p)
	case a.DeletionTimestamp != nil: // it is asked for again when it is gone
		if a.Status.DetachError != nil {
			f.failed(at, p, "volume attachment is being deleted", "deleted "+a.Status.DetachError.Message)
		}
	case a.Status.AttachError != nil:
		f.failed(at, p, a.Status.AttachError.Message, a.Status.AttachError.Time.String())
	default:
		f.await(at, p)
	}
}

// request has an attachment made, unless another node has the volume.
func (f *facts) request(at *place, p *plan) {
	if f.free(at, p) {
		p.do(attach, at)
	}
}

// free reports whether a node may have the volume that does not have it yet. If another one has it, its pods are told.
func (f *facts) free(at *place, p *plan) bool {
	if at.state == nil || !managed(at.state) {
		return false
	}
	if !f.exclusive || at.uncertain {
		return true
	}
	for i := range f.places {
		if other := &f.places[i]; other != at && f.taken(other, p) {
			f.tellTaken(at, p)
			return false
		}
	}
	return true
}

// await is for an attachment about which the attacher has said nothing.
func (f *facts) await(at *place, p *plan) {
	waited := max(0, f.now.Sub(at.attachment.CreationTimestamp.Time))
	times := waited / attacherTime
	p.at(f.now.Add(attacherTime - waited%attacherTime))
	if times > 0 {
		why := fmt.Sprintf("timed out waiting for external-attacher of %s CSI driver to attach volume %s", f.driver, f.handle)
		f.failed(at, p, why, fmt.Sprint("silent ", times))
	}
}

// release is for a node that is not to have the volume.
func (f *facts) release(at *place, p *plan) {
	if !f.taken(at, p) {
		return
	}
	a := at.attachment
	if a == nil && !at.uncertain || a != nil && a.DeletionTimestamp != nil { // the attacher is done, or at work
		if f.reported(at) {
			p.do(withdraw, at)
		}
		return
	}
	// Of a node that is gone, or whose kubelet has never said anything, nobody knows what it uses.
	if at.state != nil && told(at.state) && !uses(at.state, f.name) {
		p.do(detach, at)
		return
	}
	due := at.unneeded.Add(Patience)
	switch {
	case at.state != nil && lostForGood(at.state):
		p.steps = append(p.steps, step{detach, at, outOfService})
	case at.state != nil && nodes.IsReady(at.state), f.options.NoForceDetach: // until the node says so
	case f.now.Before(due):
		p.at(due)
	default:
		p.steps = append(p.steps, step{detach, at, timedOut})
	}
}

func (p *plan) do(a action, at *place) { p.steps = append(p.steps, step{action: a, at: at}) }

func (p *plan) has(a action, at *place) bool {
	return slices.ContainsFunc(p.steps, func(s step) bool { return s.action == a && s.at == at })
}

// at has the decision made anew at that time at the latest.
func (p *plan) at(t time.Time) {
	if p.again.IsZero() || t.Before(p.again) {
		p.again = t
	}
}

// failed tells the pods of a place why the volume is not attached.
func (f *facts) failed(at *place, p *plan, why, topic string) {
	for _, pod := range at.pods {
		p.says = append(p.says, saying{pod, topic, about("AttachVolume.Attach failed", at, ": "+why)})
	}
}

// tellTaken tells the pods of a place who has the volume, once it is certain that somebody has it. If it is about to be
// detached there, there is nothing to tell, unless that fails.
func (f *facts) tellTaken(at *place, p *plan) {
	var users []*v1.Pod
	certain := false
	for i := range f.places {
		other := &f.places[i]
		if other == at || p.has(detach, other) || !f.certain(other, p) {
			continue
		}
		certain = true
		users = append(users, other.pods...)
	}
	if !certain {
		return
	}
	for _, pod := range at.pods {
		p.says = append(p.says, saying{pod, "taken", about("Multi-Attach error", at, usedBy(pod, users))})
	}
}

// certain reports whether a node has the volume, and is not about to lose it.
func (f *facts) certain(at *place, p *plan) bool {
	if f.direct {
		return f.taken(at, p)
	}
	a := at.attachment
	return a != nil && a.Status.Attached && (a.DeletionTimestamp == nil || a.Status.DetachError != nil)
}

// usedBy names the users in the pod's namespace, and counts the others: who may see a namespace may not see all.
func usedBy(pod *v1.Pod, users []*v1.Pod) string {
	var names []string
	for _, u := range users {
		if u.Namespace == pod.Namespace {
			names = append(names, u.Name)
		}
	}
	others := len(users) - len(names)
	switch elsewhere := fmt.Sprintf("%d pod(s) in different namespaces", others); {
	case len(users) == 0:
		return "Volume is already exclusively attached to one node and can't be attached to another"
	case len(names) == 0:
		return "Volume is already used by " + elsewhere
	case others > 0:
		return "Volume is already used by pod(s) " + strings.Join(names, ", ") + " and " + elsewhere
	}
	return "Volume is already used by pod(s) " + strings.Join(names, ", ")
}

// about returns a message as upstream's controller has it.
func about(what string, at *place, more string) string {
	name := "nil"
	switch {
	case at.volume != nil:
		name = at.volume.Name
	case at.own != "":
		name = at.own
	}
	return fmt.Sprintf("%s for volume %q %s", what, name, more)
}

// needs reports whether a pod needs the volumes of its claims: from when it has a node until nothing of it runs. What
// the kubelet has mounted of them counts by itself, as in use.
func needs(p *v1.Pod) bool {
	switch {
	case p.Spec.NodeName == "", p.Status.Phase == v1.PodFailed, p.Status.Phase == v1.PodSucceeded:
		return false
	case p.DeletionTimestamp == nil:
		return true
	}
	running := func(s v1.ContainerStatus) bool { return s.State.Terminated == nil && s.State.Waiting == nil }
	return slices.ContainsFunc(p.Status.InitContainerStatuses, running) ||
		slices.ContainsFunc(p.Status.ContainerStatuses, running) ||
		slices.ContainsFunc(p.Status.EphemeralContainerStatuses, running)
}

// older puts the pod first that was made first.
func older(a, b *v1.Pod) int {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time),
		cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

// shared reports whether several nodes may have a volume at a time. One that says nothing of it is the driver's to refuse.
func shared(pv *v1.PersistentVolume) bool {
	modes := pv.Spec.AccessModes
	return len(modes) == 0 || slices.Contains(modes, v1.ReadWriteMany) || slices.Contains(modes, v1.ReadOnlyMany)
}

func reports(n *v1.Node, name v1.UniqueVolumeName) bool {
	return slices.ContainsFunc(n.Status.VolumesAttached, func(a v1.AttachedVolume) bool { return a.Name == name })
}

func uses(n *v1.Node, name v1.UniqueVolumeName) bool {
	return slices.Contains(n.Status.VolumesInUse, name)
}

// told reports whether a node's kubelet has ever written its status. A node that was made anew has a kubelet that may
// have been there before.
func told(n *v1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c v1.NodeCondition) bool { return c.Type == v1.NodeReady })
}

// lostForGood reports whether somebody has said that nothing runs on the node any more (KEP-2268).
func lostForGood(n *v1.Node) bool {
	return slices.ContainsFunc(n.Spec.Taints, func(t v1.Taint) bool { return t.Key == v1.TaintNodeOutOfService })
}

// safe reports whether a volume may be taken from a node that is not told any more to have it, for the reason that a
// plan gave. The plan may be from an older state of the node, which is nil if it is gone.
func (f *facts) safe(n *v1.Node, force string) bool {
	switch {
	case n != nil && told(n) && !uses(n, f.name):
		return true
	case n == nil:
		return force != ""
	case force == timedOut:
		return !nodes.IsReady(n)
	}
	return force == outOfService && lostForGood(n)
}
