package disruption

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

var now = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

type change func(*policyv1.PodDisruptionBudget)

func atLeast(v intstr.IntOrString) change {
	return func(b *policyv1.PodDisruptionBudget) { b.Spec.MinAvailable = &v }
}

func atMost(v intstr.IntOrString) change {
	return func(b *policyv1.PodDisruptionBudget) { b.Spec.MaxUnavailable = &v }
}

// granted notes the eviction of a pod some seconds ago.
func granted(pod string, seconds int) change {
	return func(b *policyv1.PodDisruptionBudget) {
		if b.Status.DisruptedPods == nil {
			b.Status.DisruptedPods = map[string]metav1.Time{}
		}
		b.Status.DisruptedPods[pod] = metav1.NewTime(now.Add(-time.Duration(seconds) * time.Second))
	}
}

func budget(changes ...change) *policyv1.PodDisruptionBudget {
	b := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "b", Generation: 4}}
	for _, c := range changes {
		c(b)
	}
	return b
}

// given returns the facts of a budget for pods in these states (ready, unready, dying), each of one
// controller with the scale; a state with a ! in front is that of a pod without a controller.
func given(b *policyv1.PodDisruptionBudget, states string, scale int32) facts {
	f := facts{budget: b, now: now, scales: map[types.UID]int32{"rs": scale}}
	for i, state := range strings.Fields(states) {
		state, alone := strings.CutPrefix(state, "!")
		p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "p" + strconv.Itoa(i)}}
		if !alone {
			p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "rs", UID: "rs", Controller: new(true)}}
		}
		switch state {
		case "dying":
			p.DeletionTimestamp = new(metav1.NewTime(now))
			fallthrough
		case "ready":
			p.Status.Conditions = []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue}}
		case "unready":
		default:
			panic(state)
		}
		f.pods = append(f.pods, p)
	}
	return f
}

func TestPlan(t *testing.T) {
	n, percent := intstr.FromInt32, intstr.FromString
	for name, tt := range map[string]struct {
		budget *policyv1.PodDisruptionBudget
		pods   string
		scale  int32
		want   string
	}{
		"neither":                        {budget(), "ready ready", 2, "2/0 of 0 allows 0 disrupted []"},
		"no pods":                        {budget(atLeast(n(1))), "", 0, "0/1 of 0 allows 0 disrupted [] NoPods"},
		"at least one":                   {budget(atLeast(n(1))), "ready ready ready", 0, "3/1 of 3 allows 2 disrupted []"},
		"at least one, one not ready":    {budget(atLeast(n(1))), "ready unready", 0, "1/1 of 2 allows 0 disrupted []"},
		"at least more than there are":   {budget(atLeast(n(5))), "ready ready", 0, "2/5 of 2 allows 0 disrupted []"},
		"at least a share, rounded up":   {budget(atLeast(percent("50%"))), "ready ready ready", 3, "3/2 of 3 allows 1 disrupted []"},
		"a share of what should be":      {budget(atLeast(percent("50%"))), "ready ready", 10, "2/5 of 10 allows 0 disrupted []"},
		"at least, alone":                {budget(atLeast(n(1))), "!ready !ready", 0, "2/1 of 2 allows 1 disrupted []"},
		"a share, alone":                 {budget(atLeast(percent("50%"))), "!ready ready", 1, "2/1 of 1 allows 1 disrupted [] UnmanagedPods"},
		"at most one":                    {budget(atMost(n(1))), "ready ready ready", 3, "3/2 of 3 allows 1 disrupted []"},
		"at most one, one is missing":    {budget(atMost(n(1))), "ready ready", 3, "2/2 of 3 allows 0 disrupted []"},
		"at most more than there are":    {budget(atMost(n(5))), "ready ready", 2, "2/0 of 2 allows 2 disrupted []"},
		"at most a share, rounded up":    {budget(atMost(percent("30%"))), "ready ready ready ready", 4, "4/2 of 4 allows 2 disrupted []"},
		"at most none":                   {budget(atMost(n(0))), "ready ready", 2, "2/2 of 2 allows 0 disrupted []"},
		"scaled to none":                 {budget(atMost(n(1))), "ready", 0, "1/0 of 0 allows 0 disrupted []"},
		"one is ending":                  {budget(atMost(n(1))), "ready ready dying", 3, "2/2 of 3 allows 0 disrupted []"},
		"one was granted":                {budget(atMost(n(1)), granted("p0", 10)), "ready ready ready", 3, "2/2 of 3 allows 0 disrupted [p0] again 1m50s"},
		"one was granted, and is ending": {budget(atMost(n(1)), granted("p2", 10)), "ready ready dying", 3, "2/2 of 3 allows 0 disrupted []"},
		"one was granted, and is gone":   {budget(atMost(n(1)), granted("p9", 10)), "ready ready", 3, "2/2 of 3 allows 0 disrupted []"},
		"one was granted in vain":        {budget(atMost(n(1)), granted("p0", 120)), "ready ready ready", 3, "3/2 of 3 allows 1 disrupted [] NotDeleted:p0"},
		"the next one ends first":        {budget(atMost(n(2)), granted("p0", 30), granted("p1", 90)), "ready ready ready", 3, "1/1 of 3 allows 0 disrupted [p0 p1] again 30s"},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := planFor(given(tt.budget, tt.pods, tt.scale))
			if err != nil {
				t.Fatal(err)
			}
			if got := describe(p); got != tt.want {
				t.Errorf("got %s\nwant %s", got, tt.want)
			}
			checkCondition(t, p.status)
		})
	}
}

func describe(p plan) string {
	st := p.status.Status
	var disrupted []string
	for i := range 10 {
		if _, ok := st.DisruptedPods["p"+strconv.Itoa(i)]; ok {
			disrupted = append(disrupted, "p"+strconv.Itoa(i))
		}
	}
	out := fmt.Sprintf("%d/%d of %d allows %d disrupted %v", st.CurrentHealthy, st.DesiredHealthy, st.ExpectedPods, st.DisruptionsAllowed, disrupted)
	for _, e := range p.events {
		out += " " + e.reason
		if e.pod != nil {
			out += ":" + e.pod.Name
		}
	}
	if p.recheck > 0 {
		out += " again " + p.recheck.String()
	}
	return out
}

func checkCondition(t *testing.T, b *policyv1.PodDisruptionBudget) {
	t.Helper()
	c := meta.FindStatusCondition(b.Status.Conditions, policyv1.DisruptionAllowedCondition)
	want, reason := metav1.ConditionFalse, policyv1.InsufficientPodsReason
	if b.Status.DisruptionsAllowed > 0 {
		want, reason = metav1.ConditionTrue, policyv1.SufficientPodsReason
	}
	if c == nil || c.Status != want || c.Reason != reason || b.Status.ObservedGeneration != 4 || c.ObservedGeneration != 4 {
		t.Errorf("condition %+v", c)
	}
}

// What is as it should be is not written again, and nobody is told twice.
func TestAPlanEnds(t *testing.T) {
	f := given(budget(atMost(intstr.FromString("50%")), granted("p0", 10)), "ready !ready", 2)
	p, err := planFor(f)
	if err != nil {
		t.Fatal(err)
	}
	f.budget = p.status
	if p, err = planFor(f); err != nil || p.status != nil || len(p.events) > 0 {
		t.Errorf("%+v, %v", p, err)
	}
}

func TestFailed(t *testing.T) {
	b := budget()
	b.Status.DisruptionsAllowed = 3
	next := failed(b, errors.New("no idea"))
	c := meta.FindStatusCondition(next.Status.Conditions, policyv1.DisruptionAllowedCondition)
	if next.Status.DisruptionsAllowed != 0 || c.Status != metav1.ConditionFalse || c.Reason != policyv1.SyncFailedReason || c.Message != "no idea" {
		t.Errorf("%+v", next.Status)
	}
	if failed(next, errors.New("no idea")) != nil {
		t.Error("the same failure is written again")
	}
	if failed(next, errors.New("another")) == nil {
		t.Error("another failure is not written")
	}
}

func TestStale(t *testing.T) {
	for name, tt := range map[string]struct {
		status v1.ConditionStatus
		reason string
		phase  v1.PodPhase
		dying  bool
		age    time.Duration
		want   time.Duration
		ever   bool
	}{
		"just now":        {v1.ConditionTrue, "EvictionByEvictionAPI", v1.PodRunning, false, time.Minute, time.Minute, true},
		"long ago":        {v1.ConditionTrue, "EvictionByEvictionAPI", v1.PodRunning, false, time.Hour, 0, true},
		"taken back":      {v1.ConditionFalse, "", v1.PodRunning, false, time.Hour, 0, false},
		"by the kubelet":  {v1.ConditionTrue, "TerminationByKubelet", v1.PodRunning, false, time.Hour, 0, false},
		"on its way":      {v1.ConditionTrue, "EvictionByEvictionAPI", v1.PodRunning, true, time.Hour, 0, false},
		"it has ended":    {v1.ConditionTrue, "EvictionByEvictionAPI", v1.PodFailed, false, time.Hour, 0, false},
		"never disrupted": {"", "", v1.PodRunning, false, 0, 0, false},
	} {
		p := &v1.Pod{Status: v1.PodStatus{Phase: tt.phase}}
		if tt.status != "" {
			p.Status.Conditions = []v1.PodCondition{{Type: v1.DisruptionTarget, Status: tt.status, Reason: tt.reason, LastTransitionTime: metav1.NewTime(now.Add(-tt.age))}}
		}
		if tt.dying {
			p.DeletionTimestamp = new(metav1.NewTime(now))
		}
		if wait, ever := staleIn(p, now); wait != tt.want || ever != tt.ever {
			t.Errorf("%s: %v, %v", name, wait, ever)
		}
	}
}
