package cni

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"wherry.dev/internal/record"
)

// How long after a removal GC runs, so that one run serves many removals; and how long after a
// DEL that failed.
const (
	gcDelay = 30 * time.Second
	gcRetry = 5 * time.Minute
)

// collect requests a GC soon.
func (n *Network) collect() {
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// Run releases what plugins hold for sandboxes that no longer exist: at start, some time after
// removals, and again as long as something could not be removed. It returns when ctx ends. It
// does not know the pods of other runtimes: a network that several runtimes use must set
// disableGC (CNI spec 1.1, section 1).
func (n *Network) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	armed := true
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-n.wake:
			if !armed {
				timer.Reset(gcDelay)
				armed = true
			}
		case <-timer.C:
			armed = false
			again, err := n.gc(ctx)
			if err != nil && ctx.Err() == nil {
				klog.FromContext(ctx).Error(err, "Cannot clean up after sandboxes in CNI networks")
			}
			if again > 0 {
				timer.Reset(again)
				armed = true
			}
		}
	}
}

// gc removes abandoned attachments and then tells the plugins which ones are left. again is when
// to run next, or 0.
func (n *Network) gc(ctx context.Context) (again time.Duration, err error) {
	lost := n.removeAbandoned(ctx)
	n.mu.Lock()
	if len(n.abandoned) > 0 {
		again = gcRetry
	}
	n.mu.Unlock()
	c, _, err := loadChain(n.cfg.Plugins)
	if err != nil { // Status reports what is wrong with the folder
		return again, lost
	}
	// A pod that is being attached may hold something that the list of valid attachments, made
	// just before, does not include. Waiting for the lock would block new pods behind it.
	if !n.adds.TryLock() {
		return gcDelay, lost
	}
	defer n.adds.Unlock()
	valid, err := n.cfg.Plugins.attachedIDs()
	if err == nil {
		err = c.gc(ctx, valid)
	}
	return again, errors.Join(lost, err)
}

// removeAbandoned runs DEL for the attachments that nobody else will remove. It gives up at the
// first plugin that hangs, because the others would most likely hang, too.
func (n *Network) removeAbandoned(ctx context.Context) error {
	n.mu.Lock()
	ids := slices.Sorted(maps.Keys(n.abandoned))
	n.mu.Unlock()
	var errs []error
	for _, id := range ids {
		err := n.removeOne(ctx, id)
		if err == nil {
			n.mu.Lock()
			delete(n.abandoned, id)
			n.mu.Unlock()
			continue
		}
		errs = append(errs, err)
		if _, hung := errors.AsType[*HungError](err); hung {
			break
		}
	}
	return errors.Join(errs...)
}

func (n *Network) removeOne(ctx context.Context, id string) error {
	a, c, err := n.cfg.Plugins.readAttached(id)
	if _, corrupt := errors.AsType[*record.CorruptError](err); corrupt {
		klog.FromContext(ctx).Error(err, "A network record is unusable; only the plugins' GC can release what the sandbox holds", "sandbox", id)
		return n.cfg.Plugins.forget(id)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil // it was removed first
	}
	if err != nil {
		return fmt.Errorf("read network record of sandbox %s: %w", id, err)
	}
	if err := c.del(ctx, a.Pod); err != nil {
		return err
	}
	klog.FromContext(ctx).Info("Removed a lost sandbox from a CNI network", "sandbox", id, "network", c.name())
	return n.cfg.Plugins.forget(id)
}
