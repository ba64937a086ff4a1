package podplan

import (
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"wherry.dev/internal/api/pods"
)

// Each test here is a pod's life that went wrong in the simulator, cut down to the failing step.

var noon = time.Unix(100_000, 0).UTC()

func lifeOf(policy v1.RestartPolicy, change ...func(*Input)) Input {
	in := Input{
		Pod: &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "u"}, Spec: v1.PodSpec{
			RestartPolicy: policy, Containers: []v1.Container{{Name: "c", Image: "i"}},
		}},
		Record:    Record{Verdict: &Verdict{Admitted: true}, StartTime: noon.Add(-time.Hour)},
		Sandboxes: []Sandbox{{ID: "s", Ready: true, IPs: []string{"10.0.0.1"}, Created: noon.Add(-time.Hour)}},
		Images:    map[string]Image{}, Failures: map[Key]Failure{}, InFlight: map[Key]Flight{}, Volumes: map[string]Volume{},
	}
	for _, f := range change {
		f(&in)
	}
	return in
}

func has(c Container) func(*Input) {
	c.SandboxID, c.Created = "s", noon.Add(-time.Minute)
	if c.State != Created {
		c.Started = noon.Add(-time.Minute)
	}
	return func(in *Input) { in.Containers = append(in.Containers, c) }
}

func deletedNow(in *Input) {
	in.Pod.DeletionTimestamp, in.Pod.DeletionGracePeriodSeconds = &metav1.Time{Time: noon}, ptr.To[int64](30)
}

func kinds(p Plan) []Kind {
	var out []Kind
	for _, op := range p.Ops {
		out = append(out, op.Kind)
	}
	return out
}

// containerd's StopContainer leaves a container that was never started as it is: it used to be
// stopped again and again, for ever.
func TestContainerThatNeverRanIsRemovedNotStopped(t *testing.T) {
	made := has(Container{ID: "1", Name: "c", State: Created})
	for name, in := range map[string]Input{
		"pod ends":     lifeOf(v1.RestartPolicyAlways, made, deletedNow),
		"sandbox died": lifeOf(v1.RestartPolicyAlways, made, func(in *Input) { in.Sandboxes[0].Ready = false }),
	} {
		if got := kinds(Next(in, noon)); !slices.Equal(got, []Kind{RemoveContainer}) {
			t.Errorf("%s: %v", name, got)
		}
	}
	starting := lifeOf(v1.RestartPolicyAlways, made, deletedNow, func(in *Input) {
		in.InFlight[ContainerKey("c")] = Flight{Op: Op{Kind: StartContainer, Name: "c", ID: "1"}, Canceled: true}
	})
	if got := kinds(Next(starting, noon)); len(got) != 0 {
		t.Errorf("while it may still be started: %v", got)
	}
}

// A failed start used to be retried every second for ever, under the same attempt number.
func TestFailedStartBacksOffAsACrashUnderANewNumber(t *testing.T) {
	in := lifeOf(v1.RestartPolicyAlways, has(Container{ID: "1", Name: "c", State: Created, Attempt: 2}), func(in *Input) {
		in.Failures[ContainerKey("c")] = Failure{Count: 1, At: noon.Add(-time.Minute), Reason: ReasonRunContainerError, Message: "no such file", Attempt: 2}
		in.Record.Containers = map[string]History{"c": {Attempt: 2, Wait: 20 * time.Second}}
	})
	plan := Next(in, noon)
	if got := kinds(plan); !slices.Equal(got, []Kind{RemoveContainer}) {
		t.Fatalf("%v", got)
	}
	in.Record, in.Containers, in.Failures = plan.Record, nil, nil
	if got := Next(in, noon.Add(time.Second)); len(got.Ops) != 0 || !got.RecheckAt.Equal(noon.Add(20*time.Second)) {
		t.Errorf("ops %v, again at %v", got.Ops, got.RecheckAt)
	}
	st := Status(in, noon.Add(time.Second)).ContainerStatuses[0]
	if st.State.Waiting == nil || st.State.Waiting.Reason != ReasonCrashLoopBackOff || st.LastTerminationState.Terminated.Message != "no such file" {
		t.Errorf("%+v", st)
	}
	in.Images["c"] = Image{Attempt: 3, Name: "i"}
	if got := Next(in, noon.Add(time.Minute)); len(got.Ops) != 1 || got.Ops[0].Attempt != 3 {
		t.Errorf("%+v", got.Ops)
	}
}

// CrashLoopBackOff used to be shown, and reported by an event, while the first restart was under
// way.
func TestRestartThatIsUnderWayIsNotBackedOff(t *testing.T) {
	in := lifeOf(v1.RestartPolicyAlways, has(Container{ID: "1", Name: "c", State: Exited, ExitCode: 1, Finished: noon}), func(in *Input) {
		in.Images["c"] = Image{Attempt: 1, Name: "i"}
	})
	plan := Next(in, noon)
	in.Record = plan.Record
	if st := Status(in, noon).ContainerStatuses[0]; st.State.Terminated == nil {
		t.Errorf("%+v", st.State)
	}
	if again := Next(in, noon); !slices.Equal(kinds(again), []Kind{CreateContainer}) {
		t.Errorf("%v", kinds(again))
	}
}

// The restart counts of a deleted pod used to fall when the kubelet was restarted between the
// removal of its sandbox and the write of its last status.
func TestFinalStatesOutliveTheSandbox(t *testing.T) {
	in := lifeOf(v1.RestartPolicyAlways, deletedNow,
		has(Container{ID: "2", Name: "c", State: Exited, ExitCode: 3, Attempt: 2, Finished: noon}),
		has(Container{ID: "1", Name: "c", State: Exited, ExitCode: 1, Attempt: 1, Finished: noon}))
	plan := Next(in, noon)
	in.Record, in.Containers, in.Sandboxes = plan.Record, nil, nil
	st := Status(in, noon).ContainerStatuses[0]
	if st.RestartCount != 2 || st.State.Terminated == nil || st.State.Terminated.ExitCode != 3 {
		t.Errorf("%+v", st)
	}
}

// A static pod that had failed used to go back to Pending when its container was removed by hand
// and the kubelet restarted.
func TestPhaseOfAPodThatCompletedOutlivesItsContainers(t *testing.T) {
	for code, want := range map[int32]v1.PodPhase{0: v1.PodSucceeded, 1: v1.PodFailed} {
		in := lifeOf(v1.RestartPolicyNever, has(Container{ID: "1", Name: "c", State: Exited, ExitCode: code, Finished: noon}))
		in.Record = Next(in, noon).Record
		in.Containers, in.Sandboxes = nil, nil
		if got := Status(in, noon).Phase; got != want {
			t.Errorf("exit code %d: %s", code, got)
		}
	}
}

// The logs and links of removed containers used to stay: their removal was canceled as soon as the
// runtime showed that they were gone.
func TestRemovalGoesToItsEnd(t *testing.T) {
	op := Op{Kind: RemoveContainer, Name: "c", ID: "1"}
	in := lifeOf(v1.RestartPolicyAlways, has(Container{ID: "2", Name: "c", State: Running, Attempt: 1}), func(in *Input) {
		in.InFlight[op.Key()] = Flight{Op: op}
	})
	if got := Next(in, noon); !slices.Contains(got.Ops, op) {
		t.Errorf("%+v", got.Ops)
	}
}

// The removal of an instance used to take the log of its successor with the same number.
func TestNextInstanceWaitsForTheRemovalOfItsNumber(t *testing.T) {
	op := Op{Kind: RemoveContainer, Name: "c", ID: "1"}
	in := lifeOf(v1.RestartPolicyAlways, func(in *Input) {
		in.Images["c"], in.InFlight[op.Key()] = Image{Name: "i"}, Flight{Op: op}
	})
	if got := kinds(Next(in, noon)); slices.Contains(got, CreateContainer) {
		t.Errorf("%v", got)
	}
	delete(in.InFlight, op.Key())
	if got := kinds(Next(in, noon)); !slices.Contains(got, CreateContainer) {
		t.Errorf("%v", got)
	}
}

// A container that exits with 0 and restarts all containers used not to be backed off.
func TestRestartOfAllContainersIsBackedOffAfterAGoodExit(t *testing.T) {
	last := Container{ID: "1", Name: "c", State: Exited, Finished: noon, Attempt: 4}
	in := lifeOf(v1.RestartPolicyAlways, func(in *Input) {
		in.Pod.Spec.Containers[0].RestartPolicyRules = []v1.ContainerRestartRule{{
			Action:    v1.ContainerRestartRuleActionRestartAllContainers,
			ExitCodes: &v1.ContainerRestartRuleOnExitCodes{Operator: v1.ContainerRestartRuleOnExitCodesOpIn, Values: []int32{0}},
		}}
		in.Record.Containers = map[string]History{"c": {Attempt: 4, Wait: 40 * time.Second, Last: &last}}
	})
	if got := Next(in, noon.Add(time.Second)); !got.RecheckAt.Equal(noon.Add(40*time.Second)) || len(got.Ops) != 0 {
		t.Errorf("%+v", got)
	}
}

// The clock was set back after a container had ended: its back-off used to end when the clock said so again, hours later.
func TestTheBackOffOfAnEndInTheFutureCountsFromWhenItWasSeen(t *testing.T) {
	in := lifeOf(v1.RestartPolicyAlways, has(Container{ID: "1", Name: "c", State: Exited, ExitCode: 1, Attempt: 1, Finished: noon.Add(5 * time.Minute), WaitsFrom: noon}),
		func(in *Input) { in.Record.Containers = map[string]History{"c": {Attempt: 1, Wait: 20 * time.Second}} })
	if got := Next(in, noon.Add(time.Second)); !got.RecheckAt.Equal(noon.Add(20*time.Second)) || len(got.Ops) != 0 {
		t.Errorf("%+v", got)
	}
	if got := Next(in, noon.Add(20*time.Second)); len(got.Ops) == 0 {
		t.Errorf("it is not started again: %+v", got)
	}
}

// A pod that was deleted before its init containers were done used to report the containers after
// them as ended (upstream's "should never report container start when an init container fails").
func TestContainersWhoseTurnHadNotComeGoOnWaiting(t *testing.T) {
	in := lifeOf(v1.RestartPolicyNever, deletedNow, func(in *Input) {
		in.Pod.Spec.InitContainers = []v1.Container{{Name: "i0"}, {Name: "i1"}}
		in.Sandboxes, in.Absent = nil, false
	})
	st := Status(in, noon)
	if st.Phase != v1.PodFailed {
		t.Fatalf("phase %s", st.Phase)
	}
	if s := st.InitContainerStatuses[0].State.Terminated; s == nil || s.Reason != ReasonContainerStatusUnknown {
		t.Errorf("the first init container: %v", st.InitContainerStatuses[0].State)
	}
	for _, s := range []v1.ContainerStatus{st.InitContainerStatuses[1], st.ContainerStatuses[0]} {
		if s.State.Waiting == nil {
			t.Errorf("%s: %v", s.Name, s.State)
		}
	}
}

// A container that was ended before it ran used to have an end and no beginning (upstream's "should
// never report success for a pending container").
func TestInstanceThatNeverRanHasABeginning(t *testing.T) {
	in := lifeOf(v1.RestartPolicyNever, has(Container{ID: "1", Name: "c", State: Exited, ExitCode: 137}))
	in.Containers[0].Started, in.Containers[0].Finished = time.Time{}, noon
	end := Status(in, noon).ContainerStatuses[0].State.Terminated
	if end == nil || !end.StartedAt.Time.Equal(noon) || !end.FinishedAt.Time.Equal(noon) {
		t.Errorf("%v", end)
	}
}

// A container that never ran used to be ended with its pod in the first status, and waiting again
// in the second.
func TestContainersThatNeverRanStayEndedWithTheirPod(t *testing.T) {
	in := lifeOf(v1.RestartPolicyAlways, func(in *Input) {
		in.Record.Ending = &Ending{Since: noon, Reason: ReasonDeadlineExceeded}
		in.Sandboxes = nil
	})
	for range 3 {
		in.Reported = Status(in, noon)
		if end := in.Reported.ContainerStatuses[0].State.Terminated; in.Reported.Phase != v1.PodFailed || end == nil || end.Reason != ReasonContainerStatusUnknown {
			t.Fatalf("%+v", in.Reported)
		}
	}
}

// A container that was backed off when its pod was deleted used to end twice: its last state was
// the same instance as its state.
func TestBackedOffContainerEndsOnceWithItsPod(t *testing.T) {
	in := lifeOf(v1.RestartPolicyAlways, has(Container{ID: "1", Name: "c", State: Exited, ExitCode: 1, Finished: noon, Attempt: 1}), func(in *Input) {
		in.Record.Containers = map[string]History{"c": {Attempt: 1, Wait: time.Minute}}
	})
	in.Reported = Status(in, noon)
	if st := in.Reported.ContainerStatuses[0]; st.State.Waiting == nil || st.LastTerminationState.Terminated == nil {
		t.Fatalf("while it waits: %+v", st)
	}
	deletedNow(&in)
	in.Record.Ending = &Ending{Since: noon}
	if st := Status(in, noon).ContainerStatuses[0]; st.State.Terminated == nil || st.LastTerminationState.Terminated != nil || st.RestartCount != 1 {
		t.Errorf("at the end: %+v", st)
	}
}

// A status that was written before its instance was started has the end of the previous instance.
// After a restart of the kubelet that used to be reported as the end of the instance itself.
func TestAnEndIsThatOfItsOwnInstance(t *testing.T) {
	in := lifeOf(v1.RestartPolicyAlways, has(Container{ID: "3", Name: "c", Attempt: 2, State: Exited, ExitCode: 1}), func(in *Input) {
		in.Reported.ContainerStatuses = []v1.ContainerStatus{{
			Name: "c", ContainerID: "fake://2", RestartCount: 1, State: v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: ReasonContainerCreating}},
			LastTerminationState: v1.ContainerState{Terminated: &v1.ContainerStateTerminated{ContainerID: "fake://1", Message: "of the first"}},
		}}
		in.Node.RuntimeName = "fake"
	})
	end := Status(in, noon).ContainerStatuses[0].LastTerminationState.Terminated
	if end == nil || end.ContainerID != "fake://1" || end.Message != "of the first" {
		t.Errorf("%+v", end)
	}
}

// The creation of a container was given up when its pod was deleted, and the runtime carried on
// with it. The pod used to be reported as Failed with ContainerStatusUnknown, and the API server
// refused the container that then showed up.
func TestPodHasNotEndedWhileAContainerMayShowUp(t *testing.T) {
	dead := has(Container{ID: "1", Name: "c", State: Exited, ExitCode: 1, Finished: noon})
	for name, tc := range map[string]struct {
		in   Input
		held bool
	}{
		"never seen":         {lifeOf(v1.RestartPolicyNever, deletedNow), true},
		"its next instance":  {lifeOf(v1.RestartPolicyAlways, deletedNow, dead, func(in *Input) { in.Record.Containers = map[string]History{"c": {Attempt: 1}} }), true},
		"seen":               {lifeOf(v1.RestartPolicyNever, deletedNow, dead), false},
		"stopped sandbox":    {lifeOf(v1.RestartPolicyNever, deletedNow, func(in *Input) { in.Sandboxes[0].Ready = false }), false},
		"no sandbox":         {lifeOf(v1.RestartPolicyNever, deletedNow, func(in *Input) { in.Sandboxes = nil }), false},
		"its turn never was": {lifeOf(v1.RestartPolicyNever, deletedNow, has(Container{ID: "0", Name: "i", State: Exited, ExitCode: 1, Finished: noon}), func(in *Input) { in.Pod.Spec.InitContainers = []v1.Container{{Name: "i"}} }), false},
	} {
		in := tc.in
		in.Record = Next(in, noon).Record
		if st := Status(in, noon); pods.IsTerminal(st.Phase) == tc.held {
			t.Errorf("%s: phase %s", name, st.Phase)
		}
		if got := slices.Contains(kinds(Next(in, noon)), RemoveSandbox); got != (len(in.Sandboxes) > 0) {
			t.Errorf("%s: the sandbox is removed: %v", name, got)
		}
	}
}

// A sandbox that was being created when its pod was deleted used to stay, for minutes, after
// everything else of the pod was gone.
func TestSandboxInTheMakingIsWaitedFor(t *testing.T) {
	op := Op{Kind: RunSandbox}
	in := lifeOf(v1.RestartPolicyNever, deletedNow, func(in *Input) {
		in.Sandboxes = nil
		in.InFlight[SandboxKey] = Flight{Op: op, Since: noon.Add(-time.Second)}
	})
	if got := Next(in, noon); !slices.Equal(got.Ops, []Op{op}) || !got.RecheckAt.Equal(noon.Add(9*time.Second)) {
		t.Errorf("%+v", got)
	}
	if got := Next(in, noon.Add(time.Minute)); len(got.Ops) != 0 {
		t.Errorf("one that hangs: %+v", got.Ops)
	}
}

// The same used to happen to a container: it appeared in a sandbox that was being removed, and its
// cgroup was removed (make sim SEED=7417 LIVES=1).
func TestContainerInTheMakingIsWaitedFor(t *testing.T) {
	op := Op{Kind: CreateContainer, Name: "c", SandboxID: "s1"}
	in := lifeOf(v1.RestartPolicyNever, deletedNow, func(in *Input) {
		in.Containers = nil
		in.InFlight[ContainerKey("c")] = Flight{Op: op, Since: noon.Add(-time.Second)}
	})
	if got := Next(in, noon); !slices.Equal(got.Ops, []Op{op}) || !got.RecheckAt.Equal(noon.Add(9*time.Second)) {
		t.Errorf("%+v", got)
	}
	if got := Next(in, noon.Add(time.Minute)); slices.Contains(got.Ops, op) {
		t.Errorf("one that hangs: %+v", got.Ops)
	}
}

// A container under restartPolicy Never whose image was changed used to be reported as ended before
// the next instance ran. The API server does not take back a container from there: it stayed
// terminated in the status for as long as it ran.
func TestContainerThatIsReplacedIsNotToldToHaveEnded(t *testing.T) {
	for policy, code := range map[v1.RestartPolicy]int32{v1.RestartPolicyNever: 137, v1.RestartPolicyOnFailure: 0} {
		in := lifeOf(policy, has(Container{ID: "1", Name: "c", State: Running, Hash: "of another image"}))
		plan := Next(in, noon)
		if !slices.Equal(kinds(plan), []Kind{StopContainer}) {
			t.Fatalf("%s: %v", policy, kinds(plan))
		}
		in.Record = plan.Record
		in.Containers[0].State, in.Containers[0].ExitCode, in.Containers[0].Finished = Exited, code, noon
		st := Status(in, noon)
		c := st.ContainerStatuses[0]
		if st.Phase != v1.PodRunning || c.State.Waiting == nil || c.State.Waiting.Reason != ReasonContainerCreating {
			t.Errorf("%s: phase %s, %+v", policy, st.Phase, c.State)
		}
		if end := c.LastTerminationState.Terminated; end == nil || end.ExitCode != code {
			t.Errorf("%s: its last end is %+v", policy, end)
		}
	}
}

// A container that had ended for good according to the API server used to be reported as running
// again when a new sandbox made the init containers run again: the status was refused every ten
// seconds.
func TestStatusIsOneThatTheAPIServerTakes(t *testing.T) {
	ended := v1.ContainerState{Terminated: &v1.ContainerStateTerminated{ContainerID: "x://1"}}
	runs := v1.ContainerState{Running: &v1.ContainerStateRunning{}}
	pod := lifeOf(v1.RestartPolicyOnFailure).Pod
	pod.Spec.InitContainers = []v1.Container{{Name: "i"}, {Name: "s", RestartPolicy: ptr.To(v1.ContainerRestartPolicyAlways)}}
	of := func(st v1.ContainerState, restarts int32) v1.PodStatus {
		return v1.PodStatus{
			InitContainerStatuses: []v1.ContainerStatus{{Name: "i", State: st, RestartCount: restarts}, {Name: "s", State: st, RestartCount: restarts}},
			ContainerStatuses:     []v1.ContainerStatus{{Name: "c", State: st, RestartCount: restarts}},
		}
	}
	want := of(runs, 1)
	got := Acceptable(pod, of(ended, 0), want)
	for what, tc := range map[string]struct {
		st   v1.ContainerStatus
		ends bool
	}{
		"init container": {got.InitContainerStatuses[0], true}, "sidecar": {got.InitContainerStatuses[1], false}, "container": {got.ContainerStatuses[0], true},
	} {
		if (tc.st.State.Terminated != nil) != tc.ends || tc.st.RestartCount != 1 {
			t.Errorf("%s: %+v", what, tc.st)
		}
	}
	if want.ContainerStatuses[0].State.Running == nil {
		t.Error("what was put has changed")
	}
	failed := of(ended, 0)
	failed.Phase = v1.PodFailed
	pod.Spec.RestartPolicy = v1.RestartPolicyAlways
	if got := Acceptable(pod, failed, want).ContainerStatuses[0].State; got.Terminated == nil {
		t.Errorf("of a pod that has ended: %+v", got)
	}
}

// Docker shows a sandbox as ready before RunPodSandbox has connected it: it used to be stopped for
// having no address, and the call canceled, again and again. On the host's network, containers were
// made in it and the call was canceled, too.
func TestSandboxInTheMakingIsLeftAlone(t *testing.T) {
	for name, change := range map[string]func(*Input){
		"no address":         func(in *Input) { in.Sandboxes[0].IPs = nil },
		"not ready":          func(in *Input) { in.Sandboxes[0].IPs, in.Sandboxes[0].Ready = nil, false },
		"the host's network": func(in *Input) { in.Pod.Spec.HostNetwork, in.Sandboxes[0].IPs = true, nil },
		"complete":           func(*Input) {},
	} {
		in := lifeOf(v1.RestartPolicyAlways, change, func(in *Input) { in.Images["i"] = Image{} })
		making := Op{Kind: RunSandbox}
		in.InFlight[SandboxKey] = Flight{Op: making}
		if got := Next(in, noon); slices.ContainsFunc(got.Ops, func(op Op) bool { return op != making && op.Kind != PullImage }) ||
			!slices.Contains(got.Ops, making) {
			t.Errorf("%s: %v", name, got.Ops)
		}
	}
	// A newer one is made because this one was seen to be dead.
	in := lifeOf(v1.RestartPolicyAlways, func(in *Input) { in.Sandboxes[0].Ready = false })
	in.InFlight[SandboxKey] = Flight{Op: Op{Kind: RunSandbox, Attempt: 1}}
	if got := Next(in, noon); !slices.Contains(got.Ops, Op{Kind: RunSandbox, Attempt: 1}) {
		t.Errorf("its successor: %v", got.Ops)
	}
}

// Somebody removed init containers that were done (`crictl rm`) while the kubelet was away, and a later one was still running:
// they ran again beside it.
func TestInitContainersThatWereRemovedAreDoneOnceALaterOneRuns(t *testing.T) {
	in := lifeOf(v1.RestartPolicyAlways, has(Container{ID: "3", Name: "i3", State: Running}), func(in *Input) {
		in.Pod.Spec.InitContainers = []v1.Container{
			{Name: "i1", Image: "i"}, {Name: "side", Image: "i", RestartPolicy: new(v1.ContainerRestartPolicyAlways)}, {Name: "i2", Image: "i"}, {Name: "i3", Image: "i"},
		}
		done := v1.ContainerState{Terminated: &v1.ContainerStateTerminated{Reason: "Completed"}}
		in.Reported.InitContainerStatuses = []v1.ContainerStatus{
			{Name: "i1", ContainerID: "x://1", State: done}, {Name: "side"}, {Name: "i2", ContainerID: "x://2", State: done},
			{Name: "i3", ContainerID: "x://3", State: v1.ContainerState{Running: &v1.ContainerStateRunning{}}},
		}
	})
	starts := func(p Plan) (out []string) {
		for _, op := range p.Ops {
			out = append(out, op.Name)
		}
		slices.Sort(out)
		return slices.Compact(out)
	}
	if got := starts(Next(in, noon)); !slices.Equal(got, []string{"side"}) {
		t.Errorf("only the sidecar has to come back: %v", got)
	}
	has(Container{ID: "4", Name: "side", State: Running})(&in)
	if got := Next(in, noon); len(got.Ops) != 0 || got.Life != PodPending {
		t.Errorf("while the last one runs: %v", got)
	}
	in.Containers[0].State = Exited
	if got := starts(Next(in, noon)); !slices.Equal(got, []string{"c"}) {
		t.Errorf("after the last one: %v", got)
	}
	if st := Status(in, noon).InitContainerStatuses; st[0].RestartCount != 0 || st[0].State.Terminated == nil || st[2].State.Terminated == nil {
		t.Errorf("what was removed is reported as %+v", st)
	}
	in.Sandboxes[0].ID = "new" // everything ran in an older one
	in.Containers = in.Containers[:1]
	if got := starts(Next(in, noon)); !slices.Equal(got, []string{"i1"}) {
		t.Errorf("in a new sandbox: %v", got)
	}
}
