package explain

import (
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wherry.dev/internal/api/report"
)

// mostAsked is how many pods are explained along with another object.
const mostAsked = 3

// About is what is known of any object.
type About struct {
	Now time.Time
	// Events of the object.
	Events []v1.Event
	// Unread says what could not be read, and why.
	Unread []string
}

// findings builds one explanation.
type findings struct {
	about About
	out   Explanation
}

func newFindings(kind string, o metav1.Object, a About) findings {
	f := findings{about: a, out: Explanation{Kind: kind, Namespace: o.GetNamespace(), Name: o.GetName(), UID: string(o.GetUID())}}
	for _, u := range a.Unread {
		f.note("%s", u)
	}
	return f
}

// Ask returns the pods that hold the object up. Their explanations belong to this one.
func (x *Explanation) Ask() []*v1.Pod { return x.ask }

// Add takes the explanation of a pod that Ask named.
func (x *Explanation) Add(pod Explanation) { x.Pods = append(x.Pods, pod) }

func (e *findings) wait(w report.Wait) { e.out.Waits = append(e.out.Waits, w) }

func (e *findings) note(format string, args ...any) {
	e.out.Notes = append(e.out.Notes, fmt.Sprintf(format, args...))
}

// deleted explains an object that is being deleted, and reports whether it is.
func (e *findings) deleted(o metav1.Object) bool {
	at := o.GetDeletionTimestamp()
	if at == nil {
		return false
	}
	e.out.State, e.out.Since = "Terminating", report.When(at.Time)
	e.out.Summary = "It is being deleted; nothing holds it up."
	if f := o.GetFinalizers(); len(f) > 0 {
		e.wait(report.Wait{
			Step: "finalizers " + strings.Join(f, ", "), Since: e.out.Since, Said: "they keep the object from being deleted",
			Next: "their controllers remove them from metadata.finalizers" + meaning(f),
		})
		e.out.Summary = "It is being deleted and waits for: " + e.out.Waits[0].Step + "."
	}
	return true
}

// meaning says what the controllers of well-known finalizers wait for.
func meaning(finalizers []string) string {
	switch {
	case slices.Contains(finalizers, metav1.FinalizerDeleteDependents):
		return "; the garbage collector does, once what the object owns is gone"
	case slices.Contains(finalizers, metav1.FinalizerOrphanDependents):
		return "; the garbage collector does, once what the object owns does not refer to it any more"
	}
	return ""
}

// observed reports whether the object's controller has seen its newest spec, and explains if not.
func (e *findings) observed(o metav1.Object, seen int64, controller string) bool {
	if seen >= o.GetGeneration() {
		return true
	}
	e.wait(report.Wait{
		Step: controller, Said: fmt.Sprintf("it has not looked at the newest spec yet (generation %d of %d)", seen, o.GetGeneration()),
		Next: "the " + controller + " runs and picks the object up",
	})
	return false
}

// conclude writes the summary: done, if nothing is waited for.
func (e *findings) conclude(done string) {
	e.out.Summary = done
	if len(e.out.Waits) > 0 {
		e.out.Summary = "It waits for: " + e.out.Waits[0].Step + "."
	}
}

// event returns the newest event with that reason whose object is the container (any object if
// container is empty) and whose message contains the text.
func (e *findings) event(reason, container, text string) *v1.Event {
	var newest *v1.Event
	for i := range e.about.Events {
		ev := &e.about.Events[i]
		if ev.Reason != reason || !strings.Contains(ev.Message, text) ||
			container != "" && !strings.HasSuffix(ev.InvolvedObject.FieldPath, "{"+container+"}") {
			continue
		}
		if newest == nil || eventTime(ev).After(eventTime(newest)) {
			newest = ev
		}
	}
	return newest
}

func eventTime(ev *v1.Event) time.Time {
	for _, t := range []time.Time{ev.LastTimestamp.Time, ev.EventTime.Time, ev.FirstTimestamp.Time} {
		if !t.IsZero() {
			return t
		}
	}
	return ev.CreationTimestamp.Time
}
