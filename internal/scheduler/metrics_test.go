package scheduler_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/component-base/metrics/legacyregistry"
	configv1 "k8s.io/kube-scheduler/config/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"wherry.dev/internal/scheduler"
	"wherry.dev/internal/scheduler/framework"
)

// TestMetricsThatDashboardsRead are there under upstream's names.
func TestMetricsThatDashboardsRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t, node("a", "1"), node("b", "1"))
		defer c.stop()
		c.create(pod("fits", "500m"))
		c.create(pod("large", "2"))
		c.create(pod("goes", "100m"))
		c.delete("goes")
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
			{0, "scheduler_inflight_events", []string{"event", "PodPopped"}},
			{0, "scheduler_goroutines", []string{"operation", "binding"}},
		} {
			if got := value(exactly.name, exactly.labels...); got != exactly.want {
				t.Errorf("%s%v is %v, want %v", exactly.name, exactly.labels, got, exactly.want)
			}
		}
		for _, point := range []string{"PreFilter", "Filter", "PreScore", "Score", "Reserve", "Permit", "PreBindPreFlight", "PreBind", "Bind", "PostBind", "PreEnqueue"} {
			if value("scheduler_framework_extension_point_duration_seconds", "extension_point", point, "status", "Success") == 0 {
				t.Errorf("%s was not measured", point)
			}
		}
		for _, plugin := range [][]string{
			{"PreEnqueue", "SchedulingGates", "Success"}, {"PreFilter", "NodeResourcesFit", "Success"},
			{"Filter", "NodeResourcesFit", "Success"},
			{"PostFilter", "DefaultPreemption", "Unschedulable"}, {"PreScore", "NodeResourcesBalancedAllocation", "Success"},
			{"Score", "NodeResourcesFit", "Success"}, {"ScoreExtensionNormalize", "TaintToleration", "Success"},
			{"Reserve", "VolumeBinding", "Success"}, {"PreBindPreFlight", "VolumeBinding", "Skip"}, {"Bind", "DefaultBinder", "Success"},
		} {
			if value("scheduler_plugin_execution_duration_seconds", "extension_point", plugin[0], "plugin", plugin[1], "status", plugin[2]) == 0 {
				t.Errorf("%v was not measured", plugin)
			}
		}
		for point, plugin := range map[string]string{
			"PreFilter": "NodeResourcesFit", "Filter": "NodeResourcesFit", "PreScore": "NodeResourcesBalancedAllocation", "Score": "NodeResourcesFit",
		} {
			if value("scheduler_plugin_evaluation_total", "extension_point", point, "plugin", plugin, "profile", "default-scheduler") == 0 {
				t.Errorf("%s of %s was not counted", point, plugin)
			}
		}
		for _, event := range []string{"NodeAdd", "UnscheduledPodAdd", "AssignedPodAdd", "AssignedPodDelete"} {
			if value("scheduler_event_handling_duration_seconds", "event", event) == 0 {
				t.Errorf("%s was not measured", event)
			}
		}
		if value("scheduler_queueing_hint_execution_duration_seconds", "plugin", "NodeResourcesFit", "event", "AssignedPodDelete") == 0 {
			t.Error("no hint was measured")
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

// sulky is a filter that opens one day, and hears of nothing that happens.
type sulky struct{ open atomic.Bool }

func (*sulky) Name() string { return "Sulky" }

func (d *sulky) Filter(context.Context, fwk.CycleState, *v1.Pod, fwk.NodeInfo) *fwk.Status {
	if d.open.Load() {
		return nil
	}
	return fwk.NewStatus(fwk.Unschedulable, "not yet")
}

func (*sulky) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) { return nil, nil }

// TestPodsThatOnlyTimeBroughtBackAreCounted: they are the sign of a plugin that does not say what helps.
func TestPodsThatOnlyTimeBroughtBackAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &sulky{}
		cfg := scheduler.DefaultConfig()
		cfg.Registry = framework.Registry{"Sulky": func(context.Context, runtime.Object, fwk.Handle) (fwk.Plugin, error) { return d, nil }}
		cfg.Profiles[0].Plugins = &configv1.Plugins{Filter: configv1.PluginSet{Enabled: []configv1.Plugin{{Name: "Sulky"}}}}
		c := startConfig(t, cfg, same, node("a", "1"))
		defer c.stop()
		before := counted(t, "scheduler_pod_scheduled_after_flush_total")
		c.create(pod("waits", "100m"))
		d.open.Store(true)
		time.Sleep(6 * time.Minute)
		c.settle()
		c.wantNode("waits", "a")
		if n := counted(t, "scheduler_pod_scheduled_after_flush_total") - before; n != 1 {
			t.Errorf("%v pods were counted, want 1", n)
		}
	})
}

// counted returns the sum of a metric's counters.
func counted(t *testing.T, name string) (sum float64) {
	t.Helper()
	all, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range all {
		if f.GetName() == name {
			for _, m := range f.GetMetric() {
				sum += m.GetCounter().GetValue()
			}
		}
	}
	return sum
}
