package main

import (
	"runtime"
	"runtime/debug"
	"sync"
	"time"
)

// A node's live heap is small and its garbage short-lived. While little happens, half
// the head room costs no time worth naming and keeps tens of MiB off small machines;
// when pods start side by side, it costs a sixth of all CPU.
const (
	idlePercent = 50
	busyPercent = 150
	// busyGap is how close two collections are in a busy process.
	busyGap = time.Second
	// calm is how long none may follow until the memory is given back.
	calm = 3 * time.Second
)

// heapPacer sets GOGC by how often collections come. It learns of each from an object
// that nobody holds, so that it costs nothing while nothing is allocated.
type heapPacer struct {
	mu     sync.Mutex // guards all below
	last   time.Time
	busy   bool
	calmed *time.Timer
}

// paceHeap starts the pacer; it lives as long as the process.
func paceHeap() {
	debug.SetGCPercent(idlePercent)
	new(heapPacer).arm()
}

// arm waits for the next collection.
func (p *heapPacer) arm() {
	token := new([16]byte)
	runtime.AddCleanup(token, func(p *heapPacer) { p.collected(time.Now()); p.arm() }, p)
}

// collected is called after each collection.
func (p *heapPacer) collected(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now.Sub(p.last) < busyGap {
		if !p.busy {
			p.busy = true
			debug.SetGCPercent(busyPercent)
		}
		if p.calmed != nil {
			p.calmed.Stop()
		}
		p.calmed = time.AfterFunc(calm, p.calm)
	}
	p.last = now
}

// calm gives back what the busy time needed.
func (p *heapPacer) calm() {
	p.mu.Lock()
	p.busy, p.calmed = false, nil
	debug.SetGCPercent(idlePercent)
	p.mu.Unlock()
	runtime.GC() // pools let go at the second collection
	debug.FreeOSMemory()
}
