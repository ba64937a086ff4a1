package podplan

import (
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	helper "k8s.io/component-helpers/resource"

	"wherry.dev/internal/api/pods"
)

func cpu(s string) v1.ResourceRequirements {
	return v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse(s)}}
}

// resizing returns a pod with a container that runs with 100m of CPU.
func resizing() Input {
	pod := &v1.Pod{Spec: v1.PodSpec{RestartPolicy: v1.RestartPolicyNever, Containers: []v1.Container{{Name: "c", Resources: cpu("100m")}}}}
	pod.Generation = 1
	return Input{
		Pod: pod, Record: Record{Verdict: &Verdict{Admitted: true, Allocated: allocated(pod)}},
		Sandboxes:  []Sandbox{{ID: "s", Ready: true, IPs: []string{"10.0.0.1"}}},
		Containers: []Container{{ID: "1", Name: "c", SandboxID: "s", State: Running, Started: time.Unix(900, 0)}},
		Images:     map[string]Image{},
	}
}

func ask(in *Input, amount string) {
	in.Pod = in.Pod.DeepCopy()
	in.Pod.Generation++
	in.Pod.Spec.Containers[0].Resources = cpu(amount)
}

// step applies a plan as the worker does, and reports.
func (in *Input) step(now time.Time) (Plan, []Event) {
	p := Next(*in, now)
	in.Record = p.Record
	st := Status(*in, now)
	events := ResizeEvents(in, &st)
	in.Reported, in.Pod.Status = st, st
	return p, events
}

func reasons(events []Event) string {
	var out []string
	for _, e := range events {
		out = append(out, e.Reason)
	}
	return strings.Join(out, " ")
}

// The scheduler used to count for ever what no pod was given.
func TestResizeThatCannotBeIsInfeasible(t *testing.T) {
	in, now := resizing(), time.Unix(1000, 0)
	ask(&in, "64")
	if !ResizeDue(&in) {
		t.Fatal("the node is not asked")
	}
	TakeResize(&in, ResizeDecision{Reason: v1.PodReasonInfeasible, Message: "too much"})
	if _, events := in.step(now); reasons(events) != "ResizeInfeasible" || ResizeDue(&in) {
		t.Errorf("events %v; asked again: %v", events, ResizeDue(&in))
	}
	if !helper.IsPodResizeInfeasible(in.Pod) {
		t.Errorf("conditions: %+v", in.Reported.Conditions)
	}
	if got := helper.PodRequests(in.Pod, helper.PodResourcesOptions{UseStatusResources: true}); got.Cpu().String() != "100m" {
		t.Errorf("the scheduler counts %s", got.Cpu())
	}
	if got := WithAllocated(in.Pod, in.Record.Verdict).Spec.Containers[0].Resources.Requests.Cpu().String(); got != "100m" {
		t.Errorf("a container would be created with %s", got)
	}
	ask(&in, "100m") // the request is taken back
	if _, events := in.step(now); len(events) != 0 || pods.FindCondition(&in.Reported, v1.PodResizePending) != nil {
		t.Errorf("events %v, conditions: %+v", events, in.Reported.Conditions)
	}
	if WithAllocated(in.Pod, in.Record.Verdict) != in.Pod {
		t.Error("a pod without a wish was copied")
	}
}

func TestResizeInPlace(t *testing.T) {
	in, now := resizing(), time.Unix(1000, 0)
	ask(&in, "200m")
	TakeResize(&in, ResizeDecision{Reason: v1.PodReasonDeferred, Message: "no room"})
	p, events := in.step(now)
	if c := pods.FindCondition(&in.Reported, v1.PodResizePending); reasons(events) != "ResizeDeferred" || c == nil || c.Message != "no room" || c.ObservedGeneration != 2 {
		t.Errorf("events %v, condition %+v", events, c)
	}
	if p.RecheckAt.IsZero() || !ResizeDue(&in) {
		t.Error("a deferred resize is not looked at again")
	}
	TakeResize(&in, ResizeDecision{Allocate: true})
	p, events = in.step(now)
	want := Op{Kind: ResizePod, Attempt: 1}
	if len(p.Ops) != 1 || p.Ops[0] != want || reasons(events) != "ResizeStarted" {
		t.Errorf("ops %+v, events %v", p.Ops, events)
	}
	st := in.Reported.ContainerStatuses[0]
	if got := st.AllocatedResources.Cpu().String() + " " + st.Resources.Requests.Cpu().String(); got != "200m 100m" || st.State.Running == nil {
		t.Errorf("allocated and actual: %s", got)
	}
	if in.Reported.AllocatedResources.Cpu().String() != "200m" || in.Reported.Resources.Requests.Cpu().String() != "100m" {
		t.Errorf("of the pod: %v %v", in.Reported.AllocatedResources, in.Reported.Resources)
	}
	// It fails, the kubelet restarts, it fails again.
	in.Failures = map[Key]Failure{ResizeKey: {Count: 1, At: now, Attempt: 1, Message: "runtime says no"}}
	for _, want := range []string{"ResizeError", ""} {
		p, events = in.step(now)
		c := pods.FindCondition(&in.Reported, v1.PodResizeInProgress)
		if len(p.Ops) != 0 || reasons(events) != want || c.Reason != v1.PodReasonError || c.Message != "runtime says no" || c.ObservedGeneration != 2 {
			t.Errorf("ops %v, events %v, condition %+v", p.Ops, events, c)
		}
	}
	in.Failures = nil
	if p, events = in.step(now); len(p.Ops) != 1 || len(events) != 0 || pods.FindCondition(&in.Reported, v1.PodResizeInProgress).Reason != v1.PodReasonError {
		t.Errorf("after a restart: ops %v, events %v", p.Ops, events)
	}
	in.Resized = 1
	_, events = in.step(now)
	if reasons(events) != "ResizeCompleted" || !strings.Contains(events[0].Message, `Pod resize completed: {"containers":[{"name":"c","resources":{"requests":{"cpu":"200m"}}}],"generation":2}`) {
		t.Errorf("events %v", events)
	}
	st = in.Reported.ContainerStatuses[0]
	if st.Resources.Requests.Cpu().String() != "200m" || len(in.Reported.Conditions) != 5 || st.RestartCount != 0 {
		t.Errorf("status %+v", in.Reported)
	}
}

// TestResizeByRestart, even if the restart policy would not start the container again.
func TestResizeByRestart(t *testing.T) {
	in, now := resizing(), time.Unix(1000, 0)
	in.Pod.Spec.Containers[0].ResizePolicy = []v1.ContainerResizePolicy{{ResourceName: v1.ResourceCPU, RestartPolicy: v1.RestartContainer}}
	ask(&in, "200m")
	TakeResize(&in, ResizeDecision{Allocate: true})
	p, _ := in.step(now)
	if len(p.Ops) != 1 || p.Ops[0].Kind != StopContainer || p.Ops[0].Message != "Container c resize requires restart" {
		t.Fatalf("ops %+v", p.Ops)
	}
	in.Containers[0].State, in.Containers[0].Finished = Exited, now
	p, _ = in.step(now)
	if !wants(p, PullImage, "c") || p.Life == PodTerminating || in.Reported.Phase != v1.PodRunning {
		t.Fatalf("ops %+v, %s, phase %s", p.Ops, p.Life, in.Reported.Phase)
	}
	in.Images["c"] = Image{Attempt: 1, Ref: "sha256:1"}
	if p, _ = in.step(now); !wants(p, ResizePod, "") || wants(p, CreateContainer, "c") {
		t.Fatalf("the pod's cgroup may be too small yet: %+v", p.Ops)
	}
	in.Resized = 1
	_, events := in.step(now)
	if p, _ = in.step(now); !wants(p, CreateContainer, "c") || reasons(events) != "ResizeCompleted" {
		t.Fatalf("ops %+v, events %v", p.Ops, events)
	}
	in.Containers = append(in.Containers, Container{ID: "2", Name: "c", SandboxID: "s", Attempt: 1, State: Running, Started: now})
	in.step(now)
	st := in.Reported.ContainerStatuses[0]
	if st.RestartCount != 1 || st.Resources.Requests.Cpu().String() != "200m" {
		t.Errorf("events %v, status %+v", events, st)
	}
	in.Containers[1].State, in.Containers[1].Finished = Exited, now
	if p, _ = in.step(now); p.Life != PodTerminating {
		t.Errorf("restarted again: %s %+v", p.Life, p.Ops)
	}
}

// TestResizeThatCannotGoOnHoldsNoContainerUp: another container cannot be stopped.
func TestResizeThatCannotGoOnHoldsNoContainerUp(t *testing.T) {
	in, now := resizing(), time.Unix(1000, 0)
	restart := []v1.ContainerResizePolicy{{ResourceName: v1.ResourceCPU, RestartPolicy: v1.RestartContainer}}
	in.Pod.Spec.Containers[0].ResizePolicy = restart
	in.Pod.Spec.Containers = append(in.Pod.Spec.Containers, v1.Container{Name: "stuck", ResizePolicy: restart, Resources: cpu("100m")})
	in.Containers = append(in.Containers, Container{ID: "2", Name: "stuck", SandboxID: "s", State: Running, Started: time.Unix(900, 0)})
	in.Record.Verdict = new(Verdict{Admitted: true, Allocated: allocated(in.Pod)})
	ask(&in, "200m")
	in.Pod.Spec.Containers[1].Resources = cpu("200m")
	TakeResize(&in, ResizeDecision{Allocate: true})
	in.step(now)
	in.Containers[0].State, in.Containers[0].Finished = Exited, now
	in.Images["c"] = Image{Attempt: 1, Ref: "sha256:1"}
	if p, _ := in.step(now); wants(p, CreateContainer, "c") || !wants(p, StopContainer, "stuck") {
		t.Errorf("ops %+v", p.Ops)
	}
	in.Failures = map[Key]Failure{StopKey("2"): {Count: 1, At: now, Message: "no"}}
	if p, _ := in.step(now); !wants(p, CreateContainer, "c") {
		t.Errorf("it waits for a container that does not stop: %+v", p.Ops)
	}
}

// TestResizeWhileAContainerIsMade: the create in flight has the old resources.
func TestResizeWhileAContainerIsMade(t *testing.T) {
	in, now := resizing(), time.Unix(1000, 0)
	in.Containers = nil
	create := Op{Kind: CreateContainer, Name: "c", SandboxID: "s"}
	in.InFlight = map[Key]Flight{create.Key(): {Op: create}}
	ask(&in, "200m")
	TakeResize(&in, ResizeDecision{Allocate: true})
	p, _ := in.step(now)
	if wants(p, ResizePod, "") {
		t.Error("resized before there was anything to resize")
	}
	in.InFlight, in.Containers = nil, []Container{{ID: "1", Name: "c", SandboxID: "s", State: Running, Started: now}}
	if p, _ = in.step(now); !wants(p, ResizePod, "") || !Applying(&in.Record, &in.Containers[0]) {
		t.Errorf("what was made meanwhile keeps its old resources: %+v", p.Ops)
	}
	// The create failed instead: the next one has the new resources, once the pod's cgroup has.
	in.Containers, in.Images["c"], in.Reported = nil, Image{Ref: "sha256:1"}, v1.PodStatus{}
	if p, _ = in.step(now); wants(p, CreateContainer, "c") {
		t.Errorf("made before the cgroup was resized: %+v", p.Ops)
	}
	in.Resized = 1
	in.step(now)
	if p, _ = in.step(now); !wants(p, CreateContainer, "c") || in.Record.history("c").Applied != nil {
		t.Errorf("ops %+v, record %+v", p.Ops, in.Record)
	}
}

func TestDecideResize(t *testing.T) {
	node := &v1.Node{Status: v1.NodeStatus{Allocatable: v1.ResourceList{v1.ResourceCPU: resource.MustParse("2"), v1.ResourceMemory: resource.MustParse("1Gi")}}}
	pod := func(amount string) *v1.Pod {
		return &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{{Resources: cpu(amount)}}}}
	}
	for amount, want := range map[string]ResizeDecision{
		"500m":  {Allocate: true},
		"1500m": {Reason: v1.PodReasonDeferred, Message: "Node didn't have enough resource: cpu, requested: 1500, used: 1000, capacity: 2000"},
		"3":     {Reason: v1.PodReasonInfeasible, Message: "Node didn't have enough capacity: cpu, requested: 3000, capacity: 2000"},
	} {
		if got := DecideResize(AdmitInput{Pod: pod(amount), Node: node, Others: []*v1.Pod{pod("1")}}); got != want {
			t.Errorf("%s: %+v", amount, got)
		}
	}
}

// TestPodLevelResize reaches the containers that only pod-level limits apply to.
func TestPodLevelResize(t *testing.T) {
	in, now := resizing(), time.Unix(1000, 0)
	whole := func(s string) *v1.ResourceRequirements {
		r := cpu(s)
		r.Limits = r.Requests
		return &r
	}
	own := v1.ResourceRequirements{Limits: v1.ResourceList{v1.ResourceCPU: resource.MustParse("1"), v1.ResourceMemory: resource.MustParse("1Gi")}}
	in.Pod.Spec.Containers = append(in.Pod.Spec.Containers, v1.Container{Name: "own", Resources: own})
	in.Containers = append(in.Containers, Container{ID: "2", Name: "own", SandboxID: "s", State: Running, Started: time.Unix(900, 0)})
	in.Pod.Spec.Resources = whole("1")
	in.Record.Verdict = new(Verdict{Admitted: true, Allocated: allocated(in.Pod), Pod: in.Pod.Spec.Resources.DeepCopy()})
	in.Pod = in.Pod.DeepCopy()
	in.Pod.Generation++
	in.Pod.Spec.Resources = whole("2")
	TakeResize(&in, ResizeDecision{Allocate: true})
	p, events := in.step(now)
	if !wants(p, ResizePod, "") || reasons(events) != "ResizeStarted" {
		t.Errorf("ops %+v, events %v", p.Ops, events)
	}
	if !Applying(&in.Record, &in.Containers[0]) || Applying(&in.Record, &in.Containers[1]) {
		t.Errorf("record %+v", in.Record.Containers)
	}
	if a, b := in.Reported.AllocatedResources.Cpu().String(), in.Reported.Resources.Requests.Cpu().String(); a != "2" || b != "1" {
		t.Errorf("allocated %s, actual %s", a, b)
	}
	in.Resized = 1
	if _, events = in.step(now); reasons(events) != "ResizeCompleted" || in.Reported.Resources.Requests.Cpu().String() != "2" {
		t.Errorf("events %v, resources %v", events, in.Reported.Resources)
	}
}

// TestPodLevelResizeByRestart: a container that only pod-level limits apply to used to be resized
// in place, whatever its policy said.
func TestPodLevelResizeByRestart(t *testing.T) {
	in, now := resizing(), time.Unix(1000, 0)
	limit := func(s string) *v1.ResourceRequirements {
		return &v1.ResourceRequirements{Limits: v1.ResourceList{v1.ResourceMemory: resource.MustParse(s)}}
	}
	in.Pod.Spec.Containers[0].ResizePolicy = []v1.ContainerResizePolicy{{ResourceName: v1.ResourceMemory, RestartPolicy: v1.RestartContainer}}
	in.Pod.Spec.Resources = limit("100Mi")
	in.Record.Verdict = new(Verdict{Admitted: true, Allocated: allocated(in.Pod), Pod: in.Pod.Spec.Resources.DeepCopy()})
	in.Pod = in.Pod.DeepCopy()
	in.Pod.Generation++
	in.Pod.Spec.Resources = limit("200Mi")
	TakeResize(&in, ResizeDecision{Allocate: true})
	if p, _ := in.step(now); !wants(p, StopContainer, "c") || wants(p, ResizePod, "") {
		t.Errorf("ops %+v", p.Ops)
	}
	// Changed back before it has stopped: nothing changes for it.
	in.Pod = in.Pod.DeepCopy()
	in.Pod.Generation++
	in.Pod.Spec.Resources = limit("100Mi")
	TakeResize(&in, ResizeDecision{Allocate: true})
	if p, _ := in.step(now); wants(p, StopContainer, "c") || Applying(&in.Record, &in.Containers[0]) {
		t.Errorf("ops %+v, record %+v", p.Ops, in.Record.Containers)
	}
}

func TestCrashBackoffHasACap(t *testing.T) {
	h := History{}
	dead := &Container{Started: time.Unix(0, 0), Finished: time.Unix(1, 0)}
	for i, want := range []time.Duration{10, 20, 40, 45, 45} {
		if h.Wait = nextWait(h, dead, 45*time.Second); h.Wait != want*time.Second {
			t.Errorf("wait %d: %v", i, h.Wait)
		}
	}
	if w := nextWait(History{}, dead, time.Second); w != time.Second {
		t.Errorf("a cap below the first wait: %v", w)
	}
	dead.Finished = dead.Started.Add(10 * time.Minute)
	if w := nextWait(h, dead, 45*time.Second); w != 10*time.Second || crashWait(h, dead, 45*time.Second) != 0 {
		t.Errorf("after ten good minutes: %v", w)
	}
}

// A pod whose record was lost used to be impossible to resize.
func TestResizeAfterTheRecordWasLost(t *testing.T) {
	in, now := resizing(), time.Unix(1000, 0)
	in.step(now)
	ask(&in, "200m")
	v := Readmitted(in.Pod, &in.Reported)
	in.Record = Record{Verdict: &v}
	had := v.Allocated["c"]
	if got := had.Requests.Cpu().String(); got != "100m" || !ResizeDue(&in) {
		t.Errorf("allocated %s, asked for: %v", got, ResizeDue(&in))
	}
}

// TestNewResizeDoesNotWaitForTheLast, which failed.
func TestNewResizeDoesNotWaitForTheLast(t *testing.T) {
	in, now := resizing(), time.Unix(1000, 0)
	ask(&in, "200m")
	TakeResize(&in, ResizeDecision{Allocate: true})
	in.Failures = map[Key]Failure{ResizeKey: {Count: 9, At: now, Attempt: 1, Message: "no"}}
	if p, _ := in.step(now); wants(p, ResizePod, "") || p.RecheckAt.IsZero() {
		t.Errorf("ops %+v, again at %v", p.Ops, p.RecheckAt)
	}
	ask(&in, "150m")
	TakeResize(&in, ResizeDecision{Allocate: true})
	if p, _ := in.step(now); !wants(p, ResizePod, "") {
		t.Errorf("ops %+v", p.Ops)
	}
	if c := pods.FindCondition(&in.Reported, v1.PodResizeInProgress); c.Reason != "" || c.ObservedGeneration != 3 {
		t.Errorf("condition %+v", c)
	}
}
