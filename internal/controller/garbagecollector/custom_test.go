package garbagecollector_test

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
)

// define makes the API server serve widgets of example.com, and returns them.
func define(t *testing.T, c dynamic.Interface) dynamic.ResourceInterface {
	t.Helper()
	crds := c.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	crd := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": "widgets.example.com"},
		"spec": map[string]any{
			"group": "example.com", "scope": "Namespaced",
			"names": map[string]any{"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
			"versions": []any{map[string]any{
				"name": "v1", "served": true, "storage": true,
				"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object"}},
			}},
		},
	}}
	if _, err := crds.Create(t.Context(), crd, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	widgets := c.Resource(schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}).Namespace("default")
	eventually(t, "widgets are served", func() bool {
		_, err := widgets.List(t.Context(), metav1.ListOptions{})
		return err == nil
	})
	return widgets
}

func widget(name string, owners ...metav1.OwnerReference) *unstructured.Unstructured {
	w := &unstructured.Unstructured{}
	w.SetAPIVersion("example.com/v1")
	w.SetKind("Widget")
	w.SetName(name)
	w.SetOwnerReferences(owners)
	return w
}

// TestCustomResourcesOwnAndAreOwned: a kind defined after the collector started owns built-in kinds and its
// own, and is deleted in all three ways as they are.
func TestCustomResourcesOwnAndAreOwned(t *testing.T) {
	c, anyKind := start(t)
	widgets := define(t, anyKind)
	maps := c.CoreV1().ConfigMaps("default")
	getWidget := func(name string) (*unstructured.Unstructured, error) {
		return widgets.Get(t.Context(), name, metav1.GetOptions{})
	}
	missing := func(name string) bool {
		_, err := getWidget(name)
		return isNotFound(t, err)
	}
	for policy, name := range map[metav1.DeletionPropagation]string{
		metav1.DeletePropagationBackground: "background",
		metav1.DeletePropagationForeground: "foreground",
		metav1.DeletePropagationOrphan:     "orphan",
	} {
		t.Run(name, func(t *testing.T) {
			owner, err := widgets.Create(t.Context(), widget(name), metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			ref := metav1.OwnerReference{
				APIVersion: "example.com/v1", Kind: "Widget", Name: name, UID: owner.GetUID(), BlockOwnerDeletion: new(true),
			}
			child, err := widgets.Create(t.Context(), widget(name+"-child", ref), metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			below := metav1.OwnerReference{APIVersion: "example.com/v1", Kind: "Widget", Name: child.GetName(), UID: child.GetUID()}
			for _, m := range []metav1.ObjectMeta{
				{Name: name, OwnerReferences: []metav1.OwnerReference{ref}},
				{Name: name + "-below", OwnerReferences: []metav1.OwnerReference{below}},
			} {
				if _, err := maps.Create(t.Context(), &v1.ConfigMap{ObjectMeta: m}, metav1.CreateOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			if err := widgets.Delete(t.Context(), name, metav1.DeleteOptions{PropagationPolicy: &policy}); err != nil {
				t.Fatal(err)
			}
			if policy == metav1.DeletePropagationOrphan {
				eventually(t, "the owner is gone", func() bool { return missing(name) })
				left, err := getWidget(child.GetName())
				if err != nil || len(left.GetOwnerReferences()) != 0 || left.GetDeletionTimestamp() != nil {
					t.Errorf("the widget that it owned: %v, %v", left, err)
				}
				m, err := maps.Get(t.Context(), name, metav1.GetOptions{})
				if err != nil || len(m.OwnerReferences) != 0 || m.DeletionTimestamp != nil {
					t.Errorf("the config map that it owned: %v, %v", m, err)
				}
				return
			}
			eventually(t, "all is gone", func() bool {
				gone := missing(name)
				direct := missing(child.GetName()) && absent(t, maps.Get, name)
				if policy == metav1.DeletePropagationForeground && gone && !direct {
					t.Error("the owner went before its dependents")
				}
				return gone && direct && absent(t, maps.Get, name+"-below")
			})
		})
	}
	t.Run("owned by a built-in kind", func(t *testing.T) {
		m, err := maps.Create(t.Context(), &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "owner"}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		ref := metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: "owner", UID: m.UID}
		if _, err := widgets.Create(t.Context(), widget("of-a-map", ref), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := maps.Delete(t.Context(), "owner", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the widget is gone", func() bool { return missing("of-a-map") })
	})
}

func isNotFound(t *testing.T, err error) bool {
	t.Helper()
	if err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	return err != nil
}
