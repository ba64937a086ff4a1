package storage

import (
	"testing"
	"time"
)

func TestTimersInStep(t *testing.T) {
	at := time.Date(2026, 1, 1, 0, 0, 7, 0, time.UTC)
	for _, tt := range []struct{ after, wait, want time.Duration }{
		{0, time.Second, time.Second},
		{0, 1200 * time.Millisecond, time.Second},
		{1, time.Second, time.Second - 1},
		{900 * time.Millisecond, 1050 * time.Millisecond, 100 * time.Millisecond},
		{900 * time.Millisecond, 1250 * time.Millisecond, 1100 * time.Millisecond},
		{999 * time.Millisecond, time.Minute, time.Minute - 999*time.Millisecond},
		{300 * time.Millisecond, 100 * time.Millisecond, progressPeriod},
		{300 * time.Millisecond, 0, 0},
	} {
		if got := step(at.Add(tt.after), tt.wait); got != tt.want {
			t.Errorf("%v after a full second, a wait of %v: %v, want %v", tt.after, tt.wait, got, tt.want)
		}
	}
}
