package image_test

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"wherry.dev/internal/image"
	"wherry.dev/test/images"
)

// twoMore returns an image with the base layer of twoLayers, and another one above it.
func twoMore(t testing.TB) v1.Image {
	t.Helper()
	base, err := twoLayers(t).Layers()
	if err != nil {
		t.Fatal(err)
	}
	return imageOf(t, base[0], gzLayer(t, rootTar(t, images.Root{"more": {Data: []byte("5"), Mode: 0o644}})))
}

// gate holds back requests for blobs.
type gate struct {
	arrived chan struct{} // gets one for each request
	open    chan struct{} // closed to let all through
}

func gateOf(s *server) *gate {
	g := &gate{arrived: make(chan struct{}, 100), open: make(chan struct{})}
	s.On(func(_ http.ResponseWriter, r *http.Request) bool {
		if isBlob(r) {
			g.arrived <- struct{}{}
			select {
			case <-g.open:
			case <-r.Context().Done():
			}
		}
		return false
	})
	return g
}

func TestConcurrentPullsAreOne(t *testing.T) {
	srv, s := plain(t), open(t, t.TempDir())
	img := twoLayers(t)
	ref := srv.Push(t, "demo:1", img)
	g := gateOf(srv)
	var wg sync.WaitGroup
	errs := make([]error, 8)
	for i := range errs {
		wg.Go(func() { _, errs[i] = s.Pull(t.Context(), ref, image.PullOptions{}) })
	}
	<-g.arrived
	if now := s.Pulls(); len(now) != 1 || now[0].Reference != ref {
		t.Errorf("going on: %+v", now)
	}
	close(g.open)
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	if n := len(s.List()); n != 1 {
		t.Errorf("%d images", n)
	}
	for _, d := range digests(t, img) {
		if n := srv.Fetched(d); n != 1 {
			t.Errorf("layer %s was fetched %d times", d, n)
		}
	}
}

func TestOneLayerOfTwoImagesIsFetchedOnce(t *testing.T) {
	srv, s := plain(t), open(t, t.TempDir())
	a, b := twoLayers(t), twoMore(t)
	refs := []string{srv.Push(t, "a:1", a), srv.Push(t, "b:1", b)}
	var wg sync.WaitGroup
	errs := make([]error, 2)
	for i, ref := range refs {
		wg.Go(func() { _, errs[i] = s.Pull(t.Context(), ref, image.PullOptions{}) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	shared := digests(t, a)[0]
	if n := srv.Fetched(shared); n != 1 {
		t.Errorf("the shared layer was fetched %d times", n)
	}
	_, before, err := s.Usage()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Remove(t.Context(), refs[0]); err != nil {
		t.Fatal(err)
	}
	img, ok := s.Lookup(refs[1])
	if !ok {
		t.Fatal("the other image is gone")
	}
	tree(t, overlay(t, s, img.ID))
	checkWhole(t, s)
	if _, after, _ := s.Usage(); after >= before || after == 0 {
		t.Errorf("inodes: %d before, %d after", before, after)
	}
}

func TestSharedLayerOfACancelledPullIsFetchedByTheOther(t *testing.T) {
	srv, s := plain(t), open(t, t.TempDir())
	a, b := srv.Push(t, "a:1", twoLayers(t)), srv.Push(t, "b:1", twoMore(t))
	shared := digests(t, twoLayers(t))[0]
	stuck, free := make(chan struct{}, 100), make(chan struct{})
	srv.On(func(_ http.ResponseWriter, r *http.Request) bool {
		if isBlob(r) && hasSuffix(r.URL.Path, shared) {
			select {
			case stuck <- struct{}{}:
			default:
			}
			select {
			case <-free:
			case <-r.Context().Done():
			}
		}
		return false
	})
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	var errA, errB error
	wg.Go(func() { _, errA = s.Pull(ctx, a, image.PullOptions{}) })
	<-stuck // a has the layer's lock
	wg.Go(func() { _, errB = s.Pull(t.Context(), b, image.PullOptions{}) })
	cancel()
	<-stuck // b has taken over
	close(free)
	wg.Wait()
	if !errors.Is(errA, context.Canceled) || errB != nil {
		t.Errorf("a: %v, b: %v", errA, errB)
	}
	checkWhole(t, s)
}

func hasSuffix(s, suffix string) bool {
	return len(s) >= len(suffix) && s[len(s)-len(suffix):] == suffix
}

func TestCancelledPullLeavesNothing(t *testing.T) {
	srv, s := plain(t), open(t, t.TempDir())
	ref := srv.Push(t, "demo:1", twoLayers(t))
	g := gateOf(srv)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-g.arrived
		cancel()
	}()
	if _, err := s.Pull(ctx, ref, image.PullOptions{}); !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v", err)
	}
	checkEmpty(t, s)
	close(g.open)
	pull(t, s, ref)
}

// A caller that has left gets no more progress: its channel may be closed.
func TestOneOfTwoWhoWaitMayLeave(t *testing.T) {
	srv, s := plain(t), open(t, t.TempDir())
	ref := srv.Push(t, "demo:1", twoLayers(t))
	g := gateOf(srv)
	ctx, cancel := context.WithCancel(t.Context())
	heard := make(chan struct{}, 100)
	var first, second error
	var left, rest sync.WaitGroup
	left.Go(func() {
		_, first = s.Pull(ctx, ref, image.PullOptions{Progress: func(image.Progress) { heard <- struct{}{} }})
		close(heard)
	})
	<-g.arrived
	told := false
	rest.Go(func() {
		_, second = s.Pull(t.Context(), ref, image.PullOptions{Progress: func(image.Progress) { told = true }})
	})
	s.AwaitWaiters(ref, 2)
	cancel()
	left.Wait()
	close(g.open)
	rest.Wait()
	if !errors.Is(first, context.Canceled) || second != nil || !told {
		t.Errorf("who left: %v, who stayed: %v, told of progress: %v", first, second, told)
	}
}

// A caller that ran out of time asks again, and joins the pull in progress.
func TestPullGoesOnAfterATimeout(t *testing.T) {
	srv, s := plain(t), open(t, t.TempDir())
	img := twoLayers(t)
	ref := srv.Push(t, "demo:1", img)
	g := gateOf(srv)
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	expired := &expiredContext{ctx, make(chan struct{})}
	go func() {
		<-g.arrived
		close(expired.done)
	}()
	if _, err := s.Pull(expired, ref, image.PullOptions{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("got %v", err)
	}
	if now := s.Pulls(); len(now) != 1 {
		t.Fatalf("going on: %+v", now)
	}
	close(g.open)
	pull(t, s, ref)
	for _, d := range digests(t, img) {
		if n := srv.Fetched(d); n != 1 {
			t.Errorf("layer %s was fetched %d times", d, n)
		}
	}
}

// expiredContext runs out of time when the test says so.
type expiredContext struct {
	context.Context //nolint:containedctx // a context itself
	done            chan struct{}
}

func (c *expiredContext) Done() <-chan struct{} { return c.done }
func (c *expiredContext) Err() error {
	select {
	case <-c.done:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

func TestCloseEndsPulls(t *testing.T) {
	srv, dir := plain(t), t.TempDir()
	s := open(t, dir)
	ref := srv.Push(t, "demo:1", twoLayers(t))
	g := gateOf(srv)
	done := make(chan error, 1)
	go func() {
		_, err := s.Pull(t.Context(), ref, image.PullOptions{})
		done <- err
	}()
	<-g.arrived
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if _, err := s.Pull(t.Context(), ref, image.PullOptions{}); err == nil {
		t.Error("a closed store pulls")
	}
	close(g.open)
	checkEmpty(t, open(t, dir))
}
