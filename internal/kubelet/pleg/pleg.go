// Package pleg is the pod lifecycle event generator, as the field calls it: it notices what happens to
// pods in the runtime and wakes their workers, which look for themselves. It learns of it by the
// runtime's events; a slow relist makes up for lost ones, and a fast one takes their place with a
// runtime that has none. An event is only a hint: just the UID is taken from it.
package pleg

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/kubelet/metrics"
	"wherry.dev/internal/kubelet/podworker"
)

// Table has the pods' workers. *podworker.Table implements it.
type Table interface {
	Get(uid types.UID) (podworker.Snapshot, bool)
	Wake(uid types.UID)
	Relist(uid types.UID)
	IsSynced() bool
}

// Deps are what a Generator works with.
type Deps struct {
	Runtime internalapi.RuntimeService
	Table   Table
	// Adopt gives a worker to a pod that appeared in the runtime and that nobody knows.
	Adopt func(ctx context.Context, uid types.UID)
}

// Generator notices what happens to the pods of one runtime.
type Generator struct {
	deps Deps
	// eventful: the runtime sends events.
	eventful atomic.Bool
	now      chan struct{} // asks for a relist
	// looked is when the relist last began, in nanoseconds since 1970.
	looked atomic.Int64
}

// New returns a Generator; Watch and Relist have to run at the same time.
func New(deps Deps) *Generator { return &Generator{deps: deps, now: make(chan struct{}, 1)} }

// stuckAfter is how long there may be no look at the runtime; there is one at least every three
// minutes.
const stuckAfter = 10 * time.Minute

// Healthy returns an error if the runtime has not been looked at for long.
func (g *Generator) Healthy() error {
	if at := g.looked.Load(); at != 0 && time.Since(time.Unix(0, at)) > stuckAfter {
		return errors.New("sync Loop took longer than expected")
	}
	return nil
}

// noEventsRetry is when a runtime that has no events at the moment is asked again: its administrator
// may have switched them on.
const noEventsRetry = 5 * time.Minute

// Watch turns the runtime's events into wakes, until ctx ends or the runtime turns out to send none.
func (g *Generator) Watch(ctx context.Context) error {
	log := klog.FromContext(ctx)
	wait := 50 * time.Millisecond
	for ctx.Err() == nil {
		ch := make(chan *runtimeapi.ContainerEventResponse, 1000)
		done, seen := make(chan struct{}), false
		go func() {
			defer close(done)
			for ev := range ch {
				seen = true
				g.hint(ev)
			}
		}()
		began := time.Now()
		err := g.deps.Runtime.GetContainerEvents(ctx, ch, func(runtimeapi.RuntimeService_GetContainerEventsClient) {
			g.eventful.Store(true)
			g.RelistNow()
		})
		close(ch)
		<-done
		g.eventful.Store(false)
		g.RelistNow() // until now the relist may have counted on events
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if grpcstatus.Code(err) == codes.Unimplemented {
			log.Info("The runtime does not support container events; checking pods every second")
			return nil
		}
		if errors.Is(err, io.EOF) && !seen && time.Since(began) < time.Second {
			// CRI-O does so unless enable_pod_events is set.
			log.Info("The runtime ended its stream of container events at once; checking pods every second",
				"askAgainIn", noEventsRetry)
			pause(ctx, noEventsRetry)
			continue
		}
		log.V(2).Info("Container event stream ended, will reconnect", "err", err)
		if time.Since(began) > 10*time.Second {
			wait = 50 * time.Millisecond
		}
		pause(ctx, wait)
		wait = min(wait*2, 5*time.Second)
	}
	return nil
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

func (g *Generator) hint(ev *runtimeapi.ContainerEventResponse) {
	if uid := ev.GetPodSandboxStatus().GetMetadata().GetUid(); uid != "" {
		if _, known := g.deps.Table.Get(types.UID(uid)); known {
			g.deps.Table.Wake(types.UID(uid))
			return
		}
		if ev.PodSandboxStatus.State != runtimeapi.PodSandboxState_SANDBOX_READY {
			return // the last event of a pod that is gone
		}
	}
	g.RelistNow() // it may have appeared after its pod was gone
}

// RelistNow asks for a relist before the next one is due.
func (g *Generator) RelistNow() {
	select {
	case g.now <- struct{}{}:
	default:
	}
}

// Relist periodically compares what the runtime has with what it had before, and wakes the pods
// that differ, until ctx ends. It is the safety net for lost events.
func (g *Generator) Relist(ctx context.Context) error {
	log := klog.FromContext(ctx)
	before := map[types.UID]uint64{}
	var last time.Time
	for ctx.Err() == nil {
		began := time.Now()
		g.looked.Store(began.UnixNano())
		now, err := g.fingerprints(ctx)
		if err != nil {
			if ctx.Err() == nil {
				log.Error(err, "Relist failed")
			}
		} else {
			g.wakeChanged(ctx, before, now)
			before = now
			metrics.Relist.Observe(time.Since(began).Seconds())
			if !last.IsZero() {
				metrics.RelistInterval.Observe(began.Sub(last).Seconds())
			}
			last = began
			metrics.LastSeen.Set(float64(began.Unix()))
		}
		every := time.Second
		if g.eventful.Load() {
			every = 2*time.Minute + rand.N(time.Minute)
		}
		t := time.NewTimer(every)
		select {
		case <-ctx.Done():
		case <-g.now:
		case <-t.C:
		}
		t.Stop()
	}
	return nil
}

func (g *Generator) wakeChanged(ctx context.Context, before, now map[types.UID]uint64) {
	for uid, print := range now {
		_, known := g.deps.Table.Get(uid)
		old, same := before[uid]
		switch {
		case !known && g.deps.Table.IsSynced():
			g.deps.Adopt(ctx, uid)
		case !same || old != print:
			g.deps.Table.Relist(uid)
		}
	}
	for uid := range before {
		if _, ok := now[uid]; !ok {
			g.deps.Table.Relist(uid)
		}
	}
}

// fingerprints returns, for each pod, a hash over its sandboxes and containers with their states.
func (g *Generator) fingerprints(ctx context.Context) (map[types.UID]uint64, error) {
	out := map[types.UID]uint64{}
	mix := func(labels map[string]string, id string, state int32) {
		uid := types.UID(labels[pods.LabelPodUID])
		if uid == "" {
			return
		}
		h := fnv.New64a()
		_, _ = fmt.Fprintf(h, "%s=%d", id, state)
		out[uid] += h.Sum64()
	}
	sandboxes, err := g.deps.Runtime.ListPodSandbox(ctx, nil)
	if err != nil {
		return nil, err
	}
	for _, s := range sandboxes {
		mix(s.Labels, s.Id, int32(s.State))
	}
	containers, err := g.deps.Runtime.ListContainers(ctx, nil)
	if err != nil {
		return nil, err
	}
	for _, c := range containers {
		mix(c.Labels, c.Id, int32(c.State))
	}
	return out, nil
}
