package sim

import (
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"wherry.dev/internal/kubelet/podplan"
)

// A checker that cannot fail proves nothing: each history breaks one rule.
func TestCheckerSeesWhatIsWrong(t *testing.T) {
	pod := &v1.Pod{Spec: v1.PodSpec{
		TerminationGracePeriodSeconds: ptr.To[int64](1),
		InitContainers: []v1.Container{
			{Name: "s0", RestartPolicy: ptr.To(v1.ContainerRestartPolicyAlways), StartupProbe: &v1.Probe{}},
			{Name: "i1"},
		},
		Containers: []v1.Container{{Name: "c0"}},
	}}
	box := Event{What: SandboxMade, Sandbox: "b"}
	made := func(name, id string, attempt uint32) Event {
		return Event{What: Created, Name: name, ID: id, Sandbox: "b", Attempt: attempt}
	}
	did := func(what What, name, id string, code int32) Event {
		return Event{What: what, Name: name, ID: id, Sandbox: "b", Code: code}
	}
	op := func(kind podplan.Kind, ending bool) Event {
		return Event{What: OpBegins, Op: podplan.Op{Kind: kind, Name: "c0", ID: "1"}, Ending: ending}
	}
	wrote := func(phase v1.PodPhase, generation int64, restarts int32) Event {
		return Event{What: StatusWritten, Status: &v1.PodStatus{Phase: phase, ObservedGeneration: generation, ContainerStatuses: []v1.ContainerStatus{{
			Name: "c0", RestartCount: restarts, State: v1.ContainerState{Running: &v1.ContainerStateRunning{}},
		}}}}
	}
	up := []Event{
		box, made("s0", "1", 0), did(Started, "s0", "1", 0), {What: StartupPassed, ID: "1"},
		made("i1", "2", 0), did(Started, "i1", "2", 0), did(Exited, "i1", "2", 0), made("c0", "3", 0), did(Started, "c0", "3", 0),
	}
	with := func(first []Event, more ...Event) []Event { return slices.Concat(first, more) }
	at := func(d time.Duration, e Event) Event { e.At = d; return e }
	for want, events := range map[string][]Event{
		"":                                         with(up, wrote(v1.PodRunning, 1, 0), did(Exited, "c0", "3", 1), made("c0", "4", 1), wrote(v1.PodRunning, 1, 1)),
		"is created while 3 lives":                 with(up, made("c0", "4", 1)),
		"attempt of c0 fell":                       with(up, did(Exited, "c0", "3", 1), did(Removed, "c0", "3", 0), made("c0", "4", 0)),
		"before init container i1 is done":         with(up[:5], made("c0", "3", 0)),
		"c0 is created before init container i1":   with(up[:6], did(Exited, "i1", "2", 1), made("c0", "3", 0)),
		"before sidecar s0 was started":            {box, made("i1", "2", 0)},
		"before sidecar s0 passed its startup":     with(up[:3], made("i1", "2", 0)),
		"although an app container was there":      with(up, made("i1", "5", 1)),
		"which nobody made":                        {made("i1", "2", 0)},
		"begins although the pod ends":             {op(podplan.StopContainer, true), op(podplan.PullImage, false)},
		"StartContainer c0 1 begins although":      {op(podplan.StartContainer, true)},
		"after the pod was asked to go":            {{What: KubeletUp, At: 1}, {What: PodAsked, At: 2}, at(time.Hour, op(podplan.RunSandbox, false))},
		"of the same key":                          {op(podplan.CreateContainer, false), op(podplan.StartContainer, false)},
		"ClearVolumes c0 1 begins while":           with(up, op(podplan.ClearVolumes, true)),
		"UnprepareClaims c0 1 begins while":        with(up, op(podplan.UnprepareClaims, true)),
		"Forget c0 1 begins while":                 {op(podplan.RemoveContainer, true), op(podplan.Forget, true)},
		"phase Succeeded is written while":         with(up, wrote(v1.PodSucceeded, 1, 0)),
		"phase went from Failed":                   {wrote(v1.PodFailed, 1, 0), wrote(v1.PodRunning, 1, 0)},
		"observedGeneration fell":                  {wrote(v1.PodRunning, 2, 0), wrote(v1.PodRunning, 1, 0)},
		"restart count of c0 fell from 2 to 1":     {wrote(v1.PodRunning, 1, 2), wrote(v1.PodRunning, 1, 1)},
		"object is deleted while 3 containers are": with(up, Event{What: ObjectGone}),
		"it is not backed off":                     repeated(op(podplan.StopContainer, false), 50, time.Second),
		"without a cause":                          repeated(op(podplan.StopContainer, false), 150, 3*time.Second),
		"steps in ten seconds":                     repeated(Event{What: Stepped}, 2000, time.Millisecond),
	} {
		c := NewChecker()
		err := c.Check(Event{What: PodSet, Pod: pod})
		for i := 0; i < len(events) && err == nil; i++ {
			err = c.Check(events[i])
		}
		switch {
		case want == "" && err != nil:
			t.Errorf("a good history: %v", err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("want %q, got %v", want, err)
		}
	}
}

// repeated returns an event, with its end if it is an op, many times over.
func repeated(e Event, times int, every time.Duration) []Event {
	var out []Event
	for i := range times {
		e.At = time.Duration(i) * every
		out = append(out, e)
		if e.What == OpBegins {
			out = append(out, Event{What: OpEnds, Op: e.Op, At: e.At})
		}
	}
	return out
}
