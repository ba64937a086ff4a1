package image_test

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/validate"

	"wherry.dev/internal/image"
)

func export(t *testing.T, s *image.Store, refs ...string) (file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "out.tar")
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.Export(t.Context(), f, refs...), f.Close()); err != nil {
		t.Fatal(err)
	}
	return file
}

// richImage returns an image with everything that makes it hard to write a layer's tar again.
func richImage(t *testing.T) v1.Image {
	t.Helper()
	base := tarOf(t,
		&tar.Header{Typeflag: tar.TypeReg, Name: "./etc/passwd", Linkname: "root:x:0:0::/:/bin/sh\n", Mode: 0o644},
		&tar.Header{Typeflag: tar.TypeSymlink, Name: "lib", Linkname: "usr/lib", Mode: 0o777},
		&tar.Header{Typeflag: tar.TypeReg, Name: "usr/lib/x", Linkname: strings.Repeat("long", 5000), Mode: 0o755},
		&tar.Header{Typeflag: tar.TypeLink, Name: "usr/lib/y", Linkname: "usr/lib/x"},
		&tar.Header{Typeflag: tar.TypeReg, Name: "lib/z", Linkname: "through a link", Mode: 0o600},
		&tar.Header{Typeflag: tar.TypeReg, Name: strings.Repeat("deep/", 60) + "file\xff", Linkname: "name that is no text", Mode: 0o600},
		&tar.Header{Typeflag: tar.TypeChar, Name: "null", Devmajor: 1, Devminor: 3, Mode: 0o666})
	base = append(base, make([]byte, 10240)...) // more padding than needed
	top := tarOf(t,
		&tar.Header{Typeflag: tar.TypeReg, Name: "etc/.wh.passwd"},
		&tar.Header{Typeflag: tar.TypeDir, Name: "usr/", Mode: 0o755},
		&tar.Header{Typeflag: tar.TypeReg, Name: "usr/.wh..wh..opq"})
	return imageOf(t, gzLayer(t, base), gzLayer(t, top))
}

func TestExportedArchiveIsTheSameImage(t *testing.T) {
	srv, s := plain(t), open(t, t.TempDir())
	ref, other := srv.Push(t, "rich:1", richImage(t)), srv.Push(t, "other:2", twoLayers(t))
	img, second := pull(t, s, ref), pull(t, s, other)
	file := export(t, s, ref, second.ID)

	fresh := open(t, t.TempDir())
	imgs, err := fresh.Import(t.Context(), file)
	if err != nil || len(imgs) != 2 {
		t.Fatal(imgs, err)
	}
	got, ok := fresh.Lookup(ref)
	if !ok || got.ID != img.ID {
		t.Errorf("imported as %+v", got)
	}
	if _, ok := fresh.Lookup(second.ID); !ok {
		t.Error("the image that was asked for by ID is missing")
	}
	want := tree(t, overlay(t, s, img.ID))
	if diff := cmp.Diff(want, tree(t, overlay(t, fresh, img.ID))); diff != "" {
		t.Error(diff)
	}
	if again := export(t, fresh, ref); len(tree(t, filepath.Dir(again))) != 1 {
		t.Error("what was imported cannot be exported")
	}
}

// Other tools read different parts: docker load manifest.json, ctr and podman the OCI layout.
func TestExportedArchiveIsReadByOthers(t *testing.T) {
	srv, s := plain(t), open(t, t.TempDir())
	ref := srv.Push(t, "rich:1", richImage(t))
	img := pull(t, s, ref)
	file := export(t, s, ref)

	tag, err := name.NewTag(ref)
	if err != nil {
		t.Fatal(err)
	}
	docker, err := tarball.ImageFromPath(file, &tag)
	if err != nil {
		t.Fatal(err)
	}
	id, err := docker.ConfigName()
	if err != nil || id.String() != img.ID {
		t.Errorf("docker: %s %v", id, err)
	}
	if err := validate.Image(docker); err != nil {
		t.Errorf("docker: %v", err)
	}

	dir := t.TempDir()
	untar(t, file, dir)
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(index, validate.Fast); err != nil { // the slow way expects gzip
		t.Errorf("OCI: %v", err)
	}
	for _, blob := range tree(t, filepath.Join(dir, "blobs", "sha256")) {
		data, err := os.ReadFile(filepath.Join(dir, "blobs", "sha256", blob))
		if sum := sha256.Sum256(data); err != nil || hex.EncodeToString(sum[:]) != blob {
			t.Errorf("blob %s has the digest %x, %v", blob, sum, err)
		}
	}
	m, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if len(m.Manifests) != 1 || m.Manifests[0].Annotations["io.containerd.image.name"] != ref || m.Manifests[0].Annotations["org.opencontainers.image.ref.name"] != "1" {
		t.Errorf("OCI index: %+v", m)
	}
}

func untar(t *testing.T, file, dir string) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, h.Name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, data, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
}

func TestExportTellsOfAChangedLayer(t *testing.T) {
	srv, s := plain(t), open(t, t.TempDir())
	ref := srv.Push(t, "demo:1", twoLayers(t))
	layers, err := s.Layers(pull(t, s, ref).ID)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(layers[1], "dir/keep"), []byte("9"), 0o600); err != nil {
		t.Fatal(err)
	}
	err = s.Export(t.Context(), &bytes.Buffer{}, ref)
	if err == nil || !strings.Contains(err.Error(), "dir/keep") {
		t.Errorf("got %v", err)
	}
	if err := s.Export(t.Context(), &bytes.Buffer{}, "absent:1"); !errors.Is(err, image.ErrNotFound) {
		t.Errorf("got %v", err)
	}
}

// Such a tar is legal, but the content that it overwrites is lost.
func TestLayerThatHasAFileTwice(t *testing.T) {
	data := tarOf(t,
		&tar.Header{Typeflag: tar.TypeReg, Name: "a", Linkname: "first", Mode: 0o644},
		&tar.Header{Typeflag: tar.TypeReg, Name: "a", Linkname: "other", Mode: 0o644})
	srv, s := plain(t), open(t, t.TempDir())
	ref := srv.Push(t, "demo:1", imageOf(t, gzLayer(t, data)))
	root := overlay(t, s, pull(t, s, ref).ID)
	if doc, err := os.ReadFile(filepath.Join(root, "a")); err != nil || string(doc) != "other" {
		t.Errorf("%q %v", doc, err)
	}
	if err := s.Export(t.Context(), io.Discard, ref); err == nil || !strings.Contains(err.Error(), `"a"`) {
		t.Errorf("exported: %v", err)
	}
}
