// Package trace records the steps in a pod's life as OpenTelemetry spans and keeps the newest in
// memory, a ring per pod, so that `wherry trace` can draw the waterfall of a start that is already
// over.
//
// Workloads and services have a few steps of their own; those of what they do for a pod are the pod's.
//
// Every span that belongs to a pod carries its UID. A step that runs under a context from WithPod
// inherits it. A step that learns the UID only afterwards (the API server on a create) records
// itself with Record.
package trace

import (
	"context"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

// Attributes that tie a span to its pod (OpenTelemetry's own name), or to another object.
const (
	PodUID    = attribute.Key("k8s.pod.uid")
	ObjectUID = attribute.Key("k8s.object.uid")
)

const scope = "wherry.dev"

type podKey struct{}

// WithPod returns a context whose spans belong to the pod.
func WithPod(ctx context.Context, uid string) context.Context {
	return context.WithValue(ctx, podKey{}, uid)
}

// PodFrom returns the UID that WithPod put into the context, or "".
func PodFrom(ctx context.Context) string {
	uid, _ := ctx.Value(podKey{}).(string)
	return uid
}

// Start opens a span named "component: step" ("cri: create container"). The caller ends it with
// End, once.
func Start(ctx context.Context, name string, attrs ...attribute.KeyValue) (context.Context, trace.Span) {
	if uid := PodFrom(ctx); uid != "" {
		attrs = append(attrs, PodUID.String(uid))
	}
	return otel.Tracer(scope).Start(ctx, name, trace.WithAttributes(attrs...))
}

// End ends the span and marks it as failed if err is not nil. It returns err, so that a function
// can end with `return trace.End(span, err)`.
func End(span trace.Span, err error) error {
	if err != nil {
		span.SetStatus(codes.Error, err.Error())
	}
	span.End()
	return err
}

// Record records a step that is over in the life of the pod with the UID.
func Record(ctx context.Context, uid, name string, start, end time.Time, attrs ...attribute.KeyValue) {
	record(ctx, PodUID.String(uid), name, start, end, attrs)
}

// RecordObject is Record for an object that is no pod, but has to do with the way of some.
func RecordObject(ctx context.Context, uid, name string, start, end time.Time) {
	record(ctx, ObjectUID.String(uid), name, start, end, nil)
}

func record(ctx context.Context, of attribute.KeyValue, name string, start, end time.Time, attrs []attribute.KeyValue) {
	attrs = append(attrs, of)
	_, span := otel.Tracer(scope).Start(ctx, name, trace.WithTimestamp(start), trace.WithAttributes(attrs...))
	span.End(trace.WithTimestamp(end))
}
