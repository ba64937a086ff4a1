package kubelet

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	v1 "k8s.io/api/core/v1"

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
