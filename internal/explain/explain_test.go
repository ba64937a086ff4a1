package explain

import (
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"wherry.dev/internal/api/report"
	"wherry.dev/internal/kubelet/podplan"
	"wherry.dev/internal/kubelet/podworker"
	"wherry.dev/internal/kubelet/waits"
)

var now = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

func before(d time.Duration) metav1.Time { return metav1.NewTime(now.Add(-d)) }

// sight is facts with the dump that the kubelet's report is made from.
type sight struct {
	Facts
	Worker *podworker.Dump
}

// facts returns the facts of a pod on node n1 whose sandbox is ready, changed by each step.
func facts(change ...func(*sight)) Facts {
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u", CreationTimestamp: before(time.Hour)},
		Spec: v1.PodSpec{NodeName: "n1", RestartPolicy: v1.RestartPolicyAlways, Containers: []v1.Container{{
			Name: "c", Image: "img",
			ReadinessProbe: &v1.Probe{PeriodSeconds: 5, ProbeHandler: v1.ProbeHandler{Exec: &v1.ExecAction{Command: []string{"true"}}}},
		}}},
	}
	f := sight{
		Facts: Facts{Now: now, Pod: pod, Node: &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}},
		Worker: &podworker.Dump{At: now, Input: podplan.Input{
			Pod: pod, Record: podplan.Record{Verdict: &podplan.Verdict{Admitted: true}, StartTime: now.Add(-time.Hour)},
			Sandboxes: []podplan.Sandbox{{ID: "s", Ready: true, IPs: []string{"10.0.0.1"}}},
			Failures:  map[podplan.Key]podplan.Failure{}, Images: map[string]podplan.Image{}, Volumes: map[string]podplan.Volume{},
		}},
	}
	for _, c := range change {
		c(&f)
	}
	if f.Worker != nil {
		f.Worker.Status = podplan.Status(f.Worker.Input, now)
		f.Pod.Status = f.Worker.Status
		said := waits.Report("u", f.Worker, now)
		f.Kubelet = &said
	}
	return f.Facts
}

func instance(state podplan.State, change ...func(*podplan.Container)) func(*sight) {
	c := podplan.Container{ID: "1", Name: "c", SandboxID: "s", State: state, Created: now.Add(-time.Minute), Started: now.Add(-time.Minute)}
	for _, f := range change {
		f(&c)
	}
	return func(f *sight) { f.Worker.Input.Containers = append(f.Worker.Input.Containers, c) }
}

func fails(key podplan.Key, reason, message string) func(*sight) {
	return func(f *sight) {
		f.Worker.Input.Failures[key] = podplan.Failure{Count: 2, At: now.Add(-5 * time.Second), Reason: reason, Message: message}
	}
}

func runs(op podplan.Op, since time.Duration) func(*sight) {
	return func(f *sight) {
		f.Worker.InFlight = append(f.Worker.InFlight, podplan.Flight{Op: op, Since: now.Add(-since)})
	}
}

func deleted(f *sight) {
	f.Pod.DeletionTimestamp, f.Pod.DeletionGracePeriodSeconds = &metav1.Time{Time: now.Add(20 * time.Second)}, ptr.To[int64](30)
}

func ready(f *sight) { f.Worker.Input.Probes = map[string]podplan.Probe{"1": {Ready: new(true)}} }

func nodeless(f *sight) { f.Worker, f.Node, f.Pod.Spec.NodeName = nil, nil, "" }

func event(reason, message string) func(*sight) {
	return func(f *sight) {
		f.Events = append(f.Events, v1.Event{
			Reason: reason, Message: message, LastTimestamp: before(time.Second),
			InvolvedObject: v1.ObjectReference{FieldPath: "spec.containers{c}"},
		})
	}
}

func TestExplain(t *testing.T) {
	for name, tc := range map[string]struct {
		facts Facts
		want  []string
	}{
		"unschedulable": {facts(nodeless, func(f *sight) {
			f.Pod.Status.Conditions = []v1.PodCondition{{
				Type: v1.PodScheduled, Status: v1.ConditionFalse, Reason: "Unschedulable", Message: "0/1 nodes are available: 1 Insufficient cpu.", LastTransitionTime: before(time.Minute),
			}}
		}), []string{"pod ns/p: Pending, for 1h0m0s\nIt has no node yet.", "scheduler default-scheduler, for 1m0s", "status: 0/1 nodes are available: 1 Insufficient cpu."}},
		"gated by a plugin": {facts(nodeless, func(f *sight) {
			f.Scheduling = &report.Scheduling{Queue: &report.Queue{Place: "gated", Gate: `pod "ns/p": ResourceClaim not created yet`}}
		}), []string{"scheduler default-scheduler", `status: pod "ns/p": ResourceClaim not created yet`, "continues when: that changes"}},
		"a driver's volume": {facts(fails(podplan.VolumeKey("v"), "", "volumes of this kind (csi) are not supported by this node"), func(f *sight) {
			f.Pod.Spec.Volumes = []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{CSI: &v1.CSIVolumeSource{Driver: "d"}}}}
		}), []string{"It waits for: volume v.", "status: volumes of this kind (csi)", "continues when: driver d is on this node and mounts the volume; see its log"}},
		"a claim without a volume": {facts(fails(podplan.VolumeKey("v"), "", "failed to process volumes=[v]: error processing PVC ns/data: PVC is not bound"), func(f *sight) {
			f.Pod.Spec.Volumes = []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}}
		}), []string{"It waits for: volume v.", "PVC is not bound", `continues when: claim "data" is bound to a volume; see: wherry explain -n ns pvc/data`}},
		"a claim with a volume": {facts(fails(podplan.VolumeKey("v"), "", `MountVolume.NewMounter initialization failed for volume "pv" : path "/x" does not exist`), func(f *sight) {
			f.Pod.Spec.Volumes = []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{}}}}
		}), []string{"It waits for: volume v.", `path "/x" does not exist`, `continues when: this node can set up the volume that claim "p-v" is bound to`}},
		"gated": {facts(nodeless, func(f *sight) {
			f.Pod.Spec.SchedulingGates = []v1.PodSchedulingGate{{Name: "example.com/quota"}}
		}), []string{": SchedulingGated,", "scheduling gates example.com/quota"}},
		"nobody schedules": {facts(nodeless, func(f *sight) { f.Pod.Spec.SchedulerName = "mine" }), []string{"scheduler mine", "status: nothing"}},
		"not admitted yet": {facts(func(f *sight) { f.Worker.Input.Record.Verdict = nil }), []string{"admission on node n1"}},
		"volume": {facts(fails(podplan.VolumeKey("v"), "", `configmap "settings" not found`), func(f *sight) {
			f.Pod.Spec.Volumes = []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{
				LocalObjectReference: v1.LocalObjectReference{Name: "settings"},
			}}}}
		}), []string{": ContainerCreating", "It waits for: volume v.", `status: configmap "settings" not found`, "next try: now", `continues when: config map "settings" exists`}},
		"sandbox": {facts(fails(podplan.SandboxKey, "", "no network"), func(f *sight) { f.Worker.Input.Sandboxes = nil }),
			[]string{"the pod's sandbox and network, for 5s", "status: no network"}},
		"pull": {facts(runs(podplan.Op{Kind: podplan.PullImage, Name: "c", Image: "img"}, time.Minute)), []string{"image of container c, for 1m0s", `image "img" is being pulled`}},
		"pull fails": {facts(fails(podplan.ImageKey("c", "img"), podplan.ReasonErrImagePull, "not found")),
			[]string{": ImagePullBackOff", "image of container c", "status: ErrImagePull: not found", "next try: in 15s, at 12:00:15", "imagePullSecrets"}},
		"pull of a volume fails": {facts(fails(podplan.ImageKey(podplan.VolumeImage("v"), "data:1"), podplan.ReasonErrImagePull, "not found"), func(f *sight) {
			f.Pod.Spec.Volumes = []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{Image: &v1.ImageVolumeSource{Reference: "data:1"}}}}
			f.Pod.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "v", MountPath: "/v"}}
			f.Worker.Status = podplan.Status(f.Worker.Input, now)
			f.Pod.Status = f.Worker.Status
		}), []string{": ImagePullBackOff", "It waits for: image of volume v, for container c.", "status: ErrImagePull: not found", `a pull of "data:1" succeeds`}},
		"volume cannot be renewed": {facts(instance(podplan.Running), ready, fails(podplan.VolumeKey("v"), "", `configmap "settings" not found`), func(f *sight) {
			f.Pod.Spec.Volumes = []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{
				LocalObjectReference: v1.LocalObjectReference{Name: "settings"},
			}}}}
			f.Worker.Input.Volumes["v"] = podplan.Volume{Mounted: true}
		}), []string{"It runs and is ready", `volume v keeps its old content and cannot be updated: configmap "settings" not found; it is updated when config map "settings" exists`}},
		"never pulled": {facts(fails(podplan.ImageKey("c", "img"), podplan.ReasonErrImageNeverPull, "not present")), []string{"wherry image import"}},
		"create fails": {facts(fails(podplan.ContainerKey("c"), podplan.ReasonCreateConfigError, `secret "s" not found`)),
			[]string{": CreateContainerConfigError", "container c, for", `status: CreateContainerConfigError: secret "s" not found`}},
		"crash": {facts(instance(podplan.Exited, func(c *podplan.Container) {
			c.Attempt, c.ExitCode, c.Reason, c.Finished = 3, 1, "Error", now.Add(-10*time.Second)
		}), func(f *sight) {
			f.Worker.Input.Record.Containers = map[string]podplan.History{"c": {Attempt: 3, Wait: 40 * time.Second}}
		}), []string{": CrashLoopBackOff", "back-off of container c, for 10s", "status: it ended with exit code 1 (Error); restarts: 3", "next try: in 30s", "kubectl logs -n ns p -c c --previous"}},
		"not ready": {facts(instance(podplan.Running), event("Unhealthy", "Readiness probe failed: no route")),
			[]string{": Running, not ready", "readiness probe of container c, for 1m0s", "status: Readiness probe failed: no route", "exec true, every 5s"}},
		"startup": {facts(instance(podplan.Running), func(f *sight) {
			f.Pod.Spec.Containers[0].StartupProbe = &v1.Probe{FailureThreshold: 30, ProbeHandler: v1.ProbeHandler{TCPSocket: &v1.TCPSocketAction{}}}
		}), []string{"startup probe of container c", "status: it has not passed yet", "after 30 failures in a row the container is killed"}},
		"init": {facts(instance(podplan.Running, func(c *podplan.Container) { c.Name = "i" }), func(f *sight) {
			f.Pod.Spec.InitContainers = []v1.Container{{Name: "i"}}
		}), []string{": Init:0/1", "init container i, for 1m0s", "it ends with exit code 0"}},
		"hook": {facts(instance(podplan.Running), func(f *sight) {
			f.Pod.Spec.Containers[0].Lifecycle = &v1.Lifecycle{PostStart: &v1.LifecycleHandler{}}
			f.Worker.Input.Hooks = map[string]podplan.Hook{"1": {}}
		}), []string{"postStart hook of container c"}},
		"gate": {facts(instance(podplan.Running), ready, func(f *sight) {
			f.Pod.Spec.ReadinessGates = []v1.PodReadinessGate{{ConditionType: "example.com/lb"}}
		}), []string{"readiness gate example.com/lb", "status: the pod does not have the condition"}},
		"node down": {facts(instance(podplan.Running), ready, func(f *sight) {
			f.Worker, f.KubeletErr = nil, "connection refused"
			f.Node.Status.Conditions = []v1.NodeCondition{{
				Type: v1.NodeReady, Status: v1.ConditionUnknown, Reason: "NodeStatusUnknown", Message: "Kubelet stopped posting node status.", LastTransitionTime: before(time.Minute),
			}}
		}), []string{"node n1, for 1m0s", "Kubelet stopped posting node status.", "note: the kubelet of node n1 could not be asked: connection refused"}},
		"node gone": {facts(func(f *sight) { f.Worker, f.NodeGone = nil, true }), []string{"status: the node does not exist"}},
		"not seen":  {facts(func(f *sight) { f.Worker, f.KubeletGone = nil, true }), []string{"kubelet of node n1", "it has not picked the pod up yet"}},
		"ready":     {facts(instance(podplan.Running), ready), []string{": Running", "It runs and is ready; it waits for nothing."}},
		"a volume ails": {facts(instance(podplan.Running), ready, func(f *sight) {
			f.Worker.Input.VolumeHealth = []v1.PodVolumeHealth{{Name: "v", HealthConditions: []v1.VolumeHealthCondition{
				{Status: v1.VolumeHealthDegraded, Reason: "PathLost", Message: "one path of two"}, {Status: v1.VolumeHealthDataLoss, Reason: "BadBlocks"},
			}}}
		}), []string{"It runs and is ready", "note: volume v: its driver says that on this node it is Degraded (PathLost): one path of two, DataLoss (BadBlocks)"}},
		"ended": {facts(func(f *sight) {
			f.Worker, f.Pod.Status = nil, v1.PodStatus{Phase: v1.PodFailed, Reason: "Evicted", Message: "low on memory"}
		}), []string{": Evicted", "It has ended and waits for nothing: low on memory"}},
		"other words": {facts(func(f *sight) { f.Worker, f.Pod.Status = nil, waiting("CreateContainerError", "it is broken") }), []string{"container c", "status: CreateContainerError: it is broken"}},
		"stops": {facts(deleted, instance(podplan.Running), runs(podplan.Op{Kind: podplan.StopContainer, ID: "1", Deadline: now.Add(20 * time.Second)}, 10*time.Second)),
			[]string{": Terminating, for 10s", "end of container c, for 10s", "it ends, or is killed at 12:00:20"}},
		"hangs": {facts(deleted, instance(podplan.Running), runs(podplan.Op{Kind: podplan.StopContainer, ID: "1", Deadline: now.Add(-time.Minute)}, 2*time.Minute)),
			[]string{"has not ended even after SIGKILL"}},
		"unmount": {facts(deleted, fails("volumes", "", "device or resource busy"), func(f *sight) {
			op := &podplan.Op{Kind: podplan.ClearVolumes}
			f.Worker.Transitions = []podworker.Transition{{What: "done", At: now.Add(-time.Minute), Op: op, Err: "busy"}, {What: "start", At: now, Op: op}}
		}), []string{"unmounting the pod's volumes, for 1m0s", "status: device or resource busy"}},
		"finalizer": {facts(deleted, func(f *sight) {
			f.Worker, f.KubeletGone, f.Pod.Finalizers = nil, true, []string{"example.com/keep"}
		}), []string{"finalizers example.com/keep, for 10s", "status: they keep the object from being deleted\n"}},
		"goes": {facts(deleted, func(f *sight) { f.Worker, f.KubeletGone = nil, true }), []string{"only its object is left"}},
	} {
		t.Run(name, func(t *testing.T) {
			x := Explain(tc.facts)
			text := x.Text(now)
			for _, want := range tc.want {
				if !strings.Contains(text, want) {
					t.Errorf("no %q in\n%s", want, text)
				}
			}
			if x.Summary == "" || x.State == "" {
				t.Errorf("%+v", x)
			}
			for _, w := range x.Waits {
				if w.Step == "" || w.Next == "" {
					t.Errorf("a wait without words: %+v", w)
				}
			}
		})
	}
}

func waiting(reason, message string) v1.PodStatus {
	return v1.PodStatus{Phase: v1.PodPending, ContainerStatuses: []v1.ContainerStatus{{
		Name: "c", State: v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: reason, Message: message}},
	}}}
}

// A container that runs, and that the API server shows as ended, used to be explained by "It runs
// and is ready", and nothing more.
func TestExplainsWhatTheAPIServerGoesOnShowing(t *testing.T) {
	for policy, told := range map[v1.RestartPolicy]bool{v1.RestartPolicyNever: true, v1.RestartPolicyAlways: false} {
		f := facts(instance(podplan.Running), ready)
		f.Pod.Spec.RestartPolicy = policy
		f.Pod.Status = *f.Kubelet.Status.DeepCopy()
		f.Pod.Status.ContainerStatuses[0].State = v1.ContainerState{Terminated: &v1.ContainerStateTerminated{ExitCode: 7}}
		x := Explain(f)
		if text := x.Text(now); strings.Contains(text, "still shows container c as ended with exit code 7") != told {
			t.Errorf("%s:\n%s", policy, text)
		}
	}
}

func TestAPodWithoutANodeIsExplainedNodeByNode(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p", CreationTimestamp: metav1.NewTime(now.Add(-time.Minute))}}
	p.Status.Conditions = []v1.PodCondition{{Type: v1.PodScheduled, Status: v1.ConditionFalse, Message: "0/7 nodes are available.", LastTransitionTime: p.CreationTimestamp}}
	x := Explain(Facts{Now: now, Pod: p, Scheduling: &report.Scheduling{
		Queue: &report.Queue{Place: "unschedulable", Attempts: 2, Retry: report.When(now.Add(time.Minute)), WaitsFor: []report.Awaited{{Plugin: "Fit", Events: []string{"Node/Add", "Pod/Delete"}}}},
		Nodes: []report.NodeGroup{
			{Plugin: "Fit", Reasons: []string{"Insufficient cpu"}, Count: 6, Names: []string{"a", "b"}, Fixes: []string{"1 CPU more on node b", "end x"}},
			{Count: 1, Names: []string{"z"}},
		},
	}})
	const want = `pod default/p: Pending, for 1m0s
It has no node yet.

  scheduler default-scheduler, for 1m0s
    status: 0/7 nodes are available.
    next try: in 1m0s, at 03:05:05 UTC
    continues when: a node is added or changes, or room is freed, so that the pod fits; the scheduler then retries on its own

  nodes:
    a, b and 4 more: Insufficient cpu (Fit)
      would help: 1 CPU more on node b
              or: end x
    z: it fits now

  note: plugin Fit waits for: Node/Add, Pod/Delete
  note: in the scheduler's queue it is unschedulable, after 2 attempts
`
	if got := x.Text(now); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestWhyNode(t *testing.T) {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p"}, Spec: v1.PodSpec{NodeName: "b"}, Status: v1.PodStatus{Phase: v1.PodRunning}}
	for name, tc := range map[string]struct {
		scheduling *report.Scheduling
		failed     string
		want       string
	}{
		"compared": {
			scheduling: &report.Scheduling{Choice: &report.Choice{Nodes: 9, Feasible: 2, Best: []report.NodeScore{
				{Node: "b", Total: 290, Parts: []report.PluginScore{{Plugin: "Fit", Score: 90, Weight: 1}, {Plugin: "Spread", Score: 200, Weight: 2}}}, {Node: "a", Total: 90, Parts: []report.PluginScore{{Plugin: "Fit", Score: 90, Weight: 1}}},
			}}},
			want: `Of 9 nodes, 2 on which the pod could run were compared.

  the best nodes, and what plugins gave them (up to 100, times their weight):
    b: 290 = Fit 90 + Spread 200
    a: 90 = Fit 90
`,
		},
		"the only one of many": {scheduling: &report.Scheduling{Choice: &report.Choice{Nodes: 9, Feasible: 1}}, want: "It is the only one of 9 nodes on which the pod could run.\n"},
		"the only one":         {scheduling: &report.Scheduling{Choice: &report.Choice{Nodes: 1, Feasible: 1}}, want: "It is the only node.\n"},
		"forgotten":            {want: "The scheduler does not remember how this node was chosen: it keeps the last pods only, and knows nothing of pods that others have bound.\n"},
		"forbidden":            {failed: "you may not", want: "The scheduler could not be asked: you may not\n"},
	} {
		x := WhyNode(Facts{Pod: p, Scheduling: tc.scheduling, SchedulerErr: tc.failed})
		if got, want := x.Text(time.Now()), "pod default/p on node b: Running\n"+tc.want; got != want {
			t.Errorf("%s: got\n%s\nwant\n%s", name, got, want)
		}
	}
}
