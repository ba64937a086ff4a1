// Package report is what our kubelet reports about one of its pods in plain words. It is the
// interface between the node and `wherry explain`, which may have different versions: fields are
// added, and never change their meaning.
package report

import (
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// APIVersion and Kind of a Pod report.
const (
	APIVersion = "report.wherry.dev/v1"
	Kind       = "PodReport"
)

// NoPod is what a kubelet answers, with 404, if it does not know the pod (upstream's words).
const NoPod = "pod does not exist"

// Pod is a report about one pod.
type Pod struct {
	metav1.TypeMeta `json:",inline"`

	// UID is the one by which the kubelet knows the pod. A static pod's differs from its mirror's.
	UID types.UID `json:"uid"`
	// At is when the pod's worker last looked.
	At time.Time `json:"at"`
	// Status is the newest one that the kubelet has, whether it has sent it or not.
	Status v1.PodStatus `json:"status"`
	// Starting lists what keeps the pod from being ready; the first entry blocks the others.
	Starting []Wait `json:"starting,omitempty"`
	// Ending lists what keeps an ending pod from being gone.
	Ending []Wait `json:"ending,omitempty"`
	// Gone means that nothing of the pod is left on the node.
	Gone  bool     `json:"gone,omitempty"`
	Notes []string `json:"notes,omitempty"`
}

// Wait is a step that is not done yet.
type Wait struct {
	// Step names the step, and the object that it is about.
	Step  string     `json:"step"`
	Since *time.Time `json:"since,omitempty"`
	// Said is the step's last message.
	Said string `json:"said,omitempty"`
	// Next is what would let the step proceed.
	Next string `json:"next"`
	// Retry is when the kubelet retries the step by itself.
	Retry *time.Time `json:"retry,omitempty"`
	// Event, if set, says more than Said does.
	Event *Event `json:"event,omitempty"`
}

// Event identifies an event of the pod: the newest one whose message contains Text.
type Event struct {
	Reason    string    `json:"reason"`
	Container string    `json:"container"`
	Text      string    `json:"text"`
	Since     time.Time `json:"since"`
}

// When returns nil for the zero time, else a pointer to t in UTC.
func When(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}

// Details returns a reason and a message in the form in which they follow another text.
func Details(reason, message string) string {
	switch {
	case reason == "" && message == "":
		return ""
	case message == "":
		return " (" + reason + ")"
	case reason == "":
		return ": " + message
	default:
		return " (" + reason + "): " + message
	}
}

// Said joins a reason, if there is one, and a message.
func Said(reason, message string) string {
	if reason == "" {
		return message
	}
	return strings.TrimSuffix(reason+": "+message, ": ")
}
