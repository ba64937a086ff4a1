package scheduler

import (
	"context"
	"fmt"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	typedcore "k8s.io/client-go/kubernetes/typed/core/v1"
)

// atOnce is a client whose bindings, patches and deletions of pods take no time.
type atOnce struct {
	kubernetes.Interface
	bound   chan<- *v1.Binding
	deleted chan<- string
}

func (a atOnce) CoreV1() typedcore.CoreV1Interface {
	return atOnceCore{a.Interface.CoreV1(), a}
}

type atOnceCore struct {
	typedcore.CoreV1Interface
	all atOnce
}

func (c atOnceCore) Pods(string) typedcore.PodInterface { return atOncePods{all: c.all} }

type atOncePods struct {
	typedcore.PodInterface
	all atOnce
}

func (p atOncePods) Bind(_ context.Context, b *v1.Binding, _ metav1.CreateOptions) error {
	p.all.bound <- b
	return nil
}

func (p atOncePods) Delete(_ context.Context, name string, _ metav1.DeleteOptions) error {
	p.all.deleted <- name
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
		// Pods of a set, which has no say in where they go: they are spread by default.
		"default spread": func(p *v1.Pod) {
			labelled(p)
			p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "set", Controller: new(true)}}
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
			b.Run(fmt.Sprintf("%s/%d nodes", name, nodes), func(b *testing.B) { benchmark(b, nodes, 0, shape) })
		}
	}
}

// BenchmarkUnschedulable schedules plain pods while others end, beside pods that are larger than any node and wait in
// the queue: what these cost. Then it tries pods that fit nowhere.
func BenchmarkUnschedulable(b *testing.B) {
	for _, waiting := range []int{0, 10000} {
		b.Run(fmt.Sprintf("beside %d", waiting), func(b *testing.B) { benchmark(b, 5000, waiting, func(*v1.Pod) {}) })
	}
	for name, cpu := range map[string]string{"too large": "2000000", "no room": "1000000"} {
		b.Run(name, func(b *testing.B) {
			bench := newBench(b, 5000, DefaultConfig())
			defer bench.stop()
			for i := range 5000 {
				p := bench.pod(fmt.Sprintf("there-%d", i), "1")
				p.Spec.NodeName = fmt.Sprintf("node-%d", i)
				bench.podChanged(b.Context(), nil, p)
			}
			b.ReportAllocs()
			for b.Loop() {
				bench.n++
				p := bench.pod(fmt.Sprintf("pod-%d", bench.n), cpu)
				bench.podChanged(b.Context(), nil, p)
				bench.scheduleUntil(b, p)
				bench.podDeleted(b.Context(), p)
			}
		})
	}
}

// bench is a scheduler whose bindings and deletions are done at once.
type bench struct {
	*Scheduler
	bound   chan *v1.Binding
	deleted chan string
	n       int // pods so far
}

// newBench returns one with large nodes.
func newBench(b testing.TB, nodes int, cfg Config) *bench {
	b.Helper()
	bound, deleted := make(chan *v1.Binding, 1024), make(chan string, 1024)
	s, err := New(b.Context(), atOnce{Interface: fake.NewClientset(), bound: bound, deleted: deleted}, cfg)
	if err != nil {
		b.Fatal(err)
	}
	for i := range nodes {
		s.nodeAdded(b.Context(), benchNode(i, "1000000", "1000000Gi", "1000000"))
	}
	set := &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Name: "set", Namespace: "default"},
		Spec:       appsv1.ReplicaSetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"color": "blue"}}},
	}
	if err := s.shared.Informers.Apps().V1().ReplicaSets().Informer().GetIndexer().Add(set); err != nil {
		b.Fatal(err)
	}
	return &bench{Scheduler: s, bound: bound, deleted: deleted}
}

// benchNode returns the node node-I in one of three zones.
func benchNode(i int, cpu, memory, pods string) *v1.Node {
	name := fmt.Sprintf("node-%d", i)
	return &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1.LabelHostname: name, v1.LabelTopologyZone: fmt.Sprintf("zone%d", i%3)}},
		Status: v1.NodeStatus{Allocatable: v1.ResourceList{
			v1.ResourceCPU: resource.MustParse(cpu), v1.ResourceMemory: resource.MustParse(memory), v1.ResourcePods: resource.MustParse(pods),
		}},
	}
}

func (*bench) pod(name, cpu string) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID(name), Generation: 1},
		Spec: v1.PodSpec{SchedulerName: v1.DefaultSchedulerName, Containers: []v1.Container{{Name: "c", Image: "pause", Resources: v1.ResourceRequirements{
			Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpu), v1.ResourceMemory: resource.MustParse("500Mi")},
		}}}},
	}
}

// scheduleUntil schedules what is in the queue, up to a pod.
func (s *bench) scheduleUntil(b testing.TB, p *v1.Pod) {
	b.Helper()
	for {
		info, err := s.queue.Pop(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		s.scheduleOne(b.Context(), info)
		if info.GetPod().UID == p.UID {
			return
		}
	}
}

func (s *bench) stop() {
	s.bindings.Wait()
	s.statuses.wait()
	s.events.Shutdown()
}

func benchmark(b *testing.B, nodes, waiting int, shape func(*v1.Pod)) {
	b.Helper()
	s := newBench(b, nodes, DefaultConfig())
	defer s.stop()
	for i := range waiting {
		p := s.pod(fmt.Sprintf("waiting-%d", i), "2000000")
		s.podChanged(b.Context(), nil, p)
		s.scheduleUntil(b, p)
	}
	alive := min(4000, 50*nodes) // pods at once; older ones end
	var order []*v1.Pod
	b.ReportAllocs()
	start := time.Now()
	for b.Loop() {
		s.n++
		p := s.pod(fmt.Sprintf("pod-%d", s.n), "100m")
		shape(p)
		s.podChanged(b.Context(), nil, p)
		s.scheduleUntil(b, p)
		there := p.DeepCopy()
		there.Spec.NodeName = (<-s.bound).Target.Name
		s.podChanged(b.Context(), p, there)
		if order = append(order, there); len(order) > alive {
			s.podDeleted(b.Context(), order[0])
			order = order[1:]
		}
	}
	b.ReportMetric(float64(s.n)/time.Since(start).Seconds(), "pods/s")
}

// BenchmarkPreemption schedules pods that find room only where three of four less important ones go, as upstream's
// scheduler_perf has it: the attempt that fails and looks for victims, their end, and the attempt that fits.
func BenchmarkPreemption(b *testing.B) {
	for _, nodes := range []int{1000, 5000} {
		b.Run(fmt.Sprintf("%d nodes", nodes), func(b *testing.B) {
			cfg := DefaultConfig()
			cfg.InitialBackoff = time.Nanosecond // no pod waits for its time
			s := newBench(b, 0, cfg)
			defer s.stop()
			there := map[string]*v1.Pod{}
			for i := range nodes {
				s.nodeAdded(b.Context(), benchNode(i, "4", "32Gi", "110"))
				for k := range 4 {
					p := s.pod(fmt.Sprintf("least-%d-%d", i, k), "900m")
					p.Spec.NodeName = fmt.Sprintf("node-%d", i)
					there[p.Name] = p
					s.podChanged(b.Context(), nil, p)
				}
			}
			b.ReportAllocs()
			start := time.Now()
			for b.Loop() {
				s.n++
				p := s.pod(fmt.Sprintf("pod-%d", s.n), "3")
				p.Spec.Priority = new(int32(1000))
				s.podChanged(b.Context(), nil, p)
				s.scheduleUntil(b, p)
				var victims []*v1.Pod
				for range 3 {
					v := there[<-s.deleted]
					victims = append(victims, v)
					s.podDeleted(b.Context(), v)
				}
				s.scheduleUntil(b, p)
				bound := p.DeepCopy()
				bound.Spec.NodeName = (<-s.bound).Target.Name
				s.podChanged(b.Context(), p, bound)
				s.podDeleted(b.Context(), bound)
				for _, v := range victims {
					s.podChanged(b.Context(), nil, v)
				}
			}
			b.ReportMetric(float64(s.n)/time.Since(start).Seconds(), "pods/s")
		})
	}
}

// BenchmarkGangPreemption makes room for a gang of 50 on 5,000 full nodes with ten pods each, of which five must go for
// each of the gang's.
func BenchmarkGangPreemption(b *testing.B) {
	const size = 50
	for name, shape := range map[string]func(*v1.Pod){
		"plain": func(*v1.Pod) {},
		"spread": func(p *v1.Pod) {
			p.Labels = map[string]string{"color": "blue"}
			p.Spec.TopologySpreadConstraints = []v1.TopologySpreadConstraint{{
				MaxSkew: 5, TopologyKey: v1.LabelTopologyZone, WhenUnsatisfiable: v1.DoNotSchedule,
				LabelSelector: &metav1.LabelSelector{MatchLabels: p.Labels},
			}}
		},
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				s, g := newCrowdedGang(b, size, shape)
				b.StartTimer()
				if err := s.groupCycle(b.Context(), g); err == nil || g.attempts[0].nominated == nil {
					b.Fatalf("no room was made: %v", err)
				}
				b.StopTimer()
				for range 5 * size {
					<-s.deleted
				}
				s.stop()
				b.StartTimer()
			}
		})
	}
}

func newCrowdedGang(b *testing.B, size int, shape func(*v1.Pod)) (*bench, *groupCycle) {
	b.Helper()
	cfg := DefaultConfig()
	cfg.PodGroups = true
	s := newBench(b, 0, cfg)
	for i := range 5000 {
		s.nodeAdded(b.Context(), benchNode(i, "4", "32Gi", "110"))
		for j := range 10 {
			p := s.pod(fmt.Sprintf("there-%d-%d", i, j), "400m")
			p.Spec.NodeName = fmt.Sprintf("node-%d", i)
			p.Spec.TerminationGracePeriodSeconds = new(int64(1))
			s.podChanged(b.Context(), nil, p)
		}
	}
	group := &schedulingv1beta1.PodGroup{ObjectMeta: metav1.ObjectMeta{Name: "g", Namespace: "default", UID: "g"}}
	group.Spec.Priority = new(int32(1000))
	group.Spec.SchedulingPolicy.Gang = &schedulingv1beta1.GangSchedulingPolicy{MinCount: int32(size)}
	if err := s.shared.Informers.Scheduling().V1beta1().PodGroups().Informer().GetIndexer().Add(group); err != nil {
		b.Fatal(err)
	}
	for i := range size {
		p := s.pod(fmt.Sprintf("g-%d", i), "2")
		p.Spec.Priority, p.Spec.SchedulingGroup = new(int32(1000)), &v1.PodSchedulingGroup{PodGroupName: new("g")}
		shape(p)
		s.podChanged(b.Context(), nil, p)
	}
	first, err := s.queue.Pop(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	return s, s.gather(b.Context(), first, types.NamespacedName{Namespace: "default", Name: "g"})
}
