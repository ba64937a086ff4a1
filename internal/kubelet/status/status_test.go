package status

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"wherry.dev/test/leaks"
)

func TestMain(m *testing.M) { os.Exit(leaks.Watch(m).Run()) }

func pod() *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u"}, Status: v1.PodStatus{
		Conditions: []v1.PodCondition{{Type: "Theirs", Status: v1.ConditionTrue}, {Type: v1.PodScheduled, Status: v1.ConditionTrue}},
	}}
}

func with(phase v1.PodPhase) v1.PodStatus {
	return v1.PodStatus{Phase: phase, Conditions: []v1.PodCondition{{Type: v1.PodScheduled, Status: v1.ConditionTrue}, {Type: v1.PodReady, Status: v1.ConditionFalse}}}
}

func play(t *testing.T, f func(t *testing.T, m *Manager, c *fake.Clientset, patches *atomic.Int32)) {
	synctest.Test(t, func(t *testing.T) {
		c := fake.NewClientset(pod())
		var n atomic.Int32
		write := clienttesting.ObjectReaction(c.Tracker())
		stamp := func(a clienttesting.Action, obj runtime.Object) (bool, runtime.Object, error) {
			p := obj.(*v1.Pod).DeepCopy()
			p.ResourceVersion = strconv.Itoa(int(10 * n.Add(1)))
			return true, p, c.Tracker().Update(a.GetResource(), p, "ns")
		}
		c.PrependReactor("patch", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
			_, obj, err := write(a)
			if err != nil {
				return true, nil, err
			}
			return stamp(a, obj)
		})
		c.PrependReactor("update", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
			next := a.(clienttesting.UpdateAction).GetObject().(*v1.Pod)
			have, err := c.Tracker().Get(a.GetResource(), "ns", next.Name)
			switch {
			case err != nil:
				return true, nil, err
			case next.ResourceVersion != have.(*v1.Pod).ResourceVersion:
				return true, nil, apierrors.NewConflict(v1.Resource("pods"), next.Name, errors.New("another version"))
			}
			return stamp(a, next)
		})
		m := New(c, nil)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- m.Run(ctx) }()
		synctest.Wait()
		f(t, m, c, &n)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func get(t *testing.T, c *fake.Clientset) *v1.Pod {
	t.Helper()
	p, err := c.CoreV1().Pods("ns").Get(t.Context(), "p", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestOnlyChangesAreWritten(t *testing.T) {
	play(t, func(t *testing.T, m *Manager, c *fake.Clientset, n *atomic.Int32) {
		for range 3 {
			m.Put(pod(), with(v1.PodRunning))
			synctest.Wait()
		}
		p := get(t, c)
		if n.Load() != 1 || p.Status.Phase != v1.PodRunning || len(p.Status.Conditions) != 3 {
			t.Errorf("%d writes, %+v", n.Load(), p.Status)
		}
	})
}

func TestSoonIsReplacedByNow(t *testing.T) {
	play(t, func(t *testing.T, m *Manager, c *fake.Clientset, n *atomic.Int32) {
		m.PutSoon(pod(), with(v1.PodPending))
		synctest.Wait()
		if n.Load() != 0 {
			t.Error("it was written at once")
		}
		m.Put(pod(), with(v1.PodRunning))
		synctest.Wait()
		time.Sleep(time.Second)
		if n.Load() != 1 || get(t, c).Status.Phase != v1.PodRunning {
			t.Errorf("%d writes", n.Load())
		}
		m.PutSoon(pod(), with(v1.PodFailed))
		time.Sleep(soon + time.Millisecond)
		synctest.Wait()
		if n.Load() != 2 {
			t.Errorf("%d writes: what was put soon is late", n.Load())
		}
		m.PutSoon(pod(), with(v1.PodSucceeded))
		if err := m.Flush(t.Context(), "u"); err != nil || get(t, c).Status.Phase != v1.PodSucceeded {
			t.Errorf("%v, %s", err, get(t, c).Status.Phase)
		}
	})
}

// TestManyPodsThatStartWaitLonger: while pods start by the dozen, none is done within the time that
// one takes alone, and each would be written once more than needed.
func TestManyPodsThatStartWaitLonger(t *testing.T) {
	play(t, func(t *testing.T, m *Manager, c *fake.Clientset, n *atomic.Int32) {
		const others = 9
		for i := range others {
			p := pod()
			p.Name += strconv.Itoa(i)
			p.UID = types.UID(p.Name)
			if err := c.Tracker().Add(p); err != nil {
				t.Fatal(err)
			}
			m.PutSoon(p, with(v1.PodPending))
		}
		m.PutSoon(pod(), with(v1.PodPending))
		time.Sleep(soon + time.Millisecond)
		synctest.Wait()
		if n.Load() != 1 {
			t.Errorf("%d writes: only the first waits as briefly as one alone", n.Load())
		}
		for i := range others { // they are done, or gone
			uid := types.UID("p" + strconv.Itoa(i))
			if i%2 == 0 {
				m.Drop(uid)
				continue
			}
			if err := m.Flush(t.Context(), uid); err != nil {
				t.Error(err)
			}
		}
		time.Sleep(others * soonEach)
		synctest.Wait()
		if get(t, c).Status.Phase != v1.PodPending {
			t.Error("the last one is not written")
		}
		m.PutSoon(pod(), with(v1.PodFailed))
		time.Sleep(soon + time.Millisecond)
		synctest.Wait()
		if get(t, c).Status.Phase != v1.PodFailed {
			t.Error("what is put after the burst still waits longer")
		}
	})
}

func TestErrorsAreRetriedWithTheNewest(t *testing.T) {
	play(t, func(t *testing.T, m *Manager, c *fake.Clientset, n *atomic.Int32) {
		var broken atomic.Bool
		broken.Store(true)
		c.PrependReactor("patch", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
			return broken.Load(), nil, errors.New("broken")
		})
		m.Put(pod(), with(v1.PodPending))
		time.Sleep(3 * time.Second)
		m.Put(pod(), with(v1.PodRunning))
		broken.Store(false)
		if err := m.Flush(t.Context(), "u"); err != nil || n.Load() != 1 || get(t, c).Status.Phase != v1.PodRunning {
			t.Errorf("%v, %d writes, %s", err, n.Load(), get(t, c).Status.Phase)
		}
	})
}

func TestAnotherPodOfTheSameNameIsNotTouched(t *testing.T) {
	play(t, func(t *testing.T, m *Manager, c *fake.Clientset, _ *atomic.Int32) {
		other := pod()
		other.UID = "other"
		if _, err := c.CoreV1().Pods("ns").Update(t.Context(), other, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		c.PrependReactor("patch", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewConflict(schema.GroupResource{Resource: "pods"}, "p", errors.New("UID"))
		})
		m.Put(pod(), with(v1.PodFailed))
		if err := m.Flush(t.Context(), "u"); err != nil {
			t.Error(err)
		}
		if get(t, c).Status.Phase != "" {
			t.Error("the status went to another pod")
		}
	})
}

func TestMirrorGetsTheStaticPodsStatus(t *testing.T) {
	play(t, func(t *testing.T, m *Manager, c *fake.Clientset, n *atomic.Int32) {
		static := pod()
		static.UID, static.Status = "static", v1.PodStatus{}
		static.Annotations = map[string]string{"kubernetes.io/config.source": "file"}
		m.Put(static, with(v1.PodRunning))
		time.Sleep(time.Minute)
		if n.Load() != 0 {
			t.Error("written without a mirror")
		}
		m.SetMirror("static", get(t, c))
		synctest.Wait()
		if get(t, c).Status.Phase != v1.PodRunning {
			t.Error("the mirror has no status")
		}
		m.SetMirror("static", nil)
		m.Put(static, with(v1.PodFailed))
		synctest.Wait()
		if n.Load() != 1 {
			t.Errorf("%d writes", n.Load())
		}
	})
}

// A static pod whose manifest is put back comes again with the same UID, while a patch from its
// previous life may still be on its way. That patch must not have the last word on the mirror.
func TestWhatWasSentOfALastLifeDoesNotOvertakeTheNext(t *testing.T) {
	play(t, func(t *testing.T, m *Manager, c *fake.Clientset, _ *atomic.Int32) {
		static := pod()
		static.UID, static.Annotations = "static", map[string]string{"kubernetes.io/config.source": "file"}
		slow := true
		c.PrependReactor("patch", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
			if slow {
				slow = false
				time.Sleep(time.Minute)
			}
			return false, nil, nil
		})
		m.SetMirror("static", pod())
		m.Put(static, with(v1.PodFailed))
		synctest.Wait()
		m.Drop("static")
		m.Put(static, with(v1.PodRunning))
		time.Sleep(2 * time.Minute)
		if got := get(t, c).Status.Phase; got != v1.PodRunning {
			t.Errorf("phase %s", got)
		}
	})
}

// A patch may have been applied although its response was lost. What it changed used to be never
// changed back.
func TestAPatchWhoseAnswerWasLostIsNotForgotten(t *testing.T) {
	play(t, func(t *testing.T, m *Manager, c *fake.Clientset, _ *atomic.Int32) {
		lose := false
		c.PrependReactor("patch", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
			if !lose {
				return false, nil, nil
			}
			lose = false
			patched := pod()
			patched.Status.Phase = v1.PodPending
			if err := c.Tracker().Update(a.GetResource(), patched, "ns"); err != nil {
				t.Error(err)
			}
			return true, nil, errors.New("the connection is gone")
		})
		m.Put(pod(), with(v1.PodRunning))
		synctest.Wait()
		lose = true
		m.Put(pod(), with(v1.PodPending))
		synctest.Wait()
		m.Put(pod(), with(v1.PodRunning))
		time.Sleep(time.Minute)
		if got := get(t, c).Status.Phase; got != v1.PodRunning {
			t.Errorf("phase %s", got)
		}
	})
}

// Making a patch of unchanged fields used to be most of its cost. Without them the patch is the
// same.
func TestAPatchIsMadeOfWhatDiffers(t *testing.T) {
	container := func(restarts int32) []v1.ContainerStatus {
		return []v1.ContainerStatus{{Name: "c", RestartCount: restarts, State: v1.ContainerState{Running: &v1.ContainerStateRunning{}}}}
	}
	since := &metav1.Time{Time: time.Unix(1, 0)}
	all := []v1.PodStatus{
		{}, with(v1.PodPending), with(v1.PodRunning),
		{Phase: v1.PodRunning, ContainerStatuses: container(1), InitContainerStatuses: container(1), PodIPs: []v1.PodIP{{IP: "::1"}, {IP: "::2"}}, StartTime: since},
		{Phase: v1.PodRunning, ContainerStatuses: container(1), InitContainerStatuses: container(2), PodIPs: []v1.PodIP{{IP: "::2"}}, StartTime: since},
		{Phase: v1.PodFailed, Reason: "Evicted", ContainerStatuses: container(2), Conditions: []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue}}},
	}
	for i, base := range all {
		for j, want := range all {
			b, w := base, want
			if differ := differing(&b, &w); differ != (i != j) {
				t.Errorf("%d and %d: differing is %t", i, j, differ)
			}
			got, err := diff("u", b, w)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(decoded(t, whole(t, base, want)), decoded(t, got)); d != "" {
				t.Errorf("from %d to %d, want what the whole gives:\n%s", i, j, d)
			}
		}
	}
	if all[3].StartTime != since || len(all[3].PodIPs) != 2 {
		t.Error("what was put is changed")
	}
}

// whole returns the patch between the whole pods.
func whole(t *testing.T, base, want v1.PodStatus) []byte {
	t.Helper()
	encode := func(st v1.PodStatus) []byte {
		data, err := json.Marshal(v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u"}, Status: st})
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	patch, err := strategicpatch.CreateTwoWayMergePatch(encode(base), encode(want), v1.Pod{})
	if err != nil {
		t.Fatal(err)
	}
	return patch
}

func decoded(t *testing.T, data []byte) any {
	t.Helper()
	var out struct{ Status map[string]any }
	if err := json.Unmarshal(data, &out); err != nil {
		t.Fatal(err)
	}
	return out.Status
}

// BenchmarkPatch measures the cost of a patch when only one container differs.
func BenchmarkPatch(b *testing.B) {
	base := with(v1.PodRunning)
	for _, name := range []string{"a", "b", "c"} {
		base.InitContainerStatuses = append(base.InitContainerStatuses, v1.ContainerStatus{Name: name, State: v1.ContainerState{Terminated: &v1.ContainerStateTerminated{Reason: "Completed"}}})
		base.ContainerStatuses = append(base.ContainerStatuses, v1.ContainerStatus{Name: name, State: v1.ContainerState{Running: &v1.ContainerStateRunning{}}})
	}
	want := *base.DeepCopy()
	want.ContainerStatuses[0].Ready = true
	b.ReportAllocs()
	for b.Loop() {
		before, after := base, want
		if !differing(&before, &after) {
			b.Fatal("no difference")
		}
		if _, err := diff("u", before, after); err != nil {
			b.Fatal(err)
		}
	}
}

// at returns the pod as the server has it at a version.
func at(version string, st v1.PodStatus) *v1.Pod {
	p := pod()
	p.ResourceVersion, p.Status = version, st
	return p
}

// written has somebody else write the pod.
func written(t *testing.T, c *fake.Clientset, p *v1.Pod, version string) {
	t.Helper()
	p = p.DeepCopy()
	p.ResourceVersion = version
	if err := c.Tracker().Update(v1.SchemeGroupVersion.WithResource("pods"), p, "ns"); err != nil {
		t.Fatal(err)
	}
}

// What is known is updated, which costs less than a patch; what somebody else wrote meanwhile stays.
func TestAKnownVersionIsUpdated(t *testing.T) {
	play(t, func(t *testing.T, m *Manager, c *fake.Clientset, n *atomic.Int32) {
		sent := func() (out []string) {
			for _, a := range c.Actions() {
				if a.Matches("update", "pods") || a.Matches("patch", "pods") {
					out = append(out, a.GetVerb()+" "+a.GetSubresource())
				}
			}
			c.ClearActions()
			return out
		}
		written(t, c, pod(), "5")
		m.Put(at("5", pod().Status), with(v1.PodPending))
		synctest.Wait()
		if got := sent(); n.Load() != 1 || !slices.Equal(got, []string{"update status"}) {
			t.Errorf("%d writes, %v", n.Load(), got)
		}
		p := get(t, c)
		p.Labels = map[string]string{"theirs": "too"}
		p.Status.Conditions = append(p.Status.Conditions, v1.PodCondition{Type: "New", Status: v1.ConditionTrue})
		written(t, c, p, "11")
		m.Put(pod(), with(v1.PodRunning))
		synctest.Wait()
		p = get(t, c)
		if got := sent(); len(got) < 2 || !slices.Equal(got[:2], []string{"update status", "patch status"}) {
			t.Errorf("after a conflict: %v", got)
		}
		if p.Labels["theirs"] != "too" || len(p.Status.Conditions) != 4 || p.Status.Phase != v1.PodRunning {
			t.Errorf("%+v", p)
		}
	})
}

// A status that somebody else had patched used to stay wrong until the kubelet was restarted: it
// was compared with what was last sent.
func TestStatusThatSomebodyElsePatchedIsPutRight(t *testing.T) {
	play(t, func(t *testing.T, m *Manager, c *fake.Clientset, n *atomic.Int32) {
		ours := with(v1.PodRunning)
		ours.PodIP = "10.0.0.1"
		m.Put(at("5", pod().Status), ours)
		synctest.Wait()
		p := get(t, c)
		p.Status.PodIP, p.Status.Conditions = "192.0.2.66", p.Status.Conditions[:1]
		p.Status.NominatedNodeName = "theirs"
		written(t, c, p, "12")
		m.Put(at("4", v1.PodStatus{Phase: v1.PodPending}), ours) // one that was already on its way
		synctest.Wait()
		if n.Load() != 1 {
			t.Errorf("%d writes after an old version", n.Load())
		}
		for _, version := range []string{"12", "12", "13"} {
			st := get(t, c).Status
			m.Put(at(version, st), ours)
			synctest.Wait()
		}
		st := get(t, c).Status
		if n.Load() != 2 || st.PodIP != "10.0.0.1" || len(st.Conditions) != 3 || st.NominatedNodeName != "theirs" {
			t.Errorf("%d writes, %+v", n.Load(), st)
		}
	})
}

// The same used to happen to a mirror's status.
func TestMirrorThatSomebodyElsePatchedIsPutRight(t *testing.T) {
	play(t, func(t *testing.T, m *Manager, c *fake.Clientset, n *atomic.Int32) {
		static := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "s", Annotations: map[string]string{"kubernetes.io/config.source": "file"}}}
		m.SetMirror("s", at("3", pod().Status))
		m.Put(static, with(v1.PodRunning))
		synctest.Wait()
		p := get(t, c)
		p.Status.Phase = v1.PodFailed
		written(t, c, p, "12")
		m.SetMirror("s", at("12", p.Status))
		synctest.Wait()
		if st := get(t, c).Status; n.Load() != 2 || st.Phase != v1.PodRunning {
			t.Errorf("%d writes, %+v", n.Load(), st)
		}
	})
}

// A status that the API server refused used to be sent again every ten seconds for as long as the
// pod existed.
func TestStatusThatIsRefusedIsNotSentForEver(t *testing.T) {
	play(t, func(t *testing.T, m *Manager, c *fake.Clientset, n *atomic.Int32) {
		refuse := true
		c.PrependReactor("patch", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
			if refuse {
				n.Add(1)
				return true, nil, apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "p", nil)
			}
			return false, nil, nil
		})
		m.Put(pod(), with(v1.PodRunning))
		time.Sleep(time.Hour)
		if n.Load() != 2 {
			t.Fatalf("%d writes: one by what was known, one by what the server has", n.Load())
		}
		if err := m.Flush(t.Context(), "u"); err != nil {
			t.Error(err)
		}
		refuse = false
		m.Put(pod(), with(v1.PodFailed))
		synctest.Wait()
		if st := get(t, c).Status; st.Phase != v1.PodFailed {
			t.Errorf("the next one: %+v", st)
		}
	})
}
