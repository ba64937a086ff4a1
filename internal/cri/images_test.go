package cri

import (
	"context"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/image"
	"wherry.dev/test/images"
)

// testRegistry has the image demo:1; answer sees requests for it first.
func testRegistry(t *testing.T, answer func(w http.ResponseWriter, r *http.Request) bool) (host string) {
	t.Helper()
	all := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	var guarded atomic.Bool
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !guarded.Load() || !answer(w, r) {
			all.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(srv.Close)
	img, err := images.New(v1.Config{User: "1000"}, images.Root{"a": {Data: []byte("x"), Mode: 0o644}})
	if err != nil {
		t.Fatal(err)
	}
	host = strings.TrimPrefix(srv.URL, "http://")
	tag, err := name.NewTag(host + "/demo:1")
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(tag, img); err != nil {
		t.Fatal(err)
	}
	guarded.Store(true)
	return host
}

func never(http.ResponseWriter, *http.Request) bool { return false }

func TestPullWithCredentials(t *testing.T) {
	n := newNode(t)
	host := testRegistry(t, func(w http.ResponseWriter, r *http.Request) bool {
		if user, password, _ := r.BasicAuth(); user == "ann" && password == "x" {
			return false
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
		w.WriteHeader(http.StatusUnauthorized)
		return true
	})
	spec := &runtimeapi.ImageSpec{Image: host + "/demo:1"}
	if _, err := n.img.PullImage(t.Context(), spec, nil, nil); err == nil || !strings.Contains(err.Error(), "access denied") {
		t.Errorf("without credentials: %v", err)
	}
	ref, err := n.img.PullImage(t.Context(), spec, &runtimeapi.AuthConfig{Auth: "YW5uOng="}, nil)
	n.must(err)
	st, err := n.img.ImageStatus(t.Context(), spec, false)
	n.must(err)
	if img := st.GetImage(); img.GetId() != ref || img.GetUid().GetValue() != 1000 || img.GetPinned() || len(img.GetRepoDigests()) != 1 {
		t.Errorf("status: %+v", img)
	}
}

func TestPullOfAnAbsentImageIsNotFound(t *testing.T) {
	n := newNode(t)
	host := testRegistry(t, never)
	_, err := n.img.PullImage(t.Context(), &runtimeapi.ImageSpec{Image: host + "/absent:1"}, nil, nil)
	if status.Code(err) != codes.NotFound || !strings.Contains(err.Error(), host+"/absent:1") {
		t.Errorf("%s: %v", status.Code(err), err)
	}
}

// TestSilentRegistryIsTold: the kubelet gives a pod the reason RegistryUnavailable if the message
// begins with it.
func TestSilentRegistryIsTold(t *testing.T) {
	n := newNode(t)
	srv := httptest.NewServer(http.NotFoundHandler())
	srv.Close() // nobody listens there any more
	_, ic := n.dial()
	_, err := ic.PullImage(t.Context(), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: strings.TrimPrefix(srv.URL, "http://") + "/demo:1"}})
	if text := status.Convert(err).Message(); !strings.HasPrefix(text, "RegistryUnavailable: pull ") || !strings.Contains(text, "refused") {
		t.Error(err)
	}
}

func TestCancelledPullLeavesNoImage(t *testing.T) {
	n := newNode(t)
	ctx, cancel := context.WithCancel(t.Context())
	host := testRegistry(t, func(_ http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/") {
			cancel()
			<-r.Context().Done()
		}
		return false
	})
	if _, err := n.img.PullImage(ctx, &runtimeapi.ImageSpec{Image: host + "/demo:1"}, nil, nil); !errors.Is(err, context.Canceled) && status.Code(err) != codes.Canceled {
		t.Errorf("got %v", err)
	}
	if st, err := n.img.ImageStatus(t.Context(), &runtimeapi.ImageSpec{Image: host + "/demo:1"}, false); err != nil || st.GetImage() != nil {
		t.Errorf("status: %+v %v", st, err)
	}
}

func TestImageInUseIsNotRemoved(t *testing.T) {
	n := newNode(t)
	p := n.pod()
	id := p.create(containerConfig("c", "true"))
	busybox := &runtimeapi.ImageSpec{Image: "busybox:latest"}
	st, err := n.img.ImageStatus(t.Context(), busybox, false)
	n.must(err)
	byID := &runtimeapi.ImageSpec{Image: st.GetImage().GetId()}
	for range 2 { // also by the process after this one
		if err := n.img.RemoveImage(t.Context(), byID); !errors.Is(err, image.ErrInUse) {
			t.Errorf("got %v", err)
		}
		if gone, err := n.images.Prune(t.Context()); err != nil || len(gone) != 0 {
			t.Errorf("pruned %v, %v", gone, err)
		}
		n.restart()
	}
	n.must(n.run.StartContainer(t.Context(), id))
	n.must(n.run.RemoveContainer(t.Context(), id))
	n.must(n.img.RemoveImage(t.Context(), byID))
	n.must(n.img.RemoveImage(t.Context(), byID)) // removing what does not exist succeeds
}

// An image that two containers have as a volume stays until the last of them is gone.
func TestImageOfAVolumeIsNotRemoved(t *testing.T) {
	n := newNode(t)
	img, err := images.New(v1.Config{}, images.Root{"data/a": {Data: []byte("from the image"), Mode: 0o644}})
	n.must(err)
	archive := filepath.Join(t.TempDir(), "i.tar")
	n.must(images.Save(archive, img, "volume:1"))
	_, err = n.images.Import(t.Context(), archive)
	n.must(err)
	p := n.pod()
	var ids []string
	for _, name := range []string{"a", "b"} {
		cfg := containerConfig(name, "sh", "-c", "cat /v/a; sleep 1000")
		cfg.Mounts = []*runtimeapi.Mount{imageMount("/v", "volume:1", "data")}
		ids = append(ids, p.start(cfg))
	}
	n.restart()
	for _, id := range ids {
		if err := n.img.RemoveImage(t.Context(), &runtimeapi.ImageSpec{Image: "volume:1"}); !errors.Is(err, image.ErrInUse) {
			t.Errorf("got %v", err)
		}
		if gone, err := n.images.Prune(t.Context()); err != nil || len(gone) != 0 {
			t.Errorf("pruned %v, %v", gone, err)
		}
		if got := n.exec(id, "cat", "/v/a"); got != "from the image" {
			t.Errorf("the volume has %q", got)
		}
		n.must(n.run.StopContainer(t.Context(), id, 0))
		n.must(n.run.RemoveContainer(t.Context(), id))
	}
	n.must(n.img.RemoveImage(t.Context(), &runtimeapi.ImageSpec{Image: "volume:1"}))
}

// TestImageStatusTellsHowFarAPullIs: the verbose status has the progress of a pull.
func TestImageStatusTellsHowFarAPullIs(t *testing.T) {
	n := newNode(t)
	arrived, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	host := testRegistry(t, func(_ http.ResponseWriter, r *http.Request) bool {
		if strings.Contains(r.URL.Path, "/blobs/") && r.Method == http.MethodGet {
			once.Do(func() { close(arrived) })
			<-release
		}
		return false
	})
	spec := &runtimeapi.ImageSpec{Image: host + "/demo:1"}
	done := make(chan error, 1)
	go func() {
		_, err := n.img.PullImage(t.Context(), spec, nil, nil)
		done <- err
	}()
	<-arrived
	st, err := n.img.ImageStatus(t.Context(), spec, true)
	n.must(err)
	if st.GetImage() != nil || !strings.Contains(st.GetInfo()["pulling"], `"layers":`) {
		t.Errorf("while it is pulled: %+v", st)
	}
	close(release)
	n.must(<-done)
	st, err = n.img.ImageStatus(t.Context(), spec, true)
	n.must(err)
	if st.GetImage() == nil || st.GetInfo()["pulling"] != "" {
		t.Errorf("afterwards: %+v", st)
	}
}
