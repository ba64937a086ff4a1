package horizontalpodautoscaler

import (
	"testing"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
)

var noon = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

func ago(n int32, s int) sized { return sized{n, noon.Add(-time.Duration(s) * time.Second)} }

type policy = autoscalingv2.HPAScalingPolicy

func count(n, period int32) policy {
	return policy{Type: autoscalingv2.PodsScalingPolicy, Value: n, PeriodSeconds: period}
}

func percent(n, period int32) policy {
	return policy{Type: autoscalingv2.PercentScalingPolicy, Value: n, PeriodSeconds: period}
}

func rules(choose autoscalingv2.ScalingPolicySelect, window int32, policies ...policy) *autoscalingv2.HPAScalingRules {
	return &autoscalingv2.HPAScalingRules{SelectPolicy: &choose, StabilizationWindowSeconds: &window, Policies: policies}
}

func TestNormalize(t *testing.T) {
	const most, least, off = autoscalingv2.MaxChangePolicySelect, autoscalingv2.MinChangePolicySelect, autoscalingv2.DisabledPolicySelect
	type behaves = autoscalingv2.HorizontalPodAutoscalerBehavior
	fast := rules(most, 0, percent(100, 15))
	for _, tc := range []struct {
		name          string
		current, want int32
		behavior      *behaves
		history       history
		size          int32
		stable, limit string
	}{
		{"as it is", 5, 5, nil, history{}, 5, "ReadyForNewScale", "DesiredWithinRange"},
		{"doubles at most", 5, 50, nil, history{}, 10, "ReadyForNewScale", "ScaleUpLimit"},
		{"to four at once", 1, 50, nil, history{}, 4, "ReadyForNewScale", "ScaleUpLimit"},
		{"not above the maximum", 60, 150, nil, history{}, 100, "ReadyForNewScale", "TooManyReplicas"},
		{"not below the minimum", 5, 1, nil, history{}, 2, "ReadyForNewScale", "TooFewReplicas"},
		{"shrinks to the highest of late", 9, 3, nil, history{recommended: []sized{ago(8, 299), ago(7, 10)}}, 8, "ScaleDownStabilized", "DesiredWithinRange"},
		{"forgets what was long ago", 9, 3, nil, history{recommended: []sized{ago(8, 301), ago(7, 10)}}, 7, "ScaleDownStabilized", "DesiredWithinRange"},
		{"grows by the larger of two policies", 10, 50, &behaves{ScaleUp: rules(most, 0, count(4, 60), percent(50, 60)), ScaleDown: fast}, history{}, 15, "ReadyForNewScale", "ScaleUpLimit"},
		{"or by the smaller", 10, 50, &behaves{ScaleUp: rules(least, 0, count(4, 60), percent(50, 60)), ScaleDown: fast}, history{}, 14, "ReadyForNewScale", "ScaleUpLimit"},
		{"or not at all", 10, 50, &behaves{ScaleUp: rules(off, 0, count(4, 60)), ScaleDown: fast}, history{}, 10, "ReadyForNewScale", "ScaleUpLimit"},
		{"what grew in the period counts", 14, 50, &behaves{ScaleUp: rules(most, 0, count(4, 60)), ScaleDown: fast}, history{grew: []sized{ago(3, 59), ago(9, 61)}}, 15, "ReadyForNewScale", "ScaleUpLimit"},
		{"a limit below the present size changes nothing", 14, 50, &behaves{ScaleUp: rules(most, 0, count(4, 60)), ScaleDown: fast}, history{grew: []sized{ago(9, 59)}}, 14, "ReadyForNewScale", "ScaleUpLimit"},
		{"ten percent of ten are one", 10, 50, &behaves{ScaleUp: rules(most, 0, percent(10, 60)), ScaleDown: fast}, history{}, 11, "ReadyForNewScale", "ScaleUpLimit"},
		{"a small target grows too", 1, 50, &behaves{ScaleUp: rules(most, 0, percent(10, 60)), ScaleDown: fast}, history{}, 2, "ReadyForNewScale", "ScaleUpLimit"},
		{"shrinks by a policy", 50, 3, &behaves{ScaleUp: fast, ScaleDown: rules(most, 0, percent(10, 60))}, history{}, 45, "ReadyForNewScale", "ScaleDownLimit"},
		{"what shrank in the period counts", 45, 3, &behaves{ScaleUp: fast, ScaleDown: rules(most, 0, percent(10, 60))}, history{shrank: []sized{ago(3, 10)}}, 43, "ReadyForNewScale", "ScaleDownLimit"},
		{"shrinks by the smaller", 50, 3, &behaves{ScaleUp: fast, ScaleDown: rules(least, 0, percent(10, 60), count(1, 60))}, history{}, 49, "ReadyForNewScale", "ScaleDownLimit"},
		{"all at once", 50, 1, &behaves{ScaleUp: fast, ScaleDown: fast}, history{}, 2, "ReadyForNewScale", "TooFewReplicas"},
		{"grows to the lowest of late", 5, 9, &behaves{ScaleUp: rules(most, 60, percent(100, 15)), ScaleDown: fast}, history{recommended: []sized{ago(7, 30)}}, 7, "ScaleUpStabilized", "DesiredWithinRange"},
		{"waits if it was to shrink of late", 5, 9, &behaves{ScaleUp: rules(most, 60, percent(100, 15)), ScaleDown: fast}, history{recommended: []sized{ago(3, 30)}}, 5, "ScaleUpStabilized", "DesiredWithinRange"},
		{"a window of its own", 9, 3, &behaves{ScaleUp: fast, ScaleDown: rules(most, 60, percent(100, 15))}, history{recommended: []sized{ago(8, 61), ago(6, 59)}}, 6, "ScaleDownStabilized", "DesiredWithinRange"},
		{"without one the controller's counts", 9, 3, &behaves{ScaleUp: fast, ScaleDown: &autoscalingv2.HPAScalingRules{Policies: []policy{percent(100, 15)}}}, history{recommended: []sized{ago(8, 299)}}, 8, "ScaleDownStabilized", "DesiredWithinRange"},
		{"great numbers", 90, 100, &behaves{ScaleUp: rules(most, 0, count(1<<31-1, 15)), ScaleDown: fast}, history{}, 100, "ReadyForNewScale", "DesiredWithinRange"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := bounds{tc.current, 2, 100, tc.behavior, 5 * time.Minute, noon}
			v, h := normalize(b, tc.history, tc.want)
			if v.size != tc.size || v.stable.reason != tc.stable || v.limit.reason != tc.limit {
				t.Errorf("%d %s %s, want %d %s %s", v.size, v.stable.reason, v.limit.reason, tc.size, tc.stable, tc.limit)
			}
			if last := h.recommended[len(h.recommended)-1]; last.n != tc.want {
				t.Errorf("remembers %d", last.n)
			}
		})
	}
}

// TestHistoryDoesNotGrow: an autoscaler that is looked at for years remembers a window.
func TestHistoryDoesNotGrow(t *testing.T) {
	behavior := &autoscalingv2.HorizontalPodAutoscalerBehavior{
		ScaleUp: rules(autoscalingv2.MaxChangePolicySelect, 0, count(4, 60)), ScaleDown: rules(autoscalingv2.MaxChangePolicySelect, 300, count(4, 120)),
	}
	var h history
	for i := range 10_000 {
		now := noon.Add(time.Duration(i) * 15 * time.Second)
		b := bounds{int32(5 + i%2), 1, 100, behavior, time.Minute, now}
		_, h = normalize(b, h, 7)
		h = h.scaled(b, int32(6-i%2))
	}
	if len(h.recommended) > 22 || len(h.grew)+len(h.shrank) > 9 {
		t.Errorf("%d recommendations, %d changes", len(h.recommended), len(h.grew)+len(h.shrank))
	}
}
