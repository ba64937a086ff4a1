package kubelet

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clienttesting "k8s.io/client-go/testing"
)

// commands makes every command in containers succeed except the one named bad, and returns a
// function that returns the commands run so far.
func (w *world) commands() (ran func() []string) {
	var mu sync.Mutex
	var all []string
	w.rt.Exec = func(_ string, cmd []string) ([]byte, int, error) {
		mu.Lock()
		defer mu.Unlock()
		all = append(all, cmd[0])
		if cmd[0] == "bad" {
			return nil, 1, nil
		}
		return nil, 0, nil
	}
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(all)
	}
}

func TestHooks(t *testing.T) {
	run(t, func(w *world) {
		ran := w.commands()
		hook := func(cmd string) *v1.LifecycleHandler {
			return &v1.LifecycleHandler{Exec: &v1.ExecAction{Command: []string{cmd}}}
		}
		good := container("c")
		good.Lifecycle = &v1.Lifecycle{PostStart: hook("post"), PreStop: &v1.LifecycleHandler{Sleep: &v1.SleepAction{Seconds: 5}}}
		bad := container("c")
		bad.Lifecycle = &v1.Lifecycle{PostStart: hook("bad")}
		w.create(plainPod("good", v1.RestartPolicyAlways, good))
		w.create(plainPod("bad", v1.RestartPolicyNever, bad))
		w.pass(time.Second)
		if !slices.Contains(ran(), "post") || condition(w.get("good"), v1.PodReady) != v1.ConditionTrue {
			t.Errorf("good: ran %v, %+v", ran(), w.get("good").Status)
		}
		w.wantEvent("FailedPostStartHook: PostStartHook failed")
		w.wantEvent("Killing: FailedPostStartHook")
		if p := w.get("bad"); p.Status.Phase != v1.PodFailed && p.Status.Phase != v1.PodSucceeded {
			w.dump()
			t.Errorf("bad: %s", p.Status.Phase)
		}
		before := len(ran())
		w.stop()
		w.start()
		w.pass(time.Minute)
		if len(ran()) != before {
			t.Errorf("hooks ran again after a restart of the kubelet: %v", ran())
		}
		w.remove("good", 30)
		w.pass(4 * time.Second)
		if w.gone("good") {
			t.Error("preStop did not hold the stop")
		}
		w.pass(3 * time.Second)
		if !w.gone("good") {
			w.dump()
			t.Error("not gone after preStop")
		}
	})
}

func TestProbes(t *testing.T) {
	run(t, func(w *world) {
		var mu sync.Mutex
		ok := map[string]bool{"startup": false, "live": true, "ready": false}
		set := func(name string, v bool) {
			mu.Lock()
			defer mu.Unlock()
			ok[name] = v
		}
		w.rt.Exec = func(_ string, cmd []string) ([]byte, int, error) {
			mu.Lock()
			defer mu.Unlock()
			if ok[cmd[0]] {
				return nil, 0, nil
			}
			return []byte("no\n"), 1, nil
		}
		probe := func(name string, failures int32) *v1.Probe {
			return &v1.Probe{
				ProbeHandler:  v1.ProbeHandler{Exec: &v1.ExecAction{Command: []string{name}}},
				PeriodSeconds: 1, FailureThreshold: failures, SuccessThreshold: 1, TimeoutSeconds: 1,
			}
		}
		c := container("c")
		c.StartupProbe, c.LivenessProbe, c.ReadinessProbe = probe("startup", 10), probe("live", 3), probe("ready", 1)
		w.create(plainPod("a", v1.RestartPolicyAlways, c))
		w.pass(3500 * time.Millisecond)
		if s := w.status("a", "c"); s.Started == nil || *s.Started || s.Ready || s.State.Running == nil {
			t.Errorf("before the startup probe: %+v", s)
		}
		set("startup", true)
		w.pass(1100 * time.Millisecond)
		if s := w.status("a", "c"); !*s.Started || s.Ready {
			t.Errorf("after the startup probe: %+v", s)
		}
		set("ready", true)
		w.pass(1100 * time.Millisecond)
		if condition(w.get("a"), v1.PodReady) != v1.ConditionTrue {
			w.dump()
			t.Error("not ready")
		}
		set("ready", false)
		w.pass(1100 * time.Millisecond)
		if condition(w.get("a"), v1.PodReady) != v1.ConditionFalse {
			t.Error("still ready")
		}
		set("ready", true)
		set("live", false)
		w.pass(4 * time.Second)
		if s := w.status("a", "c"); s.RestartCount != 1 {
			w.dump()
			t.Errorf("liveness did not restart: %+v", s)
		}
		w.wantEvent("Unhealthy: Liveness probe failed: no")
		w.wantEvent("Killing: Container c failed liveness probe, will be restarted")
		set("live", true)
		w.pass(30 * time.Second)
		if condition(w.get("a"), v1.PodReady) != v1.ConditionTrue {
			t.Error("not ready after the restart")
		}
	})
}

// A pod's start and its end are one write of its status each: states that last only milliseconds
// are not worth more.
func TestStatusIsWrittenOnceForEachStep(t *testing.T) {
	run(t, func(w *world) {
		w.rt.Delay = func(call string) time.Duration {
			switch call {
			case "RunPodSandbox", "CreateContainer", "StartContainer", "StopContainer", "StopPodSandbox", "RemovePodSandbox":
				return 5 * time.Millisecond
			}
			return 0
		}
		patches := func() []string {
			var out []string
			for _, a := range w.client.Actions() {
				if p, ok := a.(clienttesting.PatchAction); ok && a.GetResource().Resource == "pods" {
					out = append(out, string(p.GetPatch()))
				}
			}
			w.client.ClearActions()
			return out
		}
		w.create(testPod("a"))
		w.pass(time.Second)
		if p := patches(); len(p) != 1 {
			t.Errorf("%d writes for a start:\n%s", len(p), strings.Join(p, "\n"))
		}
		w.pass(time.Hour)
		if p := patches(); len(p) != 0 {
			t.Errorf("%d writes while nothing happens:\n%s", len(p), strings.Join(p, "\n"))
		}
		w.remove("a", 30)
		w.until("gone", func() bool { return w.gone("a") })
		if p := patches(); len(p) != 1 {
			t.Errorf("%d writes for an end:\n%s", len(p), strings.Join(p, "\n"))
		}
	})
}

// TestHookOfAnOrphan, whose object was removed while the kubelet was down: the hook is in the
// container's annotations, and nothing else is left of it.
func TestHookOfAnOrphan(t *testing.T) {
	run(t, func(w *world) {
		ran := w.commands()
		c := container("c")
		c.Lifecycle = &v1.Lifecycle{PreStop: &v1.LifecycleHandler{Exec: &v1.ExecAction{Command: []string{"bye"}}}}
		w.create(plainPod("a", v1.RestartPolicyAlways, c))
		w.create(plainPod("b", v1.RestartPolicyAlways, container("c")))
		w.until("ready", func() bool {
			return condition(w.get("a"), v1.PodReady) == v1.ConditionTrue && condition(w.get("b"), v1.PodReady) == v1.ConditionTrue
		})
		w.stop()
		for _, name := range []string{"a", "b"} {
			if err := w.client.CoreV1().Pods("default").Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		w.start()
		w.until("nothing is left", func() bool { return w.rt.Sandboxes()+w.rt.Containers() == 0 })
		if !slices.Equal(ran(), []string{"bye"}) {
			t.Errorf("ran %q", ran())
		}
	})
}
