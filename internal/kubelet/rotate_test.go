package kubelet

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"wherry.dev/internal/kubelet/config"
	"wherry.dev/internal/kubelet/criconfig"
)

// TestOneHungRotationHoldsUpAsManyAsThereAreWorkers makes the runtime never answer for the first
// container that has to write to a new log.
func TestOneHungRotationHoldsUpAsManyAsThereAreWorkers(t *testing.T) {
	for workers, want := range map[int32]int{1: 1, 2: 3} {
		t.Run(fmt.Sprint(workers), func(t *testing.T) {
			hangs, asked := make(chan struct{}), map[string]int{}
			var mu sync.Mutex
			runWith(t, func(c *config.Config) { c.ContainerLogMaxSize, c.ContainerLogMaxWorkers = "10", &workers }, func(w *world) {
				hangs = make(chan struct{})
				w.rt.Fail = func(call, id string) error {
					if call == "ReopenContainerLog" {
						mu.Lock()
						asked[id]++
						first := len(asked) == 1
						mu.Unlock()
						if first {
							<-hangs
						}
					}
					return nil
				}
				for i := range 3 {
					pod := w.create(testPod(fmt.Sprint("p", i)))
					w.until("it runs", func() bool { return condition(w.get(pod.Name), v1.PodReady) == v1.ConditionTrue })
					file := filepath.Join(criconfig.LogDir(w.cfg.PodLogsDir, pod), criconfig.LogPath("c", 0))
					if err := os.WriteFile(file, []byte("more than ten bytes"), 0o600); err != nil {
						t.Fatal(err)
					}
				}
				w.pass(time.Minute)
				mu.Lock()
				got := maps.Clone(asked)
				mu.Unlock()
				close(hangs)
				if len(got) != want {
					t.Errorf("%d workers rotated %v", workers, got)
				}
			})
		})
	}
}

// TestTheLogOfAnEndedContainerIsPutInOrder: what a rotation left of a log when the container ended
// is handled once, by the kubelet that runs then.
func TestTheLogOfAnEndedContainerIsPutInOrder(t *testing.T) {
	run(t, func(w *world) {
		pod := testPod("p")
		pod.Spec.RestartPolicy = v1.RestartPolicyNever
		pod = w.create(pod)
		w.until("it runs", func() bool { return condition(w.get(pod.Name), v1.PodReady) == v1.ConditionTrue })
		w.pass(time.Minute)
		file := filepath.Join(criconfig.LogDir(w.cfg.PodLogsDir, pod), criconfig.LogPath("c", 0))
		w.stop()
		w.rt.Kill(w.rt.Live(string(pod.UID), "c")[0], 0)
		if err := os.WriteFile(file+".20260101-000000", []byte("last"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(file); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		w.start()
		w.pass(time.Minute)
		if text, err := os.ReadFile(file); err != nil || string(text) != "last" {
			t.Errorf("the log is %q, %v", text, err)
		}
	})
}

// TestLogsAreLimitedSoonAfterAStart: a kubelet that is killed again and again still rotates,
// because it does not wait for its look at all logs, every ten seconds.
func TestLogsAreLimitedSoonAfterAStart(t *testing.T) {
	runWith(t, func(c *config.Config) { c.ContainerLogMaxSize = "10" }, func(w *world) {
		pod := w.create(testPod("p"))
		w.until("it runs", func() bool { return condition(w.get(pod.Name), v1.PodReady) == v1.ConditionTrue })
		w.stop()
		var asked atomic.Int32
		w.rt.Fail = func(call, _ string) error {
			if call == "ReopenContainerLog" {
				asked.Add(1)
			}
			return nil
		}
		file := filepath.Join(criconfig.LogDir(w.cfg.PodLogsDir, pod), criconfig.LogPath("c", 0))
		if err := os.WriteFile(file, []byte("more than ten bytes"), 0o600); err != nil {
			t.Fatal(err)
		}
		w.start()
		w.pass(time.Second)
		if asked.Load() == 0 {
			t.Error("the log is not rotated in the second after the start")
		}
	})
}
