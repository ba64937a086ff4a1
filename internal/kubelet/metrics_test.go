package kubelet

import (
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"wherry.dev/internal/kubelet/metrics"
)

// wanted are the metrics that dashboards and alerts use, with their labels. kubelet_evictions and
// kubelet_volume_stats_* have no series until there is an eviction or a claim.
var wanted = map[string]string{
	"kubelet_pod_start_duration_seconds": "", "kubelet_pod_start_sli_duration_seconds": "", "kubelet_pod_start_total_duration_seconds": "",
	"kubelet_pod_worker_duration_seconds": "operation_type", "kubelet_pod_worker_start_duration_seconds": "", "kubelet_pod_status_sync_duration_seconds": "",
	"kubelet_pleg_relist_duration_seconds": "", "kubelet_pleg_last_seen_seconds": "",
	"kubelet_runtime_operations_total": "operation_type", "kubelet_runtime_operations_errors_total": "operation_type", "kubelet_runtime_operations_duration_seconds": "operation_type",
	"kubelet_run_podsandbox_duration_seconds": "runtime_handler", "kubelet_started_pods_total": "", "kubelet_started_pods_errors_total": "", "kubelet_started_containers_total": "container_type",
	"kubelet_running_pods": "", "kubelet_running_containers": "container_state", "kubelet_image_pull_duration_seconds": "image_size_in_bytes",
	"kubelet_node_name": "node", "kubelet_desired_pods": "static", "kubelet_active_pods": "static", "kubelet_mirror_pods": "", "kubelet_cgroup_version": "",
	"kubelet_started_user_namespaced_pods_total": "", "kubelet_started_user_namespaced_pods_errors_total": "",
	"kubelet_certificate_manager_client_ttl_seconds": "", "kubelet_certificate_manager_server_ttl_seconds": "",
}

// moving are the ones among them that change when a pod starts.
var moving = []string{
	"kubelet_pod_start_duration_seconds", "kubelet_pod_start_sli_duration_seconds", "kubelet_pod_start_total_duration_seconds",
	"kubelet_pod_worker_duration_seconds", "kubelet_pod_worker_start_duration_seconds", "kubelet_pod_status_sync_duration_seconds",
	"kubelet_pleg_relist_duration_seconds", "kubelet_runtime_operations_total", "kubelet_runtime_operations_duration_seconds",
	"kubelet_runtime_operations_errors_total", "kubelet_run_podsandbox_duration_seconds", "kubelet_started_pods_total", "kubelet_started_containers_total",
	"kubelet_image_pull_duration_seconds",
}

func gather(t *testing.T) map[string]*dto.MetricFamily {
	t.Helper()
	list, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]*dto.MetricFamily{}
	for _, f := range list {
		out[f.GetName()] = f
	}
	return out
}

// total sums up what all series of a family have counted.
func total(f *dto.MetricFamily) float64 {
	sum := 0.0
	for _, m := range f.GetMetric() {
		sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
	}
	return sum
}

// ended returns how many container instances ended with an exit code.
func ended(all map[string]*dto.MetricFamily, code string) float64 {
	var sum float64
	for _, m := range all["kubelet_terminated_containers_total"].GetMetric() {
		for _, l := range m.Label {
			if l.GetName() == "exit_code" && l.GetValue() == code {
				sum += m.GetCounter().GetValue()
			}
		}
	}
	return sum
}

func labels(f *dto.MetricFamily) string {
	if f == nil || len(f.Metric) == 0 {
		return "no series"
	}
	names := map[string]bool{}
	for _, l := range f.Metric[0].Label {
		names[l.GetName()] = true
	}
	return strings.Join(slices.Sorted(maps.Keys(names)), ",")
}

// probes returns what /metrics/probes serves.
func probes(t *testing.T) string {
	t.Helper()
	w := httptest.NewRecorder()
	metrics.ProbesHandler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics/probes", nil))
	return w.Body.String()
}

func TestMetricsAreThereAndMove(t *testing.T) {
	metrics.Register()
	before := map[string]float64{}
	for name, f := range gather(t) {
		before[name] = total(f)
	}
	run(t, func(w *world) {
		pod := testPod("a")
		pod.Spec.Containers[0].Image, pod.Spec.Containers[0].ImagePullPolicy = "busybox:latest", v1.PullAlways
		pod.Spec.Containers[0].ReadinessProbe = &v1.Probe{
			ProbeHandler: v1.ProbeHandler{Exec: &v1.ExecAction{Command: []string{"true"}}}, PeriodSeconds: 1, FailureThreshold: 3, SuccessThreshold: 1, TimeoutSeconds: 1,
		}
		pod.CreationTimestamp = metav1.Now()
		w.create(pod)
		broken := testPod("broken")
		broken.Spec.Containers[0].Image, broken.Spec.Containers[0].ImagePullPolicy = "none:1", v1.PullIfNotPresent
		w.create(broken)
		w.until("Ready", func() bool { return condition(w.get("a"), v1.PodReady) == v1.ConditionTrue })
		w.k.gauges(func() []v1alpha1.VolumeStats { return nil }).Refresh()
		now := gather(t)
		for name, want := range wanted {
			if got := labels(now[name]); got != want {
				t.Errorf("%s: labels %q, want %q", name, got, want)
			}
		}
		for _, name := range moving {
			if f := now[name]; f == nil || total(f) <= before[name] {
				t.Errorf("%s does not move", name)
			}
		}
		if got := total(now["kubelet_running_pods"]); got < 1 {
			t.Errorf("running pods: %v", got)
		}
		for _, want := range []string{
			`prober_probe_total{container="c",namespace="default",pod="a",pod_uid="` + string(w.get("a").UID) + `",probe_type="Readiness",result="successful"}`,
			`prober_probe_duration_seconds_count{container="c",namespace="default",pod="a",probe_type="Readiness"}`, "process_start_time_seconds",
		} {
			if !strings.Contains(probes(t), want) {
				t.Errorf("/metrics/probes has no %s", want)
			}
		}
		w.rt.Kill(w.rt.Live(string(w.get("a").UID), "c")[0], 139)
		w.until("restarted", func() bool {
			s := w.get("a").Status.ContainerStatuses[0]
			return s.RestartCount == 1 && s.State.Running != nil
		})
		if got := ended(gather(t), "139"); got != 1 { // not the exit code of any other test
			t.Errorf("%v terminated containers", got)
		}
		w.remove("a", 1)
		w.until("gone", func() bool { return w.gone("a") })
		w.pass(time.Second)
		if text := probes(t); strings.Contains(text, `pod="a"`) {
			t.Errorf("the pod's series stay: %s", text)
		}
	})
}
