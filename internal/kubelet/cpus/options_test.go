package cpus

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/component-base/metrics/testutil"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"

	"wherry.dev/internal/kubelet/numa"
	"wherry.dev/internal/kubelet/podplan"
)

// TestOtherWaysToTake has what the options say.
func TestOtherWaysToTake(t *testing.T) {
	server := machine(2, 2, 4, 2) // NUMA nodes 0-3,16-19 4-7,20-23 8-11,24-27 12-15,28-31
	plain := machine(1, 4, 4, 1)  // 0-3 4-7 8-11 12-15
	// Eight cores with two threads, four caches: 0-1,8-9 2-3,10-11 4-5,12-13 6-7,14-15.
	chiplets := machine(1, 1, 8, 2)
	for i := range chiplets {
		chiplets[i].Cache = chiplets[i].Core / 2
	}
	even, cores, spread, caches := how{even: 1}, how{even: 2}, how{spread: true}, how{caches: true}
	for _, tc := range []struct {
		name string
		how  how
		t    Topology
		free string
		n    int
		want string
	}{
		{"evenly, from one node if it has enough", even, plain, "0-15", 4, "0-3"},
		{"evenly, from the node that has most", even, plain, "0,4-7,8-9", 2, "4-5"},
		{"evenly, from two", even, plain, "0-15", 6, "0-2,4-6"},
		{"evenly, from two that have enough", even, plain, "0,4-6,8-10,12", 6, "4-6,8-10"},
		{"evenly, and one more from where most is left", even, plain, "0-15", 9, "0-2,4-6,8-10"},
		{"evenly, with a remainder", even, plain, "0-15", 5, "0-2,4-5"},
		{"evenly, what is left is even, too", even, plain, "0-3,4-7,8-10,12-14", 6, "0-2,4-6"},
		{"evenly, where that cannot be done", even, plain, "0-3,4", 5, "0-4"},
		{"whole cores evenly", cores, server, "0-31", 12, "0-2,4-6,16-18,20-22"},
		{"whole cores with a remainder", cores, server, "0-31", 10, "0-2,4-5,16-18,20-21"},
		{"not in whole cores", cores, server, "0-31", 3, "0-1,16"},
		{"spread over cores", spread, server, "0-31", 4, "0-3"},
		{"spread in the socket that is least free", spread, server, "0-3,8-15,24-31", 4, "0-3"},
		{"spread over a whole socket", spread, machine(2, 1, 4, 2), "0-15", 9, "0-4,8-11"},
		{"a whole cache", caches, chiplets, "0-15", 4, "0-1,8-9"},
		{"a whole cache, though another one is less free", caches, chiplets, "0-1,8,2-3,10-11,4-7,12-15", 4, "2-3,10-11"},
		{"a part of a cache", caches, chiplets, "0,8,2-3,10-11,4-7,12-15", 2, "0,8"},
		{"a part of the next cache that has enough", caches, chiplets, "0,8,2-3,10,4-7,12-15", 3, "2-3,10"},
		{"two caches", caches, chiplets, "0-15", 6, "0-2,8-10"},
		{"no cache has enough", caches, chiplets, "0,8,2,10,4,12", 3, "0,2,8"},
	} {
		got, err := tc.how.take(tc.t, set(t, tc.free), tc.n)
		if err != nil {
			t.Fatal(err)
		}
		if got.String() != tc.want {
			t.Errorf("%s: %d of %s: %s, want %s", tc.name, tc.n, tc.free, got, tc.want)
		}
	}
	if _, err := even.take(plain, set(t, "0-3"), 5); err == nil {
		t.Error("more than there are")
	}
}

// TestTooManyNodes for looking at all sets of them are refused.
func TestTooManyNodes(t *testing.T) {
	cfg := Config{Policy: Static, Topology: machine(1, 17, 1, 1), Reserved: 1, Options: map[string]string{acrossNUMA: "true"}}
	if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), "17 NUMA nodes, more than 16") {
		t.Error(err)
	}
}

// TestHints says from which NUMA nodes CPUs can be had.
func TestHints(t *testing.T) {
	m := static(t, machine(2, 1, 4, 1))                 // 0-3 4-7; 0 is reserved
	sockets := static(t, machine(2, 2, 2, 1), bySocket) // 0-1 2-3 | 4-5 6-7; 0 is reserved
	pod := &v1.Pod{Spec: v1.PodSpec{InitContainers: []v1.Container{asks("i", "5")}, Containers: []v1.Container{asks("a", "2"), asks("b", "500m")}}}
	a := &pod.Spec.Containers[0]
	for _, tc := range []struct {
		name string
		m    *Manager
		c    *v1.Container
		held []podplan.CPUs
		want string
	}{
		{"of one node", m, a, nil, "[{0 true} {1 true} {0-1 false}]"},
		{"one has too few", m, a, []podplan.CPUs{{"x": "1-2"}}, "[{1 true} {0-1 false}]"},
		{"of both only", m, a, []podplan.CPUs{{"x": "1-2,4-6"}}, "[{0-1 false}]"},
		{"of none", m, a, []podplan.CPUs{{"x": "1-6"}}, "[]"},
		{"the pod's peak", m, nil, nil, "[{0-1 true}]"},
		{"no CPUs of its own", m, &pod.Spec.Containers[1], nil, "[]"},
		{"a socket is as good as a node", sockets, a, []podplan.CPUs{{"x": "4"}}, "[{1 true} {0-1 true} {0,2 false} {1-2 false} {0-2 false} {3 true} {0,3 false} {1,3 false} {0-1,3 false} {2-3 true} {0,2-3 false} {1-3 false} {0-3 false}]"},
	} {
		hints := tc.m.Choose(pod, tc.held).Hints(tc.c)[string(v1.ResourceCPU)]
		if got := fmt.Sprint(hints); got != tc.want {
			t.Errorf("%s: %s, want %s", tc.name, got, tc.want)
		}
	}
}

// TestCPUsNearAHint come from its nodes as far as there are enough.
func TestCPUsNearAHint(t *testing.T) {
	m := static(t, machine(2, 2, 2, 1)) // 0-1 2-3 | 4-5 6-7; 0 is reserved
	sockets := static(t, machine(2, 2, 2, 1), bySocket)
	for _, tc := range []struct {
		m    *Manager
		near numa.Nodes
		n    string
		want string
	}{
		{m, 0, "2", "2-3"}, {m, numa.NodesOf(3), "2", "6-7"}, {m, numa.NodesOf(3), "3", "4,6-7"}, {m, numa.NodesOf(0), "1", "1"},
		{sockets, numa.NodesOf(3), "3", "4-6"}, {sockets, numa.NodesOf(2, 3), "4", "4-7"},
	} {
		pod := &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{asks("a", tc.n)}}}
		c := tc.m.Choose(pod, nil)
		if err := c.Take(&pod.Spec.Containers[0], numa.Hint{Nodes: tc.near}); err != nil || c.Chosen()["a"] != tc.want {
			t.Errorf("%s near %s: %v, %v; want %s", tc.n, tc.near, c.Chosen(), err, tc.want)
		}
	}
}

// TestInitContainersBind the pod's other containers to where their CPUs are.
func TestInitContainersBind(t *testing.T) {
	m := static(t, machine(2, 1, 4, 1))
	align, err := numa.New(numa.Config{
		Policy: kubeletconfig.SingleNumaNodeTopologyManagerPolicy, Scope: kubeletconfig.ContainerTopologyManagerScope, Nodes: numa.NodesOf(0, 1),
	})
	if err != nil {
		t.Fatal(err)
	}
	pod := &v1.Pod{Spec: v1.PodSpec{InitContainers: []v1.Container{asks("i", "4")}, Containers: []v1.Container{asks("a", "2"), asks("b", "2")}}}
	c := m.Choose(pod, nil)
	if err := align.Align(pod, c); err != nil || fmt.Sprint(c.Chosen()) != "map[a:4-5 b:6-7 i:4-7]" {
		t.Errorf("%v, %v", c.Chosen(), err)
	}
	pod.Spec.Containers = append(pod.Spec.Containers, asks("c", "4"))
	c = m.Choose(pod, nil)
	if _, ok := errors.AsType[*numa.AffinityError](align.Align(pod, c)); !ok {
		t.Errorf("%v", c.Chosen())
	}
}

// TestWholeCoresOnly: a core of which a part is reserved, or somebody else's, is nobody's.
func TestWholeCoresOnly(t *testing.T) {
	m := static(t, machine(1, 1, 3, 2), fullCores) // cores 0,3 1,4 2,5; 0 is reserved
	want := func(n, want string, held ...podplan.CPUs) {
		t.Helper()
		got, err := choose(m, &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{asks("a", n)}}}, held)
		if text := got["a"]; err == nil && text != want || err != nil && err.Error() != want {
			t.Errorf("%v, %v; want %s", got, err, want)
		}
	}
	want("4", "1-2,4-5")
	want("2", "2,5", podplan.CPUs{"x": "1"})
	want("6", "SMT Alignment Error: not enough free physical CPUs: available physical CPUs = 4, requested CPUs = 6, CPUs per core = 2")
	want("4", "SMT Alignment Error: not enough free physical CPUs: available physical CPUs = 2, requested CPUs = 4, CPUs per core = 2", podplan.CPUs{"x": "1"})
	want("3", "SMT Alignment Error: requested 3 cpus not multiple cpus per core = 2")
	if !slices.Equal(m.Assignable().List(), []int{1, 2, 3, 4, 5}) {
		t.Error(m.Assignable())
	}
}

// TestMetrics tell what containers have.
func TestMetrics(t *testing.T) {
	Report(static(t, machine(2, 1, 4, 1)), func() []podplan.CPUs { return []podplan.CPUs{{"a": "1-2"}, {"b": "5"}} })
	defer Report(nil, nil)
	const want = `
# HELP kubelet_cpu_manager_allocation_per_numa [ALPHA] Number of CPUs that containers have for themselves, by NUMA node.
# TYPE kubelet_cpu_manager_allocation_per_numa gauge
kubelet_cpu_manager_allocation_per_numa{numa_node="0"} 2
kubelet_cpu_manager_allocation_per_numa{numa_node="1"} 1
# HELP kubelet_cpu_manager_exclusive_cpu_allocation_count [ALPHA] Number of CPUs that containers have for themselves.
# TYPE kubelet_cpu_manager_exclusive_cpu_allocation_count gauge
kubelet_cpu_manager_exclusive_cpu_allocation_count 3
# HELP kubelet_cpu_manager_shared_pool_size_millicores [ALPHA] CPUs that may still be given to one container, in thousandths.
# TYPE kubelet_cpu_manager_shared_pool_size_millicores gauge
kubelet_cpu_manager_shared_pool_size_millicores 4000
`
	names := []string{"kubelet_cpu_manager_allocation_per_numa", "kubelet_cpu_manager_exclusive_cpu_allocation_count", "kubelet_cpu_manager_shared_pool_size_millicores"}
	if err := testutil.GatherAndCompare(legacyregistry.DefaultGatherer, strings.NewReader(want), names...); err != nil {
		t.Error(err)
	}
}
