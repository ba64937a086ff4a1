package attachdetach

import (
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"wherry.dev/internal/api/attachments"
)

// The volume that tests are about.
const (
	driver = "csi.example.com"
	handle = "h"
)

var name = attachments.VolumeName(driver, handle)

// began is when everything in a table was made.
var began = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

func newNode(node string, change ...func(*v1.Node)) *v1.Node {
	n := &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: node, UID: types.UID(node), Annotations: map[string]string{attachments.ManagedAnnotation: "true"}},
		Status:     v1.NodeStatus{Conditions: []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue}}},
	}
	for _, f := range change {
		f(n)
	}
	return n
}

func reporting(n *v1.Node) {
	n.Status.VolumesAttached = append(n.Status.VolumesAttached, v1.AttachedVolume{Name: name})
}
func using(n *v1.Node)     { n.Status.VolumesInUse = append(n.Status.VolumesInUse, name) }
func silent(n *v1.Node)    { n.Status.Conditions[0].Status = v1.ConditionUnknown }
func made(n *v1.Node)      { n.Status.Conditions = nil }
func unmanaged(n *v1.Node) { n.Annotations = nil }
func lost(n *v1.Node) {
	n.Spec.Taints = append(n.Spec.Taints, v1.Taint{Key: v1.TaintNodeOutOfService, Effect: v1.TaintEffectNoExecute})
}

// newPod has a node, and uses the claim c.
func newPod(pod, node string, change ...func(*v1.Pod)) *v1.Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: pod, UID: types.UID(pod), CreationTimestamp: metav1.NewTime(began)}, Spec: v1.PodSpec{
		NodeName: node,
		Volumes:  []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}}},
	}}
	for _, f := range change {
		f(p)
	}
	return p
}

func elsewhere(p *v1.Pod) { p.Namespace = "other" }
func later(p *v1.Pod)     { p.CreationTimestamp = metav1.NewTime(began.Add(time.Minute)) }

func newAttachment(node string, change ...func(*storagev1.VolumeAttachment)) *storagev1.VolumeAttachment {
	a := &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: attachments.Name(driver, handle, node), UID: types.UID("a-" + node), CreationTimestamp: metav1.NewTime(began), Finalizers: []string{"external-attacher/" + driver}},
		Spec:       storagev1.VolumeAttachmentSpec{Attacher: driver, NodeName: node, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: new("pv")}},
	}
	for _, f := range change {
		f(a)
	}
	return a
}

func isAttached(a *storagev1.VolumeAttachment) { a.Status.Attached = true }
func leaving(a *storagev1.VolumeAttachment)    { a.DeletionTimestamp = new(metav1.NewTime(began)) }
func failing(a *storagev1.VolumeAttachment) {
	a.Status.AttachError = &storagev1.VolumeError{Message: "no room", Time: metav1.NewTime(began)}
}
func failingToLeave(a *storagev1.VolumeAttachment) {
	a.Status.DetachError = &storagev1.VolumeError{Message: "stuck", Time: metav1.NewTime(began)}
}

// newVolume is called pv, and bound to the claim c.
func newVolume(change ...func(*v1.PersistentVolume)) *v1.PersistentVolume {
	v := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv", UID: "pv"}, Spec: v1.PersistentVolumeSpec{
		AccessModes:            []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
		ClaimRef:               &v1.ObjectReference{Namespace: "ns", Name: "c", UID: "c"},
		PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: handle}},
	}}
	for _, f := range change {
		f(v)
	}
	return v
}

func newClaim() *v1.PersistentVolumeClaim {
	return &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c", UID: "c"},
		Spec:       v1.PersistentVolumeClaimSpec{VolumeName: "pv"},
		Status:     v1.PersistentVolumeClaimStatus{Phase: v1.ClaimBound},
	}
}
