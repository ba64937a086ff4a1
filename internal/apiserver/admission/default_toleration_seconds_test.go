package admission

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/admission"
)

func TestDefaultTolerations(t *testing.T) {
	const ready, reachable = corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable
	for name, tc := range map[string]struct {
		has  []corev1.Toleration
		want []string // the keys that are added
	}{
		"none":               {nil, []string{ready, reachable}},
		"one of them":        {[]corev1.Toleration{{Key: ready, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute}}, []string{reachable}},
		"any effect":         {[]corev1.Toleration{{Key: reachable, Operator: corev1.TolerationOpExists}}, []string{ready}},
		"another effect":     {[]corev1.Toleration{{Key: ready, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}}, []string{ready, reachable}},
		"everything":         {[]corev1.Toleration{{Operator: corev1.TolerationOpExists}}, nil},
		"every NoExecute":    {[]corev1.Toleration{{Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute}}, nil},
		"every NoSchedule":   {[]corev1.Toleration{{Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}}, []string{ready, reachable}},
		"for a shorter time": {[]corev1.Toleration{{Key: ready, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: new(int64(5))}}, []string{reachable}},
	} {
		t.Run(name, func(t *testing.T) {
			pod := podOn("", func(p *corev1.Pod) { p.Spec.Tolerations = slices.Clone(tc.has) })
			a := attributes(nil, admission.Create, podsResource, "", pod, nil)
			if err := (defaultTolerationSeconds{TolerationSeconds{NotReady: 300, Unreachable: 300}}).Admit(t.Context(), a, nil); err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, tol := range pod.Spec.Tolerations[len(tc.has):] {
				if tol.Operator != corev1.TolerationOpExists || tol.Effect != corev1.TaintEffectNoExecute || *tol.TolerationSeconds != 300 {
					t.Errorf("added %+v", tol)
				}
				got = append(got, tol.Key)
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("added %q, want %q", got, tc.want)
			}
		})
	}
}
