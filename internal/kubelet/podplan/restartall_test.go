package podplan

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"wherry.dev/internal/api/pods"
)

// training returns a pod with an init container, a worker that can request a restart of all by
// exiting with 42, and a helper; none is restarted otherwise.
func training() Input {
	all := v1.ContainerRestartPolicyNever
	pod := &v1.Pod{Spec: v1.PodSpec{
		RestartPolicy:  v1.RestartPolicyNever,
		InitContainers: []v1.Container{{Name: "init"}},
		Containers: []v1.Container{
			{Name: "worker", RestartPolicy: &all, RestartPolicyRules: []v1.ContainerRestartRule{{
				Action:    v1.ContainerRestartRuleActionRestartAllContainers,
				ExitCodes: &v1.ContainerRestartRuleOnExitCodes{Operator: v1.ContainerRestartRuleOnExitCodesOpIn, Values: []int32{42}},
			}}},
			{Name: "helper"},
		},
	}}
	start := time.Unix(900, 0).UTC()
	return Input{
		Pod: pod, Record: Record{Verdict: &Verdict{Admitted: true}},
		Sandboxes: []Sandbox{{ID: "s", Ready: true, IPs: []string{"10.0.0.1"}}},
		Containers: []Container{
			{ID: "i", Name: "init", SandboxID: "s", State: Exited, Started: start, Finished: start.Add(time.Second)},
			{ID: "w", Name: "worker", SandboxID: "s", State: Running, Started: start},
			{ID: "h", Name: "helper", SandboxID: "s", State: Running, Started: start},
		},
		Images: map[string]Image{},
	}
}

func stateOf(in *Input, name string) (string, string) {
	st := findStatus(&in.Reported, name)
	now, last := "Running", ""
	if w := st.State.Waiting; w != nil {
		now = w.Reason
	}
	if x := st.State.Terminated; x != nil {
		now = x.Reason
	}
	if x := st.LastTerminationState.Terminated; x != nil {
		last = x.Reason
	}
	return now, last
}

func TestRestartAllContainers(t *testing.T) {
	in, now := training(), time.Unix(1000, 0).UTC()
	in.step(now)
	if c := pods.FindCondition(&in.Reported, v1.AllContainersRestarting); c == nil || c.Status != v1.ConditionFalse {
		t.Errorf("before: %+v", c)
	}
	in.Containers[1].State, in.Containers[1].ExitCode, in.Containers[1].Finished = Exited, 42, now
	p, _ := in.step(now)
	if c := pods.FindCondition(&in.Reported, v1.AllContainersRestarting); c.Status != v1.ConditionTrue || c.Reason != "RestartAllContainersStarted" || in.Reported.Phase != v1.PodRunning {
		t.Errorf("phase %s, condition %+v", in.Reported.Phase, c)
	}
	if len(p.Ops) != 2 || p.Ops[0].ID != "h" || p.Ops[0].Kind != StopContainer || p.Ops[1] != (Op{Kind: RemoveContainer, Name: "init", ID: "i"}) {
		t.Fatalf("ops %+v", p.Ops)
	}
	in.Containers = in.Containers[1:]
	in.Containers[1].State, in.Containers[1].ExitCode, in.Containers[1].Finished = Exited, 137, now.Add(time.Second)
	if p, _ = in.step(now.Add(time.Second)); len(p.Ops) != 1 || p.Ops[0].ID != "h" {
		t.Fatalf("ops %+v", p.Ops)
	}
	in.Containers = in.Containers[:1]
	if p, _ = in.step(now.Add(time.Second)); len(p.Ops) != 1 || p.Ops[0].ID != "w" || p.Ops[0].Kind != RemoveContainer {
		t.Fatalf("the source does not go last: %+v", p.Ops)
	}
	if state, last := stateOf(&in, "helper"); state != ReasonRestartingAll || last != ReasonRestartingAll {
		t.Errorf("helper: %s, last %s", state, last)
	}
	in.Containers = nil
	p, _ = in.step(now.Add(time.Second))
	if len(p.Ops) != 1 || p.Ops[0] != (Op{Kind: PullImage, Name: "init", Attempt: 1}) || in.Reported.Phase != v1.PodRunning {
		t.Fatalf("phase %s, ops %+v", in.Reported.Phase, p.Ops)
	}
	if c := pods.FindCondition(&in.Reported, v1.AllContainersRestarting); c.Status != v1.ConditionFalse {
		t.Errorf("after: %+v", c)
	}
	if c := pods.FindCondition(&in.Reported, v1.PodInitialized); c.Status != v1.ConditionTrue {
		t.Errorf("initialised is taken back: %+v", c)
	}
	in.Containers = []Container{{ID: "i2", Name: "init", SandboxID: "s", Attempt: 1, State: Exited, Finished: now}}
	p, _ = in.step(now.Add(2 * time.Second))
	if !wants(p, PullImage, "worker") || !wants(p, PullImage, "helper") {
		t.Errorf("ops %+v", p.Ops)
	}
	for _, name := range []string{"worker", "helper"} {
		in.Containers = append(in.Containers, Container{ID: name + "2", Name: name, SandboxID: "s", Attempt: 1, State: Running, Started: now})
	}
	in.step(now.Add(3 * time.Second))
	for name, want := range map[string]string{"worker": ReasonError, "helper": ReasonRestartingAll} {
		st := findStatus(&in.Reported, name)
		if state, last := stateOf(&in, name); state != "Running" || last != want || st.RestartCount != 1 {
			t.Errorf("%s: %s, last %s, %d restarts", name, state, last, st.RestartCount)
		}
	}
	in.Containers[1].State, in.Containers[1].ExitCode, in.Containers[1].Finished = Exited, 42, now.Add(4*time.Second)
	in.step(now.Add(4 * time.Second))
	in.Containers = nil
	in.step(now.Add(5 * time.Second))
	in.Containers = []Container{{ID: "i3", Name: "init", SandboxID: "s", Attempt: 2, State: Exited, Finished: now}}
	in.Images["worker"] = Image{Attempt: 2}
	if p, _ = in.step(now.Add(6 * time.Second)); wants(p, CreateContainer, "worker") {
		t.Error("a container that asks for ever for all to begin anew is not backed off")
	}
}

// TestRestartAllWhileAContainerStarts: an instance that came up while all others were already being
// removed used to have no successor if the pod restarts nothing by itself.
func TestRestartAllWhileAContainerStarts(t *testing.T) {
	in, now := training(), time.Unix(1000, 0).UTC()
	late := in.Containers[2]
	in.Containers = in.Containers[:2]
	in.Containers[1].State, in.Containers[1].ExitCode, in.Containers[1].Finished = Exited, 42, now
	in.InFlight = map[Key]Flight{ContainerKey("helper"): {Op: Op{Kind: CreateContainer, Name: "helper"}}}
	in.step(now)
	in.InFlight = nil
	in.Containers = append(in.Containers, late)
	p, _ := in.step(now.Add(time.Second))
	if !wants(p, StopContainer, "helper") {
		t.Fatalf("ops %+v", p.Ops)
	}
	late.State, late.ExitCode, late.Finished = Exited, 137, now.Add(2*time.Second)
	in.Containers = []Container{late}
	in.step(now.Add(2 * time.Second))
	in.Containers = nil
	in.step(now.Add(2 * time.Second))
	in.Containers = []Container{{ID: "i2", Name: "init", SandboxID: "s", Attempt: 1, State: Exited, Finished: now}}
	if p, _ = in.step(now.Add(3 * time.Second)); !wants(p, PullImage, "helper") && !wants(p, CreateContainer, "helper") {
		t.Errorf("the helper does not begin anew: %+v", p.Ops)
	}
}

// TestLateContainerIsNoProofOfInitialisation: a create that was cut off used to complete when all
// others were gone. The app containers were started, and the init container was shown as waiting
// for ever.
func TestLateContainerIsNoProofOfInitialisation(t *testing.T) {
	in, now := training(), time.Unix(1000, 0).UTC()
	late := in.Containers[2]
	late.State, late.Started = Created, time.Time{}
	in.Containers = in.Containers[:2]
	in.step(now)
	in.Containers[1].State, in.Containers[1].ExitCode, in.Containers[1].Finished = Exited, 42, now
	create := Op{Kind: CreateContainer, Name: "helper", SandboxID: "s"}
	in.InFlight = map[Key]Flight{create.Key(): {Op: create}}
	if p, _ := in.step(now); !wants(p, CreateContainer, "helper") {
		t.Errorf("a create in flight is cut off: %+v", p.Ops)
	}
	in.InFlight = nil
	in.Containers = in.Containers[1:]
	in.step(now.Add(time.Second))
	in.Containers = nil
	in.step(now.Add(time.Second))
	in.Containers = []Container{late} // the kubelet was restarted meanwhile, and does not know it
	in.Images["init"] = Image{Attempt: 1}
	p, _ := in.step(now.Add(time.Second))
	if !wants(p, CreateContainer, "init") || wants(p, StartContainer, "helper") {
		t.Fatalf("ops %+v", p.Ops)
	}
	in.Containers = append(in.Containers, Container{ID: "i2", Name: "init", SandboxID: "s", Attempt: 1, State: Exited, Started: now, Finished: now})
	if p, _ = in.step(now.Add(2 * time.Second)); !wants(p, StartContainer, "helper") {
		t.Errorf("ops %+v", p.Ops)
	}
	if state, _ := stateOf(&in, "init"); state != ReasonCompleted {
		t.Errorf("the init container is shown as %s", state)
	}
}

// The plan that begins a restart of all containers used to call the pod Running, and the same input
// with the record that the plan had written called it Pending (seed 1012592).
func TestPlanOfARestartOfAllIsTheSameWithItsOwnRecord(t *testing.T) {
	in := lifeOf(v1.RestartPolicyOnFailure,
		has(Container{ID: "1", Name: "i", State: Exited}), has(Container{ID: "2", Name: "d", State: Running}), has(Container{ID: "3", Name: "c", State: Exited, ExitCode: 42}))
	in.Pod.Spec.InitContainers = []v1.Container{{Name: "i"}}
	in.Pod.Spec.Containers = []v1.Container{{Name: "d"}, {Name: "c", RestartPolicyRules: []v1.ContainerRestartRule{{
		Action:    v1.ContainerRestartRuleActionRestartAllContainers,
		ExitCodes: &v1.ContainerRestartRuleOnExitCodes{Operator: v1.ContainerRestartRuleOnExitCodesOpIn, Values: []int32{42}},
	}}}}
	first := Next(in, noon)
	if first.Record.RestartAll == nil {
		t.Fatal("nothing is restarted")
	}
	in.Record = first.Record
	if again := Next(in, noon); again.Life != first.Life || again.Life != PodPending {
		t.Errorf("%s, then %s", first.Life, again.Life)
	}
}
