package main

import (
	"runtime/debug"
	"testing"
	"testing/synctest"
	"time"
)

// percent is GOGC as it is.
func percent() int {
	p := debug.SetGCPercent(idlePercent)
	debug.SetGCPercent(p)
	return p
}

func TestHeapGrowsOnlyWhileBusy(t *testing.T) {
	defer debug.SetGCPercent(percent())
	debug.SetGCPercent(idlePercent)
	synctest.Test(t, func(t *testing.T) {
		p := &heapPacer{}
		want := func(n int) {
			t.Helper()
			synctest.Wait()
			if got := percent(); got != n {
				t.Errorf("GOGC is %d, want %d", got, n)
			}
		}
		p.collected(time.Now())
		time.Sleep(2 * busyGap)
		p.collected(time.Now())
		want(idlePercent)
		for range 10 { // busy for longer than calm
			time.Sleep(busyGap / 2)
			p.collected(time.Now())
			want(busyPercent)
		}
		time.Sleep(calm - time.Millisecond)
		want(busyPercent)
		time.Sleep(time.Millisecond)
		want(idlePercent)
	})
}
