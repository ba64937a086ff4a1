package validation

import (
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	nodev1 "k8s.io/api/node/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	utilnet "k8s.io/utils/net"

	"wherry.dev/internal/api/pods"
)

// Lease checks a lease.
func Lease(l *coordinationv1.Lease) field.ErrorList {
	p := &problems{}
	at := field.NewPath("spec")
	if d := l.Spec.LeaseDurationSeconds; d != nil && *d <= 0 {
		p.invalid(at.Child("leaseDurationSeconds"), *d, "must be greater than 0")
	}
	if n := l.Spec.LeaseTransitions; n != nil && *n < 0 {
		p.invalid(at.Child("leaseTransitions"), *n, mustNotBeNegative)
	}
	if h := l.Spec.PreferredHolder; h != nil && *h != "" && (l.Spec.Strategy == nil || *l.Spec.Strategy == "") {
		p.forbidden(at.Child("preferredHolder"), "may only be specified if `strategy` is defined")
	}
	return p.list
}

// RuntimeClass checks a runtime class.
func RuntimeClass(c *nodev1.RuntimeClass) field.ErrorList {
	p := &problems{}
	if p.present(field.NewPath("handler"), c.Handler) {
		p.label(field.NewPath("handler"), c.Handler)
	}
	if c.Overhead != nil {
		p.requirements(field.NewPath("overhead"), &corev1.ResourceRequirements{Limits: c.Overhead.PodFixed}, nil, p.containerResourceName)
	}
	if s := c.Scheduling; s != nil {
		at := field.NewPath("scheduling")
		p.addAll(metavalidation.ValidateLabels(s.NodeSelector, at.Child("nodeSelector")))
		p.tolerations(at.Child("tolerations"), s.Tolerations)
	}
	return p.list
}

// RuntimeClassUpdate checks a runtime class that replaces old.
func RuntimeClassUpdate(c, old *nodev1.RuntimeClass) field.ErrorList {
	p := &problems{}
	immutable(p, field.NewPath("handler"), c.Handler, old.Handler)
	return p.list
}

const (
	highestUserPriority = 1000000000
	systemPrefix        = "system-"
)

var systemClasses = map[string]int32{
	pods.NodeCritical: pods.NodeCriticalPriority, pods.ClusterCritical: pods.ClusterCriticalPriority,
}

// PriorityClass checks a priority class.
func PriorityClass(c *schedulingv1.PriorityClass) field.ErrorList {
	p := &problems{}
	const reserved = "priority class names with '" + systemPrefix + "' prefix are reserved for system use only. error: "
	name := field.NewPath("metadata", "name")
	switch value, known := systemClasses[c.Name]; {
	case !strings.HasPrefix(c.Name, systemPrefix):
		if c.Value > highestUserPriority {
			p.forbidden(field.NewPath("value"), "maximum allowed value of a user defined priority is %v", highestUserPriority)
		}
	case !known:
		p.forbidden(name, "%s%v is not a known system priority class", reserved, c.Name)
	case value != c.Value:
		p.forbidden(name, "%svalue of %v PriorityClass must be %v", reserved, c.Name, value)
	case c.GlobalDefault:
		p.forbidden(name, "%sglobalDefault of %v PriorityClass must be false", reserved, c.Name)
	}
	if c.PreemptionPolicy != nil {
		oneOfRequired(p, field.NewPath("preemptionPolicy"), *c.PreemptionPolicy, corev1.PreemptLowerPriority, corev1.PreemptNever)
	}
	return p.list
}

// PriorityClassUpdate checks a priority class that replaces old.
func PriorityClassUpdate(c, old *schedulingv1.PriorityClass) field.ErrorList {
	p := &problems{}
	if c.Value != old.Value {
		p.forbidden(field.NewPath("value"), "may not be changed in an update.")
	}
	if !apiequality.Semantic.DeepEqual(c.PreemptionPolicy, old.PreemptionPolicy) {
		p.invalid(field.NewPath("preemptionPolicy"), c.PreemptionPolicy, isImmutable)
	}
	return p.list
}

const (
	maxSliceEndpoints = 1000
	maxSliceAddresses = 100
	maxSlicePorts     = 20000
)

// EndpointSlice checks an endpoint slice.
func EndpointSlice(s *discoveryv1.EndpointSlice) field.ErrorList {
	p := &problems{}
	oneOfRequired(p, field.NewPath("addressType"), s.AddressType, discoveryv1.AddressTypeFQDN, discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6)
	if n := len(s.Ports); n > maxSlicePorts {
		p.add(field.TooMany(field.NewPath("ports"), n, maxSlicePorts))
	}
	names := map[string]bool{}
	for i, port := range s.Ports {
		at := field.NewPath("ports").Index(i)
		name := ""
		if port.Name != nil {
			name = *port.Name
		}
		if name != "" {
			p.label(at.Child("name"), name)
		}
		if names[name] {
			p.add(field.Duplicate(at.Child("name"), name))
		}
		names[name] = true
		if port.Port != nil {
			p.portNumber(at.Child("port"), *port.Port)
		}
		if port.Protocol != nil {
			oneOf(p, at.Child("protocol"), *port.Protocol, protocols...)
		}
	}
	if n := len(s.Endpoints); n > maxSliceEndpoints {
		p.add(field.TooMany(field.NewPath("endpoints"), n, maxSliceEndpoints))
		return p.list
	}
	for i := range s.Endpoints {
		p.sliceEndpoint(field.NewPath("endpoints").Index(i), s.AddressType, &s.Endpoints[i])
	}
	return p.list
}

func (p *problems) sliceEndpoint(at path, kind discoveryv1.AddressType, e *discoveryv1.Endpoint) {
	addresses := at.Child("addresses")
	if n := len(e.Addresses); n == 0 {
		p.required(addresses, "must contain at least 1 address")
	} else if n > maxSliceAddresses {
		p.add(field.TooMany(addresses, n, maxSliceAddresses))
	}
	for i, a := range e.Addresses {
		at := addresses.Index(i)
		switch kind {
		case discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6:
			p.ip(at, a)
			if six := utilnet.IsIPv6String(a); utilnet.ParseIPSloppy(a) != nil && six != (kind == discoveryv1.AddressTypeIPv6) {
				p.invalid(addresses, a, "must be an %s address", kind)
			}
			p.endpointIP(at, a)
		case discoveryv1.AddressTypeFQDN:
			p.addAll(utilvalidation.IsFullyQualifiedDomainName(at, a))
		}
	}
	if e.NodeName != nil {
		p.subdomain(at.Child("nodeName"), *e.NodeName)
	}
	if e.Hostname != nil {
		p.label(at.Child("hostname"), *e.Hostname)
	}
}

// EndpointSliceUpdate checks an endpoint slice that replaces old.
func EndpointSliceUpdate(s, old *discoveryv1.EndpointSlice) field.ErrorList {
	p := &problems{list: EndpointSlice(s)}
	immutable(p, field.NewPath("addressType"), s.AddressType, old.AddressType)
	return p.list
}

const (
	maxEventWord = 128
	maxEventNote = 1024
)

// Event checks an event. Those with an eventTime are of the newer kind, whose fields
// are all required; strict is for what came by way of events.k8s.io.
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
	if p.present(controller, e.ReportingController) {
		p.qualified(controller, e.ReportingController)
	}
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

// StrictEvent checks what events.k8s.io asks of a new event besides.
func StrictEvent(e *corev1.Event) field.ErrorList {
	p := &problems{list: Event(e, true)}
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

// inMicroseconds is a time as it is stored: clients may hold it in nanoseconds.
func inMicroseconds(t metav1.MicroTime) metav1.MicroTime {
	return metav1.NewMicroTime(t.Truncate(time.Microsecond))
}

// StrictEventUpdate checks an update by way of events.k8s.io: only the series changes.
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
