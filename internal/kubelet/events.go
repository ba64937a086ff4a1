package kubelet

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/utils/ptr"

	"wherry.dev/internal/kubelet/config"
)

// events sends events to the API server without delaying anybody: client-go's recorder queues,
// aggregates and rate-limits them.
type events struct {
	node        string
	client      kubernetes.Interface
	broadcaster record.EventBroadcaster
	recorder    record.EventRecorder
	// qps and burst limit how many events are created; qps 0 means no limit.
	qps   float32
	burst int
}

func newEvents(cfg *config.Config, client kubernetes.Interface) *events {
	return &events{node: cfg.NodeName, client: client, qps: float32(ptr.Deref(cfg.EventRecordQPS, 0)), burst: int(cfg.EventBurst)}
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

// start starts sending; before it, and without an API server, events are dropped.
func (e *events) start() {
	if e.client == nil {
		return
	}
	e.broadcaster = record.NewBroadcaster()
	var sink record.EventSink = &typedcorev1.EventSinkImpl{Interface: e.client.CoreV1().Events("")}
	if e.qps > 0 {
		sink = limitedSink{sink, flowcontrol.NewTokenBucketRateLimiter(e.qps, max(e.burst, 1))}
	}
	e.broadcaster.StartRecordingToSink(sink)
	e.recorder = e.broadcaster.NewRecorder(scheme.Scheme, v1.EventSource{Component: "kubelet", Host: e.node})
}

func (e *events) stop() {
	if e.broadcaster != nil {
		e.broadcaster.Shutdown()
	}
}

// Eventf queues an event.
func (e *events) Eventf(object runtime.Object, eventType, reason, format string, args ...any) {
	if e.recorder != nil {
		e.recorder.Eventf(object, eventType, reason, format, args...)
	}
}
