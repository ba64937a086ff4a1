package image_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"

	"wherry.dev/internal/image"
	"wherry.dev/test/hostile"
	"wherry.dev/test/images"
)

func open(t testing.TB, dir string) *image.Store {
	t.Helper()
	return openWith(t, dir, image.Config{})
}

// openWith opens a store that ignores this machine's registry configuration.
func openWith(t testing.TB, dir string, cfg image.Config) *image.Store {
	t.Helper()
	if cfg.CertsDirs == nil {
		cfg.CertsDirs = []string{}
	}
	s, err := image.OpenWith(dir, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// Short names for what is shared with other suites.
type server = hostile.Registry

var (
	newServer = hostile.NewRegistry
	plain     = hostile.Plain
	isBlob    = hostile.IsBlob
	imageOf   = hostile.ImageOf
	asOCI     = hostile.AsOCI
	layerOf   = hostile.LayerOf
	gzLayer   = hostile.GzipLayer
	tarOf     = hostile.Tar
)

func rootTar(t testing.TB, r images.Root) []byte {
	t.Helper()
	data, err := r.Tar()
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func twoLayers(t testing.TB) v1.Image {
	t.Helper()
	img, err := images.New(v1.Config{Cmd: []string{"/a"}},
		images.Root{"dir/keep": {Data: []byte("1"), Mode: 0o644}, "dir/gone": {Data: []byte("2"), Mode: 0o600}, "opaque/below": {Data: []byte("3"), Mode: 0o644}},
		images.Root{"dir/.wh.gone": {}, "opaque/.wh..wh..opq": {}, "opaque/above": {Data: []byte("4"), Mode: 0o644}})
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// digests returns the digests of the image's layers as transported.
func digests(t testing.TB, img v1.Image) (out []string) {
	t.Helper()
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range layers {
		d, err := l.Digest()
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, d.String())
	}
	return out
}

// overlay shows the image as a container would see it.
func overlay(t testing.TB, s *image.Store, id string) string {
	t.Helper()
	layers, err := s.Layers(id)
	if err != nil {
		t.Fatal(err)
	}
	layers = append(layers, t.TempDir()) // an overlay needs at least two
	dir := t.TempDir()
	if err := unix.Mount("overlay", dir, "overlay", unix.MS_RDONLY, "lowerdir="+strings.Join(layers, ":")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}

func tree(t testing.TB, dir string) []string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			rel, _ := filepath.Rel(dir, p)
			out = append(out, rel)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func pull(t testing.TB, s *image.Store, ref string) image.Image {
	t.Helper()
	img, err := s.Pull(t.Context(), ref, image.PullOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// checkEmpty requires that the disk has nothing of any image.
func checkEmpty(t testing.TB, s *image.Store) {
	t.Helper()
	for _, d := range []string{"ingest", "layers", "images"} {
		left, err := os.ReadDir(filepath.Join(s.Dir(), d))
		if err != nil || len(left) > 0 {
			t.Errorf("%s holds %v, %v", d, left, err)
		}
	}
}

// checkWhole requires that every layer on the disk belongs to a listed image, and that every
// image has its layers.
func checkWhole(t testing.TB, s *image.Store) {
	t.Helper()
	used := map[string]bool{}
	for _, i := range s.List() {
		layers, err := s.Layers(i.ID)
		if err != nil {
			t.Error(err)
		}
		for _, l := range layers {
			used[filepath.Dir(l)] = true
			if _, err := os.Stat(l); err != nil {
				t.Error(err)
			}
		}
	}
	left, err := filepath.Glob(filepath.Join(s.Dir(), "layers", "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range left {
		if !used[l] {
			t.Errorf("layer %s belongs to no image", l)
		}
	}
	if rest, err := os.ReadDir(filepath.Join(s.Dir(), "ingest")); err != nil || len(rest) > 0 {
		t.Errorf("ingest holds %v, %v", rest, err)
	}
}
