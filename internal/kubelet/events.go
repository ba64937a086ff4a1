package kubelet

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
)

// events sends events to the API server, off everybody's critical path: they are
// queued, aggregated and rate-limited by client-go's recorder.
type events struct {
	node        string
	client      kubernetes.Interface
	broadcaster record.EventBroadcaster
	recorder    record.EventRecorder
}

func newEvents(nodeName string, client kubernetes.Interface) *events {
	return &events{node: nodeName, client: client}
}

// start begins to send; before it, and without an API server, events go nowhere.
func (e *events) start() {
	if e.client == nil {
		return
	}
	e.broadcaster = record.NewBroadcaster()
	e.broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: e.client.CoreV1().Events("")})
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
