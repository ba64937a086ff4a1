package scheduler

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	configv1 "k8s.io/kube-scheduler/config/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"wherry.dev/internal/scheduler/framework"
)

// picky takes a node for pods of its color, and counts how often it is asked.
type picky struct{ filtered, scored atomic.Int64 }

func (*picky) Name() string { return "Picky" }

func (p *picky) Filter(_ context.Context, _ fwk.CycleState, pod *v1.Pod, n fwk.NodeInfo) *fwk.Status {
	p.filtered.Add(1)
	if n.Node().Labels["color"] != pod.Labels["color"] {
		return fwk.NewStatus(fwk.Unschedulable, "another color")
	}
	return nil
}

func (p *picky) Score(context.Context, fwk.CycleState, *v1.Pod, fwk.NodeInfo) (int64, *fwk.Status) {
	p.scored.Add(1)
	return 1, nil
}

func (*picky) ScoreExtensions() fwk.ScoreExtensions { return nil }

func (*picky) SignPod(_ context.Context, pod *v1.Pod) ([]fwk.SignFragment, *fwk.Status) {
	return []fwk.SignFragment{{Key: "color", Value: map[string]string{"color": pod.Labels["color"]}}}, nil
}

// TestPodsOfOneShapeAreJudgedOnceOnEachNode, and anew where something has changed.
func TestPodsOfOneShapeAreJudgedOnceOnEachNode(t *testing.T) {
	p := &picky{}
	cfg := DefaultConfig()
	cfg.Registry = framework.Registry{"Picky": func(context.Context, runtime.Object, fwk.Handle) (fwk.Plugin, error) { return p, nil }}
	cfg.Profiles[0].Plugins = &configv1.Plugins{MultiPoint: configv1.PluginSet{Enabled: []configv1.Plugin{{Name: "Picky"}}}}
	bound := make(chan *v1.Binding, 1)
	s, err := New(t.Context(), atOnce{Interface: fake.NewClientset(), bound: bound}, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.bindings.Wait(); s.statuses.wait(); s.events.Shutdown() })
	const nodes = 60
	node := func(i int, color string) *v1.Node {
		return &v1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n", i), Labels: map[string]string{"color": color}},
			Status:     v1.NodeStatus{Allocatable: v1.ResourceList{v1.ResourcePods: resource.MustParse("100")}},
		}
	}
	for i := range nodes {
		s.nodeAdded(t.Context(), node(i, "red"))
	}
	n := 0
	schedule := func(color string) (to string, filtered, scored int64) {
		n++
		pod := &v1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("p", n), Namespace: "default", UID: types.UID(fmt.Sprint(n)), Labels: map[string]string{"color": color}},
			Spec:       v1.PodSpec{SchedulerName: v1.DefaultSchedulerName, Containers: []v1.Container{{Name: "c"}}},
		}
		s.podChanged(t.Context(), nil, pod)
		info, err := s.queue.Pop(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		f, sc := p.filtered.Load(), p.scored.Load()
		s.scheduleOne(t.Context(), info)
		x := <-bound
		there := pod.DeepCopy()
		there.Spec.NodeName = x.Target.Name
		s.podChanged(t.Context(), pod, there)
		return there.Spec.NodeName, p.filtered.Load() - f, p.scored.Load() - sc
	}
	if _, filtered, scored := schedule("red"); filtered != nodes || scored != nodes {
		t.Errorf("the first pod: %d nodes were filtered, %d scored", filtered, scored)
	}
	if _, filtered, scored := schedule("red"); filtered != 1 || scored != 1 {
		t.Errorf("the second one, with one node changed: %d nodes were filtered, %d scored", filtered, scored)
	}
	s.nodeUpdated(t.Context(), node(7, "red"), node(7, "blue"))
	if to, filtered, _ := schedule("blue"); to != "n7" || filtered != nodes {
		t.Errorf("a pod of another shape went to %s after a look at %d nodes", to, filtered)
	}
	for range 2 * nodes {
		if to, _, _ := schedule("red"); to == "n7" {
			t.Fatal("what was said about n7 before it changed was believed")
		}
	}
}
