package apiserver

import (
	"path/filepath"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1beta1 "k8s.io/api/rbac/v1beta1"
	resourcev1beta2 "k8s.io/api/resource/v1beta2"
	storagemigrationv1beta1 "k8s.io/api/storagemigration/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"wherry.dev/internal/apiserver/storage"
)

// TestIngressesAreWhereUpstreamKeepsThem: they were at other keys, and so were replication controllers, so that neither
// server found what the other had stored. What an earlier version left there is found, encrypted or not, and what was
// made since stays.
func TestIngressesAreWhereUpstreamKeepsThem(t *testing.T) {
	e := newEncryption(t, "ingresses.networking.k8s.io", keys("aesgcm", "k1"), "identity: {}")
	dir, etcd := t.TempDir(), externalEtcd(t, 0)
	here := func(c *Config) { c.EtcdServers, c.EncryptionConfig = []string{etcd}, e.path }
	ctx := t.Context()
	create := func(c kubernetes.Interface, name, class string) {
		t.Helper()
		ingress := &networkingv1.Ingress{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: networkingv1.IngressSpec{
			IngressClassName: &class, DefaultBackend: &networkingv1.IngressBackend{Resource: &corev1.TypedLocalObjectReference{Kind: "A", Name: "b"}},
		}}
		if _, err := c.NetworkingV1().Ingresses("default").Create(ctx, ingress, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	move := func(from, to string) {
		t.Helper()
		b, err := storage.Open(ctx, storage.Config{Servers: []string{etcd}, Encryption: storage.Encryption{File: e.path}})
		if err != nil {
			t.Fatal(err)
		}
		if err := b.Move(ctx, schema.GroupResource{Group: "networking.k8s.io", Resource: "ingresses"}, from, to); err != nil {
			t.Error(err)
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}

	s, stop := run(t, filepath.Join(dir, "a"), here)
	create(admin(t, s), "old", "before")
	create(admin(t, s), "both", "before")
	rc := &corev1.ReplicationController{ObjectMeta: metav1.ObjectMeta{Name: "rc"}, Spec: corev1.ReplicationControllerSpec{
		Selector: map[string]string{"a": "b"}, Template: &corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"a": "b"}},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}},
	}}
	if _, err := admin(t, s).CoreV1().ReplicationControllers("default").Create(ctx, rc, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	raw := rawOf(t, etcd)
	if v := raw("/registry/ingress/default/old"); !strings.HasPrefix(v, "k8s:enc:aesgcm:v1:k1:") {
		t.Errorf("in etcd: %q", v)
	}
	raw("/registry/controllers/default/rc")
	stop()
	move("ingress", "ingresses") // as an earlier version left them

	s, stop = run(t, filepath.Join(dir, "b"), here)
	wantClass := func(c kubernetes.Interface, name, want string) {
		t.Helper()
		got, err := c.NetworkingV1().Ingresses("default").Get(ctx, name, metav1.GetOptions{})
		if err != nil || *got.Spec.IngressClassName != want {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	wantClass(admin(t, s), "old", "before")
	wantClass(admin(t, s), "both", "before")
	stop()
	move("ingress", "ingresses")
	// An older server goes on beside a newer one, with which somebody makes one of them anew.
	s, stop = run(t, filepath.Join(dir, "c"), here)
	move("ingress", "ingresses")
	create(admin(t, s), "both", "since")
	stop()
	s = startIn(t, filepath.Join(dir, "d"), here)
	wantClass(admin(t, s), "old", "before")
	wantClass(admin(t, s), "both", "since")
	left, err := clientOf(t, etcd).Get(ctx, "/registry/ingresses/", clientv3.WithPrefix())
	if err != nil || left.Count > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// TestObjectsInUpstreamsVersionsAreRead: upstream's 1.37 stores rules about devices and storage migrations in beta
// versions. A server on its data could read none of them.
func TestObjectsInUpstreamsVersionsAreRead(t *testing.T) {
	etcd := externalEtcd(t, 0)
	client := clientOf(t, etcd)
	meta := metav1.ObjectMeta{Name: "a", UID: "u", CreationTimestamp: metav1.Now()}
	for key, obj := range map[string]interface {
		runtime.Object
		Marshal() ([]byte, error)
	}{
		"devicetaintrules": &resourcev1beta2.DeviceTaintRule{
			TypeMeta: metav1.TypeMeta{APIVersion: "resource.k8s.io/v1beta2", Kind: "DeviceTaintRule"}, ObjectMeta: meta,
			Spec: resourcev1beta2.DeviceTaintRuleSpec{Taint: resourcev1beta2.DeviceTaint{Key: "k", Effect: "NoExecute"}},
		},
		"storageversionmigrations": &storagemigrationv1beta1.StorageVersionMigration{
			TypeMeta: metav1.TypeMeta{APIVersion: "storagemigration.k8s.io/v1beta1", Kind: "StorageVersionMigration"}, ObjectMeta: meta,
			Spec: storagemigrationv1beta1.StorageVersionMigrationSpec{Resource: metav1.GroupResource{Resource: "secrets"}},
		},
		"clusterroles": &rbacv1beta1.ClusterRole{
			TypeMeta: metav1.TypeMeta{APIVersion: "rbac.authorization.k8s.io/v1beta1", Kind: "ClusterRole"}, ObjectMeta: meta,
			Rules: []rbacv1beta1.PolicyRule{{Verbs: []string{"get"}, NonResourceURLs: []string{"/x"}}},
		},
	} {
		data, err := obj.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		version, kind := obj.GetObjectKind().GroupVersionKind().ToAPIVersionAndKind()
		u := runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: version, Kind: kind}, Raw: data}
		if data, err = u.Marshal(); err != nil {
			t.Fatal(err)
		}
		if _, err := client.Put(t.Context(), "/registry/"+key+"/a", "k8s\x00"+string(data)); err != nil {
			t.Fatal(err)
		}
	}
	ctx, c := t.Context(), admin(t, start(t, func(c *Config) { c.EtcdServers = []string{etcd} }))
	rules, err := c.ResourceV1().DeviceTaintRules().List(ctx, metav1.ListOptions{})
	if err != nil || len(rules.Items) != 1 || rules.Items[0].Spec.Taint.Key != "k" {
		t.Errorf("%v, %v", rules, err)
	}
	migration, err := c.StoragemigrationV1().StorageVersionMigrations().Get(ctx, "a", metav1.GetOptions{})
	if err != nil || migration.Spec.Resource.Resource != "secrets" {
		t.Errorf("%v, %v", migration, err)
	}
	patch := []byte(`{"metadata":{"labels":{"a":"b"}}}`)
	role, err := c.RbacV1().ClusterRoles().Patch(ctx, "a", types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil || role.Rules[0].NonResourceURLs[0] != "/x" {
		t.Errorf("%v, %v", role, err)
	}
	if v := rawOf(t, etcd)("/registry/clusterroles/a"); strings.Contains(v, "v1beta1") {
		t.Errorf("stored again as %q", v)
	}
	err = c.RbacV1().RESTClient().Post().Resource("clusterroles").Body([]byte(`{"apiVersion":"rbac.authorization.k8s.io/v1beta1","kind":"ClusterRole"}`)).
		SetHeader("Content-Type", "application/json").Do(ctx).Error()
	refused(t, err, "the API version in the data (rbac.authorization.k8s.io/v1beta1) does not match the expected API version (rbac.authorization.k8s.io/v1)")
}
