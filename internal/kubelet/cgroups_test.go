package kubelet

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	v1 "k8s.io/api/core/v1"

	"wherry.dev/internal/cgroup"
	"wherry.dev/internal/kubelet/config"
)

// limits remembers the limits of cgroups.
type limits struct {
	noCgroups
	mu   sync.Mutex
	of   map[string]*specs.LinuxResources
	fail bool
}

func (l *limits) Ensure(p string, r *specs.LinuxResources) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fail && r.Memory != nil {
		return errors.New("device or resource busy")
	}
	l.of[p] = r
	return l.noCgroups.Ensure(p, r)
}

// limited starts a node and returns the limits of the group of all pods.
func limited(t *testing.T, fail bool, change func(*config.Config)) (all *specs.LinuxResources, memory int64, told string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		change(&w.cfg)
		l := &limits{of: map[string]*specs.LinuxResources{}, fail: fail}
		w.prepare = func(k *Kubelet) {
			l.noCgroups = k.deps.Cgroups.(noCgroups)
			k.deps.Cgroups = l
		}
		w.start()
		w.pass(time.Second)
		l.mu.Lock()
		all = l.of[w.k.layout.QOS(v1.PodQOSGuaranteed)]
		l.mu.Unlock()
		memory = w.k.node.Memory()
		w.mu.Lock()
		told = strings.Join(w.told, "\n")
		w.mu.Unlock()
		w.stop()
	})
	return all, memory, told
}

func TestAllPodsTogetherKeepToWhatIsAllocatable(t *testing.T) {
	reserve := func(c *config.Config) {
		c.SystemReserved = map[string]string{"memory": "1Gi", "cpu": "500m", "pid": "1000"}
		c.KubeReserved = map[string]string{"memory": "512Mi"}
	}
	got, memory, told := limited(t, false, reserve)
	if got.Memory == nil || *got.Memory.Limit != memory-(1536<<20) || got.CPU == nil || got.Pids == nil || *got.Pids.Limit <= 0 {
		t.Errorf("%+v of %d bytes", got, memory)
	}
	if !strings.Contains(told, "NodeAllocatableEnforced: Updated Node Allocatable limit across pods") {
		t.Error(told)
	}
	got, _, _ = limited(t, false, func(c *config.Config) { c.EnforceNodeAllocatable = []string{"none"} })
	if got.Memory != nil {
		t.Errorf("nobody asked for it: %+v", got)
	}
	_, _, told = limited(t, true, reserve)
	if !strings.Contains(told, "FailedNodeAllocatableEnforcement: Failed to update Node Allocatable Limits") || !strings.Contains(told, "busy") {
		t.Error(told)
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
	k := &Kubelet{deps: Deps{Cgroups: tree}}
	if err := k.limitExisting(group+"/system", map[string]string{"memory": "64Mi", "pid": "100", "cpu": "2"}, false); err != nil {
		t.Fatal(err)
	}
	d, err := cgroup.ReadDetails(group + "/system")
	if err != nil || d.MemoryLimit != 64<<20 || d.Max != 100 || d.Shares < 2000 {
		t.Errorf("memory %d, processes %d, shares %d, %v", d.MemoryLimit, d.Max, d.Shares, err)
	}
	if err := k.limitExisting(group+"/kube", map[string]string{"cpu": "100m"}, true); err == nil || !strings.Contains(err.Error(), "does not exist") {
		t.Errorf("a group that is not there: %v", err)
	}
	if cgroup.Exists(group + "/kube") {
		t.Error("it was made")
	}
}

func TestReservedCgroupsAreTold(t *testing.T) {
	run(t, func(w *world) {
		w.k.cfg.EnforceNodeAllocatable = []string{"system-reserved", "kube-reserved-compressible"}
		w.k.cfg.SystemReservedCgroup, w.k.cfg.SystemReserved = "/kubepods", map[string]string{"memory": "64Mi"}
		w.k.cfg.KubeReservedCgroup, w.k.cfg.KubeReserved = "/kube", map[string]string{"cpu": "100m"}
		err := w.k.limitReserved()
		if err == nil || !strings.HasPrefix(err.Error(), `Failed to enforce Kube Reserved Compressible Cgroup Limits on "/kube": `) {
			t.Errorf("%v", err)
		}
		w.pass(time.Second)
		w.mu.Lock()
		told := strings.Join(w.told, "\n")
		w.mu.Unlock()
		for _, want := range []string{"NodeAllocatableEnforced: Updated limits on system reserved cgroup /kubepods", "FailedNodeAllocatableEnforcement: Failed to enforce Kube Reserved"} {
			if !strings.Contains(told, want) {
				t.Errorf("no event %q: %s", want, told)
			}
		}
	})
}

func TestHealthDoesNotWaitForTheAPIServer(t *testing.T) {
	k := &Kubelet{}
	if err := k.Healthy(); err != nil {
		t.Errorf("before anything ran: %v", err)
	}
	k.looked.Store(time.Now().UnixNano())
	if err := k.Healthy(); err != nil {
		t.Error(err)
	}
	k.looked.Store(time.Now().Add(-2 * stuckAfter).UnixNano())
	if err := k.Healthy(); err == nil || err.Error() != "sync Loop took longer than expected" {
		t.Errorf("stuck: %v", err)
	}
}

func TestPodsWithoutCgroupsOfTheirOwn(t *testing.T) {
	runWith(t, func(c *config.Config) { c.CgroupsPerQOS, c.EnforceNodeAllocatable = new(false), []string{"none"} }, func(w *world) {
		w.create(testPod("a"))
		w.until("ready", func() bool { return condition(w.get("a"), v1.PodReady) == v1.ConditionTrue })
		w.remove("a", 0)
		w.until("gone", func() bool { return w.gone("a") && w.rt.Sandboxes() == 0 })
		if _, err := os.Stat(filepath.Join(filepath.Dir(w.cfg.RootDir), "cgroup")); !os.IsNotExist(err) {
			t.Errorf("cgroups were made: %v", err)
		}
	})
}
