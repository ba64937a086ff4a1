package controller_test

import (
	"errors"
	"net/http/httptest"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	metadatafake "k8s.io/client-go/metadata/fake"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/component-base/metrics/legacyregistry"
	_ "k8s.io/component-base/metrics/prometheus/workqueue" // counts what is in queues

	"wherry.dev/internal/controller"
	"wherry.dev/internal/controller/clusterroleaggregation"
	"wherry.dev/internal/controller/garbagecollector"
	namespacecontroller "wherry.dev/internal/controller/namespace"
	"wherry.dev/internal/controller/nodelifecycle"
	"wherry.dev/internal/controller/podgc"
	"wherry.dev/internal/controller/protection"
	"wherry.dev/internal/controller/replicaset"
	"wherry.dev/internal/controller/tainteviction"
	"wherry.dev/internal/controller/ttlafterfinished"
)

// scrape returns what Prometheus would read.
func scrape(t *testing.T) string {
	t.Helper()
	w := httptest.NewRecorder()
	legacyregistry.Handler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", "/metrics", nil))
	return w.Body.String()
}

// figure returns the value of a series, 0 if there is none.
func figure(t *testing.T, text, series string) float64 {
	t.Helper()
	m := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(series) + ` (\S+)$`).FindStringSubmatch(text)
	if m == nil {
		return 0
	}
	n, err := strconv.ParseFloat(m[1], 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// counted reports by how much each of the series grew while f ran.
func counted(t *testing.T, f func(), series ...string) []float64 {
	t.Helper()
	before := scrape(t)
	f()
	after := scrape(t)
	var out []float64
	for _, s := range series {
		out = append(out, figure(t, after, s)-figure(t, before, s))
	}
	return out
}

func TestMetricsOfNodesThatFallSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		zoned := func(name string) *v1.Node {
			n := addressed()
			n.Name, n.Labels = name, map[string]string{v1.LabelTopologyZone: "z1"}
			n.Status.Conditions[0].LastHeartbeatTime = metav1.Now()
			return n
		}
		client := fake.NewClientset(zoned("n0"), zoned("n1"))
		f := informers.NewSharedInformerFactory(client, 0)
		c, err := nodelifecycle.New(client, f, nodelifecycle.Defaults)
		if err != nil {
			t.Fatal(err)
		}
		defer begin(t, f, c)()
		time.Sleep(nodelifecycle.GracePeriod / 2)
		n, err := client.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		n.Status.Conditions[0].LastHeartbeatTime = metav1.Now()
		if _, err := client.CoreV1().Nodes().UpdateStatus(t.Context(), n, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(nodelifecycle.GracePeriod/2 + time.Second)
		text := scrape(t)
		zone := regexp.MustCompile(`node_collector_evictions_total\{zone="([^"]*z1)"\} [1-9]`).FindStringSubmatch(text)
		if zone == nil {
			t.Fatal("no eviction in zone z1")
		}
		for series, want := range map[string]float64{"zone_size": 2, "zone_health": 50, "unhealthy_nodes_in_zone": 1} {
			if n := figure(t, text, `node_collector_`+series+`{zone="`+zone[1]+`"}`); n != want {
				t.Errorf("%s is %v, want %v", series, n, want)
			}
		}
		if figure(t, text, "node_collector_update_node_health_duration_seconds_count") == 0 {
			t.Error("no look was counted")
		}
	})
}

func TestMetricsOfPodsThatAreRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		on := func(name, node string) *v1.Pod {
			return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "gone", Name: name}, Spec: v1.PodSpec{NodeName: node}}
		}
		client := fake.NewClientset(on("a", "lost"), on("b", "lost"), on("c", "tainted"), &v1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "tainted"}, Spec: v1.NodeSpec{Taints: []v1.Taint{{Key: "k", Effect: v1.TaintEffectNoExecute, TimeAdded: new(metav1.Now())}}},
		})
		client.PrependReactor("delete", "pods", func(act k8stesting.Action) (bool, runtime.Object, error) {
			if act.(k8stesting.DeleteAction).GetName() == "b" {
				return true, nil, apierrors.NewInternalError(errors.New("on purpose"))
			}
			return false, nil, nil
		})
		got := counted(t, func() {
			f := informers.NewSharedInformerFactory(client, 0)
			removes, err1 := podgc.New(client, f, podgc.TerminatedThreshold)
			evicts, err2 := tainteviction.New(client, f)
			if err := errors.Join(err1, err2); err != nil {
				t.Fatal(err)
			}
			defer begin(t, f, together{removes, evicts})()
			time.Sleep(podgc.Quarantine + time.Second)
		}, `pod_gc_collector_force_delete_pods_total{namespace="gone",reason="orphaned"}`,
			`pod_gc_collector_force_delete_pod_errors_total{namespace="gone",reason="orphaned"}`,
			"taint_eviction_controller_pod_deletions_total", "taint_eviction_controller_pod_deletion_duration_seconds_count")
		if got[1] < 1 || got[0] <= got[1] || got[2] != 1 || got[3] != 1 {
			t.Errorf("removed, failed, evicted, timed: %v", got)
		}
	})
}

func TestMetricsOfTheRootCAsPublisher(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset(namespace("good"), namespace("bad"))
		client.PrependReactor("create", "configmaps", func(act k8stesting.Action) (bool, runtime.Object, error) {
			if act.GetNamespace() == "bad" {
				return true, nil, apierrors.NewForbidden(act.GetResource().GroupResource(), "x", errors.New("on purpose"))
			}
			return false, nil, nil
		})
		got := counted(t, func() {
			f := informers.NewSharedInformerFactory(client, 0)
			c, err := newRootCA(client, f)
			if err != nil {
				t.Fatal(err)
			}
			defer begin(t, f, c)()
			time.Sleep(time.Second)
		}, `root_ca_cert_publisher_sync_total{code="200"}`, `root_ca_cert_publisher_sync_total{code="403"}`,
			`root_ca_cert_publisher_sync_duration_seconds_count{code="403"}`)
		if got[0] < 1 || got[1] < 1 || got[2] != got[1] {
			t.Errorf("successes, refusals, timed refusals: %v", got)
		}
	})
}

// Ready pods that go when a set shrinks are compared with the youngest one.
func TestMetricsOfSetsThatShrink(t *testing.T) {
	const ratio = "replicaset_controller_sorting_deletion_age_ratio"
	synctest.Test(t, func(t *testing.T) {
		got := counted(t, func() {
			a := newHostileAPI(1)
			defer serve(t, a)()
			a.add("replicasets", newReplicaSet("x", 3))
			time.Sleep(time.Minute)
			for _, p := range a.all("pods") {
				a.change("pods", "a/"+p.GetName(), func(o object) bool {
					st := &o.(*v1.Pod).Status
					st.Phase, st.Conditions = v1.PodRunning, []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue, LastTransitionTime: metav1.Now()}}
					return true
				})
			}
			time.Sleep(time.Minute)
			a.change("replicasets", "a/x", shrink)
			time.Sleep(time.Minute)
		}, ratio+"_count", ratio+`_bucket{le="0.5"}`, ratio+`_bucket{le="1"}`)
		if got[0] != 2 || got[1] != 0 || got[2] != 2 { // all are equally old
			t.Errorf("observations, up to 0.5, up to 1: %v", got)
		}
	})
}

func TestMetricsOfStatefulSets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newHostileAPI(1)
		defer serve(t, a)()
		set := newSet(newHostileAPI(1).rand)
		set.Name, set.Spec.Replicas, set.Spec.PodManagementPolicy = "measured", new(int32(3)), "OrderedReady"
		a.add("statefulsets", set)
		time.Sleep(time.Minute)
		labels := `{pod_management_policy="OrderedReady",statefulset_name="measured",statefulset_namespace="a"}`
		const name = "statefulset_controller_statefulset_"
		text := scrape(t)
		if n, most := figure(t, text, name+"unavailable_replicas"+labels), figure(t, text, name+"max_unavailable"+labels); n != 3 || most < 1 {
			t.Errorf("%v of 3 are unavailable; %v may be", n, most)
		}
		a.change("statefulsets", "a/measured", func(object) bool { return false })
		time.Sleep(time.Minute)
		if text := scrape(t); strings.Contains(text, `statefulset_name="measured"`) {
			t.Error("a set that is gone is still counted")
		}
	})
}

func newNodeLifecycle(c clientset.Interface, f informers.SharedInformerFactory) (*nodelifecycle.Controller, error) {
	return nodelifecycle.New(c, f, nodelifecycle.Defaults)
}

func newPodGC(c clientset.Interface, f informers.SharedInformerFactory) (*podgc.Controller, error) {
	return podgc.New(c, f, podgc.TerminatedThreshold)
}

// Dashboards know the queues by upstream's names.
func TestQueuesHaveUpstreamsNames(t *testing.T) {
	client := fake.NewClientset()
	f := informers.NewSharedInformerFactory(client, 0)
	_, err := workloads(&hostileAPI{Clientset: client}, f)
	content := metadatafake.NewSimpleMetadataClient(metadatafake.NewTestScheme())
	garbagecollector.New(client, content, nil)
	_, nsErr := namespacecontroller.New(client, content, f)
	_, ttlErr := ttlafterfinished.New(client, f, noClock)
	err = errors.Join(err, nsErr, ttlErr)
	for _, build := range []func(clientset.Interface, informers.SharedInformerFactory) ([]controller.Controller, error){
		one(clusterroleaggregation.New), one(newNodeLifecycle), one(newPodGC), one(protection.NewForClaims), one(protection.NewForVolumes),
		one(replicaset.NewForReplicationControllers), one(tainteviction.New), one(newBudgets), one(newQuotas), one(newRootCA),
	} {
		_, built := build(client, f)
		err = errors.Join(err, built)
	}
	if err != nil {
		t.Fatal(err)
	}
	text := scrape(t)
	for _, name := range []string{
		"ClusterRoleAggregator", "cronjob", "daemonset", "deployment", "disruption", "garbage_collector_attempt_to_delete", "job", "job_orphan_pod",
		"namespace", "node_lifecycle_controller", "noexec_taint_pod", "orphaned_pods_nodes", "pvcprotection", "pvprotection", "replicaset",
		"replicationmanager", "resourcequota_primary", "root_ca_cert_publisher", "stale_pod_disruption", "statefulset", "ttl_jobs_to_delete",
	} {
		if !strings.Contains(text, `workqueue_depth{name="`+name+`"} `) {
			t.Errorf("no queue %s", name)
		}
	}
}
