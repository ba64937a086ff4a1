package ondemand

import (
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/emicklei/go-restful/v3"
	"k8s.io/apiserver/pkg/server/mux"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// install serves the documents of two group versions with a route each.
func install(build string) (*Server, http.Handler) {
	container := restful.NewContainer()
	for _, root := range []string{"/api/v1", "/apis/apps/v1"} {
		service := new(restful.WebService).Path(root)
		service.Route(service.GET("things").Operation("list" + strings.ReplaceAll(root, "/", "")).To(func(*restful.Request, *restful.Response) {}))
		container.Add(service)
	}
	definitions := func(common.ReferenceCallback) map[string]common.OpenAPIDefinition {
		return map[string]common.OpenAPIDefinition{}
	}
	on := mux.NewPathRecorderMux("test")
	info := spec.Info{InfoProps: spec.InfoProps{Title: "Kubernetes"}}
	return Install(Config{
		Containers: []*restful.Container{container}, Build: build,
		V2: &common.Config{Info: &info, GetDefinitions: definitions}, V3: &common.OpenAPIV3Config{Info: &info, GetDefinitions: definitions},
	}, on), on
}

func get(h http.Handler, path string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	return w
}

func index(t *testing.T, h http.Handler) map[string]string {
	t.Helper()
	var out struct {
		Paths map[string]struct {
			ServerRelativeURL string `json:"serverRelativeURL"`
		} `json:"paths"`
	}
	r := get(h, "/openapi/v3")
	if err := json.NewDecoder(r.Body).Decode(&out); err != nil {
		t.Fatal(err)
	}
	urls := map[string]string{}
	for gv, p := range out.Paths {
		urls[gv] = p.ServerRelativeURL
	}
	return urls
}

func TestTheIndexLeadsToTheDocuments(t *testing.T) {
	s, h := install("one")
	urls := index(t, h)
	if len(s.docs) != 0 {
		t.Errorf("the index alone built %d documents", len(s.docs))
	}
	for _, gv := range []string{"api/v1", "apis/apps/v1"} {
		r := get(h, urls[gv])
		var doc struct {
			Paths map[string]any `json:"paths"`
		}
		if err := json.NewDecoder(r.Body).Decode(&doc); err != nil || r.Code != http.StatusOK {
			t.Fatalf("%s: %d, %v", gv, r.Code, err)
		}
		if len(doc.Paths) != 1 || doc.Paths["/"+gv+"/things"] == nil {
			t.Errorf("%s has %v", gv, doc.Paths)
		}
		if r.Header().Get("Cache-Control") != "public, immutable" || r.Header().Get("Etag") == "" {
			t.Errorf("%s: %v", gv, r.Header())
		}
		if r := get(h, "/openapi/v3/"+gv); r.Code != http.StatusOK || r.Header().Get("Cache-Control") != "" {
			t.Errorf("%s without a hash: %d, %v", gv, r.Code, r.Header())
		}
		if r := get(h, "/openapi/v3/"+gv+"?hash=ABC"); r.Code != http.StatusMovedPermanently || r.Header().Get("Location") != urls[gv] {
			t.Errorf("%s with an old hash: %d, %v", gv, r.Code, r.Header())
		}
	}
	if r := get(h, "/openapi/v3/apis/nobody/v1"); r.Code != http.StatusNotFound {
		t.Error(r.Code)
	}
	if r := get(h, "/openapi/v2"); r.Code != http.StatusOK {
		t.Error(r.Code)
	}
}

func TestAnotherBuildHasOtherHashes(t *testing.T) {
	_, one := install("one")
	_, same := install("one")
	_, two := install("two")
	if a, b, c := index(t, one)["api/v1"], index(t, same)["api/v1"], index(t, two)["api/v1"]; a != b || a == c {
		t.Errorf("%s, %s, %s", a, b, c)
	}
}

func TestWhatNobodyAsksForIsDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, h := install("one")
		var clients sync.WaitGroup
		for _, path := range []string{"/openapi/v2", "/openapi/v3/api/v1", "/openapi/v3/apis/apps/v1", "/openapi/v3/api/v1"} {
			clients.Go(func() {
				if r := get(h, path); r.Code != http.StatusOK {
					t.Error(path, r.Code)
				}
			})
		}
		clients.Wait()
		time.Sleep(keep - time.Second)
		get(h, "/openapi/v3/api/v1")
		time.Sleep(2 * time.Second)
		left := func() []string {
			synctest.Wait()
			s.mu.Lock()
			defer s.mu.Unlock()
			return slices.Collect(maps.Keys(s.docs))
		}
		if got := left(); !slices.Equal(got, []string{"/openapi/v3/api/v1"}) {
			t.Errorf("left: %v", got)
		}
		time.Sleep(keep)
		if got := left(); len(got) != 0 {
			t.Errorf("left: %v", got)
		}
	})
}

// encodes is a part of a document that says when it is encoded.
type encodes func()

// MarshalJSON implements json.Marshaler.
func (e encodes) MarshalJSON() ([]byte, error) {
	e()
	return []byte("true"), nil
}

// A document was encoded after it was built, at its first request, while another one was built from the same
// configuration: two clients who asked for two group versions at once could end the process.
func TestDocumentIsEncodedBeforeAnotherIsBuilt(t *testing.T) {
	s, h := install("b")
	encoded := 0
	s.V3.Info.Extensions = spec.Extensions{"x-test": encodes(func() {
		encoded++
		if s.building.TryLock() {
			s.building.Unlock()
			t.Error("another document may be built meanwhile")
		}
	})}
	for i, path := range []string{"/openapi/v3/api/v1", "/openapi/v3/apis/apps/v1", "/openapi/v2"} {
		if got := get(h, path); got.Code != http.StatusOK || encoded != i+1 {
			t.Errorf("%s: %d, the documents were encoded %d times", path, got.Code, encoded)
		}
	}
}
