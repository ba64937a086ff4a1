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
		paceGC(ctx)
	}()
	t.Cleanup(func() { cancel(); <-done })
	for _, want := range []struct {
		percent int
		doing   func()
	}{
		{gcPercentAtRest, func() { time.Sleep(time.Millisecond) }},
		{gcPercentBusy, func() { garbage = make([]byte, 64<<10) }},
		{gcPercentAtRest, func() { time.Sleep(time.Millisecond) }},
	} {
		for end := time.Now().Add(time.Minute); gcPercent() != want.percent; want.doing() {
			if time.Now().After(end) {
				t.Fatalf("GC percent is %d, not %d", gcPercent(), want.percent)
			}
		}
	}
}

func gcPercent() int {
	s := []metrics.Sample{{Name: "/gc/gogc:percent"}}
	metrics.Read(s)
	return int(s[0].Value.Uint64())
}
