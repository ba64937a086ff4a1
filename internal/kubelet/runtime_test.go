package kubelet

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
)

// TestRuntimeThatEndsItsEventsAtOnce: CRI-O does, unless it is told to have events. The kubelet used
// to ask again, and to log an error, every five seconds. Once events are switched on, it uses them.
func TestRuntimeThatEndsItsEventsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var asked atomic.Int32
		var events, used atomic.Bool
		w.rt.EndEvents = func() bool { asked.Add(1); used.Store(events.Load()); return !events.Load() }
		w.start()
		w.create(plainPod("a", v1.RestartPolicyNever, container("c")))
		w.until("Running", func() bool { return condition(w.get("a"), v1.PodReady) == v1.ConditionTrue })
		began := time.Now()
		w.rt.Kill(strings.TrimPrefix(w.status("a", "c").ContainerID, "fake://"), 1)
		w.until("Failed", func() bool { return w.get("a").Status.Phase == v1.PodFailed })
		if took := time.Since(began); took > 3*time.Second {
			t.Errorf("the container's end was noticed after %v", took)
		}
		w.pass(20 * time.Minute)
		if n := asked.Load(); n < 2 || n > 6 {
			t.Errorf("the runtime was asked for events %d times in twenty minutes", n)
		}
		events.Store(true)
		w.until("events are used", used.Load)
		w.stop()
	})
}

// TestSandboxesThatAreSeenBeforeTheyAreMade: Docker's. The relist finds them.
func TestSandboxesThatAreSeenBeforeTheyAreMade(t *testing.T) {
	run(t, func(w *world) {
		w.rt.Plug = 3 * time.Second
		for _, host := range []bool{false, true} {
			p := plainPod(fmt.Sprint("host-", host), v1.RestartPolicyNever, container("c"))
			p.Spec.HostNetwork = host
			w.create(p)
			for range 10 {
				w.k.pleg.RelistNow()
				w.pass(500 * time.Millisecond)
			}
			w.until("Running", func() bool { return condition(w.get(p.Name), v1.PodReady) == v1.ConditionTrue })
			if ids := w.rt.SandboxIDs(string(p.UID)); len(ids) != 1 {
				t.Errorf("%s has %d sandboxes", p.Name, len(ids))
			}
		}
		if n := w.rt.Calls("RunPodSandbox"); n != 2 {
			t.Errorf("two pods took %d calls", n)
		}
	})
}
