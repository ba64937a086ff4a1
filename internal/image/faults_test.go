package image_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"wherry.dev/internal/image"
	"wherry.dev/internal/record"
	"wherry.dev/test/images"

	"wherry.dev/test/disks"
)

// noise returns an image of one layer that does not compress.
func noise(t testing.TB, name string, size int) v1.Image {
	t.Helper()
	r, data := rand.New(rand.NewPCG(uint64(len(name)), uint64(size))), make([]byte, size)
	for i := range data {
		data[i] = byte(r.Uint32())
	}
	return imageOf(t, gzLayer(t, rootTar(t, images.Root{name: {Data: data, Mode: 0o644}})))
}

// onLayer lets answer serve the image's first layer; n counts the requests, starting at 1.
func onLayer(t testing.TB, s *server, img v1.Image, answer func(w http.ResponseWriter, r *http.Request, n int, data []byte)) *atomic.Int64 {
	t.Helper()
	d := digests(t, img)[0]
	var n atomic.Int64
	s.On(func(w http.ResponseWriter, r *http.Request) bool {
		if !isBlob(r) || !strings.HasSuffix(r.URL.Path, d) {
			return false
		}
		answer(w, r, int(n.Add(1)), s.Content(r))
		return true
	})
	return &n
}

// cut sends the first bytes of what it promised and hangs up.
func cut(w http.ResponseWriter, data []byte, after int) {
	w.Header().Set("Content-Length", fmt.Sprint(len(data)))
	_, _ = w.Write(data[:after])
	_ = http.NewResponseController(w).Flush()
	panic(http.ErrAbortHandler)
}

func TestBrokenDownloadIsResumed(t *testing.T) {
	for name, refuses := range map[string]bool{"registry knows ranges": false, "registry does not": false, "registry refuses ranges": true} {
		ranges := name == "registry knows ranges"
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv, s := plain(t), open(t, t.TempDir())
			img := noise(t, "n", 1<<20)
			ref := srv.Push(t, "demo:1", img)
			var sent atomic.Int64
			requests := onLayer(t, srv, img, func(w http.ResponseWriter, r *http.Request, n int, data []byte) {
				switch {
				case n == 1:
					sent.Add(700_000)
					cut(w, data, 700_000)
				case ranges:
					var from int64
					if _, err := fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-", &from); err != nil || from == 0 {
						t.Errorf("request %d has the range %q", n, r.Header.Get("Range"))
					}
					if n == 2 {
						w.WriteHeader(http.StatusServiceUnavailable)
						return
					}
					sent.Add(int64(len(data)) - from) // count first: the pull may finish before the handler does
					http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(data))
				case refuses && r.Header.Get("Range") != "":
					w.WriteHeader(http.StatusRequestedRangeNotSatisfiable)
				default:
					_, _ = w.Write(data)
				}
			})
			got := pull(t, s, ref)
			tree(t, overlay(t, s, got.ID))
			if requests.Load() < 2 {
				t.Error("nothing broke")
			}
			if size := int64(len(mustLayer(t, img))); ranges && sent.Load() != size {
				t.Errorf("%d bytes were sent of a layer of %d", sent.Load(), size)
			}
		})
	}
}

func mustLayer(t testing.TB, img v1.Image) []byte {
	t.Helper()
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	in, err := layers[0].Compressed()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = in.Close() }()
	var b bytes.Buffer
	if _, err := b.ReadFrom(in); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// A download that makes progress, however little between two breaks, is not given up.
func TestDownloadThatBreaksOftenGetsThere(t *testing.T) {
	srv, s := plain(t), open(t, t.TempDir())
	img := noise(t, "n", 100_000)
	ref := srv.Push(t, "demo:1", img)
	requests := onLayer(t, srv, img, func(w http.ResponseWriter, r *http.Request, _ int, data []byte) {
		var from int
		_, _ = fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-", &from)
		if from > 0 {
			w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, len(data)-1, len(data)))
			w.Header().Set("Content-Length", fmt.Sprint(len(data)-from))
			w.WriteHeader(http.StatusPartialContent)
		}
		if len(data)-from <= 10_000 {
			_, _ = w.Write(data[from:])
			return
		}
		cut(w, data[from:], 10_000)
	})
	pull(t, s, ref)
	if requests.Load() < 10 {
		t.Errorf("%d requests", requests.Load())
	}
}

func TestStalledRegistryIsCut(t *testing.T) {
	for name, stalled := range map[string]func(r *http.Request) bool{
		"in a layer":             isBlob,
		"before it says a thing": func(*http.Request) bool { return true },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv := plain(t)
			s := openWith(t, t.TempDir(), image.Config{ProgressTimeout: 2500 * time.Millisecond, CertsDirs: []string{}})
			ref := srv.Push(t, "demo:1", noise(t, "n", 100_000))
			srv.On(func(w http.ResponseWriter, r *http.Request) bool {
				if !stalled(r) {
					return false
				}
				if isBlob(r) {
					data := srv.Content(r)
					w.Header().Set("Content-Length", fmt.Sprint(len(data)))
					_, _ = w.Write(data[:len(data)/2])
					_ = http.NewResponseController(w).Flush()
				}
				<-r.Context().Done()
				return true
			})
			_, err := s.Pull(t.Context(), ref, image.PullOptions{})
			if err == nil || !strings.Contains(err.Error(), "the registry sent nothing for 500ms") || !strings.Contains(err.Error(), srv.Host) {
				t.Errorf("got %v", err)
			}
			checkEmpty(t, s)
			srv.On(nil)
			pull(t, s, ref)
		})
	}
}

func TestStalledConnectionIsReplaced(t *testing.T) {
	srv := plain(t)
	s := openWith(t, t.TempDir(), image.Config{ProgressTimeout: 5 * time.Second, CertsDirs: []string{}})
	img := noise(t, "n", 100_000)
	ref := srv.Push(t, "demo:1", img)
	onLayer(t, srv, img, func(w http.ResponseWriter, r *http.Request, n int, data []byte) {
		if n == 1 {
			w.Header().Set("Content-Length", fmt.Sprint(len(data)))
			_, _ = w.Write(data[:50_000])
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
			return
		}
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(data))
	})
	pull(t, s, ref)
}

func TestBusyRegistryIsAskedAgain(t *testing.T) {
	for _, status := range []int{http.StatusTooManyRequests, http.StatusInternalServerError, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusRequestTimeout} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			t.Parallel()
			srv, s := plain(t), open(t, t.TempDir())
			img := twoLayers(t)
			ref := srv.Push(t, "demo:1", img)
			var failures atomic.Int64
			var mu sync.Mutex
			failed := map[string]bool{}
			srv.On(func(w http.ResponseWriter, r *http.Request) bool {
				mu.Lock()
				first := !failed[r.Method+r.URL.Path]
				failed[r.Method+r.URL.Path] = true
				mu.Unlock()
				if !first {
					return false
				}
				failures.Add(1)
				w.Header().Set("Retry-After", "0")
				w.WriteHeader(status)
				return true
			})
			pull(t, s, ref)
			if failures.Load() < 4 { // manifest, config, two layers
				t.Errorf("%d failures", failures.Load())
			}
		})
	}
}

func TestBrokenRegistryIsGivenUp(t *testing.T) {
	srv, s := plain(t), open(t, t.TempDir())
	ref := srv.Push(t, "demo:1", twoLayers(t))
	srv.On(func(w http.ResponseWriter, r *http.Request) bool {
		if isBlob(r) {
			w.WriteHeader(http.StatusBadGateway)
		}
		return isBlob(r)
	})
	_, err := s.Pull(t.Context(), ref, image.PullOptions{})
	if err == nil || !strings.Contains(err.Error(), "502 Bad Gateway") || !strings.Contains(err.Error(), "gave up after 5 attempts") {
		t.Errorf("got %v", err)
	}
	checkEmpty(t, s)
}

func TestNobodyListens(t *testing.T) {
	s := open(t, t.TempDir())
	_, err := s.Pull(t.Context(), "127.0.0.1:1/demo:1", image.PullOptions{})
	if !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("got %v", err)
	}
}

func TestLyingRegistry(t *testing.T) {
	flip := func(data []byte) []byte {
		data = bytes.Clone(data)
		data[len(data)/2] ^= 0xff
		return data
	}
	for name, c := range map[string]struct {
		at    func(r *http.Request, layer string) bool
		lie   func([]byte) []byte
		words string
	}{
		"layer":       {func(r *http.Request, l string) bool { return isBlob(r) && strings.HasSuffix(r.URL.Path, l) }, flip, "corrupt"},
		"short layer": {func(r *http.Request, l string) bool { return isBlob(r) && strings.HasSuffix(r.URL.Path, l) }, func(b []byte) []byte { return b[:len(b)/2] }, "bytes instead of"},
		"long layer":  {func(r *http.Request, l string) bool { return isBlob(r) && strings.HasSuffix(r.URL.Path, l) }, func(b []byte) []byte { return append(bytes.Clone(b), 1, 2, 3) }, "past expected size"},
		"config":      {func(r *http.Request, l string) bool { return isBlob(r) && !strings.HasSuffix(r.URL.Path, l) }, flip, "image config: sha256:"},
		"manifest": {func(r *http.Request, _ string) bool {
			return r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/manifests/")
		}, flip, "is corrupt"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv, s := plain(t), open(t, t.TempDir())
			witness := pull(t, s, srv.Push(t, "witness:1", twoLayers(t)))
			img := noise(t, "n", 200_000)
			layer := digests(t, img)[0]
			ref := srv.Push(t, "demo:1", img)
			srv.On(func(w http.ResponseWriter, r *http.Request) bool {
				if !c.at(r, layer) {
					return false
				}
				_, _ = w.Write(c.lie(srv.Content(r)))
				return true
			})
			_, err := s.Pull(t.Context(), ref, image.PullOptions{})
			if err == nil || !strings.Contains(err.Error(), c.words) {
				t.Errorf("got %v", err)
			}
			checkWhole(t, s)
			if len(s.List()) != 1 {
				t.Errorf("images: %+v", s.List())
			}
			tree(t, overlay(t, s, witness.ID))
			srv.On(nil)
			pull(t, s, ref)
		})
	}
}

// smallDisk makes a file system with space for size bytes.
func smallDisk(t *testing.T, size int) (dir string, grow func(size int)) {
	t.Helper()
	dir = t.TempDir()
	disks.Tmpfs(t, dir, fmt.Sprintf("size=%d", size))
	return dir, func(size int) {
		if err := unix.Mount("", dir, "", unix.MS_REMOUNT, fmt.Sprintf("size=%d", size)); err != nil {
			t.Fatal(err)
		}
	}
}

func TestFullDisk(t *testing.T) {
	srv := plain(t)
	small, big := srv.Push(t, "small:1", noise(t, "s", 1<<20)), srv.Push(t, "big:1", noise(t, "bigger", 4<<20))
	dir, grow := smallDisk(t, 6<<20)
	s := open(t, dir)
	witness := pull(t, s, small)
	_, err := s.Pull(t.Context(), big, image.PullOptions{})
	if !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), "big:1") {
		t.Errorf("got %v", err)
	}
	checkWhole(t, s)
	tree(t, overlay(t, s, witness.ID))
	grow(64 << 20)
	pull(t, s, big)
	checkWhole(t, s)
}

// On a disk without a single free byte images can still be removed.
func TestRemovalMakesRoomOnAFullDisk(t *testing.T) {
	srv := plain(t)
	ref := srv.Push(t, "demo:1", noise(t, "s", 1<<20))
	other := srv.Push(t, "other:1", twoLayers(t))
	dir, _ := smallDisk(t, 6<<20)
	s := open(t, dir)
	pull(t, s, ref)
	f, err := os.Create(filepath.Join(dir, "filler"))
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Remove(t.Context(), ref); err != nil {
		t.Error(err)
	}
	checkEmpty(t, s)
	pull(t, s, other)
}

func TestCorruptRecordCostsOneImageAtMost(t *testing.T) {
	srv := plain(t)
	ref, other := srv.Push(t, "demo:1", noise(t, "n", 1000)), srv.Push(t, "other:1", twoLayers(t))
	for name, c := range map[string]struct {
		file func(dir, id string) string
		lost bool
	}{
		"image": {file: func(dir, id string) string {
			return filepath.Join(dir, "images", strings.TrimPrefix(id, "sha256:")+".json")
		}, lost: true},
		"names": {file: func(dir, _ string) string { return filepath.Join(dir, "refs.json") }},
		"layer": {file: func(dir, id string) string {
			chain := onlyLayer(t, dir, id)
			return filepath.Join(chain, "meta.json")
		}},
	} {
		for kind, doc := range map[string]string{
			"truncated": `{"version":1,"da`, "empty": "", "hollow": `{"version":1,"data":{}}`, "wrong": `{"version":1,"data":{"id":"x","chain":["y"],"chainID":"z"}}`,
		} {
			if name == "names" && (kind == "hollow" || kind == "wrong") {
				continue // there may be none
			}
			t.Run(name+" "+kind, func(t *testing.T) { corruptRecord(t, ref, other, doc, c.file, c.lost) })
		}
	}
}

func corruptRecord(t *testing.T, ref, other, doc string, file func(dir, id string) string, lost bool) {
	t.Helper()
	dir := t.TempDir()
	s := open(t, dir)
	img, witness := pull(t, s, ref), pull(t, s, other)
	path := file(dir, img.ID)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(doc), 0o600); err != nil {
		t.Fatal(err)
	}
	s = open(t, dir)
	checkWhole(t, s)
	if got, ok := s.Lookup(other); !ok || got.ID != witness.ID {
		t.Error("the other image is gone")
	}
	tree(t, overlay(t, s, witness.ID))
	if _, ok := s.Lookup(ref); ok == lost {
		t.Errorf("the image is there: %v", ok)
	}
	tree(t, overlay(t, s, pull(t, s, ref).ID))
	checkWhole(t, s)
	// What was repaired is on disk: the next start has nothing to repair.
	if err := record.Sweep(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := record.Read(path, new(any)); err != nil {
		t.Errorf("the record is as damaged as before: %v", err)
	}
}

// When the copy of the names was damaged, too, the log said of each that it is ignored, and not that
// the images have no names any more.
func TestLostNamesAreTold(t *testing.T) {
	srv, dir := plain(t), t.TempDir()
	ref := srv.Push(t, "demo:1", twoLayers(t))
	s := open(t, dir)
	img := pull(t, s, ref)
	reopen := func(damaged ...string) string {
		t.Helper()
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		for _, name := range damaged {
			if err := os.WriteFile(filepath.Join(dir, name), []byte("{"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		log := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
		defer klog.CaptureState().Restore()
		klog.SetLogger(log)
		s = open(t, dir)
		return log.GetSink().(ktesting.Underlier).GetBuffer().String()
	}
	const lost = "The names of all images are lost"
	if said := reopen("refs.json"); strings.Contains(said, lost) {
		t.Errorf("while there is a copy: %s", said)
	}
	if said := reopen("refs.json", "refs.copy.json"); !strings.Contains(said, lost) || !strings.Contains(said, "pulled or imported again") {
		t.Errorf("logged: %s", said)
	}
	if _, ok := s.Lookup(ref); ok {
		t.Error("it still has its name")
	}
	if _, ok := s.Lookup(img.ID); !ok {
		t.Error("it is gone")
	}
	if said := reopen(); strings.Contains(said, lost) {
		t.Errorf("at the next start: %s", said)
	}
	pull(t, s, ref)
	if _, ok := s.Lookup(ref); !ok {
		t.Error("pulled again, it has no name")
	}
}

func onlyLayer(t *testing.T, dir, _ string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, "layers", "*", "fs", "n"))
	if err != nil || len(found) != 1 {
		t.Fatal(found, err)
	}
	return filepath.Dir(filepath.Dir(found[0]))
}

func TestMissingLayerCostsOneImage(t *testing.T) {
	srv, dir := plain(t), t.TempDir()
	ref, other := srv.Push(t, "demo:1", noise(t, "n", 1000)), srv.Push(t, "other:1", twoLayers(t))
	s := open(t, dir)
	img := pull(t, s, ref)
	pull(t, s, other)
	gone := onlyLayer(t, dir, img.ID)
	if err := errors.Join(s.Close(), os.RemoveAll(gone)); err != nil {
		t.Fatal(err)
	}
	s = open(t, dir)
	if _, ok := s.Lookup(ref); ok {
		t.Error("an image without its layer is listed")
	}
	if _, ok := s.Lookup(other); !ok {
		t.Error("the other image is gone")
	}
	tree(t, overlay(t, s, pull(t, s, ref).ID))
}

// A container keeps its layers, whatever becomes of the image's record.
func TestLayersOfARunningContainerOutliveTheRecord(t *testing.T) {
	srv, dir := plain(t), t.TempDir()
	ref := srv.Push(t, "demo:1", twoLayers(t))
	s := open(t, dir)
	img := pull(t, s, ref)
	root := overlay(t, s, img.ID)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	records, err := filepath.Glob(filepath.Join(dir, "images", "*.json"))
	if err != nil || len(records) != 1 {
		t.Fatal(records, err)
	}
	if err := os.WriteFile(records[0], []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	s = open(t, dir)
	pull(t, s, srv.Push(t, "other:1", noise(t, "n", 1000)))
	if err := s.Remove(t.Context(), srv.Host+"/other:1"); err != nil { // sweeps
		t.Fatal(err)
	}
	if doc, err := os.ReadFile(filepath.Join(root, "dir/keep")); err != nil || string(doc) != "1" {
		t.Errorf("in the container: %q %v", doc, err)
	}
	pull(t, s, ref)
	for _, d := range digests(t, twoLayers(t)) {
		if n := srv.Fetched(d); n != 1 {
			t.Errorf("layer %s was fetched %d times", d, n)
		}
	}
}
