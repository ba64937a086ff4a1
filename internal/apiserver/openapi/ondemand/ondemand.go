// Package ondemand serves /openapi/v2 and /openapi/v3. The library builds both when a server starts,
// and keeps them: 25 MiB and a tenth of a second for what clients ask once in a while. Here a document
// is built when somebody asks for it, for one group version at a time, and dropped when nobody has
// asked for some minutes.
package ondemand

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/emicklei/go-restful/v3"
	apiextensionslisters "k8s.io/apiextensions-apiserver/pkg/client/listers/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/controller/openapi/builder"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apiserver/pkg/server/mux"
	"k8s.io/apiserver/pkg/server/routes"
	"k8s.io/kube-openapi/pkg/aggregator"
	openapibuilder "k8s.io/kube-openapi/pkg/builder"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/common/restfuladapter"
	"k8s.io/kube-openapi/pkg/handler"
	"k8s.io/kube-openapi/pkg/handler3"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

const (
	v2Path, v3Path = "/openapi/v2", "/openapi/v3"
	// keep is for how long after the last request a document stays.
	keep = 5 * time.Minute
)

// Config says of what there are documents.
type Config struct {
	// Containers have the web services of built-in kinds; of several at one path, the first counts.
	Containers []*restful.Container
	// Definitions are the kinds that users define.
	Definitions apiextensionslisters.CustomResourceDefinitionLister
	// Remotes, if not nil, are what other servers serve.
	Remotes Remotes
	V2      *common.Config
	V3      *common.OpenAPIV3Config
	// Build is the program's version: a client that has a document of the same build need not fetch it
	// again.
	Build string
}

// Server serves the documents. Create one with Install.
type Server struct {
	Config

	// building is held while a document is built, because the library writes to the configurations then, and while
	// it is encoded, because their maps are in it: a map that is read and written at once ends the process.
	building sync.Mutex

	mu   sync.Mutex
	docs map[string]*doc // by path
}

// doc is one document.
type doc struct {
	hash    string
	once    sync.Once
	handler http.Handler
	drop    *time.Timer
}

// Install serves the documents of what there is at the time of a request.
func Install(cfg Config, on *mux.PathRecorderMux) *Server {
	s := &Server{Config: cfg, docs: map[string]*doc{}}
	on.Handle(v2Path, http.HandlerFunc(s.serveV2))
	on.Handle(v3Path, http.HandlerFunc(s.serveIndex))
	on.HandlePrefix(v3Path+"/", http.HandlerFunc(s.serveV3))
	return s
}

// document returns the handler of what is at a path, which it builds if there is none with that hash.
func (s *Server) document(path, hash string, build func() http.Handler) http.Handler {
	s.mu.Lock()
	d := s.docs[path]
	if d != nil && d.hash != hash {
		d.drop.Stop()
		d = nil
	}
	if d == nil {
		d = &doc{hash: hash}
		s.docs[path] = d
		d.drop = time.AfterFunc(keep, func() { s.forget(path, d) })
	} else {
		d.drop.Reset(keep)
	}
	s.mu.Unlock()
	d.once.Do(func() {
		s.building.Lock()
		defer s.building.Unlock()
		d.handler = build()
		encode(d.handler, path)
	})
	return d.handler
}

// encode makes a document's handler encode it, which it does once, at its first request. The document has parts of the
// configurations in it.
func encode(h http.Handler, path string) {
	r, err := http.NewRequest(http.MethodGet, path, http.NoBody)
	if err != nil {
		return // a path that no client could have asked for
	}
	h.ServeHTTP(nobody{http.Header{}}, r)
}

// nobody is a client that does not listen.
type nobody struct{ header http.Header }

// Header implements http.ResponseWriter.
func (n nobody) Header() http.Header { return n.header }

// Write implements http.ResponseWriter.
func (nobody) Write(data []byte) (int, error) { return len(data), nil }

// WriteHeader implements http.ResponseWriter.
func (nobody) WriteHeader(int) {}

func (s *Server) forget(path string, d *doc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.docs[path] == d {
		delete(s.docs, path)
	}
}

func (s *Server) serveV2(w http.ResponseWriter, r *http.Request) {
	groups := s.groups(r.Context())
	h := sha256.New()
	for _, g := range groups {
		fmt.Fprintln(h, g.name, g.hash)
	}
	s.document(v2Path, hex.EncodeToString(h.Sum(nil)), func() http.Handler { //nolint:contextcheck // it outlives the request
		// Others may wait for the document, too: it does not end with this request.
		swagger, err := s.swagger(context.WithoutCancel(r.Context()), groups)
		if err != nil {
			return failed(err)
		}
		own := mux.NewPathRecorderMux("openapi-v2")
		handler.NewOpenAPIService(swagger).RegisterOpenAPIVersionedService(v2Path, own)
		return own
	}).ServeHTTP(w, r)
}

// swagger builds the document of all groups.
func (s *Server) swagger(ctx context.Context, groups []group) (*spec.Swagger, error) {
	var services []*restful.WebService
	var users, others []*spec.Swagger
	for _, g := range groups {
		if g.service != nil {
			services = append(services, g.service)
		}
		for _, crd := range g.definitions {
			one, err := builder.BuildOpenAPIV2(crd, g.version, builder.Options{V2: true, IncludeSelectableFields: true})
			if err != nil {
				return nil, fmt.Errorf("%s: %w", crd.Name, err)
			}
			users = append(users, one)
		}
		if g.remote.V2 != nil {
			one, err := g.remote.V2(ctx)
			if err != nil {
				// What one server does not tell must not keep clients from all others.
				utilruntime.HandleErrorWithContext(ctx, err, "The OpenAPI document lacks a group of another server", "group", g.name)
				continue
			}
			others = append(others, aggregator.FilterSpecByPathsWithoutSideEffects(one, []string{"/" + g.name + "/"}))
		}
	}
	swagger, err := openapibuilder.BuildOpenAPISpecFromRoutes(restfuladapter.AdaptWebServices(services), s.V2)
	if err != nil {
		return nil, err
	}
	swagger.Definitions = handler.PruneDefaults(swagger.Definitions)
	if len(users) > 0 {
		if swagger, err = builder.MergeSpecs(swagger, users...); err != nil {
			return nil, err
		}
	}
	for _, one := range others {
		if err := aggregator.MergeSpecsIgnorePathConflictRenamingDefinitionsAndParameters(swagger, one); err != nil {
			return nil, err
		}
	}
	return swagger, nil
}

// failed answers that a document cannot be built.
func failed(err error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, err.Error(), http.StatusInternalServerError)
	})
}

// serveV3 serves the document of one group version.
func (s *Server) serveV3(w http.ResponseWriter, r *http.Request) {
	name := strings.TrimPrefix(r.URL.Path, v3Path+"/")
	groups := s.groups(r.Context())
	i := slices.IndexFunc(groups, func(g group) bool { return g.name == name })
	if i < 0 {
		http.NotFound(w, r)
		return
	}
	g := groups[i]
	r, ok := checkHash(w, r, g)
	if !ok {
		return
	}
	if g.remote.V3 != nil {
		g.pass(w, r)
		return
	}
	s.document(r.URL.Path, g.hash, func() http.Handler {
		own := mux.NewPathRecorderMux("openapi-v3")
		if g.service != nil {
			alone := restful.NewContainer()
			alone.Add(g.service)
			routes.OpenAPI{V3Config: s.V3}.InstallV3(alone, own)
			return own
		}
		doc, err := g.openAPI()
		if err != nil {
			return failed(err)
		}
		service := handler3.NewOpenAPIService()
		if err := service.RegisterOpenAPIV3VersionedService(v3Path, own); err != nil {
			return failed(err)
		}
		service.UpdateGroupVersion(name, doc)
		return own
	}).ServeHTTP(w, r)
}

// pass answers with another server's document.
func (g group) pass(w http.ResponseWriter, r *http.Request) {
	resp, err := g.remote.V3(r.Context(), r.Header)
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	defer func() { _ = resp.Body.Close() }() // it was read
	for _, h := range []string{"Content-Type", "Etag", "Last-Modified", "Vary"} {
		if v := resp.Header.Get(h); v != "" {
			w.Header().Set(h, v)
		}
	}
	w.WriteHeader(resp.StatusCode)
	_, _ = io.Copy(w, resp.Body) // either side may be gone
}

// checkHash deals with the hash that a client took from the index: with the current one the client may
// keep the document for ever, with another one it is sent to the current one. The library's handler
// would do the same with a hash of the document itself, which is known only once that is built.
func checkHash(w http.ResponseWriter, r *http.Request, g group) (*http.Request, bool) {
	asked := r.URL.Query().Get("hash")
	if asked == "" {
		return r, true
	}
	if asked != g.hash {
		http.Redirect(w, r, g.url(), http.StatusMovedPermanently)
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

// serveIndex serves the list of group versions.
func (s *Server) serveIndex(w http.ResponseWriter, r *http.Request) {
	index := handler3.OpenAPIV3Discovery{Paths: map[string]handler3.OpenAPIV3DiscoveryGroupVersion{}}
	for _, g := range s.groups(r.Context()) {
		index.Paths[g.name] = handler3.OpenAPIV3DiscoveryGroupVersion{ServerRelativeURL: g.url()}
	}
	data, err := json.Marshal(index)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	all := sha256.Sum256(data)
	w.Header().Set("Etag", strconv.Quote(strings.ToUpper(hex.EncodeToString(all[:]))))
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(data) // the client may be gone
}
