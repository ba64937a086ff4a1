package cronjob

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
)

// cluster is a fake API server with the controller.
type cluster struct {
	*testing.T
	*fake.Clientset
	mu      sync.Mutex
	created []string // jobs: name and when
	version int      // the newest; the fake gives none, and the controller waits for those that it wrote
	refuse  error    // of status updates
	set     func()   // tells the controller that the clock was set
}

func start(t *testing.T, objs ...runtime.Object) (*cluster, func()) {
	t.Helper()
	c := &cluster{T: t, Clientset: fake.NewClientset(objs...), version: 100}
	c.PrependReactor("create", "jobs", func(a k8stesting.Action) (bool, runtime.Object, error) {
		j := a.(k8stesting.CreateAction).GetObject().(*batchv1.Job)
		j.UID, j.CreationTimestamp = types.UID(j.Name), metav1.Now()
		c.mu.Lock()
		defer c.mu.Unlock()
		c.created = append(c.created, j.Name+" "+time.Now().UTC().Format("15:04:05.000"))
		c.stampLocked(j)
		return false, nil, nil
	})
	c.PrependReactor("update", "*", func(a k8stesting.Action) (bool, runtime.Object, error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.stampLocked(a.(k8stesting.UpdateAction).GetObject().(metav1.Object))
		return false, nil, nil
	})
	c.PrependReactor("update", "cronjobs", func(k8stesting.Action) (bool, runtime.Object, error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		err := c.refuse
		c.refuse = nil
		return err != nil, nil, err
	})
	return c, c.run()
}

func (c *cluster) stampLocked(o metav1.Object) {
	c.version++
	o.SetResourceVersion(strconv.Itoa(c.version))
}

// run starts a controller, and returns a function that stops it.
func (c *cluster) run() (stop func()) {
	f := informers.NewSharedInformerFactory(c.Clientset, 0)
	ready := make(chan func(), 1)
	ctrl, err := New(c.Clientset, f, func(ctx context.Context, set func()) error {
		ready <- set
		<-ctx.Done()
		return nil
	})
	c.check(err)
	ctx, cancel := context.WithCancel(c.Context())
	f.Start(ctx.Done())
	done := make(chan error, 1)
	go func() { done <- ctrl.Run(ctx) }()
	c.set = <-ready
	synctest.Wait()
	return func() {
		cancel()
		c.check(<-done)
		f.Shutdown()
	}
}

func (c *cluster) check(err error) {
	c.Helper()
	if err != nil {
		c.Fatal(err)
	}
}

func (c *cluster) cron() *batchv1.CronJob {
	c.Helper()
	got, err := c.BatchV1().CronJobs("a").Get(c.Context(), "c", metav1.GetOptions{})
	c.check(err)
	return got
}

func (c *cluster) change(f func(*batchv1.CronJob)) {
	c.Helper()
	cron := c.cron()
	f(cron)
	_, err := c.BatchV1().CronJobs("a").Update(c.Context(), cron, metav1.UpdateOptions{})
	c.check(err)
	synctest.Wait()
}

func (c *cluster) want(created ...string) {
	c.Helper()
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	if !slices.Equal(c.created, created) {
		c.Errorf("created %q, want %q", c.created, created)
	}
	c.created = nil
}

func (c *cluster) reasons() (out []string) {
	c.Helper()
	synctest.Wait()
	list, err := c.CoreV1().Events("a").List(c.Context(), metav1.ListOptions{})
	c.check(err)
	for _, e := range list.Items {
		out = append(out, fmt.Sprintf("%s %d", e.Reason, e.Count))
	}
	return out
}

func (c *cluster) finish(name string) {
	c.Helper()
	j, err := c.BatchV1().Jobs("a").Get(c.Context(), name, metav1.GetOptions{})
	c.check(err)
	j.Status.CompletionTime = new(metav1.Now())
	j.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobComplete, Status: v1.ConditionTrue}}
	_, err = c.BatchV1().Jobs("a").UpdateStatus(c.Context(), j, metav1.UpdateOptions{})
	c.check(err)
	synctest.Wait()
}

// In synctest it is midnight of 2000-01-01, minute 15778080, when a test begins.
func fresh(changes ...func(*batchv1.CronJob)) *batchv1.CronJob {
	return newCron("* * * * *", append(changes, func(c *batchv1.CronJob) { c.CreationTimestamp = metav1.Now() })...)
}

func TestFiresOnTheSecondAndOnlyThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, stop := start(t, fresh())
		defer stop()
		time.Sleep(59 * time.Second)
		c.want()
		time.Sleep(time.Second)
		c.want("c-15778081 00:01:00.000")
		cron := c.cron()
		if !cron.Status.LastScheduleTime.Equal(new(metav1.Now())) || len(cron.Status.Active) != 1 || cron.Status.Active[0].Name != "c-15778081" {
			t.Errorf("%+v", cron.Status)
		}
		time.Sleep(time.Second) // events of one moment have one name
		c.finish("c-15778081")
		if cron = c.cron(); len(cron.Status.Active) != 0 || !cron.Status.LastSuccessfulTime.Equal(new(metav1.Now())) {
			t.Errorf("%+v", cron.Status)
		}
		if got := c.reasons(); !slices.Equal(got, []string{"SuccessfulCreate 1", "SawCompletedJob 1"}) {
			t.Errorf("events: %v", got)
		}
		c.ClearActions()
		time.Sleep(58 * time.Second)
		synctest.Wait()
		if got := c.Actions(); len(got) > 0 {
			t.Errorf("%d requests while nothing happened, such as %v", len(got), got[0])
		}
		time.Sleep(time.Second)
		c.want("c-15778082 00:02:00.000")
	})
}

// A job was created, but the status could not tell: by a conflict, or because the process was killed.
func TestNoTimeGetsTwoJobs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, stop := start(t, fresh())
		time.Sleep(30 * time.Second)
		c.refuse = apierrors.NewConflict(batchv1.Resource("cronjobs"), "c", fmt.Errorf("old"))
		time.Sleep(31 * time.Second)
		c.want("c-15778081 00:01:00.000")
		if got := c.cron().Status; len(got.Active) != 1 || got.LastScheduleTime == nil {
			t.Errorf("%+v", got)
		}
		stop()
		c.change(func(cron *batchv1.CronJob) { cron.Status = batchv1.CronJobStatus{} })
		defer c.run()()
		c.want()
		if got := c.cron().Status; len(got.Active) != 1 || !got.LastScheduleTime.Equal(new(metav1.NewTime(time.Now().Truncate(time.Minute)))) {
			t.Errorf("%+v", got)
		}
	})
}

func TestForbidWaitsForTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, stop := start(t, fresh(concurrency(batchv1.ForbidConcurrent)))
		defer stop()
		time.Sleep(time.Minute)
		c.want("c-15778081 00:01:00.000")
		time.Sleep(150 * time.Second)
		c.want()
		if got := c.reasons(); !slices.Contains(got, "JobAlreadyActive 2") {
			t.Errorf("events: %v", got)
		}
		c.finish("c-15778081")
		c.want("c-15778083 00:03:30.000")
	})
}

func TestReplaceEndsTheOldOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, stop := start(t, fresh(concurrency(batchv1.ReplaceConcurrent)))
		defer stop()
		time.Sleep(2 * time.Minute)
		c.want("c-15778081 00:01:00.000", "c-15778082 00:02:00.000")
		list, err := c.BatchV1().Jobs("a").List(t.Context(), metav1.ListOptions{})
		c.check(err)
		if got := c.cron().Status.Active; len(list.Items) != 1 || len(got) != 1 || got[0].Name != "c-15778082" {
			t.Errorf("%d jobs, active %+v", len(list.Items), got)
		}
	})
}

func TestScheduleChangesAndSuspension(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, stop := start(t, fresh(func(c *batchv1.CronJob) { c.Spec.Schedule = "0 0 1 1 *" }))
		defer stop()
		time.Sleep(90 * time.Second)
		c.want()
		c.change(func(cron *batchv1.CronJob) { cron.Spec.Schedule = "* * * * *" })
		c.want() // the times of a schedule that was none do not count
		time.Sleep(30 * time.Second)
		c.want("c-15778082 00:02:00.000")
		c.change(func(cron *batchv1.CronJob) { cron.Spec.Suspend = new(true) })
		time.Sleep(10 * time.Minute)
		c.want()
		c.change(func(cron *batchv1.CronJob) { cron.Spec.Suspend = new(false) })
		c.want("c-15778092 00:12:00.000")
	})
}

// Whoever sets the clock does not move the timers of a process.
func TestSetClockIsNoticed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, stop := start(t, fresh())
		defer stop()
		c.ClearActions()
		c.change(func(cron *batchv1.CronJob) {
			cron.Status.LastScheduleTime = new(metav1.NewTime(time.Now().Add(time.Hour)))
		})
		time.Sleep(10 * time.Minute) // the clock seems to have been set back by an hour: no job
		c.want()
		c.set() // looks again
		c.want()
		time.Sleep(51 * time.Minute)
		c.want("c-15778141 01:01:00.000")
	})
}
