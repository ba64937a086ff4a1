package hostile

import (
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// Registry is a registry on loopback that lies when its hook does.
type Registry struct {
	*httptest.Server
	Host string // address:port

	registry http.Handler

	mu   sync.Mutex
	hook Hook
	gets map[string]int // by path
}

// Hook sees every request first, and returns true if it has answered it.
type Hook func(w http.ResponseWriter, r *http.Request) bool

// NewRegistry serves until the test ends; start is one of httptest.Server's start methods.
func NewRegistry(t testing.TB, start func(*httptest.Server)) *Registry {
	t.Helper()
	s := &Registry{registry: registry.New(registry.Logger(log.New(io.Discard, "", 0))), gets: map[string]int{}}
	s.Server = httptest.NewUnstartedServer(s)
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	start(s.Server)
	t.Cleanup(func() {
		s.CloseClientConnections() // of clients that it keeps waiting
		s.Close()
	})
	s.Host = s.Listener.Addr().String()
	return s
}

// Plain returns a registry without TLS.
func Plain(t testing.TB) *Registry {
	t.Helper()
	return NewRegistry(t, (*httptest.Server).Start)
}

func (s *Registry) ServeHTTP(w http.ResponseWriter, r *http.Request) {
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

// On sets the hook; with nil the registry is honest.
func (s *Registry) On(hook Hook) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hook = hook
}

// Fetched returns how often blobs of the digest were requested.
func (s *Registry) Fetched(d string) int {
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

// Gets returns how many documents were requested since the last call.
func (s *Registry) Gets() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer clear(s.gets)
	n := 0
	for _, c := range s.gets {
		n += c
	}
	return n
}

// Push stores the image without passing the hook, and returns its reference.
func (s *Registry) Push(t testing.TB, repoTag string, img interface {
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
	return s.Host + "/" + repoTag
}

// Content returns what the registry itself would answer.
func (s *Registry) Content(r *http.Request) []byte {
	clean := r.Clone(r.Context())
	clean.Header.Del("Range")
	w := httptest.NewRecorder()
	s.registry.ServeHTTP(w, clean)
	return w.Body.Bytes()
}

var blobGet = regexp.MustCompile(`/blobs/sha256:`)

// IsBlob reports whether the request fetches a blob.
func IsBlob(r *http.Request) bool {
	return r.Method == http.MethodGet && blobGet.MatchString(r.URL.Path)
}
