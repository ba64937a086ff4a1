package cpus

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/cpuset"

	"wherry.dev/internal/kubelet/numa"
	"wherry.dev/internal/kubelet/podplan"
)

// machine returns a topology: CPUs are numbered as Linux does on most machines, the first threads of all cores before
// the second ones.
func machine(sockets, numaPerSocket, coresPerNUMA, threads int) (t Topology) {
	cores := sockets * numaPerSocket * coresPerNUMA
	for thread := range threads {
		for core := range cores {
			numa := core / coresPerNUMA
			t = append(t, CPU{ID: thread*cores + core, Core: core, NUMA: numa, Socket: numa / numaPerSocket, Cache: numa / numaPerSocket})
		}
	}
	return t
}

func set(t *testing.T, s string) cpuset.CPUSet {
	t.Helper()
	out, err := cpuset.Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestTake has the cases of upstream's own tests of such machines, and others from its documentation.
func TestTake(t *testing.T) {
	laptop := machine(1, 1, 4, 2) // cores 0,4 1,5 2,6 3,7
	// Two sockets whose CPUs alternate: 0,2,4,6,8,10 and 1,3,5,7,9,11; cores 0,6 1,7 2,8 3,9 4,10 5,11.
	var server Topology
	for id := range 12 {
		server = append(server, CPU{ID: id, Core: id % 6, Socket: id % 2, NUMA: id % 2})
	}
	plain := machine(2, 1, 2, 1) // no threads: sockets 0,1 and 2,3
	split := machine(2, 2, 2, 1) // NUMA nodes 0,1 2,3 4,5 6,7
	for _, tc := range []struct {
		name string
		t    Topology
		free string
		n    int
		want string
	}{
		{"one", laptop, "0-7", 1, "0"},
		{"one, beside a core that is not free", laptop, "1,3,5-7", 1, "6"},
		{"a core", laptop, "0-7", 2, "0,4"},
		{"a core, only one is free", laptop, "0-3,6", 2, "2,6"},
		{"three: a core and a half", laptop, "0-7", 3, "0-1,4"},
		{"all", laptop, "0-7", 8, "0-7"},
		{"a socket", server, "0-11", 6, "0,2,4,6,8,10"},
		{"a socket, and one of the other", server, "0-11", 7, "0-2,4,6,8,10"},
		{"a whole core, rather than the socket that is least free", server, "0-3,5,7,9,11", 2, "1,7"},
		{"without threads", plain, "0-3", 2, "0-1"},
		{"the socket that has just enough", plain, "1-3", 2, "2-3"},
		{"the socket that is least free, for one", plain, "1-3", 1, "1"},
		{"a NUMA node", split, "0-7", 2, "0-1"},
		{"a NUMA node of the fuller socket", split, "0-4,6-7", 2, "6-7"},
		{"a socket of two NUMA nodes", split, "0-7", 4, "0-3"},
		{"a NUMA node and a half", split, "2-7", 3, "2-4"},
	} {
		got, err := Take(tc.t, set(t, tc.free), tc.n)
		if err != nil {
			t.Fatal(err)
		}
		if got.String() != tc.want {
			t.Errorf("%s: %d of %s: %s, want %s", tc.name, tc.n, tc.free, got, tc.want)
		}
	}
	if _, err := Take(laptop, set(t, "0-2"), 4); err == nil || err.Error() != "not enough cpus available to satisfy request: requested=4, available=3" {
		t.Error(err)
	}
}

// TestRead reads what Linux tells of a machine.
func TestRead(t *testing.T) {
	write := func(root, path, text string) {
		t.Helper()
		file := filepath.Join(root, path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o750), os.WriteFile(file, []byte(text+"\n"), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	root := t.TempDir()
	write(root, "devices/system/cpu/online", "0-2,4-7")
	for id := range 8 {
		dir := fmt.Sprintf("devices/system/cpu/cpu%d/topology/", id)
		write(root, dir+"physical_package_id", strconv.Itoa(id%4/2))
		write(root, dir+"core_id", strconv.Itoa(id%2)) // the same numbers in both sockets
		write(root, dir+"die_id", "0")
	}
	for _, id := range []int{0, 1, 4, 5} { // the other socket does not tell of its cache
		write(root, fmt.Sprintf("devices/system/cpu/cpu%d/cache/index3/id", id), "7")
	}
	write(root, "devices/system/node/node0/cpulist", "0-1,4-5")
	write(root, "devices/system/node/node1/cpulist", "2-3,6-7")
	got, err := Read(root)
	if err != nil {
		t.Fatal(err)
	}
	want := Topology{{0, 0, 0, 0, 7}, {1, 1, 0, 0, 7}, {2, 2, 1, 1, 1}, {4, 0, 0, 0, 7}, {5, 1, 0, 0, 7}, {6, 2, 1, 1, 1}, {7, 3, 1, 1, 1}}
	if !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if n := got.ThreadsPerCore(); n != 2 {
		t.Errorf("%d threads a core", n)
	}
	small := t.TempDir() // a virtual machine without dies and NUMA nodes
	write(small, "devices/system/cpu/online", "0")
	write(small, "devices/system/cpu/cpu0/topology/physical_package_id", "-1")
	write(small, "devices/system/cpu/cpu0/topology/core_id", "0")
	if got, err := Read(small); err != nil || !slices.Equal(got, Topology{{0, 0, 0, 0, 0}}) {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := Read(t.TempDir()); err == nil || !strings.Contains(err.Error(), "cpu/online") {
		t.Error(err)
	}
	if real, err := Read("/sys"); err != nil || len(real) == 0 {
		t.Errorf("this machine: %v, %v", real, err)
	}
}

func TestOptions(t *testing.T) {
	four := machine(1, 1, 2, 2)
	for _, tc := range []struct {
		cfg  Config
		want string
	}{
		{Config{}, ""}, {Config{Policy: None}, ""},
		{Config{Policy: Static, Reserved: 500}, ""},
		{Config{Policy: Static, Reserved: 500, Options: map[string]string{"full-pcpus-only": "true", "strict-cpu-reservation": "false"}}, ""},
		{Config{Policy: "dynamic"}, `cpuManagerPolicy (--cpu-manager-policy): unknown policy: "dynamic": want none or static`},
		{Config{Policy: Static}, "set reservedSystemCPUs (--reserved-cpus), or cpu in systemReserved or kubeReserved to more than zero"},
		{Config{Policy: Static, Reserved: 5000}, "reserved CPUs: not enough cpus available to satisfy request: requested=5, available=4"},
		{Config{Policy: Static, ReservedCPUs: cpuset.New(1, 9)}, "the CPUs 9 are not online"},
		{Config{Policy: Static, Reserved: 1, Options: map[string]string{"align-by-socket": "true"}}, "align-by-socket: this option needs the feature gate CPUManagerPolicyAlphaOptions"},
		{Config{Policy: Static, Reserved: 1, Alpha: true, Options: map[string]string{"align-by-socket": "true"}}, ""},
		{Config{Policy: Static, Reserved: 1, Alpha: true, Options: map[string]string{"align-by-socket": "true"}, NUMAPolicy: "single-numa-node"}, "align-by-socket does not go together with topologyManagerPolicy single-numa-node"},
		{Config{Policy: Static, Reserved: 1, Options: map[string]string{"distribute-cpus-across-numa": "true", "full-pcpus-only": "true"}}, ""},
		{Config{Policy: Static, Reserved: 1, Options: map[string]string{"distribute-cpus-across-numa": "true", "prefer-align-cpus-by-uncorecache": "true"}}, "prefer-align-cpus-by-uncorecache and distribute-cpus-across-numa can not be used at the same time"},
		{Config{Policy: Static, Reserved: 1, Alpha: true, Options: map[string]string{"distribute-cpus-across-cores": "true", "full-pcpus-only": "true"}}, "full-pcpus-only and distribute-cpus-across-cores can not be used at the same time"},
		{Config{Policy: Static, Reserved: 1, Options: map[string]string{"fast": "true"}}, "fast: unknown option"},
		{Config{Policy: Static, Reserved: 1, Options: map[string]string{"full-pcpus-only": "maybe"}}, `full-pcpus-only: bad value "maybe"`},
		{Config{Policy: None, Options: map[string]string{"full-pcpus-only": "true"}}, "only the policy static has options"},
		{Config{Policy: Static, ReservedCPUs: cpuset.New(0, 1, 2, 3), Options: map[string]string{"strict-cpu-reservation": "true"}}, "none is left for pods"},
	} {
		tc.cfg.Topology = four
		_, err := New(tc.cfg)
		if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%+v: %v, want %q", tc.cfg, err, tc.want)
		}
	}
}

// asks returns a container that asks for CPU.
func asks(name, cpu string) v1.Container {
	list := v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpu), v1.ResourceMemory: resource.MustParse("1Mi")}
	return v1.Container{Name: name, Resources: v1.ResourceRequirements{Requests: list, Limits: list}}
}

func static(t *testing.T, topology Topology, options ...string) *Manager {
	t.Helper()
	cfg := Config{Policy: Static, Topology: topology, Reserved: 1, Options: map[string]string{}, Alpha: true}
	for _, o := range options {
		cfg.Options[o] = "true"
	}
	m, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// choose chooses for all of a pod's containers, near no NUMA node.
func choose(m *Manager, pod *v1.Pod, held []podplan.CPUs) (podplan.CPUs, error) {
	c := m.Choose(pod, held)
	err := (*numa.Manager)(nil).Align(pod, c)
	return c.Chosen(), err
}

func TestWhoGetsCPUs(t *testing.T) {
	m := static(t, machine(1, 1, 4, 2)) // 0 is reserved
	pod := func(change ...func(*v1.Pod)) *v1.Pod {
		p := &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{asks("a", "2"), asks("b", "1500m")}}}
		for _, f := range change {
			f(p)
		}
		return p
	}
	always := v1.ContainerRestartPolicyAlways
	for name, tc := range map[string]struct {
		pod  *v1.Pod
		held []podplan.CPUs
		want podplan.CPUs
	}{
		"whole ones":     {pod(), nil, podplan.CPUs{"a": "1,5"}},
		"others have":    {pod(), []podplan.CPUs{{"x": "1"}, {"y": "5-6"}}, podplan.CPUs{"a": "3,7"}},
		"not Guaranteed": {pod(func(p *v1.Pod) { p.Spec.Containers[1].Resources.Limits = nil }), nil, nil},
		"the pod's own resources": {pod(func(p *v1.Pod) {
			p.Spec.Resources = &v1.ResourceRequirements{Limits: v1.ResourceList{v1.ResourceCPU: resource.MustParse("4")}}
		}), nil, nil},
		"an init container's are used again": {pod(func(p *v1.Pod) {
			p.Spec.InitContainers = []v1.Container{asks("i", "4")}
		}), nil, podplan.CPUs{"i": "1-2,5-6", "a": "1,5"}},
		"a sidecar's are not": {pod(func(p *v1.Pod) {
			s := asks("s", "2")
			s.RestartPolicy = &always
			p.Spec.InitContainers = []v1.Container{s}
		}), nil, podplan.CPUs{"s": "1,5", "a": "2,6"}},
		"more than the init container had": {pod(func(p *v1.Pod) {
			p.Spec.InitContainers = []v1.Container{asks("i", "1")}
		}), nil, podplan.CPUs{"i": "4", "a": "1,5"}},
	} {
		got, err := choose(m, tc.pod, tc.held)
		if err != nil || !maps.Equal(got, tc.want) {
			t.Errorf("%s: %v, %v; want %v", name, got, err, tc.want)
		}
	}
	if shared := m.Shared([]podplan.CPUs{{"x": "1-2"}}).String(); shared != "0,3-7" {
		t.Errorf("shared: %s", shared)
	}
	strict := static(t, machine(1, 1, 4, 2), strictReservation, fullCores)
	if shared := strict.Shared([]podplan.CPUs{{"x": "1-2"}}).String(); shared != "3-7" {
		t.Errorf("shared, strictly: %s", shared)
	}
	_, err := choose(strict, &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{asks("a", "3")}}}, nil)
	if _, ok := errors.AsType[*SMTAlignmentError](err); !ok || err.Error() != "SMT Alignment Error: requested 3 cpus not multiple cpus per core = 2" {
		t.Error(err)
	}
	if _, err := choose(m, &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{asks("a", "8")}}}, nil); err == nil || !strings.Contains(err.Error(), "requested=8, available=7") {
		t.Error(err)
	}
	var none *Manager
	if none.Wants(pod()) || !none.Assignable().IsEmpty() {
		t.Error("the policy none gives CPUs")
	}
}

// TestNoCPUIsGivenTwice over many lives, and there is always something to share.
func TestNoCPUIsGivenTwice(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // no secret
	for _, m := range []*Manager{static(t, machine(2, 2, 4, 2)), static(t, machine(1, 1, 3, 1)), static(t, machine(2, 1, 8, 2), strictReservation)} {
		held := map[int]podplan.CPUs{}
		for i := range 2000 {
			if r.IntN(2) == 0 && len(held) > 0 {
				for k := range held {
					delete(held, k)
					break
				}
				continue
			}
			p := &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{asks("a", strconv.Itoa(1+r.IntN(4))), asks("b", []string{"1", "500m", "2"}[r.IntN(3)])}}}
			others := slices.Collect(maps.Values(held))
			got, err := choose(m, p, others)
			if err != nil {
				continue // full
			}
			before, size := Union(others), 0
			for _, s := range got {
				is := set(t, s)
				size += is.Size()
				if !is.Intersection(before).IsEmpty() || !is.Intersection(m.reserved).IsEmpty() {
					t.Fatalf("%s is given twice, or reserved: others have %s", is, before)
				}
			}
			if Union([]podplan.CPUs{got}).Size() != size {
				t.Fatalf("two containers share: %v", got)
			}
			held[i] = got
			if m.Shared(append(others, got)).IsEmpty() && !m.on[strictReservation] {
				t.Fatal("nothing is left to share")
			}
		}
	}
}

type runtime struct {
	told []string
	fail map[string]error
}

func (r *runtime) UpdateContainerResources(_ context.Context, id string, res *runtimeapi.ContainerResources) error {
	if err := r.fail[id]; err != nil {
		return err
	}
	r.told = append(r.told, id+"="+res.Linux.CpusetCpus)
	return nil
}

func (r *runtime) heard() string {
	slices.Sort(r.told)
	out := strings.Join(r.told, " ")
	r.told = nil
	return out
}

// TestContainersAreTold once, when it changes, and again if they could not be told.
func TestContainersAreTold(t *testing.T) {
	r := &runtime{fail: map[string]error{}}
	want := map[string]string{"a": "0-3", "b": "0-3"}
	k := NewKeeper()
	k.Runtime, k.Want = r, func() map[string]string { return want }
	tell := func(heard string) {
		t.Helper()
		if err := k.Tell(t.Context()); err != nil {
			t.Error(err)
		}
		if got := r.heard(); got != heard {
			t.Errorf("told %q, want %q", got, heard)
		}
	}
	tell("a=0-3 b=0-3")
	tell("")
	want = map[string]string{"a": "0-1", "b": "0-1", "c": "2-3"}
	r.fail["a"] = errors.New("the runtime is busy")
	if err := k.Tell(t.Context()); err == nil {
		t.Error("nobody hears that a container is where it must not be")
	}
	if got := r.heard(); got != "b=0-1 c=2-3" {
		t.Errorf("told %q", got)
	}
	r.fail["a"] = status.Error(codes.NotFound, "gone")
	tell("")
	r.fail["a"] = nil
	tell("a=0-1")
	want = map[string]string{"b": "0-1"}
	tell("")
	want = map[string]string{"b": "0-1", "c": "2-3"} // another one, or the same one again
	tell("c=2-3")
}
