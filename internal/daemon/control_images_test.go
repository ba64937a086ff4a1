package daemon

import (
	"bytes"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"wherry.dev/internal/image"
	"wherry.dev/test/images"
)

// controlOf serves a store on a control socket and returns a client of it.
func controlOf(t *testing.T) (*image.Store, *Client) {
	t.Helper()
	dir := t.TempDir()
	s, err := image.OpenWith(filepath.Join(dir, "store"), image.Config{CertsDirs: []string{}})
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewUnstartedServer((&control{images: s}).handler())
	if err := srv.Listener.Close(); err != nil {
		t.Fatal(err)
	}
	if srv.Listener, err = new(net.ListenConfig).Listen(t.Context(), "unix", ControlSocket(dir)); err != nil {
		t.Fatal(err)
	}
	srv.Start()
	c := Dial(dir)
	t.Cleanup(func() {
		c.Close()
		srv.Close()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s, c
}

// closedRegistry has one image that only ann may pull.
func closedRegistry(t *testing.T) (ref string) {
	t.Helper()
	open := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	var closed atomic.Bool
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, _, _ := r.BasicAuth(); closed.Load() && user != "ann" {
			w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		open.ServeHTTP(w, r)
	}))
	t.Cleanup(srv.Close)
	img, err := images.New(v1.Config{}, images.Root{"a": {Data: []byte("x"), Mode: 0o644}})
	if err != nil {
		t.Fatal(err)
	}
	ref = strings.TrimPrefix(srv.URL, "http://") + "/demo:1"
	tag, err := name.NewTag(ref)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(tag, img); err != nil {
		t.Fatal(err)
	}
	closed.Store(true)
	return ref
}

func TestImagesThroughTheControlSocket(t *testing.T) {
	s, c := controlOf(t)
	ref := closedRegistry(t)
	if _, err := c.Pull(t.Context(), ref, image.PullOptions{}); err == nil || !strings.Contains(err.Error(), "access denied") {
		t.Errorf("without credentials: %v", err)
	}
	var last image.Progress
	img, err := c.Pull(t.Context(), ref, image.PullOptions{
		Auth:     image.Auth{Username: "ann", Password: "x"},
		Progress: func(p image.Progress) { last = p },
	})
	if err != nil {
		t.Fatal(err)
	}
	if last.Total == 0 {
		t.Error("no progress was reported")
	}
	if pulls, err := c.Pulls(t.Context()); err != nil || len(pulls) != 0 {
		t.Errorf("going on: %v %v", pulls, err)
	}
	var archive bytes.Buffer
	if err := c.Export(t.Context(), &archive, ref); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "i.tar")
	if err := os.WriteFile(file, archive.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := c.Remove(t.Context(), ref); err != nil {
		t.Fatal(err)
	}
	if imgs, err := c.Import(t.Context(), file); err != nil || len(imgs) != 1 || imgs[0].ID != img.ID {
		t.Errorf("imported %+v, %v", imgs, err)
	}
	if _, ok := s.Lookup(ref); !ok {
		t.Error("the archive has no name for the image")
	}
}

func TestFailedExportThroughTheControlSocket(t *testing.T) {
	s, c := controlOf(t)
	if err := c.Export(t.Context(), io.Discard, "absent:1"); !errors.Is(err, image.ErrNotFound) {
		t.Errorf("got %v", err)
	}
	img, err := c.Pull(t.Context(), closedRegistry(t), image.PullOptions{Auth: image.Auth{Username: "ann", Password: "x"}})
	if err != nil {
		t.Fatal(err)
	}
	layers, err := s.Layers(img.ID)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(layers[0], "a")); err != nil {
		t.Fatal(err)
	}
	if err := c.Export(t.Context(), io.Discard, img.ID); err == nil || !strings.Contains(err.Error(), "open a: no such file") {
		t.Errorf("in the middle of the archive: %v", err)
	}
}
