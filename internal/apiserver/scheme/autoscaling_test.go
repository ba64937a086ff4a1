package scheme

import (
	"math/rand"
	"testing"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/diff"
	"sigs.k8s.io/randfill"

	"wherry.dev/internal/api/defaults"
)

var journeys = New()

// filler makes objects whose values survive a journey through JSON.
func filler(seed int64) *randfill.Filler {
	return randfill.New().RandSource(rand.NewSource(seed)).NilChance(.3).NumElements(0, 3).Funcs(
		func(t *metav1.Time, c randfill.Continue) { *t = metav1.Unix(int64(c.Uint32()), 0) },
		func(q *resource.Quantity, c randfill.Continue) {
			*q = *resource.NewMilliQuantity(1+c.Int63n(1e9), resource.DecimalSI)
		},
		func(m *metav1.ObjectMeta, c randfill.Continue) {
			*m = metav1.ObjectMeta{Name: c.String(8), Namespace: c.String(8)}
			if c.Bool() {
				m.Annotations = map[string]string{"a": c.String(5)}
			}
		},
		func(t *metav1.TypeMeta, _ randfill.Continue) { *t = metav1.TypeMeta{} },
		func(t *autoscalingv2.MetricTarget, c randfill.Continue) { *t = target(c) },
		func(m *autoscalingv2.MetricSpec, c randfill.Continue) { *m = spec(c) },
	)
}

func amount(c randfill.Continue) *resource.Quantity {
	return resource.NewMilliQuantity(1+c.Int63n(1e9), resource.DecimalSI)
}

// target returns a target whose type says which field is set, as valid ones do.
func target(c randfill.Continue) autoscalingv2.MetricTarget {
	switch c.Intn(3) {
	case 0:
		return autoscalingv2.MetricTarget{Type: autoscalingv2.UtilizationMetricType, AverageUtilization: new(c.Int31n(200) + 1)}
	case 1:
		return autoscalingv2.MetricTarget{Type: autoscalingv2.ValueMetricType, Value: amount(c)}
	}
	return autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType, AverageValue: amount(c)}
}

// spec returns a metric that v1 has no field for.
func spec(c randfill.Continue) autoscalingv2.MetricSpec {
	average := autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType, AverageValue: amount(c)}
	value := average
	if c.Bool() {
		value = autoscalingv2.MetricTarget{Type: autoscalingv2.ValueMetricType, Value: amount(c)}
	}
	share := average
	if c.Bool() {
		share = autoscalingv2.MetricTarget{Type: autoscalingv2.UtilizationMetricType, AverageUtilization: new(c.Int31n(200) + 1)}
	}
	id := autoscalingv2.MetricIdentifier{Name: c.String(8)}
	if c.Bool() {
		id.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"x": c.String(3)}}
	}
	switch c.Intn(5) {
	case 0:
		return autoscalingv2.MetricSpec{Type: autoscalingv2.ObjectMetricSourceType, Object: &autoscalingv2.ObjectMetricSource{
			DescribedObject: autoscalingv2.CrossVersionObjectReference{APIVersion: "v1", Kind: "Service", Name: c.String(3)}, Metric: id, Target: value,
		}}
	case 1:
		return autoscalingv2.MetricSpec{Type: autoscalingv2.PodsMetricSourceType, Pods: &autoscalingv2.PodsMetricSource{Metric: id, Target: average}}
	case 2:
		return autoscalingv2.MetricSpec{Type: autoscalingv2.ResourceMetricSourceType, Resource: &autoscalingv2.ResourceMetricSource{Name: corev1.ResourceMemory, Target: share}}
	case 3:
		return autoscalingv2.MetricSpec{Type: autoscalingv2.ContainerResourceMetricSourceType, ContainerResource: &autoscalingv2.ContainerResourceMetricSource{
			Name: corev1.ResourceCPU, Container: c.String(3), Target: share,
		}}
	}
	return autoscalingv2.MetricSpec{Type: autoscalingv2.ExternalMetricSourceType, External: &autoscalingv2.ExternalMetricSource{Metric: id, Target: value}}
}

func toV1(t *testing.T, in *autoscalingv2.HorizontalPodAutoscaler) *autoscalingv1.HorizontalPodAutoscaler {
	t.Helper()
	out, kept := &autoscalingv1.HorizontalPodAutoscaler{}, in.DeepCopy()
	if err := journeys.Convert(in, out, nil); err != nil {
		t.Fatal(err)
	}
	if !apiequality.Semantic.DeepEqual(in, kept) {
		t.Errorf("the conversion changed its input: %s", diff.ObjectGoPrintSideBySide(kept, in))
	}
	return out
}

func fromV1(t *testing.T, in *autoscalingv1.HorizontalPodAutoscaler) *autoscalingv2.HorizontalPodAutoscaler {
	t.Helper()
	out, kept := &autoscalingv2.HorizontalPodAutoscaler{}, in.DeepCopy()
	if err := journeys.Convert(in, out, nil); err != nil {
		t.Fatal(err)
	}
	if !apiequality.Semantic.DeepEqual(in, kept) {
		t.Errorf("the conversion changed its input: %s", diff.ObjectGoPrintSideBySide(kept, in))
	}
	return out
}

// FuzzAutoscalersKeepAllTheyHave: v2 → v1 → v2 loses nothing, and so does v1 → v2 → v1.
func FuzzAutoscalersKeepAllTheyHave(f *testing.F) {
	for seed := range int64(50) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed int64) {
		a := &autoscalingv2.HorizontalPodAutoscaler{}
		filler(seed).Fill(a)
		// v1 has no place for these: all statuses have an average or a value there.
		a.Status.CurrentMetrics = nil
		if a.Spec.Behavior != nil && *a.Spec.Behavior == (autoscalingv2.HorizontalPodAutoscalerBehavior{}) {
			a.Spec.Behavior = nil
		}
		if len(a.Spec.Metrics) == 0 || seed%2 == 0 {
			// The one that has a field of v1 comes back as the last.
			a.Spec.Metrics = append(a.Spec.Metrics, defaults.CPUTarget(int32(seed%100)+1))
		}
		if back := fromV1(t, toV1(t, a)); !apiequality.Semantic.DeepEqual(a, back) {
			t.Errorf("v2 → v1 → v2: %s", diff.ObjectGoPrintSideBySide(a, back))
		}
		old := &autoscalingv1.HorizontalPodAutoscaler{}
		filler(seed).Fill(old)
		old.Status.CurrentCPUUtilizationPercentage = nil
		if old.Spec.TargetCPUUtilizationPercentage == nil {
			old.Spec.TargetCPUUtilizationPercentage = new(int32(70))
		}
		if back := toV1(t, fromV1(t, old)); !apiequality.Semantic.DeepEqual(old, back) {
			t.Errorf("v1 → v2 → v1: %s", diff.ObjectGoPrintSideBySide(old, back))
		}
	})
}

// TestConvertedOnceAutoscalersAreStable: whatever an object is, another journey changes nothing more.
func TestConvertedOnceAutoscalersAreStable(t *testing.T) {
	for seed := range int64(300) {
		a := &autoscalingv2.HorizontalPodAutoscaler{}
		filler(seed).Fill(a)
		once := fromV1(t, toV1(t, a))
		if twice := fromV1(t, toV1(t, once)); !apiequality.Semantic.DeepEqual(once, twice) {
			t.Fatalf("seed %d: %s", seed, diff.ObjectGoPrintSideBySide(once, twice))
		}
	}
}

func TestAutoscalersOfV1(t *testing.T) {
	const behaves = `{"ScaleUp":null,"ScaleDown":{"StabilizationWindowSeconds":60,"SelectPolicy":"Min","Policies":[{"Type":"Pods","Value":1,"PeriodSeconds":15}],"Tolerance":null}}`
	in := &autoscalingv1.HorizontalPodAutoscaler{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{
		"mine":               "x",
		behaviorAnnotation:   behaves,
		metricsAnnotation:    `not JSON`,
		conditionsAnnotation: `[{"type":"AbleToScale","status":"True","lastTransitionTime":null}]`,
	}}}
	out := fromV1(t, in)
	if len(out.Annotations) != 1 || *out.Spec.Behavior.ScaleDown.SelectPolicy != autoscalingv2.MinChangePolicySelect || len(out.Status.Conditions) != 1 {
		t.Errorf("%+v", out)
	}
	if len(out.Spec.Metrics) != 1 || *out.Spec.Metrics[0].Resource.Target.AverageUtilization != 80 {
		t.Errorf("annotations that cannot be read: %+v", out.Spec.Metrics)
	}
	if text := toV1(t, out).Annotations[behaviorAnnotation]; text != behaves {
		t.Errorf("the annotation is not upstream's: %s", text)
	}
	// Two targets of CPU utilization: the second stays in the annotation.
	out.Spec.Metrics = append(out.Spec.Metrics, defaults.CPUTarget(30))
	if back := fromV1(t, toV1(t, out)); len(back.Spec.Metrics) != 2 {
		t.Errorf("%+v", back.Spec.Metrics)
	}
}
