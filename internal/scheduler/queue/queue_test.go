package queue

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	fwk "k8s.io/kube-scheduler/framework"

	"wherry.dev/internal/scheduler/framework"
)

func pod(name string, priority int32) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), Generation: 1}, Spec: v1.PodSpec{Priority: &priority}}
}

func newQueue(gated map[string]bool) *Queue {
	return New(Config{
		Less: func(a, b fwk.QueuedEntityInfo) bool {
			if a.GetPriority() != b.GetPriority() {
				return a.GetPriority() > b.GetPriority()
			}
			return a.GetTimestamp().Before(b.GetTimestamp())
		},
		PreEnqueue: func(_ context.Context, p *v1.Pod) *fwk.Status {
			if gated[p.Name] && p.Generation == 1 {
				return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "gated").WithPlugin("Gate")
			}
			return nil
		},
		Hints: func(p *framework.QueuedPodInfo, e fwk.ClusterEvent, _, _ any) bool {
			return p.UnschedulablePlugins.Has("Fit") && e.Resource == fwk.Node
		},
	})
}

func add(t *testing.T, q *Queue, p *v1.Pod) {
	t.Helper()
	if err := q.Add(t.Context(), p); err != nil {
		t.Fatal(err)
	}
}

func pop(t *testing.T, q *Queue, want string) *framework.QueuedPodInfo {
	t.Helper()
	info, err := q.Pop(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got := info.GetPod().Name; got != want {
		t.Fatalf("popped %s, want %s", got, want)
	}
	return info
}

func TestPriorityThenAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(nil)
		add(t, q, pod("old", 0))
		time.Sleep(time.Millisecond)
		add(t, q, pod("young", 0))
		add(t, q, pod("important", 10))
		for _, want := range []string{"important", "old", "young"} {
			pop(t, q, want)
		}
	})
}

func TestErrorBacksOffAndDoubles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(nil)
		add(t, q, pod("a", 0))
		start := time.Now()
		for _, want := range []time.Duration{0, 1, 3, 7, 15, 25, 35} { // 1, 2, 4, 8, 10, 10 s apart
			info := pop(t, q, "a")
			if got := time.Since(start); got != want*time.Second {
				t.Errorf("attempt %d after %s, want %s", info.Attempts, got, want*time.Second)
			}
			q.Requeue(t.Context(), info, nil)
		}
	})
}

func TestUnschedulableWaitsForAnEventThatHelps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(nil)
		add(t, q, pod("a", 0))
		q.Requeue(t.Context(), pop(t, q, "a"), sets.New("Fit"))
		q.Move(t.Context(), fwk.ClusterEvent{Resource: fwk.AssignedPod}, nil, nil)
		time.Sleep(time.Minute)
		if a, b, u, _ := q.Lengths(); a+b != 0 || u != 1 {
			t.Fatalf("an event that cannot help moved it: %d %d %d", a, b, u)
		}
		start := time.Now()
		q.Move(t.Context(), fwk.ClusterEvent{Resource: fwk.Node}, nil, nil)
		q.Requeue(t.Context(), pop(t, q, "a"), sets.New("Fit"))
		if time.Since(start) != 0 {
			t.Error("its back-off was long over")
		}
		pop(t, q, "a")
		if got := time.Since(start); got != maxUnschedulable {
			t.Errorf("without any event it was tried after %s", got)
		}
	})
}

// An event that comes between the decision and the re-queueing must not be lost.
func TestEventDuringTheAttemptCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(nil)
		add(t, q, pod("a", 0))
		info := pop(t, q, "a")
		q.Move(t.Context(), fwk.ClusterEvent{Resource: fwk.Node}, nil, nil)
		start := time.Now()
		q.Requeue(t.Context(), info, sets.New("Fit"))
		pop(t, q, "a")
		if got := time.Since(start); got != DefaultInitialBackoff {
			t.Errorf("tried again after %s", got)
		}
	})
}

func TestGateOpens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(map[string]bool{"a": true})
		add(t, q, pod("a", 0))
		if _, _, _, g := q.Lengths(); g != 1 {
			t.Fatal("not gated")
		}
		open := pod("a", 0)
		open.Generation = 2
		add(t, q, open)
		pop(t, q, "a")
	})
}

func TestRemovedPodIsNeitherPoppedNorRequeued(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(nil)
		add(t, q, pod("a", 0))
		info := pop(t, q, "a")
		q.Remove("a")
		q.Requeue(t.Context(), info, nil)
		add(t, q, pod("b", 0))
		pop(t, q, "b")
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if info, err := q.Pop(ctx); err == nil {
			t.Errorf("popped %s", info.GetPod().Name)
		}
	})
}

// TestAPoppedPodDoesNotChange: a cycle that has looked at one version of a pod must not
// assume another.
func TestAPoppedPodDoesNotChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(nil)
		add(t, q, pod("a", 1))
		info := pop(t, q, "a")
		changed := pod("a", 1)
		changed.Generation, changed.Labels = 2, map[string]string{"new": "label"}
		add(t, q, changed)
		if got := info.GetPod().Generation; got != 1 {
			t.Errorf("the popped pod became generation %d", got)
		}
		if !q.Requeue(t.Context(), info, sets.New("Fit")) {
			t.Error("it is not queued again")
		}
		if got := pop(t, q, "a").GetPod().Generation; got != 2 {
			t.Errorf("the next attempt has generation %d", got)
		}
	})
}
