package apiserver

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"

	"wherry.dev/internal/trace"
)

func TestInvalidPodNamesItsFields(t *testing.T) {
	s := start(t)
	pod := testPod("Bad_Name")
	pod.Spec.Containers[0].Image = ""
	_, err := admin(t, s).CoreV1().Pods("default").Create(t.Context(), pod, metav1.CreateOptions{})
	if !apierrors.IsInvalid(err) {
		t.Fatalf("create: %v", err)
	}
	var fields []string
	for _, c := range err.(apierrors.APIStatus).Status().Details.Causes {
		fields = append(fields, c.Field)
	}
	if want := []string{"metadata.name", "spec.containers[0].image"}; !slices.Equal(fields, want) {
		t.Errorf("fields %q, want %q", fields, want)
	}
}

func TestServerSideApplyKnowsWhoOwnsWhat(t *testing.T) {
	s := start(t)
	ctx, api := t.Context(), admin(t, s).CoreV1().ConfigMaps("default")
	apply := func(manager string, data map[string]string, force bool) error {
		_, err := api.Apply(ctx, applycorev1.ConfigMap("m", "default").WithData(data), metav1.ApplyOptions{FieldManager: manager, Force: force})
		return err
	}
	if err := apply("alice", map[string]string{"a": "1", "b": "1"}, false); err != nil {
		t.Fatal(err)
	}
	if err := apply("bob", map[string]string{"a": "2"}, false); !apierrors.IsConflict(err) || !strings.Contains(err.Error(), `conflict with "alice": .data.a`) {
		t.Errorf("bob takes alice's field: %v", err)
	}
	if err := apply("bob", map[string]string{"a": "2"}, true); err != nil {
		t.Fatal(err)
	}
	if err := apply("alice", map[string]string{"b": "1"}, false); err != nil {
		t.Fatal(err)
	}
	if err := apply("alice", map[string]string{}, false); err != nil {
		t.Fatal(err)
	}
	m, err := api.Get(ctx, "m", metav1.GetOptions{})
	if err != nil || len(m.Data) != 1 || m.Data["a"] != "2" {
		t.Errorf("what is left: %v, %v; want a=2, which is bob's", m.Data, err)
	}
}

func TestStatusHasManagersOfItsOwn(t *testing.T) {
	s := start(t)
	ctx, api := t.Context(), admin(t, s).CoreV1().Pods("default")
	pod := testPod("p")
	pod.Status.Phase = corev1.PodRunning
	pod, err := api.Create(ctx, pod, metav1.CreateOptions{FieldManager: "maker"})
	if err != nil {
		t.Fatal(err)
	}
	if pod.Status.Phase != corev1.PodPending {
		t.Errorf("phase of a new pod: %s", pod.Status.Phase)
	}
	pod.Status.Phase, pod.Labels = corev1.PodRunning, map[string]string{"a": "b"}
	if pod, err = api.UpdateStatus(ctx, pod, metav1.UpdateOptions{FieldManager: "kubelet"}); err != nil {
		t.Fatal(err)
	}
	if pod.Status.Phase != corev1.PodRunning || pod.Spec.Containers[0].Image != "busybox" {
		t.Errorf("after a status update: phase %s, image %s", pod.Status.Phase, pod.Spec.Containers[0].Image)
	}
	i := slices.IndexFunc(pod.ManagedFields, func(m metav1.ManagedFieldsEntry) bool { return m.Manager == "kubelet" })
	if i < 0 || pod.ManagedFields[i].Subresource != "status" {
		t.Errorf("managed fields: %+v", pod.ManagedFields)
	}
}

func TestListsByPagesAndFields(t *testing.T) {
	s := start(t)
	ctx, api := t.Context(), admin(t, s).CoreV1().Pods("default")
	for i := range 7 {
		pod := testPod(fmt.Sprintf("p%d", i))
		if i%2 == 0 {
			pod.Spec.NodeName = "n1"
		}
		if _, err := api.Create(ctx, pod, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	var names []string
	opts := metav1.ListOptions{Limit: 3}
	for pages := 1; ; pages++ {
		list, err := api.List(ctx, opts)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range list.Items {
			names = append(names, p.Name)
		}
		if opts.Continue = list.Continue; opts.Continue == "" {
			if pages != 3 {
				t.Errorf("%d pages of 3", pages)
			}
			break
		}
	}
	if len(names) != 7 {
		t.Errorf("pods by pages: %q", names)
	}
	for selector, want := range map[string]int{
		"spec.nodeName=n1": 4, "spec.nodeName=": 3, "status.phase=Pending": 7, "status.phase!=Pending": 0,
		"metadata.name=p3": 1, "spec.restartPolicy=Always,spec.nodeName=n1": 4,
	} {
		list, err := api.List(ctx, metav1.ListOptions{FieldSelector: selector})
		if err != nil || len(list.Items) != want {
			t.Errorf("%s: %d pods, %v; want %d", selector, len(list.Items), err, want)
		}
	}
	if _, err := api.List(ctx, metav1.ListOptions{FieldSelector: "spec.color=red"}); !apierrors.IsBadRequest(err) {
		t.Errorf("unknown field: %v", err)
	}
}

func TestWatchStartsWithWhatIsThere(t *testing.T) {
	s := start(t)
	ctx, api := t.Context(), admin(t, s).CoreV1().ConfigMaps("default")
	if _, err := api.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "m"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w, err := api.Watch(ctx, metav1.ListOptions{
		SendInitialEvents: new(true), ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan, AllowWatchBookmarks: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	if e := <-w.ResultChan(); e.Type != watch.Added {
		t.Errorf("first event: %v", e)
	}
	e := <-w.ResultChan()
	if m, ok := e.Object.(*corev1.ConfigMap); !ok || e.Type != watch.Bookmark || m.Annotations[metav1.InitialEventsAnnotationKey] != "true" {
		t.Errorf("second event: %v", e)
	}
}

func TestEviction(t *testing.T) {
	s := start(t)
	ctx, api := t.Context(), admin(t, s).CoreV1().Pods("default")
	pod := testPod("p")
	pod.Spec.NodeName = "n1"
	if _, err := api.Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := api.EvictV1(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: "p"}}); err != nil {
		t.Fatal(err)
	}
	pod, err := api.Get(ctx, "p", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.DisruptionTarget })
	if pod.DeletionTimestamp == nil || i < 0 || pod.Status.Conditions[i].Reason != "EvictionByEvictionAPI" {
		t.Errorf("evicted pod: deletion %v, conditions %+v", pod.DeletionTimestamp, pod.Status.Conditions)
	}
	if err := api.EvictV1(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: "absent"}}); !apierrors.IsNotFound(err) {
		t.Errorf("eviction of nobody: %v", err)
	}
}

func TestEphemeralContainersAndResize(t *testing.T) {
	s := start(t)
	ctx, api := t.Context(), admin(t, s).CoreV1().Pods("default")
	pod := testPod("p")
	pod.Spec.Containers[0].Resources.Requests = corev1.ResourceList{"cpu": resource.MustParse("100m")}
	pod, err := api.Create(ctx, pod, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pod.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "d", Image: "busybox"}}}
	pod.Spec.Containers[0].Image = "ignored"
	if pod, err = api.UpdateEphemeralContainers(ctx, "p", pod, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if len(pod.Spec.EphemeralContainers) != 1 || pod.Spec.Containers[0].Image != "busybox" || pod.Generation != 2 {
		t.Errorf("pod: generation %d, %+v", pod.Generation, pod.Spec)
	}
	pod.Spec.Containers[0].Resources.Requests["cpu"] = resource.MustParse("200m")
	if pod, err = api.UpdateResize(ctx, "p", pod, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if cpu := pod.Spec.Containers[0].Resources.Requests.Cpu().String(); cpu != "200m" || pod.Generation != 3 {
		t.Errorf("after a resize: cpu %s, generation %d", cpu, pod.Generation)
	}
	pod.Spec.Containers[0].Resources.Requests["cpu"] = resource.MustParse("300m")
	if _, err := api.Update(ctx, pod, metav1.UpdateOptions{}); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "pod updates may not change fields other than") {
		t.Errorf("resize by way of the pod itself: %v", err)
	}
	pod.Spec.Containers[0].Resources.Limits = pod.Spec.Containers[0].Resources.Requests.DeepCopy()
	pod.Spec.Containers[0].Resources.Limits["memory"] = resource.MustParse("1Mi")
	pod.Spec.Containers[0].Resources.Requests["memory"] = resource.MustParse("1Mi")
	if _, err := api.UpdateResize(ctx, "p", pod, metav1.UpdateOptions{}); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "Pod QOS Class may not change as a result of resizing") {
		t.Errorf("resize into another class: %v", err)
	}
}

func TestResizeThatTheNodeCannotGrant(t *testing.T) {
	s := start(t)
	ctx, client := t.Context(), admin(t, s)
	node, err := client.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	node.Status.Allocatable = corev1.ResourceList{"cpu": resource.MustParse("1"), "memory": resource.MustParse("1Gi")}
	if _, err := client.CoreV1().Nodes().UpdateStatus(ctx, node, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	pod := testPod("p")
	pod.Spec.NodeName = "n"
	pod.Spec.Containers[0].Resources.Requests = corev1.ResourceList{"cpu": resource.MustParse("100m")}
	if pod, err = client.CoreV1().Pods("default").Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	pod.Spec.Containers[0].Resources.Requests["cpu"] = resource.MustParse("1100m")
	_, err = client.CoreV1().Pods("default").UpdateResize(ctx, "p", pod, metav1.UpdateOptions{})
	refused, ok := errors.AsType[*apierrors.StatusError](err)
	if !ok || refused.ErrStatus.Reason != metav1.StatusReasonForbidden || len(refused.ErrStatus.Details.Causes) != 1 ||
		refused.ErrStatus.Details.Causes[0].Type != "NodeCapacity" {
		t.Errorf("%v", err)
	}
	pod.Spec.Containers[0].Resources.Requests["cpu"] = resource.MustParse("1")
	if _, err := client.CoreV1().Pods("default").UpdateResize(ctx, "p", pod, metav1.UpdateOptions{}); err != nil {
		t.Error(err)
	}
}

func TestNobodyGrantsMoreThanTheyHave(t *testing.T) {
	s := start(t)
	ctx := t.Context()
	root := admin(t, s).RbacV1()
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "role-writer"}, Rules: []rbacv1.PolicyRule{
		{Verbs: []string{"create"}, APIGroups: []string{rbacv1.GroupName}, Resources: []string{"roles", "rolebindings", "clusterroles"}},
		{Verbs: []string{"get", "list"}, APIGroups: []string{""}, Resources: []string{"pods"}},
		{Verbs: []string{"bind"}, APIGroups: []string{rbacv1.GroupName}, Resources: []string{"clusterroles"}, ResourceNames: []string{"edit"}},
	}}
	if _, err := root.ClusterRoles().Create(ctx, role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	user := rbacv1.Subject{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: "writer"}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "role-writer"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "role-writer"}, Subjects: []rbacv1.Subject{user},
	}
	if _, err := root.ClusterRoleBindings().Create(ctx, binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	untilAllowed(t, s, "writer", "get", "pods")
	api := clientFor(t, s.ClientConfig("writer")).RbacV1()
	write := func(name string, verbs ...string) error {
		_, err := api.Roles("default").Create(ctx, &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: []rbacv1.PolicyRule{
			{Verbs: verbs, APIGroups: []string{""}, Resources: []string{"pods"}},
		}}, metav1.CreateOptions{})
		return err
	}
	if err := write("less", "get"); err != nil {
		t.Errorf("a role of what the user has: %v", err)
	}
	want := `user "writer" (groups=["system:authenticated"]) is attempting to grant RBAC permissions not currently held:` + "\n" + `{APIGroups:[""], Resources:["pods"], Verbs:["create" "delete"]}`
	if err := write("more", "get", "create", "delete"); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), want) {
		t.Errorf("a role of more: %v", err)
	}
	bind := func(name string) error {
		_, err := api.RoleBindings("default").Create(ctx, &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: name}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name}, Subjects: []rbacv1.Subject{user},
		}, metav1.CreateOptions{})
		return err
	}
	if err := bind("cluster-admin"); !apierrors.IsForbidden(err) {
		t.Errorf("binding of cluster-admin: %v", err)
	}
	if err := bind("edit"); err != nil {
		t.Errorf("binding of what may be bound: %v", err)
	}
	if err := bind("no-such-role"); !apierrors.IsNotFound(err) {
		t.Errorf("binding of nothing: %v", err)
	}
	_, err := api.ClusterRoles().Create(ctx, &rbacv1.ClusterRole{
		ObjectMeta:      metav1.ObjectMeta{Name: "all"},
		AggregationRule: &rbacv1.AggregationRule{ClusterRoleSelectors: []metav1.LabelSelector{{MatchLabels: map[string]string{"a": "b"}}}},
	}, metav1.CreateOptions{})
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "must have cluster-admin privileges to use the aggregationRule") {
		t.Errorf("an aggregated role: %v", err)
	}
}

func TestStepsOfAPodAreTraced(t *testing.T) {
	store := trace.NewStore()
	shutdown := store.Install()
	s := start(t)
	ctx, api := t.Context(), admin(t, s).CoreV1().Pods("default")
	pod, err := api.Create(ctx, testPod("p"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := api.Bind(ctx, &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Target: corev1.ObjectReference{Name: "n1"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := api.Patch(ctx, "p", types.MergePatchType, []byte(`{"status":{"phase":"Running"}}`), metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
	for _, grace := range []int64{5, 0} {
		if err := api.Delete(ctx, "p", metav1.DeleteOptions{GracePeriodSeconds: &grace}); err != nil {
			t.Fatal(err)
		}
	}
	if err := shutdown(ctx); err != nil {
		t.Fatal(err)
	}
	tr, ok := store.Pod(string(pod.UID))
	if !ok {
		t.Fatal("no trace of the pod")
	}
	var names []string
	for _, span := range tr.Spans {
		names = append(names, span.Name)
		if span.Duration() <= 0 || span.Duration() > time.Minute {
			t.Errorf("%s took %s", span.Name, span.Duration())
		}
	}
	want := []string{"apiserver: create pod", "apiserver: bind pod", "apiserver: update pod status", "apiserver: mark pod for deletion", "apiserver: delete pod"}
	if !slices.Equal(names, want) {
		t.Errorf("spans %q, want %q", names, want)
	}
}

func TestOpenAPIDescribesPods(t *testing.T) {
	s := start(t)
	get := func(path string) map[string]any {
		t.Helper()
		raw, err := admin(t, s).Discovery().RESTClient().Get().AbsPath(path).SetHeader("Accept", "application/json").DoRaw(t.Context())
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		var out map[string]any
		if err := json.Unmarshal(raw, &out); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		return out
	}
	v2 := get("/openapi/v2")["definitions"].(map[string]any)
	v3 := get("/openapi/v3/api/v1")["components"].(map[string]any)["schemas"].(map[string]any)
	for name, schemas := range map[string]map[string]any{"v2": v2, "v3": v3} {
		pod, ok := schemas["io.k8s.api.core.v1.Pod"].(map[string]any)
		if !ok || pod["x-kubernetes-group-version-kind"] == nil {
			t.Errorf("%s has no Pod, or it has no kind: %v", name, pod)
		}
	}
	groups := get("/openapi/v3")["paths"].(map[string]any)
	if groups["apis/rbac.authorization.k8s.io/v1"] == nil {
		t.Errorf("groups of v3: %v", groups)
	}
	for gv := range groups { // each can be built, and is
		if doc := get("/openapi/v3/" + gv); doc["paths"] == nil {
			t.Errorf("%s: %v", gv, doc)
		}
	}
}
