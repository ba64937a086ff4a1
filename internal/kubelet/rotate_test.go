package kubelet

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"wherry.dev/internal/kubelet/podconfig"
)

// TestOneHungRotationHoldsUpAsManyAsThereAreWorkers lets the runtime never answer for the
// first container that is to write to a new log.
func TestOneHungRotationHoldsUpAsManyAsThereAreWorkers(t *testing.T) {
	for workers, want := range map[int32]int{1: 1, 2: 3} {
		t.Run(fmt.Sprint(workers), func(t *testing.T) {
			hangs, asked := make(chan struct{}), map[string]int{}
			var mu sync.Mutex
			runWith(t, func(c *Config) { c.ContainerLogMaxSize, c.ContainerLogMaxWorkers = "10", &workers }, func(w *world) {
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
					file := filepath.Join(podconfig.LogDir(w.cfg.PodLogsDir, pod), podconfig.LogPath("c", 0))
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
