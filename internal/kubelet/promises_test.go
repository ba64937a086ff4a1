package kubelet

import (
	"slices"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	"wherry.dev/internal/kubelet/config"
	"wherry.dev/test/fakecri"
)

// update changes a pod's object as its owner does.
func (w *world) update(name string, change func(*v1.Pod)) {
	w.t.Helper()
	p := w.get(name)
	change(p)
	p.Generation++
	if _, err := w.client.CoreV1().Pods("default").Update(w.t.Context(), p, metav1.UpdateOptions{}); err != nil {
		w.t.Fatal(err)
	}
}

// TestDeadlineThatChanges while the pod runs: the newest value counts, from the start of the pod.
func TestDeadlineThatChanges(t *testing.T) {
	run(t, func(w *world) {
		deadline := func(s int64) func(*v1.Pod) { return func(p *v1.Pod) { p.Spec.ActiveDeadlineSeconds = &s } }
		for _, name := range []string{"set", "shortened", "past"} {
			w.create(plainPod(name, v1.RestartPolicyAlways, container("c")))
		}
		w.pass(10 * time.Second)
		w.update("set", deadline(60))
		w.update("shortened", deadline(1000))
		w.pass(time.Second)
		w.update("shortened", deadline(30))
		w.update("past", deadline(5))
		w.pass(5 * time.Second)
		for name, want := range map[string]v1.PodPhase{"set": v1.PodRunning, "shortened": v1.PodRunning, "past": v1.PodFailed} {
			if got := w.get(name).Status.Phase; got != want {
				t.Errorf("after 16 s %s is %s", name, got)
			}
		}
		w.pass(16 * time.Second)
		if st := w.get("shortened").Status; st.Reason != "DeadlineExceeded" {
			t.Errorf("shortened: %s %s", st.Phase, st.Reason)
		}
		w.pass(30 * time.Second)
		if st := w.get("set").Status; st.Reason != "DeadlineExceeded" {
			t.Errorf("set: %s %s", st.Phase, st.Reason)
		}
	})
}

// TestProbeHasItsOwnGracePeriod: the pod's grace period is for its deletion.
func TestProbeHasItsOwnGracePeriod(t *testing.T) {
	run(t, func(w *world) {
		w.behave(map[string]fakecri.Behaviour{"own": {IgnoreTerm: true}, "pods": {IgnoreTerm: true}})
		w.rt.Exec = func(string, []string) ([]byte, int, error) { return nil, 1, nil }
		own, pods := container("own"), container("pods")
		own.LivenessProbe = &v1.Probe{
			ProbeHandler: v1.ProbeHandler{Exec: &v1.ExecAction{Command: []string{"x"}}}, PeriodSeconds: 1, FailureThreshold: 1, TimeoutSeconds: 1,
		}
		pods.LivenessProbe = own.LivenessProbe.DeepCopy()
		own.LivenessProbe.TerminationGracePeriodSeconds = ptr.To[int64](3)
		w.create(plainPod("a", v1.RestartPolicyAlways, own, pods))
		w.pass(6 * time.Second)
		if a, b := w.status("a", "own").RestartCount, w.status("a", "pods").RestartCount; a != 1 || b != 0 {
			w.dump()
			t.Errorf("restarts after 6 s: %d with a grace period of 3 s, %d with 30 s", a, b)
		}
		w.pass(28 * time.Second)
		if b := w.status("a", "pods").RestartCount; b != 1 {
			t.Errorf("restarts after 34 s: %d", b)
		}
	})
}

// TestCapOfTheCrashBackoff checks the configured cap.
func TestCapOfTheCrashBackoff(t *testing.T) {
	for limit, want := range map[time.Duration]int32{4 * time.Second: 12, 15 * time.Second: 5} {
		t.Run(limit.String(), func(t *testing.T) {
			runWith(t, func(c *config.Config) {
				c.CrashLoopBackOff.MaxContainerRestartPeriod = &metav1.Duration{Duration: limit}
			}, func(w *world) {
				w.behave(map[string]fakecri.Behaviour{"c": {RunFor: time.Second, ExitCode: 1}})
				w.create(plainPod("a", v1.RestartPolicyAlways, container("c")))
				w.pass(time.Minute)
				if got := w.status("a", "c").RestartCount; got != want {
					t.Errorf("%d restarts in a minute, want %d", got, want)
				}
			})
		})
	}
}

// TestReadinessGate: the pod is ready once somebody else says so, and no longer ready once they
// take it back.
func TestReadinessGate(t *testing.T) {
	run(t, func(w *world) {
		p := plainPod("a", v1.RestartPolicyAlways, container("c"))
		p.Spec.ReadinessGates = []v1.PodReadinessGate{{ConditionType: "example.com/lb"}}
		w.create(p)
		w.pass(time.Second)
		if condition(w.get("a"), v1.ContainersReady) != v1.ConditionTrue || condition(w.get("a"), v1.PodReady) != v1.ConditionFalse {
			t.Errorf("conditions %+v", w.get("a").Status.Conditions)
		}
		for _, now := range []v1.ConditionStatus{v1.ConditionTrue, v1.ConditionFalse} {
			w.update("a", func(p *v1.Pod) {
				p.Status.Conditions = append([]v1.PodCondition{{Type: "example.com/lb", Status: now}}, p.Status.Conditions...)
				if now == v1.ConditionFalse {
					p.Status.Conditions = append(p.Status.Conditions[:1], p.Status.Conditions[2:]...)
				}
			})
			w.pass(time.Second)
			if got := condition(w.get("a"), v1.PodReady); got != now {
				t.Errorf("the gate is %s, the pod %s: %+v", now, got, w.get("a").Status.Conditions)
			}
		}
	})
}

// TestEphemeralContainer joins a running pod, and does not count towards its state.
func TestEphemeralContainer(t *testing.T) {
	run(t, func(w *world) {
		w.behave(map[string]fakecri.Behaviour{"debug": {RunFor: 5 * time.Second, ExitCode: 1}, "c": {RunFor: time.Minute}})
		w.create(plainPod("a", v1.RestartPolicyOnFailure, container("c")))
		w.pass(time.Second)
		w.update("a", func(p *v1.Pod) {
			p.Spec.EphemeralContainers = []v1.EphemeralContainer{{EphemeralContainerCommon: v1.EphemeralContainerCommon(container("debug")), TargetContainerName: "c"}}
		})
		w.pass(time.Second)
		if s := w.status("a", "debug"); s.State.Running == nil || s.Started != nil || s.Ready {
			w.dump()
			t.Errorf("debug: %+v", s)
		}
		w.pass(30 * time.Second)
		if s := w.status("a", "debug"); s.State.Terminated == nil || s.State.Terminated.ExitCode != 1 || s.RestartCount != 0 {
			t.Errorf("debug: %+v", s)
		}
		if p := w.get("a"); p.Status.Phase != v1.PodRunning || condition(p, v1.PodReady) != v1.ConditionTrue {
			t.Errorf("phase %s, conditions %+v", p.Status.Phase, p.Status.Conditions)
		}
		w.until("Succeeded", func() bool { return w.get("a").Status.Phase == v1.PodSucceeded })
	})
}

// TestSidecarStopsAfterTheOthers: its preStop hook runs in parallel with theirs. It is restarted
// while the pod lives, whatever the pod's restart policy.
func TestSidecarStopsAfterTheOthers(t *testing.T) {
	run(t, func(w *world) {
		var mu sync.Mutex
		var order []string
		note := func(what string) {
			mu.Lock()
			defer mu.Unlock()
			order = append(order, what)
		}
		w.rt.Exec = func(id string, cmd []string) ([]byte, int, error) {
			note("hook of " + w.rt.Config(id).Metadata.Name)
			time.Sleep(time.Second)
			return nil, 0, nil
		}
		w.rt.Fail = func(call, what string) error {
			if call == "StopContainer" {
				note("stop " + w.rt.Config(what).Metadata.Name)
			}
			return nil
		}
		w.rt.Behave = func(cfg *runtimeapi.ContainerConfig) fakecri.Behaviour {
			if cfg.Metadata.Name == "side" && cfg.Metadata.Attempt == 0 {
				return fakecri.Behaviour{RunFor: time.Second, ExitCode: 1}
			}
			return fakecri.Behaviour{}
		}
		side, app := container("side"), container("app")
		side.RestartPolicy = ptr.To(v1.ContainerRestartPolicyAlways)
		hook := &v1.Lifecycle{PreStop: &v1.LifecycleHandler{Exec: &v1.ExecAction{Command: []string{"bye"}}}}
		side.Lifecycle, app.Lifecycle = hook, hook
		p := plainPod("a", v1.RestartPolicyNever, app)
		p.Spec.InitContainers = []v1.Container{side}
		w.create(p)
		w.pass(15 * time.Second)
		if s := w.status("a", "side"); s.RestartCount != 1 || s.State.Running == nil || w.get("a").Status.Phase != v1.PodRunning {
			w.dump()
			t.Fatalf("side: %+v", s)
		}
		w.remove("a", 30)
		w.until("gone", func() bool { return w.gone("a") })
		want := []string{"hook of app", "hook of side", "stop app", "stop side"}
		slices.Sort(order[:min(2, len(order))])
		if !slices.Equal(order, want) {
			t.Errorf("order %q", order)
		}
	})
}

// TestContainerThatVanishes while the kubelet is down: it has ended in an unknown way.
func TestContainerThatVanishes(t *testing.T) {
	for policy, want := range map[v1.RestartPolicy]v1.PodPhase{v1.RestartPolicyAlways: v1.PodRunning, v1.RestartPolicyNever: v1.PodFailed} {
		t.Run(string(policy), func(t *testing.T) {
			run(t, func(w *world) {
				w.create(plainPod("a", policy, container("c")))
				w.until("Running", func() bool { return w.get("a").Status.Phase == v1.PodRunning })
				w.stop()
				for _, id := range w.rt.Live("uid-a", "c") {
					if err := w.rt.RemoveContainer(t.Context(), id); err != nil {
						t.Fatal(err)
					}
				}
				w.start()
				w.pass(20 * time.Second)
				p, c := w.get("a"), w.status("a", "c")
				end := c.LastTerminationState.Terminated
				message := "The container could not be located when the pod was deleted.  The container used to be Running"
				if policy == v1.RestartPolicyNever {
					end, message = c.State.Terminated, "The container could not be located when the pod was terminated"
				}
				if p.Status.Phase != want || end == nil || end.Reason != "ContainerStatusUnknown" || end.ExitCode != 137 || end.Message != message {
					w.dump()
					t.Errorf("phase %s, %+v", p.Status.Phase, c)
				}
				if policy == v1.RestartPolicyAlways && c.RestartCount != 1 {
					t.Errorf("%d restarts", c.RestartCount)
				}
			})
		})
	}
}
