package leaks

import (
	"strings"
	"testing"
	"time"
)

func waits(end <-chan struct{}) { <-end }

func TestGoroutineThatStaysIsNamed(t *testing.T) {
	end := make(chan struct{})
	go waits(end)
	if err := find(0, nil); err == nil || !strings.Contains(err.Error(), "leaks.waits") {
		t.Errorf("got %v", err)
	}
	close(end)
	if err := Find(); err != nil {
		t.Error(err)
	}
}

// goleak gives up after half a second.
func TestGoroutineThatEndsLateIsNone(t *testing.T) {
	end := make(chan struct{})
	go waits(end)
	time.AfterFunc(time.Second, func() { close(end) })
	if err := Find(); err != nil {
		t.Error(err)
	}
}

type suite int

func (s suite) Run() int { return int(s) }

func TestFailureOfASuiteIsKept(t *testing.T) {
	if code := Watch(suite(3)).Run(); code != 3 {
		t.Errorf("%d", code)
	}
	if code := Watch(suite(0)).Run(); code != 0 {
		t.Errorf("%d", code)
	}
}
