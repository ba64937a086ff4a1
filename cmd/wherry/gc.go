package main

import (
	"context"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"time"

	"github.com/prometheus/procfs"
	"k8s.io/klog/v2"
)

// How much garbage the heap may hold, in percent of the live heap. A node's live heap is small and
// its garbage short-lived: at rest, half the headroom costs little time and saves small machines
// tens of MiB. While pods come by the dozen, a fifth of the daemon's time would go into collections
// that find the same live heap again. They may make as much garbage as there are live objects. An API server
// alone may make more, up to four times that, as long as it is a small part of the memory that is free: it costs a tenth less CPU. The
// live objects of a burst then lie further apart, and some tens of MiB stay in use between them: too much for a node.
const (
	gcPercentAtRest = 50
	gcPercentBusy   = 100
	gcPercentAmple  = 400
	gcFreePart      = 64
)

// A burst is more garbage than this within gcPause. How often collections follow each other does not
// tell: in the middle of a burst they are seconds apart, once the live heap is large.
const (
	gcPause      = 2 * time.Second
	gcBurstBytes = 16 << 20
)

// startPacing runs paceGC until ctx ends or stop is called, unless $GOGC says how much garbage there may be.
func startPacing(ctx context.Context, inBurst func() int) (stop func()) {
	if os.Getenv("GOGC") != "" {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { paceGC(ctx, inBurst) })
	return func() { cancel(); running.Wait() }
}

// paceGC lets the heap grow further while a burst makes garbage, and gives the memory back afterwards, and after the start.
// inBurst says how much garbage there may be then, in percent of the live heap. At rest it does nothing between collections. The
// start is a burst. It returns when ctx ends.
func paceGC(ctx context.Context, inBurst func() int) {
	percent := 0
	set := func(to int) {
		if to != percent { // it stops the world
			percent = to
			debug.SetGCPercent(to)
		}
	}
	set(inBurst())
	collected := make(chan struct{}, 1)
	afterEachGC(ctx, collected)
	pause := time.NewTimer(gcPause)
	watching, busy := true, true // whether the timer runs, and whether this is a burst
	since := sample("/gc/heap/allocs:bytes")
	for {
		select {
		case <-ctx.Done():
			return
		case <-collected:
			switch {
			case !watching:
				watching, since = true, sample("/gc/heap/allocs:bytes")
				pause.Reset(gcPause)
			case busy:
				set(inBurst())
			case sample("/gc/heap/allocs:bytes")-since > gcBurstBytes:
				busy = true
				set(inBurst())
			}
		case <-pause.C:
			now := sample("/gc/heap/allocs:bytes")
			if quiet := now-since <= gcBurstBytes; quiet && busy {
				busy = false
				set(gcPercentAtRest)
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

// ofNode is what a node's heap may hold in a burst.
func ofNode() int { return gcPercentBusy }

// ofServer is what the heap of an API server alone may hold.
func ofServer() int { return amplePercent(sample("/gc/heap/live:bytes"), available()) }

// amplePercent returns how much garbage may be beside so many live bytes, where so many of the machine's memory are free.
func amplePercent(live, free uint64) int {
	allowed := free / gcFreePart
	return int(min(max(allowed*100/max(live, 1), gcPercentBusy), gcPercentAmple))
}

// available returns how many bytes of the machine's memory a program could still get; 0 if that is unknown.
func available() uint64 {
	fs, err := procfs.NewDefaultFS()
	if err != nil {
		return 0
	}
	m, err := fs.Meminfo()
	if err != nil || m.MemAvailableBytes == nil {
		return 0
	}
	return *m.MemAvailableBytes
}

// sample returns one of the runtime's metrics that are counted in bytes.
func sample(name string) uint64 {
	s := []metrics.Sample{{Name: name}}
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
