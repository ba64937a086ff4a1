package resources

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/fields"

	"wherry.dev/internal/apiserver/registry"
	"wherry.dev/internal/apiserver/registry/printers"
)

// events are stored once and served twice: as core/v1 and as events.k8s.io/v1.
func events(deps Deps) registry.Row[*corev1.Event] {
	return registry.Row[*corev1.Event]{
		Resource:   gvr(corev1.SchemeGroupVersion, "events"),
		Kind:       "Event",
		Singular:   "event",
		ShortNames: []string{"ev"},
		Namespaced: true,
		New:        func() *corev1.Event { return &corev1.Event{} },
		NewList:    list[corev1.EventList](),
		Table:      printers.Events,
		CheckName:  validation.NameIsDNSSubdomain,
		Strategy:   registry.Strategy[*corev1.Event]{CreateOnUpdate: true},
		TTL:        func(*corev1.Event) uint64 { return uint64(deps.EventTTL.Seconds()) },
		Fields:     eventFields,
		FieldLabels: []string{
			"involvedObject.kind", "involvedObject.namespace", "involvedObject.name", "involvedObject.uid",
			"involvedObject.apiVersion", "involvedObject.resourceVersion", "involvedObject.fieldPath",
			"reason", "reportingComponent", "source", "type",
		},
	}
}

func eventFields(e *corev1.Event) fields.Set {
	source := e.Source.Component
	if source == "" {
		source = e.ReportingController
	}
	return fields.Set{
		"involvedObject.kind":            e.InvolvedObject.Kind,
		"involvedObject.namespace":       e.InvolvedObject.Namespace,
		"involvedObject.name":            e.InvolvedObject.Name,
		"involvedObject.uid":             string(e.InvolvedObject.UID),
		"involvedObject.apiVersion":      e.InvolvedObject.APIVersion,
		"involvedObject.resourceVersion": e.InvolvedObject.ResourceVersion,
		"involvedObject.fieldPath":       e.InvolvedObject.FieldPath,
		"reason":                         e.Reason,
		"reportingComponent":             e.ReportingController,
		"source":                         source,
		"type":                           e.Type,
	}
}
