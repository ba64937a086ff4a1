package eviction

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"wherry.dev/internal/kubelet/podplan"
	"wherry.dev/internal/kubelet/podworker"
)

// machine is a made-up node with 1000 MiB of memory and 1000 process IDs.
type machine struct {
	mu      sync.Mutex
	system  uint64 // memory that is no pod's
	pods    []Pod
	endings map[types.UID]podplan.Ending
	stays   map[types.UID]bool // pods that do not end
	events  []string
	evicted []string
	marks   []uint64
	wake    func()
	looks   int
	broken  error
}

func (m *machine) used() (memory, pids uint64) {
	memory = m.system
	for _, p := range m.pods {
		memory, pids = memory+p.Memory, pids+p.PIDs
	}
	return memory, pids
}

func (m *machine) Look() (Memory, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.looks++
	used, _ := m.used()
	return Memory{Level{Free: 1000*mi - int64(used), Total: 1000 * mi}, used}, m.broken
}

func (m *machine) Watch(mark uint64, wake func()) (func(), bool, error) {
	m.marks, m.wake = append(m.marks, mark), wake
	return func() {}, true, nil
}

func (m *machine) PIDs() (Level, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, used := m.used()
	return Level{Free: 1000 - int64(used), Total: 1000}, nil
}

func (m *machine) Get(uid types.UID) (podworker.Snapshot, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, p := range m.pods {
		if p.Pod.UID == uid {
			s := podworker.Snapshot{Pod: p.Pod}
			if e, ok := m.endings[uid]; ok {
				s.Plan.Record.Ending = &e
			}
			return s, true
		}
	}
	return podworker.Snapshot{}, false
}

func (m *machine) Evict(uid types.UID, e podplan.Ending) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.endings[uid] = e
	m.evicted = append(m.evicted, fmt.Sprintf("%s within %ds", uid, *e.Grace))
}

func (m *machine) Reclaim(types.UID) {}

func (m *machine) Await(ctx context.Context, uid types.UID, _ func(*podworker.Snapshot) bool) {
	m.mu.Lock()
	e := m.endings[uid]
	stays := m.stays[uid]
	m.mu.Unlock()
	if stays {
		<-ctx.Done()
		return
	}
	sleep(ctx, time.Duration(*e.Grace)*time.Second+10*time.Millisecond)
	if ctx.Err() == nil {
		m.remove(uid)
	}
}

func (m *machine) remove(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.pods = slices.DeleteFunc(m.pods, func(p Pod) bool { return p.Pod.UID == uid })
}

func (m *machine) Disk(context.Context) ([]Pod, error) { return nil, nil }

func (m *machine) Compute(context.Context) ([]Pod, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.pods), nil
}

func (m *machine) ContainerMemory(_ context.Context, p *v1.Pod) (map[string]Usage, error) {
	return map[string]Usage{"c": {Memory: 7 * mi}}, nil
}

func (m *machine) AnnotatedEventf(o runtime.Object, annotations map[string]string, eventType, reason, format string, args ...any) {
	if annotations[starvedResource] == "" {
		reason += " (it does not say for want of what)"
	}
	m.Eventf(o, eventType, reason, format, args...)
}

func (m *machine) Eventf(o runtime.Object, _, reason, format string, args ...any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	who := "node"
	if p, ok := o.(*v1.Pod); ok {
		who = p.Name
	}
	m.events = append(m.events, who+" "+reason+": "+fmt.Sprintf(format, args...))
}

// add adds a pod, or gives it more.
func (m *machine) add(name string, u Usage, change ...func(*v1.Pod)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range m.pods {
		if m.pods[i].Pod.Name == name {
			m.pods[i].Usage = m.pods[i].Plus(u)
			return
		}
	}
	p := made(name, u, change...)
	p.Pod.UID = types.UID(name)
	m.pods = append(m.pods, p)
}

func newMachine() *machine {
	return &machine{endings: map[types.UID]podplan.Ending{}, stays: map[types.UID]bool{}, system: 300 * mi}
}

// guard runs a guard for the time of a test.
func (m *machine) guard(t *testing.T, l Limits) *Conditions {
	t.Helper()
	conditions := &Conditions{}
	dir := t.TempDir()
	g, err := NewGuard(t.Context(), GuardConfig{
		Sources: Sources{NodeDir: dir, ImageDir: dir, LayerDir: dir, Memory: map[string]MemorySource{MemoryAvailable: m}, PIDs: m.PIDs},
		Limits:  l, MaxGrace: 60, Transition: 30 * time.Second, Pods: m, Meter: m, Events: m, Conditions: conditions,
		Node: func() *v1.ObjectReference { return &v1.ObjectReference{} }, Changed: func() {}, Evicted: func(string) {},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- g.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	synctest.Wait()
	return conditions
}

var hardMemory = Limits{Hard: map[string]string{MemoryAvailable: "100Mi"}}

func (m *machine) wantEvicted(t *testing.T, want ...string) {
	t.Helper()
	synctest.Wait()
	m.mu.Lock()
	defer m.mu.Unlock()
	if !slices.Equal(m.evicted, want) {
		t.Errorf("evicted %q, want %q", m.evicted, want)
	}
}

// The hog is evicted, alone, as soon as the kernel tells; its owner is told why; the condition outlasts it.
func TestMemoryHog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine()
		m.add("hog", Usage{Memory: 100 * mi})
		m.add("neighbour", Usage{Memory: 200 * mi})
		m.add("asked", Usage{Memory: 200 * mi}, asksMem("200Mi"))
		m.add("static", Usage{Memory: 10 * mi}, func(p *v1.Pod) { p.Annotations = map[string]string{"kubernetes.io/config.source": "file"} })
		c := m.guard(t, hardMemory)
		if len(m.marks) != 1 || m.marks[0] != 900*mi {
			t.Errorf("the kernel is to tell at %d", m.marks)
		}
		time.Sleep(time.Minute)
		m.wantEvicted(t)
		m.add("hog", Usage{Memory: 150 * mi})
		m.wake()
		time.Sleep(50 * time.Millisecond)
		m.wantEvicted(t, "hog within 1s")
		time.Sleep(10 * time.Second)
		if got := c.List(); !slices.Equal(got, []v1.NodeConditionType{v1.NodeMemoryPressure}) {
			t.Errorf("after ten seconds: %v", got)
		}
		time.Sleep(time.Minute)
		if got := c.List(); len(got) > 0 {
			t.Errorf("after a minute: %v", got)
		}
		m.wantEvicted(t, "hog within 1s")
		if want := []string{
			"node EvictionThresholdMet: Attempting to reclaim memory",
			"hog Evicted: The node was low on resource: memory. Threshold quantity: 100Mi, available: 40Mi. Container c was using 7Mi, request is 0, has larger consumption of memory. ",
		}; !slices.Equal(m.events, want) {
			t.Errorf("%q, want %q", m.events, want)
		}
		if e := m.endings["hog"]; e.Reason != podplan.ReasonEvicted || e.Disruption != v1.PodReasonTerminationByKubelet {
			t.Errorf("%+v", e)
		}
	})
}

// Without a word from the kernel a hog is found nevertheless, and nothing is looked at often while there is
// plenty.
func TestMemoryIsLookedAt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine()
		m.system = 10 * mi
		m.guard(t, Limits{Hard: map[string]string{MemoryAvailable: "1Mi"}})
		time.Sleep(time.Hour)
		if m.looks > 3600/10+10 {
			t.Errorf("%d looks in an hour", m.looks)
		}
		m.add("hog", Usage{Memory: 988 * mi}) // which is near
		time.Sleep(10 * time.Second)
		m.wantEvicted(t)
		m.add("hog", Usage{Memory: 2 * mi})
		time.Sleep(time.Second)
		m.wantEvicted(t, "hog within 1s")
	})
}

// What the machine itself uses up costs no pod its life, however often it is looked at; that is said once.
func TestShortageThatIsNoPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine()
		m.system = 990 * mi
		m.add("a", Usage{Memory: 3 * mi, PIDs: 10})
		c := m.guard(t, hardMemory)
		time.Sleep(time.Hour)
		m.wantEvicted(t)
		if want := []string{"node EvictionThresholdMet: Attempting to reclaim memory"}; !slices.Equal(m.events, want) || !c.Has(v1.NodeMemoryPressure) {
			t.Errorf("%q, %v", m.events, c.List())
		}
	})
}

// A threshold that asks for more than there is evicts nobody.
func TestThresholdThatCannotBeMet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine()
		m.add("a", Usage{Memory: 300 * mi})
		c := m.guard(t, Limits{Hard: map[string]string{MemoryAvailable: "2Gi", PIDAvailable: "100%"}})
		time.Sleep(time.Hour)
		m.wantEvicted(t)
		if len(c.List()) > 0 {
			t.Errorf("%v", c.List())
		}
	})
}

// At a soft threshold a pod goes once it was crossed for long enough, and has its grace period; at a hard
// one that is crossed meanwhile, the next has to go at once.
func TestSoftThreshold(t *testing.T) {
	soft := Limits{
		Hard: map[string]string{MemoryAvailable: "100Mi"}, Soft: map[string]string{MemoryAvailable: "300Mi"},
		SoftGrace: map[string]string{MemoryAvailable: "1m"}, MinReclaim: map[string]string{MemoryAvailable: "100Mi"},
	}
	slow := func(p *v1.Pod) { p.Spec.TerminationGracePeriodSeconds = new(int64(300)) }
	synctest.Test(t, func(t *testing.T) {
		m := newMachine()
		m.add("a", Usage{Memory: 450 * mi}, slow)
		m.add("b", Usage{Memory: 40 * mi})
		c := m.guard(t, soft)
		time.Sleep(59 * time.Second)
		m.wantEvicted(t)
		if !c.Has(v1.NodeMemoryPressure) {
			t.Error("no pressure during the grace period")
		}
		time.Sleep(2 * time.Second)
		m.wantEvicted(t, "a within 60s")
		m.add("c", Usage{Memory: 150 * mi})
		time.Sleep(time.Second)
		m.wantEvicted(t, "a within 60s", "a within 1s")
	})
	synctest.Test(t, func(t *testing.T) { // the minimum reclaim
		m := newMachine()
		m.add("a", Usage{Memory: 250 * mi})
		m.add("b", Usage{Memory: 200 * mi})
		m.guard(t, Limits{Hard: map[string]string{MemoryAvailable: "300Mi"}, MinReclaim: map[string]string{MemoryAvailable: "250Mi"}})
		time.Sleep(time.Minute)
		m.wantEvicted(t, "a within 1s", "b within 1s")
	})
}

// A fork bomb ends alone; a pod that does not end keeps no other from being evicted for ever.
func TestForkBomb(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine()
		m.add("bomb", Usage{PIDs: 700})
		m.add("second", Usage{PIDs: 200})
		m.add("small", Usage{PIDs: 3})
		m.stays["bomb"] = true
		c := m.guard(t, Limits{Hard: map[string]string{PIDAvailable: "10%"}})
		m.wantEvicted(t, "bomb within 1s")
		if !c.Has(v1.NodePIDPressure) {
			t.Errorf("%v", c.List())
		}
		time.Sleep(20 * time.Second)
		m.wantEvicted(t, "bomb within 1s")
		time.Sleep(40 * time.Second)
		m.wantEvicted(t, "bomb within 1s", "second within 1s")
		if !strings.HasPrefix(m.events[1], "bomb Evicted: The node was low on resource: pids. Threshold quantity: 100, available: 97. ") {
			t.Errorf("%q", m.events)
		}
	})
}

// A source that cannot be read is no shortage.
func TestBlind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine()
		m.add("a", Usage{Memory: 650 * mi})
		m.broken = errors.New("no such file")
		m.guard(t, hardMemory)
		time.Sleep(time.Minute)
		m.wantEvicted(t)
	})
}
