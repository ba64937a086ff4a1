package podplan

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"wherry.dev/internal/api/pods"
)

// served returns a pod with an init container, a sidecar, an app container and a readiness gate,
// all fully up.
func served(change ...func(*Input)) Input {
	always := v1.ContainerRestartPolicyAlways
	all := append([]func(*Input){func(in *Input) {
		in.Pod.Generation = 7
		in.Pod.Spec.InitContainers = []v1.Container{{Name: "init"}, {Name: "side", RestartPolicy: &always}}
		in.Pod.Spec.ReadinessGates = []v1.PodReadinessGate{{ConditionType: "example.com/lb"}}
		in.Reported.Conditions = []v1.PodCondition{{Type: "example.com/lb", Status: v1.ConditionTrue, ObservedGeneration: 3}}
	}}, change...)
	return lifeOf(v1.RestartPolicyAlways, all...)
}

var (
	initDone  = has(Container{ID: "i", Name: "init", State: Exited})
	sideRuns  = has(Container{ID: "s", Name: "side", State: Running})
	unmounted = func(in *Input) {
		in.Pod.Spec.Volumes = append(in.Pod.Spec.Volumes, v1.Volume{Name: "v", VolumeSource: v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "s"}}})
	}
	appRuns = has(Container{ID: "c", Name: "c", State: Running})
)

func TestConditions(t *testing.T) {
	unready := func(name string) func(*Input) {
		return func(in *Input) {
			pods.FindContainer(in.Pod, name).ReadinessProbe = &v1.Probe{}
			in.Probes = map[string]Probe{"c": {Ready: new(false)}, "s": {Ready: new(false)}}
		}
	}
	const yes, no = v1.ConditionTrue, v1.ConditionFalse
	for name, tc := range map[string]struct {
		in                     Input
		phase                  v1.PodPhase
		kind                   v1.PodConditionType
		status                 v1.ConditionStatus
		reason, message        string
		initialized, contReady v1.ConditionStatus
	}{
		"nothing yet":          {served(), v1.PodPending, v1.PodInitialized, no, "ContainersNotInitialized", "containers with incomplete status: [init side]", no, no},
		"sidecar to come":      {served(initDone), v1.PodPending, v1.PodInitialized, no, "ContainersNotInitialized", "containers with incomplete status: [side]", no, no},
		"app to come":          {served(initDone, sideRuns), v1.PodPending, v1.ContainersReady, no, "ContainersNotReady", "containers with unready status: [c]", yes, no},
		"all run":              {served(initDone, sideRuns, appRuns), v1.PodRunning, v1.PodReady, yes, "", "", yes, yes},
		"app is not ready":     {served(initDone, sideRuns, appRuns, unready("c")), v1.PodRunning, v1.PodReady, no, "ContainersNotReady", "containers with unready status: [c]", yes, no},
		"sidecar is not ready": {served(initDone, sideRuns, appRuns, unready("side")), v1.PodRunning, v1.PodReady, no, "ContainersNotReady", "containers with unready status: [side]", yes, no},
		"sidecar restarts":     {served(initDone, has(Container{ID: "s", Name: "side", State: Exited, ExitCode: 1}), appRuns), v1.PodRunning, v1.PodInitialized, yes, "", "", yes, no},
		"gate is missing": {served(initDone, sideRuns, appRuns, func(in *Input) { in.Reported.Conditions = nil }), v1.PodRunning, v1.PodReady, no, "ReadinessGatesNotReady",
			`corresponding condition of pod readiness gate "example.com/lb" does not exist.`, yes, yes},
		"gate is closed": {served(initDone, sideRuns, appRuns, func(in *Input) { in.Reported.Conditions[0].Status = no }), v1.PodRunning, v1.PodReady, no, "ReadinessGatesNotReady",
			`the status of pod readiness gate "example.com/lb" is not "True", but False`, yes, yes},
		"no sandbox":     {served(func(in *Input) { in.Sandboxes = nil }), v1.PodPending, v1.PodReadyToStartContainers, no, "", "", no, no},
		"sandbox":        {served(), v1.PodPending, v1.PodReadyToStartContainers, yes, "", "", no, no},
		"volume to come": {served(unmounted), v1.PodPending, v1.PodReadyToStartContainers, no, "", "", no, no},
		// The kubelet has started anew, and has not looked at its volumes yet.
		"volume was there": {served(unmounted, initDone), v1.PodPending, v1.PodReadyToStartContainers, yes, "", "", no, no},
		"scheduled":        {served(), v1.PodPending, v1.PodScheduled, yes, "", "", no, no},
	} {
		st := Status(tc.in, noon)
		c := pods.FindCondition(&st, tc.kind)
		if st.Phase != tc.phase || c == nil || c.Status != tc.status || c.Reason != tc.reason || c.Message != tc.message {
			t.Errorf("%s: phase %s, %+v", name, st.Phase, c)
		}
		if i, r := pods.FindCondition(&st, v1.PodInitialized).Status, pods.FindCondition(&st, v1.ContainersReady).Status; i != tc.initialized || r != tc.contReady {
			t.Errorf("%s: initialized %s, containers ready %s", name, i, r)
		}
	}
}

// TestConditionsOfPodsThatEnded: nothing of them is ready, and they say why.
func TestConditionsOfPodsThatEnded(t *testing.T) {
	for name, tc := range map[string]struct {
		code        int32
		phase       v1.PodPhase
		ready, init string
	}{
		"well":  {0, v1.PodSucceeded, "PodCompleted", "PodCompleted"},
		"badly": {1, v1.PodFailed, "PodFailed", ""},
	} {
		in := lifeOf(v1.RestartPolicyNever, has(Container{ID: "c", Name: "c", State: Exited, ExitCode: tc.code}))
		in.Record = Next(in, noon).Record
		st := Status(in, noon)
		for kind, reason := range map[v1.PodConditionType]string{v1.PodReady: tc.ready, v1.ContainersReady: tc.ready, v1.PodInitialized: tc.init} {
			want := v1.ConditionFalse
			if kind == v1.PodInitialized {
				want = v1.ConditionTrue
			}
			if c := pods.FindCondition(&st, kind); st.Phase != tc.phase || c.Status != want || c.Reason != reason {
				t.Errorf("%s: phase %s, %+v", name, st.Phase, c)
			}
		}
	}
}

// TestGenerations: each of our conditions has the generation that was looked at, those of others
// stay as they are, and no generation falls. Times change only with the status.
func TestGenerations(t *testing.T) {
	in := served(initDone, sideRuns, appRuns)
	in.Record.Ending = &Ending{Since: noon, Reason: "Evicted", Message: "low on memory", Disruption: v1.PodReasonTerminationByKubelet, Grace: ptr.To[int64](5)}
	in.Reported = Status(in, noon)
	if d := pods.FindCondition(&in.Reported, v1.DisruptionTarget); d == nil || d.Status != v1.ConditionTrue || d.Reason != "TerminationByKubelet" || d.Message != "low on memory" {
		t.Errorf("disruption %+v", d)
	}
	in.Pod.Generation = 9
	st := Status(in, noon.Add(time.Hour))
	if st.ObservedGeneration != 9 || len(st.Conditions) != 7 {
		t.Errorf("generation %d, %d conditions", st.ObservedGeneration, len(st.Conditions))
	}
	for _, c := range st.Conditions {
		switch want := int64(9); {
		case c.Type == "example.com/lb":
			if c.ObservedGeneration != 3 {
				t.Errorf("a condition of others was changed: %+v", c)
			}
		case c.ObservedGeneration != want:
			t.Errorf("%s is of generation %d, want %d", c.Type, c.ObservedGeneration, want)
		case !c.LastTransitionTime.Equal(new(metav1.NewTime(noon))):
			t.Errorf("%s changed at %v", c.Type, c.LastTransitionTime)
		}
	}
	in.Reported, in.Pod.Generation = st, 8 // the informer lags behind
	if st = Status(in, noon); st.ObservedGeneration != 9 || pods.FindCondition(&st, v1.PodReady).ObservedGeneration != 9 {
		t.Errorf("a generation fell: %d", st.ObservedGeneration)
	}
}
