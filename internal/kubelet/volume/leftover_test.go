package volume

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"wherry.dev/internal/kubelet/criconfig"
)

// tends lets the node see to what no pod has any more, until stop.
func tends(t *testing.T, m *Mounter) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	return func() {
		t.Helper()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// stuck is a volume that the kernel does not let go of.
type stuck struct{ begun, end chan struct{} }

func (s stuck) name() string { return "stuck" }

func (s stuck) folder() string { return "stuck" }

func (s stuck) leave(context.Context, *Mounter) error {
	s.begun <- struct{}{}
	<-s.end
	return nil
}

// An unmount can hang for minutes, and nothing ends it. Neither the pod nor the kubelet's stop waits for it.
func TestNobodyWaitsForADiskThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &Mounter{Dirs: criconfig.Dirs{Root: t.TempDir()}}
		l := stuck{make(chan struct{}, 2), make(chan struct{})}
		start := time.Now()
		m.release(t.Context(), l)
		m.leftovers.add(l)
		ctx, cancel := context.WithCancel(t.Context())
		stopped := make(chan error)
		go func() { stopped <- m.Run(ctx) }()
		<-l.begun
		<-l.begun
		cancel()
		if err := <-stopped; err != nil || time.Since(start) > 2*leavePatience {
			t.Errorf("after %s: %v", time.Since(start), err)
		}
		close(l.end)
	})
}
