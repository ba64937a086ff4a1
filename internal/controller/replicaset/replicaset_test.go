package replicaset

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"wherry.dev/internal/api/pods"
)

var now = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

func ago(d time.Duration) metav1.Time { return metav1.NewTime(now.Add(-d)) }

type change func(*v1.Pod)

// pod is a running one on a node of its own, ready since it was created an hour ago, with its name
// as its UID.
func pod(name string, changes ...change) *v1.Pod {
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), CreationTimestamp: ago(time.Hour), Labels: map[string]string{"app": "web", "tier": "front"}},
		Spec:       v1.PodSpec{NodeName: "node-" + name},
		Status:     v1.PodStatus{Phase: v1.PodRunning, Conditions: []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue, LastTransitionTime: ago(time.Hour)}}},
	}
	for _, c := range changes {
		c(p)
	}
	return p
}

func on(node string) change       { return func(p *v1.Pod) { p.Spec.NodeName = node } }
func in(phase v1.PodPhase) change { return func(p *v1.Pod) { p.Status.Phase = phase } }
func born(d time.Duration) change { return func(p *v1.Pod) { p.CreationTimestamp = ago(d) } }
func notReady(p *v1.Pod)          { p.Status.Conditions[0].Status = v1.ConditionFalse }
func dying(p *v1.Pod)             { p.DeletionTimestamp = new(ago(0)) }
func unlabeled(p *v1.Pod)         { delete(p.Labels, "tier") }
func readyFor(d time.Duration) change {
	return func(p *v1.Pod) { p.Status.Conditions[0].LastTransitionTime = ago(d) }
}

func sinceEver(p *v1.Pod) { p.Status.Conditions[0].LastTransitionTime = metav1.Time{} }

func cost(text string) change {
	return func(p *v1.Pod) { p.Annotations = map[string]string{v1.PodDeletionCost: text} }
}

func restarted(n int32) change {
	return func(p *v1.Pod) { p.Status.ContainerStatuses = []v1.ContainerStatus{{Name: "c", RestartCount: n}} }
}

func sidecarRestarted(n int32) change {
	return func(p *v1.Pod) {
		p.Spec.InitContainers = []v1.Container{{Name: "s", RestartPolicy: new(v1.ContainerRestartPolicyAlways)}, {Name: "i"}}
		p.Status.InitContainerStatuses = []v1.ContainerStatus{{Name: "s", RestartCount: n}, {Name: "i", RestartCount: 100}}
	}
}

func names(pods []*v1.Pod) string {
	var out []string
	for _, p := range pods {
		out = append(out, p.Name)
	}
	return strings.Join(out, " ")
}

func TestPlanCounts(t *testing.T) {
	many := make([]*v1.Pod, 1200)
	for i := range many {
		many[i] = pod(fmt.Sprint(i))
	}
	for name, tt := range map[string]struct {
		replicas       int32
		pods           []*v1.Pod
		create, remove int
	}{
		"none wanted, none there": {},
		"as many as wanted":       {replicas: 3, pods: many[:3]},
		"too few":                 {replicas: 5, pods: many[:3], create: 2},
		"too many":                {replicas: 1, pods: many[:3], remove: 2},
		"all":                     {pods: many[:3], remove: 3},
		"a burst of creations":    {replicas: 1200, create: burst},
		"a burst of deletions":    {pods: many, remove: burst},
	} {
		t.Run(name, func(t *testing.T) {
			if got := planFor(tt.replicas, tt.pods, tt.pods, now); got.create != tt.create || len(got.remove) != tt.remove {
				t.Errorf("create %d, remove %d", got.create, len(got.remove))
			}
		})
	}
}

// In each case the pod "a" goes first, because of the rule that the case is about, although the rules
// after it would spare it.
func TestRanking(t *testing.T) {
	for name, tt := range map[string]struct{ a, b, c *v1.Pod }{
		"not on a node": {a: pod("a", on(""), in(v1.PodPending)), b: pod("b", in(v1.PodPending), notReady, restarted(9))},
		"pending":       {a: pod("a", in(v1.PodPending)), b: pod("b", notReady)},
		"unknown":       {a: pod("a", in(v1.PodUnknown)), b: pod("b", notReady)},
		"not ready":     {a: pod("a", notReady, cost("100")), b: pod("b", cost("-100"))},
		"cost":          {a: pod("a", cost("-1")), b: pod("b", on("n"), readyFor(time.Second)), c: pod("c", on("n"))},
		"no valid cost": {a: pod("a", cost("-1")), b: pod("b", cost("+7")), c: pod("c", cost("x"))},
		"shares its node": {
			a: pod("a", on("n"), restarted(1)), b: pod("b", readyFor(time.Second), restarted(9)), c: pod("c", on("n")),
		},
		"ready for a shorter time": {a: pod("a", readyFor(time.Minute)), b: pod("b", restarted(9))},
		"ready since ever":         {a: pod("a", sinceEver), b: pod("b", readyFor(time.Second), restarted(9))},
		"ready about as long, the UID decides": {
			a: pod("a", readyFor(60*time.Minute)), b: pod("b", readyFor(55*time.Minute), restarted(9)),
		},
		"restarts":                     {a: pod("a", restarted(2)), b: pod("b", restarted(1), sidecarRestarted(9))},
		"a sidecar's restarts":         {a: pod("a", sidecarRestarted(2)), b: pod("b", sidecarRestarted(1), born(time.Minute))},
		"younger":                      {a: pod("a", born(time.Minute)), b: pod("b")},
		"of the same age":              {a: pod("a", born(55*time.Minute)), b: pod("b", born(54*time.Minute))},
		"no creation time":             {a: pod("a", func(p *v1.Pod) { p.CreationTimestamp = metav1.Time{} }), b: pod("b", born(time.Second))},
		"ready and born in the future": {a: pod("a", readyFor(-time.Minute)), b: pod("b", readyFor(time.Nanosecond))},
	} {
		t.Run(name, func(t *testing.T) {
			all := []*v1.Pod{tt.b, tt.a}
			if tt.c != nil {
				all = append(all, tt.c)
			}
			if got := planFor(int32(len(all))-1, all, all, now); names(got.remove) != "a" {
				t.Errorf("removes %q", names(got.remove))
			}
			slices.Reverse(all)
			if got := planFor(int32(len(all))-1, all, all, now); names(got.remove) != "a" {
				t.Errorf("reversed, removes %q", names(got.remove))
			}
		})
	}
}

func TestPodsOfSiblingsCountAsNeighbours(t *testing.T) {
	mine := []*v1.Pod{pod("b", on("m")), pod("a", on("n"))}
	sibling := []*v1.Pod{pod("x", on("n")), pod("y", on("m"), dying), pod("z", on("m"), in(v1.PodFailed))}
	if got := planFor(1, mine, append(sibling, mine...), now); names(got.remove) != "a" {
		t.Errorf("removes %q", names(got.remove))
	}
}

// web is a set of a kind with minReadySeconds 30, and 3 replicas.
func web(conditions ...appsv1.ReplicaSetCondition) set {
	rs := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: "web", Generation: 4}}
	return set{
		object: rs, replicas: 3, minReady: 30, selector: labels.SelectorFromSet(labels.Set{"app": "web"}),
		template: &v1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web", "tier": "front"}}},
		status:   appsv1.ReplicaSetStatus{Replicas: 9, Conditions: conditions},
	}
}

func failed(reason, message string, at metav1.Time) appsv1.ReplicaSetCondition {
	return appsv1.ReplicaSetCondition{Type: appsv1.ReplicaSetReplicaFailure, Status: v1.ConditionTrue, Reason: reason, Message: message, LastTransitionTime: at}
}

func TestStatus(t *testing.T) {
	other := appsv1.ReplicaSetCondition{Type: "Other", Status: v1.ConditionTrue}
	for name, tt := range map[string]struct {
		set   set
		facts facts
		want  appsv1.ReplicaSetStatus
	}{
		"nothing": {set: web(), want: appsv1.ReplicaSetStatus{}},
		"counts": {
			set: web(),
			facts: facts{
				active:      []*v1.Pod{pod("a"), pod("b", notReady), pod("c", readyFor(29*time.Second)), pod("d", readyFor(30*time.Second)), pod("e", sinceEver), pod("f", unlabeled)},
				terminating: []*v1.Pod{pod("t", dying)},
			},
			want: appsv1.ReplicaSetStatus{Replicas: 6, FullyLabeledReplicas: 5, ReadyReplicas: 5, AvailableReplicas: 3, TerminatingReplicas: new(int32(1))},
		},
		"too few can be created": {
			set: web(other), facts: facts{failure: errors.New("quota")},
			want: appsv1.ReplicaSetStatus{Conditions: []appsv1.ReplicaSetCondition{other, failed("FailedCreate", "quota", ago(0))}},
		},
		"too many cannot be deleted": {
			set: web(), facts: facts{active: []*v1.Pod{pod("a"), pod("b"), pod("c"), pod("d")}, failure: errors.New("no")},
			want: appsv1.ReplicaSetStatus{
				Replicas: 4, FullyLabeledReplicas: 4, ReadyReplicas: 4, AvailableReplicas: 4,
				Conditions: []appsv1.ReplicaSetCondition{failed("FailedDelete", "no", ago(0))},
			},
		},
		"the first failure stays": {
			set: web(failed("FailedCreate", "quota", ago(time.Hour))), facts: facts{failure: errors.New("another")},
			want: appsv1.ReplicaSetStatus{Conditions: []appsv1.ReplicaSetCondition{failed("FailedCreate", "quota", ago(time.Hour))}},
		},
		"no failure any more": {
			set:  web(failed("FailedCreate", "quota", ago(time.Hour)), other),
			want: appsv1.ReplicaSetStatus{Conditions: []appsv1.ReplicaSetCondition{other}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			tt.want.ObservedGeneration = 4
			if tt.want.TerminatingReplicas == nil {
				tt.want.TerminatingReplicas = new(int32(0))
			}
			if got := statusOf(tt.set, replicaSets, tt.facts, now); !equality.Semantic.DeepEqual(got, tt.want) {
				t.Errorf("%+v\nwant %+v", got, tt.want)
			}
			got := statusOf(tt.set, replicationControllers, tt.facts, now)
			if tt.want.TerminatingReplicas = nil; !equality.Semantic.DeepEqual(statusOfRC(rcStatusOf(got)), tt.want) {
				t.Errorf("of a ReplicationController: %+v\nwant %+v", got, tt.want)
			}
		})
	}
}

func TestNextAvailable(t *testing.T) {
	for name, tt := range map[string]struct {
		minReady int32
		pods     []*v1.Pod
		want     time.Duration
	}{
		"all available":            {minReady: 30, pods: []*v1.Pod{pod("a")}},
		"the first counts":         {minReady: 30, pods: []*v1.Pod{pod("a", readyFor(5*time.Second)), pod("b", readyFor(20*time.Second)), pod("c", readyFor(time.Second))}, want: 10 * time.Second},
		"one that is not ready":    {minReady: 30, pods: []*v1.Pod{pod("a", readyFor(time.Second), notReady)}},
		"one ready since ever":     {minReady: 30, pods: []*v1.Pod{pod("a", sinceEver)}},
		"no time to wait for":      {pods: []*v1.Pod{pod("a", readyFor(-time.Minute))}},
		"ready in the near future": {minReady: 30, pods: []*v1.Pod{pod("a", readyFor(-time.Minute))}, want: 90 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			s := web()
			s.minReady = tt.minReady
			if got := nextAvailable(s, tt.pods, now); got != tt.want {
				t.Errorf("%s, want %s", got, tt.want)
			}
		})
	}
}

func TestNewPod(t *testing.T) {
	s := web()
	s.SetNamespace("a")
	s.SetUID("u")
	s.template.Annotations, s.template.Finalizers = map[string]string{"k": "v"}, []string{"f"}
	p := pods.FromTemplate(s.template, s.object, replicaSets.GroupVersionKind)
	ref := metav1.GetControllerOf(p)
	if p.GenerateName != "web-" || p.Namespace != "a" || p.Labels["tier"] != "front" || p.Annotations["k"] != "v" || p.Finalizers[0] != "f" ||
		ref == nil || ref.APIVersion != "apps/v1" || ref.Kind != "ReplicaSet" || ref.Name != "web" || ref.UID != "u" || !*ref.BlockOwnerDeletion {
		t.Errorf("%+v", p.ObjectMeta)
	}
}
