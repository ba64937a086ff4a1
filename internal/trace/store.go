package trace

import (
	"context"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.26.0"
)

// Attribute names by which a span can say whose pod it belongs to, so that a trace can be looked up
// by name even after the pod is gone (OpenTelemetry's own names).
const (
	PodName   = attribute.Key("k8s.pod.name")
	Namespace = attribute.Key("k8s.namespace.name")
)

// Limits of what is kept: about 200 bytes per span.
const (
	maxPods        = 512
	maxSpansPerPod = 256
	keepFirst      = 96 // the start of a pod stays, however often it restarts
)

// Span is one finished step.
type Span struct {
	Name       string            `json:"name"`
	ID         string            `json:"id"`
	Parent     string            `json:"parent,omitempty"`
	Start      time.Time         `json:"start"`
	End        time.Time         `json:"end"`
	Error      string            `json:"error,omitempty"`
	Attributes map[string]string `json:"attributes,omitempty"`
}

// Duration is how long the step took.
func (s Span) Duration() time.Duration { return s.End.Sub(s.Start) }

// Trace is what is known about the life of one pod, or of another object, in the order in which steps
// began.
type Trace struct {
	UID       string `json:"uid"`
	Kind      string `json:"kind,omitempty"` // in lower case; empty for a pod
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	Spans     []Span `json:"spans"`
}

// Store keeps the newest spans of the newest pods. It is the process's span
// processor and safe for concurrent use.
type Store struct {
	mu    sync.Mutex
	pods  map[string]*Trace // by UID
	order []string          // UIDs, the one first seen longest ago first
}

var _ sdktrace.SpanProcessor = (*Store)(nil)

// NewStore returns an empty store.
func NewStore() *Store { return &Store{pods: map[string]*Trace{}} }

// Install makes the store receive every span of this process, in addition to the given exporters.
// The returned function flushes them.
func (s *Store) Install(exporters ...sdktrace.SpanExporter) (shutdown func(context.Context) error) {
	opts := []sdktrace.TracerProviderOption{
		sdktrace.WithSpanProcessor(s),
		sdktrace.WithResource(resource.NewSchemaless(semconv.ServiceName("wherry"))),
	}
	for _, e := range exporters {
		opts = append(opts, sdktrace.WithBatcher(e))
	}
	p := sdktrace.NewTracerProvider(opts...)
	otel.SetTracerProvider(p)
	return p.Shutdown
}

// OnStart does nothing: only finished spans are kept.
func (s *Store) OnStart(context.Context, sdktrace.ReadWriteSpan) {}

// OnEnd keeps the span if it belongs to a pod or another object.
func (s *Store) OnEnd(ro sdktrace.ReadOnlySpan) {
	uid, span := "", Span{Name: ro.Name(), ID: ro.SpanContext().SpanID().String(), Start: ro.StartTime(), End: ro.EndTime()}
	if ro.Parent().IsValid() {
		span.Parent = ro.Parent().SpanID().String()
	}
	if st := ro.Status(); st.Code == codes.Error {
		span.Error = st.Description
	}
	var namespace, name string
	for _, a := range ro.Attributes() {
		switch a.Key {
		case PodUID, ObjectUID:
			uid = a.Value.AsString()
		case PodName:
			name = a.Value.AsString()
		case Namespace:
			namespace = a.Value.AsString()
		default:
			if span.Attributes == nil {
				span.Attributes = map[string]string{}
			}
			span.Attributes[string(a.Key)] = a.Value.String()
		}
	}
	if uid == "" {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.traceLocked(uid)
	if name != "" {
		t.Namespace, t.Name = namespace, name
	}
	if len(t.Spans) == maxSpansPerPod {
		t.Spans = slices.Delete(t.Spans, keepFirst, keepFirst+1)
	}
	t.Spans = append(t.Spans, span)
}

func (s *Store) traceLocked(uid string) *Trace {
	if t, ok := s.pods[uid]; ok {
		return t
	}
	if len(s.order) == maxPods {
		delete(s.pods, s.order[0])
		s.order = slices.Delete(s.order, 0, 1)
	}
	t := &Trace{UID: uid}
	s.pods[uid] = t
	s.order = append(s.order, uid)
	return t
}

// Shutdown does nothing: there is nowhere to flush to.
func (s *Store) Shutdown(context.Context) error { return nil }

// ForceFlush does nothing: a span is kept as soon as it ends.
func (s *Store) ForceFlush(context.Context) error { return nil }

// Pod returns the trace of the pod with the UID.
func (s *Store) Pod(uid string) (Trace, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, ok := s.pods[uid]
	if !ok {
		return Trace{}, false
	}
	return t.sorted(), true
}

// Add adds the spans that another node has of the same pod. The clocks of the two are taken to agree.
func (t *Trace) Add(other Trace) {
	for _, s := range other.Spans {
		same := func(o Span) bool { return o.Name == s.Name && o.Start.Equal(s.Start) && o.End.Equal(s.End) }
		if !slices.ContainsFunc(t.Spans, same) { // of the same process, asked in two ways
			t.Spans = append(t.Spans, s)
		}
	}
	*t = t.sorted()
}

// ByName returns the trace of the newest pod of that name, which may be gone.
func (s *Store) ByName(namespace, name string) (Trace, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, uid := range slices.Backward(s.order) {
		if t := s.pods[uid]; t.Namespace == namespace && t.Name == name {
			return t.sorted(), true
		}
	}
	return Trace{}, false
}

func (t *Trace) sorted() Trace {
	out := *t
	out.Spans = slices.Clone(t.Spans)
	slices.SortStableFunc(out.Spans, func(a, b Span) int { return a.Start.Compare(b.Start) })
	return out
}
