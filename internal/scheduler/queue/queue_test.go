package queue

import (
	"context"
	"fmt"
	"os"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"wherry.dev/internal/scheduler/framework"
	"wherry.dev/test/leaks"
)

func pod(name string, priority int32) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), Generation: 1}, Spec: v1.PodSpec{Priority: &priority}}
}

func newQueue(gated map[string]bool) *Queue {
	return New(Config{
		Placed: func(types.UID) bool { return false },
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
		Listeners: func(e fwk.ClusterEvent) sets.Set[string] {
			if e.Resource == fwk.Node {
				return sets.New("Fit", "Volumes")
			}
			return nil
		},
		Hints: func(p *framework.QueuedPodInfo, e fwk.ClusterEvent, _, obj any) Hint {
			switch {
			case e.Resource != fwk.Node || obj == "useless":
				return Skip
			case p.PendingPlugins.Has("Volumes"):
				return RetryNow
			case p.UnschedulablePlugins.Has("Fit"):
				return Retry
			}
			return Skip
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

// requeue puts a popped pod back that the plugins rejected; none means an error.
func requeue(t *testing.T, q *Queue, info *framework.QueuedPodInfo, by sets.Set[string]) bool {
	t.Helper()
	info.UnschedulablePlugins = by
	return q.Requeue(t.Context(), info)
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
			requeue(t, q, info, nil)
		}
	})
}

func TestUnschedulableWaitsForAnEventThatHelps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(nil)
		add(t, q, pod("a", 0))
		requeue(t, q, pop(t, q, "a"), sets.New("Fit"))
		q.Move(t.Context(), fwk.ClusterEvent{Resource: fwk.AssignedPod}, nil, nil)
		time.Sleep(time.Minute)
		if a, b, u, _ := q.Lengths(); a+b != 0 || u != 1 {
			t.Fatalf("an event that cannot help moved it: %d %d %d", a, b, u)
		}
		start := time.Now()
		q.Move(t.Context(), fwk.ClusterEvent{Resource: fwk.Node}, nil, nil)
		requeue(t, q, pop(t, q, "a"), sets.New("Fit"))
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
		requeue(t, q, info, sets.New("Fit"))
		wantLengths(t, q, 0, 1, 0, 0)
		pop(t, q, "a")
		if got := time.Since(start); got != 0 {
			t.Errorf("nobody else waits, and it was tried again after %s", got)
		}
	})
}

// A pod that Permit rejected gives back the node that it had. That is no reason to try it again, and again.
func TestAPodDoesNotHelpItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(nil)
		q.cfg.Hints = func(*framework.QueuedPodInfo, fwk.ClusterEvent, any, any) Hint { return Retry }
		q.cfg.Listeners = func(fwk.ClusterEvent) sets.Set[string] { return sets.New("Fit") }
		add(t, q, pod("a", 2))
		add(t, q, pod("b", 1))
		a, b := pop(t, q, "a"), pop(t, q, "b")
		q.Move(t.Context(), fwk.ClusterEvent{Resource: fwk.AssignedPod, ActionType: fwk.Delete}, pod("a", 2), nil)
		requeue(t, q, a, sets.New("Fit"))
		wantLengths(t, q, 0, 0, 1, 0)
		requeue(t, q, b, sets.New("Fit"))
		wantLengths(t, q, 0, 1, 1, 0)
	})
}

// helped makes pods unschedulable, and has an event come that helps them. Their back-offs end after a second.
func helped(t *testing.T, q *Queue, pods ...*v1.Pod) {
	t.Helper()
	for _, p := range pods {
		add(t, q, p)
		requeue(t, q, pop(t, q, p.Name), sets.New("Fit"))
	}
	q.Move(t.Context(), fwk.ClusterEvent{Resource: fwk.Node}, nil, nil)
}

// The back-off keeps pods that fit nowhere from holding up others. While there are none, nobody has to wait for its end; but one
// whose attempt ended in an error has, since what failed may have to recover.
func TestWhileNobodyElseWaitsNoBackoffHasToEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(nil)
		start := time.Now()
		helped(t, q, pod("a", 0), pod("important", 10))
		add(t, q, pod("b", 0))
		for _, want := range []string{"b", "important", "a"} {
			pop(t, q, want)
		}
		if got := time.Since(start); got != 0 {
			t.Errorf("they were tried again after %s", got)
		}
		add(t, q, pod("fails", 10))
		requeue(t, q, pop(t, q, "fails"), nil)
		helped(t, q, pod("c", 0))
		pop(t, q, "c")
		pop(t, q, "fails")
		if got := time.Since(start); got != DefaultInitialBackoff {
			t.Errorf("the pod whose attempt failed was tried again after %s", got)
		}
	})
}

// A pod that became unschedulable while Pop waited is popped as soon as an event helps it.
func TestPopWakesForAPodInBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(nil)
		add(t, q, pod("a", 0))
		requeue(t, q, pop(t, q, "a"), sets.New("Fit"))
		start := time.Now()
		time.AfterFunc(300*time.Millisecond, func() { q.Move(t.Context(), fwk.ClusterEvent{Resource: fwk.Node}, nil, nil) })
		pop(t, q, "a")
		if got := time.Since(start); got != 300*time.Millisecond {
			t.Errorf("tried again after %s", got)
		}
	})
}

// However often events come that do not help after all, the scheduler has time left.
func TestOnlySoManyDoNotWaitForTheirBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(nil)
		const many = 50
		for i := range many {
			helped(t, q, pod(fmt.Sprint(i), 0))
		}
		start, attempts := time.Now(), 0
		ctx, stop := context.WithDeadline(t.Context(), start.Add(10*time.Second))
		defer stop()
		for {
			info, err := q.Pop(ctx)
			if err != nil {
				break
			}
			attempts++
			requeue(t, q, info, sets.New("Fit"))
			q.Move(t.Context(), fwk.ClusterEvent{Resource: fwk.Node}, nil, nil)
		}
		if most := 11*earlyRate + many; attempts > most || attempts < 10*earlyRate {
			t.Errorf("%d attempts in ten seconds, want about %d", attempts, 10*earlyRate)
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
		requeue(t, q, info, nil)
		add(t, q, pod("b", 0))
		pop(t, q, "b")
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if info, err := q.Pop(ctx); err == nil {
			t.Errorf("popped %s", info.GetPod().Name)
		}
	})
}

// TestAPoppedPodDoesNotChange: a cycle that has looked at one version of a pod must not assume
// another one.
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
		if !requeue(t, q, info, sets.New("Fit")) {
			t.Error("it is not queued again")
		}
		if got := pop(t, q, "a").GetPod().Generation; got != 2 {
			t.Errorf("the next attempt has generation %d", got)
		}
	})
}

func TestMain(m *testing.M) { os.Exit(leaks.Watch(m).Run()) }

// failAndPop fails the pod and returns how long its back-off was.
func failAndPop(t *testing.T, q *Queue, info *framework.QueuedPodInfo, by sets.Set[string]) (*framework.QueuedPodInfo, time.Duration) {
	t.Helper()
	requeue(t, q, info, by)
	q.Move(t.Context(), fwk.ClusterEvent{Resource: fwk.Node}, nil, nil)
	waits, _ := q.Find(info.GetPod().UID)
	backoff := time.Until(waits.Retry)
	return pop(t, q, info.GetPod().Name), backoff
}

// TestAnErrorDoesNotWaitForWhatDidNotFit: attempts that found no node and errors used to be added
// up, so a single lost answer cost a pod that had waited long for room the longest back-off.
func TestAnErrorDoesNotWaitForWhatDidNotFit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(nil)
		add(t, q, pod("a", 0))
		info := pop(t, q, "a")
		for i, step := range []struct {
			by   sets.Set[string]
			want time.Duration
		}{
			{sets.New("Fit"), 1}, {sets.New("Fit"), 2}, {sets.New("Fit"), 4}, {sets.New("Fit"), 8}, {sets.New("Fit"), 10},
			{nil, 1}, {nil, 2}, {sets.New("Fit"), 10}, {nil, 1},
		} {
			var after time.Duration
			if info, after = failAndPop(t, q, info, step.by); after != step.want*time.Second {
				t.Errorf("step %d: a back-off of %s, want %d s", i, after, step.want)
			}
		}
		if info.Attempts != 10 {
			t.Errorf("%d attempts", info.Attempts)
		}
	})
}

func TestBackoffIsConfigured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := newQueue(nil).cfg
		cfg.InitialBackoff, cfg.MaxBackoff = 3*time.Second, 7*time.Second
		q := New(cfg)
		add(t, q, pod("a", 0))
		info := pop(t, q, "a")
		for _, want := range []time.Duration{3, 6, 7, 7} {
			var after time.Duration
			if info, after = failAndPop(t, q, info, nil); after != want*time.Second {
				t.Errorf("a back-off of %s, want %d s", after, want)
			}
		}
	})
}

// wantLengths compares how many pods are in each place.
func wantLengths(t *testing.T, q *Queue, active, backoff, unschedulable, gated int) {
	t.Helper()
	if a, b, u, g := q.Lengths(); a != active || b != backoff || u != unschedulable || g != gated {
		t.Errorf("active %d, backoff %d, unschedulable %d, gated %d; want %d %d %d %d", a, b, u, g, active, backoff, unschedulable, gated)
	}
}

func TestOnlyItsOwnChangeWakesAGatedPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(map[string]bool{"a": true})
		add(t, q, pod("a", 0))
		q.Move(t.Context(), fwk.ClusterEvent{Resource: fwk.Node}, nil, nil)
		ctx, cancel := context.WithTimeout(t.Context(), 2*maxUnschedulable)
		defer cancel()
		if info, err := q.Pop(ctx); err == nil {
			t.Errorf("popped %s", info.GetPod().Name)
		}
		same := pod("a", 0)
		same.Labels = map[string]string{"new": "label"}
		add(t, q, same)
		wantLengths(t, q, 0, 0, 0, 1)
		q.Remove("a")
		wantLengths(t, q, 0, 0, 0, 0)
	})
}

func TestWhichChangesOfAPodWakeIt(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*v1.Pod)
		wakes  bool
	}{
		"its spec":   {func(p *v1.Pod) { p.Generation = 2 }, true},
		"its labels": {func(p *v1.Pod) { p.Labels = map[string]string{"new": "label"} }, true},
		"its status": {func(p *v1.Pod) { p.Status.Phase = v1.PodPending; p.ResourceVersion = "2" }, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := newQueue(nil)
				add(t, q, pod("a", 0))
				requeue(t, q, pop(t, q, "a"), sets.New("Fit"))
				changed := pod("a", 0)
				tc.change(changed)
				add(t, q, changed)
				if tc.wakes {
					wantLengths(t, q, 0, 1, 0, 0)
				} else {
					wantLengths(t, q, 0, 0, 1, 0)
				}
				// During an attempt.
				q.Remove("a")
				add(t, q, pod("a", 0))
				info := pop(t, q, "a")
				add(t, q, changed)
				requeue(t, q, info, sets.New("Fit"))
				if tc.wakes {
					wantLengths(t, q, 0, 1, 0, 0)
				} else {
					wantLengths(t, q, 0, 0, 1, 0)
				}
			})
		})
	}
}

func TestRemovedPodLeavesWhereverItIs(t *testing.T) {
	for name, bring := range map[string]func(*testing.T, *Queue){
		"active":        func(*testing.T, *Queue) {},
		"backoff":       func(t *testing.T, q *Queue) { requeue(t, q, pop(t, q, "a"), nil) },
		"unschedulable": func(t *testing.T, q *Queue) { requeue(t, q, pop(t, q, "a"), sets.New("Fit")) },
		"in flight":     func(t *testing.T, q *Queue) { pop(t, q, "a") },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := newQueue(nil)
				add(t, q, pod("a", 1))
				bring(t, q)
				add(t, q, pod("b", 0))
				q.Remove("a")
				wantLengths(t, q, 1, 0, 0, 0)
				pop(t, q, "b")
			})
		})
	}
}

// TestHigherPriorityOutOfBackoffGoesFirst: a pod that comes out of back-off is sorted in, not put
// at the end.
func TestHigherPriorityOutOfBackoffGoesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(nil)
		add(t, q, pod("important", 10))
		requeue(t, q, pop(t, q, "important"), nil)
		add(t, q, pod("b", 0))
		add(t, q, pod("c", 0))
		pop(t, q, "b")
		time.Sleep(DefaultInitialBackoff)
		pop(t, q, "important")
		pop(t, q, "c")
	})
}

// TestEventsDuringAnAttemptAreJudged: an event that cannot help the pod does not wake it, whether it
// comes during the attempt or after it; and what one flight needs is kept although an earlier one
// has ended.
func TestEventsDuringAnAttemptAreJudged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(nil)
		add(t, q, pod("a", 2))
		add(t, q, pod("b", 1))
		first := pop(t, q, "a")
		q.Move(t.Context(), fwk.ClusterEvent{Resource: fwk.Node}, nil, "useless")
		second := pop(t, q, "b")
		requeue(t, q, first, sets.New("Fit"))
		wantLengths(t, q, 0, 0, 1, 0)
		q.Move(t.Context(), fwk.ClusterEvent{Resource: fwk.Node}, nil, nil)
		wantLengths(t, q, 0, 1, 0, 0)
		requeue(t, q, second, sets.New("Other"))
		wantLengths(t, q, 0, 1, 1, 0)
		if n := q.flights.Len(); n != 0 {
			t.Errorf("%d events are kept, and nobody needs them", n)
		}
	})
}

// TestWhoWaitedForThisIsNotPunished: a pod that a plugin sent away to wait for something has not
// wasted its attempt.
func TestWhoWaitedForThisIsNotPunished(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(nil)
		add(t, q, pod("a", 0))
		info := pop(t, q, "a")
		info.PendingPlugins = sets.New("Volumes")
		q.Requeue(t.Context(), info)
		start := time.Now()
		q.Move(t.Context(), fwk.ClusterEvent{Resource: fwk.Node}, nil, nil)
		pop(t, q, "a")
		if d := time.Since(start); d != 0 {
			t.Errorf("tried again after %s", d)
		}
	})
}

func TestActivate(t *testing.T) {
	for name, bring := range map[string]func(*testing.T, *Queue){
		"backoff":       func(t *testing.T, q *Queue) { requeue(t, q, pop(t, q, "a"), nil) },
		"unschedulable": func(t *testing.T, q *Queue) { requeue(t, q, pop(t, q, "a"), sets.New("Fit")) },
		"active":        func(*testing.T, *Queue) {},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := newQueue(nil)
				add(t, q, pod("a", 0))
				bring(t, q)
				q.Activate(klog.Background(), map[string]*v1.Pod{"default/a": pod("a", 0), "default/stranger": pod("stranger", 0)})
				wantLengths(t, q, 1, 0, 0, 0)
			})
		})
	}
	t.Run("in flight", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			q := newQueue(nil)
			add(t, q, pod("a", 0))
			info := pop(t, q, "a")
			q.Activate(klog.Background(), map[string]*v1.Pod{"default/a": pod("a", 0)})
			requeue(t, q, info, sets.New("Fit"))
			wantLengths(t, q, 0, 1, 0, 0)
		})
	})
}

func TestNominationsFollowThePod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(nil)
		want := func(node string, n int) {
			t.Helper()
			if got := len(q.Nominator().NominatedPodsForNode(node)); got != n {
				t.Errorf("%d pods are nominated for %s, want %d", got, node, n)
			}
		}
		on := func(node string) *v1.Pod {
			p := pod("a", 0)
			p.Status.NominatedNodeName = node
			return p
		}
		add(t, q, on("n1"))
		want("n1", 1)
		add(t, q, on("n2"))
		want("n1", 0)
		want("n2", 1)
		add(t, q, pod("a", 0))
		want("n2", 0)
		// One that is on its way to the API is not lost by another update of the pod.
		info := pop(t, q, "a")
		q.Nominator().AddNominatedPod(klog.Background(), info, &fwk.NominatingInfo{NominatingMode: fwk.ModeOverride, NominatedNodeName: "n3"})
		add(t, q, pod("a", 0))
		want("n3", 1)
		q.Remove("a")
		want("n3", 0)
		q.Nominator().AddNominatedPod(klog.Background(), info, &fwk.NominatingInfo{NominatingMode: fwk.ModeOverride, NominatedNodeName: "n3"})
		want("n3", 0)
	})
}

// TestTooMuchHappensDuringAnAttempt: what is kept has a limit; who would have wanted the rest is tried again.
func TestTooMuchHappensDuringAnAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(nil)
		add(t, q, pod("a", 2))
		info := pop(t, q, "a")
		for range maxEvents + 10 {
			q.Move(t.Context(), fwk.ClusterEvent{Resource: fwk.AssignedPod}, nil, nil)
		}
		if n := q.flights.Len(); n != maxEvents+1 || q.events != maxEvents {
			t.Errorf("%d are kept, counted as %d", n, q.events)
		}
		requeue(t, q, info, sets.New("Fit"))
		wantLengths(t, q, 0, 1, 0, 0)
		if q.flights.Len() != 0 || q.events != 0 {
			t.Errorf("%d are kept, counted as %d", q.flights.Len(), q.events)
		}
	})
}

// TestAPoppedPodKnowsItsNomination before the API does.
func TestAPoppedPodKnowsItsNomination(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(nil)
		add(t, q, pod("a", 0))
		info := pop(t, q, "a")
		q.Nominator().AddNominatedPod(klog.Background(), info, &fwk.NominatingInfo{NominatingMode: fwk.ModeOverride, NominatedNodeName: "n"})
		requeue(t, q, info, nil)
		if got := pop(t, q, "a").GetPod().Status.NominatedNodeName; got != "n" {
			t.Errorf("nominated for %q", got)
		}
	})
}

// TestOneOfAShapeIsAskedAbout: ten thousand pods that are alike cost an event as much as one of them.
func TestOneOfAShapeIsAskedAbout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(nil)
		asked := 0
		q.cfg.Shape = func(plugin string, p *v1.Pod) string {
			if plugin == "Fit" {
				return p.Labels["shape"]
			}
			return ""
		}
		q.cfg.Helps = func(_ string, p *framework.QueuedPodInfo, _ fwk.ClusterEvent, _, obj any) bool {
			asked++
			return obj == p.GetPod().Labels["shape"]
		}
		for name, shape := range map[string]string{"a": "small", "b": "small", "c": "large", "d": "large", "e": ""} {
			p := pod(name, 0)
			p.Labels = map[string]string{"shape": shape}
			add(t, q, p)
		}
		for range 5 {
			info, err := q.Pop(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			requeue(t, q, info, sets.New("Fit"))
		}
		time.Sleep(time.Minute) // the back-off is over
		node := fwk.ClusterEvent{Resource: fwk.Node, ActionType: fwk.Add}
		q.Move(t.Context(), node, nil, "useless")
		if active, _, waiting, _ := q.Lengths(); active != 0 || waiting != 5 || asked != 2 {
			t.Errorf("%d pods are tried again, %d wait; %d were asked about", active, waiting, asked)
		}
		q.Move(t.Context(), node, nil, "small")
		if active, _, waiting, _ := q.Lengths(); active != 3 || waiting != 2 { // and the one without a shape
			t.Errorf("%d pods are tried again, %d wait", active, waiting)
		}
		if got := q.Rejected()[Rejecter{Plugin: "Fit"}]; got != 2 {
			t.Errorf("%d pods are rejected", got)
		}
		q.Move(t.Context(), node, nil, "large")
		if active, _, waiting, _ := q.Lengths(); active != 5 || waiting != 0 || len(q.rejected["Fit"]) != 0 {
			t.Errorf("%d pods are tried again, %d wait", active, waiting)
		}
	})
}

// TestNobodyKeepsOffANodeForAPodThatHasOne: that the pod is nominated for it may be heard of when it is just being bound
// there. It counted twice then, and whoever it kept off was not woken when it counted once again.
func TestNobodyKeepsOffANodeForAPodThatHasOne(t *testing.T) {
	q := newQueue(nil)
	placed := false
	q.cfg.Placed = func(types.UID) bool { return placed }
	add := func(node string) {
		t.Helper()
		p := pod("p", 0)
		p.Status.NominatedNodeName = node
		if err := q.Add(t.Context(), p); err != nil {
			t.Fatal(err)
		}
	}
	add("n1")
	if n := len(q.Nominator().NominatedPodsForNode("n1")); n != 1 {
		t.Errorf("%d pods are nominated while it waits", n)
	}
	placed = true
	add("n1")
	if n := len(q.Nominator().NominatedPodsForNode("n1")); n != 0 {
		t.Errorf("%d pods are nominated when it has a node", n)
	}
}
