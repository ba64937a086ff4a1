package daemonset

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

var now = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

type change func(*appsv1.DaemonSet)

func onDelete(ds *appsv1.DaemonSet) {
	ds.Spec.UpdateStrategy = appsv1.DaemonSetUpdateStrategy{Type: appsv1.OnDeleteDaemonSetStrategyType}
}

func rolling(surge, unavailable intstr.IntOrString) change {
	return func(ds *appsv1.DaemonSet) {
		ds.Spec.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateDaemonSet{MaxSurge: &surge, MaxUnavailable: &unavailable}
	}
}

func surge(n int32) change { return rolling(intstr.FromInt32(n), intstr.FromInt32(0)) }
func most(n int32) change  { return rolling(intstr.FromInt32(0), intstr.FromInt32(n)) }

func share(percent string) change   { return rolling(intstr.FromInt32(0), intstr.FromString(percent)) }
func minReady(ds *appsv1.DaemonSet) { ds.Spec.MinReadySeconds = 30 }

func daemon(changes ...change) *appsv1.DaemonSet {
	ds := &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "d", UID: "ds", Generation: 3, Annotations: map[string]string{appsv1.DeprecatedTemplateGeneration: "2"}},
		Spec: appsv1.DaemonSetSpec{
			Selector:       &metav1.LabelSelector{MatchLabels: map[string]string{"app": "d"}},
			Template:       v1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "d"}}},
			UpdateStrategy: appsv1.DaemonSetUpdateStrategy{Type: appsv1.RollingUpdateDaemonSetStrategyType},
		},
	}
	most(1)(ds)
	for _, c := range changes {
		c(ds)
	}
	return ds
}

// given returns the facts of a daemon set whose template is v2. nodes are separated by bars. Each has
// words: "tainted" or "evicting" for its taints, "nowhere" if there is no such node, and its pods: a
// revision and a state, with a + in front if the pod is not bound yet.
func given(ds *appsv1.DaemonSet, nodes string) facts {
	f := facts{ds: ds, hash: "v2", now: now, backoff: func(string) time.Duration { return 0 }}
	for i, text := range strings.Split(nodes, "|") {
		n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n" + strconv.Itoa(i)}}
		exists, its := true, 0
		for word := range strings.FieldsSeq(text) {
			switch word {
			case "tainted":
				n.Spec.Taints = append(n.Spec.Taints, v1.Taint{Key: "k", Effect: v1.TaintEffectNoSchedule})
			case "evicting":
				n.Spec.Taints = append(n.Spec.Taints, v1.Taint{Key: "k", Effect: v1.TaintEffectNoExecute})
			case "nowhere":
				exists = false
			default:
				f.pods = append(f.pods, podOn(ds, n.Name, word, its))
				its++
			}
		}
		if exists {
			f.nodes = append(f.nodes, n)
		}
	}
	return f
}

func podOn(ds *appsv1.DaemonSet, node, word string, age int) *v1.Pod {
	word, unbound := strings.CutPrefix(word, "+")
	hash, state, _ := strings.Cut(word, ":")
	p := newPod(ds, node, hash)
	p.Name = node + "-" + strconv.Itoa(age)
	p.UID = types.UID(p.Name)
	p.CreationTimestamp = metav1.NewTime(now.Add(time.Duration(age) * time.Second))
	p.Labels[templateGenerationKey] = strings.TrimPrefix(hash, "v")
	p.Status.Phase = v1.PodRunning
	if !unbound {
		p.Spec.NodeName = node
	}
	ready := func(since time.Duration) {
		p.Status.Conditions = []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue, LastTransitionTime: metav1.NewTime(now.Add(-since))}}
	}
	switch state {
	case "ready":
		ready(time.Hour)
	case "just":
		ready(10 * time.Second)
	case "dying":
		ready(time.Hour)
		p.DeletionTimestamp = new(metav1.NewTime(now))
	case "failed":
		p.Status.Phase = v1.PodFailed
	case "gone":
		p.Status.Phase, p.DeletionTimestamp = v1.PodFailed, new(metav1.NewTime(now))
	case "succeeded":
		p.Status.Phase = v1.PodSucceeded
	case "unready":
	default:
		panic(state)
	}
	return p
}

func doing(p plan) string {
	var words []string
	for _, n := range p.create {
		words = append(words, "+"+strings.TrimPrefix(n, "n"))
	}
	for _, pod := range p.remove {
		words = append(words, "-"+strings.TrimPrefix(pod.Name, "n"))
	}
	for _, n := range p.failed {
		words = append(words, "failed:"+strings.TrimPrefix(n, "n"))
	}
	return strings.Join(words, " ")
}

func TestPlan(t *testing.T) {
	for name, tt := range map[string]struct {
		ds    *appsv1.DaemonSet
		nodes string
		want  string
	}{
		"a pod for each node":                   {daemon(), " | ", "+0 +1"},
		"only where it is missing":              {daemon(), "v2:ready | | v2:unready", "+1"},
		"not where a taint is not tolerated":    {daemon(), "tainted | evicting |", "+2"},
		"stays on a tainted node":               {daemon(), "tainted v2:ready", ""},
		"does not stay where it is evicted":     {daemon(), "evicting v2:ready", "-0-0"},
		"two of a tainted node":                 {daemon(), "tainted v2:ready v2:ready", "-0-1"},
		"the oldest stays":                      {daemon(), "v2:ready v2:ready v2:ready", "-0-1 -0-2"},
		"a bound one stays":                     {daemon(), "+v2:unready v2:ready", "-0-0"},
		"one that is ending is waited for":      {daemon(), "v2:dying", ""},
		"one that ended and is over":            {daemon(), "v2:gone", "+0"},
		"a failed one is replaced":              {daemon(), "v2:failed", "-0-0 failed:0"},
		"one that succeeded is replaced":        {daemon(), "v2:succeeded", "-0-0"},
		"an unbound one without a node":         {daemon(), "nowhere +v2:unready |v2:ready", "-0-0"},
		"a bound one without a node":            {daemon(), "nowhere v2:ready|v2:ready", ""},
		"a node by its name":                    {daemon(func(ds *appsv1.DaemonSet) { ds.Spec.Template.Spec.NodeName = "n1" }), "v2:ready | |", "+1 -0-0"},
		"no node by its labels":                 {daemon(func(ds *appsv1.DaemonSet) { ds.Spec.Template.Spec.NodeSelector = map[string]string{"a": "b"} }), "v2:ready |", "-0-0"},
		"rolling: one at a time":                {daemon(), "v1:ready | v1:ready", "-0-0"},
		"rolling: waits for the new one":        {daemon(), "v2:unready | v1:ready", ""},
		"rolling: waits for what is missing":    {daemon(), " | v1:ready", "+0"},
		"rolling: waits for what is ending":     {daemon(), "v1:dying | v1:ready", ""},
		"rolling: waits for minReadySeconds":    {daemon(minReady), "v2:just | v1:ready", ""},
		"rolling: the next":                     {daemon(minReady), "v2:ready | v1:ready", "-1-0"},
		"rolling: broken old ones go at once":   {daemon(), "v1:unready | v1:unready | v1:ready", "-0-0 -1-0"},
		"rolling: two at a time":                {daemon(most(2)), "v1:ready | v1:ready | v1:ready", "-0-0 -1-0"},
		"rolling: a share, rounded up":          {daemon(share("34%")), "v1:ready | v1:ready | v1:ready", "-0-0 -1-0"},
		"rolling: neither, so one":              {daemon(most(0)), "v1:ready | v1:ready", "-0-0"},
		"rolling: repairs come first":           {daemon(), "v1:ready v1:ready | v1:ready", "-0-1"},
		"rolling: of the same generation":       {daemon(func(ds *appsv1.DaemonSet) { ds.Annotations[appsv1.DeprecatedTemplateGeneration] = "1" }), "v1:ready", ""},
		"on delete":                             {daemon(onDelete), "v1:ready | ", "+1"},
		"on delete, all there":                  {daemon(onDelete), "v1:ready | v1:unready", ""},
		"surge: the new one beside the old":     {daemon(surge(1)), "v1:ready | v1:ready", "+0"},
		"surge: the new one is not ready":       {daemon(surge(1)), "v1:ready v2:unready | v1:ready", ""},
		"surge: the new one is ready":           {daemon(surge(1)), "v1:ready v2:ready | v1:ready", "-0-0"},
		"surge: minReadySeconds":                {daemon(surge(1), minReady), "v1:ready v2:just | v1:ready", ""},
		"surge: the old one broke":              {daemon(surge(1)), "v1:unready v2:unready | v1:ready", "-0-0"},
		"surge: the next":                       {daemon(surge(1)), "v2:ready | v1:ready", "+1"},
		"surge: broken old ones at once":        {daemon(surge(1)), "v1:unready | v1:unready | v1:ready", "+0 +1 +2"},
		"surge: too many of one side":           {daemon(surge(1)), "v1:ready v1:ready v2:unready v2:unready", "-0-1 -0-3"},
		"surge: one that is ending is replaced": {daemon(surge(1)), "v2:dying", "+0"},
		"surge: ends on a tainted node":         {daemon(surge(1)), "tainted v1:ready | v2:ready", "-0-0"},
		"surge: not before there are enough":    {daemon(surge(1)), "tainted v1:ready | v2:unready", ""},
		"surge: a broken one on a tainted node": {daemon(surge(1)), "tainted v1:unready | v2:unready", "-0-0"},
		"surge: two at a time":                  {daemon(surge(2)), "v1:ready | v1:ready | v1:ready", "+0 +1"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := doing(planFor(given(tt.ds, tt.nodes))); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

// A failed pod stays for a while, and no other one is made beside it.
func TestBackoff(t *testing.T) {
	for _, ds := range []*appsv1.DaemonSet{daemon(), daemon(surge(1))} {
		f := given(ds, "v2:failed | v2:failed")
		f.backoff = func(node string) time.Duration {
			if node == "n0" {
				return 7 * time.Second
			}
			return 0
		}
		p := planFor(f)
		if got := doing(p); p.recheck != 7*time.Second || !slices.Equal(p.failed, []string{"n1"}) || slices.Contains(p.create, "n0") || len(p.remove) != 1 {
			t.Errorf("%s, again after %v", got, p.recheck)
		}
		if len(p.events) != 1 || p.events[0].reason != "FailedDaemonPod" || p.events[0].message != "Found failed daemon pod a/n1-0 on node n1, will try to kill it" {
			t.Errorf("events: %+v", p.events)
		}
	}
}

func TestStatus(t *testing.T) {
	for name, tt := range map[string]struct {
		ds    *appsv1.DaemonSet
		nodes string
		want  string
	}{
		"nothing yet":      {daemon(), " | ", "desired 2 current 0 ready 0 updated 0 available 0 unavailable 2 misscheduled 0"},
		"all":              {daemon(), "v2:ready | v2:ready", "desired 2 current 2 ready 2 updated 2 available 2 unavailable 0 misscheduled 0"},
		"in a rollout":     {daemon(), "v2:unready | v1:ready", "desired 2 current 2 ready 1 updated 1 available 1 unavailable 1 misscheduled 0"},
		"just ready":       {daemon(minReady), "v2:just", "desired 1 current 1 ready 1 updated 1 available 0 unavailable 1 misscheduled 0"},
		"on tainted nodes": {daemon(), "tainted v2:ready | tainted |", "desired 1 current 0 ready 0 updated 0 available 0 unavailable 1 misscheduled 1"},
		"surging":          {daemon(surge(1)), "v1:ready v2:unready", "desired 1 current 1 ready 1 updated 0 available 1 unavailable 0 misscheduled 0"},
	} {
		t.Run(name, func(t *testing.T) {
			p := planFor(given(tt.ds, tt.nodes))
			st := p.status
			got := fmt.Sprintf("desired %d current %d ready %d updated %d available %d unavailable %d misscheduled %d", st.DesiredNumberScheduled,
				st.CurrentNumberScheduled, st.NumberReady, st.UpdatedNumberScheduled, st.NumberAvailable, st.NumberUnavailable, st.NumberMisscheduled)
			if got != tt.want || st.ObservedGeneration != 3 {
				t.Errorf("got %s\nwant %s", got, tt.want)
			}
			if wait := p.recheck; (wait == 20*time.Second) != (name == "just ready") {
				t.Errorf("again after %v", wait)
			}
		})
	}
}

// No reconciliation makes or removes more pods than upstream's does.
func TestBurst(t *testing.T) {
	f := given(daemon(), strings.Repeat("|", 999))
	if p := planFor(f); len(p.create) != burst || p.status.DesiredNumberScheduled != 1000 {
		t.Errorf("%d of %d", len(p.create), p.status.DesiredNumberScheduled)
	}
	f = given(daemon(), strings.Repeat("evicting v2:ready|", 999))
	if p := planFor(f); len(p.remove) != burst {
		t.Errorf("%d removed", len(p.remove))
	}
}

func TestNewPod(t *testing.T) {
	ds := daemon(func(ds *appsv1.DaemonSet) {
		ds.Spec.Template.Spec.HostNetwork = true
		ds.Spec.Template.Spec.Tolerations = []v1.Toleration{
			{Key: "mine", Operator: v1.TolerationOpExists},
			{Key: v1.TaintNodeNotReady, Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoExecute, TolerationSeconds: new(int64(300))},
		}
		ds.Spec.Template.Spec.Affinity = &v1.Affinity{
			PodAffinity:  &v1.PodAffinity{},
			NodeAffinity: &v1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{}, {}}}},
		}
	})
	p := newPod(ds, "n7", "h")
	if p.GenerateName != "d-" || p.Labels["app"] != "d" || p.Labels["controller-revision-hash"] != "h" || p.Labels["pod-template-generation"] != "2" || !metav1.IsControlledBy(p, ds) {
		t.Errorf("%+v", p.ObjectMeta)
	}
	if node, ok := nodeOf(p); node != "n7" || !ok || p.Spec.Affinity.PodAffinity == nil || p.Spec.NodeName != "" {
		t.Errorf("affinity %+v", p.Spec.Affinity)
	}
	var keys []string
	for _, tol := range p.Spec.Tolerations {
		if tol.TolerationSeconds != nil || tol.Operator != v1.TolerationOpExists {
			t.Errorf("%+v", tol)
		}
		keys = append(keys, strings.TrimPrefix(tol.Key, "node.kubernetes.io/")+":"+string(tol.Effect))
	}
	want := "mine: not-ready:NoExecute unreachable:NoExecute disk-pressure:NoSchedule memory-pressure:NoSchedule pid-pressure:NoSchedule unschedulable:NoSchedule network-unavailable:NoSchedule"
	if got := strings.Join(keys, " "); got != want {
		t.Errorf("tolerations %s", got)
	}
	if len(ds.Spec.Template.Spec.Tolerations) != 2 || ds.Spec.Template.Spec.Tolerations[1].TolerationSeconds == nil || len(ds.Spec.Template.Labels) != 1 {
		t.Errorf("the template was changed: %+v", ds.Spec.Template)
	}
}

// A pod that was adopted may have any affinity.
func TestNodeOf(t *testing.T) {
	for _, values := range [][]string{nil, {"a", "b"}} {
		p := newPod(daemon(), "n", "h")
		p.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[0].MatchFields[0].Values = values
		if _, ok := nodeOf(p); ok {
			t.Errorf("%v has one node", values)
		}
	}
	if _, ok := nodeOf(&v1.Pod{}); ok {
		t.Error("no affinity has one node")
	}
}
