package manager_test

import (
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wherry.dev/internal/api/attachments"
)

// A volume goes the whole way with the rights of the controller's account: asked for, attached, used, let go of.
func TestAttachAndDetach(t *testing.T) {
	c := start(t, nil, "persistentvolume-attach-detach-controller")
	c.account(t, "default")
	ctx, nodes, all := t.Context(), c.CoreV1().Nodes(), c.StorageV1().VolumeAttachments()
	claims, pods := c.CoreV1().PersistentVolumeClaims("default"), c.CoreV1().Pods("default")
	name, attachment := attachments.VolumeName("csi.example.com", "h"), attachments.Name("csi.example.com", "h", "n")
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Annotations: map[string]string{attachments.ManagedAnnotation: "true"}}}
	if _, err := nodes.Create(ctx, node, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	size := v1.ResourceList{v1.ResourceStorage: resource.MustParse(gigabyte)}
	claim, err := claims.Create(ctx, &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "c"}, Spec: v1.PersistentVolumeClaimSpec{
		AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}, Resources: v1.VolumeResourceRequirements{Requests: size}, VolumeName: "pv",
	}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	claim.Status.Phase = v1.ClaimBound
	if _, err := claims.UpdateStatus(ctx, claim, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err = c.CoreV1().PersistentVolumes().Create(ctx, &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}, Spec: v1.PersistentVolumeSpec{
		AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}, Capacity: size,
		ClaimRef:               &v1.ObjectReference{Namespace: "default", Name: "c", UID: claim.UID},
		PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{Driver: "csi.example.com", VolumeHandle: "h"}},
	}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pod, err := pods.Create(ctx, &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: v1.PodSpec{
		NodeName: "n", Containers: []v1.Container{{Name: "c", Image: "i"}},
		Volumes: []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}}},
	}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}

	var asked *storagev1.VolumeAttachment
	await(t, all, attachment, func(a *storagev1.VolumeAttachment, gone bool) bool { asked = a; return !gone })
	if asked.Spec.Attacher != "csi.example.com" || asked.Spec.NodeName != "n" || *asked.Spec.Source.PersistentVolumeName != "pv" {
		t.Errorf("attachment: %+v", asked.Spec)
	}
	asked.Finalizers = []string{"external-attacher/csi-example-com"}
	if asked, err = all.Update(ctx, asked, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	asked.Status.Attached = true
	if _, err := all.UpdateStatus(ctx, asked, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	told := func(n *v1.Node) bool {
		return slices.ContainsFunc(n.Status.VolumesAttached, func(a v1.AttachedVolume) bool { return a.Name == name })
	}
	await(t, nodes, "n", func(n *v1.Node, _ bool) bool { node = n; return told(n) })
	c.said(t, pod.UID, "SuccessfulAttachVolume")

	use := func(volumes ...v1.UniqueVolumeName) {
		t.Helper()
		if node, err = nodes.Get(ctx, "n", metav1.GetOptions{}); err != nil {
			t.Fatal(err)
		}
		node.Status.VolumesInUse = volumes
		node.Status.Conditions = []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue}}
		if node, err = nodes.UpdateStatus(ctx, node, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	use(name)
	if err := pods.Delete(ctx, "p", metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}); err != nil {
		t.Fatal(err)
	}
	use()
	await(t, all, attachment, func(a *storagev1.VolumeAttachment, _ bool) bool { asked = a; return a.DeletionTimestamp != nil })
	if node, err = nodes.Get(ctx, "n", metav1.GetOptions{}); err != nil || told(node) {
		t.Errorf("the node is told that the volume is attached, while it is detached: %v, %v", node.Status.VolumesAttached, err)
	}
}
