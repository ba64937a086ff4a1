package main

import (
	"context"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"k8s.io/klog/v2"
)

// How much garbage the heap may hold, in percent of the live heap. A node's live heap is small and
// its garbage short-lived: at rest, half the headroom costs little time and saves small machines
// tens of MiB. While pods come by the dozen, a fifth of the daemon's time would go into collections
// that find the same live heap again.
const (
	gcPercentAtRest = 50
	gcPercentBusy   = 100
)

// A burst is more garbage than this within gcPause. How often collections follow each other does not
// tell: in the middle of a burst they are seconds apart, once the live heap is large.
const (
	gcPause      = 2 * time.Second
	gcBurstBytes = 16 << 20
)

// paceGC lets the heap grow further while a burst makes garbage, and gives the memory back afterwards, and after the start.
// At rest it does nothing between collections. It returns when ctx ends.
func paceGC(ctx context.Context) {
	debug.SetGCPercent(gcPercentAtRest)
	collected := make(chan struct{}, 1)
	afterEachGC(ctx, collected)
	pause := time.NewTimer(gcPause)
	watching, busy := true, false // whether the timer runs, and whether this is a burst
	started := false              // what the start needed was given back
	since := allocated()
	for {
		select {
		case <-ctx.Done():
			return
		case <-collected:
			if !watching {
				watching, since = true, allocated()
				pause.Reset(gcPause)
			} else if !busy && allocated()-since > gcBurstBytes {
				busy = true
				debug.SetGCPercent(gcPercentBusy)
			}
		case <-pause.C:
			now := allocated()
			if quiet := now-since <= gcBurstBytes; quiet && (busy || !started) {
				busy, started = false, true
				debug.SetGCPercent(gcPercentAtRest)
				debug.FreeOSMemory()
				if err := releaseProgram(); err != nil {
					klog.FromContext(ctx).Error(err, "Cannot release the pages of the program")
				}
			}
			if watching = busy; watching {
				since = now
				pause.Reset(gcPause)
			}
		}
	}
}

// allocated returns how many bytes the heap has handed out so far.
func allocated() uint64 {
	s := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(s)
	return s[0].Value.Uint64()
}

// afterEachGC signals each collection until ctx ends: an object that nothing holds lives until the
// next one.
func afterEachGC(ctx context.Context, collected chan<- struct{}) {
	runtime.AddCleanup(new(*byte), func(collected chan<- struct{}) {
		if ctx.Err() != nil {
			return
		}
		select {
		case collected <- struct{}{}:
		default:
		}
		afterEachGC(ctx, collected)
	}, collected)
}
