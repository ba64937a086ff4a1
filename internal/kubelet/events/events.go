// Package events sends the kubelet's events to the API server without delaying anybody: client-go's
// recorder queues, aggregates and rate-limits them.
package events

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/flowcontrol"
)

// Recorder sends events; before Start, and without an API server, it drops them.
type Recorder struct {
	// Node is where the events come from.
	Node string
	// Client of the API server, or nil.
	Client kubernetes.Interface
	// QPS and Burst limit how many events are created; QPS 0 means no limit.
	QPS   float32
	Burst int

	broadcaster record.EventBroadcaster
	recorder    record.EventRecorder
}

// limitedSink makes events wait for their turn; only the recorder's goroutine waits.
type limitedSink struct {
	record.EventSink
	limit flowcontrol.RateLimiter
}

// Create implements record.EventSink.
func (s limitedSink) Create(ev *v1.Event) (*v1.Event, error) {
	s.limit.Accept()
	return s.EventSink.Create(ev)
}

// Start starts sending.
func (r *Recorder) Start() {
	if r.Client == nil {
		return
	}
	r.broadcaster = record.NewBroadcaster()
	var sink record.EventSink = &typedcorev1.EventSinkImpl{Interface: r.Client.CoreV1().Events("")}
	if r.QPS > 0 {
		sink = limitedSink{sink, flowcontrol.NewTokenBucketRateLimiter(r.QPS, max(r.Burst, 1))}
	}
	r.broadcaster.StartRecordingToSink(sink)
	r.recorder = r.broadcaster.NewRecorder(scheme.Scheme, v1.EventSource{Component: "kubelet", Host: r.Node})
}

// Stop ends sending.
func (r *Recorder) Stop() {
	if r.broadcaster != nil {
		r.broadcaster.Shutdown()
	}
}

// AnnotatedEventf queues an event with annotations.
func (r *Recorder) AnnotatedEventf(object runtime.Object, annotations map[string]string, eventType, reason, format string, args ...any) {
	if r.recorder != nil {
		r.recorder.AnnotatedEventf(object, annotations, eventType, reason, format, args...)
	}
}

// Eventf queues an event.
func (r *Recorder) Eventf(object runtime.Object, eventType, reason, format string, args ...any) {
	if r.recorder != nil {
		r.recorder.Eventf(object, eventType, reason, format, args...)
	}
}
