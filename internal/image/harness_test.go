package image_test

import (
	"archive/tar"
	"bytes"
	"io"
	"io/fs"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-containerregistry/pkg/compression"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/sys/unix"

	"wherry.dev/internal/image"
	"wherry.dev/test/images"
)

func open(t testing.TB, dir string) *image.Store {
	t.Helper()
	return openWith(t, dir, image.Config{})
}

// openWith opens a store that does not see this machine's registry configuration.
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

// server is a registry on loopback; hook sees every request first and answers it by
// returning true.
type server struct {
	*httptest.Server
	host     string // address:port
	registry http.Handler

	mu   sync.Mutex
	hook func(w http.ResponseWriter, r *http.Request) bool
	gets map[string]int // by path
}

func newServer(t testing.TB, start func(*httptest.Server)) *server {
	t.Helper()
	s := &server{registry: registry.New(registry.Logger(log.New(io.Discard, "", 0))), gets: map[string]int{}}
	s.Server = httptest.NewUnstartedServer(s)
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	start(s.Server)
	t.Cleanup(s.Close)
	s.host = s.Listener.Addr().String()
	return s
}

func plain(t testing.TB) *server {
	t.Helper()
	return newServer(t, (*httptest.Server).Start)
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	hook := s.hook
	if r.Method == http.MethodGet {
		s.gets[r.URL.Path]++
	}
	s.mu.Unlock()
	if hook == nil || !hook(w, r) {
		s.registry.ServeHTTP(w, r)
	}
}

// on sets the hook.
func (s *server) on(hook func(w http.ResponseWriter, r *http.Request) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hook = hook
}

// fetched is how often blobs of the digest were asked for.
func (s *server) fetched(d string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for p, c := range s.gets {
		if strings.HasSuffix(p, "/blobs/"+d) {
			n += c
		}
	}
	return n
}

// push stores the image without passing the hook, and returns its reference.
func (s *server) push(t testing.TB, repoTag string, img interface {
	Digest() (v1.Hash, error)
}) string {
	t.Helper()
	direct := httptest.NewServer(s.registry)
	defer direct.Close()
	tag, err := name.NewTag(strings.TrimPrefix(direct.URL, "http://") + "/" + repoTag)
	if err != nil {
		t.Fatal(err)
	}
	switch i := img.(type) {
	case v1.Image:
		err = remote.Write(tag, i)
	case v1.ImageIndex:
		err = remote.WriteIndex(tag, i)
	}
	if err != nil {
		t.Fatal(err)
	}
	return s.host + "/" + repoTag
}

var blobGet = regexp.MustCompile(`/blobs/sha256:`)

func isBlob(r *http.Request) bool {
	return r.Method == http.MethodGet && blobGet.MatchString(r.URL.Path)
}

// imageOf makes an image for this machine of ready layers.
func imageOf(t testing.TB, layers ...v1.Layer) v1.Image {
	t.Helper()
	img, err := mutate.AppendLayers(v1.Image(empty.Image), layers...)
	if err != nil {
		t.Fatal(err)
	}
	file, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	file = file.DeepCopy()
	file.OS, file.Architecture = "linux", runtime.GOARCH
	if img, err = mutate.ConfigFile(img, file); err != nil {
		t.Fatal(err)
	}
	return img
}

// asOCI turns an image's media types into OCI's.
func asOCI(img v1.Image) v1.Image {
	return mutate.ConfigMediaType(mutate.MediaType(img, types.OCIManifestSchema1), types.OCIConfigJSON)
}

func layerOf(t testing.TB, data []byte, c compression.Compression, mediaType types.MediaType) v1.Layer {
	t.Helper()
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil },
		tarball.WithCompression(c), tarball.WithMediaType(mediaType))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func gzLayer(t testing.TB, data []byte) v1.Layer {
	t.Helper()
	return layerOf(t, data, compression.GZip, types.DockerLayer)
}

func rootTar(t testing.TB, r images.Root) []byte {
	t.Helper()
	data, err := r.Tar()
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// tarOf makes a layer of entries with all their attributes.
func tarOf(t testing.TB, entries ...*tar.Header) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, h := range entries {
		body := h.Linkname
		if h.Typeflag == tar.TypeReg {
			h.Size, h.Linkname = int64(len(body)), ""
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			if _, err := io.WriteString(w, body); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
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

// digests are those of the image's layers as they are transported.
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
	layers = append(layers, t.TempDir()) // one alone is no overlay
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

// checkEmpty wants nothing of any image on the disk.
func checkEmpty(t testing.TB, s *image.Store) {
	t.Helper()
	for _, d := range []string{"ingest", "layers", "images"} {
		left, err := os.ReadDir(filepath.Join(s.Dir(), d))
		if err != nil || len(left) > 0 {
			t.Errorf("%s holds %v, %v", d, left, err)
		}
	}
}

// checkWhole wants every layer on the disk to belong to an image that is listed, and
// every image to have its layers.
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
