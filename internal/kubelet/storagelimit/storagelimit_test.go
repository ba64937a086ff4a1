package storagelimit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"wherry.dev/internal/kubelet/podplan"
	"wherry.dev/internal/kubelet/podworker"
)

const mi = 1 << 20

func limited(q string) v1.ResourceRequirements {
	return v1.ResourceRequirements{Limits: v1.ResourceList{v1.ResourceEphemeralStorage: resource.MustParse(q)}}
}

func emptyDir(name, size string, medium v1.StorageMedium) v1.Volume {
	e := &v1.EmptyDirVolumeSource{Medium: medium}
	if size != "" {
		e.SizeLimit = new(resource.MustParse(size))
	}
	return v1.Volume{Name: name, VolumeSource: v1.VolumeSource{EmptyDir: e}}
}

func TestExceeds(t *testing.T) {
	whole := &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{{Name: "a", Resources: limited("10Mi")}, {Name: "b", Resources: limited("20Mi")}}}}
	part := &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{{Name: "a", Resources: limited("10Mi")}, {Name: "b"}}}}
	volumes := &v1.Pod{Spec: v1.PodSpec{Volumes: []v1.Volume{
		emptyDir("free", "", ""), emptyDir("memory", "1Mi", v1.StorageMediumMemory), emptyDir("huge", "1Mi", "HugePages-2Mi"), emptyDir("zero", "0", ""), emptyDir("disk", "5Mi", ""),
	}}}
	for _, c := range []struct {
		name      string
		pod       *v1.Pod
		used      Usage
		sig, want string
	}{
		{"nothing", &v1.Pod{}, Usage{Pod: 1 << 40}, "", ""},
		{"at its limits", whole, Usage{Pod: 30 * mi, Containers: map[string]uint64{"a": 10 * mi, "b": 20 * mi}}, "", ""},
		{"the pod", whole, Usage{Pod: 30*mi + 1}, SignalPod, "Pod ephemeral local storage usage exceeds the total limit of containers 30Mi. "},
		{"a container", whole, Usage{Pod: 11 * mi, Containers: map[string]uint64{"a": 11 * mi}}, SignalContainer, `Container a exceeded its local ephemeral storage limit "10Mi". `},
		{"the one with a limit", part, Usage{Pod: 10*mi + 1}, SignalPod, "Pod ephemeral local storage usage exceeds the total limit of containers 10Mi. "},
		{"a volume", volumes, Usage{Pod: 6 * mi, Volumes: map[string]uint64{"disk": 6 * mi}}, SignalEmptyDir, `Usage of EmptyDir volume "disk" exceeds the limit "5Mi". `},
		{"volumes that have none", volumes, Usage{Volumes: map[string]uint64{"free": 6 * mi, "memory": 6 * mi, "huge": 6 * mi, "zero": 6 * mi, "disk": 5 * mi}}, "", ""},
	} {
		sig, got, exceeds := Exceeds(c.pod, c.used)
		if sig != c.sig || got != c.want || exceeds != (c.want != "") {
			t.Errorf("%s: %s, %q, want %s, %q", c.name, sig, got, c.sig, c.want)
		}
	}
	if Limited(&v1.Pod{}) || !Limited(part) || !Limited(volumes) {
		t.Error("which pods have limits")
	}
}

// node is a made-up node; a measurement takes a while.
type node struct {
	pods     []*podworker.Snapshot
	takes    time.Duration
	used     map[types.UID]Usage
	measured []string
	evicted  []string
	events   []string
	err      error
}

func (n *node) List() []*podworker.Snapshot { return n.pods }

func (n *node) Storage(_ context.Context, p *podworker.Snapshot) (Usage, error) {
	n.measured = append(n.measured, p.Pod.Name)
	time.Sleep(n.takes)
	return n.used[p.Pod.UID], n.err
}

func (n *node) Evict(uid types.UID, e podplan.Ending) {
	n.evicted = append(n.evicted, fmt.Sprintf("%s %s %d", uid, e.Reason, *e.Grace))
	for _, p := range n.pods {
		if p.Pod.UID == uid {
			p.Plan.Record.Ending = &e
		}
	}
}

func (n *node) Eventf(_ runtime.Object, kind, reason, format string, args ...any) {
	n.events = append(n.events, kind+" "+reason+": "+fmt.Sprintf(format, args...))
}

func (n *node) add(name string, change ...func(*v1.Pod)) {
	p := &v1.Pod{}
	p.Name, p.UID = name, types.UID(name)
	for _, f := range change {
		f(p)
	}
	n.pods = append(n.pods, &podworker.Snapshot{Pod: p})
}

func small(p *v1.Pod) { p.Spec.Volumes = []v1.Volume{emptyDir("data", "5Mi", "")} }

func run(t *testing.T, n *node) *Enforcer {
	e := New(Enforcer{Pods: n, Meter: n, Events: n, Evicted: func(string) {}})
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- e.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	synctest.Wait()
	return e
}

// Only pods with limits are measured, not more often than it is worth, and those that exceed them go; critical
// ones, and those that are ending anyway, are left alone.
func TestEnforcer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &node{takes: time.Second, used: map[types.UID]Usage{}}
		n.add("free")
		n.add("critical", small, func(p *v1.Pod) { p.Spec.Priority = new(int32(2000000000)) })
		e := run(t, n)
		time.Sleep(time.Hour)
		if len(n.measured) > 0 {
			t.Fatalf("measured %q", n.measured)
		}
		n.add("small", small)
		e.Poke()
		time.Sleep(time.Hour)
		if got := len(n.measured); got < 60 || got > 72 || n.measured[0] != "small" {
			t.Errorf("%d measurements of a second each in an hour: %q", got, n.measured[0])
		}
		n.err = errors.New("the runtime is away")
		n.used["small"] = Usage{Volumes: map[string]uint64{"data": 6 * mi}}
		time.Sleep(5 * time.Minute)
		if len(n.evicted) > 0 {
			t.Errorf("evicted %q without knowing", n.evicted)
		}
		n.err = nil
		time.Sleep(2 * time.Minute)
		if want := []string{"small Evicted 1"}; !slices.Equal(n.evicted, want) {
			t.Errorf("evicted %q, want %q", n.evicted, want)
		}
		if want := []string{`Warning Evicted: Usage of EmptyDir volume "data" exceeds the limit "5Mi". `}; !slices.Equal(n.events, want) {
			t.Errorf("%q, want %q", n.events, want)
		}
		measured := len(n.measured)
		time.Sleep(time.Hour)
		if len(n.measured) > measured {
			t.Errorf("measured %d times after its end", len(n.measured)-measured)
		}
	})
}
