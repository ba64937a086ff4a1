package kubelet

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	"wherry.dev/test/fakecri"
	"wherry.dev/test/sim"
)

var nodes = flag.Int("nodes", 6, "how many random nodes to play")

// TestSimNodes simulates nodes with several pods, a runtime that is slow, fails, loses answers and
// forgets events, an API server that fails, a kubelet that is killed, and a critical pod for which
// there is no room. Once the faults stop, every pod must be where it should be; once all are
// deleted, nothing may be left.
func TestSimNodes(t *testing.T) {
	for s := range *nodes {
		t.Run(fmt.Sprint(s), func(t *testing.T) { playNode(t, uint64(s)) })
	}
}

// critical is the pod that others have to make room for.
const critical = "critical"

// chaos picks random faults; it is used by many goroutines.
type chaos struct {
	mu sync.Mutex
	r  *rand.Rand
	on bool
}

func (c *chaos) chance(p float64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.on && c.r.Float64() < p
}

func (c *chaos) upTo(d time.Duration) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Duration(c.r.Int64N(int64(d)))
}

func (c *chaos) set(on bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.on = on
}

var errChaos = errors.New("chaos")

func (c *chaos) fault(call, _ string) error {
	if call == "Version" || call == "Status" {
		return nil
	}
	if c.chance(0.05) {
		return errChaos
	}
	return nil
}

func playNode(t *testing.T, seed uint64) {
	synctest.Test(t, func(t *testing.T) {
		c := &chaos{r: rand.New(rand.NewPCG(seed, 11)), on: true}
		w := newWorld(t)
		w.rt.Publish("other:v1")
		w.rt.Delay = func(call string) time.Duration {
			switch call {
			case "PodSandboxStatus", "ListPodSandbox", "ListContainers", "Status", "Version", "ListImages", "ImageStatus":
				return 0
			case "PullImage":
				return c.upTo(20 * time.Second)
			}
			return c.upTo(200 * time.Millisecond)
		}
		w.rt.Fail, w.rt.FailAfter = c.fault, c.fault
		w.rt.DropEvent = func() bool { return c.chance(0.2) }
		w.rt.Behave = func(cfg *runtimeapi.ContainerConfig) fakecri.Behaviour {
			b := fakecri.Behaviour{IgnoreTerm: c.chance(0.2)}
			if cfg.Metadata.Name[0] == 'i' || c.chance(0.3) {
				b.RunFor = c.upTo(30*time.Second) + time.Millisecond
			}
			if c.chance(0.2) {
				b.ExitCode = 1
			}
			return b
		}
		w.start()
		s := w.scheduled()
		w.client.PrependReactor("*", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
			if (a.GetVerb() == "patch" || a.GetVerb() == "delete") && c.chance(0.1) {
				return true, nil, errChaos
			}
			return false, nil, nil
		})
		checks := &checks{t: t, byUID: map[string]*sim.Checker{}}
		w.rt.OnChange = checks.change
		names := w.live(c, checks, s)
		c.set(false)
		names = w.settle(names, s)
		if !w.gone(critical) && strings.HasPrefix(w.get(critical).Status.Reason, "OutOf") {
			t.Errorf("the critical pod is refused: %+v", w.get(critical).Status)
		}
		for _, n := range names {
			if !w.gone(n) && w.get(n).DeletionTimestamp == nil {
				w.remove(n, 5)
			}
		}
		w.until("all gone", func() bool {
			for _, n := range names {
				if !w.gone(n) {
					return false
				}
			}
			return w.rt.Sandboxes()+w.rt.Containers() == 0 && len(w.k.table.List()) == 0
		})
		w.stop()
	})
}

// checks has one of the simulator's checkers for each pod of the node, fed with what happens in the
// runtime.
type checks struct {
	t     *testing.T
	mu    sync.Mutex
	byUID map[string]*sim.Checker
}

func (c *checks) expect(pod *v1.Pod) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := sim.NewChecker()
	if err := k.Check(sim.Event{What: sim.PodSet, Pod: pod}); err != nil {
		c.t.Error(err)
	}
	c.byUID[string(pod.UID)] = k
}

func (c *checks) change(ch fakecri.Change) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.byUID[ch.UID].Check(sim.FromRuntime(ch)); err != nil {
		c.t.Errorf("pod %s: %v", ch.UID, err)
	}
}

// live lets pods and their node live for a while. Some are bound by hand, the others by the
// scheduler, if there is room for them.
func (w *world) live(c *chaos, checks *checks, s *scheduler) []string {
	var names []string
	for i := range 60 {
		w.pass(c.upTo(5 * time.Second))
		switch {
		case i%6 == 0:
			p := randomPod(c, fmt.Sprintf("p%d", i))
			request := p.Spec.Containers[0].Resources.Requests
			switch i {
			case 12: // nearly everything there is
				request[v1.ResourceCPU] = resource.MustParse(w.free(300))
			case 36: // it comes anyway
				request[v1.ResourceCPU], p.Name, p.UID = resource.MustParse("500m"), critical, "uid-"+critical
				p.Spec.Priority = ptr.To[int32](2000001000)
			}
			names = append(names, p.Name)
			checks.expect(p)
			w.create(p)
		case i%4 == 1: // a third of the node: there is never room for all
			p := randomPod(c, fmt.Sprintf("s%d", i))
			q := resource.MustParse(w.free(0))
			p.Spec.Containers[0].Resources.Requests[v1.ResourceCPU] = *resource.NewMilliQuantity(q.MilliValue()/3, resource.DecimalSI)
			checks.expect(p)
			s.add(p)
		case c.chance(0.1):
			w.stop()
			w.start()
		case c.chance(0.2):
			all := s.with(names)
			if n := all[int(c.upTo(time.Duration(len(all))))]; !w.gone(n) && w.get(n).DeletionTimestamp == nil {
				if c.chance(0.2) {
					if err := w.client.Tracker().Delete(podResource, "default", n); err != nil {
						w.t.Fatal(err)
					}
					s.bind()
				} else {
					w.remove(n, int64(c.upTo(20)))
				}
			}
		case c.chance(0.1):
			if ids := w.rt.Live("", ""); len(ids) > 0 {
				w.rt.Kill(ids[int(c.upTo(time.Duration(len(ids))))], 9)
			}
		}
	}
	return names
}

func randomPod(c *chaos, name string) *v1.Pod {
	policies := []v1.RestartPolicy{v1.RestartPolicyAlways, v1.RestartPolicyOnFailure, v1.RestartPolicyNever}
	p := testPod(name)
	p.Spec.RestartPolicy = policies[c.upTo(3)]
	if c.chance(0.3) {
		p.Spec.Containers[0].Image = "other:v1"
	}
	if c.chance(0.3) {
		p.Spec.InitContainers = append(p.Spec.InitContainers, container("i"))
	}
	if c.chance(0.3) {
		s := container("side")
		s.RestartPolicy = ptr.To(v1.ContainerRestartPolicyAlways)
		p.Spec.InitContainers = append(p.Spec.InitContainers, s)
	}
	if c.chance(0.3) {
		p.Spec.Containers = append(p.Spec.Containers, container("d"))
	}
	p.CreationTimestamp = metav1.Now()
	return p
}

// settle waits until every wanted pod runs, or has ended for good, and was not refused although the
// scheduler saw room for it. It returns all pods that existed; no more will come.
func (w *world) settle(names []string, s *scheduler) []string {
	w.until("settled", func() bool {
		for _, n := range s.refused() {
			w.t.Fatalf("there was room for it by the phases that the API server had: %s", n)
		}
		for _, n := range s.with(names) {
			if w.gone(n) {
				continue
			}
			p := w.get(n)
			ended := p.Status.Phase == v1.PodSucceeded || p.Status.Phase == v1.PodFailed
			if p.DeletionTimestamp != nil || !ended && p.Status.Phase != v1.PodRunning {
				return false
			}
			if ended && len(w.rt.Live(string(p.UID), "")) > 0 {
				w.t.Fatalf("%s is %s and lives", n, p.Status.Phase)
			}
		}
		return true
	})
	s.close()
	return s.with(names)
}
