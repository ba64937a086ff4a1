package controller_test

import (
	"errors"
	"sync/atomic"
	"testing"

	"wherry.dev/internal/controller"
)

func TestSlowStart(t *testing.T) {
	for _, tt := range []struct {
		n, allowed, calls int
	}{{n: 0, allowed: 9, calls: 0}, {n: 10, allowed: 10, calls: 10}, {n: 10, allowed: 0, calls: 1}, {n: 10, allowed: 1, calls: 3}, {n: 10, allowed: 5, calls: 7}, {n: 10, allowed: 9, calls: 10}} {
		var calls atomic.Int32
		err := controller.SlowStart(tt.n, func(int) error {
			if int(calls.Add(1)) > tt.allowed {
				return errors.New("quota")
			}
			return nil
		})
		if int(calls.Load()) != tt.calls || (err != nil) != (tt.allowed < tt.n) {
			t.Errorf("%+v: %d calls, %v", tt, calls.Load(), err)
		}
	}
}
