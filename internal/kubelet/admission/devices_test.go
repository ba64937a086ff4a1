package admission

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"

	"wherry.dev/internal/kubelet/devices"
	"wherry.dev/internal/kubelet/memory"
	"wherry.dev/internal/kubelet/numa"
	"wherry.dev/internal/kubelet/podplan"
	"wherry.dev/internal/kubelet/podworker"
)

// table is a table of pods whose workers are the test.
type table struct {
	pods  []*podworker.Snapshot
	woken map[types.UID]bool
}

func (t *table) List() []*podworker.Snapshot { return slices.Clone(t.pods) }

func (t *table) find(uid types.UID) *podworker.Snapshot {
	for _, s := range t.pods {
		if s.Pod.UID == uid {
			return s
		}
	}
	return nil
}

func (t *table) Get(uid types.UID) (podworker.Snapshot, bool) {
	if s := t.find(uid); s != nil {
		return *s, true
	}
	return podworker.Snapshot{}, false
}

func (t *table) Leaving(uid types.UID) bool {
	s := t.find(uid)
	return s != nil && s.Pod.DeletionTimestamp != nil
}

func (t *table) Wake(uid types.UID)              { t.woken[uid] = true }
func (t *table) Evict(types.UID, podplan.Ending) {}
func (t *table) remove(i int)                    { t.pods = slices.Delete(t.pods, i, i+1) }
func (t *table) add(p *v1.Pod) *podworker.Snapshot {
	t.pods = append(t.pods, &podworker.Snapshot{Pod: p})
	return t.pods[len(t.pods)-1]
}

// gpus are made-up devices of one resource, of which each container gets as many as its limit says.
type gpus struct {
	ids     []string
	waits   bool
	prefers bool
	refuse  error
	hints   []numa.Hint
}

const gpu = "example.com/gpu"

func (g *gpus) Waits(*v1.Pod) bool   { return g.waits }
func (g *gpus) Prefers(*v1.Pod) bool { return g.prefers }

func (g *gpus) Choose(pod *v1.Pod, held []podplan.Devices, _ devices.Preferred) DeviceChoice {
	return &gpuChoice{g: g, pod: pod, held: held}
}

// gpuChoice has one container.
type gpuChoice struct {
	g      *gpus
	pod    *v1.Pod
	held   []podplan.Devices
	chosen podplan.Devices
}

func (c *gpuChoice) Hints(*v1.Container) numa.Hints        { return numa.Hints{gpu: c.g.hints} }
func (c *gpuChoice) Chosen() podplan.Devices               { return c.chosen }
func (c *gpuChoice) Ask(context.Context) devices.Preferred { return nil }

func (c *gpuChoice) Take(*v1.Container, numa.Hint) (err error) {
	c.chosen, err = c.g.give(c.pod, c.held)
	return err
}

func (g *gpus) give(pod *v1.Pod, held []podplan.Devices) (podplan.Devices, error) {
	free := slices.DeleteFunc(slices.Clone(g.ids), func(id string) bool {
		return slices.ContainsFunc(held, func(d podplan.Devices) bool { return slices.Contains(d["c"][0].IDs, id) })
	})
	q := pod.Spec.Containers[0].Resources.Limits[gpu]
	n := int(q.Value())
	if n > len(free) {
		return nil, fmt.Errorf("requested number of devices unavailable for %s. Requested: %d, Available: %d", gpu, n, len(free))
	}
	return podplan.Devices{"c": {{Resource: gpu, IDs: free[:n]}}}, nil
}

func (g *gpus) Allocate(_ context.Context, d podplan.Devices) (podplan.Devices, error) {
	if g.refuse != nil {
		return nil, g.refuse
	}
	out := podplan.Devices{}
	for name, grants := range d {
		for _, grant := range grants {
			grant.Needs = []byte("yes")
			out[name] = append(out[name], grant)
		}
	}
	return out, nil
}

func newWorld(g *gpus) (*Admission, *table) {
	pods := &table{woken: map[types.UID]bool{}}
	all := v1.ResourceList{v1.ResourcePods: resource.MustParse("100"), v1.ResourceCPU: resource.MustParse("4"), gpu: *resource.NewQuantity(int64(len(g.ids)), resource.DecimalSI)}
	a := New(Config{
		Conditions: &Conditions{}, Devices: g, Node: func() *v1.Node { return &v1.Node{Status: v1.NodeStatus{Allocatable: all}} },
		Look: func(context.Context) {}, Refused: func(*v1.Pod, podplan.Verdict) {}, Preempted: func(string) {}, Changed: func() {},
	}, pods)
	a.Listed(nil)
	return a, pods
}

func asking(name string, n int64) *v1.Pod {
	p := &v1.Pod{}
	p.Name, p.UID = name, types.UID(name)
	list := v1.ResourceList{gpu: *resource.NewQuantity(n, resource.DecimalSI)}
	p.Spec.Containers = []v1.Container{{Name: "c", Resources: v1.ResourceRequirements{Limits: list, Requests: list}}}
	return p
}

func TestPluginThatRefusesRefusesThePod(t *testing.T) {
	g := &gpus{ids: []string{"a"}, refuse: errors.New("it burns")}
	a, pods := newWorld(g)
	first, second := pods.add(asking("first", 1)), pods.add(asking("second", 1))
	v := a.Admit(t.Context(), first.Pod, false)
	if v.Admitted || v.Reason != "UnexpectedAdmissionError" || v.Message != "Allocate failed due to it burns, which is unexpected" || v.Devices != nil {
		t.Errorf("%+v", v)
	}
	first.Input.Record.Verdict, g.refuse = &v, nil
	if v := a.Admit(t.Context(), second.Pod, false); !v.Admitted || string(v.Devices["c"][0].Needs) != "yes" {
		t.Errorf("what was refused is still held: %+v", v)
	}
}

func TestPodWaitsForPluginsAndForThoseWhoLeave(t *testing.T) {
	g := &gpus{ids: []string{"a"}, waits: true}
	a, pods := newWorld(g)
	first, second := pods.add(asking("first", 1)), pods.add(asking("second", 1))
	if v := a.Admit(t.Context(), first.Pod, false); v.Admitted || v.Reason != "" {
		t.Errorf("%+v", v)
	}
	g.waits = false
	a.Freed()
	if !pods.woken["first"] {
		t.Error("the plugin has come, and nobody told the pod")
	}
	v := a.Admit(t.Context(), first.Pod, false)
	if !v.Admitted {
		t.Fatalf("%+v", v)
	}
	first.Input.Record.Verdict = &v
	first.Pod.DeletionTimestamp = new(metav1.NewTime(time.Now()))
	if v := a.Admit(t.Context(), second.Pod, false); v.Admitted || v.Reason != "" {
		t.Errorf("the other one is about to end: %+v", v)
	}
	pods.remove(0)
	a.Freed()
	if v := a.Admit(t.Context(), second.Pod, false); !v.Admitted || !pods.woken["second"] {
		t.Errorf("%+v, woken: %v", v, pods.woken)
	}
	third := pods.add(asking("third", 1))
	if v := a.Admit(t.Context(), third.Pod, false); v.Reason != "UnexpectedAdmissionError" {
		t.Errorf("%+v", v)
	}
}

// Pods come, are published sooner or later, end, and the kubelet is killed: no two have one device.
func TestNoDeviceIsGivenTwice(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		g := &gpus{ids: []string{"a", "b", "c", "d", "e"}}
		a, pods := newWorld(g)
		verdicts := map[types.UID]podplan.Verdict{}
		for step := range 60 {
			switch i := r.IntN(len(pods.pods) + 1); {
			case i == len(pods.pods):
				p := pods.add(asking(fmt.Sprint("p", step), int64(1+r.IntN(3)))).Pod
				g.prefers = r.IntN(3) == 0
				if r.IntN(2) == 0 {
					a.Arrived(p)
				}
			case r.IntN(3) == 0:
				delete(verdicts, pods.pods[i].Pod.UID)
				pods.remove(i)
				a.Freed()
			case r.IntN(8) == 0: // killed: what was not published is lost
				records := pods.pods
				a, pods = newWorld(g)
				pods.pods = records
				for uid := range verdicts {
					if s := pods.find(uid); s.Input.Record.Verdict == nil {
						delete(verdicts, uid)
					}
				}
			default:
				s := pods.pods[i]
				v, has := verdicts[s.Pod.UID]
				if !has {
					g.refuse = nil
					if r.IntN(6) == 0 {
						g.refuse = errors.New("no")
					}
					v = a.Admit(t.Context(), s.Pod, false)
				}
				if v.Admitted || v.Reason != "" {
					verdicts[s.Pod.UID] = v
				}
				if has && s.Input.Record.Verdict == nil {
					s.Input.Record.Verdict = &v
				}
			}
			owner := map[string]types.UID{}
			for uid, v := range verdicts {
				for _, grant := range v.Devices["c"] {
					for _, id := range grant.IDs {
						if other, taken := owner[id]; taken {
							t.Fatalf("seed %d, step %d: %s has %s and so has %s", seed, step, uid, id, other)
						}
						owner[id] = uid
					}
				}
			}
		}
	}
}

// TestPodThatCannotBeAligned is refused with upstream's reason; it waits if that changes when others have ended.
func TestPodThatCannotBeAligned(t *testing.T) {
	g := &gpus{ids: []string{"a", "b"}, hints: []numa.Hint{}}
	a, pods := newWorld(g)
	var err error
	if a.cfg.NUMA, err = numa.New(numa.Config{Policy: "restricted", Scope: "container", Nodes: numa.NodesOf(0, 1)}); err != nil {
		t.Fatal(err)
	}
	v := a.Admit(t.Context(), pods.add(asking("first", 1)).Pod, false)
	if v.Admitted || v.Reason != "TopologyAffinityError" || v.Message != "Resources cannot be allocated with Topology locality" {
		t.Errorf("%+v", v)
	}
	g.hints = []numa.Hint{{Nodes: numa.NodesOf(1), Preferred: true}}
	if v := a.Admit(t.Context(), pods.add(asking("second", 1)).Pod, false); !v.Admitted {
		t.Errorf("%+v", v)
	}
}

// TestMemoryIsGiven once, is in the verdict, and is not given again before the pod is gone.
func TestMemoryIsGiven(t *testing.T) {
	a, pods := newWorld(&gpus{})
	const gib = 1 << 30
	var err error
	a.cfg.Memory, err = memory.New(memory.Config{
		Policy: "Static", Total: v1.ResourceList{v1.ResourceMemory: resource.MustParse("1Gi")},
		Machine: numa.Machine{Nodes: numa.NodesOf(0, 1), Memory: map[int]map[v1.ResourceName]uint64{
			0: {v1.ResourceMemory: 3 * gib}, 1: {v1.ResourceMemory: 2 * gib},
		}},
		Reserved: []kubeletconfig.MemoryReservation{{NumaNode: 0, Limits: v1.ResourceList{v1.ResourceMemory: resource.MustParse("1Gi")}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	guaranteed := func(name, size string) *podworker.Snapshot {
		p := asking(name, 0)
		list := v1.ResourceList{v1.ResourceMemory: resource.MustParse(size), v1.ResourceCPU: resource.MustParse("100m")}
		p.Spec.Containers[0].Resources = v1.ResourceRequirements{Limits: list, Requests: list}
		return pods.add(p)
	}
	node := a.cfg.Node()
	node.Status.Allocatable[v1.ResourceMemory] = resource.MustParse("8Gi")
	a.cfg.Node = func() *v1.Node { return node }
	first, second, third := guaranteed("first", "2Gi"), guaranteed("second", "1Gi"), guaranteed("third", "2Gi")
	v := a.Admit(t.Context(), first.Pod, false)
	if !v.Admitted || fmt.Sprint(v.Memory) != "map[c:[{memory 0 2147483648 0}]]" {
		t.Errorf("%+v", v)
	}
	second.Input.Record.Verdict = new(a.Admit(t.Context(), second.Pod, false))
	if v := second.Input.Record.Verdict; !v.Admitted || fmt.Sprint(v.Memory) != "map[c:[{memory 1 1073741824 0}]]" {
		t.Errorf("%+v", v)
	}
	if v := a.Admit(t.Context(), third.Pod, false); v.Reason != "UnexpectedAdmissionError" || !strings.Contains(v.Message, "no NUMA nodes with enough memory") {
		t.Errorf("%+v", v)
	}
	second.Pod.DeletionTimestamp = new(metav1.NewTime(time.Now()))
	fourth := guaranteed("fourth", "2Gi")
	if v := a.Admit(t.Context(), fourth.Pod, false); v.Admitted || v.Reason != "" {
		t.Errorf("another one is about to end: %+v", v)
	}
}
