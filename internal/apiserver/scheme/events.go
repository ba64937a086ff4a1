package scheme

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
)

// addEvents makes core/v1 events the hub of events.k8s.io too: both groups serve the
// same stored objects, in two shapes.
func addEvents(s *runtime.Scheme) error {
	hub := Hub(eventsv1.GroupName)
	s.AddKnownTypeWithName(hub.WithKind("Event"), &corev1.Event{})
	s.AddKnownTypeWithName(hub.WithKind("EventList"), &corev1.EventList{})
	conversions := []struct {
		in, out any
		convert func(in, out any)
	}{
		{(*eventsv1.Event)(nil), (*corev1.Event)(nil), func(in, out any) { toCore(in.(*eventsv1.Event), out.(*corev1.Event)) }},
		{(*corev1.Event)(nil), (*eventsv1.Event)(nil), func(in, out any) { fromCore(in.(*corev1.Event), out.(*eventsv1.Event)) }},
		{(*eventsv1.EventList)(nil), (*corev1.EventList)(nil), func(in, out any) {
			from, to := in.(*eventsv1.EventList), out.(*corev1.EventList)
			to.ListMeta, to.Items = from.ListMeta, make([]corev1.Event, len(from.Items))
			for i := range from.Items {
				toCore(&from.Items[i], &to.Items[i])
			}
		}},
		{(*corev1.EventList)(nil), (*eventsv1.EventList)(nil), func(in, out any) {
			from, to := in.(*corev1.EventList), out.(*eventsv1.EventList)
			to.ListMeta, to.Items = from.ListMeta, make([]eventsv1.Event, len(from.Items))
			for i := range from.Items {
				fromCore(&from.Items[i], &to.Items[i])
			}
		}},
	}
	for _, c := range conversions {
		err := s.AddConversionFunc(c.in, c.out, func(a, b any, _ conversion.Scope) error {
			c.convert(a, b)
			return nil
		})
		if err != nil {
			return err
		}
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
