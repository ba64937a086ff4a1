package scheme

import (
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// addEvents makes core/v1 events the hub of events.k8s.io too: both groups serve the
// same stored objects, in two shapes.
func addEvents(s *runtime.Scheme) error {
	hub := Hub(eventsv1.GroupName)
	s.AddKnownTypeWithName(hub.WithKind("Event"), &corev1.Event{})
	s.AddKnownTypeWithName(hub.WithKind("EventList"), &corev1.EventList{})
	err := errors.Join(
		addConversion(s, total(toCore)), addConversion(s, total(fromCore)),
		addConversion(s, func(in *eventsv1.EventList, out *corev1.EventList) (err error) {
			out.ListMeta = in.ListMeta
			out.Items, err = each(in.Items, total(toCore))
			return err
		}),
		addConversion(s, func(in *corev1.EventList, out *eventsv1.EventList) (err error) {
			out.ListMeta = in.ListMeta
			out.Items, err = each(in.Items, total(fromCore))
			return err
		}),
	)
	if err != nil {
		return err
	}
	return s.AddFieldLabelConversionFunc(eventsv1.SchemeGroupVersion.WithKind("Event"), eventLabel)
}

// eventLabel turns a field selector of events.k8s.io into one of core.
func eventLabel(label, value string) (string, string, error) {
	core, ok := map[string]string{
		"reason":                    "reason",
		"type":                      "type",
		"reportingController":       "reportingComponent",
		"reportingComponent":        "reportingComponent",
		"source":                    "source",
		"regarding.kind":            "involvedObject.kind",
		"regarding.namespace":       "involvedObject.namespace",
		"regarding.name":            "involvedObject.name",
		"regarding.uid":             "involvedObject.uid",
		"regarding.apiVersion":      "involvedObject.apiVersion",
		"regarding.resourceVersion": "involvedObject.resourceVersion",
		"regarding.fieldPath":       "involvedObject.fieldPath",
		"metadata.name":             "metadata.name",
		"metadata.namespace":        "metadata.namespace",
	}[label]
	if !ok {
		return "", "", fmt.Errorf("field label not supported: %s", label)
	}
	return core, value, nil
}

func toCore(in *eventsv1.Event, out *corev1.Event) {
	*out = corev1.Event{
		ObjectMeta:          in.ObjectMeta,
		InvolvedObject:      in.Regarding,
		Reason:              in.Reason,
		Message:             in.Note,
		Source:              in.DeprecatedSource,
		FirstTimestamp:      in.DeprecatedFirstTimestamp,
		LastTimestamp:       in.DeprecatedLastTimestamp,
		Count:               in.DeprecatedCount,
		Type:                in.Type,
		EventTime:           in.EventTime,
		Action:              in.Action,
		Related:             in.Related,
		ReportingController: in.ReportingController,
		ReportingInstance:   in.ReportingInstance,
	}
	if in.Series != nil {
		out.Series = &corev1.EventSeries{Count: in.Series.Count, LastObservedTime: in.Series.LastObservedTime}
	}
}

func fromCore(in *corev1.Event, out *eventsv1.Event) {
	*out = eventsv1.Event{
		ObjectMeta:               in.ObjectMeta,
		EventTime:                in.EventTime,
		ReportingController:      in.ReportingController,
		ReportingInstance:        in.ReportingInstance,
		Action:                   in.Action,
		Reason:                   in.Reason,
		Regarding:                in.InvolvedObject,
		Related:                  in.Related,
		Note:                     in.Message,
		Type:                     in.Type,
		DeprecatedSource:         in.Source,
		DeprecatedFirstTimestamp: in.FirstTimestamp,
		DeprecatedLastTimestamp:  in.LastTimestamp,
		DeprecatedCount:          in.Count,
	}
	if in.Series != nil {
		out.Series = &eventsv1.EventSeries{Count: in.Series.Count, LastObservedTime: in.Series.LastObservedTime}
	}
}
