// Package report is what a kubelet of ours says of one of its pods in plain words. It is the
// type between the node and `wherry explain`, which may be of different versions: fields are
// added, and never change their meaning.
package report

import (
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// APIVersion and Kind of a Pod.
const (
	APIVersion = "report.wherry.dev/v1"
	Kind       = "PodReport"
)

// NoPod is what a kubelet answers, with 404, of a pod that it does not know (upstream's words).
const NoPod = "pod does not exist"

// Pod is a report of one pod.
type Pod struct {
	metav1.TypeMeta `json:",inline"`

	// UID that the kubelet knows the pod by: a static pod's is not its mirror's.
	UID types.UID `json:"uid"`
	// At is when the pod's worker last looked.
	At time.Time `json:"at"`
	// Status is the newest that the kubelet has, sent or not.
	Status v1.PodStatus `json:"status"`
	// Starting has what keeps the pod from being ready; the first holds the others.
	Starting []Wait `json:"starting,omitempty"`
	// Ending has what keeps a pod that ends from being gone.
	Ending []Wait `json:"ending,omitempty"`
	// Gone says that nothing of the pod is left on the node.
	Gone  bool     `json:"gone,omitempty"`
	Notes []string `json:"notes,omitempty"`
}

// Wait is one step that is not done.
type Wait struct {
	// Step names it, and the object that it is about.
	Step  string     `json:"step"`
	Since *time.Time `json:"since,omitempty"`
	// Said is what the step last said.
	Said string `json:"said,omitempty"`
	// Next is what would let it go on.
	Next string `json:"next"`
	// Retry is when it is tried again by itself.
	Retry *time.Time `json:"retry,omitempty"`
	// Event, if there is one, says more than Said does.
	Event *Event `json:"event,omitempty"`
}

// Event names an event of the pod: the newest whose message has the text.
type Event struct {
	Reason    string    `json:"reason"`
	Container string    `json:"container"`
	Text      string    `json:"text"`
	Since     time.Time `json:"since"`
}

// When makes a time that may be missing.
func When(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}

// Details joins a reason and a message behind something.
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

// Said joins a reason, if there is one, before a message.
func Said(reason, message string) string {
	if reason == "" {
		return message
	}
	return strings.TrimSuffix(reason+": "+message, ": ")
}
