package podcgroups

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"wherry.dev/internal/cgroup"
	"wherry.dev/internal/kubelet/config"
	"wherry.dev/internal/kubelet/criconfig"
	"wherry.dev/test/leaks"
)

func TestMain(m *testing.M) { os.Exit(leaks.Watch(m).Run()) }

// tree has groups without a kernel.
type tree map[string]*specs.LinuxResources

func (t tree) Ensure(path string, limits *specs.LinuxResources) error {
	t[path] = limits
	return nil
}

func (t tree) Exists(path string) bool { return t[path] != nil }

func (t tree) Children(path string) ([]string, error) {
	if t[path] == nil {
		return nil, errors.New("no such group")
	}
	var names []string
	for p := range t {
		if name, ok := strings.CutPrefix(p, path+"/"); ok && !strings.Contains(name, "/") {
			names = append(names, name)
		}
	}
	return names, nil
}

// told are the events.
type told []string

func (t *told) Eventf(_ runtime.Object, _, reason, format string, args ...any) {
	*t = append(*t, reason+": "+fmt.Sprintf(format, args...))
}

// newGroups returns groups of an empty tree, and the events about them.
func newGroups(cfg config.Config) (*Groups, tree, *told) {
	t, events := tree{}, &told{}
	ref := func() *v1.ObjectReference { return nil }
	return New(Config{Tree: t, Layout: criconfig.Layout{Root: "/w"}, Kubelet: cfg, Node: func() *v1.Node { return &v1.Node{} }, Events: events, Ref: ref}), t, events
}

func TestPodsAreKnownByTheirGroups(t *testing.T) {
	g, tree, _ := newGroups(config.Config{})
	if _, err := g.Pods(); err == nil {
		t.Error("there are no groups yet, and nothing is said")
	}
	if err := g.Ensure(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, uid := range []types.UID{"a", "b"} {
		pod := &v1.Pod{}
		pod.UID = uid
		tree[g.cfg.Layout.Pod(pod)] = &specs.LinuxResources{}
	}
	if uids, err := g.Pods(); err != nil || !slices.Equal(slices.Sorted(slices.Values(uids)), []types.UID{"a", "b"}) {
		t.Errorf("%v, %v, of %v", uids, err, slices.Collect(maps.Keys(tree)))
	}
	if uids, err := New(Config{}).Pods(); uids != nil || err != nil {
		t.Errorf("without cgroups: %v, %v", uids, err)
	}
}

func TestReservedLimits(t *testing.T) {
	reserved := map[string]string{"cpu": "500m", "memory": "1Gi", "pid": "1000", "ephemeral-storage": "1Gi"}
	all, err := reservedLimits(reserved, false)
	if err != nil || *all.CPU.Shares != 512 || *all.Memory.Limit != 1<<30 || *all.Pids.Limit != 1000 {
		t.Errorf("%+v, %v", all, err)
	}
	some, err := reservedLimits(reserved, true)
	if err != nil || *some.CPU.Shares != 512 || some.Memory != nil || some.Pids != nil {
		t.Errorf("%+v, %v", some, err)
	}
	for group, want := range map[string]string{
		"/system": "/system.slice", "/system.slice": "/system.slice", "system-kubernetes.slice": "/system.slice/system-kubernetes.slice",
		"/system.slice/system-kubernetes.slice": "/system.slice/system-kubernetes.slice",
	} {
		if got := slicePath(group); got != want {
			t.Errorf("%s: %s, want %s", group, got, want)
		}
	}
}

// TestReservedCgroupsAreLimited uses this machine's cgroups.
func TestReservedCgroupsAreLimited(t *testing.T) {
	tree, err := cgroup.System()
	if err != nil {
		t.Fatal(err)
	}
	group := fmt.Sprintf("/wherry-reserved-%d", os.Getpid())
	if err := cgroup.Ensure(group+"/system", nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cgroup.Remove(group); err != nil {
			t.Error(err)
		}
	})
	g := New(Config{Tree: tree})
	if err := g.limitExisting(group+"/system", map[string]string{"memory": "64Mi", "pid": "100", "cpu": "2"}, false); err != nil {
		t.Fatal(err)
	}
	d, err := cgroup.ReadDetails(group + "/system")
	if err != nil || d.MemoryLimit != 64<<20 || d.Max != 100 || d.Shares < 2000 {
		t.Errorf("memory %d, processes %d, shares %d, %v", d.MemoryLimit, d.Max, d.Shares, err)
	}
	if err := g.limitExisting(group+"/kube", map[string]string{"cpu": "100m"}, true); err == nil || !strings.Contains(err.Error(), "does not exist") {
		t.Errorf("a group that is not there: %v", err)
	}
	if cgroup.Exists(group + "/kube") {
		t.Error("it was made")
	}
}

func TestReservedCgroupsAreTold(t *testing.T) {
	var cfg config.Config
	cfg.SystemReservedCgroup, cfg.KubeReservedCgroup = "/system", "/kube"
	cfg.EnforceNodeAllocatable = []string{"system-reserved", "kube-reserved-compressible"}
	cfg.SystemReserved, cfg.KubeReserved = map[string]string{"memory": "64Mi"}, map[string]string{"cpu": "100m"}
	g, tree, events := newGroups(cfg)
	tree["/system"] = &specs.LinuxResources{}
	err := g.Ensure(t.Context())
	if err == nil || !strings.HasPrefix(err.Error(), `Failed to enforce Kube Reserved Compressible Cgroup Limits on "/kube": `) {
		t.Errorf("%v", err)
	}
	if m := tree["/system"].Memory; m == nil || *m.Limit != 64<<20 {
		t.Errorf("%+v", m)
	}
	said := strings.Join(*events, "\n")
	for _, want := range []string{"NodeAllocatableEnforced: Updated limits on system reserved cgroup /system", "FailedNodeAllocatableEnforcement: Failed to enforce Kube Reserved"} {
		if !strings.Contains(said, want) {
			t.Errorf("no event %q: %s", want, said)
		}
	}
}

// holding returns the pods of a node.
func holding(pods ...*v1.Pod) func() []*v1.Pod { return func() []*v1.Pod { return pods } }

func TestMemoryIsReservedForClasses(t *testing.T) {
	size := func(memory, cpu string) v1.ResourceList {
		return v1.ResourceList{v1.ResourceMemory: resource.MustParse(memory), v1.ResourceCPU: resource.MustParse(cpu)}
	}
	burstable := &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{{Resources: v1.ResourceRequirements{Requests: size("64Mi", "500m")}}}}}
	guaranteed := &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{{Resources: v1.ResourceRequirements{Requests: size("16Mi", "1"), Limits: size("16Mi", "1")}}}}}
	for name, tc := range map[string]struct {
		qos        *criconfig.MemoryQoS
		all, class map[string]string
	}{
		"cgroup v1": {nil, nil, nil},
		"none": {
			&criconfig.MemoryQoS{Throttling: 0.9},
			map[string]string{"memory.min": "0", "memory.low": "0"}, nil, // what an earlier kubelet reserved
		},
		"tiered": {
			&criconfig.MemoryQoS{Tiered: true},
			map[string]string{"memory.min": "83886080", "memory.low": "67108864"}, map[string]string{"memory.low": "67108864"},
		},
	} {
		g, tree, _ := newGroups(config.Config{})
		g.cfg.MemoryQoS = tc.qos
		if err := g.Ensure(t.Context()); err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		applied := func() []*v1.Pod { stop(); return holding(burstable, guaranteed, &v1.Pod{})() }
		if err := g.Run(ctx, applied); err != nil {
			t.Fatal(err)
		}
		if got := tree["/w/kubepods"].Unified; !maps.Equal(got, tc.all) {
			t.Errorf("%s: all pods: %v, want %v", name, got, tc.all)
		}
		if got := tree["/w/kubepods/burstable"]; !maps.Equal(got.Unified, tc.class) || *got.CPU.Shares != 512 {
			t.Errorf("%s: burstable: %+v, want %v", name, got, tc.class)
		}
	}
}
