package job

import (
	"testing"
	"testing/synctest"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
)

// one returns the only pod. The world is locked.
func (w *world) one() *v1.Pod {
	w.t.Helper()
	list := w.pods()
	if len(list) != 1 {
		w.fail("%d pods", len(list))
		w.t.FailNow()
	}
	return list[0].DeepCopy()
}

func (w *world) suspend(yes bool) {
	j := w.job().DeepCopy()
	j.Spec.Suspend = &yes
	w.stored("jobs", j)
}

// suspending starts a job of one pod, suspends it, and kills the controller between the two writes
// that take the pod away.
func suspending(t *testing.T, indexed bool) *world {
	t.Helper()
	w := newWorld(t, 1)
	w.calm = true
	j := newJob(1, 1)
	j.Spec.Suspend = new(false)
	if indexed {
		j.Spec.CompletionMode = new(batchv1.IndexedCompletion)
	}
	w.stored("jobs", j)
	wait := w.start()
	synctest.Wait()
	w.mu.Lock()
	w.one()
	w.left = 1
	w.suspend(true)
	w.mu.Unlock()
	wait()
	if p := w.one(); isTracked(p) || p.DeletionTimestamp != nil {
		t.Fatalf("it was to be killed before the deletion: %+v", p.ObjectMeta)
	}
	return w
}

// A pod that was to be deleted uncounted, because its job was suspended or shrunk, has succeeded
// while the controller was dead, before the deletion: its work was done a second time.
func TestSuccessBetweenReleaseAndDeletionCounts(t *testing.T) {
	for name, indexed := range map[string]bool{"indexed": true, "not indexed": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := suspending(t, indexed)
				p := w.one()
				p.Status.Phase = v1.PodSucceeded
				w.stored("pods", p)
				w.suspend(false)
				w.lives()
				if w.one().UID != p.UID || w.job().Status.Succeeded != 1 || !isTrue(&w.job().Status, batchv1.JobComplete) {
					w.fail("%+v", w.job().Status)
				}
			})
		})
	}
}

// One that still runs goes, and does not count as failed.
func TestWithdrawalGoesOnAfterAKill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := suspending(t, true)
		w.lives()
		p, st := w.one(), w.job().Status
		if p.DeletionTimestamp == nil || isTracked(p) || st.Failed != 0 || st.Active != 0 {
			w.fail("%+v %+v", p.ObjectMeta, st)
		}
	})
}

// One whose job goes on before is kept, and is counted as any other.
func TestWithdrawnPodIsKeptIfItsJobGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := suspending(t, true)
		w.suspend(false)
		w.lives()
		if p := w.one(); p.DeletionTimestamp != nil || !isTracked(p) || p.Annotations[withdrawn] != "" {
			w.fail("%+v", p.ObjectMeta)
		}
	})
}

// lives lets the controller live for a minute.
func (w *world) lives() {
	wait := w.start()
	time.Sleep(time.Minute)
	w.mu.Lock()
	w.kill()
	w.mu.Unlock()
	wait()
	w.running.Wait()
}
