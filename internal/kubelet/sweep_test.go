package kubelet

import (
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	v1 "k8s.io/api/core/v1"
)

// What unknown pods had left used to stay until the kubelet was restarted.
func TestWhatNobodyKnowsIsClearedWhileTheKubeletRuns(t *testing.T) {
	run(t, func(w *world) {
		w.create(testPod("a"))
		w.until("it runs", func() bool { return condition(w.get("a"), v1.PodReady) == v1.ConditionTrue })
		groups := w.k.deps.Cgroups.(noCgroups)
		live := []string{w.k.dirs.Pod("uid-a"), filepath.Join(groups.dir, w.k.layout.Pod(w.get("a")))}
		stray := []string{
			filepath.Join(w.k.dirs.Pods(), "uid-stray", "volumes"), filepath.Join(groups.dir, w.k.layout.QOS(v1.PodQOSBurstable), "poduid-other"),
		}
		for _, dir := range stray {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		w.pass(10 * time.Minute)
		for _, dir := range stray {
			if _, err := os.Stat(dir); !os.IsNotExist(err) {
				t.Errorf("%s is left: %v", dir, err)
			}
		}
		for _, dir := range live {
			if _, err := os.Stat(dir); err != nil {
				t.Errorf("of a pod that runs: %v", err)
			}
		}
		if p := w.get("a"); condition(p, v1.PodReady) != v1.ConditionTrue || w.status("a", "c").RestartCount != 0 || len(w.k.table.List()) != 1 {
			t.Errorf("%+v", p.Status)
		}
	})
}

// The group of the burstable pods used to have the kernel's default of 1024 CPU shares, whatever
// its pods request.
func TestBurstableGroupHasTheSharesOfItsPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		l := &limits{of: map[string]*specs.LinuxResources{}}
		w.prepare = func(k *Kubelet) {
			l.noCgroups = noCgroups{filepath.Join(filepath.Dir(w.cfg.RootDir), "cgroup")}
			k.deps.Cgroups = l
		}
		want := func(when string, shares uint64) {
			t.Helper()
			w.pass(time.Second)
			l.mu.Lock()
			defer l.mu.Unlock()
			if got := l.of[w.k.layout.QOS(v1.PodQOSBurstable)]; got.CPU == nil || got.CPU.Shares == nil || *got.CPU.Shares != shares {
				t.Errorf("%s: %+v, not %d", when, got.CPU, shares)
			}
		}
		w.start()
		want("without pods", 2)
		w.sized("a", "500m")
		w.sized("b", "250m")
		best := plainPod("best", v1.RestartPolicyAlways, container("c"))
		w.create(best)
		want("of two", 768)
		w.resize("a", "100m")
		want("after a resize", 358)
		w.stop()
		w.start()
		want("after a restart of the kubelet", 358)
		w.remove("b", 1)
		want("when one has gone", 102)
		w.stop()
	})
}
