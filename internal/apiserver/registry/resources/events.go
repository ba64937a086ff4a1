package resources

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	"wherry.dev/internal/api/validation"
	"wherry.dev/internal/apiserver/registry"
	"wherry.dev/internal/apiserver/registry/printers"
)

// events are stored once and served twice: as core/v1 and as events.k8s.io/v1.
func events(deps Deps) registry.Row[*corev1.Event] {
	return registry.Row[*corev1.Event]{
		Resource:   gvr(corev1.SchemeGroupVersion, "events"),
		Also:       []schema.GroupVersion{eventsv1.SchemeGroupVersion},
		Kind:       "Event",
		Singular:   "event",
		ShortNames: []string{"ev"},
		Namespaced: true,
		New:        func() *corev1.Event { return &corev1.Event{} },
		NewList:    list[corev1.EventList](),
		Table:      printers.Events,
		Strategy: registry.Strategy[*corev1.Event]{
			CreateOnUpdate: true,
			Garbage:        rest.Unsupported, // nothing depends on events
			Validate: func(ctx context.Context, e *corev1.Event) field.ErrorList {
				if newGroup(ctx) {
					return validation.StrictEvent(e)
				}
				return validation.Event(e, false)
			},
			ValidateUpdate: func(ctx context.Context, e, old *corev1.Event) field.ErrorList {
				if newGroup(ctx) {
					return validation.StrictEventUpdate(e, old)
				}
				return validation.Event(e, false)
			},
		},
		TTL:    func(*corev1.Event) uint64 { return uint64(deps.EventTTL.Seconds()) },
		Fields: eventFields,
		FieldLabels: []string{
			"involvedObject.kind", "involvedObject.namespace", "involvedObject.name", "involvedObject.uid",
			"involvedObject.apiVersion", "involvedObject.resourceVersion", "involvedObject.fieldPath",
			"reason", "reportingComponent", "source", "type",
		},
	}
}

// newGroup reports whether the request came by way of events.k8s.io.
func newGroup(ctx context.Context) bool {
	info, ok := request.RequestInfoFrom(ctx)
	return ok && info.APIGroup == eventsv1.GroupName
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
