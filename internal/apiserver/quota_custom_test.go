package apiserver

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
)

// A quota of custom resources was counted, and held nobody back (upstream's spec "should create a ResourceQuota and capture the
// life of a custom resource").
func TestQuotasCountCustomResources(t *testing.T) {
	s := start(t)
	cfg := s.ClientConfig("admin", "system:masters")
	if _, err := clientset.NewForConfigOrDie(cfg).ApiextensionsV1().CustomResourceDefinitions().Create(t.Context(), widgets(), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	api := dynamic.NewForConfigOrDie(cfg).Resource(schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}).Namespace("default")
	create := func(name string) error {
		obj := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "example.com/v1", "kind": "Widget", "metadata": map[string]any{"name": name}, "spec": map[string]any{},
		}}
		_, err := api.Create(t.Context(), obj, metav1.CreateOptions{})
		return err
	}
	err := wait.PollUntilContextTimeout(t.Context(), time.Millisecond, time.Minute, true, func(context.Context) (bool, error) {
		err := create("first")
		return err == nil, nil // it is not established yet
	})
	if err != nil {
		t.Fatal(err)
	}
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "q"}, Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{
		"count/widgets.example.com": resource.MustParse("3"), "pods": resource.MustParse("1"),
	}}}
	if _, err := admin(t, s).CoreV1().ResourceQuotas("default").Create(t.Context(), quota, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for range 5 { // what fails takes nothing
		if err := create("first"); !apierrors.IsAlreadyExists(err) {
			t.Errorf("got %v", err)
		}
	}
	var made atomic.Int32
	var all sync.WaitGroup
	for i := range 10 {
		all.Go(func() {
			err := create(fmt.Sprint("w", i))
			switch {
			case err == nil:
				made.Add(1)
			case !apierrors.IsForbidden(err) || !strings.Contains(err.Error(),
				"exceeded quota: q, requested: count/widgets.example.com=1, used: count/widgets.example.com=3, limited: count/widgets.example.com=3"):
				t.Error(err)
			}
		})
	}
	all.Wait()
	if made.Load() != 2 {
		t.Errorf("%d were made, and there was room for 2", made.Load())
	}
	list, err := api.List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 3 {
		t.Fatalf("there are %d: %v", len(list.Items), err)
	}
	if err := api.Delete(t.Context(), "first", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := create("again"); err != nil {
		t.Errorf("there is room again: %v", err)
	}
	changed, err := api.Get(t.Context(), "again", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	changed.SetLabels(map[string]string{"a": "b"})
	if _, err := api.Update(t.Context(), changed, metav1.UpdateOptions{}); err != nil {
		t.Errorf("a change takes nothing: %v", err)
	}
}
