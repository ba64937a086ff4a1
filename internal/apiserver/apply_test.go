package apiserver

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"
)

// What an engine of GitOps keeps: ten times a hundred objects of ten kinds, in namespaces of their own.
var managedKinds = map[string]string{
	"ConfigMap": "configmaps", "Secret": "secrets", "Service": "services", "ServiceAccount": "serviceaccounts", "Deployment": "deployments",
	"Role": "roles", "RoleBinding": "rolebindings", "NetworkPolicy": "networkpolicies", "PodDisruptionBudget": "poddisruptionbudgets", "CronJob": "cronjobs",
}

// engine applies manifests as flux and argo do: by server-side apply, as a manager of its own, with force.
type engine struct {
	t   *testing.T
	api dynamic.Interface
}

func (e engine) of(o *unstructured.Unstructured) dynamic.ResourceInterface {
	e.t.Helper()
	gvk := o.GroupVersionKind()
	gvr := schema.GroupVersionResource{Group: gvk.Group, Version: gvk.Version, Resource: managedKinds[gvk.Kind]}
	if gvk.Kind == "Namespace" {
		gvr.Resource = "namespaces"
		return e.api.Resource(gvr)
	}
	return e.api.Resource(gvr).Namespace(o.GetNamespace())
}

func (e engine) apply(o *unstructured.Unstructured, dryRun ...string) *unstructured.Unstructured {
	e.t.Helper()
	got, err := e.of(o).Apply(e.t.Context(), o.GetName(), o, metav1.ApplyOptions{FieldManager: "engine", Force: true, DryRun: dryRun})
	if err != nil {
		e.t.Fatalf("%s %s: %v", o.GetKind(), o.GetName(), err)
	}
	return got
}

// manifests returns ten namespaces with a hundred objects each, from the table of valid objects.
func manifests(t *testing.T) (out []*unstructured.Unstructured) {
	t.Helper()
	data, err := os.ReadFile("testdata/objects.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var seeds []*unstructured.Unstructured
	for doc := range strings.SplitSeq(string(data), "\n---\n") {
		o := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(doc), &o.Object); err != nil {
			t.Fatal(err)
		}
		if managedKinds[o.GetKind()] != "" && !slices.ContainsFunc(seeds, func(s *unstructured.Unstructured) bool { return s.GetKind() == o.GetKind() }) {
			unstructured.RemoveNestedField(o.Object, "status")
			unstructured.RemoveNestedField(o.Object, "spec", "clusterIP")
			unstructured.RemoveNestedField(o.Object, "spec", "clusterIPs")
			seeds = append(seeds, o)
		}
	}
	if len(seeds) != len(managedKinds) {
		t.Fatalf("the table has %d of %d kinds", len(seeds), len(managedKinds))
	}
	for n := range 10 {
		ns := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Namespace"}}
		ns.SetName(fmt.Sprint("team-", n))
		ns.SetLabels(map[string]string{"team": "yes"}) // who owns no field of an object is not among its managers
		out = append(out, ns)
		for i := range 10 {
			for _, seed := range seeds {
				o := seed.DeepCopy()
				o.SetNamespace(ns.GetName())
				o.SetName(fmt.Sprintf("app-%d", i))
				o.SetLabels(map[string]string{"app": fmt.Sprint(i), "engine": "yes"})
				out = append(out, o)
			}
		}
	}
	return out
}

// A thousand objects are applied; applied again as they are, none of them gets a new version, and a dry run finds
// no difference; what others own is left to them; a changed one changes alone; what is left out is pruned.
func TestAThousandObjectsByServerSideApply(t *testing.T) {
	s := start(t)
	cfg := overTCP(s.ClientConfig("admin", "system:masters"))
	cfg.QPS = -1
	e := engine{t, dynamic.NewForConfigOrDie(cfg)}
	all := manifests(t)
	began := time.Now()
	versions := map[int]string{}
	for i, o := range all {
		versions[i] = e.apply(o).GetResourceVersion()
	}
	first := time.Since(began)
	other := e.of(all[1])
	if _, err := other.Patch(t.Context(), all[1].GetName(), "application/merge-patch+json", []byte(`{"metadata":{"annotations":{"other":"1"}}}`), metav1.PatchOptions{FieldManager: "other"}); err != nil {
		t.Fatal(err)
	}
	began = time.Now()
	for i, o := range all {
		was, err := e.of(o).Get(t.Context(), o.GetName(), metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if i != 1 && was.GetResourceVersion() != versions[i] {
			t.Errorf("%s %s was changed since it was applied", o.GetKind(), o.GetName())
		}
		if now := e.apply(o, metav1.DryRunAll); now.GetResourceVersion() != was.GetResourceVersion() || now.GetGeneration() != was.GetGeneration() {
			t.Errorf("a dry run would change %s %s", o.GetKind(), o.GetName())
		}
		if now := e.apply(o); now.GetResourceVersion() != was.GetResourceVersion() {
			t.Errorf("%s %s, applied unchanged, has version %s after %s", o.GetKind(), o.GetName(), now.GetResourceVersion(), was.GetResourceVersion())
		}
	}
	t.Logf("%d objects applied in %v; read, compared and applied unchanged in %v", len(all), first, time.Since(began))
	if got := e.apply(all[1]).GetAnnotations()["other"]; got != "1" {
		t.Errorf("what somebody else owns became %q", got)
	}
	changed := all[2].DeepCopy()
	changed.SetLabels(map[string]string{"app": "changed", "engine": "yes"})
	if got := e.apply(changed); got.GetLabels()["app"] != "changed" || got.GetResourceVersion() == versions[2] {
		t.Errorf("changed: %v", got.GetLabels())
	}
	// What the manifests do not have any more is deleted by the label that all of them have.
	keep := all[:len(all)/2]
	kept := map[string]bool{}
	for _, o := range keep {
		kept[o.GetKind()+o.GetNamespace()+o.GetName()] = true
	}
	left := 0
	for _, kind := range slices.Sorted(maps.Keys(managedKinds)) {
		i := slices.IndexFunc(all, func(o *unstructured.Unstructured) bool { return o.GetKind() == kind })
		gvk := all[i].GroupVersionKind()
		api := e.api.Resource(schema.GroupVersionResource{Group: gvk.Group, Version: gvk.Version, Resource: managedKinds[kind]})
		list, err := api.List(t.Context(), metav1.ListOptions{LabelSelector: "engine=yes"})
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range list.Items {
			if kept[kind+o.GetNamespace()+o.GetName()] {
				left++
				continue
			}
			if err := api.Namespace(o.GetNamespace()).Delete(t.Context(), o.GetName(), metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
		}
	}
	if want := len(keep) - 5; left < want-1 || left > len(keep) { // without namespaces
		t.Errorf("%d objects are left, of %d", left, want)
	}
}
