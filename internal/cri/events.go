package cri

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/cri/crierror"
	"wherry.dev/internal/cri/sandbox"
)

// eventBuffer is how many events a slow reader may lag behind before it loses the oldest. Events
// are hints; a relist finds what was lost.
const eventBuffer = 1024

// broadcaster sends events to all subscribers.
type broadcaster struct {
	mu     sync.Mutex // guards everything below
	subs   map[chan *runtimeapi.ContainerEventResponse]struct{}
	closed bool
}

func newBroadcaster() *broadcaster {
	return &broadcaster{subs: map[chan *runtimeapi.ContainerEventResponse]struct{}{}}
}

// subscribe returns a channel of events, which is closed when the server closes.
func (b *broadcaster) subscribe() chan *runtimeapi.ContainerEventResponse {
	b.mu.Lock()
	defer b.mu.Unlock()
	ch := make(chan *runtimeapi.ContainerEventResponse, eventBuffer)
	if b.closed {
		close(ch)
		return ch
	}
	b.subs[ch] = struct{}{}
	return ch
}

func (b *broadcaster) unsubscribe(ch chan *runtimeapi.ContainerEventResponse) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.subs, ch)
}

func (b *broadcaster) listened() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.subs) > 0
}

func (b *broadcaster) send(e *runtimeapi.ContainerEventResponse) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for ch := range b.subs {
		select {
		case ch <- e:
			continue
		default:
		}
		select { // full: drop the oldest
		case <-ch:
		default:
		}
		select {
		case ch <- e:
		default:
		}
	}
}

func (b *broadcaster) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return
	}
	b.closed = true
	for ch := range b.subs {
		close(ch)
	}
	b.subs = map[chan *runtimeapi.ContainerEventResponse]struct{}{}
}

// emit tells subscribers what happened to a container or a sandbox, with the current state of the
// whole pod.
func (s *Server) emit(id string, b *sandbox.Sandbox, typ runtimeapi.ContainerEventType) {
	if !s.events.listened() {
		return
	}
	e := &runtimeapi.ContainerEventResponse{
		ContainerId: id, ContainerEventType: typ, CreatedAt: time.Now().UnixNano(), PodSandboxStatus: b.Status(),
	}
	for _, c := range s.containersOf(b.ID) {
		e.ContainersStatuses = append(e.ContainersStatuses, c.Status())
	}
	s.events.send(e)
}

// GetContainerEvents streams events until the client disconnects.
func (s *Server) GetContainerEvents(_ *runtimeapi.GetEventsRequest, stream grpc.ServerStreamingServer[runtimeapi.ContainerEventResponse]) error {
	return s.streamEvents(stream.Context(), stream.Send)
}

func (s *Server) streamEvents(ctx context.Context, send func(*runtimeapi.ContainerEventResponse) error) error {
	ch := s.events.subscribe()
	defer s.events.unsubscribe(ch)
	return forward(ctx, ch, send)
}

func forward(ctx context.Context, ch <-chan *runtimeapi.ContainerEventResponse, send func(*runtimeapi.ContainerEventResponse) error) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case e, ok := <-ch:
			if !ok {
				return crierror.ErrClosing
			}
			if err := send(e); err != nil {
				return err
			}
		}
	}
}
