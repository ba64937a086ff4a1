package controller_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/client-go/util/retry"

	"wherry.dev/internal/controller"
	"wherry.dev/internal/controller/nodelifecycle"
	"wherry.dev/internal/controller/podgc"
	"wherry.dev/internal/controller/rootca"
	"wherry.dev/internal/controller/serviceaccount"
	"wherry.dev/internal/controller/tainteviction"
	"wherry.dev/test/fakeapi"
)

// run starts one controller over a fake API server, and returns a function that stops it.
func run(t *testing.T, build func(*fake.Clientset, informers.SharedInformerFactory) (controller.Controller, error), objs ...runtime.Object) (*fake.Clientset, func()) {
	t.Helper()
	client := fakeapi.New(objs...)
	f := informers.NewSharedInformerFactory(client, 0)
	c, err := build(client, f)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	f.Start(ctx.Done())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	synctest.Wait()
	return client, func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		f.Shutdown()
	}
}

// behind are writes that arrive while somebody asks for them.
type behind struct{ arrived bool }

func (b *behind) Caught(string) bool {
	was := b.arrived
	b.arrived = true
	return was
}

// A reconciliation that had read its object before it asked for its own writes could take an old object for
// a new one, and create a pod for a job that was complete.
func TestNothingIsReadBeforeOnesOwnWritesHaveArrived(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &behind{}
		calls := 0
		l := controller.NewLoop("test", func(context.Context, string) error {
			calls++
			if !b.arrived {
				t.Error("reconciled before the writes arrived")
			}
			return nil
		})
		l.WaitFor(&behind{arrived: true}, b)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- l.Run(ctx) }()
		l.Add("a/b")
		synctest.Wait()
		if calls != 0 {
			t.Errorf("%d calls while the writes had not arrived", calls)
		}
		time.Sleep(controller.Patience)
		synctest.Wait()
		if calls != 1 {
			t.Errorf("%d calls after they arrived", calls)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func namespace(name string) *v1.Namespace {
	return &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

func TestEveryNamespaceHasADefaultServiceAccount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, stop := run(t, func(c *fake.Clientset, f informers.SharedInformerFactory) (controller.Controller, error) {
			return serviceaccount.New(c, f)
		}, namespace("a"))
		defer stop()
		accounts := client.CoreV1().ServiceAccounts("a")
		if _, err := accounts.Get(t.Context(), "default", metav1.GetOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := accounts.Delete(t.Context(), "default", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if _, err := accounts.Get(t.Context(), "default", metav1.GetOptions{}); err != nil {
			t.Errorf("it did not come back: %v", err)
		}
	})
}

func TestRootCAIsRestored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, stop := run(t, func(c *fake.Clientset, f informers.SharedInformerFactory) (controller.Controller, error) {
			return rootca.New(c, c, f, []byte("PEM"))
		}, namespace("a"))
		defer stop()
		maps := client.CoreV1().ConfigMaps("a")
		cm, err := maps.Get(t.Context(), "kube-root-ca.crt", metav1.GetOptions{})
		if err != nil || cm.Data["ca.crt"] != "PEM" {
			t.Fatalf("%v %v", cm, err)
		}
		cm = cm.DeepCopy()
		cm.Data["ca.crt"] = "forged"
		if _, err := maps.Update(t.Context(), cm, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if cm, err = maps.Get(t.Context(), "kube-root-ca.crt", metav1.GetOptions{}); err != nil || cm.Data["ca.crt"] != "PEM" {
			t.Errorf("%v %v", cm, err)
		}
	})
}

func TestFinishedPodsAreKeptUpToTheThreshold(t *testing.T) {
	for threshold, want := range map[int]int{-1: 4, 0: 4, 1: 1, 3: 3, 4: 4} {
		synctest.Test(t, func(t *testing.T) {
			var objects []runtime.Object
			for i := range 4 {
				objects = append(objects, &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: fmt.Sprint(i)}, Status: v1.PodStatus{Phase: v1.PodSucceeded}})
			}
			client, stop := run(t, func(c *fake.Clientset, f informers.SharedInformerFactory) (controller.Controller, error) {
				return podgc.New(c, f, threshold)
			}, objects...)
			defer stop()
			synctest.Wait()
			list, err := client.CoreV1().Pods("a").List(t.Context(), metav1.ListOptions{})
			if err != nil || len(list.Items) != want {
				t.Errorf("%d pods are left, %v, of threshold %d", len(list.Items), err, threshold)
			}
		})
	}
}

func TestPodsOfAGoneNodeAreRemovedAfterTheQuarantine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pod := func(name, node string) *v1.Pod {
			return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name}, Spec: v1.PodSpec{NodeName: node}}
		}
		node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "here"}}
		client, stop := run(t, func(c *fake.Clientset, f informers.SharedInformerFactory) (controller.Controller, error) {
			return podgc.New(c, f, podgc.TerminatedThreshold)
		}, pod("orphan", "gone"), pod("kept", "here"), pod("pending", ""), node)
		defer stop()
		names := func() (out []string) {
			list, err := client.CoreV1().Pods("a").List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range list.Items {
				out = append(out, p.Name)
			}
			return out
		}
		time.Sleep(podgc.Quarantine - time.Second)
		synctest.Wait()
		if got := names(); len(got) != 3 {
			t.Errorf("too early: %v", got)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if got := names(); !slices.Equal(got, []string{"kept", "pending"}) {
			t.Errorf("left: %v", got)
		}
	})
}

// A node that is not ready keeps its pods until somebody says that it is out of service; those that were deleted go then.
func TestDeletedPodsOfANodeOutOfServiceAreRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pod := func(name, node string, deleted bool) *v1.Pod {
			p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name, Finalizers: []string{"a/b"}}, Spec: v1.PodSpec{NodeName: node}, Status: v1.PodStatus{Phase: v1.PodRunning}}
			if deleted {
				p.DeletionTimestamp = new(metav1.Now())
			}
			return p
		}
		node := func(name string, ready v1.ConditionStatus, taints ...v1.Taint) *v1.Node {
			return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1.NodeSpec{Taints: taints}, Status: v1.NodeStatus{Conditions: []v1.NodeCondition{{Type: v1.NodeReady, Status: ready}}}}
		}
		taint := v1.Taint{Key: v1.TaintNodeOutOfService, Effect: v1.TaintEffectNoExecute}
		client, stop := run(t, func(c *fake.Clientset, f informers.SharedInformerFactory) (controller.Controller, error) {
			return podgc.New(c, f, podgc.TerminatedThreshold)
		}, pod("deleted", "lost", true), pod("runs", "lost", false), pod("elsewhere", "back", true), node("lost", v1.ConditionUnknown), node("back", v1.ConditionTrue, taint))
		defer stop()
		gone := func() (out []string) {
			for _, a := range client.Actions() {
				if d, ok := a.(k8stesting.DeleteAction); ok {
					out = append(out, d.GetName())
				}
			}
			return out
		}
		if got := gone(); len(got) > 0 {
			t.Errorf("too early: %v", got)
		}
		if _, err := client.CoreV1().Nodes().Update(t.Context(), node("lost", v1.ConditionUnknown, taint), metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		// Its finalizer keeps it, so that it may be removed once more.
		if got := slices.Compact(gone()); !slices.Equal(got, []string{"deleted"}) {
			t.Errorf("removed: %v", got)
		}
		if p, err := client.CoreV1().Pods("a").Get(t.Context(), "deleted", metav1.GetOptions{}); err == nil && p.Status.Phase != v1.PodFailed {
			t.Errorf("phase %s", p.Status.Phase)
		}
	})
}

// A webhook that answers deletions with a conflict was taken for another pod of the name, which nobody
// looked at any more; and what stood behind it in the list had to wait for it.
func TestConflictsOnDeletionsAreRetried(t *testing.T) {
	const name = "bad"
	taint := v1.Taint{Key: "k", Effect: v1.TaintEffectNoExecute}
	for title, tt := range map[string]struct {
		build func(*fake.Clientset, informers.SharedInformerFactory) (controller.Controller, error)
		node  string
	}{
		"pod garbage collector": {func(c *fake.Clientset, f informers.SharedInformerFactory) (controller.Controller, error) {
			return podgc.New(c, f, podgc.TerminatedThreshold)
		}, "gone"},
		"taint eviction": {func(c *fake.Clientset, f informers.SharedInformerFactory) (controller.Controller, error) {
			return tainteviction.New(c, f)
		}, "tainted"},
	} {
		t.Run(title, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				pod := func(name string) *v1.Pod {
					return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name}, Spec: v1.PodSpec{NodeName: tt.node}}
				}
				var mu sync.Mutex
				refuses, asked, marked := true, 0, 0
				client, stop := run(t, func(c *fake.Clientset, f informers.SharedInformerFactory) (controller.Controller, error) {
					c.PrependReactor("*", "pods", func(act k8stesting.Action) (bool, runtime.Object, error) {
						mu.Lock()
						defer mu.Unlock()
						if act.GetVerb() == "patch" {
							marked++
						}
						if del, ok := act.(k8stesting.DeleteAction); !ok || del.GetName() != name || !refuses {
							return false, nil, nil
						}
						asked++
						return true, nil, apierrors.NewConflict(act.GetResource().GroupResource(), name, errors.New("the webhook says so"))
					})
					return tt.build(c, f)
				}, pod(name), pod("good1"), pod("good2"), pod("good3"), &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "tainted"}, Spec: v1.NodeSpec{Taints: []v1.Taint{taint}}})
				defer stop()
				left := func() int {
					list, err := client.CoreV1().Pods("a").List(t.Context(), metav1.ListOptions{})
					if err != nil {
						t.Fatal(err)
					}
					return len(list.Items)
				}
				time.Sleep(10 * time.Minute)
				n := left()
				mu.Lock()
				if n != 1 || asked < 10 || asked > 100 || marked < 4 || marked > 12 { // once, and again while the informer is behind
					t.Errorf("%d pods are left, %d deletions of the one, %d patches", n, asked, marked)
				}
				refuses = false
				mu.Unlock()
				time.Sleep(time.Minute)
				if n = left(); n != 0 {
					t.Errorf("%d pods are left", n)
				}
			})
		})
	}
}

// One grace period is for nodes that have reported, another for those that never have: it may be longer or shorter.
func TestNodesThatNeverReportedHaveATimeOfTheirOwn(t *testing.T) {
	for _, startup := range []time.Duration{5 * time.Second, 5 * time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			client, stop := run(t, func(c *fake.Clientset, f informers.SharedInformerFactory) (controller.Controller, error) {
				return nodelifecycle.New(c, f, nodelifecycle.Options{GracePeriod: time.Minute, StartupGrace: startup, EvictionRate: 1})
			}, &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}})
			defer stop()
			conditions := func() int {
				synctest.Wait()
				n, err := client.CoreV1().Nodes().Get(t.Context(), "n", metav1.GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				return len(n.Status.Conditions)
			}
			time.Sleep(startup - time.Second)
			if n := conditions(); n != 0 {
				t.Errorf("startup grace %s: %d conditions too early", startup, n)
			}
			time.Sleep(2 * time.Second)
			if n := conditions(); n != 4 {
				t.Errorf("startup grace %s: %d conditions, want those of a node that never reported", startup, n)
			}
		})
	}
}

// steady returns a node that is ready.
func steady(name string) *v1.Node {
	return &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Status:     v1.NodeStatus{Conditions: []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue, LastHeartbeatTime: metav1.Now()}}},
	}
}

// keepSpeaking renews the leases of nodes until it is told to stop.
func keepSpeaking(t *testing.T, client *fake.Clientset, names ...string) (stop func()) {
	t.Helper()
	leases := client.CoordinationV1().Leases(v1.NamespaceNodeLease)
	for _, name := range names {
		if _, err := leases.Create(t.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-ctx.Done():
				return
			case <-time.After(10 * time.Second):
			}
			for _, name := range names {
				if _, err := leases.Update(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: v1.NamespaceNodeLease, Name: name}}, metav1.UpdateOptions{}); err != nil && ctx.Err() == nil {
					t.Error(err)
				}
			}
		}
	}()
	return func() { cancel(); <-done }
}

// Pods of nodes that fall silent one after another, or all at once, are evicted at a rate; in a zone most of which is silent,
// and when nobody is heard at all, they stay.
func TestPodsAreEvictedAtARate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var objects []runtime.Object
		var speaking []string
		for i := range 20 { // five in zone b, the others in zone a
			n := steady(fmt.Sprint("n", i))
			n.Labels = map[string]string{v1.LabelTopologyZone: map[bool]string{true: "b", false: "a"}[i < 5]}
			objects = append(objects, n)
			if i > 3 && i != 10 && i != 11 { // four of b are silent, and two of a
				speaking = append(speaking, n.Name)
			}
		}
		client, stop := run(t, func(c *fake.Clientset, f informers.SharedInformerFactory) (controller.Controller, error) {
			return nodelifecycle.New(c, f, nodelifecycle.Defaults)
		}, objects...)
		defer stop()
		silence := keepSpeaking(t, client, speaking...)
		evicting := func() (out []string) {
			t.Helper()
			synctest.Wait()
			list, err := client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			for _, n := range list.Items {
				if slices.ContainsFunc(n.Spec.Taints, func(t v1.Taint) bool { return t.Effect == v1.TaintEffectNoExecute }) {
					out = append(out, n.Labels[v1.LabelTopologyZone])
				}
			}
			slices.Sort(out)
			return out
		}
		time.Sleep(nodelifecycle.GracePeriod + time.Second)
		first := evicting()
		if n := len(slices.DeleteFunc(slices.Clone(first), func(z string) bool { return z == "b" })); n != 1 {
			t.Errorf("at first pods of %d nodes of zone a go, want 1", n)
		}
		time.Sleep(time.Minute)
		later := evicting()
		if n := len(slices.DeleteFunc(slices.Clone(later), func(z string) bool { return z == "b" })); n != 2 {
			t.Errorf("later pods of %d nodes of zone a go, want 2", n)
		}
		// The zone is small and unhealthy with its third node that is silent: only those before it lost their pods.
		if n := len(slices.DeleteFunc(slices.Clone(later), func(z string) bool { return z == "a" })); n > 2 {
			t.Errorf("pods of %d nodes of the unhealthy zone go, want 2 at most", n)
		}
		silence()
		time.Sleep(2 * nodelifecycle.GracePeriod)
		if got := evicting(); len(got) > 0 {
			t.Errorf("while nobody is heard, pods of %q go", got)
		}
		defer keepAgain(t, client, speaking...)()
		for _, name := range speaking {
			err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
				n, err := client.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
				if err != nil {
					return err
				}
				n = n.DeepCopy()
				n.Status.Conditions[0].Status, n.Status.Conditions[0].LastHeartbeatTime = v1.ConditionTrue, metav1.Now()
				_, err = client.CoreV1().Nodes().UpdateStatus(t.Context(), n, metav1.UpdateOptions{})
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(2 * time.Minute)
		if got := evicting(); !slices.Equal(slices.DeleteFunc(got, func(z string) bool { return z == "b" }), []string{"a", "a"}) {
			t.Errorf("afterwards pods of %q go, want both silent nodes of zone a", got)
		}
	})
}

// keepAgain is keepSpeaking for nodes that have leases.
func keepAgain(t *testing.T, client *fake.Clientset, names ...string) (stop func()) {
	t.Helper()
	for _, name := range names {
		if err := client.CoordinationV1().Leases(v1.NamespaceNodeLease).Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	return keepSpeaking(t, client, names...)
}

func TestSilentNodeIsTaintedUntilItSpeaksAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node := &v1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "n"},
			Spec:       v1.NodeSpec{Taints: []v1.Taint{{Key: "mine", Effect: v1.TaintEffectNoSchedule}, {Key: v1.TaintNodeNotReady, Effect: v1.TaintEffectNoSchedule}}},
			Status:     v1.NodeStatus{Conditions: []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue, LastHeartbeatTime: metav1.Now()}}},
		}
		lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: v1.NamespaceNodeLease, Name: "n"}}
		client, stop := run(t, func(c *fake.Clientset, f informers.SharedInformerFactory) (controller.Controller, error) {
			return nodelifecycle.New(c, f, nodelifecycle.Defaults)
		}, node, lease, steady("other"))
		defer stop()
		defer keepSpeaking(t, client, "other")()
		want := func(status v1.ConditionStatus, keys ...string) {
			t.Helper()
			synctest.Wait()
			n, err := client.CoreV1().Nodes().Get(t.Context(), "n", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, taint := range n.Spec.Taints {
				got = append(got, taint.Key+":"+string(taint.Effect))
			}
			if !slices.Equal(got, keys) || n.Status.Conditions[0].Status != status {
				t.Errorf("Ready is %s, taints %v; want %s %v", n.Status.Conditions[0].Status, got, status, keys)
			}
		}
		want(v1.ConditionTrue, "mine:NoSchedule")
		for range 3 { // renewals keep it alive
			time.Sleep(nodelifecycle.GracePeriod - time.Second)
			if _, err := client.CoordinationV1().Leases(v1.NamespaceNodeLease).Update(t.Context(), lease, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		want(v1.ConditionTrue, "mine:NoSchedule")
		time.Sleep(nodelifecycle.GracePeriod + time.Second)
		want(v1.ConditionUnknown, "mine:NoSchedule", "node.kubernetes.io/unreachable:NoSchedule", "node.kubernetes.io/unreachable:NoExecute")

		n, err := client.CoreV1().Nodes().Get(t.Context(), "n", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		n = n.DeepCopy()
		n.Status.Conditions[0].Status, n.Status.Conditions[0].LastHeartbeatTime = v1.ConditionTrue, metav1.Now()
		if _, err := client.CoreV1().Nodes().UpdateStatus(t.Context(), n, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		want(v1.ConditionTrue, "mine:NoSchedule")
	})
}

// A node that somebody created, and that no kubelet has ever spoken for, stayed without conditions for ever.
func TestANodeThatNeverSpokeIsUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, stop := run(t, func(c *fake.Clientset, f informers.SharedInformerFactory) (controller.Controller, error) {
			return nodelifecycle.New(c, f, nodelifecycle.Defaults)
		}, &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}})
		defer stop()
		conditions := func() (out []string) {
			t.Helper()
			synctest.Wait()
			n, err := client.CoreV1().Nodes().Get(t.Context(), "n", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range n.Status.Conditions {
				out = append(out, fmt.Sprint(c.Type, "=", c.Status, " ", c.Reason))
			}
			return out
		}
		time.Sleep(59 * time.Second)
		if got := conditions(); len(got) > 0 {
			t.Errorf("before its time: %q", got)
		}
		time.Sleep(2 * time.Second)
		const why = "=Unknown NodeStatusNeverUpdated"
		if got, want := conditions(), []string{"Ready" + why, "MemoryPressure" + why, "DiskPressure" + why, "PIDPressure" + why}; !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	})
}

func TestPodsOfALostNodeAreNotReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node := func(name string) *v1.Node {
			return &v1.Node{
				ObjectMeta: metav1.ObjectMeta{Name: name},
				Status:     v1.NodeStatus{Conditions: []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue, LastHeartbeatTime: metav1.Now()}}},
			}
		}
		on := func(name, node string, ready v1.ConditionStatus) *v1.Pod {
			p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name, UID: types.UID(name)}, Spec: v1.PodSpec{NodeName: node}}
			p.Status.Phase = v1.PodRunning
			p.Status.Conditions = []v1.PodCondition{{Type: v1.ContainersReady, Status: ready}, {Type: v1.PodReady, Status: ready, Reason: "theirs"}}
			return p
		}
		lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: v1.NamespaceNodeLease, Name: "alive"}}
		const grace = 5 * time.Second // not the default
		client, stop := run(t, func(c *fake.Clientset, f informers.SharedInformerFactory) (controller.Controller, error) {
			return nodelifecycle.New(c, f, nodelifecycle.Options{GracePeriod: grace, StartupGrace: time.Hour, EvictionRate: 1})
		}, node("lost"), node("alive"), lease, on("a", "lost", v1.ConditionTrue), on("b", "lost", v1.ConditionFalse), on("c", "alive", v1.ConditionTrue))
		defer stop()
		want := func(name string, status v1.ConditionStatus) {
			t.Helper()
			synctest.Wait()
			p, err := client.CoreV1().Pods("a").Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if c := p.Status.Conditions[1]; c.Status != status || c.Reason != "theirs" {
				t.Errorf("pod %s: %+v, want %s", name, c, status)
			}
		}
		renew := func() {
			if _, err := client.CoordinationV1().Leases(v1.NamespaceNodeLease).Update(t.Context(), lease, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(grace - time.Second)
		want("a", v1.ConditionTrue)
		renew()
		time.Sleep(2 * time.Second)
		want("a", v1.ConditionFalse)
		want("b", v1.ConditionFalse)
		want("c", v1.ConditionTrue)
		var told []string
		events, err := client.CoreV1().Events("a").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range events.Items {
			told = append(told, fmt.Sprintf("%s %s %s: %s", e.InvolvedObject.Name, e.Type, e.Reason, e.Message))
		}
		if !slices.Equal(told, []string{"a Warning NodeNotReady: Node is not ready"}) {
			t.Errorf("events: %q", told)
		}
		// A pod that appears meanwhile is not ready either.
		if _, err := client.CoreV1().Pods("a").Create(t.Context(), on("late", "lost", v1.ConditionTrue), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		want("late", v1.ConditionFalse)
	})
}
