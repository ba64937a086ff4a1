package apiserver

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
)

// twoServers runs two servers on one etcd, and returns administrators of each.
func twoServers(t *testing.T) [2]*Server {
	t.Helper()
	etcd := externalEtcd(t, 64<<20)
	var out [2]*Server
	for i := range out {
		s, stop := run(t, t.TempDir(), func(c *Config) { c.EtcdServers = []string{etcd} })
		t.Cleanup(stop)
		out[i] = s
	}
	return out
}

// Each of two servers admitted the last of a quota in the same moment: a tenant who asked both at once got more than there was.
func TestTwoServersKeepAQuotaTogether(t *testing.T) {
	servers := twoServers(t)
	ctx := context.WithoutCancel(t.Context())
	var apis [2]kubernetes.Interface
	for i, s := range servers {
		apis[i] = admin(t, s)
	}
	for round := range 5 {
		ns := fmt.Sprint("tenant-", round)
		if _, err := apis[0].CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		q := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "q"}, Spec: corev1.ResourceQuotaSpec{
			Hard: corev1.ResourceList{"count/configmaps": resource.MustParse("9"), "requests.storage": resource.MustParse("10Gi")},
		}}
		if _, err := apis[0].CoreV1().ResourceQuotas(ns).Create(ctx, q, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		eventually(t, func() error {
			if _, err := apis[1].CoreV1().ConfigMaps(ns).Create(ctx, configMap("x"), metav1.CreateOptions{DryRun: []string{"All"}}); err != nil {
				return err
			}
			return nil
		})
		var made, refused atomic.Int32
		var all sync.WaitGroup
		for i := range 40 {
			all.Go(func() {
				_, err := apis[i%2].CoreV1().ConfigMaps(ns).Create(ctx, configMap(fmt.Sprint("m", i)), metav1.CreateOptions{})
				switch {
				case err == nil:
					made.Add(1)
				case apierrors.IsForbidden(err):
					refused.Add(1)
				default:
					t.Error(err)
				}
			})
		}
		all.Wait()
		have, err := apis[1].CoreV1().ConfigMaps(ns).List(ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if made.Load() != 9 || len(have.Items) != 9 || refused.Load() != 31 {
			t.Errorf("round %d: %d made, %d there, %d refused; the quota has room for 9 of 40", round, made.Load(), len(have.Items), refused.Load())
		}
	}
}

func configMap(name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

// Kinds that others' code stores have no second attempt in the server: their clients make it, since they are told to.
func TestTwoServersKeepAQuotaOfCustomResourcesTogether(t *testing.T) {
	servers := twoServers(t)
	ctx := context.WithoutCancel(t.Context())
	var apis [2]dynamic.ResourceInterface
	for i, s := range servers {
		cfg := s.ClientConfig("admin", "system:masters")
		if i == 0 {
			if _, err := clientset.NewForConfigOrDie(cfg).ApiextensionsV1().CustomResourceDefinitions().Create(ctx, widgets(), metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		apis[i] = dynamic.NewForConfigOrDie(cfg).Resource(schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}).Namespace("default")
	}
	create := func(server int, name string, opts metav1.CreateOptions) error {
		_, err := apis[server].Create(ctx, &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "example.com/v1", "kind": "Widget", "metadata": map[string]any{"name": name}, "spec": map[string]any{},
		}}, opts)
		return err
	}
	q := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "q"}, Spec: corev1.ResourceQuotaSpec{
		Hard: corev1.ResourceList{"count/widgets.example.com": resource.MustParse("2")},
	}}
	if _, err := admin(t, servers[0]).CoreV1().ResourceQuotas("default").Create(ctx, q, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for i := range servers {
		eventually(t, func() error { return create(i, "try", metav1.CreateOptions{DryRun: []string{"All"}}) })
	}
	var made atomic.Int32
	var all sync.WaitGroup
	for i := range 12 {
		all.Go(func() {
			err := create(i%2, fmt.Sprint("w", i), metav1.CreateOptions{})
			if err == nil {
				made.Add(1)
			} else if !apierrors.IsForbidden(err) {
				t.Error(err)
			}
		})
	}
	all.Wait()
	have, err := apis[0].List(ctx, metav1.ListOptions{})
	if err != nil || len(have.Items) != 2 || made.Load() != 2 {
		t.Errorf("%d made, %d there: %v; the quota has room for 2", made.Load(), len(have.Items), err)
	}
}
