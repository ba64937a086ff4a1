package main

import (
	"context"
	"runtime/debug"
	"runtime/metrics"
	"testing"
	"time"
)

var garbage []byte

// TestGCPaceFollowsAllocation makes garbage until collections are rarer, then stops until they are
// as frequent as before.
func TestGCPaceFollowsAllocation(t *testing.T) {
	before := gcPercent()
	t.Cleanup(func() { debug.SetGCPercent(before) })
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		paceGC(ctx, ofServer)
	}()
	t.Cleanup(func() { cancel(); <-done })
	atRest := func(percent int) bool { return percent == gcPercentAtRest }
	busy := func(percent int) bool { return percent >= gcPercentBusy }
	for _, want := range []struct {
		is    func(percent int) bool
		doing func()
	}{
		{atRest, func() { time.Sleep(time.Millisecond) }},
		{busy, func() { garbage = make([]byte, 64<<10) }},
		{atRest, func() { time.Sleep(time.Millisecond) }},
	} {
		for end := time.Now().Add(time.Minute); !want.is(gcPercent()); want.doing() {
			if time.Now().After(end) {
				t.Fatalf("GC percent is still %d", gcPercent())
			}
		}
	}
}

func TestBurstsUseMemoryThatIsFree(t *testing.T) {
	const mib = 1 << 20
	for _, c := range []struct{ live, free, want uint64 }{
		{live: 40 * mib, free: 16 << 30, want: 400},   // 160 MiB of garbage
		{live: 200 * mib, free: 16 << 30, want: 128},  // 256 MiB, a part of what is free
		{live: 1000 * mib, free: 16 << 30, want: 100}, // never less than at other times
		{live: 40 * mib, free: 200 * mib, want: 100},
		{live: 40 * mib, free: 0, want: 100}, // unknown
		{live: 0, free: 16 << 30, want: 400}, // nothing was collected yet
	} {
		if got := amplePercent(c.live, c.free); got != int(c.want) {
			t.Errorf("%d MiB live, %d free: %d, want %d", c.live/mib, c.free/mib, got, c.want)
		}
	}
	if available() == 0 {
		t.Error("the machine's free memory is not known")
	}
}

func gcPercent() int {
	s := []metrics.Sample{{Name: "/gc/gogc:percent"}}
	metrics.Read(s)
	return int(s[0].Value.Uint64())
}
