package scheduler_test

import (
	"testing"
	"testing/synctest"

	"k8s.io/component-base/metrics/legacyregistry"
)

// TestMetricsThatDashboardsRead are there under upstream's names.
func TestMetricsThatDashboardsRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t, node("a", "1"), node("b", "1"))
		defer c.stop()
		c.create(pod("fits", "500m"))
		c.create(pod("large", "2"))
		all, err := legacyregistry.DefaultGatherer.Gather()
		if err != nil {
			t.Fatal(err)
		}
		// value returns a gauge, or how often a histogram or a counter was told something.
		value := func(name string, labels ...string) float64 {
			t.Helper()
			for _, f := range all {
				if f.GetName() != name {
					continue
				}
				for _, m := range f.GetMetric() {
					has := map[string]string{}
					for _, l := range m.GetLabel() {
						has[l.GetName()] = l.GetValue()
					}
					same := true
					for i := 0; i < len(labels); i += 2 {
						same = same && has[labels[i]] == labels[i+1]
					}
					if same {
						return m.GetGauge().GetValue() + m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
					}
				}
			}
			t.Errorf("there is no %s%v", name, labels)
			return 0
		}
		for _, exactly := range []struct {
			want   float64
			name   string
			labels []string
		}{
			{1, "scheduler_pending_pods", []string{"queue", "unschedulable"}},
			{0, "scheduler_pending_pods", []string{"queue", "active"}},
			{1, "scheduler_unschedulable_pods", []string{"plugin", "NodeResourcesFit", "profile", "default-scheduler"}},
			{2, "scheduler_cache_size", []string{"type", "nodes"}},
			{1, "scheduler_cache_size", []string{"type", "pods"}},
			{0, "scheduler_goroutines", []string{"operation", "binding"}},
		} {
			if got := value(exactly.name, exactly.labels...); got != exactly.want {
				t.Errorf("%s%v is %v, want %v", exactly.name, exactly.labels, got, exactly.want)
			}
		}
		for _, point := range []string{"PreFilter", "Filter", "PreScore", "Score", "Reserve", "Permit", "PreBind", "Bind", "PostBind"} {
			if value("scheduler_framework_extension_point_duration_seconds", "extension_point", point, "status", "Success") == 0 {
				t.Errorf("%s was not measured", point)
			}
		}
		for _, told := range []string{
			"scheduler_scheduling_algorithm_duration_seconds", "scheduler_pod_scheduling_attempts", "scheduler_permit_wait_duration_seconds",
			"scheduler_schedule_attempts_total", "scheduler_scheduling_attempt_duration_seconds", "scheduler_pod_scheduling_sli_duration_seconds",
		} {
			if value(told) == 0 {
				t.Errorf("%s was not told", told)
			}
		}
		if value("scheduler_queue_incoming_pods_total", "queue", "active", "event", "UnscheduledPodAdd") < 2 ||
			value("scheduler_queue_incoming_pods_total", "queue", "unschedulable", "event", "ScheduleAttemptFailure") < 1 {
			t.Error("pods came into the queue and were not counted")
		}
	})
}
