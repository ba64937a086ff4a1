// Package ondemand serves /openapi/v2 and /openapi/v3. The library builds both when a server starts,
// and keeps them: 25 MiB and a tenth of a second for what clients ask once in a while. Here a document
// is built when somebody asks for it, for one group version at a time, and dropped when nobody has
// asked for some minutes.
package ondemand

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/emicklei/go-restful/v3"
	"k8s.io/apiserver/pkg/server/mux"
	"k8s.io/apiserver/pkg/server/routes"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/handler3"
)

const (
	v2Path, v3Path = "/openapi/v2", "/openapi/v3"
	// keep is for how long after the last request a document stays.
	keep = 5 * time.Minute
)

// Server serves the documents of a container's web services. Create one with Install.
type Server struct {
	container *restful.Container
	v2        *common.Config
	v3        *common.OpenAPIV3Config
	build     string

	building sync.Mutex // held while a document is built: the library writes to the configurations then

	mu   sync.Mutex
	docs map[string]*doc // by what document calls it
}

// doc is one document.
type doc struct {
	once    sync.Once
	handler http.Handler
	drop    *time.Timer
}

// Install serves the documents of what the container serves at the time of a request. build is the
// program's version: a client that has a document of the same build need not fetch it again.
func Install(container *restful.Container, on *mux.PathRecorderMux, v2 *common.Config, v3 *common.OpenAPIV3Config, build string) *Server {
	s := &Server{container: container, v2: v2, v3: v3, build: build, docs: map[string]*doc{}}
	on.Handle(v2Path, http.HandlerFunc(s.serveV2))
	on.Handle(v3Path, http.HandlerFunc(s.serveIndex))
	on.HandlePrefix(v3Path+"/", http.HandlerFunc(s.serveV3))
	return s
}

// document returns the handler of a document, which it builds if there is none.
func (s *Server) document(name string, build func() http.Handler) http.Handler {
	s.mu.Lock()
	d := s.docs[name]
	if d == nil {
		d = &doc{}
		s.docs[name] = d
		d.drop = time.AfterFunc(keep, func() { s.forget(name, d) })
	} else {
		d.drop.Reset(keep)
	}
	s.mu.Unlock()
	d.once.Do(func() {
		s.building.Lock()
		defer s.building.Unlock()
		d.handler = build()
	})
	return d.handler
}

func (s *Server) forget(name string, d *doc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.docs[name] == d {
		delete(s.docs, name)
	}
}

func (s *Server) serveV2(w http.ResponseWriter, r *http.Request) {
	s.document(v2Path, func() http.Handler {
		own := mux.NewPathRecorderMux("openapi-v2")
		routes.OpenAPI{Config: s.v2}.InstallV2(s.container, own)
		return own
	}).ServeHTTP(w, r)
}

// serveV3 serves the document of one group version.
func (s *Server) serveV3(w http.ResponseWriter, r *http.Request) {
	gv := strings.TrimPrefix(r.URL.Path, v3Path+"/")
	service := s.service(gv)
	if service == nil {
		http.NotFound(w, r)
		return
	}
	r, ok := s.checkHash(w, r, gv, service)
	if !ok {
		return
	}
	s.document(gv, func() http.Handler {
		alone := restful.NewContainer()
		alone.Add(service)
		own := mux.NewPathRecorderMux("openapi-v3")
		routes.OpenAPI{V3Config: s.v3}.InstallV3(alone, own)
		return own
	}).ServeHTTP(w, r)
}

// checkHash deals with the hash that a client took from the index: with the current one the client may
// keep the document for ever, with another one it is sent to the current one. The library's handler
// would do the same with a hash of the document itself, which is known only once that is built.
func (s *Server) checkHash(w http.ResponseWriter, r *http.Request, gv string, service *restful.WebService) (*http.Request, bool) {
	asked := r.URL.Query().Get("hash")
	if asked == "" {
		return r, true
	}
	if has := s.hash(gv, service); asked != has {
		http.Redirect(w, r, relativeURL(gv, has), http.StatusMovedPermanently)
		return r, false
	}
	w.Header().Set("Cache-Control", "public, immutable")
	w.Header().Set("Expires", time.Now().AddDate(1, 0, 0).UTC().Format(http.TimeFormat))
	out := r.Clone(r.Context())
	query := out.URL.Query()
	query.Del("hash")
	out.URL.RawQuery = query.Encode()
	return out, true
}

// service returns what serves a group version, such as api/v1 or apis/apps/v1, or nil.
func (s *Server) service(gv string) *restful.WebService {
	for _, service := range s.container.RegisteredWebServices() {
		if strings.TrimPrefix(service.RootPath(), "/") == gv {
			return service
		}
	}
	return nil
}

// hash stands for a document: it changes with the program, and with what is served.
func (s *Server) hash(gv string, service *restful.WebService) string {
	h := sha256.New()
	fmt.Fprintln(h, s.build, gv)
	served := make([]string, 0, len(service.Routes()))
	for _, route := range service.Routes() {
		served = append(served, route.Method+" "+route.Path)
	}
	slices.Sort(served)
	fmt.Fprintln(h, served)
	return strings.ToUpper(hex.EncodeToString(h.Sum(nil)))
}

func relativeURL(gv, hash string) string {
	u := url.URL{Path: path.Join(v3Path, gv), RawQuery: url.Values{"hash": {hash}}.Encode()}
	return u.String()
}

// serveIndex serves the list of group versions.
func (s *Server) serveIndex(w http.ResponseWriter, _ *http.Request) {
	index := handler3.OpenAPIV3Discovery{Paths: map[string]handler3.OpenAPIV3DiscoveryGroupVersion{}}
	all := sha256.New()
	for _, service := range s.container.RegisteredWebServices() {
		gv := strings.TrimPrefix(service.RootPath(), "/")
		index.Paths[gv] = handler3.OpenAPIV3DiscoveryGroupVersion{ServerRelativeURL: relativeURL(gv, s.hash(gv, service))}
	}
	data, err := json.Marshal(index)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	all.Write(data)
	w.Header().Set("Etag", strconv.Quote(strings.ToUpper(hex.EncodeToString(all.Sum(nil)))))
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(data) // the client may be gone
}
