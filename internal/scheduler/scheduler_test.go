package scheduler_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	typedcore "k8s.io/client-go/kubernetes/typed/core/v1"
	ktesting "k8s.io/client-go/testing"
	configv1 "k8s.io/kube-scheduler/config/v1"

	"wherry.dev/internal/scheduler"
)

func node(name, cpu string, mutate ...func(*v1.Node)) *v1.Node {
	n := &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1.LabelHostname: name}},
		Status: v1.NodeStatus{Allocatable: v1.ResourceList{
			v1.ResourceCPU: resource.MustParse(cpu), v1.ResourceMemory: resource.MustParse("1Gi"), v1.ResourcePods: resource.MustParse("3"),
		}},
	}
	for _, m := range mutate {
		m(n)
	}
	return n
}

func pod(name, cpu string, mutate ...func(*v1.Pod)) *v1.Pod {
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID(name), Generation: 1},
		Spec: v1.PodSpec{SchedulerName: v1.DefaultSchedulerName, Containers: []v1.Container{{
			Name: "c", Resources: v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpu)}},
		}}},
	}
	for _, m := range mutate {
		m(p)
	}
	return p
}

// cluster is a scheduler over a fake API server that carries out bindings.
type cluster struct {
	t      *testing.T
	client *fake.Clientset
	sched  *scheduler.Scheduler
	stop   func()
}

func start(t *testing.T, objs ...runtime.Object) *cluster {
	t.Helper()
	return startWith(t, func(c kubernetes.Interface) kubernetes.Interface { return c }, objs...)
}

// startWith starts a cluster whose scheduler has a client of its own, made by wrap.
func startWith(t *testing.T, wrap func(kubernetes.Interface) kubernetes.Interface, objs ...runtime.Object) *cluster {
	t.Helper()
	return startConfig(t, scheduler.DefaultConfig(), wrap, objs...)
}

func startConfig(t *testing.T, cfg scheduler.Config, wrap func(kubernetes.Interface) kubernetes.Interface, objs ...runtime.Object) *cluster {
	t.Helper()
	client := fake.NewClientset(objs...)
	bindPods(client)
	return startClient(t, cfg, client, wrap(client))
}

// bindPods makes a client carry out bindings.
func bindPods(client *fake.Clientset) {
	client.PrependReactor("create", "pods", func(a ktesting.Action) (bool, runtime.Object, error) {
		ca, ok := a.(ktesting.CreateAction)
		if !ok || a.GetSubresource() != "binding" {
			return false, nil, nil
		}
		b, ok := ca.GetObject().(*v1.Binding)
		if !ok {
			return true, nil, fmt.Errorf("not a binding: %T", ca.GetObject())
		}
		gvr := v1.SchemeGroupVersion.WithResource("pods")
		obj, err := client.Tracker().Get(gvr, b.Namespace, b.Name)
		if err != nil {
			return true, nil, err
		}
		p, ok := obj.(*v1.Pod)
		if !ok {
			return true, nil, fmt.Errorf("not a pod: %T", obj)
		}
		p = p.DeepCopy()
		p.Spec.NodeName = b.Target.Name
		p.Status.NominatedNodeName = ""
		return true, b, client.Tracker().Update(gvr, p, b.Namespace)
	})
}

// startClient starts a scheduler that works on client by a client of its own.
func startClient(t *testing.T, cfg scheduler.Config, client *fake.Clientset, own kubernetes.Interface) *cluster {
	t.Helper()
	c := &cluster{t: t, client: client}
	s, err := scheduler.New(t.Context(), own, cfg)
	if err != nil {
		t.Fatal(err)
	}
	c.sched = s
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	c.stop = func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	<-s.Ready()
	synctest.Wait()
	return c
}

func (c *cluster) get(name string) *v1.Pod {
	c.t.Helper()
	p, err := c.client.CoreV1().Pods("default").Get(c.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	return p
}

func (c *cluster) create(p *v1.Pod) {
	c.t.Helper()
	if _, err := c.client.CoreV1().Pods("default").Create(c.t.Context(), p, metav1.CreateOptions{}); err != nil {
		c.t.Fatal(err)
	}
	synctest.Wait()
}

func (c *cluster) wantNode(name, node string) {
	c.t.Helper()
	if got := c.get(name).Spec.NodeName; got != node {
		c.t.Errorf("pod %s is on %q, want %q", name, got, node)
	}
}

func (c *cluster) wantMessage(name, msg string) {
	c.t.Helper()
	for _, cond := range c.get(name).Status.Conditions {
		if cond.Type == v1.PodScheduled {
			if cond.Message != msg || cond.Status != v1.ConditionFalse || cond.Reason != v1.PodReasonUnschedulable {
				c.t.Errorf("pod %s: %s %s %q, want %q", name, cond.Status, cond.Reason, cond.Message, msg)
			}
			return
		}
	}
	c.t.Errorf("pod %s has no PodScheduled condition, want %q", name, msg)
}

func TestFilters(t *testing.T) {
	taint := func(n *v1.Node) {
		n.Spec.Taints = []v1.Taint{{Key: "k", Value: "v", Effect: v1.TaintEffectNoSchedule}}
	}
	cordon := func(n *v1.Node) { n.Spec.Unschedulable = true }
	port := func(p *v1.Pod) {
		p.Spec.Containers[0].Ports = []v1.ContainerPort{{ContainerPort: 80, HostPort: 80, Protocol: v1.ProtocolTCP}}
	}
	for name, tc := range map[string]struct {
		nodes []runtime.Object
		pod   *v1.Pod
		where string
		msg   string
	}{
		"no nodes":     {nil, pod("p", "1"), "", "no nodes available to schedule pods"},
		"fits":         {[]runtime.Object{node("a", "1")}, pod("p", "1"), "a", ""},
		"too large":    {[]runtime.Object{node("a", "1"), node("b", "500m")}, pod("p", "2"), "", "0/2 nodes are available: 2 Insufficient cpu. preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling."},
		"least loaded": {[]runtime.Object{node("a", "1"), node("b", "4")}, pod("p", "500m"), "b", ""},
		"taint":        {[]runtime.Object{node("a", "1", taint)}, pod("p", "1"), "", "0/1 nodes are available: 1 node(s) had untolerated taint(s). preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling."},
		"tolerated": {[]runtime.Object{node("a", "1", taint)}, pod("p", "1", func(p *v1.Pod) {
			p.Spec.Tolerations = []v1.Toleration{{Key: "k", Operator: v1.TolerationOpExists}}
		}), "a", ""},
		"cordon": {[]runtime.Object{node("a", "1", cordon), node("b", "1", taint)}, pod("p", "1"), "",
			"0/2 nodes are available: 1 node(s) had untolerated taint(s), 1 node(s) were unschedulable. preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling."},
		"selector": {[]runtime.Object{node("a", "1"), node("b", "1")}, pod("p", "1", func(p *v1.Pod) {
			p.Spec.NodeSelector = map[string]string{v1.LabelHostname: "b"}
		}), "b", ""},
		"no such label": {[]runtime.Object{node("a", "1")}, pod("p", "1", func(p *v1.Pod) {
			p.Spec.NodeSelector = map[string]string{"x": "y"}
		}), "", "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector. preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling."},
		"port taken": {[]runtime.Object{node("a", "1"), pod("other", "0", port, func(p *v1.Pod) { p.Spec.NodeName = "a" })}, pod("p", "0", port), "",
			"0/1 nodes are available: 1 node(s) didn't have free ports for the requested pod ports. preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod."},
		"another scheduler's": {[]runtime.Object{node("a", "1")}, pod("p", "1", func(p *v1.Pod) { p.Spec.SchedulerName = "mine" }), "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := start(t, tc.nodes...)
				defer c.stop()
				c.create(tc.pod)
				c.wantNode("p", tc.where)
				if tc.msg != "" {
					c.wantMessage("p", tc.msg)
				}
			})
		})
	}
}

func TestPodsDoNotShareWhatOnlyOneCanHave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t, node("a", "1"))
		defer c.stop()
		for i := range 3 {
			c.create(pod(fmt.Sprintf("p%d", i), "600m"))
		}
		c.wantNode("p0", "a")
		c.wantNode("p1", "")
		c.wantMessage("p1", "0/1 nodes are available: 1 Insufficient cpu. preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod.")
		// When one pod is deleted, exactly one other gets in.
		if err := c.client.CoreV1().Pods("default").Delete(t.Context(), "p0", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Second)
		synctest.Wait()
		placed := 0
		for _, n := range []string{"p1", "p2"} {
			if c.get(n).Spec.NodeName != "" {
				placed++
			}
		}
		if placed != 1 {
			t.Errorf("%d of two pods were placed", placed)
		}
	})
}

func TestNewNodeTakesWaitingPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t)
		defer c.stop()
		c.create(pod("p", "1"))
		if _, err := c.client.CoreV1().Nodes().Create(t.Context(), node("a", "1"), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		c.wantNode("p", "a")
	})
}

func TestFailedBindingIsRetriedAndGivesItsResourcesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t, node("a", "1"))
		defer c.stop()
		failures := 2
		c.client.PrependReactor("create", "pods", func(a ktesting.Action) (bool, runtime.Object, error) {
			if a.GetSubresource() != "binding" || failures == 0 {
				return false, nil, nil
			}
			failures--
			return true, nil, fmt.Errorf("the API server is busy")
		})
		c.create(pod("p", "1"))
		c.wantNode("p", "")
		time.Sleep(10 * time.Second)
		synctest.Wait()
		c.wantNode("p", "a")
	})
}

func TestUnknownPluginInTheConfiguration(t *testing.T) {
	cfg := scheduler.Config{Profiles: []scheduler.ProfileConfig{{SchedulerName: "x", Plugins: &configv1.Plugins{
		Filter: configv1.PluginSet{Disabled: []configv1.Plugin{{Name: "NoSuch"}}},
	}}}}
	_, err := scheduler.New(t.Context(), fake.NewClientset(), cfg)
	if err == nil || !strings.Contains(err.Error(), `"NoSuch"`) {
		t.Errorf("got %v", err)
	}
}

// TestAResizeThatFreesRoomWakesWhoWaits: the kubelet reports it in a status update, long after the
// spec changed.
func TestAResizeThatFreesRoomWakesWhoWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		has := func(cpu string) func(*v1.Pod) {
			return func(p *v1.Pod) {
				list := v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpu)}
				p.Status.ContainerStatuses = []v1.ContainerStatus{{Name: "c", AllocatedResources: list, Resources: &v1.ResourceRequirements{Requests: list}}}
				p.Spec.NodeName = "n1"
			}
		}
		large := pod("large", "3", has("3"))
		c := start(t, node("n1", "4"), large)
		defer c.stop()
		c.create(pod("waits", "2"))
		c.wantNode("waits", "")
		for step, p := range []*v1.Pod{
			pod("large", "1", has("3"), func(p *v1.Pod) { p.Generation = 2 }),
			pod("large", "1", has("1"), func(p *v1.Pod) { p.Generation = 2 }),
		} {
			c.wantNode("waits", "")
			if _, err := c.client.CoreV1().Pods("default").Update(t.Context(), p, metav1.UpdateOptions{}); err != nil {
				t.Fatalf("step %d: %v", step, err)
			}
			time.Sleep(30 * time.Second) // longer than any back-off, but less than the five minutes after which every pod is retried
			synctest.Wait()
		}
		c.wantNode("waits", "n1")
	})
}

// lossy is a client whose bindings take effect, but whose answers are lost a second later.
type lossy struct{ kubernetes.Interface }

// IsWatchListSemanticsUnSupported returns the same as the fake client below it.
func (lossy) IsWatchListSemanticsUnSupported() bool { return true }

func (l lossy) CoreV1() typedcore.CoreV1Interface { return lossyCore{l.Interface.CoreV1()} }

type lossyCore struct{ typedcore.CoreV1Interface }

func (l lossyCore) Pods(namespace string) typedcore.PodInterface {
	return lossyPods{l.CoreV1Interface.Pods(namespace)}
}

type lossyPods struct{ typedcore.PodInterface }

func (l lossyPods) Bind(ctx context.Context, b *v1.Binding, opts metav1.CreateOptions) error {
	err := l.PodInterface.Bind(ctx, b, opts)
	time.Sleep(time.Second)
	return errors.Join(errors.New("the connection broke"), err)
}

func TestABoundPodIsNotSaidToBeUnscheduled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startWith(t, func(c kubernetes.Interface) kubernetes.Interface { return lossy{c} }, node("n1", "4"))
		defer c.stop()
		c.create(pod("p", "1"))
		time.Sleep(time.Minute)
		c.wantNode("p", "n1")
		if got := c.get("p").Status.Conditions; len(got) > 0 {
			t.Errorf("conditions: %+v", got)
		}
	})
}

// wantEvent looks for an event about a pod.
func (c *cluster) wantEvent(name, reason, note string) {
	c.t.Helper()
	list, err := c.client.EventsV1().Events("default").List(c.t.Context(), metav1.ListOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	for _, e := range list.Items {
		if e.Regarding.Name == name && e.Reason == reason && e.Note == note {
			return
		}
	}
	c.t.Errorf("pod %s has no event %s: %s in %+v", name, reason, note, list.Items)
}
