package controller

import (
	"context"

	"k8s.io/klog/v2"
)

// Clock calls wasSet whenever somebody has set the machine's clock, until ctx ends.
type Clock func(ctx context.Context, wasSet func()) error

// RunByClock is Run for a loop whose keys wait for times of day: when the clock was set, it reconciles
// all keys again.
func (l *Loop) RunByClock(ctx context.Context, clock Clock, keys func() []string) error {
	parts := []func() error{
		func() error { return l.Run(ctx) },
		func() error {
			err := clock(ctx, func() {
				for _, key := range keys() {
					l.Add(key)
				}
			})
			if err != nil { // nobody is told of it before the loop ends, and the loop does most without
				klog.FromContext(ctx).Error(err, "Changes of the clock are not noticed", "controller", l.name)
			}
			return nil
		},
	}
	return Together(len(parts), func(i int) error { return parts[i]() })
}
