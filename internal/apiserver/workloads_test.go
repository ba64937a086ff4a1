package apiserver

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"
)

// workload is a kind whose objects make pods.
type workload struct {
	resource schema.GroupVersionResource
	kind     string
	short    string // its short name, if it has one
	body     string // the smallest valid object, without what all have
	status   string // a valid change of the status
	change   string // an allowed change of the rest
	reports  bool   // whether a change makes a new generation
	frozen   string // a change that is refused, with refusal
	refusal  string
	scales   bool
	cluster  bool // whether it has no namespace
}

const template = `{metadata: {labels: {app: w}}, spec: {containers: [{name: c, image: i}]}}`

func apps(resource string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: resource}
}

func core(resource string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Version: "v1", Resource: resource}
}

func batch(resource string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "batch", Version: "v1", Resource: resource}
}

var workloads = []workload{
	{
		resource: apps("replicasets"), kind: "ReplicaSet", short: "rs", scales: true, reports: true,
		body:   `spec: {selector: {matchLabels: {app: w}}, template: ` + template + `}`,
		status: `{replicas: 3, readyReplicas: 2}`,
		change: `spec: {minReadySeconds: 5}`,
		frozen: `spec: {selector: {matchLabels: {app: x}}, template: {metadata: {labels: {app: x}}}}`, refusal: "spec.selector: Invalid value",
	},
	{
		resource: apps("deployments"), kind: "Deployment", short: "deploy", scales: true, reports: true,
		body:   `spec: {selector: {matchLabels: {app: w}}, template: ` + template + `}`,
		status: `{replicas: 3, readyReplicas: 2}`,
		change: `metadata: {annotations: {note: x}}`,
		frozen: `spec: {selector: {matchLabels: {app: x}}, template: {metadata: {labels: {app: x}}}}`, refusal: "spec.selector: Invalid value",
	},
	{
		resource: apps("daemonsets"), kind: "DaemonSet", short: "ds", reports: true,
		body:   `spec: {selector: {matchLabels: {app: w}}, template: ` + template + `}`,
		status: `{desiredNumberScheduled: 3, numberReady: 2}`,
		change: `spec: {minReadySeconds: 5}`,
		frozen: `spec: {selector: {matchLabels: {app: x}}, template: {metadata: {labels: {app: x}}}}`, refusal: "spec.selector: Invalid value",
	},
	{
		resource: apps("statefulsets"), kind: "StatefulSet", short: "sts", reports: true, scales: true,
		body:   `spec: {serviceName: s, selector: {matchLabels: {app: w}}, template: ` + template + `}`,
		status: `{replicas: 3, readyReplicas: 2}`,
		change: `spec: {minReadySeconds: 5}`,
		frozen: `spec: {serviceName: other}`, refusal: `spec.serviceName: Invalid value: "other": field is immutable`,
	},
	{
		resource: apps("controllerrevisions"), kind: "ControllerRevision",
		body:   `{revision: 1, data: {spec: {a: b}}}`,
		change: `revision: 2`,
		frozen: `data: {spec: {a: c}}`, refusal: "data: Invalid value",
	},
	{
		resource: batch("jobs"), kind: "Job", reports: true,
		body:   `spec: {suspend: true, template: {spec: {restartPolicy: Never, containers: [{name: c, image: i}]}}}`,
		status: `{active: 2, ready: 1}`,
		change: `spec: {parallelism: 3}`,
		frozen: `spec: {completions: 3}`, refusal: "spec.completions: Invalid value: 3: field is immutable",
	},
	{
		resource: batch("cronjobs"), kind: "CronJob", short: "cj", reports: true,
		body:   `spec: {schedule: "*/5 * * * *", jobTemplate: {spec: {template: {spec: {restartPolicy: Never, containers: [{name: c, image: i}]}}}}}`,
		status: `{lastScheduleTime: "2026-11-22T10:00:00Z"}`,
		change: `spec: {suspend: true}`,
		frozen: `spec: {schedule: "* *"}`, refusal: `spec.schedule: Invalid value: "* *": expected exactly 5 fields, found 2: [* *]`,
	},
	{
		resource: core("replicationcontrollers"), kind: "ReplicationController", short: "rc", reports: true, scales: true,
		body:   `spec: {template: ` + template + `}`,
		status: `{replicas: 3, readyReplicas: 2}`,
		change: `spec: {minReadySeconds: 5}`,
		frozen: `spec: {selector: {app: x}}`, refusal: "`selector` does not match template `labels`",
	},
	{
		resource: core("podtemplates"), kind: "PodTemplate", reports: true,
		body:   `template: ` + template,
		change: `template: {metadata: {labels: {a: b}}}`,
		frozen: `template: {spec: {containers: []}}`, refusal: "template.spec.containers: Required value",
	},
	{
		resource: schema.GroupVersionResource{Group: "policy", Version: "v1", Resource: "poddisruptionbudgets"}, kind: "PodDisruptionBudget", short: "pdb", reports: true,
		body:   `spec: {selector: {matchLabels: {app: w}}, minAvailable: 1}`,
		status: `{disruptionsAllowed: 1, expectedPods: 3}`,
		change: `spec: {minAvailable: 50%}`,
		frozen: `spec: {maxUnavailable: 1}`, refusal: "minAvailable and maxUnavailable cannot be both set",
	},
}

// patch returns YAML as a JSON merge patch.
func patch(t *testing.T, text string) []byte {
	t.Helper()
	out, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestWorkloads(t *testing.T) {
	// No controller here removes the finalizers of storage objects.
	s := start(t, func(c *Config) { c.DisableAdmission = []string{"StorageObjectInUseProtection"} })
	client, err := dynamic.NewForConfig(s.ClientConfig("admin", "system:masters"))
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range append(workloads, served...) {
		var api dynamic.ResourceInterface = client.Resource(w.resource)
		if !w.cluster {
			api = client.Resource(w.resource).Namespace("default")
		}
		t.Run(w.resource.Resource, func(t *testing.T) {
			discovered(t, s, w)
			created(t, api, w)
			updated(t, api, w)
			if w.status != "" {
				reported(t, api, w)
			}
			if w.scales {
				resized(t, api, w)
			}
			policy := metav1.DeletePropagationForeground
			if err := api.Delete(t.Context(), "w", metav1.DeleteOptions{PropagationPolicy: &policy}); err != nil {
				t.Fatal(err)
			}
			// Nobody would remove the finalizer of a deletion in the foreground.
			if _, err := api.Get(t.Context(), "w", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				t.Errorf("after its deletion: %v", err)
			}
		})
	}
}

func discovered(t *testing.T, s *Server, w workload) {
	t.Helper()
	list, err := admin(t, s).Discovery().ServerResourcesForGroupVersion(w.resource.GroupVersion().String())
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, r := range list.APIResources {
		names = append(names, r.Name)
		if r.Name == w.resource.Resource && w.short != "" && !slices.Contains(r.ShortNames, w.short) {
			t.Errorf("short names %v", r.ShortNames)
		}
		if r.Name == w.resource.Resource+"/scale" && (r.Group != "autoscaling" || r.Kind != "Scale") {
			t.Errorf("scale is %s %s", r.Group, r.Kind)
		}
	}
	for sub, want := range map[string]bool{"": true, "/status": w.status != "", "/scale": w.scales} {
		if got := slices.Contains(names, w.resource.Resource+sub); got != want {
			t.Errorf("%s%s is served: %v, want %v", w.resource.Resource, sub, got, want)
		}
	}
}

// statusOf returns the status that a test reports.
func statusOf(t *testing.T, w workload) map[string]any {
	t.Helper()
	out := map[string]any{}
	if err := yaml.Unmarshal([]byte(w.status), &out); err != nil {
		t.Fatal(err)
	}
	return out
}

func created(t *testing.T, api dynamic.ResourceInterface, w workload) {
	t.Helper()
	obj := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(w.body), &obj.Object); err != nil {
		t.Fatal(err)
	}
	obj.SetAPIVersion(w.resource.GroupVersion().String())
	obj.SetKind(w.kind)
	obj.SetName("w")
	if w.status != "" {
		if err := yaml.Unmarshal([]byte("status: "+w.status), &obj.Object); err != nil {
			t.Fatal(err)
		}
	}
	out, err := api.Create(t.Context(), obj, metav1.CreateOptions{FieldManager: "maker"})
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range statusOf(t, w) {
		if got := out.Object["status"].(map[string]any)[name]; fmt.Sprint(got) == fmt.Sprint(value) {
			t.Errorf("status of a new object: %v", out.Object["status"])
		}
	}
	if got := out.GetGeneration(); w.reports != (got == 1) {
		t.Errorf("generation of a new object: %d", got)
	}
}

func updated(t *testing.T, api dynamic.ResourceInterface, w workload) {
	t.Helper()
	out, err := api.Patch(t.Context(), "w", types.MergePatchType, patch(t, `metadata: {labels: {a: b}}`), metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	before := out.GetGeneration()
	if w.reports && before != 1 {
		t.Errorf("generation %d after a new label", before)
	}
	if out, err = api.Patch(t.Context(), "w", types.MergePatchType, patch(t, w.change), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := out.GetGeneration(); w.reports != (got == before+1) {
		t.Errorf("generation %d after %s", got, w.change)
	}
	if w.frozen == "" {
		return
	}
	_, err = api.Patch(t.Context(), "w", types.MergePatchType, patch(t, w.frozen), metav1.PatchOptions{})
	if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), w.refusal) {
		t.Errorf("%s: %v, want %q", w.frozen, err, w.refusal)
	}
}

func reported(t *testing.T, api dynamic.ResourceInterface, w workload) {
	t.Helper()
	before, err := api.Get(t.Context(), "w", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	text := "status: " + w.status + "\n" + w.change
	out, err := api.Patch(t.Context(), "w", types.MergePatchType, patch(t, text), metav1.PatchOptions{FieldManager: "controller"}, "status")
	if err != nil {
		t.Fatal(err)
	}
	want := statusOf(t, w)
	for name, value := range want {
		if got := out.Object["status"].(map[string]any)[name]; fmt.Sprint(got) != fmt.Sprint(value) {
			t.Errorf("status %v, want %s", out.Object["status"], w.status)
		}
	}
	if out.GetGeneration() != before.GetGeneration() {
		t.Errorf("generation %d after a change of the status, want %d", out.GetGeneration(), before.GetGeneration())
	}
	i := slices.IndexFunc(out.GetManagedFields(), func(m metav1.ManagedFieldsEntry) bool { return m.Manager == "controller" })
	if i < 0 || out.GetManagedFields()[i].Subresource != "status" || strings.Contains(out.GetManagedFields()[i].FieldsV1.String(), "f:spec") {
		t.Errorf("managed fields %v", out.GetManagedFields())
	}
	// An update of the rest keeps the status.
	out, err = api.Patch(t.Context(), "w", types.MergePatchType, patch(t, `{metadata: {labels: {c: d}}, status: null}`), metav1.PatchOptions{})
	if err != nil || len(out.Object["status"].(map[string]any)) < len(want) {
		t.Errorf("%v; status %v, want %s", err, out.Object["status"], w.status)
	}
}

func resized(t *testing.T, api dynamic.ResourceInterface, w workload) {
	t.Helper()
	ctx := t.Context()
	before, err := api.Get(ctx, "w", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	scale, err := api.Get(ctx, "w", metav1.GetOptions{}, "scale")
	if err != nil {
		t.Fatal(err)
	}
	selector, _, _ := unstructured.NestedString(scale.Object, "status", "selector")
	current, _, _ := unstructured.NestedInt64(scale.Object, "status", "replicas")
	if scale.GetAPIVersion() != "autoscaling/v1" || scale.GetKind() != "Scale" || selector != "app=w" || current != 3 {
		t.Errorf("scale %v", scale.Object)
	}
	if err := unstructured.SetNestedField(scale.Object, int64(4), "spec", "replicas"); err != nil {
		t.Fatal(err)
	}
	if _, err = api.Update(ctx, scale, metav1.UpdateOptions{FieldManager: "putter"}, "scale"); err != nil {
		t.Fatal(err)
	}
	if _, err := api.Patch(ctx, "w", types.MergePatchType, patch(t, `spec: {replicas: -1}`), metav1.PatchOptions{}, "scale"); !apierrors.IsInvalid(err) ||
		!strings.Contains(err.Error(), `spec.replicas: Invalid value: -1: must be greater than or equal to 0`) {
		t.Errorf("minus one replica: %v", err)
	}
	if _, err := api.Patch(ctx, "w", types.MergePatchType, patch(t, `{metadata: {uid: other}, spec: {replicas: 9}}`), metav1.PatchOptions{}, "scale"); !apierrors.IsConflict(err) {
		t.Errorf("scale of another object: %v", err)
	}
	if _, err := api.Patch(ctx, "w", types.MergePatchType, patch(t, `spec: {replicas: 6}`), metav1.PatchOptions{FieldManager: "scaler"}, "scale"); err != nil {
		t.Fatal(err)
	}
	_, err = api.Patch(ctx, "absent", types.MergePatchType, patch(t, `spec: {replicas: 6}`), metav1.PatchOptions{}, "scale")
	if !apierrors.IsNotFound(err) {
		t.Errorf("scale of nothing: %v", err)
	}
	after, err := api.Get(ctx, "w", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if n, _, _ := unstructured.NestedInt64(after.Object, "spec", "replicas"); n != 6 || after.GetGeneration() != before.GetGeneration()+2 {
		t.Errorf("replicas %d, generation %d → %d", n, before.GetGeneration(), after.GetGeneration())
	}
	var owners []string
	for _, m := range after.GetManagedFields() {
		if strings.Contains(m.FieldsV1.String(), `"f:replicas":{}`) && m.Subresource == "scale" {
			owners = append(owners, m.Manager+" "+m.APIVersion)
		}
	}
	if want := []string{"scaler " + w.resource.GroupVersion().String()}; !slices.Equal(owners, want) {
		t.Errorf("spec.replicas belongs to %q, want %q", owners, want)
	}
}

func TestTemplatesOfDaemonSetsAreCounted(t *testing.T) {
	s := start(t)
	client, err := dynamic.NewForConfig(s.ClientConfig("admin", "system:masters"))
	if err != nil {
		t.Fatal(err)
	}
	api := client.Resource(apps("daemonsets")).Namespace("default")
	i := slices.IndexFunc(workloads, func(w workload) bool { return w.kind == "DaemonSet" })
	created(t, api, workloads[i])
	for _, step := range []struct {
		change, want string
		sub          []string
	}{
		{`spec: {minReadySeconds: 5}`, "1", nil},
		{`spec: {template: {spec: {priorityClassName: x}}}`, "2", nil},
		{`metadata: {annotations: {deprecated.daemonset.template.generation: "9"}}`, "2", nil},
		{`metadata: {annotations: {deprecated.daemonset.template.generation: null}}`, "2", nil},
		{`{metadata: {annotations: {deprecated.daemonset.template.generation: "9"}}, status: {numberReady: 1}}`, "2", []string{"status"}},
	} {
		out, err := api.Patch(t.Context(), "w", types.MergePatchType, patch(t, step.change), metav1.PatchOptions{}, step.sub...)
		if err != nil {
			t.Fatal(err)
		}
		if got := out.GetAnnotations()["deprecated.daemonset.template.generation"]; got != step.want {
			t.Errorf("template generation %q after %s, want %q", got, step.change, step.want)
		}
	}
}
