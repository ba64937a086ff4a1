package main

import (
	"context"
	"runtime"
	"runtime/debug"
	"time"
)

// How much garbage the heap may hold, in percent of the live heap. A node's live heap is small and
// its garbage short-lived: at rest, half the headroom costs little time and saves small machines
// tens of MiB. While pods come by the dozen, a fifth of the daemon's time would go into collections
// that find the same live heap again.
const (
	gcPercentAtRest = 50
	gcPercentBusy   = 100
)

// Collections closer together than this are a burst; a pause of this length ends it.
const gcPause = 2 * time.Second

// paceGC lets the heap grow further while collections follow each other quickly, and gives the
// memory back afterwards. It returns when ctx ends.
func paceGC(ctx context.Context) {
	debug.SetGCPercent(gcPercentAtRest)
	collected := make(chan struct{}, 1)
	afterEachGC(ctx, collected)
	burst := time.NewTimer(gcPause)
	busy := false
	var last time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-collected:
			now := time.Now()
			if !busy && now.Sub(last) < gcPause {
				busy = true
				debug.SetGCPercent(gcPercentBusy)
			}
			last = now
			burst.Reset(gcPause)
		case <-burst.C:
			if busy {
				busy = false
				debug.SetGCPercent(gcPercentAtRest)
				debug.FreeOSMemory()
				last = time.Time{} // that was a collection too
			}
		}
	}
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
