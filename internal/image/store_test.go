package image_test

import (
	"errors"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"go.uber.org/goleak"

	"wherry.dev/internal/image"
	"wherry.dev/test/images"
	"wherry.dev/test/leaks"
)

func TestMain(m *testing.M) {
	if code, ok := runChild(); ok {
		os.Exit(code)
	}
	os.Exit(leaks.Watch(m).Run())
}

func push(t *testing.T, img v1.Image) (ref string) {
	t.Helper()
	return plain(t).Push(t, "demo:1", img)
}

func TestPullMakesWhiteoutsAndOpaqueFoldersWork(t *testing.T) {
	s := open(t, t.TempDir())
	ref := push(t, twoLayers(t))
	img, err := s.Pull(t.Context(), ref, image.PullOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"dir/keep", "opaque/above"}, tree(t, overlay(t, s, img.ID))); diff != "" {
		t.Error(diff)
	}
	if len(img.Digests) != 1 || len(img.Tags) != 1 || img.Tags[0] != ref {
		t.Errorf("references: %v %v", img.Tags, img.Digests)
	}
}

func TestPullOfAMissingImageSaysSo(t *testing.T) {
	s := open(t, t.TempDir())
	ref := push(t, twoLayers(t))
	_, err := s.Pull(t.Context(), strings.Replace(ref, "demo", "absent", 1), image.PullOptions{})
	if err == nil || !strings.Contains(err.Error(), "absent") {
		t.Errorf("got %v", err)
	}
}

func TestPullLeavesNoConnections(t *testing.T) {
	for name, srv := range map[string]*server{"plain": plain(t), "TLS": newServer(t, (*httptest.Server).StartTLS)} {
		s := open(t, t.TempDir())
		ref := srv.Push(t, "demo:1", twoLayers(t))
		before := goleak.IgnoreCurrent()
		pull(t, s, ref)
		if err := leaks.Find(before); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestImportSurvivesReopen(t *testing.T) {
	dir, file := t.TempDir(), filepath.Join(t.TempDir(), "i.tar")
	if err := images.Save(file, twoLayers(t), "demo:1", "demo:2"); err != nil {
		t.Fatal(err)
	}
	s, err := image.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	imgs, err := s.Import(t.Context(), file)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := image.Open(dir); err == nil {
		t.Error("a second process could open the store")
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, dir)
	got, ok := s.Lookup("demo:2")
	if !ok || got.ID != imgs[0].ID {
		t.Errorf("after reopening: %v %v", got, ok)
	}
	if diff := cmp.Diff([]string{"docker.io/library/demo:1", "docker.io/library/demo:2"}, got.Tags); diff != "" {
		t.Error(diff)
	}
	tree(t, overlay(t, s, got.ID))
}

func TestRemove(t *testing.T) {
	s := open(t, t.TempDir())
	file := filepath.Join(t.TempDir(), "i.tar")
	if err := images.Save(file, twoLayers(t), "demo:1", "demo:2"); err != nil {
		t.Fatal(err)
	}
	imgs, err := s.Import(t.Context(), file)
	if err != nil {
		t.Fatal(err)
	}
	id := imgs[0].ID
	if err := s.Hold(id, "c1"); err != nil {
		t.Fatal(err)
	}
	if err := s.Remove(t.Context(), "demo:1"); err != nil {
		t.Errorf("a tag of several: %v", err)
	}
	if err := s.Remove(t.Context(), "demo:2"); !errors.Is(err, image.ErrInUse) {
		t.Errorf("the last tag of a held image: %v", err)
	}
	if gone, err := s.Prune(t.Context()); err != nil || len(gone) != 0 {
		t.Errorf("prune: %v %v", gone, err)
	}
	s.Release("c1")
	if err := s.Remove(t.Context(), id[len("sha256:"):][:12]); err != nil {
		t.Errorf("by a short ID: %v", err)
	}
	left, err := os.ReadDir(filepath.Join(s.Dir(), "layers"))
	if err != nil || len(left) > 0 {
		t.Errorf("layers left: %v %v", left, err)
	}
}

func TestPinnedImageIsNotCollected(t *testing.T) {
	file := filepath.Join(t.TempDir(), "i.tar")
	if err := images.Save(file, twoLayers(t), "demo:1.36", "demo:latest"); err != nil {
		t.Fatal(err)
	}
	for pattern, want := range map[string]bool{
		"demo": true, "demo:1.36": true, "docker.io/library/demo:1.36": true, "demo:1*": true, "docker.io/library/*": true, "*em*": true, "*": true,
		"demo:2": false, "emo*": false, "*x*": false, "docker.io/other/*": false,
	} {
		s := openWith(t, t.TempDir(), image.Config{Pinned: []string{pattern}})
		imgs, err := s.Import(t.Context(), file)
		if err != nil {
			t.Fatal(err)
		}
		gone, err := s.Prune(t.Context())
		if imgs[0].Pinned != want || (len(gone) == 0) != want || err != nil {
			t.Errorf("%s: pinned %v, pruned %d, %v", pattern, imgs[0].Pinned, len(gone), err)
		}
		if err := s.Remove(t.Context(), "demo"); want && err != nil {
			t.Errorf("%s: by hand: %v", pattern, err)
		}
	}
	s := open(t, t.TempDir())
	imgs, err := s.Import(t.Context(), file)
	if err != nil {
		t.Fatal(err)
	}
	s.Pin([]string{imgs[0].ID})
	if gone, err := s.Prune(t.Context()); err != nil || len(gone) > 0 || !s.List()[0].Pinned {
		t.Errorf("pinned by its ID: pruned %v, %v", gone, err)
	}
	if _, err := image.OpenWith(t.TempDir(), image.Config{Pinned: []string{"Bad"}}); err == nil {
		t.Error("a pattern that is no reference was taken")
	}
}

func TestCorruptLayerIsRefused(t *testing.T) {
	file := filepath.Join(t.TempDir(), "i.tar")
	marker := strings.Repeat("wherry", 200)
	img, err := images.New(v1.Config{}, images.Root{"a": {Data: []byte(marker), Mode: 0o644}})
	if err != nil {
		t.Fatal(err)
	}
	if err := images.Save(file, img, "demo:1"); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	layers, _ := img.Layers()
	d, _ := layers[0].Digest()
	at := strings.Index(string(data), d.Hex+".tar.gz")
	data[at+512+30] ^= 0xff
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	s := open(t, t.TempDir())
	if _, err := s.Import(t.Context(), file); err == nil {
		t.Error("a corrupt layer was taken")
	}
	if n := len(s.List()); n != 0 {
		t.Errorf("%d images", n)
	}
}

func TestNormalize(t *testing.T) {
	for in, want := range map[string]string{
		"busybox":                               "docker.io/library/busybox:latest",
		"busybox:1.36":                          "docker.io/library/busybox:1.36",
		"a/b":                                   "docker.io/a/b:latest",
		"localhost:5000/x:1":                    "localhost:5000/x:1",
		"Busy":                                  "",
		"x:1@sha256:" + strings.Repeat("0", 64): "docker.io/library/x@sha256:" + strings.Repeat("0", 64),
	} {
		got, err := image.Normalize(in)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("Normalize(%q) = %q, %v", in, got, err)
		}
	}
}

func FuzzImport(f *testing.F) {
	file := filepath.Join(f.TempDir(), "i.tar")
	img, err := images.New(v1.Config{}, images.Root{"a": {Data: []byte("x"), Mode: 0o644}})
	if err != nil {
		f.Fatal(err)
	}
	if err := images.Save(file, img, "demo:1"); err != nil {
		f.Fatal(err)
	}
	seed, err := os.ReadFile(file)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(seed)
	f.Add([]byte("not a tar"))
	f.Fuzz(func(t *testing.T, data []byte) {
		s := open(t, t.TempDir())
		p := filepath.Join(t.TempDir(), "f.tar")
		if err := os.WriteFile(p, data, 0o600); err != nil {
			t.Fatal(err)
		}
		imgs, err := s.Import(t.Context(), p)
		for _, i := range imgs {
			if _, lerr := s.Layers(i.ID); lerr != nil && err == nil {
				t.Error(fmt.Errorf("imported image without layers: %w", lerr))
			}
		}
	})
}
