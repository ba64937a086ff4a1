package apiserver

import (
	"context"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"
	metricsclient "k8s.io/metrics/pkg/client/clientset/versioned"
)

// exposeUsage is the fake kubelet's /metrics/resource: its node uses two cores and a gibibyte, each of
// its pods half a core and a mebibyte in the container c, and a quarter in d.
func exposeUsage(w io.Writer) {
	now := time.Now()
	used := float64(now.UnixMilli()%1e9) / 1e3 // of one core; the test may see it begin anew, once in eleven days
	fmt.Fprintf(w, "node_cpu_usage_seconds_total %f %d\nnode_memory_working_set_bytes %d\n", 2*used, now.UnixMilli(), 1<<30)
	for _, pod := range []string{"p", "q", "pending"} {
		for container, share := range map[string]float64{"c": 0.5, "d": 0.25} {
			labels := fmt.Sprintf("{container=%q,namespace=%q,pod=%q}", container, "default", pod)
			fmt.Fprintf(w, "container_cpu_usage_seconds_total%s %f %d\n", labels, share*used, now.UnixMilli())
			fmt.Fprintf(w, "container_memory_working_set_bytes%s %d %d\n", labels, 1<<20, now.UnixMilli())
		}
	}
}

func metricsFor(t *testing.T, cfg *rest.Config) metricsclient.Interface {
	t.Helper()
	c, err := metricsclient.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// runOn says that a pod of the node n1 runs.
func runOn(t *testing.T, s *Server, name string, labels map[string]string) {
	t.Helper()
	api := admin(t, s).CoreV1().Pods("default")
	pod, err := api.Get(t.Context(), name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		pod = testPod(name)
		pod.Spec.NodeName, pod.Labels = "n1", labels
		pod, err = api.Create(t.Context(), pod, metav1.CreateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	began := metav1.NewTime(time.Now().Add(-time.Minute))
	pod.Status.Phase, pod.Status.StartTime = corev1.PodRunning, &began
	if _, err := api.UpdateStatus(t.Context(), pod, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func TestMetrics(t *testing.T) {
	s := start(t)
	withKubelet(t, s)
	runOn(t, s, "p", nil)
	runOn(t, s, "q", map[string]string{"app": "q"})
	pending := testPod("pending")
	pending.Spec.NodeName = "n1"
	core := admin(t, s).CoreV1()
	if _, err := core.Pods("default").Create(t.Context(), pending, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := core.Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n2"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	inProcess := s.ClientConfig("admin", "system:masters")
	for name, cfg := range map[string]*rest.Config{"in-process": inProcess, "tls": overTCP(inProcess)} {
		t.Run(name, func(t *testing.T) {
			api := metricsFor(t, cfg).MetricsV1beta1()
			nodeMetrics(t, api.NodeMetricses().List, api.NodeMetricses().Get)
			podsOfList := func(opts metav1.ListOptions) string {
				list, err := api.PodMetricses("").List(t.Context(), opts)
				if err != nil {
					t.Fatal(err)
				}
				var out []string
				for _, m := range list.Items {
					for _, c := range m.Containers {
						out = append(out, fmt.Sprintf("%s/%s %s %s", m.Name, c.Name, roughly(c.Usage), c.Usage.Memory()))
					}
				}
				return strings.Join(out, ", ")
			}
			q := "q/c 500m 1Mi, q/d 250m 1Mi"
			for selector, want := range map[string]string{"": "p/c 500m 1Mi, p/d 250m 1Mi, " + q, "app=q": q, "app=r": ""} {
				if got := podsOfList(metav1.ListOptions{LabelSelector: selector}); got != want {
					t.Errorf("pods with %q: %s, want %s", selector, got, want)
				}
			}
			if got := podsOfList(metav1.ListOptions{FieldSelector: "metadata.name=q"}); got != q {
				t.Errorf("by a field: %s", got)
			}
			if _, err := api.PodMetricses("").List(t.Context(), metav1.ListOptions{FieldSelector: "spec.nodeName=n1"}); !apierrors.IsBadRequest(err) {
				t.Errorf("by a field that they do not have: %v", err)
			}
			m, err := api.PodMetricses("default").Get(t.Context(), "q", metav1.GetOptions{})
			if err != nil || m.Namespace != "default" || m.Labels["app"] != "q" || len(m.Containers) != 2 {
				t.Errorf("q: %+v, %v", m, err)
			}
			_, err = api.PodMetricses("default").Get(t.Context(), "pending", metav1.GetOptions{})
			if !apierrors.IsNotFound(err) || !strings.Contains(err.Error(), `podmetrics.metrics.k8s.io "default/pending" not found`) {
				t.Errorf("a pod that does not run: %v", err)
			}
			_, err = api.PodMetricses("default").Get(t.Context(), "absent", metav1.GetOptions{})
			if !apierrors.IsNotFound(err) || !strings.Contains(err.Error(), `pods "absent" not found`) {
				t.Errorf("no pod: %v", err)
			}
		})
	}
}

// roughly returns CPU in tenths of what is measured between two answers of the fake kubelet, whose
// clock and counters agree to a millisecond.
func roughly(usage corev1.ResourceList) string {
	cpu := usage[corev1.ResourceCPU]
	return fmt.Sprintf("%dm", (cpu.MilliValue()+5)/10*10)
}

func nodeMetrics(t *testing.T,
	list func(ctx context.Context, opts metav1.ListOptions) (*metricsv1beta1.NodeMetricsList, error),
	get func(ctx context.Context, name string, opts metav1.GetOptions) (*metricsv1beta1.NodeMetrics, error),
) {
	t.Helper()
	all, err := list(t.Context(), metav1.ListOptions{})
	if err != nil || len(all.Items) != 1 {
		t.Fatalf("%+v, %v", all, err)
	}
	m := all.Items[0]
	if m.Name != "n1" || roughly(m.Usage) != "2000m" || m.Usage.Memory().String() != "1Gi" || m.Window.Duration < 900*time.Millisecond || time.Since(m.Timestamp.Time) > time.Minute {
		t.Errorf("%+v", m)
	}
	if m, err := get(t.Context(), "n1", metav1.GetOptions{}); err != nil || m.Name != "n1" {
		t.Errorf("%+v, %v", m, err)
	}
	_, err = get(t.Context(), "n2", metav1.GetOptions{})
	if !apierrors.IsNotFound(err) || !strings.Contains(err.Error(), `nodemetrics.metrics.k8s.io "n2" not found`) {
		t.Errorf("a node without an address: %v", err)
	}
	_, err = get(t.Context(), "n3", metav1.GetOptions{})
	if !apierrors.IsNotFound(err) || !strings.Contains(err.Error(), `nodes "n3" not found`) {
		t.Errorf("no node: %v", err)
	}
}

func TestMetricsWithKubectl(t *testing.T) {
	s := start(t)
	withKubelet(t, s)
	runOn(t, s, "p", nil)
	k := newKubectl(t, s)
	k.want(`(?s)^NAME +CPU\(cores\) +MEMORY\(bytes\)\s+p +7\d\dm +2Mi\s*$`, "", "top", "pod")
	k.want(`(?s)^POD +NAME +CPU\(cores\) +MEMORY\(bytes\)\s+p +c +\d+m +1Mi\s+p +d +\d+m +1Mi\s*$`, "", "top", "pod", "--containers")
	k.want(`(?s)^NAME +CPU +MEMORY +WINDOW\s+p +7\d+[mun] +2Mi +\d.*s\s*$`, "", "get", "podmetrics")
	k.want(`(?s)^NAME +CPU +MEMORY +WINDOW\s+n1 +\d+[mun]? +1Gi +\d.*s\s*$`, "", "get", "nodes.metrics.k8s.io")
	k.want(`(?s)^NAME +STATUS`, "", "get", "nodes")
	k.want(`(?s)KIND: +PodMetrics.*FIELD: window <Duration>|window\s+<`, "", "explain", "podmetrics.window")
	k.want(`(?m)^nodes +metrics.k8s.io/v1beta1 +false +NodeMetrics`, "", "api-resources")
}

func TestWhoMayReadMetrics(t *testing.T) {
	s := start(t)
	withKubelet(t, s)
	runOn(t, s, "p", nil)
	c := admin(t, s)
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "viewer"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:aggregated-metrics-reader"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "viewer"}},
	}
	if _, err := c.RbacV1().ClusterRoleBindings().Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	api := metricsFor(t, s.ClientConfig("nobody", "somewhere")).MetricsV1beta1()
	if _, err := api.NodeMetricses().List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("nobody: %v", err)
	}
	hpa := metricsFor(t, s.ClientConfig("system:serviceaccount:kube-system:horizontal-pod-autoscaler")).MetricsV1beta1()
	if list, err := hpa.PodMetricses("default").List(t.Context(), metav1.ListOptions{}); err != nil || len(list.Items) != 1 {
		t.Errorf("the autoscalers' controller: %+v, %v", list, err)
	}
	viewer := metricsFor(t, s.ClientConfig("viewer")).MetricsV1beta1()
	if list, err := viewer.NodeMetricses().List(t.Context(), metav1.ListOptions{}); err != nil || len(list.Items) != 1 {
		t.Errorf("who may read metrics: %+v, %v", list, err)
	}
	if role, err := c.RbacV1().ClusterRoles().Get(t.Context(), "system:aggregated-metrics-reader", metav1.GetOptions{}); err != nil || role.Labels["rbac.authorization.k8s.io/aggregate-to-admin"] != "true" {
		t.Errorf("%+v, %v", role, err)
	}
}

func TestMetricsCanBeLeftToOthers(t *testing.T) {
	s := start(t, func(c *Config) { c.MetricsAPI = false })
	groups, err := admin(t, s).Discovery().ServerGroups()
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range groups.Groups {
		if g.Name == metricsv1beta1.GroupName {
			t.Errorf("it is served: %+v", g)
		}
	}
}
