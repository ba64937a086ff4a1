package validation

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const (
	maxEventWord = 128
	maxEventNote = 1024
)

// Event checks an event. Events with an eventTime are of the newer kind, whose fields are all
// required. strict is for events that came through events.k8s.io.
func Event(e *corev1.Event, strict bool) field.ErrorList {
	p := &problems{}
	const mismatch = "does not match event.namespace"
	involved := field.NewPath("involvedObject", "namespace")
	if e.EventTime.IsZero() {
		if ns := e.InvolvedObject.Namespace; ns != e.Namespace && (ns != "" || (e.Namespace != "" && e.Namespace != metav1.NamespaceDefault)) {
			p.invalid(involved, ns, mismatch)
		}
	} else {
		if e.InvolvedObject.Namespace == "" && e.Namespace != metav1.NamespaceDefault && e.Namespace != metav1.NamespaceSystem {
			p.invalid(involved, "", mismatch)
		}
		p.newEvent(e, strict)
	}
	p.subdomain(field.NewPath("namespace"), e.Namespace)
	return p.list
}

func (p *problems) newEvent(e *corev1.Event, strict bool) {
	controller := field.NewPath("reportingComponent")
	if strict {
		controller = field.NewPath("reportingController")
	}
	p.present(controller, e.ReportingController)
	p.qualified(controller, e.ReportingController)
	for _, f := range [][2]string{{"reportingInstance", e.ReportingInstance}, {"action", e.Action}, {"reason", e.Reason}} {
		at, value := field.NewPath(f[0]), f[1]
		p.present(at, value)
		if len(value) > maxEventWord {
			p.invalid(at, "", "can have at most %v characters", maxEventWord)
		}
	}
	if len(e.Message) > maxEventNote {
		p.invalid(field.NewPath("message"), "", "can have at most %v characters", maxEventNote)
	}
}

// StrictEvent checks what events.k8s.io requires of a new event in addition.
func StrictEvent(e *corev1.Event) field.ErrorList {
	p := &problems{list: Event(e, true)}
	p.subdomain(field.NewPath("metadata", "name"), e.Name)
	if e.EventTime.IsZero() {
		p.required(field.NewPath("eventTime"), "")
	}
	if e.Type != corev1.EventTypeNormal && e.Type != corev1.EventTypeWarning {
		p.invalid(field.NewPath("type"), "", "has invalid value: %v", e.Type)
	}
	unset := map[string]bool{
		"firstTimestamp": e.FirstTimestamp.IsZero(), "lastTimestamp": e.LastTimestamp.IsZero(),
		"count": e.Count == 0, "source": e.Source == (corev1.EventSource{}),
	}
	for name, ok := range unset {
		if !ok {
			p.invalid(field.NewPath(name), "", "needs to be unset")
		}
	}
	p.eventSeries(e)
	return p.list
}

func (p *problems) eventSeries(e *corev1.Event) {
	if e.Series == nil {
		return
	}
	if e.Series.Count < 2 {
		p.invalid(field.NewPath("series.count"), "", "should be at least 2")
	}
	if e.Series.LastObservedTime.IsZero() {
		p.required(field.NewPath("series.lastObservedTime"), "")
	}
}

// inMicroseconds returns t with the precision of storage: clients may send nanoseconds.
func inMicroseconds(t metav1.MicroTime) metav1.MicroTime {
	return metav1.NewMicroTime(t.Truncate(time.Microsecond))
}

// StrictEventUpdate checks an update through events.k8s.io, which can change only the series.
func StrictEventUpdate(e, old *corev1.Event) field.ErrorList {
	p := &problems{list: Event(e, true)}
	if !apiequality.Semantic.DeepEqual(e.Series, old.Series) {
		p.eventSeries(e)
	}
	fields := []struct {
		name    string
		is, was any
	}{
		{"involvedObject", e.InvolvedObject, old.InvolvedObject},
		{"reason", e.Reason, old.Reason},
		{"message", e.Message, old.Message},
		{"source", e.Source, old.Source},
		{"firstTimestamp", e.FirstTimestamp, old.FirstTimestamp},
		{"lastTimestamp", e.LastTimestamp, old.LastTimestamp},
		{"count", e.Count, old.Count},
		{"type", e.Type, old.Type},
		{"eventTime", inMicroseconds(e.EventTime), inMicroseconds(old.EventTime)},
		{"action", e.Action, old.Action},
		{"related", e.Related, old.Related},
		{"reportingController", e.ReportingController, old.ReportingController},
		{"reportingInstance", e.ReportingInstance, old.ReportingInstance},
	}
	for _, f := range fields {
		if !apiequality.Semantic.DeepEqual(f.is, f.was) {
			p.invalid(field.NewPath(f.name), f.is, isImmutable)
		}
	}
	return p.list
}
