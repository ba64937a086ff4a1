package explain

import (
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"

	"wherry.dev/internal/api/classes"
	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/api/report"
)

const (
	// noProvisioner is the provisioner of classes whose volumes somebody makes by hand.
	noProvisioner = "kubernetes.io/no-provisioner"
	// provisionedBy is set on a claim once its provisioner was asked for a volume.
	provisionedBy = "volume.kubernetes.io/storage-provisioner"
	// selectedNode is where the scheduler wants the volume to be.
	selectedNode = "volume.kubernetes.io/selected-node"
	// provisionedVolume is set on a volume by the provisioner that has made it.
	provisionedVolume = "pv.kubernetes.io/provisioned-by"
)

// ClaimFacts is what is known about a PersistentVolumeClaim.
type ClaimFacts struct {
	About
	Claim *v1.PersistentVolumeClaim
	// Pods of the namespace, all of them.
	Pods    []*v1.Pod
	Classes []*storagev1.StorageClass
	Volumes []*v1.PersistentVolume
	// Attachments of its volume.
	Attachments []*storagev1.VolumeAttachment
	// ClassesUnread and VolumesUnread: they may not be read.
	ClassesUnread, VolumesUnread bool
}

// binding builds the explanation of a PersistentVolumeClaim.
type binding struct {
	findings
	ClaimFacts
	users []*v1.Pod
}

// Claim explains why a PersistentVolumeClaim is not bound, and who uses it.
func Claim(f ClaimFacts) Explanation {
	c := f.Claim
	e := &binding{findings: newFindings("PersistentVolumeClaim", c, f.About), ClaimFacts: f}
	for _, p := range f.Pods {
		if !pods.IsTerminal(p.Status.Phase) && uses(p, c.Name) {
			e.users = append(e.users, p)
		}
	}
	e.usedBy()
	e.health()
	if e.deleted(c) {
		if slices.Contains(c.Finalizers, "kubernetes.io/pvc-protection") && len(e.users) > 0 {
			e.out.Waits[0].Next = "the pods that use it are gone: " + names(e.users)
		}
		return e.out
	}
	e.out.State, e.out.Since = string(c.Status.Phase), report.When(c.CreationTimestamp.Time)
	switch c.Status.Phase {
	case v1.ClaimBound:
		e.bound()
	case v1.ClaimLost:
		e.lost()
	default:
		e.out.State = string(v1.ClaimPending)
		e.pending()
	}
	e.conclude(e.out.Summary)
	return e.out
}

// uses reports whether a pod has a volume of the claim.
func uses(p *v1.Pod, claim string) bool {
	return slices.ContainsFunc(p.Spec.Volumes, func(v v1.Volume) bool {
		return v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == claim || v.Ephemeral != nil && p.Name+"-"+v.Name == claim
	})
}

func (e *binding) usedBy() {
	if len(e.users) == 0 {
		e.note("no pod uses it%s", e.unused())
		return
	}
	e.note("used by %s", named(e.users))
}

func (e *binding) bound() {
	c := e.Claim
	size := c.Status.Capacity[v1.ResourceStorage]
	e.out.Summary = fmt.Sprintf("It is bound to volume %s of %s.", c.Spec.VolumeName, size.String())
	for _, cond := range c.Status.Conditions {
		if cond.Status == v1.ConditionTrue && cond.Type != v1.PersistentVolumeClaimUnused {
			e.wait(report.Wait{
				Step: string(cond.Type), Since: report.When(cond.LastTransitionTime.Time), Said: report.Said(cond.Reason, cond.Message),
				Next: "the volume is resized; FileSystemResizePending ends when a pod that uses it starts",
			})
		}
	}
	if len(e.out.Waits) == 0 {
		e.grows()
	}
	e.attached()
}

// lost explains a claim that was bound once.
func (e *binding) lost() {
	w := report.Wait{Step: "volume " + e.Claim.Spec.VolumeName, Said: "the volume that it was bound to does not exist any more", Next: "a volume of that name comes back, or somebody makes a new claim"}
	v := e.volume(e.Claim.Spec.VolumeName)
	switch {
	case e.Claim.Spec.VolumeName == "":
		w.Step, w.Said = "its volume", "it was bound, and does not say any more to which volume"
		w.Next = "nothing: make a new claim"
	case v != nil && taken(v, e.Claim):
		w.Said = fmt.Sprintf("the volume that it was bound to belongs to claim %s/%s", v.Spec.ClaimRef.Namespace, v.Spec.ClaimRef.Name)
		w.Next = "nothing: make a new claim"
	}
	e.wait(w)
}

// pending explains a claim without a volume.
func (e *binding) pending() {
	c := e.Claim
	if c.Spec.VolumeName != "" {
		e.named()
		return
	}
	name, given := e.className()
	class := e.class(name)
	switch {
	case !given && !e.ClassesUnread:
		e.noClass("it names no storage class, and no class is the default ("+classes.StorageDefault+")",
			"a class becomes the default, which the claim then gets, or a volume without a class is made that fits")
	case given && name == "":
		e.noClass("its storage class is \"\": it takes only volumes without a class, which somebody makes by hand", "a volume without a class is made that fits; "+fixedClass)
	case class == nil && !e.ClassesUnread:
		e.noClass(fmt.Sprintf("storage class %q does not exist", name), "the class exists, or a volume of it is made that fits; "+fixedClass)
	case class != nil && e.late(class):
	case class != nil && class.Provisioner == noProvisioner:
		e.noVolume("class " + name + " makes no volumes (" + noProvisioner + ")")
	case class != nil:
		e.provisioner(class)
	default:
		e.noVolume("no volume is bound to it yet")
	}
}

// className returns the class that the claim names, or that is the default for those that name none.
func (e *binding) className() (name string, given bool) {
	if n := e.Claim.Spec.StorageClassName; n != nil {
		return *n, true
	}
	if n, ok := e.Claim.Annotations[v1.BetaStorageClassAnnotation]; ok {
		return n, true
	}
	if c, ok := classes.Newest(slices.Values(e.Classes), classes.IsDefaultStorage); ok {
		return c.Name, true
	}
	return "", false
}

func (e *binding) class(name string) *storagev1.StorageClass {
	if i := slices.IndexFunc(e.Classes, func(c *storagev1.StorageClass) bool { return c.Name == name }); i >= 0 {
		return e.Classes[i]
	}
	return nil
}

// named explains a claim for one certain volume.
func (e *binding) named() {
	name := e.Claim.Spec.VolumeName
	w := report.Wait{Step: "volume " + name, Since: e.out.Since, Said: "it is not bound to the claim yet", Next: "the volume controller binds them"}
	v := e.volume(name)
	switch {
	case v == nil && !e.VolumesUnread:
		w.Said, w.Next = "it does not exist", "somebody creates it"
	case v != nil && taken(v, e.Claim):
		ref := v.Spec.ClaimRef
		w.Said = fmt.Sprintf("it belongs to claim %s/%s", ref.Namespace, ref.Name)
		w.Next = "that claim is gone, and somebody removes it from the volume (spec.claimRef)"
	case v != nil && v.Spec.ClaimRef == nil && e.differs(v) != "":
		w.Said, w.Next = "it does not fit: it "+e.differs(v), "somebody makes the claim anew, for a volume that fits"
	}
	e.wait(w)
}

// volume returns the volume of a name, or nil.
func (e *binding) volume(name string) *v1.PersistentVolume {
	if i := slices.IndexFunc(e.Volumes, func(v *v1.PersistentVolume) bool { return v.Name == name }); i >= 0 {
		return e.Volumes[i]
	}
	return nil
}

// fixedClass is what to do about a claim whose class is not the right one.
const fixedClass = "the class of a claim cannot be changed: make the claim anew for another one"

// noClass waits for a class, or a volume that fits.
func (e *binding) noClass(why, next string) {
	e.wait(report.Wait{Step: "a storage class", Since: e.out.Since, Said: why + "; " + e.fitting(), Next: next})
}

func (e *binding) noVolume(why string) {
	e.wait(report.Wait{Step: "a volume that fits", Since: e.out.Since, Said: why + "; " + e.fitting(), Next: "somebody makes a volume that fits"})
}

// late explains a class whose volumes are bound once it is known where their pod runs.
func (e *binding) late(class *storagev1.StorageClass) bool {
	if class.VolumeBindingMode == nil || *class.VolumeBindingMode != storagev1.VolumeBindingWaitForFirstConsumer {
		return false
	}
	unscheduled := slices.DeleteFunc(slices.Clone(e.users), func(p *v1.Pod) bool { return p.Spec.NodeName != "" })
	switch {
	case len(e.users) == 0:
		e.wait(report.Wait{
			Step: "its first consumer", Since: e.out.Since, Said: "class " + class.Name + " binds only when a pod that uses the claim is scheduled (WaitForFirstConsumer), and there is none",
			Next: "a pod that uses the claim is created",
		})
		return true
	case e.Claim.Annotations[selectedNode] != "":
		return false
	case len(unscheduled) > 0:
		e.held(unscheduled, ", its first consumer, which has no node yet")
		return true
	case !slices.ContainsFunc(e.Volumes, func(v *v1.PersistentVolume) bool { return v.Spec.ClaimRef != nil && !taken(v, e.Claim) }):
		e.wait(report.Wait{
			Step: "its first consumer", Since: e.out.Since,
			Said: "class " + class.Name + " binds only when the scheduler looks for the node of a pod that uses the claim (WaitForFirstConsumer), and those that use it have theirs already: " + names(e.users),
			Next: "the scheduler finds a node for another pod that uses it: one that names its node itself does not count",
		})
		return true
	}
	return false
}

// provisioner explains a class that makes volumes.
func (e *binding) provisioner(class *storagev1.StorageClass) {
	w := report.Wait{
		Step: "provisioner " + class.Provisioner, Since: e.out.Since,
		Said: "nobody has asked it for a volume: the volume controller may not run in this cluster",
		Next: "the volume controller and a provisioner of that name run",
	}
	if e.Claim.Annotations[provisionedBy] != "" {
		w.Said, w.Next = "it was asked for a volume and has not answered; it may not run", "a provisioner of that name runs, and makes one"
	}
	if node := e.Claim.Annotations[selectedNode]; class.Provisioner == classes.LocalProvisioner && node != "" {
		w.Said, w.Next = "node "+node+" was asked to make it on its disk and has not answered", "that node runs, as `wherry up` without --local-storage=none"
	}
	if ev := e.event("ProvisioningFailed", "", ""); ev != nil {
		w.Said, w.Next = ev.Message, "what the message names is put right; the provisioner retries on its own"
	}
	e.wait(w)
}

// taken reports whether a volume belongs to another claim.
func taken(v *v1.PersistentVolume, c *v1.PersistentVolumeClaim) bool {
	ref := v.Spec.ClaimRef
	return ref != nil && (ref.Namespace != c.Namespace || ref.Name != c.Name || ref.UID != "" && ref.UID != c.UID)
}

// fitting says why none of the volumes fits.
func (e *binding) fitting() string {
	if e.VolumesUnread {
		return "which volumes there are is not known"
	}
	if len(e.Volumes) == 0 {
		return "there are no volumes"
	}
	var why []string
	for _, v := range e.Volumes {
		reason := e.misfit(v)
		if reason == "" {
			return fmt.Sprintf("volume %s would fit: the volume controller, which binds them, may not run", v.Name)
		}
		why = append(why, v.Name+" "+reason)
	}
	const most = 5
	if len(why) > most {
		why = append(why[:most], fmt.Sprintf("and %d more do not either", len(why)-most))
	}
	return "no volume fits: " + strings.Join(why, ", ")
}

// misfit says why a volume is not one for the claim; "" if it is.
func (e *binding) misfit(v *v1.PersistentVolume) string {
	c := e.Claim
	selector, err := metav1.LabelSelectorAsSelector(c.Spec.Selector)
	why := e.differs(v)
	switch {
	case taken(v, c):
		return fmt.Sprintf("belongs to claim %s/%s", v.Spec.ClaimRef.Namespace, v.Spec.ClaimRef.Name)
	case v.Status.Phase == v1.VolumeFailed:
		return "has failed (" + v.Status.Message + ")"
	case why != "":
		return why
	case c.Spec.Selector != nil && (err != nil || !selector.Matches(labels.Set(v.Labels))):
		return "lacks labels of the selector"
	}
	return ""
}

// differs says what a volume has that the claim does not want, its labels aside; "" if there is nothing.
func (e *binding) differs(v *v1.PersistentVolume) string {
	c := e.Claim
	name, _ := e.className()
	want, have := c.Spec.Resources.Requests[v1.ResourceStorage], v.Spec.Capacity[v1.ResourceStorage]
	attributes := ptr.Deref(v.Spec.VolumeAttributesClassName, "")
	switch {
	case v.DeletionTimestamp != nil:
		return "is being deleted"
	case v.Spec.StorageClassName != name:
		return fmt.Sprintf("has class %q", v.Spec.StorageClassName)
	case have.Cmp(want) < 0:
		return fmt.Sprintf("has only %s of %s", have.String(), want.String())
	case slices.ContainsFunc(c.Spec.AccessModes, func(m v1.PersistentVolumeAccessMode) bool { return !slices.Contains(v.Spec.AccessModes, m) }):
		return "lacks an access mode"
	case mode(v.Spec.VolumeMode) != mode(c.Spec.VolumeMode):
		return "has volume mode " + string(mode(v.Spec.VolumeMode))
	case attributes != ptr.Deref(c.Spec.VolumeAttributesClassName, ""):
		return fmt.Sprintf("has volume attributes class %q", attributes)
	}
	return ""
}

func mode(m *v1.PersistentVolumeMode) v1.PersistentVolumeMode {
	if m == nil {
		return v1.PersistentVolumeFilesystem
	}
	return *m
}

// unused returns for how long no pod has used the claim, as far as it says so.
func (e *binding) unused() string {
	for _, c := range e.Claim.Status.Conditions {
		if c.Type == v1.PersistentVolumeClaimUnused && c.Status == v1.ConditionTrue {
			return ago(report.When(c.LastTransitionTime.Time), e.about.Now)
		}
	}
	return ""
}
