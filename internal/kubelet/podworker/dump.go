package podworker

import (
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"wherry.dev/internal/kubelet/podplan"
)

// Dump is what /debug/pods/UID shows of a pod: everything that its worker last saw, decided and
// did. As JSON it can be fed to a test as it is: podplan.Next of Input and At returns Plan, and
// podplan.Status returns Status.
type Dump struct {
	At       time.Time
	Input    podplan.Input
	Plan     podplan.Plan
	Status   v1.PodStatus
	InFlight []podplan.Flight
	// Transitions are the newest steps, oldest first.
	Transitions []Transition
}

// Dump returns the snapshot as a Dump.
func (s *Snapshot) Dump() Dump {
	d := Dump{At: s.At.Round(0).UTC(), Input: s.Input, Plan: s.Plan, Status: s.Status, InFlight: s.InFlight, Transitions: s.Transitions}
	if n := len(d.Transitions); n > keptTransitions {
		d.Transitions = d.Transitions[n-keptTransitions:]
	}
	return d
}

// Summary is a pod's line in /debug/pods.
type Summary struct {
	UID       types.UID
	Namespace string
	Name      string
	Static    bool `json:",omitempty"`
	Absent    bool `json:",omitempty"`
	Life      podplan.Life
	Phase     v1.PodPhase
	Waiting   []string
	InFlight  []podplan.Flight
	// Stepped is when the worker last looked.
	Stepped time.Time
}

// Summary returns the snapshot in short form.
func (s *Snapshot) Summary() Summary {
	return Summary{
		UID: s.Pod.UID, Namespace: s.Pod.Namespace, Name: s.Pod.Name, Static: s.Static, Absent: s.Absent,
		Life: s.Plan.Life, Phase: s.Status.Phase, Waiting: s.Plan.Waiting, InFlight: s.InFlight, Stepped: s.At.Round(0).UTC(),
	}
}

// inFlight returns the ops in flight, in the order of their keys.
func (w *Worker) inFlight() []podplan.Flight {
	var out []podplan.Flight
	if len(w.flights) == 0 {
		return out
	}
	for _, key := range slices.Sorted(maps.Keys(w.flights)) {
		out = append(out, w.flights[key].Flight)
	}
	return out
}
