package podplan

import (
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"wherry.dev/internal/api/pods"
)

// hooked gives the containers and sidecars of a pod a preStop hook.
func hooked(in *Input) {
	hook := &v1.Lifecycle{PreStop: &v1.LifecycleHandler{Exec: &v1.ExecAction{Command: []string{"bye"}}}}
	for c := range pods.Containers(&in.Pod.Spec) {
		c.Lifecycle = hook
	}
}

func withSidecar(in *Input) {
	in.Pod.Spec.InitContainers = []v1.Container{{Name: "s", Image: "i", RestartPolicy: ptr.To(v1.ContainerRestartPolicyAlways)}}
}

// follow puts the ops of a plan in flight from then on.
func (in *Input) follow(p Plan, now time.Time) {
	in.Record = p.Record
	flights := map[Key]Flight{}
	for _, op := range p.Ops {
		if f, ok := in.InFlight[op.Key()]; ok && f.Op == op {
			flights[op.Key()] = f
		} else {
			flights[op.Key()] = Flight{Op: op, Since: now}
		}
	}
	in.InFlight = flights
}

func (in *Input) hookReturns(id string) {
	if in.PreStops == nil {
		in.PreStops = map[string]Op{}
	}
	in.PreStops[id] = in.InFlight[PreStopKey(id)].Op
	delete(in.InFlight, PreStopKey(id))
}

func wantOps(t *testing.T, when string, p Plan, want ...Key) {
	t.Helper()
	var got []Key
	for _, op := range p.Ops {
		got = append(got, op.Key())
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("%s: %v, want %v", when, got, want)
	}
}

// A sidecar's hook used to run when it was the sidecar's turn to stop; upstream runs all hooks at
// once.
func TestHooksOfSidecarsRunWithTheOthers(t *testing.T) {
	in := lifeOf(v1.RestartPolicyAlways, withSidecar, hooked, deletedNow,
		has(Container{ID: "1", Name: "c", State: Running}), has(Container{ID: "2", Name: "s", State: Running}))
	plan := Next(in, noon)
	wantOps(t, "at first", plan, PreStopKey("1"), PreStopKey("2"))
	in.follow(plan, noon)
	in.hookReturns("2")
	plan = Next(in, noon.Add(time.Second))
	wantOps(t, "the sidecar waits for its turn", plan, PreStopKey("1"))
	in.hookReturns("1")
	plan = Next(in, noon.Add(2*time.Second))
	wantOps(t, "the hook is over", plan, StopKey("1"))
	in.Containers[0].State = Exited
	plan = Next(in, noon.Add(3*time.Second))
	wantOps(t, "the other has ended", plan, StopKey("2"))
	if d := plan.Ops[0].Deadline; !d.Equal(noon.Add(30 * time.Second)) {
		t.Errorf("the sidecar has until %v", d)
	}
}

// A hook that takes longer than the grace period continues until the container is killed, two
// seconds later, and the stop is requested once.
func TestHookThatOutlivesTheGracePeriod(t *testing.T) {
	in := lifeOf(v1.RestartPolicyAlways, hooked, deletedNow, has(Container{ID: "1", Name: "c", State: Running}))
	*in.Pod.DeletionGracePeriodSeconds = 1
	plan := Next(in, noon)
	if !plan.RecheckAt.Equal(noon.Add(time.Second)) {
		t.Errorf("looks again at %v", plan.RecheckAt)
	}
	in.follow(plan, noon)
	for i := range 10 {
		now := noon.Add(time.Second + time.Duration(i)*100*time.Millisecond)
		plan = Next(in, now)
		wantOps(t, "time is up", plan, PreStopKey("1"), StopKey("1"))
		in.follow(plan, now)
		if d := in.InFlight[StopKey("1")].Op.Deadline; !d.Equal(noon.Add(3 * time.Second)) {
			t.Fatalf("killed at %v", d)
		}
	}
}

// A second delete with a shorter grace period used to cut off a hook that still had time.
func TestShorterGraceLeavesAHookItsTime(t *testing.T) {
	in := lifeOf(v1.RestartPolicyAlways, hooked, deletedNow, has(Container{ID: "1", Name: "c", State: Running}))
	in.follow(Next(in, noon), noon)
	*in.Pod.DeletionGracePeriodSeconds = 10
	plan := Next(in, noon.Add(5*time.Second))
	wantOps(t, "a shorter grace period", plan, PreStopKey("1"))
	if !plan.RecheckAt.Equal(noon.Add(10*time.Second)) || plan.Ops[0] != in.InFlight[PreStopKey("1")].Op {
		t.Errorf("looks again at %v, for %v", plan.RecheckAt, plan.Ops)
	}
	*in.Pod.DeletionGracePeriodSeconds = 0
	plan = Next(in, noon.Add(6*time.Second))
	wantOps(t, "no grace", plan, PreStopKey("1"), StopKey("1"))
}

// The API server removes a pod that had ended before it was deleted by itself, a moment later. A status and a deletion
// that the kubelet sent meanwhile found nothing.
func TestWhatTheAPIServerRemovesIsNotDeletedAgain(t *testing.T) {
	in := lifeOf(v1.RestartPolicyNever, deletedNow)
	*in.Pod.DeletionGracePeriodSeconds, in.Sandboxes = 0, nil
	plan := Next(in, noon.Add(time.Second))
	wantOps(t, "it is about to go", plan)
	if !plan.RecheckAt.Equal(noon.Add(2 * time.Second)) {
		t.Errorf("looks again at %v", plan.RecheckAt)
	}
	wantOps(t, "the API server died in between", Next(in, noon.Add(2*time.Second)), "forget")
	wantOps(t, "the server's clock is ahead", Next(in, noon.Add(-time.Minute)), "forget")
	in.Pod.Finalizers = []string{"example.com/held"}
	wantOps(t, "a finalizer holds it", Next(in, noon.Add(time.Second)), "forget")
	in.Pod.Finalizers, in.Absent = nil, true
	wantOps(t, "it has gone", Next(in, noon.Add(time.Second)), "forget")
}

// The hook of a container whose probe failed has the probe's grace period, even though the probe's
// result is forgotten meanwhile.
func TestHookAfterAFailedProbe(t *testing.T) {
	in := lifeOf(v1.RestartPolicyAlways, hooked, has(Container{ID: "1", Name: "c", State: Running}))
	in.Probes = map[string]Probe{"1": {Failed: "no", FailedKind: "liveness", Grace: ptr.To[int64](7)}}
	in.follow(Next(in, noon), noon)
	in.Probes = nil
	plan := Next(in, noon.Add(time.Second))
	wantOps(t, "while it runs", plan, PreStopKey("1"))
	in.hookReturns("1")
	plan = Next(in, noon.Add(2*time.Second))
	wantOps(t, "when it is over", plan, StopKey("1"))
	op := plan.Ops[0]
	if !op.Deadline.Equal(noon.Add(7*time.Second)) || op.Reason != "liveness" || op.Message != "Container c failed liveness probe, will be restarted" {
		t.Errorf("%+v", op)
	}
}

// A container that a failed probe ended is restarted as its event says, and upstream's: one that ends with 0 on SIGTERM
// used to count as done where the policy is OnFailure, and a job as having succeeded.
func TestAContainerThatAProbeEndedIsRestartedWhateverItsExitCode(t *testing.T) {
	for policy, again := range map[v1.RestartPolicy]bool{v1.RestartPolicyAlways: true, v1.RestartPolicyOnFailure: true, v1.RestartPolicyNever: false} {
		in := lifeOf(policy, has(Container{ID: "1", Name: "c", State: Running, Started: noon.Add(-time.Hour)}))
		in.Probes = map[string]Probe{"1": {Failed: "no", FailedKind: "liveness"}}
		in.follow(Next(in, noon), noon)
		in.Probes, in.InFlight = nil, nil
		in.Containers[0].State, in.Containers[0].Finished, in.Containers[0].Reason = Exited, noon.Add(time.Second), "Completed"
		plan := Next(in, noon.Add(time.Hour))
		creates := slices.ContainsFunc(plan.Ops, func(o Op) bool { return o.Kind == CreateContainer || o.Kind == PullImage })
		if creates != again {
			t.Errorf("%s: %v", policy, plan.Ops)
		}
		if (plan.Record.Ending == nil) != again {
			t.Errorf("%s: the pod ends: %+v", policy, plan.Record.Ending)
		}
		if got := Status(in, noon.Add(time.Hour)); got.Phase != v1.PodRunning {
			t.Errorf("%s: the pod is %s", policy, got.Phase)
		}
	}
}

// Readiness goes on while a container is stopped whose liveness probe has failed, as upstream's.
func TestReadinessGoesOnAfterAFailedProbe(t *testing.T) {
	in := lifeOf(v1.RestartPolicyAlways, hooked, has(Container{ID: "1", Name: "c", State: Running}))
	in.Probes = map[string]Probe{"1": {Failed: "no", FailedKind: "liveness"}}
	for _, at := range []time.Time{noon, noon.Add(time.Second)} {
		plan := Next(in, at)
		if len(plan.Probes) != 1 || plan.Probes[0].ID != "1" || !plan.Probes[0].Ending {
			t.Errorf("after %v: %+v", at.Sub(noon), plan.Probes)
		}
		in.follow(plan, at)
	}
}
