package tainteviction

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestEvictionTime(t *testing.T) {
	added := metav1.NewTime(time.Unix(1000, 0))
	taint := func(key string, effect v1.TaintEffect) v1.Taint {
		return v1.Taint{Key: key, Effect: effect, TimeAdded: &added}
	}
	exists := func(key string, seconds ...int64) v1.Toleration {
		tol := v1.Toleration{Key: key, Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoExecute}
		if len(seconds) > 0 {
			tol.TolerationSeconds = &seconds[0]
		}
		return tol
	}
	for name, tc := range map[string]struct {
		taints      []v1.Taint
		tolerations []v1.Toleration
		evict       bool
		after       time.Duration
	}{
		"no taint":                 {},
		"NoSchedule only":          {taints: []v1.Taint{taint("a", v1.TaintEffectNoSchedule)}},
		"not tolerated":            {taints: []v1.Taint{taint("a", v1.TaintEffectNoExecute)}, evict: true},
		"tolerated for ever":       {taints: []v1.Taint{taint("a", v1.TaintEffectNoExecute)}, tolerations: []v1.Toleration{exists("a")}},
		"tolerated for a while":    {[]v1.Taint{taint("a", v1.TaintEffectNoExecute)}, []v1.Toleration{exists("a", 300)}, true, 300 * time.Second},
		"the shorter of two":       {[]v1.Taint{taint("a", v1.TaintEffectNoExecute)}, []v1.Toleration{exists("a"), exists("a", 20)}, true, 20 * time.Second},
		"the shorter, other order": {[]v1.Taint{taint("a", v1.TaintEffectNoExecute)}, []v1.Toleration{exists("a", 20), exists("a")}, true, 20 * time.Second},
		"one of two taints": {[]v1.Taint{taint("a", v1.TaintEffectNoExecute), taint("b", v1.TaintEffectNoExecute)},
			[]v1.Toleration{exists("a"), exists("b", 5)}, true, 5 * time.Second},
		"a negative time is none": {[]v1.Taint{taint("a", v1.TaintEffectNoExecute)}, []v1.Toleration{exists("a", -1)}, true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			at, evict := evictionTime(t.Context(), &v1.Pod{Spec: v1.PodSpec{Tolerations: tc.tolerations}}, tc.taints)
			if evict != tc.evict || evict && !at.Equal(added.Add(tc.after)) {
				t.Errorf("evict %v at %v, want %v after %v", evict, at, tc.evict, tc.after)
			}
		})
	}
}
