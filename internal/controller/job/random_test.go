package job

import (
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
)

// randomJob is a job with some of the features. Its limits are such that most jobs get on for a while.
func (w *world) randomJob() *batchv1.Job {
	r := w.rand
	j := newJob(int32(1+r.IntN(6)), int32(1+r.IntN(4)))
	j.Spec.BackoffLimit = new(int32(r.IntN(12)))
	if r.IntN(2) == 0 {
		j.Spec.CompletionMode = new(batchv1.IndexedCompletion)
		if r.IntN(3) == 0 {
			j.Spec.BackoffLimitPerIndex, j.Spec.BackoffLimit = new(int32(r.IntN(4))), new(int32(math.MaxInt32))
		}
		if r.IntN(4) == 0 {
			j.Spec.SuccessPolicy = &batchv1.SuccessPolicy{Rules: []batchv1.SuccessPolicyRule{{SucceededCount: new(int32(1))}}}
		}
	} else if r.IntN(5) == 0 {
		j.Spec.Completions = nil
	}
	if r.IntN(3) == 0 {
		j.Spec.PodReplacementPolicy = new(batchv1.Failed)
	}
	if r.IntN(3) == 0 {
		j.Spec.PodReplacementPolicy = new(batchv1.Failed)
		j.Spec.PodFailurePolicy = &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{
			onExit(batchv1.PodFailurePolicyActionIgnore, 3), onExit(batchv1.PodFailurePolicyActionFailJob, 42),
		}}
	}
	if r.IntN(10) == 0 {
		j.Spec.ActiveDeadlineSeconds = new(int64(20 + r.IntN(200)))
	}
	w.shrinks = r.IntN(3) == 0
	return j
}

// clean are pods that succeeded and that nobody had deleted before.
type ends struct{ all, clean int }

// kubelet runs a random pod a step further.
func (w *world) kubelet(e *ends) {
	w.mu.Lock()
	defer w.mu.Unlock()
	pods := w.pods()
	if len(pods) == 0 {
		return
	}
	p := pods[w.rand.IntN(len(pods))].DeepCopy()
	ended := p.Status.Phase == v1.PodSucceeded || p.Status.Phase == v1.PodFailed
	switch {
	case p.DeletionTimestamp != nil && ended:
		if *p.DeletionGracePeriodSeconds > 0 {
			w.remove(p, 0)
		}
		return
	case p.DeletionTimestamp != nil && w.chance(0.3):
		w.remove(p, 0) // its node is gone: nobody says how it ended
		return
	case ended:
		return
	case p.Status.Phase == v1.PodPending && p.DeletionTimestamp == nil:
		p.Status.Phase = v1.PodRunning
		p.Status.Conditions = []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue, LastTransitionTime: metav1.Now()}}
	default:
		w.end(p, e)
	}
	w.stored("pods", p)
}

func (w *world) end(p *v1.Pod, e *ends) {
	code := []int32{0, 0, 0, 1, 1, 3}[w.rand.IntN(6)]
	if w.chance(0.01) {
		code = 42
	}
	if w.calm {
		code = 0
	}
	p.Status.Phase = v1.PodFailed
	if code == 0 {
		p.Status.Phase = v1.PodSucceeded
		if isTracked(p) || p.DeletionTimestamp == nil {
			w.succeeded[p.UID] = true
			e.all++
		}
		if p.DeletionTimestamp == nil {
			e.clean++
		}
	}
	p.Status.Conditions = nil
	p.Status.ContainerStatuses = []v1.ContainerStatus{exited(code)}
	j := w.job()
	if code != 0 && isTracked(p) && judge(j.Spec.PodFailurePolicy, p).counts() {
		i := indexOf(p)
		if w.failures[i]++; limitsIndexes(j) && !w.shrinks && w.failures[i] > int(*j.Spec.BackoffLimitPerIndex)+1 {
			w.fail("index %d failed %d times", i, w.failures[i])
		}
	}
	w.log("end %s %d", p.Name, code)
}

// user does what users do.
func (w *world) user() {
	w.mu.Lock()
	defer w.mu.Unlock()
	j := w.job()
	if j == nil {
		return
	}
	j = j.DeepCopy()
	switch n := w.rand.IntN(10); {
	case n < 3:
		if pods := w.pods(); len(pods) > 0 {
			// A known limit: a pod that was released to be deleted, succeeded before that, and is deleted by somebody
			// else before the controller is back, is gone before anybody can count it.
			p := pods[w.rand.IntN(len(pods))].DeepCopy()
			released := !isTracked(p) && p.Annotations[withdrawn] == string(p.UID)
			if !released || p.Status.Phase != v1.PodSucceeded {
				w.remove(p, 30)
			}
		}
		return
	case n < 5 && w.shrinks && !isFinished(j):
		j.Spec.Suspend = new(!isSuspended(j))
		w.log("suspend %v", *j.Spec.Suspend)
	case n < 7 && w.shrinks && !isFinished(j):
		j.Spec.Parallelism = new(int32(1 + w.rand.IntN(5)))
		w.log("parallelism %d", *j.Spec.Parallelism)
	default:
		j.Labels = map[string]string{"touched": time.Now().String()}
	}
	w.stored("jobs", j)
}

// play lets a job live, until it has finished or never will.
func (w *world) play() (e ends) {
	w.mu.Lock()
	w.stored("jobs", w.randomJob())
	w.log("job %+v", w.job().Spec)
	w.mu.Unlock()
	wait := w.start()
	for step := range 20000 {
		w.mu.Lock()
		pause, acts := time.Duration(w.rand.IntN(1000))*time.Millisecond, w.chance(0.1)
		w.mu.Unlock()
		time.Sleep(pause)
		w.mu.Lock()
		if step == 150 {
			w.calm, acts = true, false // nobody interferes any more
			w.revive()
		}
		if w.chance(0.1) && w.left < 0 {
			w.left = w.rand.IntN(8)
		}
		dead, done := w.life.dead, w.calm && isFinished(w.job()) && len(trackedOf(w.pods())) == 0
		w.mu.Unlock()
		if done {
			break
		}
		if dead {
			wait()
			wait = w.start()
		}
		w.kubelet(&e)
		if acts {
			w.user()
		}
	}
	w.mu.Lock()
	w.kill()
	w.mu.Unlock()
	wait()
	return e
}

// revive makes a job go on for which somebody has to do so.
func (w *world) revive() {
	w.left = -1
	w.log("calm")
	if j := w.job().DeepCopy(); isSuspended(j) {
		j.Spec.Suspend = new(false)
		w.stored("jobs", j)
	}
}

func (w *world) judge(e ends) {
	j := w.job()
	st := &j.Status
	if !isFinished(j) || len(trackedOf(w.pods())) > 0 {
		w.fail("it did not end: %+v", st)
		return
	}
	if len(uncountedOf(st)) > 0 || st.Active != 0 || *st.Terminating != 0 {
		w.fail("it has ended, but something is left: %+v", st)
	}
	if len(w.unlisted) > 0 && isTrue(st, batchv1.JobComplete) && j.Spec.SuccessPolicy == nil {
		w.fail("lost: %v", w.unlisted)
	}
	if isIndexed(j) {
		if int(st.Succeeded) > e.all || isTrue(st, batchv1.JobComplete) && j.Spec.SuccessPolicy == nil && int(st.Succeeded) != completions(j) {
			w.fail("%d pods succeeded, status %+v", e.all, st)
		}
		return
	}
	low := e.clean - len(w.unlisted)
	if int(st.Succeeded) > e.all || isTrue(st, batchv1.JobComplete) && int(st.Succeeded) < low {
		w.fail("%d pods succeeded, %d of them undisturbed; status %+v", e.all, e.clean, st)
	}
	if j.Spec.Completions != nil && e.clean > completions(j) {
		w.fail("%d pods succeeded, of %d", e.clean, completions(j))
	}
}

// Whole lives of jobs, in virtual time.
func TestRandomLives(t *testing.T) {
	klog.SetLogger(logr.Discard()) // failures are what this is about
	defer klog.ClearLogger()
	lives := uint64(300)
	if testing.Short() {
		lives = 30
	}
	for seed := range lives {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, seed)
			w.judge(w.play())
			w.running.Wait()
		})
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}
