package controller_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/informers"
	k8stesting "k8s.io/client-go/testing"

	"wherry.dev/internal/api/defaults"
	podsapi "wherry.dev/internal/api/pods"
	"wherry.dev/internal/controller"
	"wherry.dev/internal/controller/cronjob"
	"wherry.dev/internal/controller/daemonset"
	"wherry.dev/internal/controller/deployment"
	"wherry.dev/internal/controller/job"
	"wherry.dev/internal/controller/replicaset"
	"wherry.dev/internal/controller/statefulset"
)

func newReplicaSet(name string, replicas int32) *appsv1.ReplicaSet {
	return &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name}, Spec: appsv1.ReplicaSetSpec{
		Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}, Template: templateOf("v0"),
	}}
}

func newJob(name string, parallelism int32) *batchv1.Job {
	j := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name}, Spec: batchv1.JobSpec{
		Parallelism: &parallelism, Completions: &parallelism, Template: templateOf("v0"),
	}}
	j.Spec.Template.Spec.RestartPolicy = v1.RestartPolicyNever
	defaults.Job(j)
	return j
}

// newCronJob is one whose job is replaced every minute.
func newCronJob(name string) *batchv1.CronJob {
	c := &batchv1.CronJob{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name}, Spec: batchv1.CronJobSpec{
		Schedule: "* * * * *", ConcurrencyPolicy: batchv1.ReplaceConcurrent,
		JobTemplate: batchv1.JobTemplateSpec{Spec: newJob("", 1).Spec},
	}}
	defaults.CronJob(c)
	return c
}

// noClock is a clock that nobody sets.
func noClock(ctx context.Context, _ func()) error {
	<-ctx.Done()
	return nil
}

// workloads are all controllers of apps/v1 and batch/v1.
func workloads(a *hostileAPI, f informers.SharedInformerFactory) (controller.Controller, error) {
	sets, err1 := replicaset.New(a.Clientset, f)
	stateful, err2 := statefulset.New(a.Clientset, f)
	deployments, err3 := deployment.New(a.Clientset, f)
	daemons, err4 := daemonset.New(a.Clientset, f)
	jobs, err5 := job.New(a.Clientset, f)
	crons, err6 := cronjob.New(a.Clientset, f, noClock)
	return together{sets, stateful, deployments, daemons, jobs, crons}, errors.Join(err1, err2, err3, err4, err5, err6)
}

// serve runs the controllers of workloads on an API without faults.
func serve(t *testing.T, a *hostileAPI) (stop func()) {
	t.Helper()
	a.setCalm()
	f := informers.NewSharedInformerFactory(a.Clientset, 0)
	c, err := workloads(a, f)
	if err != nil {
		t.Fatal(err)
	}
	return begin(t, f, c)
}

// requests returns how many calls there were, watches and lists apart.
func requests(a *hostileAPI) (n int) {
	for _, act := range a.Actions() {
		if act.GetVerb() != "watch" && act.GetVerb() != "list" {
			n++
		}
	}
	return n
}

// Two replica sets and a stateful set that select the same pods share them: each pod has one controller,
// each orphan is adopted once, and there is an end to it.
func TestOverlappingSelectorsComeToRest(t *testing.T) {
	for seed := range lifetimes(t) {
		ok := false
		synctest.Test(t, func(t *testing.T) {
			orphaned, patched := 0, 0
			ok = play(t, seed, func(l *life, f informers.SharedInformerFactory) (controller.Controller, error) {
				l.onWrite = func(kind string, old, obj metav1.Object) {
					if kind == "pods" && old != nil && obj != nil && len(old.GetOwnerReferences()) != len(obj.GetOwnerReferences()) {
						patched++
					}
				}
				l.add("statefulsets", newSet(l.rand))
				l.add("replicasets", newReplicaSet("x", 3))
				l.add("replicasets", newReplicaSet("y", 2))
				for i := range 4 {
					template := templateOf("v0")
					l.add("pods", &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: fmt.Sprint("orphan-", i), Labels: template.Labels}, Spec: template.Spec})
					orphaned++
				}
				return workloads(l.hostileAPI, f)
			}, func(l *life) {
				p := l.any()
				if p == nil {
					return
				}
				ref := metav1.GetControllerOf(p)
				if ref == nil || ref.Kind != "ReplicaSet" || l.rand.IntN(4) > 0 {
					l.attend(p, true)
					return
				}
				l.note("%s becomes an orphan", p.Name)
				l.change("pods", "a/"+p.Name, func(o object) bool { o.SetOwnerReferences(nil); return true })
				orphaned++
			}, overlapRests)
			if patched > orphaned {
				t.Errorf("%d adoptions and releases of %d orphans", patched, orphaned)
			}
		})
		if !ok {
			return
		}
	}
}

// overlapRests checks that each set has its own pods, and that none is an orphan.
func overlapRests(l *life) {
	have := map[string]int{}
	for _, o := range l.all("pods") {
		ref := metav1.GetControllerOf(o)
		if ref == nil {
			l.wrong("%s is an orphan", o.GetName())
			return
		}
		have[ref.Name]++
	}
	want := map[string]int{"x": 3, "y": 2, "web": int(*l.set().Spec.Replicas)}
	if fmt.Sprint(have) != fmt.Sprint(want) {
		l.wrong("pods by owner: %v, want %v", have, want)
	}
}

// A pod of another owner that has the name of a stateful set's pod is asked about ever more seldom.
func TestATakenNameIsNoHotLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newHostileAPI(1)
		defer serve(t, a)()
		template := templateOf("v0")
		a.add("pods", &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "web-0", Labels: map[string]string{"app": "else"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Other", Name: "o", UID: "o", Controller: new(true)}}}, Spec: template.Spec})
		set := newSet(newHostileAPI(1).rand)
		a.add("statefulsets", set)
		time.Sleep(10 * time.Minute)
		if n := requests(a); n < 10 || n > 150 {
			t.Errorf("%d requests in ten minutes", n)
		}
	})
}

// Where each write conflicts, it is repeated ever more seldom, and other objects do not notice.
func TestConflictsOnEveryWriteAreNoHotLoop(t *testing.T) {
	conflict := func(act k8stesting.Action) error {
		return apierrors.NewConflict(schema.GroupResource{Resource: act.GetResource().Resource}, "x", errors.New("the webhook says so"))
	}
	for name, tt := range map[string]struct {
		resource string
		obj      object
		counts   string // what it makes
		rests    int    // how many of those it has at last
	}{
		"replica set":  {"replicasets", newReplicaSet("x", 3), "pods", 1},
		"deployment":   {"deployments", newDeployment(newHostileAPI(1).rand), "pods", 1},
		"stateful set": {"statefulsets", newSet(newHostileAPI(1).rand), "pods", 0},
		"daemon set":   {"daemonsets", newDaemon(newHostileAPI(1).rand), "pods", 0},
		"job":          {"jobs", newJob("x", 3), "pods", 1},
		"cron job":     {"cronjobs", newCronJob("x"), "jobs", 1},
	} {
		for phase, after := range map[string]time.Duration{"from the start": 0, "while it shrinks": 90 * time.Second} {
			t.Run(name+" "+phase, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					a := newHostileAPI(1)
					defer serve(t, a)()
					a.add("nodes", &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n0"}})
					obj := tt.obj.DeepCopyObject().(object)
					obj.SetNamespace("bad")
					a.add(tt.resource, obj)
					time.Sleep(after)
					a.mu.Lock()
					a.refuse = func(act k8stesting.Action) error {
						if act.GetNamespace() != "bad" {
							return nil
						}
						return conflict(act)
					}
					a.mu.Unlock()
					a.change(tt.resource, "bad/"+obj.GetName(), shrink)
					a.ClearActions()
					a.add("replicasets", newReplicaSet("good", 3))
					time.Sleep(10 * time.Minute)
					bad, good := 0, 0
					for _, act := range a.Actions() {
						if act.GetNamespace() == "bad" {
							bad++
						} else if act.GetVerb() == "create" && act.GetResource().Resource == "pods" {
							good++
						}
					}
					if bad < 10 || bad > 300 || good != 3 {
						t.Errorf("%d calls for the object that conflicts, %d pods for the other one", bad, good)
					}
					a.mu.Lock()
					a.refuse = nil
					a.mu.Unlock()
					time.Sleep(time.Minute)
					a.ClearActions()
					time.Sleep(10 * time.Minute)
					if n := requests(a); n > 0 {
						t.Errorf("%d requests after the conflicts, at rest", n)
					}
					running := 0
					for _, o := range a.all(tt.counts) {
						if o.GetNamespace() == "bad" && o.GetDeletionTimestamp() == nil {
							running++
						}
					}
					if running != tt.rests {
						t.Errorf("%d %s at last, want %d", running, tt.counts, tt.rests)
					}
				})
			})
		}
	}
}

// The API server refuses a selector that does not match the template. What has one all the same, from
// before, made pods without end, each of which it released at once.
func TestSelectorThatDoesNotMatchItsTemplate(t *testing.T) {
	other := map[string]string{"app": "other"}
	set, deployment := newReplicaSet("x", 3), newDeployment(newHostileAPI(1).rand)
	stateful, daemon := newSet(newHostileAPI(1).rand), newDaemon(newHostileAPI(1).rand)
	for _, s := range []*metav1.LabelSelector{set.Spec.Selector, deployment.Spec.Selector, stateful.Spec.Selector, daemon.Spec.Selector} {
		s.MatchLabels = other
	}
	for resource, obj := range map[string]object{"replicasets": set, "deployments": deployment, "statefulsets": stateful, "daemonsets": daemon} {
		t.Run(resource, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := newHostileAPI(1)
				defer serve(t, a)()
				a.add("nodes", &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n0"}})
				a.add(resource, obj)
				time.Sleep(10 * time.Second)
				if n := requests(a); n > 0 {
					t.Errorf("%d requests", n)
				}
			})
		})
	}
}

// shrink makes an object want less.
func shrink(o object) bool {
	switch o := o.(type) {
	case *appsv1.ReplicaSet:
		o.Spec.Replicas = new(int32(1))
	case *appsv1.Deployment:
		o.Spec.Replicas = new(int32(1))
	case *appsv1.StatefulSet:
		o.Spec.Replicas = new(int32(0))
	case *appsv1.DaemonSet:
		o.Spec.Template.Spec.NodeSelector = map[string]string{"no": "node"}
	case *batchv1.Job:
		o.Spec.Parallelism = new(int32(1))
	case *batchv1.CronJob:
		o.Spec.Schedule = "5 0 1 1 *" // once, five minutes after virtual time began
	}
	return true
}

// many is how many pods fail at once.
func many(t *testing.T) int {
	t.Helper()
	if testing.Short() {
		return 1_000
	}
	return 10_000
}

// failAll lets all pods fail, n of them, and returns the requests that follow, by verb and resource, and
// how many pods there are then.
func failAll(t *testing.T, a *hostileAPI, n int, wait time.Duration) (requests map[string]int, active, total int) {
	t.Helper()
	time.Sleep(10 * time.Minute)
	all := a.all("pods")
	if len(all) != n {
		t.Fatalf("%d pods", len(all))
	}
	a.ClearActions()
	for _, p := range all {
		a.change("pods", "a/"+p.GetName(), fail)
	}
	time.Sleep(wait)
	for _, o := range a.all("pods") {
		total++
		if podsapi.IsActive(o.(*v1.Pod)) {
			active++
		}
	}
	requests = writes(a)
	t.Logf("%d pods, %d active, requests %v", total, active, requests)
	return requests, active, total
}

func fail(o object) bool {
	o.(*v1.Pod).Status.Phase = v1.PodFailed
	return true
}

// writes returns the requests by verb and resource, watches and lists apart.
func writes(a *hostileAPI) map[string]int {
	out := map[string]int{}
	for _, act := range a.Actions() {
		if act.GetVerb() != "watch" && act.GetVerb() != "list" {
			out[act.GetVerb()+" "+act.GetResource().Resource]++
		}
	}
	return out
}

// When all pods of a large replica set fail at once, each is replaced once, and the failed ones stay.
func TestManyFailedPodsAreReplacedOnce(t *testing.T) {
	size := many(t)
	synctest.Test(t, func(t *testing.T) {
		a := newHostileAPI(1)
		defer serve(t, a)()
		a.add("replicasets", newReplicaSet("x", int32(size)))
		writes, active, total := failAll(t, a, size, 10*time.Minute)
		if active != size || total != 2*size || writes["create pods"] != size || writes["update replicasets"] > size/50 {
			t.Errorf("%d pods, %d active; requests %v", total, active, writes)
		}
	})
}

// Where a kubelet refuses each pod of a daemon set, the next one comes ever later: ten in a thousand
// seconds on each node.
func TestManyFailedDaemonsAreReplacedEverMoreSeldom(t *testing.T) {
	nodes := many(t) / 100
	synctest.Test(t, func(t *testing.T) {
		a := newHostileAPI(1)
		defer serve(t, a)()
		for i := range nodes {
			a.add("nodes", &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n", i)}})
		}
		a.add("daemonsets", newDaemon(newHostileAPI(1).rand))
		for range 1030 { // 1 s, 2 s, 4 s and so on, and what it takes to notice
			time.Sleep(time.Second)
			for _, p := range a.all("pods") {
				a.change("pods", "a/"+p.GetName(), func(o object) bool { return o.GetDeletionTimestamp() == nil && fail(o) })
			}
		}
		got := writes(a)
		t.Logf("requests %v", got)
		if made, gone := got["create pods"], got["delete pods"]; made < 9*nodes || made > 11*nodes || gone > made {
			t.Errorf("%d pods were created and %d deleted on %d nodes", made, gone, nodes)
		}
		if got["update daemonsets"] > nodes {
			t.Errorf("%d writes of the status", got["update daemonsets"])
		}
	})
}

// Who makes a revision for a set, as upstream's conformance test does, finds it and the one that was there until the
// set has a reason to look at them.
func TestARevisionThatASetWasGivenStaysForAMoment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newHostileAPI(1)
		defer serve(t, a)()
		a.add("nodes", &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}})
		a.add("daemonsets", newDaemon(newHostileAPI(1).rand))
		time.Sleep(time.Minute)
		its := a.all("controllerrevisions")
		if len(its) != 1 {
			t.Fatalf("%d revisions before", len(its))
		}
		given := its[0].(*appsv1.ControllerRevision).DeepCopy()
		given.ObjectMeta = metav1.ObjectMeta{Name: "given", Namespace: given.Namespace, Labels: given.Labels, OwnerReferences: given.OwnerReferences}
		given.Revision++
		a.add("controllerrevisions", given)
		time.Sleep(time.Minute)
		if n := len(a.all("controllerrevisions")); n != 2 {
			t.Errorf("%d revisions after a second one was given", n)
		}
		a.add("nodes", &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "m"}})
		time.Sleep(time.Minute)
		if its := a.all("controllerrevisions"); len(its) != 1 || its[0].GetName() != "given" {
			t.Errorf("%d revisions of the same template once the set was looked at, the first is %s", len(its), its[0].GetName())
		}
	})
}

// When all pods of a large job fail at once, the job fails, or each is replaced once after a while,
// and each is counted.
func TestManyFailedPodsOfAJobAreCountedOnce(t *testing.T) {
	size := many(t)
	for name, tt := range map[string]struct {
		limit, again int
	}{"the job fails": {6, 0}, "the job goes on": {2 * size, size}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := newHostileAPI(1)
				defer serve(t, a)()
				j := newJob("x", int32(size))
				j.Spec.BackoffLimit = new(int32(tt.limit))
				a.add("jobs", j)
				writes, active, _ := failAll(t, a, size, 30*time.Minute)
				if active != tt.again || writes["create pods"] != tt.again || writes["patch pods"] != size || writes["update jobs"] > size/50 {
					t.Errorf("%d pods are active; requests %v", active, writes)
				}
				st := a.all("jobs")[0].(*batchv1.Job).Status
				ended := 0
				for _, c := range st.Conditions {
					if c.Type == batchv1.JobFailed && c.Status == v1.ConditionTrue {
						ended++
					}
				}
				if st.Failed != int32(size) || st.Active != int32(tt.again) || (ended == 1) != (tt.again == 0) || len(st.UncountedTerminatedPods.Failed) > 0 {
					t.Errorf("status %+v", st)
				}
			})
		})
	}
}

// A job that fails again and again keeps its failed pods. The requests that the next failure costs do not
// grow with them.
func TestFailedPodsOfAJobThatHavePiledUp(t *testing.T) {
	size := many(t)
	synctest.Test(t, func(t *testing.T) {
		a := newHostileAPI(1)
		defer serve(t, a)()
		j := newJob("x", 1)
		j.Spec.BackoffLimit = new(int32(1_000_000))
		a.add("jobs", j)
		time.Sleep(time.Second)
		first := a.all("pods")[0].(*v1.Pod)
		for i := range size {
			p := first.DeepCopy()
			p.Name, p.Finalizers = fmt.Sprint("old-", i), nil
			p.UID, p.ResourceVersion = "", ""
			a.add("pods", p)
			a.change("pods", "a/"+p.Name, fail)
		}
		a.change("jobs", "a/x", func(o object) bool { o.(*batchv1.Job).Status.Failed = int32(size); return true })
		time.Sleep(10 * time.Minute)
		a.ClearActions()
		const again = 20
		for range again {
			for _, p := range a.all("pods") {
				if podsapi.IsActive(p.(*v1.Pod)) {
					a.change("pods", "a/"+p.GetName(), fail)
				}
			}
			time.Sleep(15 * time.Minute)
		}
		got := writes(a)
		if got["create pods"] != again || got["patch pods"] != again || got["update jobs"] > 3*again || got["get pods"]+got["get jobs"] > 2*again {
			t.Errorf("requests %v", got)
		}
		if st := a.all("jobs")[0].(*batchv1.Job).Status; st.Failed != int32(size+again) || st.Active != 1 || len(st.UncountedTerminatedPods.Failed) > 0 {
			t.Errorf("status %+v", st)
		}
	})
}
