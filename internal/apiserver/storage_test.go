package apiserver

import (
	"encoding/json"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

func makeClass(t *testing.T, c kubernetes.Interface, name string, annotations map[string]string) {
	t.Helper()
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: annotations}, Provisioner: "example.com/disk"}
	if _, err := c.StorageV1().StorageClasses().Create(t.Context(), class, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// claimOf creates a claim and returns the class that it got.
func claimOf(t *testing.T, c kubernetes.Interface, name string, change func(*corev1.PersistentVolumeClaim)) string {
	t.Helper()
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{"storage": resource.MustParse("1Gi")}},
		},
	}
	change(claim)
	claim, err := c.CoreV1().PersistentVolumeClaims("default").Create(t.Context(), claim, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if claim.Spec.StorageClassName == nil {
		return "<nil>"
	}
	return *claim.Spec.StorageClassName
}

func TestClaimWithoutAClassGetsTheDefault(t *testing.T) {
	s := start(t)
	c := admin(t, s)
	plain := func(*corev1.PersistentVolumeClaim) {}
	makeClass(t, c, "slow", nil)
	if got := claimOf(t, c, "none", plain); got != "<nil>" {
		t.Errorf("without a default class: %q", got)
	}
	makeClass(t, c, "fast", map[string]string{"storageclass.kubernetes.io/is-default-class": "true"})
	eventually(t, func() error {
		_, err := c.StorageV1().StorageClasses().Get(t.Context(), "fast", metav1.GetOptions{ResourceVersion: "0"})
		return err
	})
	if got := claimOf(t, c, "plain", plain); got != "fast" {
		t.Errorf("default class %q", got)
	}
	if got := claimOf(t, c, "empty", func(p *corev1.PersistentVolumeClaim) { p.Spec.StorageClassName = new("") }); got != "" {
		t.Errorf("the claim wanted no class and got %q", got)
	}
	if got := claimOf(t, c, "named", func(p *corev1.PersistentVolumeClaim) { p.Spec.StorageClassName = new("slow") }); got != "slow" {
		t.Errorf("the claim wanted slow and got %q", got)
	}
	beta := map[string]string{corev1.BetaStorageClassAnnotation: "slow"}
	if got := claimOf(t, c, "beta", func(p *corev1.PersistentVolumeClaim) { p.Annotations = beta }); got != "<nil>" {
		t.Errorf("the claim named its class by annotation and got %q", got)
	}
}

func TestNodeTouchesOnlyItsOwnCSINodeAndAttachments(t *testing.T) {
	s := start(t)
	ctx := t.Context()
	c := admin(t, s)
	n1 := clientFor(t, s.ClientConfig("system:node:n1", "system:nodes")).StorageV1()
	n2 := clientFor(t, s.ClientConfig("system:node:n2", "system:nodes")).StorageV1()
	named := func(name string) *storagev1.CSINode {
		return &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: name}}
	}
	if _, err := n2.CSINodes().Create(ctx, named("n1"), metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("CSINode of another name: %v", err)
	}
	made, err := n1.CSINodes().Create(ctx, named("n1"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	made.Spec.Drivers = []storagev1.CSINodeDriver{{Name: "csi.example.com", NodeID: "1"}}
	if _, err := n1.CSINodes().Update(ctx, made, metav1.UpdateOptions{}); err != nil {
		t.Errorf("own CSINode: %v", err)
	}
	if _, err := n2.CSINodes().Update(ctx, made, metav1.UpdateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("update of another's CSINode: %v", err)
	}
	if _, err := n2.CSINodes().Get(ctx, "n1", metav1.GetOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("another's CSINode: %v", err)
	}
	if _, err := n1.CSINodes().List(ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("all CSINodes: %v", err)
	}
	if err := n2.CSINodes().Delete(ctx, "n1", metav1.DeleteOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("delete of another's CSINode: %v", err)
	}
	if _, err := n1.CSIDrivers().List(ctx, metav1.ListOptions{}); err != nil {
		t.Errorf("drivers: %v", err)
	}
	attachment := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: storagev1.VolumeAttachmentSpec{
		Attacher: "csi.example.com", NodeName: "n1", Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: new("pv")},
	}}
	if _, err := c.StorageV1().VolumeAttachments().Create(ctx, attachment, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := n1.VolumeAttachments().Get(ctx, "a", metav1.GetOptions{}); err != nil {
		t.Errorf("own attachment: %v", err)
	}
	if _, err := n2.VolumeAttachments().Get(ctx, "a", metav1.GetOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("another's attachment: %v", err)
	}
	if _, err := n1.VolumeAttachments().List(ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("all attachments: %v", err)
	}
	if err := n1.CSINodes().Delete(ctx, "n1", metav1.DeleteOptions{}); err != nil {
		t.Errorf("delete of its CSINode: %v", err)
	}
}

func TestAttachmentStatusIsASubresource(t *testing.T) {
	s := start(t)
	ctx := t.Context()
	attachments := admin(t, s).StorageV1().VolumeAttachments()
	a := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: storagev1.VolumeAttachmentSpec{
		Attacher: "csi.example.com", NodeName: "n1", Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: new("pv")},
	}}
	a.Status.Attached = true
	a, err := attachments.Create(ctx, a, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if a.Status.Attached {
		t.Error("a new attachment is attached")
	}
	a.Status.Attached, a.Labels = true, map[string]string{"a": "b"}
	if a, err = attachments.UpdateStatus(ctx, a, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if !a.Status.Attached || len(a.Labels) != 0 {
		t.Errorf("after an update of the status: attached %v, labels %v", a.Status.Attached, a.Labels)
	}
	moved := []byte(`{"spec":{"nodeName":"n2"}}`)
	_, err = attachments.Patch(ctx, "a", types.MergePatchType, moved, metav1.PatchOptions{})
	if !apierrors.IsInvalid(err) {
		t.Errorf("another node: %v", err)
	}
}

// warnings collects the server's warnings.
type warnings []string

func (w *warnings) HandleWarningHeader(_ int, _, text string) { *w = append(*w, text) }

func TestDriverWithTokensInAttributesWarns(t *testing.T) {
	s := start(t)
	ctx := t.Context()
	cfg := rest.CopyConfig(s.ClientConfig("admin", "system:masters"))
	var got warnings
	cfg.WarningHandler = &got
	drivers := clientFor(t, cfg).StorageV1().CSIDrivers()
	const want = "spec.serviceAccountTokenInSecrets is unset; if supported by this CSI driver, set to true to prevent possible logging of tokens in volume attributes"
	d := &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: "csi.example.com"}}
	d.Spec.TokenRequests = []storagev1.TokenRequest{{Audience: "a"}}
	d, err := drivers.Create(ctx, d, metav1.CreateOptions{})
	if err != nil || !slices.Equal(got, warnings{want}) {
		t.Fatalf("create: %v, warnings %q", err, got)
	}
	if d.Spec.FSGroupPolicy == nil || *d.Spec.FSGroupPolicy != storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy {
		t.Errorf("not completed: %+v", d.Spec)
	}
	got = nil
	d.Labels = map[string]string{"a": "b"}
	if d, err = drivers.Update(ctx, d, metav1.UpdateOptions{}); err != nil || len(got) != 0 || d.Generation != 0 {
		t.Errorf("label: %v, warnings %q, generation %d", err, got, d.Generation)
	}
	d.Spec.TokenRequests[0].Audience = "b"
	if d, err = drivers.Update(ctx, d, metav1.UpdateOptions{}); err != nil || !slices.Equal(got, warnings{want}) || d.Generation != 1 {
		t.Errorf("another audience: %v, warnings %q, generation %d", err, got, d.Generation)
	}
}

// The server used to report ready while the descriptions of groups were still being made: a client
// that asked for one at once was told that there was none.
func TestReadyServerHasAllPaths(t *testing.T) {
	s := start(t)
	select {
	case <-s.prepared:
	default:
		t.Error("ready before all is installed")
	}
}

func TestOpenAPIDescribesStorage(t *testing.T) {
	s := start(t)
	raw, err := admin(t, s).Discovery().RESTClient().Get().AbsPath("/openapi/v3/apis/storage.k8s.io/v1").SetHeader("Accept", "application/json").DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Components struct {
			Schemas map[string]json.RawMessage `json:"schemas"`
		} `json:"components"`
		Paths map[string]json.RawMessage `json:"paths"`
	}
	if err := json.Unmarshal(raw, &doc); err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"CSIDriver", "CSINode", "StorageClass", "VolumeAttachment"} {
		if doc.Components.Schemas["io.k8s.api.storage.v1."+kind] == nil {
			t.Errorf("no schema of %s", kind)
		}
	}
	if doc.Paths["/apis/storage.k8s.io/v1/volumeattachments/{name}/status"] == nil {
		t.Error("no status of attachments")
	}
}

func kubectlStorage(k *kubectl) {
	k.want(`storageclass.storage.k8s.io/fast created`, `{"apiVersion":"storage.k8s.io/v1","kind":"StorageClass","metadata":{"name":"fast","annotations":{"storageclass.kubernetes.io/is-default-class":"true"}},"provisioner":"example.com/disk"}`, "apply", "-f", "-")
	k.want(`(?s)NAME +PROVISIONER +RECLAIMPOLICY +VOLUMEBINDINGMODE +ALLOWVOLUMEEXPANSION +AGE.*fast \(default\) +example.com/disk +Delete +Immediate +false +`, "", "get", "sc")
	k.refuse(`parameters: Invalid value: .*: field is immutable`, "", "patch", "sc", "fast", "-p", `{"parameters":{"a":"b"}}`)
	k.want(`csidriver.storage.k8s.io/csi.example.com created`, `{"apiVersion":"storage.k8s.io/v1","kind":"CSIDriver","metadata":{"name":"csi.example.com"},"spec":{}}`, "create", "-f", "-")
	k.want(`(?s)NAME +ATTACHREQUIRED +PODINFOONMOUNT +STORAGECAPACITY +TOKENREQUESTS +REQUIRESREPUBLISH +MODES +AGE.*csi.example.com +true +false +false +<unset> +false +Persistent +`, "", "get", "csidrivers")
	k.want(`csinode.storage.k8s.io/n1 created`, `{"apiVersion":"storage.k8s.io/v1","kind":"CSINode","metadata":{"name":"n1"},"spec":{"drivers":[{"name":"csi.example.com","nodeID":"1"}]}}`, "create", "-f", "-")
	k.want(`(?s)NAME +DRIVERS +AGE.*n1 +1 +`, "", "get", "csinodes")
	k.want(`volumeattachment.storage.k8s.io/a created`, `{"apiVersion":"storage.k8s.io/v1","kind":"VolumeAttachment","metadata":{"name":"a"},"spec":{"attacher":"csi.example.com","nodeName":"n1","source":{"persistentVolumeName":"pv"}}}`, "create", "-f", "-")
	k.want(`(?s)NAME +ATTACHER +PV +NODE +ATTACHED +AGE.*a +csi.example.com +pv +n1 +false +`, "", "get", "volumeattachments")
	k.want(`(?s)KIND: +CSINode.*FIELD: nodeID <string>`, "", "explain", "csinode.spec.drivers.nodeID")
	k.want(`(?m)^storageclasses +sc +storage.k8s.io/v1 +false +StorageClass`, "", "api-resources")
}
