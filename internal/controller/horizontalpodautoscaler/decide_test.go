package horizontalpodautoscaler

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// pod returns a pod that has been ready for long and requests a CPU.
func pod(name string, change ...func(*v1.Pod)) *v1.Pod {
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "a", Labels: map[string]string{"app": "w"}},
		Spec: v1.PodSpec{Containers: []v1.Container{{Name: "c", Resources: v1.ResourceRequirements{
			Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse("1"), v1.ResourceMemory: resource.MustParse("1Gi")},
		}}}},
		Status: v1.PodStatus{
			Phase: v1.PodRunning, StartTime: new(metav1.NewTime(noon.Add(-time.Hour))),
			Conditions: []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue, LastTransitionTime: metav1.NewTime(noon.Add(-59 * time.Minute))}},
		},
	}
	for _, f := range change {
		f(p)
	}
	return p
}

func pending(p *v1.Pod)  { p.Status.Phase = v1.PodPending }
func broken(p *v1.Pod)   { p.Status.Phase = v1.PodFailed }
func unready(p *v1.Pod)  { p.Status.Conditions[0].Status = v1.ConditionFalse }
func ending(p *v1.Pod)   { p.DeletionTimestamp = new(metav1.NewTime(noon)) }
func starting(p *v1.Pod) { p.Status.StartTime = new(metav1.NewTime(noon.Add(-time.Minute))) }
func neverReady(p *v1.Pod) {
	unready(p)
	p.Status.Conditions[0].LastTransitionTime = metav1.NewTime(p.Status.StartTime.Add(10 * time.Second))
}

// four returns the pods p0 to p3, of which changes name some.
func four(changes map[string]func(*v1.Pod)) (out []*v1.Pod) {
	for i := range 4 {
		name := fmt.Sprintf("p%d", i)
		p := pod(name)
		if f := changes[name]; f != nil {
			f(p)
		}
		out = append(out, p)
	}
	return out
}

// uses returns samples of p0, p1, …; negative ones are missing.
func uses(values ...int64) map[string]sample {
	out := map[string]sample{}
	for i, v := range values {
		if v >= 0 {
			out[fmt.Sprintf("p%d", i)] = sample{v, noon.Add(-10 * time.Second), time.Minute}
		}
	}
	return out
}

// halfCPU wants pods to use half of the CPU that they request.
func halfCPU() autoscalingv2.MetricSpec {
	percent := int32(50)
	return autoscalingv2.MetricSpec{Type: autoscalingv2.ResourceMetricSourceType, Resource: &autoscalingv2.ResourceMetricSource{
		Name: v1.ResourceCPU, Target: autoscalingv2.MetricTarget{Type: autoscalingv2.UtilizationMetricType, AverageUtilization: &percent},
	}}
}

func quantity(s string) *resource.Quantity { return new(resource.MustParse(s)) }

func inMemory(average string) autoscalingv2.MetricSpec {
	return autoscalingv2.MetricSpec{Type: autoscalingv2.ResourceMetricSourceType, Resource: &autoscalingv2.ResourceMetricSource{
		Name: v1.ResourceMemory, Target: autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType, AverageValue: quantity(average)},
	}}
}

func ofContainer(name string) autoscalingv2.MetricSpec {
	return autoscalingv2.MetricSpec{Type: autoscalingv2.ContainerResourceMetricSourceType, ContainerResource: &autoscalingv2.ContainerResourceMetricSource{
		Name: v1.ResourceCPU, Container: name, Target: autoscalingv2.MetricTarget{AverageUtilization: new(int32(50))},
	}}
}

func ofPods(average string) autoscalingv2.MetricSpec {
	return autoscalingv2.MetricSpec{Type: autoscalingv2.PodsMetricSourceType, Pods: &autoscalingv2.PodsMetricSource{
		Metric: autoscalingv2.MetricIdentifier{Name: "rps"}, Target: autoscalingv2.MetricTarget{AverageValue: quantity(average)},
	}}
}

func ofObject(kind autoscalingv2.MetricTargetType, target string) autoscalingv2.MetricSpec {
	t := autoscalingv2.MetricTarget{Type: kind, Value: quantity(target)}
	if kind == autoscalingv2.AverageValueMetricType {
		t = autoscalingv2.MetricTarget{Type: kind, AverageValue: quantity(target)}
	}
	return autoscalingv2.MetricSpec{Type: autoscalingv2.ObjectMetricSourceType, Object: &autoscalingv2.ObjectMetricSource{
		DescribedObject: autoscalingv2.CrossVersionObjectReference{Kind: "Service", Name: "s"},
		Metric:          autoscalingv2.MetricIdentifier{Name: "hits"}, Target: t,
	}}
}

func outside(value, average string) autoscalingv2.MetricSpec {
	t := autoscalingv2.MetricTarget{}
	if value != "" {
		t.Value = quantity(value)
	}
	if average != "" {
		t.AverageValue = quantity(average)
	}
	return autoscalingv2.MetricSpec{Type: autoscalingv2.ExternalMetricSourceType, External: &autoscalingv2.ExternalMetricSource{
		Metric: autoscalingv2.MetricIdentifier{Name: "queue"}, Target: t,
	}}
}

func TestPropose(t *testing.T) {
	type change = map[string]func(*v1.Pod)
	for _, tc := range []struct {
		name    string
		metric  autoscalingv2.MetricSpec
		pods    []*v1.Pod
		reading reading
		want    int32
		value   string // of the status
		err     string
	}{
		{name: "on target", metric: halfCPU(), pods: four(nil), reading: reading{samples: uses(500, 500, 500, 500)}, want: 4, value: "50% 500m"},
		{name: "within the tolerance", metric: halfCPU(), pods: four(nil), reading: reading{samples: uses(540, 540, 540, 540)}, want: 4, value: "54% 540m"},
		{name: "grows", metric: halfCPU(), pods: four(nil), reading: reading{samples: uses(900, 700, 900, 700)}, want: 7, value: "80% 800m"},
		{name: "shrinks", metric: halfCPU(), pods: four(nil), reading: reading{samples: uses(100, 100, 100, 100)}, want: 1, value: "10% 100m"},
		{name: "a missing pod is idle when it would grow", metric: halfCPU(), pods: four(nil), reading: reading{samples: uses(800, 800, 800, -1)}, want: 5, value: "80% 800m"},
		{name: "and busy when it would shrink", metric: halfCPU(), pods: four(nil), reading: reading{samples: uses(100, 100, 100, -1)}, want: 3, value: "10% 100m"},
		{name: "so that it does not turn", metric: halfCPU(), pods: four(nil), reading: reading{samples: uses(600, -1, -1, -1)}, want: 4, value: "60% 600m"},
		{name: "a pending pod is idle when it would grow", metric: halfCPU(), pods: four(change{"p3": pending}), reading: reading{samples: uses(800, 800, 800, -1)}, want: 5, value: "80% 800m"},
		{name: "and does not count when it would shrink", metric: halfCPU(), pods: four(change{"p3": pending}), reading: reading{samples: uses(100, 100, 100, -1)}, want: 1, value: "10% 100m"},
		{name: "pods that failed or end do not count", metric: halfCPU(), pods: four(change{"p2": broken, "p3": ending}), reading: reading{samples: uses(900, 900, 0, 0)}, want: 4, value: "90% 900m"},
		{name: "a pod that starts is not at work", metric: halfCPU(), pods: four(change{"p3": func(p *v1.Pod) { starting(p); unready(p) }}), reading: reading{samples: uses(500, 500, 500, 4000)}, want: 4, value: "50% 500m"},
		{name: "nor one that has never been", metric: halfCPU(), pods: four(change{"p3": neverReady}), reading: reading{samples: uses(500, 500, 500, 4000)}, want: 4, value: "50% 500m"},
		{name: "one that was ready counts", metric: halfCPU(), pods: four(change{"p3": unready}), reading: reading{samples: uses(500, 500, 500, 2500)}, want: 8, value: "100% 1"},
		{name: "no pods", metric: halfCPU(), reading: reading{samples: uses(1)}, err: "failed to get cpu utilization: no pods returned by selector while calculating replica count"},
		{name: "nothing is at work", metric: halfCPU(), pods: four(change{"p0": pending, "p1": pending, "p2": pending, "p3": pending}), reading: reading{samples: uses()}, err: "did not receive metrics for targeted pods (pods might be unready)"},
		{name: "no request", metric: halfCPU(), pods: four(change{"p1": func(p *v1.Pod) { p.Spec.Containers[0].Resources = v1.ResourceRequirements{} }}), reading: reading{samples: uses(1, 1, 1, 1)}, err: "missing request for cpu in container c of Pod p1"},
		{name: "no metrics API", metric: halfCPU(), pods: four(nil), reading: reading{err: errors.New("gone")}, err: "failed to get cpu resource metric value: failed to get cpu utilization: unable to get metrics for resource cpu: gone"},
		{name: "an amount of memory", metric: inMemory("1Gi"), pods: four(nil), reading: reading{samples: uses(2<<30*1000, 2<<30*1000, 2<<30*1000, 2<<30*1000)}, want: 8, value: "2Gi"},
		{name: "of pods that start, too", metric: inMemory("1Gi"), pods: four(change{"p0": starting, "p1": unready}), reading: reading{samples: uses(2<<30*1000, 2<<30*1000, 2<<30*1000, 2<<30*1000)}, want: 8, value: "2Gi"},
		{name: "of a container", metric: ofContainer("c"), pods: four(nil), reading: reading{samples: uses(1000, 1000, 1000, 1000)}, want: 8, value: "100% 1"},
		{name: "of a container that is not there", metric: ofContainer("d"), pods: four(nil), reading: reading{samples: uses(1, 1, 1, 1)}, err: "failed to get d container metric value: failed to get cpu utilization: container d not found in Pod p0"},
		{name: "of the pods", metric: ofPods("100"), pods: four(nil), reading: reading{samples: uses(150_000, 150_000, 150_000, 150_000)}, want: 6, value: "150"},
		{name: "of the pods, one missing", metric: ofPods("100"), pods: four(nil), reading: reading{samples: uses(150_000, 150_000, 150_000, -1)}, want: 5, value: "150"},
		{name: "of an object", metric: ofObject(autoscalingv2.ValueMetricType, "100"), pods: four(change{"p3": unready}), reading: reading{values: []int64{200_000}}, want: 6, value: "200"},
		{name: "of an object, for each pod", metric: ofObject(autoscalingv2.AverageValueMetricType, "100"), pods: four(nil), reading: reading{values: []int64{950_000}}, want: 10, value: "237500m"},
		{name: "of the world", metric: outside("100", ""), pods: four(nil), reading: reading{values: []int64{100_000, 50_000}}, want: 6, value: "150"},
		{name: "of the world, for each pod", metric: outside("", "100"), pods: four(nil), reading: reading{values: []int64{410_000}}, want: 4, value: "102500m"},
		{name: "more than numbers can say", metric: outside("1m", ""), pods: four(nil), reading: reading{values: []int64{1 << 62, 1 << 62}}, want: 1<<31 - 1, value: "9223372036854775807m"},
		{name: "neither nor", metric: outside("", ""), pods: four(nil), reading: reading{values: []int64{1}}, err: "invalid external metric source: neither a value target nor an average value target was set"},
		{name: "unknown", metric: autoscalingv2.MetricSpec{Type: "Luck"}, err: `unknown metric source type "Luck"`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			o := &observed{Options: &Defaults, hpa: &autoscalingv2.HorizontalPodAutoscaler{}, pods: tc.pods, now: noon,
				scale: &autoscalingv1.Scale{Spec: autoscalingv1.ScaleSpec{Replicas: 4}, Status: autoscalingv1.ScaleStatus{Replicas: 4}}}
			p := propose(o, &tc.metric, &tc.reading)
			if tc.err != "" {
				if p.err == nil || !strings.Contains(p.err.Error(), tc.err) || p.reason == "" {
					t.Errorf("%s: %v, want %s", p.reason, p.err, tc.err)
				}
				return
			}
			if p.err != nil || p.replicas != tc.want || shown(&p.status) != tc.value || p.metric == "" {
				t.Errorf("%d, %s, %v; want %d, %s", p.replicas, shown(&p.status), p.err, tc.want, tc.value)
			}
		})
	}
}

// shown returns the values of a status.
func shown(s *autoscalingv2.MetricStatus) string {
	var now autoscalingv2.MetricValueStatus
	switch {
	case s.Resource != nil:
		now = s.Resource.Current
	case s.ContainerResource != nil:
		now = s.ContainerResource.Current
	case s.Pods != nil:
		now = s.Pods.Current
	case s.Object != nil:
		now = s.Object.Current
	case s.External != nil:
		now = s.External.Current
	}
	var out []string
	if now.AverageUtilization != nil {
		out = append(out, fmt.Sprintf("%d%%", *now.AverageUtilization))
	}
	for _, q := range []*resource.Quantity{now.Value, now.AverageValue} {
		if q != nil {
			out = append(out, q.String())
		}
	}
	return strings.Join(out, " ")
}

func TestSidecarsAndWholePodsRequest(t *testing.T) {
	p := pod("p", func(p *v1.Pod) {
		sidecar := *p.Spec.Containers[0].DeepCopy()
		sidecar.Name, sidecar.RestartPolicy = "side", new(v1.ContainerRestartPolicyAlways)
		once := v1.Container{Name: "once"}
		p.Spec.InitContainers = []v1.Container{once, sidecar}
	})
	if n, err := requestOf(p, "", v1.ResourceCPU); n != 2000 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	if n, err := requestOf(p, "side", v1.ResourceCPU); n != 1000 || err != nil {
		t.Errorf("the sidecar: %d, %v", n, err)
	}
	p.Spec.Resources = &v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse("5")}}
	if n, err := requestOf(p, "", v1.ResourceCPU); n != 5000 || err != nil {
		t.Errorf("the pod: %d, %v", n, err)
	}
}

func TestPlan(t *testing.T) {
	fails := proposal{reason: "FailedGetPodsMetric", detail: errors.New("no such metric"), err: errors.New("failed to get pods metric value: no such metric")}
	to := func(n int32) proposal { return proposal{replicas: n, metric: "x"} }
	for _, tc := range []struct {
		name      string
		current   int32
		proposals []proposal
		size      int32
		reason    string
		active    string
		events    []string
	}{
		{"off", 0, nil, 0, "", "ScalingDisabled", nil},
		{"above the maximum", 12, nil, 10, "Current number of replicas above Spec.MaxReplicas", "", nil},
		{"below the minimum", 1, nil, 2, "Current number of replicas below Spec.MinReplicas", "", nil},
		{"the largest counts", 4, []proposal{to(5), to(7), to(3)}, 7, "x above target", "ValidMetricFound", nil},
		{"shrinks when all agree", 4, []proposal{to(3), to(2)}, 4, "All metrics below target", "ValidMetricFound", nil},
		{"grows in spite of one that is unknown", 4, []proposal{fails, to(6)}, 6, "x above target", "ValidMetricFound", []string{"FailedGetPodsMetric"}},
		{"does not shrink then", 4, []proposal{fails, to(2)}, 4, "", "FailedGetPodsMetric", []string{"FailedGetPodsMetric", "FailedComputeMetricsReplicas"}},
		{"all unknown", 4, []proposal{fails}, 4, "", "FailedGetPodsMetric", []string{"FailedGetPodsMetric", "FailedComputeMetricsReplicas"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			hpa := &autoscalingv2.HorizontalPodAutoscaler{Spec: autoscalingv2.HorizontalPodAutoscalerSpec{MinReplicas: new(int32(2)), MaxReplicas: 10}}
			o := &observed{Options: &Defaults, hpa: hpa, now: noon, scale: &autoscalingv1.Scale{Spec: autoscalingv1.ScaleSpec{Replicas: tc.current}}}
			p, byMetrics := start(o)
			if byMetrics != (tc.proposals != nil) {
				t.Fatalf("by metrics: %v", byMetrics)
			}
			if byMetrics {
				p.byMetrics(o, tc.proposals)
			}
			active := ""
			for _, c := range p.status.Conditions {
				if c.Type == autoscalingv2.ScalingActive {
					active = c.Reason
				}
			}
			var events []string
			for _, e := range p.events {
				events = append(events, e.reason)
			}
			if p.size != tc.size || p.reason != tc.reason || active != tc.active || !slices.Equal(events, tc.events) {
				t.Errorf("%d %q %s %v, want %d %q %s %v", p.size, p.reason, active, events, tc.size, tc.reason, tc.active, tc.events)
			}
			if p.status.CurrentReplicas != tc.current {
				t.Errorf("current replicas %d", p.status.CurrentReplicas)
			}
		})
	}
}

// TestConditionsKeepTheirTime: a condition that says the same has not changed.
func TestConditionsKeepTheirTime(t *testing.T) {
	hpa := &autoscalingv2.HorizontalPodAutoscaler{Spec: autoscalingv2.HorizontalPodAutoscalerSpec{MaxReplicas: 10}}
	look := func(now time.Time) *plan {
		o := &observed{Options: &Defaults, hpa: hpa, now: now, scale: &autoscalingv1.Scale{Spec: autoscalingv1.ScaleSpec{Replicas: 4}}}
		p, _ := start(o)
		p.byMetrics(o, []proposal{{replicas: 4, metric: "x"}})
		return p
	}
	first := look(noon)
	hpa.Status = first.status
	if later := look(noon.Add(15 * time.Second)); later.news(hpa) {
		t.Errorf("news: %+v, was %+v", later.status, hpa.Status)
	}
}

// TestFromAndToZero: an autoscaler wakes what it has put to rest, and nothing else.
func TestFromAndToZero(t *testing.T) {
	external := autoscalingv2.MetricSpec{Type: autoscalingv2.ExternalMetricSourceType}
	cpu := autoscalingv2.MetricSpec{Type: autoscalingv2.ResourceMetricSourceType}
	for _, tc := range []struct {
		name           string
		current, least int32
		zeroed         bool
		metric         autoscalingv2.MetricSpec
		want           int32 // what the metric proposes, -1 if nobody may ask it
		size           int32
		reason         string
		after          v1.ConditionStatus // of ScaledToZero, once it is resized
	}{
		{"to zero", 3, 0, false, external, 0, 0, "All metrics below target", v1.ConditionTrue},
		{"from zero", 0, 0, true, external, 2, 2, "x above target", v1.ConditionFalse},
		{"nothing to do", 0, 0, true, external, 0, 0, "", v1.ConditionTrue},
		{"somebody else's zero", 0, 0, false, external, -1, 0, "", ""},
		{"nobody can tell", 0, 0, true, cpu, -1, 0, "", v1.ConditionTrue},
		{"there have to be some now", 0, 2, true, cpu, -1, 2, "Current number of replicas below Spec.MinReplicas", v1.ConditionFalse},
		{"somebody gave it pods", 3, 0, true, external, 3, 3, "", v1.ConditionFalse},
	} {
		t.Run(tc.name, func(t *testing.T) {
			hpa := &autoscalingv2.HorizontalPodAutoscaler{Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
				MinReplicas: &tc.least, MaxReplicas: 10, Metrics: []autoscalingv2.MetricSpec{tc.metric},
			}}
			if tc.zeroed {
				hpa.Status.Conditions = []autoscalingv2.HorizontalPodAutoscalerCondition{{Type: autoscalingv2.ScaledToZero, Status: v1.ConditionTrue}}
			}
			o := &observed{Options: &Defaults, hpa: hpa, now: noon, scale: &autoscalingv1.Scale{Spec: autoscalingv1.ScaleSpec{Replicas: tc.current}}}
			o.history.recommended = []sized{{0, noon.Add(-time.Minute)}}
			p, byMetrics := start(o)
			if byMetrics != (tc.want >= 0) {
				t.Fatalf("by metrics: %v", byMetrics)
			}
			if byMetrics {
				p.byMetrics(o, []proposal{{replicas: tc.want, metric: "x"}})
			}
			if p.resizes() {
				p.resized(noon)
			}
			var after v1.ConditionStatus
			for _, c := range p.status.Conditions {
				if c.Type == autoscalingv2.ScaledToZero {
					after = c.Status
				}
			}
			if p.size != tc.size || p.reason != tc.reason || after != tc.after {
				t.Errorf("%d %q %s, want %d %q %s", p.size, p.reason, after, tc.size, tc.reason, tc.after)
			}
		})
	}
}

// Without pods there is no usage for each of them: what the metric says is what it takes.
func TestMetricsWithoutPods(t *testing.T) {
	o := &observed{Options: &Defaults, hpa: &autoscalingv2.HorizontalPodAutoscaler{}, scale: &autoscalingv1.Scale{}}
	for value, want := range map[int64]int32{0: 0, 500: 1, 1000: 1, 2500: 3} {
		if d, err := o.whole(value, 1000); d.replicas != want || err != nil {
			t.Errorf("a value of %d: %d, %v, want %d", value, d.replicas, err, want)
		}
		if d := o.shared(value, 1000); d.replicas != want {
			t.Errorf("%d for each: %d, want %d", value, d.replicas, want)
		}
	}
}

// A percentage of nothing is nothing, but the first pod is not too fast for it.
func TestRatesFromZero(t *testing.T) {
	percent := []autoscalingv2.HPAScalingPolicy{{Type: autoscalingv2.PercentScalingPolicy, Value: 50, PeriodSeconds: 60}}
	b := bounds{0, 0, 10, &autoscalingv2.HorizontalPodAutoscalerBehavior{ScaleUp: &autoscalingv2.HPAScalingRules{Policies: percent}}, 0, noon}
	if n, _ := withinRates(b, history{}, 5); n != 1 {
		t.Errorf("%d pods", n)
	}
	b.behavior.ScaleUp.SelectPolicy = new(autoscalingv2.DisabledPolicySelect)
	if n, _ := withinRates(b, history{}, 5); n != 0 {
		t.Errorf("%d pods where none may be added", n)
	}
}
