package memory

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"

	"wherry.dev/internal/kubelet/numa"
	"wherry.dev/internal/kubelet/podplan"
)

const gib = 1 << 30

func list(memory string, more ...string) v1.ResourceList {
	out := v1.ResourceList{v1.ResourceMemory: resource.MustParse(memory)}
	for i := 0; i < len(more); i += 2 {
		out[v1.ResourceName(more[i])] = resource.MustParse(more[i+1])
	}
	return out
}

// machine has nodes with as many GiB of memory, and 1 GiB more that each keeps.
func machine(t *testing.T, sizes ...uint64) *Manager {
	t.Helper()
	cfg := Config{Policy: "Static", Machine: numa.Machine{Memory: map[int]map[v1.ResourceName]uint64{}}, Total: list(fmt.Sprintf("%dGi", len(sizes)))}
	for id, n := range sizes {
		cfg.Machine.Nodes |= numa.NodesOf(id)
		cfg.Machine.Memory[id] = map[v1.ResourceName]uint64{v1.ResourceMemory: (n + 1) * gib}
		cfg.Reserved = append(cfg.Reserved, kubeletconfig.MemoryReservation{NumaNode: int32(id), Limits: list("1Gi")})
	}
	m, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func asks(name, memory string, more ...string) v1.Container {
	l := list(memory, append(more, "cpu", "1")...)
	return v1.Container{Name: name, Resources: v1.ResourceRequirements{Requests: l, Limits: l}}
}

func podOf(init []v1.Container, containers ...v1.Container) *v1.Pod {
	return &v1.Pod{Spec: v1.PodSpec{InitContainers: init, Containers: containers}}
}

// text writes what was given: "c=0:2Gi", with what was used before in brackets.
func text(m podplan.Memory) string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(m)) {
		for _, b := range m[name] {
			s := fmt.Sprintf("%s=%s:%gGi", name, b.Nodes, float64(b.Size)/gib)
			if b.Resource != "memory" {
				s += " of " + b.Resource
			}
			if b.Reused > 0 {
				s += fmt.Sprintf("(%gGi)", float64(b.Reused)/gib)
			}
			out = append(out, s)
		}
	}
	return strings.Join(out, " ")
}

func choose(m *Manager, pod *v1.Pod, held []podplan.Memory, hint numa.Hint) (podplan.Memory, error) {
	c := m.Choose(pod, held)
	for _, all := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range all {
			if err := c.Take(&all[i], hint); err != nil {
				return nil, err
			}
		}
	}
	return c.Chosen(), nil
}

func TestSettings(t *testing.T) {
	two := numa.Machine{Nodes: numa.NodesOf(0, 1), Memory: map[int]map[v1.ResourceName]uint64{
		0: {v1.ResourceMemory: 4 * gib, "hugepages-2Mi": gib}, 1: {v1.ResourceMemory: 4 * gib, "hugepages-2Mi": 0},
	}}
	keep := func(node int32, l v1.ResourceList) kubeletconfig.MemoryReservation {
		return kubeletconfig.MemoryReservation{NumaNode: node, Limits: l}
	}
	for _, tc := range []struct {
		policy   string
		reserved []kubeletconfig.MemoryReservation
		total    v1.ResourceList
		want     string
	}{
		{"None", nil, list("1Gi"), ""},
		{"Static", []kubeletconfig.MemoryReservation{keep(0, list("512Mi")), keep(1, list("512Mi"))}, list("1Gi", "cpu", "1", "ephemeral-storage", "1Gi"), ""},
		{"Static", []kubeletconfig.MemoryReservation{keep(0, list("1Gi", "hugepages-2Mi", "512Mi"))}, list("1Gi", "hugepages-2Mi", "512Mi"), ""},
		{"static", nil, nil, `memoryManagerPolicy (--memory-manager-policy): unknown policy: "static": want None or Static`},
		{"Static", nil, nil, "reserve memory on some NUMA node for the system, in reservedMemory (--reserved-memory)"},
		{"Static", []kubeletconfig.MemoryReservation{keep(0, list("1Gi"))}, list("1025Mi"), "the NUMA nodes keep 1Gi of memory, and the machine 1025Mi"},
		{"Static", []kubeletconfig.MemoryReservation{keep(0, list("1Gi"))}, list("1Gi", "hugepages-2Mi", "2Mi"), "the NUMA nodes keep 0 of hugepages-2Mi, and the machine 2Mi"},
		{"Static", []kubeletconfig.MemoryReservation{keep(2, list("1Gi"))}, list("1Gi"), "the machine has no NUMA node 2: it has 0-1"},
		{"Static", []kubeletconfig.MemoryReservation{keep(0, list("3073Mi"))}, list("3073Mi"), "NUMA node 0: memory: 3073Mi is more than the node has"},
		{"None", []kubeletconfig.MemoryReservation{keep(0, list("1Gi", "cpu", "1"))}, nil, "NUMA node 0: cpu: only memory and hugepages-<size> can be reserved"},
		{"None", []kubeletconfig.MemoryReservation{keep(0, list("0"))}, nil, "NUMA node 0: memory: want more than zero"},
		{"None", []kubeletconfig.MemoryReservation{keep(0, list("1")), keep(0, list("1"))}, nil, "NUMA node 0: memory: it is there twice"},
	} {
		_, err := New(Config{Policy: tc.policy, Machine: two, Reserved: tc.reserved, Total: tc.total})
		if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%v: %v, want %q", tc.reserved, err, tc.want)
		}
	}
}

// TestTooManyNodes are refused: looking at all sets of them would never end.
func TestTooManyNodes(t *testing.T) {
	cfg := Config{Policy: "Static", Machine: numa.Machine{Nodes: 1<<17 - 1}}
	if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), "the machine has 17 NUMA nodes, more than 16") {
		t.Error(err)
	}
}

// TestWhoGetsMemory has documented behaviour: from as few nodes as possible, which belong to one group only.
func TestWhoGetsMemory(t *testing.T) {
	m := machine(t, 4, 4, 4)
	always := v1.ContainerRestartPolicyAlways
	sidecar := asks("s", "3Gi")
	sidecar.RestartPolicy = &always
	block := func(nodes string, n, reused uint64) podplan.Memory {
		return podplan.Memory{"x": {{Resource: "memory", Nodes: nodes, Size: n * gib, Reused: reused * gib}}}
	}
	for name, tc := range map[string]struct {
		pod  *v1.Pod
		held []podplan.Memory
		hint numa.Hint
		want string
		err  string
	}{
		"from one node":                 {pod: podOf(nil, asks("c", "2Gi")), want: "c=0:2Gi"},
		"the first is full":             {pod: podOf(nil, asks("c", "2Gi")), held: []podplan.Memory{block("0", 3, 0)}, want: "c=1:2Gi"},
		"near the hint":                 {pod: podOf(nil, asks("c", "2Gi")), hint: numa.Hint{Nodes: numa.NodesOf(2), Preferred: true}, want: "c=2:2Gi"},
		"one after the other":           {pod: podOf(nil, asks("c", "3Gi"), asks("d", "3Gi")), want: "c=0:3Gi d=1:3Gi"},
		"from two":                      {pod: podOf(nil, asks("c", "6Gi")), want: "c=0-1:6Gi"},
		"others of the same two":        {pod: podOf(nil, asks("c", "5Gi")), held: []podplan.Memory{block("0-1", 3, 0)}, want: "c=0-1:5Gi"},
		"one of them belongs to itself": {pod: podOf(nil, asks("c", "6Gi")), held: []podplan.Memory{block("0", 1, 0)}, want: "c=1-2:6Gi"},
		"a node of a group":             {pod: podOf(nil, asks("c", "1Gi")), held: []podplan.Memory{block("0-1", 5, 0)}, want: "c=2:1Gi"},
		"what was used before":          {pod: podOf(nil, asks("c", "3Gi")), held: []podplan.Memory{block("0", 3, 2)}, want: "c=0:3Gi"},
		"too much":                      {pod: podOf(nil, asks("c", "13Gi")), err: "[memorymanager] failed to get the default NUMA affinity, no NUMA nodes with enough memory is available"},
		"the groups do not fit":         {pod: podOf(nil, asks("c", "6Gi")), held: []podplan.Memory{block("0", 1, 0), block("1", 1, 0)}, err: "[memorymanager] failed to get the default NUMA affinity"},
		"the hint is too small":         {pod: podOf(nil, asks("c", "6Gi")), hint: numa.Hint{Nodes: numa.NodesOf(2)}, want: "c=0,2:6Gi"},
		"a preferred one grows":         {pod: podOf(nil, asks("c", "6Gi")), hint: numa.Hint{Nodes: numa.NodesOf(2), Preferred: true}, want: "c=0,2:6Gi"},
		"only if it stays preferred":    {pod: podOf(nil, asks("c", "3Gi")), held: []podplan.Memory{block("2", 2, 0)}, hint: numa.Hint{Nodes: numa.NodesOf(2), Preferred: true}, err: "[memorymanager] failed to find NUMA nodes to extend the current topology hint"},
		"the hint is in a group":        {pod: podOf(nil, asks("c", "1Gi")), held: []podplan.Memory{block("0-1", 5, 0)}, hint: numa.Hint{Nodes: numa.NodesOf(0), Preferred: true}, err: "[memorymanager] failed to find the extended preferred hint"},
		"between two groups":            {pod: podOf(nil, asks("c", "1Gi")), held: []podplan.Memory{block("0-1", 5, 0), block("2", 1, 0)}, hint: numa.Hint{Nodes: numa.NodesOf(1, 2)}, err: "[memorymanager] preferred hint violates NUMA node allocation"},
		"an init container's":           {pod: podOf([]v1.Container{asks("i", "3Gi")}, asks("c", "2Gi"), asks("d", "2Gi")), want: "c=0:2Gi(2Gi) d=0:2Gi(1Gi) i=0:3Gi"},
		"two init containers":           {pod: podOf([]v1.Container{asks("i", "2Gi"), asks("j", "3Gi")}, asks("c", "4Gi")), want: "c=0:4Gi(3Gi) i=0:2Gi j=0:3Gi(2Gi)"},
		"a sidecar keeps its own":       {pod: podOf([]v1.Container{asks("i", "1Gi"), sidecar}, asks("c", "2Gi")), want: "c=1:2Gi i=0:1Gi s=0:3Gi(1Gi)"},
		"not Guaranteed":                {pod: podOf(nil, v1.Container{Name: "c"}), want: ""},
		"the pod's own resources": {pod: func() *v1.Pod {
			p := podOf(nil, asks("c", "1Gi"))
			p.Spec.Resources = &v1.ResourceRequirements{Requests: list("2Gi", "cpu", "1"), Limits: list("2Gi", "cpu", "1")}
			return p
		}(), want: ""},
		"a page that no node has": {pod: podOf(nil, asks("c", "1Gi", "hugepages-1Gi", "1Gi")), err: "[memorymanager] failed to get the default NUMA affinity"},
	} {
		got, err := choose(m, tc.pod, tc.held, tc.hint)
		if tc.err == "" && err != nil || tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)) {
			t.Errorf("%s: %v, want %q", name, err, tc.err)
		}
		if text(got) != tc.want {
			t.Errorf("%s: %s, want %s", name, text(got), tc.want)
		}
	}
	var none *Manager
	if got, err := choose(none, podOf(nil, asks("c", "1Gi")), nil, numa.Hint{}); got != nil || err != nil || none.Allocatable() != nil {
		t.Errorf("the policy None: %v, %v", got, err)
	}
	if got := NodesOf(podplan.Memory{"c": {{Nodes: "0"}, {Nodes: "2-3"}}}, "c"); got != "0,2-3" || NodesOf(nil, "c") != "" {
		t.Error(got)
	}
}

// TestHints are those of a container, or of the pod's peak.
func TestHints(t *testing.T) {
	m := machine(t, 4, 4)
	pod := podOf([]v1.Container{asks("i", "5Gi")}, asks("c", "2Gi"), asks("d", "2Gi"))
	for _, tc := range []struct {
		c    *v1.Container
		held []podplan.Memory
		want string
	}{
		{nil, nil, "[{0-1 true}]"},
		{&pod.Spec.Containers[0], nil, "[{0 true} {1 true} {0-1 false}]"},
		{&pod.Spec.Containers[0], []podplan.Memory{{"x": {{Resource: "memory", Nodes: "0", Size: 3 * gib}}}}, "[{1 true}]"},
		{&pod.Spec.Containers[0], []podplan.Memory{{"x": {{Resource: "memory", Nodes: "0-1", Size: 5 * gib}}}}, "[{0-1 false}]"},
		{&pod.Spec.Containers[0], []podplan.Memory{{"x": {{Resource: "memory", Nodes: "0-1", Size: 7 * gib}}}}, "[]"},
	} {
		hints := m.Choose(pod, tc.held).Hints(tc.c)["memory"]
		if got := fmt.Sprint(hints); got != tc.want {
			t.Errorf("%s, want %s", got, tc.want)
		}
	}
	if got := wantedByPod(pod)[v1.ResourceMemory]; got != 5*gib {
		t.Error(got)
	}
}

// TestNothingIsGivenTwice over many lives: no node gives more than it has, and none belongs to two groups.
func TestNothingIsGivenTwice(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4)) //nolint:gosec // no secret
	m := machine(t, 8, 4, 6)
	held := map[int]podplan.Memory{}
	given := 0
	for i := range 5000 {
		if r.IntN(2) == 0 && len(held) > 0 {
			for k := range held {
				delete(held, k)
				break
			}
			continue
		}
		size := func() string { return fmt.Sprintf("%dMi", 256*(1+r.IntN(20))) }
		pod := podOf(nil, asks("c", size()))
		if r.IntN(3) == 0 {
			pod = podOf([]v1.Container{asks("i", size())}, asks("c", size()), asks("d", size()))
		}
		hint := numa.Hint{Nodes: numa.Nodes(r.IntN(8)), Preferred: r.IntN(2) == 0}
		got, err := choose(m, pod, slices.Collect(maps.Values(held)), hint)
		if err != nil {
			continue // full
		}
		held[i] = got
		given++
		taken := map[string]uint64{}
		for _, of := range held {
			for _, blocks := range of {
				for _, b := range blocks {
					taken[b.Nodes] += b.Size - b.Reused
				}
			}
		}
		for a, n := range taken {
			nodes, err := numa.Parse(a)
			if err != nil {
				t.Fatal(err)
			}
			if n > m.sum(nodes)[v1.ResourceMemory] {
				t.Fatalf("nodes %s give %d", a, n)
			}
			for b := range taken {
				if others, _ := numa.Parse(b); a != b && nodes&others != 0 {
					t.Fatalf("a node is in the groups %s and %s", a, b)
				}
			}
		}
	}
	if given < 500 {
		t.Errorf("only %d were given anything", given)
	}
}
