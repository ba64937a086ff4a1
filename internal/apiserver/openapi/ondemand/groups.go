package ondemand

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"

	"github.com/emicklei/go-restful/v3"
	apiextensionshelpers "k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/controller/openapi/builder"
	"k8s.io/apimachinery/pkg/labels"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// group is what there is a document of: the kinds of a group version, built in or defined by users.
type group struct {
	name string // a path, such as api/v1 or apis/apps/v1
	// hash stands for the document: it changes with the program, and with what is served.
	hash string

	service     *restful.WebService // nil for kinds that users define
	definitions []*apiextensionsv1.CustomResourceDefinition
	version     string // of the definitions
	remote      Remote // set if another server has the document
}

// Remotes are the documents of other servers.
type Remotes interface {
	// Documents returns what there is now.
	Documents(ctx context.Context) []Remote
}

// Remote is the document of a group version that another server serves.
type Remote struct {
	// Name is the group version's path, and Hash stands for the document.
	Name, Hash string
	// V3 asks the other server for the document; it passes the headers on that concern it. The caller
	// closes the body.
	V3 func(ctx context.Context, header http.Header) (*http.Response, error)
	// V2 returns what that server serves.
	V2 func(ctx context.Context) (*spec.Swagger, error)
}

func (g group) url() string {
	u := url.URL{Path: path.Join(v3Path, g.name), RawQuery: url.Values{"hash": {g.hash}}.Encode()}
	return u.String()
}

// openAPI builds the document of kinds that users define.
func (g group) openAPI() (*spec3.OpenAPI, error) {
	var parts []*spec3.OpenAPI
	for _, crd := range g.definitions {
		one, err := builder.BuildOpenAPIV3(crd, g.version, builder.Options{IncludeSelectableFields: true})
		if err != nil {
			return nil, fmt.Errorf("%s: %w", crd.Name, err)
		}
		parts = append(parts, one)
	}
	return builder.MergeSpecsV3(parts...)
}

// groups returns what there are documents of now, sorted by name within each kind of group.
//
// What another server has comes first: whoever registers a group takes it over.
func (s *Server) groups(ctx context.Context) []group {
	var out []group
	seen := map[string]bool{}
	if s.Remotes != nil {
		for _, r := range s.Remotes.Documents(ctx) {
			seen[r.Name] = true
			out = append(out, group{name: r.Name, hash: r.Hash, remote: r})
		}
	}
	for _, c := range s.Containers {
		for _, service := range c.RegisteredWebServices() {
			name := strings.TrimPrefix(service.RootPath(), "/")
			if seen[name] {
				continue
			}
			seen[name] = true
			out = append(out, group{name: name, hash: s.hashService(name, service), service: service})
		}
	}
	for _, g := range s.defined() {
		if !seen[g.name] {
			out = append(out, g)
		}
	}
	return out
}

// defined returns the groups that users define.
func (s *Server) defined() []group {
	if s.Definitions == nil {
		return nil
	}
	all, err := s.Definitions.List(labels.Everything())
	if err != nil {
		utilruntime.HandleError(err) // impossible: it reads memory
		return nil
	}
	slices.SortFunc(all, func(a, b *apiextensionsv1.CustomResourceDefinition) int { return strings.Compare(a.Name, b.Name) })
	groups := map[string]*group{}
	hashes := map[string]hash.Hash{}
	var names []string
	for _, crd := range all {
		if !apiextensionshelpers.IsCRDConditionTrue(crd, apiextensionsv1.Established) {
			continue
		}
		for _, v := range crd.Spec.Versions {
			if !v.Served {
				continue
			}
			name := path.Join("apis", crd.Spec.Group, v.Name)
			if groups[name] == nil {
				groups[name], hashes[name] = &group{name: name, version: v.Name}, s.newHash(name)
				names = append(names, name)
			}
			groups[name].definitions = append(groups[name].definitions, crd)
			fmt.Fprintln(hashes[name], crd.UID, crd.Generation, crd.Status.AcceptedNames)
		}
	}
	slices.Sort(names)
	out := make([]group, 0, len(names))
	for _, name := range names {
		g := *groups[name]
		g.hash = sum(hashes[name])
		out = append(out, g)
	}
	return out
}

func (s *Server) newHash(name string) hash.Hash {
	h := sha256.New()
	fmt.Fprintln(h, s.Build, name)
	return h
}

func sum(h hash.Hash) string { return strings.ToUpper(hex.EncodeToString(h.Sum(nil))) }

func (s *Server) hashService(name string, service *restful.WebService) string {
	h := s.newHash(name)
	served := make([]string, 0, len(service.Routes()))
	for _, route := range service.Routes() {
		served = append(served, route.Method+" "+route.Path)
	}
	slices.Sort(served)
	fmt.Fprintln(h, served)
	return sum(h)
}
