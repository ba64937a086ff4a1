package explain

import (
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

var web = map[string]string{"app": "web"}

func meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name), Generation: 1, CreationTimestamp: before(time.Hour)}
}

func template(image string) v1.PodTemplateSpec {
	return v1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: web},
		Spec:       v1.PodSpec{Containers: []v1.Container{{Name: "c", Image: image}}},
	}
}

type podChange func(*v1.Pod)

// podOf returns a pod of the owner that has been ready for an hour, unless it is changed.
func podOf(owner, name string, change ...podChange) *v1.Pod {
	p := &v1.Pod{ObjectMeta: meta(name), Spec: template("img").Spec}
	p.Labels = map[string]string{"app": "web"}
	p.OwnerReferences = []metav1.OwnerReference{{Name: owner, UID: types.UID(owner), Controller: new(true)}}
	p.Status.Phase, p.Status.PodIP = v1.PodRunning, "10.0.0.1"
	p.Status.Conditions = []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue, LastTransitionTime: before(time.Hour)}}
	for _, c := range change {
		c(p)
	}
	return p
}

func stuck(p *v1.Pod) {
	p.Status.Conditions[0].Status = v1.ConditionFalse
	p.Status.ContainerStatuses = waiting("ImagePullBackOff", "no such image").ContainerStatuses
}

func since(d time.Duration) podChange {
	return func(p *v1.Pod) { p.Status.Conditions[0].LastTransitionTime = before(d) }
}

func going(p *v1.Pod) { p.DeletionTimestamp = new(before(time.Second)) }

func failed(p *v1.Pod) { p.Status.Phase, p.Status.Reason = v1.PodFailed, "Evicted" }

func crowdOf(list ...*v1.Pod) Crowd { return Crowd{About: About{Now: now}, Pods: list} }

// deploy returns a Deployment of two pods with a new ReplicaSet and an old one.
func deploy(list []*v1.Pod, change ...func(*DeploymentFacts)) Explanation {
	d := &appsv1.Deployment{ObjectMeta: meta("web"), Spec: appsv1.DeploymentSpec{Replicas: ptr.To[int32](2), Template: template("new")}}
	d.Status.ObservedGeneration = 1
	set := func(name, image string) *appsv1.ReplicaSet {
		return &appsv1.ReplicaSet{ObjectMeta: meta(name), Spec: appsv1.ReplicaSetSpec{Template: template(image)}, Status: appsv1.ReplicaSetStatus{ObservedGeneration: 1}}
	}
	f := DeploymentFacts{Crowd: crowdOf(list...), Deployment: d, Sets: []*appsv1.ReplicaSet{set("old", "old"), set("new", "new")}}
	for _, c := range change {
		c(&f)
	}
	return Deployment(f)
}

func progressing(reason, status string) func(*DeploymentFacts) {
	return func(f *DeploymentFacts) {
		f.Deployment.Status.Conditions = []appsv1.DeploymentCondition{{
			Type: appsv1.DeploymentProgressing, Status: v1.ConditionStatus(status), Reason: reason, Message: "told",
			LastUpdateTime: before(time.Minute), LastTransitionTime: before(time.Minute),
		}}
	}
}

func recreate(f *DeploymentFacts) {
	f.Deployment.Spec.Strategy.Type = appsv1.RecreateDeploymentStrategyType
}

func refusal(f *DeploymentFacts) {
	f.Sets[1].Status.Conditions = []appsv1.ReplicaSetCondition{{
		Type: appsv1.ReplicaSetReplicaFailure, Status: v1.ConditionTrue, Reason: "FailedCreate", LastTransitionTime: before(time.Minute),
		Message: `pods "new-1" is forbidden: exceeded quota: q, requested: pods=1, used: pods=0, limited: pods=0`,
	}}
}

// case of an explanation: what its text has and what it lacks, and which pods it asks for.
type told struct {
	x     Explanation
	want  []string
	lacks string
	ask   string
}

func check(t *testing.T, cases map[string]told) {
	t.Helper()
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			text := tc.x.Text(now)
			for _, w := range tc.want {
				if !strings.Contains(text, w) {
					t.Errorf("no %q in\n%s", w, text)
				}
			}
			if tc.lacks != "" && strings.Contains(text, tc.lacks) {
				t.Errorf("%q in\n%s", tc.lacks, text)
			}
			if got := names(tc.x.Ask()); got != tc.ask {
				t.Errorf("asks for %q, want %q", got, tc.ask)
			}
			if tc.x.Summary == "" || tc.x.State == "" || tc.x.Kind == "" {
				t.Errorf("%+v", tc.x)
			}
			for _, w := range tc.x.Waits {
				if w.Step == "" || w.Next == "" {
					t.Errorf("a wait without words: %+v", w)
				}
			}
		})
	}
}

func TestDeployment(t *testing.T) {
	a, b := podOf("new", "a"), podOf("new", "b")
	minReady := func(f *DeploymentFacts) { f.Deployment.Spec.MinReadySeconds = 60 }
	check(t, map[string]told{
		"well": {x: deploy([]*v1.Pod{a, b}), want: []string{
			"deployment ns/web: 2/2 available\nThe rollout is done: 2 pods of the newest template, 2 available, 2 wanted.\n"}, lacks: "note"},
		"scaled to nothing": {x: deploy(nil, func(f *DeploymentFacts) { f.Deployment.Spec.Replicas = ptr.To[int32](0) }), want: []string{"0/0 available", "0 wanted"}},
		"image": {x: deploy([]*v1.Pod{a, podOf("new", "c", stuck)}), ask: "c",
			want: []string{"1/2 available", "It waits for: pod c of replica set new.", "status: ImagePullBackOff", "below is what pod c waits for"}},
		"each state once": {x: deploy([]*v1.Pod{podOf("new", "c", stuck), podOf("new", "d", stuck), podOf("new", "e", stuck, func(p *v1.Pod) { p.Status = waiting("Other", "") })}),
			ask: "c, e", want: []string{"2 pods of replica set new", "ImagePullBackOff: c, d"}},
		"quota":    {x: deploy(nil, refusal), want: []string{"creation of pods of replica set new, for 1m0s", "exceeded quota: q", "the quota is raised"}, lacks: "nothing was refused"},
		"deadline": {x: deploy([]*v1.Pod{podOf("new", "c", stuck)}, progressing("ProgressDeadlineExceeded", "False")), ask: "c", want: []string{"no progress for more than its deadline (ProgressDeadlineExceeded, for 1m0s). It waits for: pod c", "kubectl rollout undo -n ns deployment/web"}},
		"paused":   {x: deploy([]*v1.Pod{podOf("old", "o")}, progressing("DeploymentPaused", "Unknown"), func(f *DeploymentFacts) { f.Deployment.Spec.Paused = true }), want: []string{"the end of the pause (spec.paused), for 1m0s", "kubectl rollout resume"}},
		"paused, well": {x: deploy([]*v1.Pod{a, b}, func(f *DeploymentFacts) { f.Deployment.Spec.Paused = true }),
			want: []string{"The rollout is done", "note: it is paused"}},
		"minReadySeconds": {x: deploy([]*v1.Pod{a, podOf("new", "y", since(20*time.Second))}, minReady),
			want: []string{"1/2 available", "minReadySeconds of pod y, for 20s", "available only after 60 s", "until 12:00:40 UTC"}},
		"recreate":     {x: deploy([]*v1.Pod{podOf("old", "o", going)}, recreate), ask: "o", want: []string{"pod o of an old template, which has to end first", "status: Terminating"}},
		"rolling ends": {x: deploy([]*v1.Pod{a, b, podOf("old", "o", func(p *v1.Pod) { p.DeletionTimestamp = new(before(-time.Minute)) })}), want: []string{"The rollout is done", "note: a pod is ending: o"}},
		"overdue":      {x: deploy([]*v1.Pod{a, b, podOf("old", "o", going)}), ask: "o", want: []string{"pod o, which should have ended"}},
		"not seen":     {x: deploy(nil, func(f *DeploymentFacts) { f.Deployment.Generation = 2 }), want: []string{"deployment controller", "generation 1 of 2"}},
		"no set":       {x: deploy(nil, func(f *DeploymentFacts) { f.Sets = f.Sets[:1] }), want: []string{"the replica set of the newest template", "it does not exist yet"}},
		"set refused":  {x: deploy(nil, progressing("ReplicaSetCreateError", "False"), func(f *DeploymentFacts) { f.Sets = nil }), want: []string{"status: told"}},
		"old stay":     {x: deploy([]*v1.Pod{a, b, podOf("old", "o")}), want: []string{"end of old pod o", "note: 1 pod of an old template: o"}},
		"failed":       {x: deploy([]*v1.Pod{a, b, podOf("new", "f", failed)}), want: []string{"The rollout is done", "1 pod failed: f; the newest (Evicted)"}},
		"budget": {x: deploy([]*v1.Pod{a, b}, func(f *DeploymentFacts) {
			f.Budgets = []policyv1.PodDisruptionBudget{{ObjectMeta: meta("b"), Spec: policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: web}}, Status: policyv1.PodDisruptionBudgetStatus{ExpectedPods: 2, CurrentHealthy: 2, DesiredHealthy: 2}}}
		}), want: []string{"The rollout is done", "budget b lets none of its pods be evicted now"}},
		"deleted": {x: deploy([]*v1.Pod{a}, func(f *DeploymentFacts) {
			f.Deployment.DeletionTimestamp, f.Deployment.Finalizers = new(before(time.Minute)), []string{metav1.FinalizerDeleteDependents}
		}), want: []string{"Terminating, for 1m0s", "finalizers foregroundDeletion", "once what the object owns is gone"}},
		"unread": {x: deploy([]*v1.Pod{a, b}, func(f *DeploymentFacts) { f.Unread = []string{"events could not be read: forbidden"} }), want: []string{"note: events could not be read: forbidden"}},
	})
}

func stateful(list []*v1.Pod, change ...func(*appsv1.StatefulSet)) Explanation {
	s := &appsv1.StatefulSet{ObjectMeta: meta("db"), Spec: appsv1.StatefulSetSpec{Replicas: ptr.To[int32](3)}}
	s.Status.ObservedGeneration, s.Status.UpdateRevision = 1, "two"
	for _, c := range change {
		c(s)
	}
	return StatefulSet(StatefulSetFacts{Crowd: crowdOf(list...), Set: s})
}

func revision(r string) podChange {
	return func(p *v1.Pod) { p.Labels[appsv1.StatefulSetRevisionLabel] = r }
}

func TestStatefulSet(t *testing.T) {
	db := func(n string, change ...podChange) *v1.Pod {
		return podOf("db", "db-"+n, append([]podChange{revision("two")}, change...)...)
	}
	parallel := func(s *appsv1.StatefulSet) { s.Spec.PodManagementPolicy = appsv1.ParallelPodManagement }
	partition := func(s *appsv1.StatefulSet) {
		s.Spec.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateStatefulSetStrategy{Partition: ptr.To[int32](1)}
	}
	many := func(s *appsv1.StatefulSet) { s.Spec.Replicas = ptr.To[int32](2000000000) }
	check(t, map[string]told{
		"well":            {x: stateful([]*v1.Pod{db("0"), db("1"), db("2")}), want: []string{"It is complete: 3 available, 3 wanted.\n"}},
		"in order":        {x: stateful([]*v1.Pod{db("0"), db("1", stuck)}), ask: "db-1", want: []string{"It waits for: pod db-1.", "not created before db-1 is available (podManagementPolicy OrderedReady): 1 pod (db-2)"}},
		"very many":       {x: stateful([]*v1.Pod{db("0", stuck)}, many), ask: "db-0", want: []string{"1999999999 pods (db-1, db-2, db-3, …)"}},
		"parallel":        {x: stateful([]*v1.Pod{db("2", stuck)}, parallel), ask: "db-2", want: []string{"creation of 2 pods (db-0, db-1)", "pod db-2"}},
		"many, parallel":  {x: stateful(nil, many, parallel), want: []string{"creation of 2000000000 pods (db-0, db-1, db-2, …)"}},
		"partition":       {x: stateful([]*v1.Pod{db("0", revision("one")), db("1"), db("2")}, partition), want: []string{"It is complete", "pod db-0 keeps the old revision, below the partition (1)"}},
		"update":          {x: stateful([]*v1.Pod{db("0", revision("one")), db("1"), db("2")}), want: []string{"update of pod db-0", "the newest is two"}},
		"on delete":       {x: stateful([]*v1.Pod{db("0", revision("one")), db("1"), db("2")}, func(s *appsv1.StatefulSet) { s.Spec.UpdateStrategy.Type = appsv1.OnDeleteStatefulSetStrategyType }), want: []string{"the update strategy is OnDelete"}},
		"broken, and old": {x: stateful([]*v1.Pod{db("0", revision("one"), stuck)}), ask: "db-0", want: []string{"kubectl delete pod -n ns db-0"}},
		"ending":          {x: stateful([]*v1.Pod{db("0", going)}), ask: "db-0", want: []string{"pod db-0, whose name its successor needs"}},
		"too many":        {x: stateful([]*v1.Pod{db("0"), db("1"), db("2"), db("3")}), want: []string{"end of pod db-3", "only 3 are wanted"}},
		"first of all":    {x: stateful(nil), want: []string{"creation of pod db-0", "2 pods (db-1, db-2)"}},
	})
}

func TestDaemonSet(t *testing.T) {
	node := func(name string, labels map[string]string) *v1.Node {
		return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
	}
	on := func(name string) podChange { return func(p *v1.Pod) { p.Spec.NodeName = name } }
	daemons := func(want int32, events []v1.Event, list ...*v1.Pod) Explanation {
		ds := &appsv1.DaemonSet{ObjectMeta: meta("d"), Spec: appsv1.DaemonSetSpec{Template: template("img")}}
		ds.Spec.Template.Spec.NodeSelector = web
		ds.Status = appsv1.DaemonSetStatus{ObservedGeneration: 1, DesiredNumberScheduled: want, UpdatedNumberScheduled: want}
		f := DaemonSetFacts{Crowd: crowdOf(list...), Set: ds, Nodes: []*v1.Node{node("n1", web), node("n2", nil)}}
		f.Events = events
		return DaemonSet(f)
	}
	refused := []v1.Event{{Reason: "FailedCreate", Message: "Error creating: exceeded quota: q", LastTimestamp: before(time.Minute)}}
	check(t, map[string]told{
		"well":    {x: daemons(1, nil, podOf("d", "a", on("n1"))), want: []string{"1/1 available", "It is complete: 1 available on 1 node that it is for.", "it is not for 1 node, by nodeSelector, affinity or taints: n2"}},
		"missing": {x: daemons(1, nil), want: []string{"creation of a pod on node n1", "nothing was refused"}},
		"refused": {x: daemons(1, refused), want: []string{"creation of a pod on node n1, for 1m0s", "exceeded quota", "the quota is raised"}},
		"stuck":   {x: daemons(1, nil, podOf("d", "a", on("n1"), stuck)), ask: "a", want: []string{"It waits for: pod a."}},
	})
}

func jobOf(list []*v1.Pod, change ...func(*batchv1.Job)) Explanation {
	j := &batchv1.Job{ObjectMeta: meta("j"), Spec: batchv1.JobSpec{Completions: ptr.To[int32](2), Parallelism: ptr.To[int32](1)}}
	j.Status.StartTime = new(before(time.Minute))
	for _, c := range change {
		c(j)
	}
	return Job(JobFacts{Crowd: crowdOf(list...), Job: j})
}

func jobIs(kind batchv1.JobConditionType, reason, message string) func(*batchv1.Job) {
	return func(j *batchv1.Job) {
		j.Status.Conditions = []batchv1.JobCondition{{Type: kind, Status: v1.ConditionTrue, Reason: reason, Message: message, LastTransitionTime: before(time.Second)}}
	}
}

func TestJob(t *testing.T) {
	crashed := podOf("j", "x", failed, since(5*time.Second), func(p *v1.Pod) { p.Status.Conditions[0].Status = v1.ConditionFalse })
	check(t, map[string]told{
		"runs":        {x: jobOf([]*v1.Pod{podOf("j", "a")}), want: []string{"Running, for 1m0s", "It runs; nothing holds it up: 0 of 2 succeeded"}},
		"complete":    {x: jobOf(nil, jobIs(batchv1.JobComplete, "", "")), want: []string{"Complete, for 1s", "It is done: 0 of 2 succeeded"}},
		"failed":      {x: jobOf([]*v1.Pod{crashed}, jobIs(batchv1.JobFailed, "BackoffLimitExceeded", "told")), ask: "x", want: []string{"It has failed and does not go on (BackoffLimitExceeded): told"}},
		"suspended":   {x: jobOf(nil, func(j *batchv1.Job) { j.Spec.Suspend = new(true) }), want: []string{"Suspended", "spec.suspend"}},
		"back-off":    {x: jobOf([]*v1.Pod{crashed}), ask: "x", want: []string{"back-off after failed pods", "next try: in 5s", "below is how pod x ended"}},
		"stuck":       {x: jobOf([]*v1.Pod{podOf("j", "a", stuck)}), ask: "a", want: []string{"It waits for: pod a."}},
		"no pods":     {x: jobOf(nil), want: []string{"creation of its pods"}},
		"parallelism": {x: jobOf(nil, func(j *batchv1.Job) { j.Spec.Parallelism = ptr.To[int32](0) }), want: []string{"spec.parallelism is 0"}},
		"managed":     {x: jobOf(nil, func(j *batchv1.Job) { j.Spec.ManagedBy = new("example.com/x") }), want: []string{"controller example.com/x"}},
	})
}

func TestCronJob(t *testing.T) {
	cron := func(schedule string, change ...func(*CronJobFacts)) Explanation {
		f := CronJobFacts{About: About{Now: now}, CronJob: &batchv1.CronJob{ObjectMeta: meta("c"), Spec: batchv1.CronJobSpec{Schedule: schedule, TimeZone: new("Etc/UTC")}}}
		f.CronJob.Status.LastScheduleTime = new(before(time.Minute))
		f.Jobs = []*batchv1.Job{{ObjectMeta: meta("c-1")}}
		jobIs(batchv1.JobFailed, "DeadlineExceeded", "too long")(f.Jobs[0])
		for _, c := range change {
			c(&f)
		}
		return CronJob(f)
	}
	due := func(f *CronJobFacts) { f.CronJob.Status.LastScheduleTime = new(before(11 * time.Minute)) }
	forbids := func(f *CronJobFacts) {
		f.CronJob.Spec.ConcurrencyPolicy = batchv1.ForbidConcurrent
		f.CronJob.Status.Active = []v1.ObjectReference{{Name: "c-0"}}
	}
	deadline := func(f *CronJobFacts) { f.CronJob.Spec.StartingDeadlineSeconds = ptr.To[int64](10) }
	check(t, map[string]told{
		"next":      {x: cron("30 12 * * *"), want: []string{"It runs next in 30m0s, at 2026-01-01 12:30:00", "job c-1 failed (DeadlineExceeded): too long", "none of its jobs has succeeded yet"}},
		"suspended": {x: cron("30 12 * * *", func(f *CronJobFacts) { f.CronJob.Spec.Suspend = new(true) }), want: []string{"the end of the suspension", "else the next would start in 30m0s"}},
		"forbidden": {x: cron("55 11 * * *", due, forbids), want: []string{"end of job c-0, for 5m0s", "concurrencyPolicy is Forbid"}},
		"missed":    {x: cron("55 11 * * *", due, deadline), want: []string{"the time 2026-01-01T11:55:00Z was missed", "within 10 s (startingDeadlineSeconds)", "It runs next in 23h55m0s"}},
		"due":       {x: cron("55 11 * * *", due), want: []string{"cron job controller, for 5m0s"}},
		"zone":      {x: cron("30 12 * * *", func(f *CronJobFacts) { f.CronJob.Spec.TimeZone = new("Not/There") }), want: []string{"a valid schedule", "Not/There"}},
		"nonsense":  {x: cron("whenever"), want: []string{"a valid schedule"}},
	})
}
