package pleg

import (
	"context"
	"errors"
	"maps"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/kubelet/podworker"
	"wherry.dev/test/leaks"
)

func TestMain(m *testing.M) { os.Exit(leaks.Watch(m).Run()) }

func TestHealthDoesNotWaitForTheAPIServer(t *testing.T) {
	g := New(Deps{})
	if err := g.Healthy(); err != nil {
		t.Errorf("before anything ran: %v", err)
	}
	g.looked.Store(time.Now().UnixNano())
	if err := g.Healthy(); err != nil {
		t.Error(err)
	}
	g.looked.Store(time.Now().Add(-2 * stuckAfter).UnixNano())
	if err := g.Healthy(); err == nil || err.Error() != "sync Loop took longer than expected" {
		t.Errorf("stuck: %v", err)
	}
}

// node is a runtime with pods, and the table of their workers.
type node struct {
	internalapi.RuntimeService
	eventful bool
	events   chan *runtimeapi.ContainerEventResponse

	mu      sync.Mutex
	states  map[types.UID]runtimeapi.ContainerState
	known   map[types.UID]bool
	lists   int
	woken   map[types.UID]int
	adopted map[types.UID]int
}

func (n *node) ListPodSandbox(context.Context, *runtimeapi.PodSandboxFilter) ([]*runtimeapi.PodSandbox, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.lists++
	if n.lists == 2 {
		return nil, errors.New("busy")
	}
	return nil, nil
}

func (n *node) ListContainers(context.Context, *runtimeapi.ContainerFilter) ([]*runtimeapi.Container, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	var out []*runtimeapi.Container
	for uid, state := range n.states {
		out = append(out, &runtimeapi.Container{Id: "of-" + string(uid), State: state, Labels: map[string]string{pods.LabelPodUID: string(uid)}})
	}
	return out, nil
}

func (n *node) GetContainerEvents(ctx context.Context, to chan *runtimeapi.ContainerEventResponse, established func(runtimeapi.RuntimeService_GetContainerEventsClient)) error {
	if !n.eventful {
		return grpcstatus.Error(codes.Unimplemented, "no events")
	}
	established(nil)
	for {
		select {
		case ev := <-n.events:
			to <- ev
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (n *node) Get(uid types.UID) (podworker.Snapshot, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return podworker.Snapshot{}, n.known[uid]
}

func (n *node) Wake(uid types.UID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.woken[uid]++
}

func (n *node) Relist(uid types.UID) { n.Wake(uid) }
func (n *node) IsSynced() bool       { return true }

func (n *node) adopt(_ context.Context, uid types.UID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.adopted[uid]++
	n.known[uid] = true
}

func (n *node) looks() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.lists
}

func (n *node) set(uid types.UID, state runtimeapi.ContainerState) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.states[uid] = state
}

// expect compares what happened since the last time.
func (n *node) expect(t *testing.T, when string, woken, adopted map[types.UID]int) {
	t.Helper()
	synctest.Wait()
	n.mu.Lock()
	defer n.mu.Unlock()
	if !maps.Equal(n.woken, woken) || !maps.Equal(n.adopted, adopted) {
		t.Errorf("%s: woken %v, not %v; adopted %v, not %v", when, n.woken, woken, n.adopted, adopted)
	}
	clear(n.woken)
	clear(n.adopted)
}

func play(t *testing.T, eventful bool, f func(t *testing.T, n *node)) {
	synctest.Test(t, func(t *testing.T) {
		n := &node{
			eventful: eventful, events: make(chan *runtimeapi.ContainerEventResponse), known: map[types.UID]bool{"a": true, "b": true},
			states: map[types.UID]runtimeapi.ContainerState{}, woken: map[types.UID]int{}, adopted: map[types.UID]int{},
		}
		g := New(Deps{Runtime: n, Table: n, Adopt: n.adopt})
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		all.Go(func() { _ = g.Watch(ctx) })
		all.Go(func() { _ = g.Relist(ctx) })
		synctest.Wait()
		f(t, n)
		cancel()
		all.Wait()
	})
}

const running, exited = runtimeapi.ContainerState_CONTAINER_RUNNING, runtimeapi.ContainerState_CONTAINER_EXITED

// A runtime without events is looked at every second; one look that fails changes nothing.
func TestRelistWakesPodsThatDiffer(t *testing.T) {
	play(t, false, func(t *testing.T, n *node) {
		n.set("a", running)
		n.set("b", running)
		n.set("stray", running)
		time.Sleep(3 * time.Second)
		n.expect(t, "at first", map[types.UID]int{"a": 1, "b": 1}, map[types.UID]int{"stray": 1})
		n.set("a", exited)
		time.Sleep(5 * time.Second)
		n.expect(t, "when one has exited", map[types.UID]int{"a": 1}, nil)
		n.mu.Lock()
		delete(n.states, "b")
		n.mu.Unlock()
		time.Sleep(time.Second)
		n.expect(t, "when one is gone", map[types.UID]int{"b": 1}, nil)
	})
}

func TestEventsWakePods(t *testing.T) {
	event := func(uid string, state runtimeapi.PodSandboxState) *runtimeapi.ContainerEventResponse {
		return &runtimeapi.ContainerEventResponse{PodSandboxStatus: &runtimeapi.PodSandboxStatus{
			Metadata: &runtimeapi.PodSandboxMetadata{Uid: uid}, State: state,
		}}
	}
	const ready, notReady = runtimeapi.PodSandboxState_SANDBOX_READY, runtimeapi.PodSandboxState_SANDBOX_NOTREADY
	play(t, true, func(t *testing.T, n *node) {
		n.events <- event("a", notReady)
		n.expect(t, "of a pod", map[types.UID]int{"a": 1}, nil)
		before := n.looks()
		n.events <- event("gone", notReady)
		n.expect(t, "the last one of a pod", nil, nil)
		n.set("stray", running)
		n.events <- event("stray", ready)
		n.expect(t, "of a pod that nobody knows", nil, map[types.UID]int{"stray": 1})
		if n.looks() != before+1 {
			t.Errorf("%d relists", n.looks()-before)
		}
		time.Sleep(10 * time.Minute)
		if more := n.looks() - before; more < 4 || more > 7 {
			t.Errorf("%d relists in ten minutes", more)
		}
	})
}
