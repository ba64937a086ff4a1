package plugins

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
)

// TestAPodMayBecomeTheFirstOfItsKind: one that wants to be beside its own kind may go anywhere when the last of them is
// gone.
func TestAPodMayBecomeTheFirstOfItsKind(t *testing.T) {
	a := &InterPodAffinity{namespaces: corelisters.NewNamespaceLister(cache.NewIndexer(cache.MetaNamespaceKeyFunc, nil))}
	labelled := func(app string) *v1.Pod {
		p := &v1.Pod{}
		p.Labels = map[string]string{"app": app}
		p.Spec.NodeName = "n"
		return p
	}
	beside := func(app string) *v1.Pod {
		p := labelled("a")
		p.Spec.NodeName = ""
		p.Spec.Affinity = &v1.Affinity{PodAffinity: &v1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []v1.PodAffinityTerm{{
			TopologyKey: v1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}},
		}}}}
		return p
	}
	for name, tc := range map[string]struct {
		pod      *v1.Pod
		old, obj any
		want     fwk.QueueingHint
	}{
		"one of its own goes":       {beside("a"), labelled("a"), nil, fwk.Queue},
		"one of its own changes":    {beside("a"), labelled("a"), labelled("b"), fwk.Queue},
		"a friend of others goes":   {beside("b"), labelled("b"), nil, fwk.QueueSkip},
		"somebody else goes":        {beside("a"), labelled("b"), nil, fwk.QueueSkip},
		"one of its own stays":      {beside("a"), labelled("a"), labelled("a"), fwk.QueueSkip},
		"one of its own has a node": {beside("a"), nil, labelled("a"), fwk.Queue},
	} {
		got, err := a.hint(klog.Background(), tc.pod, tc.old, tc.obj)
		if err != nil || got != tc.want {
			t.Errorf("%s: %v, %v; want %v", name, got, err, tc.want)
		}
	}
}

// TestScoresAreRoundedAsUpstreams: 58 of 100 is 57, because fractions are multiplied; with whole numbers another node
// could be the best one.
func TestScoresAreRoundedAsUpstreams(t *testing.T) {
	scores := fwk.NodeScoreList{{Name: "a", Score: -74}, {Name: "b", Score: -16}, {Name: "c", Score: 0}, {Name: "d", Score: 26}}
	if st := (&InterPodAffinity{}).NormalizeScore(t.Context(), nil, nil, scores); !st.IsSuccess() {
		t.Fatal(st)
	}
	for i, want := range []int64{0, 57, 74, 100} {
		if scores[i].Score != want {
			t.Errorf("%s: %d, want %d", scores[i].Name, scores[i].Score, want)
		}
	}
}
