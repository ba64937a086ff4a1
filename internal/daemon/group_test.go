package daemon

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// What is left of a failed etcd may block a request for ever, and with it the server that waits for
// the request: the node has to restart all the same.
func TestComponentThatNeverEndsHoldsNoStopUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, release := newGroup(), make(chan struct{})
		var ended []string
		g.start(t.Context(), "first", func(ctx context.Context) error {
			<-ctx.Done()
			ended = append(ended, "first")
			return nil
		})
		g.start(t.Context(), "stuck", func(context.Context) error { <-release; return nil })
		g.start(t.Context(), "last", func(ctx context.Context) error { <-ctx.Done(); return errors.New("badly") })
		synctest.Wait()
		ctx, cancel := context.WithTimeoutCause(t.Context(), failedStop, errors.New("reason"))
		defer cancel()
		began := time.Now()
		err := g.stop(ctx)
		if err == nil || !strings.Contains(err.Error(), "stop stuck: it is still running: reason") || !strings.Contains(err.Error(), "stop last: badly") {
			t.Errorf("stop: %v", err)
		}
		if took := time.Since(began); took != failedStop {
			t.Errorf("after %v", took)
		}
		synctest.Wait()
		if len(ended) != 1 {
			t.Error("who is older than the one that is stuck was not stopped")
		}
		close(release)
	})
}

// A node whose data fail after its API server is ready never becomes Ready: it restarts.
func TestStartDoesNotWaitForWhatNeverComes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, never := newGroup(), make(chan struct{})
		done := make(chan error, 1)
		go func() { done <- g.ready(t.Context(), "the node", nil, never) }()
		synctest.Wait()
		close(never)
		synctest.Wait()
		select {
		case err := <-done:
			if err == nil {
				t.Error("it is called ready")
			}
		default:
			t.Fatal("it waits")
		}
	})
}
