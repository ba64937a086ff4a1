package ttlafterfinished

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
)

func job(name string, ttl *int32, ends batchv1.JobConditionType) *batchv1.Job {
	j := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name, UID: "u", ResourceVersion: "1"}, Spec: batchv1.JobSpec{TTLSecondsAfterFinished: ttl}}
	if ends != "" {
		j.Status.Conditions = []batchv1.JobCondition{{Type: ends, Status: v1.ConditionTrue, LastTransitionTime: metav1.Now()}}
	}
	return j
}

func TestJobsGoWhenTheirTimeIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset(
			job("complete", new(int32(100)), batchv1.JobComplete), job("failed", new(int32(0)), batchv1.JobFailed),
			job("running", new(int32(1)), ""), job("kept", nil, batchv1.JobComplete), job("longer", new(int32(100)), batchv1.JobComplete),
		)
		var gone []string
		client.PrependReactor("delete", "jobs", func(a k8stesting.Action) (bool, runtime.Object, error) {
			d := a.(k8stesting.DeleteActionImpl)
			if p := d.DeleteOptions.PropagationPolicy; p == nil || *p != metav1.DeletePropagationForeground || *d.DeleteOptions.Preconditions.ResourceVersion != "1" {
				t.Errorf("%+v", d.DeleteOptions)
			}
			gone = append(gone, d.Name+" "+time.Since(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)).String())
			return false, nil, nil
		})
		// The informer does not know that somebody has given it more time.
		client.PrependReactor("get", "jobs", func(a k8stesting.Action) (bool, runtime.Object, error) {
			if a.(k8stesting.GetAction).GetName() != "longer" {
				return false, nil, nil
			}
			j := job("longer", new(int32(200)), batchv1.JobComplete)
			j.Status.Conditions[0].LastTransitionTime = metav1.NewTime(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC))
			return true, j, nil
		})
		f := informers.NewSharedInformerFactory(client, 0)
		c, err := New(client, f, func(ctx context.Context, _ func()) error { <-ctx.Done(); return nil })
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		f.Start(ctx.Done())
		done := make(chan error, 1)
		go func() { done <- c.Run(ctx) }()
		time.Sleep(time.Hour)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		f.Shutdown()
		want := []string{"failed 0s", "complete 1m40s", "longer 3m20s"}
		if len(gone) != 3 || gone[0] != want[0] || gone[1] != want[1] || gone[2] != want[2] {
			t.Errorf("%q, want %q", gone, want)
		}
	})
}
