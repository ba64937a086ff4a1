package kubelet

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	clienttesting "k8s.io/client-go/testing"
	resourcehelper "k8s.io/component-helpers/resource"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/kubelet/podplan"
	"wherry.dev/test/fakecri"
)

// podResource is the resource of pods.
var podResource = v1.SchemeGroupVersion.WithResource("pods")

// scheduler binds pods as upstream's does: based on what the API server has about the others, at
// the very moment at which it has it. The node must not refuse what it binds for lack of room.
type scheduler struct {
	w *world

	mu    sync.Mutex
	queue []*v1.Pod
	// bound has the names of all the pods that it bound.
	bound []string
	// room is the node's allocatable.
	room v1.ResourceList
}

// scheduled makes a scheduler look after every write of a pod.
func (w *world) scheduled() *scheduler {
	s := &scheduler{w: w}
	s.room = w.k.node.Node().Status.Allocatable
	write := clienttesting.ObjectReaction(w.client.Tracker())
	w.client.PrependReactor("*", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		switch a.GetVerb() {
		case "patch", "update", "delete":
			_, obj, err := write(a)
			s.bind()
			return true, obj, err
		}
		return false, nil, nil
	})
	return s
}

// add creates a pod without a node.
func (s *scheduler) add(p *v1.Pod) {
	s.mu.Lock()
	p.CreationTimestamp = metav1.Now()
	s.queue = append(s.queue, p)
	s.mu.Unlock()
	s.bind()
}

// bind binds the pods that fit to the node, in their order.
func (s *scheduler) bind() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue = slices.DeleteFunc(s.queue, func(p *v1.Pod) bool {
		if !s.fits(p) {
			return false
		}
		if err := s.w.client.Tracker().Create(podResource, p, p.Namespace); err != nil {
			s.w.t.Error(err)
		}
		s.bound = append(s.bound, p.Name)
		return true
	})
}

func (s *scheduler) fits(p *v1.Pod) bool {
	list, err := s.w.client.Tracker().List(podResource, v1.SchemeGroupVersion.WithKind("Pod"), "")
	if err != nil {
		s.w.t.Error(err)
		return false
	}
	held, n := v1.ResourceList{}, int64(0)
	for _, o := range list.(*v1.PodList).Items {
		if !pods.IsTerminal(o.Status.Phase) {
			sum(held, resourcehelper.PodRequests(&o, resourcehelper.PodResourcesOptions{UseStatusResources: true}))
			n++
		}
	}
	sum(held, resourcehelper.PodRequests(p, resourcehelper.PodResourcesOptions{}))
	for name, q := range held {
		if have, ok := s.room[name]; ok && q.Cmp(have) > 0 {
			return false
		}
	}
	return n < s.room.Pods().Value()
}

func sum(to, more v1.ResourceList) {
	for name, q := range more {
		s := to[name]
		s.Add(q)
		to[name] = s
	}
}

// close stops the scheduler: pods that wait are not bound any more.
func (s *scheduler) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue = nil
}

// with returns the names of the bound pods, and the given ones.
func (s *scheduler) with(names []string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Concat(names, s.bound)
}

// refused returns the pods that were bound and that the node then refused for lack of room.
func (s *scheduler) refused() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []string
	for _, name := range s.bound {
		if s.w.gone(name) {
			continue
		}
		if st := s.w.get(name).Status; strings.HasPrefix(st.Reason, podplan.ReasonOutOf) {
			out = append(out, fmt.Sprintf("%s: %s", name, st.Message))
		}
	}
	return out
}

// asking returns a pod that requests CPU.
func asking(name, cpu string, policy v1.RestartPolicy) *v1.Pod {
	p := plainPod(name, policy, container("c"))
	p.Spec.Containers[0].Resources.Requests = v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpu)}
	return p
}

// A pod that waited for room was bound as soon as the API server had the final phase of the pod
// that held it. It used to be refused then, because the node counted that other pod until its
// sandbox and volumes were gone too. Users do not forgive that a pod is killed right after it was
// placed.
func TestPodForWhichRoomAppearedIsNotKilled(t *testing.T) {
	for name, tc := range map[string]struct {
		lo  *v1.Pod
		end func(w *world)
	}{
		"deleted":   {asking("lo", "1", v1.RestartPolicyAlways), func(w *world) { w.remove("lo", 5) }},
		"completed": {asking("lo", "1", v1.RestartPolicyNever), func(w *world) { w.rt.Kill(w.rt.Live("uid-lo", "c")[0], 0) }},
		"deleted, and the kubelet restarts": {asking("lo", "1", v1.RestartPolicyNever), func(w *world) {
			w.rt.Kill(w.rt.Live("uid-lo", "c")[0], 0)
			w.pass(50 * time.Millisecond)
			w.stop()
			w.start()
		}},
		"by force": {asking("lo", "1", v1.RestartPolicyAlways), func(w *world) {
			if err := w.client.CoreV1().Pods("default").Delete(w.t.Context(), "lo", metav1.DeleteOptions{}); err != nil {
				w.t.Fatal(err)
			}
		}},
		"called failed by another": {asking("lo", "1", v1.RestartPolicyAlways), func(w *world) {
			p := w.get("lo")
			p.Status.Phase, p.Status.Reason = v1.PodFailed, "NodeLost"
			if _, err := w.client.CoreV1().Pods("default").UpdateStatus(w.t.Context(), p, metav1.UpdateOptions{}); err != nil {
				w.t.Fatal(err)
			}
		}},
		"shrunk": {asking("lo", "1", v1.RestartPolicyAlways), func(w *world) { w.resize("lo", "100m") }},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(w *world) {
				w.rt.Behave = func(*runtimeapi.ContainerConfig) fakecri.Behaviour { return fakecri.Behaviour{IgnoreTerm: true} }
				w.rt.Delay = func(call string) time.Duration {
					switch call {
					case "StopPodSandbox", "RemovePodSandbox":
						return 3 * time.Second
					case "PodSandboxStatus":
						return 50 * time.Millisecond
					}
					return 0
				}
				s := w.scheduled()
				s.room = v1.ResourceList{v1.ResourceCPU: resource.MustParse("1500m"), v1.ResourcePods: resource.MustParse("110")}
				w.create(asking("rest", w.free(1500), v1.RestartPolicyAlways))
				s.room[v1.ResourceCPU] = resource.MustParse(w.free(0))
				s.add(tc.lo)
				w.until("lo runs", func() bool { return condition(w.get("lo"), v1.PodReady) == v1.ConditionTrue })
				s.add(asking("hi", "1", v1.RestartPolicyAlways))
				w.pass(time.Second)
				if !w.gone("hi") {
					t.Fatal("hi was bound without room")
				}
				tc.end(w)
				w.until("hi runs", func() bool {
					if got := s.refused(); len(got) > 0 {
						t.Fatal(got)
					}
					return !w.gone("hi") && condition(w.get("hi"), v1.PodReady) == v1.ConditionTrue
				})
			})
		})
	}
}

// Of two pods that were bound while the kubelet was down, the younger one used to get the room: the
// workers raced for admission.
func TestAdmissionAtStartGoesByCreation(t *testing.T) {
	for seed := range 5 {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			w.start()
			first := w.free(300) // of one CPU, too, more than half
			w.stop()
			now := time.Now()
			for i := range 6 {
				p := asking(fmt.Sprintf("p%d", (i+seed)%6), first, v1.RestartPolicyAlways)
				p.CreationTimestamp = metav1.NewTime(now.Add(-time.Duration((i+seed)%6) * time.Minute))
				w.create(p)
			}
			w.start()
			w.pass(5 * time.Second)
			for i := range 6 {
				name := fmt.Sprintf("p%d", i)
				if got := w.get(name).Status; (i == 5) != (got.Phase == v1.PodRunning) || (i != 5) != (got.Reason == "OutOfcpu") {
					t.Errorf("%s, of which the highest number is the oldest: %s %s", name, got.Phase, got.Reason)
				}
			}
			w.stop()
		})
	}
}

// While the node's labels were being looked up, for up to five seconds, no other pod used to be
// admitted. This test runs in real time, because waiting for a lock would stop virtual time.
func TestNobodyWaitsForTheLabelsOfAnother(t *testing.T) {
	w := newWorld(t)
	asked, answer := make(chan struct{}), make(chan struct{})
	w.prepare = func(k *Kubelet) { k.deps.Client = slowNodes{k.deps.Client, asked, answer} }
	w.launch()
	defer w.stop()
	picky := asking("picky", "1m", v1.RestartPolicyAlways)
	picky.Spec.NodeSelector = map[string]string{"disk": "ssd"}
	w.create(picky)
	<-asked
	w.create(asking("plain", "1m", v1.RestartPolicyAlways))
	for began := time.Now(); len(w.rt.Live("uid-plain", "c")) == 0; time.Sleep(time.Millisecond) {
		if time.Since(began) > time.Minute {
			t.Error("the other pod is not started")
			break
		}
	}
	close(answer)
	for w.get("picky").Status.Reason != podplan.ReasonNodeAffinity {
		time.Sleep(time.Millisecond)
	}
}

// slowNodes returns the node only when the test allows it, once.
type slowNodes struct {
	kubernetes.Interface
	asked, answer chan struct{}
}

// IsWatchListSemanticsUnSupported tells reflectors to list, as the fake client does.
func (s slowNodes) IsWatchListSemanticsUnSupported() bool { return true }

func (s slowNodes) CoreV1() corev1.CoreV1Interface { return slowCore{s.Interface.CoreV1(), s} }

type slowCore struct {
	corev1.CoreV1Interface
	by slowNodes
}

func (s slowCore) Nodes() corev1.NodeInterface { return slowNode{s.CoreV1Interface.Nodes(), s.by} }

type slowNode struct {
	corev1.NodeInterface
	by slowNodes
}

func (s slowNode) Get(ctx context.Context, name string, opts metav1.GetOptions) (*v1.Node, error) {
	close(s.by.asked)
	<-s.by.answer
	return s.NodeInterface.Get(ctx, name, opts)
}
