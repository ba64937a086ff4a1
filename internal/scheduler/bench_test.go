package scheduler

import (
	"context"
	"fmt"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	typedcore "k8s.io/client-go/kubernetes/typed/core/v1"
)

// atOnce is a client whose bindings and patches take no time.
type atOnce struct {
	kubernetes.Interface
	bound func(*v1.Binding)
}

func (a atOnce) CoreV1() typedcore.CoreV1Interface {
	return atOnceCore{a.Interface.CoreV1(), a.bound}
}

type atOnceCore struct {
	typedcore.CoreV1Interface
	bound func(*v1.Binding)
}

func (c atOnceCore) Pods(string) typedcore.PodInterface { return atOncePods{bound: c.bound} }

type atOncePods struct {
	typedcore.PodInterface
	bound func(*v1.Binding)
}

func (p atOncePods) Bind(_ context.Context, b *v1.Binding, _ metav1.CreateOptions) error {
	p.bound(b)
	return nil
}

func (p atOncePods) Patch(context.Context, string, types.PatchType, []byte, metav1.PatchOptions, ...string) (*v1.Pod, error) {
	return &v1.Pod{}, nil
}

// BenchmarkScheduling schedules pods on many nodes, with an API that answers at once: what is measured is the
// scheduler alone. The shapes of pods are those of upstream's scheduler_perf.
func BenchmarkScheduling(b *testing.B) {
	labelled := func(p *v1.Pod) { p.Labels = map[string]string{"color": "blue"} }
	selector := &metav1.LabelSelector{MatchLabels: map[string]string{"color": "blue"}}
	term := func(key string) []v1.PodAffinityTerm {
		return []v1.PodAffinityTerm{{LabelSelector: selector, TopologyKey: key}}
	}
	for name, shape := range map[string]func(*v1.Pod){
		"basic": func(*v1.Pod) {},
		"node affinity": func(p *v1.Pod) {
			p.Spec.Affinity = &v1.Affinity{NodeAffinity: &v1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{
				{MatchExpressions: []v1.NodeSelectorRequirement{{Key: v1.LabelTopologyZone, Operator: v1.NodeSelectorOpIn, Values: []string{"zone0", "zone1"}}}},
			}}}}
		},
		"taints": func(p *v1.Pod) { p.Spec.Tolerations = []v1.Toleration{{Key: "k", Operator: v1.TolerationOpExists}} },
		"topology spread": func(p *v1.Pod) {
			labelled(p)
			p.Spec.TopologySpreadConstraints = []v1.TopologySpreadConstraint{{MaxSkew: 5, TopologyKey: v1.LabelTopologyZone, WhenUnsatisfiable: v1.DoNotSchedule, LabelSelector: selector}}
		},
		"pod affinity": func(p *v1.Pod) {
			labelled(p)
			p.Spec.Affinity = &v1.Affinity{PodAffinity: &v1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: term(v1.LabelTopologyZone)}}
		},
		"pod anti-affinity": func(p *v1.Pod) {
			labelled(p)
			p.Spec.Affinity = &v1.Affinity{PodAntiAffinity: &v1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: term(v1.LabelHostname)}}
		},
	} {
		for _, nodes := range []int{1, 5000} {
			if name == "pod anti-affinity" && nodes == 1 {
				continue // there is no room for a second pod
			}
			b.Run(fmt.Sprintf("%s/%d nodes", name, nodes), func(b *testing.B) { benchmark(b, nodes, shape) })
		}
	}
}

func benchmark(b *testing.B, nodes int, shape func(*v1.Pod)) {
	b.Helper()
	byName := map[string]*v1.Pod{}
	bound := make(chan *v1.Binding, 1024)
	s, err := New(b.Context(), atOnce{fake.NewClientset(), func(x *v1.Binding) { bound <- x }}, DefaultConfig())
	if err != nil {
		b.Fatal(err)
	}
	for i := range nodes {
		name := fmt.Sprintf("node-%d", i)
		s.nodeAdded(b.Context(), &v1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1.LabelHostname: name, v1.LabelTopologyZone: fmt.Sprintf("zone%d", i%3)}},
			Status: v1.NodeStatus{Allocatable: v1.ResourceList{
				v1.ResourceCPU: resource.MustParse("1000000"), v1.ResourceMemory: resource.MustParse("1000000Gi"), v1.ResourcePods: resource.MustParse("1000000"),
			}},
		})
	}
	alive := min(4000, 50*nodes) // pods at once; older ones end
	var order []*v1.Pod
	b.ReportAllocs()
	start := time.Now()
	n := 0
	for b.Loop() {
		n++
		p := &v1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("pod-%d", n), Namespace: "default", UID: types.UID(fmt.Sprint(n)), Generation: 1},
			Spec: v1.PodSpec{SchedulerName: v1.DefaultSchedulerName, Containers: []v1.Container{{Name: "c", Image: "pause", Resources: v1.ResourceRequirements{
				Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse("100m"), v1.ResourceMemory: resource.MustParse("500Mi")},
			}}}},
		}
		shape(p)
		byName[p.Name] = p
		s.podChanged(b.Context(), nil, p)
		info, err := s.queue.Pop(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		s.scheduleOne(b.Context(), info)
		x := <-bound
		there := byName[x.Name].DeepCopy()
		delete(byName, x.Name)
		there.Spec.NodeName = x.Target.Name
		s.podChanged(b.Context(), p, there)
		if order = append(order, there); len(order) > alive {
			s.podDeleted(b.Context(), order[0])
			order = order[1:]
		}
	}
	b.ReportMetric(float64(n)/time.Since(start).Seconds(), "pods/s")
	s.bindings.Wait()
	s.statuses.wait()
	s.events.Shutdown()
}
