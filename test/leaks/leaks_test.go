package leaks

import (
	"testing"
	"time"

	"go.uber.org/goleak"
)

type tests func() int

func (f tests) Run() int { return f() }

func TestWhatEndsLateIsNoLeakAndWhatStaysIs(t *testing.T) {
	others, end := goleak.IgnoreCurrent(), make(chan struct{})
	leave := tests(func() int {
		go func() { <-end }()
		return 0
	})
	if got := run(leave, 0, others); got != 1 {
		t.Errorf("one that stays: exit code %d", got)
	}
	go func() {
		_ = goleak.Find(others) // as long as goleak alone would wait
		close(end)
	}()
	if got := run(tests(func() int { return 0 }), patience, others); got != 0 {
		t.Errorf("one that ends late: exit code %d", got)
	}
	if got := run(tests(func() int { return 3 }), time.Hour, others); got != 3 {
		t.Errorf("tests that failed: exit code %d", got)
	}
}
