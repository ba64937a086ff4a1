package hollow

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"

	"wherry.dev/internal/kubelet/podops"
)

// eventSenders is how many events are sent at the same time. A kubelet sends one at a time; as many
// senders as there are nodes would take more memory than the nodes.
const eventSenders = 8

// events sends the events of all nodes, each in the name of its own. Without a client they are dropped.
type events struct{ senders []record.EventBroadcaster }

func newEvents(client kubernetes.Interface) *events {
	e := &events{}
	if client == nil {
		return e
	}
	for range eventSenders {
		b := record.NewBroadcaster()
		b.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: client.CoreV1().Events("")})
		e.senders = append(e.senders, b)
	}
	return e
}

// of returns the recorder of a node.
func (e *events) of(index int, name string) podops.Recorder {
	if len(e.senders) == 0 {
		return silence{}
	}
	source := v1.EventSource{Component: "kubelet", Host: name}
	return e.senders[index%len(e.senders)].NewRecorder(scheme.Scheme, source)
}

func (e *events) stop() {
	for _, b := range e.senders {
		b.Shutdown()
	}
}

// silence is a recorder of which nobody hears.
type silence struct{}

// Eventf implements podops.Recorder.
func (silence) Eventf(runtime.Object, string, string, string, ...any) {}
