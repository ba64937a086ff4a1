package apiserver

import (
	"errors"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// TestPatchesThatDoNotFit: each is refused as what it is. The first made the library panic, and the connection ended;
// the second was taken, as if it had named the service's own UID.
func TestPatchesThatDoNotFit(t *testing.T) {
	s := start(t)
	ctx, client := t.Context(), kubernetes.NewForConfigOrDie(s.ClientConfig("admin", "system:masters"))
	services := client.CoreV1().Services("default")
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "s"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}
	if _, err := services.Create(ctx, svc, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err := services.Patch(ctx, "s", types.StrategicMergePatchType, []byte(`{"spec":{"$setElementOrder/ipFamilies":[{"name":"none"}]}}`), metav1.PatchOptions{})
	if !apierrors.IsBadRequest(err) || !strings.Contains(err.Error(), "the strategic merge patch does not fit the object") {
		t.Errorf("an order of other things: %v", err)
	}
	_, err = services.Patch(ctx, "s", types.StrategicMergePatchType, []byte(`{"spec":{"$setElementOrder/ipFamilies":[{"name":"none"}]}}`),
		metav1.PatchOptions{DryRun: []string{"All"}})
	if !apierrors.IsBadRequest(err) {
		t.Errorf("in a dry run: %v", err)
	}
	defineWidgets(t, s.ClientConfig("admin", "system:masters"), func(*apiextensionsv1.CustomResourceDefinition) {})
	crds := clientset.NewForConfigOrDie(s.ClientConfig("admin", "system:masters")).ApiextensionsV1().CustomResourceDefinitions()
	_, err = crds.Patch(ctx, "widgets.example.com", types.StrategicMergePatchType, []byte(`{"spec":{"$setElementOrder/versions":[{"name":"none"}]}}`),
		metav1.PatchOptions{DryRun: []string{"All"}})
	refused(t, err, "the strategic merge patch does not fit the object")
	_, err = services.Patch(ctx, "s", types.MergePatchType, []byte(`{"metadata":{"uid":"other"}}`), metav1.PatchOptions{})
	refused(t, err, `Service "s" is invalid: metadata.uid: Invalid value: "other": field is immutable`)
}

// TestOnlyTheReplicasOfAScaleCount: what else a client sends in a Scale is no concern of its object, not even labels
// that nothing may have.
func TestOnlyTheReplicasOfAScaleCount(t *testing.T) {
	s := start(t)
	ctx, client := t.Context(), kubernetes.NewForConfigOrDie(s.ClientConfig("admin", "system:masters"))
	labels := map[string]string{"a": "b"}
	sets := client.AppsV1().ReplicaSets("default")
	_, err := sets.Create(ctx, &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: "r"}, Spec: appsv1.ReplicaSetSpec{
		Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}},
	}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	out, err := sets.Patch(ctx, "r", types.MergePatchType, []byte(`{"metadata":{"labels":{"bad key":"b"}},"spec":{"replicas":3}}`), metav1.PatchOptions{}, "scale")
	if err != nil || len(out.Labels) > 0 {
		t.Errorf("%v, %v", out, err)
	}
	set, err := sets.Get(ctx, "r", metav1.GetOptions{})
	if err != nil || *set.Spec.Replicas != 3 || len(set.Labels) > 0 {
		t.Errorf("%v, %v", set, err)
	}
	_, err = sets.Patch(ctx, "r", types.MergePatchType, []byte(`{"spec":{"replicas":-1}}`), metav1.PatchOptions{}, "scale")
	refused(t, err, "spec.replicas: Invalid value: -1: must be greater than or equal to 0")
}

// TestFieldSelectorsThatNobodyHas: kinds without selectable fields of their own name those that all have.
func TestFieldSelectorsThatNobodyHas(t *testing.T) {
	s := start(t)
	ctx, client := t.Context(), kubernetes.NewForConfigOrDie(s.ClientConfig("admin", "system:masters"))
	opts := metav1.ListOptions{FieldSelector: "spec.color=red"}
	_, err := client.CoreV1().ConfigMaps("default").List(ctx, opts)
	refused(t, err, `"spec.color" is not a known field selector: only "metadata.name", "metadata.namespace"`)
	_, err = client.CoreV1().Pods("default").List(ctx, opts)
	refused(t, err, "field label not supported: spec.color")
}

// TestDeletionsAreAnsweredAsUpstreamDoes: some kinds with the object, the others with a status. Events have no
// dependents that could be waited for, and namespaces may have some.
func TestDeletionsAreAnsweredAsUpstreamDoes(t *testing.T) {
	s := start(t)
	ctx, client := t.Context(), kubernetes.NewForConfigOrDie(s.ClientConfig("admin", "system:masters"))
	core := client.CoreV1()
	_, err := core.ServiceAccounts("default").Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{})
	_, err2 := core.Events("default").Create(ctx, &corev1.Event{ObjectMeta: metav1.ObjectMeta{Name: "a"}, InvolvedObject: corev1.ObjectReference{Namespace: "default"}}, metav1.CreateOptions{})
	_, err3 := core.Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{})
	if err := errors.Join(err, err2, err3, makeMap(t, client, "a", 1)); err != nil {
		t.Fatal(err)
	}
	get := func(req *rest.Request) string {
		t.Helper()
		out, err := req.SetHeader("Accept", "application/json").DoRaw(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	if list := get(core.RESTClient().Get().Namespace("default").Resource("events")); !strings.Contains(list, `"items":[{"metadata"`) {
		t.Errorf("a list with the kind of each object: %s", list)
	}
	for resource, want := range map[string]string{"serviceaccounts": `{"kind":"ServiceAccount"`, "configmaps": `{"kind":"Status"`, "events": `{"kind":"Status"`} {
		if out := get(core.RESTClient().Delete().Namespace("default").Resource(resource).Name("a").Param("propagationPolicy", "Foreground")); !strings.HasPrefix(out, want) {
			t.Errorf("%s: %s", resource, out)
		}
	}
	for query, want := range map[string]string{
		"propagationPolicy=Foreground": `"finalizers":["foregroundDeletion"]`, "propagationPolicy=Orphan": `"finalizers":["orphan"]`,
		"orphanDependents=false": `"finalizers":["foregroundDeletion"]`, "": `"finalizers":["kubernetes"]`,
	} {
		out := get(core.RESTClient().Delete().RequestURI("/api/v1/namespaces/a?dryRun=All&" + query))
		if !strings.Contains(out, want) || query == "" && strings.Count(out, "finalizers") > 1 {
			t.Errorf("%s: %s", query, out)
		}
	}
}

// TestStatusOfFlowSchemasIsAllThatItsEndpointChanges, not even the name's beginning.
func TestStatusOfFlowSchemasIsAllThatItsEndpointChanges(t *testing.T) {
	s := start(t)
	ctx, flows := t.Context(), kubernetes.NewForConfigOrDie(s.ClientConfig("admin", "system:masters")).FlowcontrolV1().FlowSchemas()
	out, err := flows.Patch(ctx, "exempt", types.MergePatchType, []byte(`{"metadata":{"uid":"x","generateName":"y","labels":{"a":"b"}}}`), metav1.PatchOptions{}, "status")
	if err != nil || out.UID == "x" || out.GenerateName != "" || out.Labels["a"] != "" {
		t.Errorf("%v, %v", out, err)
	}
}

// TestMetadataOfASliceAreNoNewGeneration: they were one if they were applied.
func TestMetadataOfASliceAreNoNewGeneration(t *testing.T) {
	s := start(t)
	ctx, slices := t.Context(), kubernetes.NewForConfigOrDie(s.ClientConfig("admin", "system:masters")).DiscoveryV1().EndpointSlices("default")
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Name: "s"}, AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"192.0.2.1"}}},
	}
	if _, err := slices.Create(ctx, slice, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for metadata, want := range map[string]int64{`"annotations":{"a":"b"}`: 1, `"labels":{"a":"b"}`: 2} {
		body := []byte(`{"apiVersion":"discovery.k8s.io/v1","kind":"EndpointSlice","metadata":{"name":"s",` + metadata + `}}`)
		out, err := slices.Patch(ctx, "s", types.ApplyPatchType, body, metav1.PatchOptions{FieldManager: "m", DryRun: []string{"All"}})
		if err != nil || out.Generation != want {
			t.Errorf("%s: generation %d, %v", metadata, out.Generation, err)
		}
	}
}

// TestClassesOfTheSystemStay: without them the pods of the system could not be made again.
func TestClassesOfTheSystemStay(t *testing.T) {
	s := start(t)
	ctx, client := t.Context(), kubernetes.NewForConfigOrDie(s.ClientConfig("admin", "system:masters"))
	classes := client.SchedulingV1().PriorityClasses()
	refused(t, classes.Delete(ctx, "system-node-critical", metav1.DeleteOptions{}),
		`priorityclasses.scheduling.k8s.io "system-node-critical" is forbidden: this is a system priority class and cannot be deleted`)
	if _, err := classes.Create(ctx, &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "mine"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := classes.Delete(ctx, "mine", metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
}

// TestOlderClientsEvict: in v1beta1, which pods/eviction takes as well.
func TestOlderClientsEvict(t *testing.T) {
	s := start(t)
	ctx, c := t.Context(), admin(t, s)
	mustPod(t, c, testPod("p"))
	err := c.CoreV1().RESTClient().Post().Namespace("default").Resource("pods").Name("p").SubResource("eviction").SetHeader("Content-Type", "application/json").
		Body([]byte(`{"apiVersion":"policy/v1beta1","kind":"Eviction","metadata":{"name":"p"}}`)).Do(ctx).Error()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.CoreV1().Pods("default").Get(ctx, "p", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("still there: %v", err)
	}
}
