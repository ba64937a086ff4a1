package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"
)

// kinds are those of which a cluster consists, with their resources. Namespaces stay.
var kinds = map[string]schema.GroupVersionResource{
	"Namespace":           {Version: "v1", Resource: "namespaces"},
	"Node":                {Version: "v1", Resource: "nodes"},
	"Pod":                 {Version: "v1", Resource: "pods"},
	"Service":             {Version: "v1", Resource: "services"},
	"PodDisruptionBudget": {Group: "policy", Version: "v1", Resource: "poddisruptionbudgets"},
	"PodGroup":            {Group: "scheduling.k8s.io", Version: "v1beta1", Resource: "podgroups"},

	"ReplicationController": {Version: "v1", Resource: "replicationcontrollers"},
	"ReplicaSet":            {Group: "apps", Version: "v1", Resource: "replicasets"},
	"StatefulSet":           {Group: "apps", Version: "v1", Resource: "statefulsets"},

	"DeviceClass":   {Group: "resource.k8s.io", Version: "v1", Resource: "deviceclasses"},
	"ResourceSlice": {Group: "resource.k8s.io", Version: "v1", Resource: "resourceslices"},
	"ResourceClaim": {Group: "resource.k8s.io", Version: "v1", Resource: "resourceclaims"},

	"PersistentVolume":      {Version: "v1", Resource: "persistentvolumes"},
	"PersistentVolumeClaim": {Version: "v1", Resource: "persistentvolumeclaims"},
	"StorageClass":          {Group: "storage.k8s.io", Version: "v1", Resource: "storageclasses"},
	"CSINode":               {Group: "storage.k8s.io", Version: "v1", Resource: "csinodes"},
	"CSIDriver":             {Group: "storage.k8s.io", Version: "v1", Resource: "csidrivers"},
	"CSIStorageCapacity":    {Group: "storage.k8s.io", Version: "v1", Resource: "csistoragecapacities"},
}

// now is how everything is deleted.
var now = metav1.DeleteOptions{
	GracePeriodSeconds: new(int64(0)), PropagationPolicy: new(metav1.DeletePropagationBackground), // nobody collects
}

// world is the API server, in which one cluster after the other is.
type world struct {
	client dynamic.Interface
	typed  kubernetes.Interface
}

func newWorld(ctx context.Context, cfg *rest.Config) (*world, error) {
	cfg = rest.CopyConfig(cfg)
	cfg.ContentConfig = rest.ContentConfig{}
	client, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return nil, err
	}
	typed, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, err
	}
	w := &world{client, typed}
	for name := range strings.FieldsSeq(namespaces) {
		ns := &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if name == adminNamespace {
			ns.Labels = map[string]string{resourcev1.DRAAdminNamespaceLabelKey: "true"}
		}
		if err := w.create(ctx, ns); err != nil {
			return nil, err
		}
	}
	return w, nil
}

func (w *world) pods(namespace string) dynamic.ResourceInterface {
	return w.client.Resource(kinds["Pod"]).Namespace(namespace)
}

// create makes an object as it is, with its status. One with a finalizer is deleted, so that it is terminating.
func (w *world) create(ctx context.Context, o object) error {
	gvks, _, err := scheme.Scheme.ObjectKinds(o)
	if err != nil {
		return err
	}
	content, err := asContent(o)
	if err != nil {
		return err
	}
	u := &unstructured.Unstructured{Object: content}
	u.SetGroupVersionKind(gvks[0])
	api := dynamic.ResourceInterface(w.client.Resource(kinds[gvks[0].Kind]))
	if o.GetNamespace() != "" {
		api = w.client.Resource(kinds[gvks[0].Kind]).Namespace(o.GetNamespace())
	}
	made, err := api.Create(ctx, u, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("%s %s: %w", gvks[0].Kind, o.GetName(), err)
	}
	o.SetUID(made.GetUID())
	if status, _ := content["status"].(map[string]any); len(status) > 0 && gvks[0].Kind != "Node" {
		made.Object["status"] = status
		if _, err := api.UpdateStatus(ctx, made, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("status of %s %s: %w", gvks[0].Kind, o.GetName(), err)
		}
	}
	if len(o.GetFinalizers()) > 0 {
		return api.Delete(ctx, o.GetName(), now)
	}
	return nil
}

// bind puts a pod on a node, where it runs at once.
func (w *world) bind(ctx context.Context, p *v1.Pod, node string) error {
	b := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Binding", "metadata": map[string]any{"name": p.Name, "namespace": p.Namespace},
		"target": map[string]any{"kind": "Node", "name": node},
	}}
	if _, err := w.pods(p.Namespace).Create(ctx, b, metav1.CreateOptions{}, "binding"); err != nil {
		return err
	}
	patch := fmt.Sprintf(`{"status":{"phase":"Running","startTime":%q}}`, p.Status.StartTime.UTC().Format(time.RFC3339))
	api := w.pods(p.Namespace)
	_, err := api.Patch(ctx, p.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}, "status")
	return err
}

// drop deletes a pod, if it is there.
func (w *world) drop(ctx context.Context, namespace, name string) error {
	err := w.pods(namespace).Delete(ctx, name, now)
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// change changes a node.
func (w *world) change(ctx context.Context, name string, f func(*v1.Node)) error {
	api := w.client.Resource(kinds["Node"])
	u, err := api.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	var n v1.Node
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &n); err != nil {
		return err
	}
	f(&n)
	if u.Object, err = asContent(&n); err != nil {
		return err
	}
	u.SetGroupVersionKind(v1.SchemeGroupVersion.WithKind("Node"))
	if u, err = api.Update(ctx, u, metav1.UpdateOptions{}); err != nil {
		return err
	}
	if u.Object["status"], err = asContent(&n.Status); err != nil {
		return err
	}
	_, err = api.UpdateStatus(ctx, u, metav1.UpdateOptions{})
	return err
}

// label gives an object other labels.
func (w *world) label(ctx context.Context, kind, namespace, name string, labels map[string]string) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": labels}})
	if err != nil {
		return err
	}
	api := w.client.Resource(kinds[kind]).Namespace(namespace)
	_, err = api.Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// all returns all objects of a kind, except for those that every API server has.
func (w *world) all(ctx context.Context, kind string) ([]unstructured.Unstructured, error) {
	list, err := w.client.Resource(kinds[kind]).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(list.Items, func(u unstructured.Unstructured) bool {
		return u.GetNamespace() == metav1.NamespaceDefault ||
			kind == "Namespace" && !slices.Contains(strings.Fields(namespaces), u.GetName())
	}), nil
}

// wipe removes the cluster.
func (w *world) wipe(ctx context.Context) error {
	var errs []error
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		if kind == "Namespace" {
			continue
		}
		objects, err := w.all(ctx, kind)
		errs = append(errs, err)
		for _, o := range objects {
			api := w.client.Resource(kinds[kind]).Namespace(o.GetNamespace())
			if len(o.GetFinalizers()) > 0 {
				patch := []byte(`{"metadata":{"finalizers":null}}`)
				_, err := api.Patch(ctx, o.GetName(), types.MergePatchType, patch, metav1.PatchOptions{})
				errs = append(errs, err)
			}
			if err := api.Delete(ctx, o.GetName(), now); !apierrors.IsNotFound(err) {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

// dump returns the cluster as YAML, without what says nothing.
func (w *world) dump(ctx context.Context) (string, error) {
	var docs []string
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		objects, err := w.all(ctx, kind)
		if err != nil {
			return "", err
		}
		for _, o := range objects {
			doc, err := asYAML(o.Object)
			if err != nil {
				return "", err
			}
			docs = append(docs, doc)
		}
	}
	return strings.Join(docs, "---\n"), nil
}

// asContent returns an object as what its JSON has.
func asContent(o any) (map[string]any, error) {
	return runtime.DefaultUnstructuredConverter.ToUnstructured(o)
}

// asYAML returns an object as YAML, without what says nothing.
func asYAML(o map[string]any) (string, error) {
	for _, field := range []string{"managedFields", "uid", "resourceVersion", "generation", "creationTimestamp"} {
		unstructured.RemoveNestedField(o, "metadata", field)
	}
	doc, err := yaml.Marshal(o)
	return string(doc), err
}
