// Package kinds serves Kubernetes' own kinds: those of the table in registry/resources, and those that
// are computed when somebody asks.
package kinds

import (
	"context"
	"fmt"
	"maps"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/registry/rest"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/klog/v2"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"wherry.dev/internal/api/defaults"
	"wherry.dev/internal/apiserver/auth"
	"wherry.dev/internal/apiserver/registry"
	"wherry.dev/internal/apiserver/registry/componentstatus"
	"wherry.dev/internal/apiserver/registry/metrics"
	"wherry.dev/internal/apiserver/registry/pod"
	"wherry.dev/internal/apiserver/registry/printers"
	"wherry.dev/internal/apiserver/registry/resources"
	"wherry.dev/internal/apiserver/registry/review"
	"wherry.dev/internal/apiserver/scheme"
	"wherry.dev/internal/apiserver/storage"
)

// Config is what the kinds need from the server around them.
type Config struct {
	Auth    *auth.Auth
	Backend *storage.Backend
	// Deps are what rows of the table need. Their Lookup is filled with the stores.
	Deps resources.Deps
	// Served says which resources are served. The others are stored all the same: the server itself reads
	// them (authorization, admission), and whoever switches them on again finds them.
	Served serverstorage.APIResourceConfigSource
	// Audiences are those of tokens for this API.
	Audiences []string
	// Components are the health checks that componentstatuses shows.
	Components map[string]componentstatus.Check
	// Metrics, if not nil, serves metrics.k8s.io.
	Metrics *metrics.Scraper
}

// Kinds has the stores of all kinds open. The caller closes it.
type Kinds struct {
	Scheme *runtime.Scheme
	Codecs serializer.CodecFactory

	cfg    Config
	stored map[schema.GroupResource]schema.GroupVersion // the versions in which objects are stored
	built  map[schema.GroupResource]*registry.Built
}

// prefixes are the keys in storage that are not the resource's name. They are upstream's, so that
// either server can read the other's data.
var prefixes = map[schema.GroupResource]string{
	{Resource: "endpoints"}:                             "services/endpoints",
	{Resource: "services"}:                              "services/specs",
	{Resource: "nodes"}:                                 "minions",
	{Resource: "replicationcontrollers"}:                "controllers",
	{Group: "networking.k8s.io", Resource: "ingresses"}: "ingress",
	{Group: "node.k8s.io", Resource: "runtimeclasses"}:  "runtimeclasses",
}

// formerly are prefixes that were in use before, of resources whose objects may still be there.
var formerly = map[schema.GroupResource]string{
	{Resource: "replicationcontrollers"}:                "replicationcontrollers",
	{Group: "networking.k8s.io", Resource: "ingresses"}: "ingresses",
}

func prefix(r schema.GroupResource) string {
	if p, ok := prefixes[r]; ok {
		return p
	}
	return r.Resource
}

// Open opens the stores.
func Open(ctx context.Context, cfg Config) (*Kinds, error) {
	for r, old := range formerly {
		if err := cfg.Backend.Move(ctx, r, old, prefix(r)); err != nil {
			klog.ErrorS(err, "Objects are still stored where an earlier version kept them, and not served; the next start tries again", "resource", r)
		}
	}
	k := &Kinds{
		Scheme: scheme.New(), cfg: cfg,
		stored: map[schema.GroupResource]schema.GroupVersion{}, built: map[schema.GroupResource]*registry.Built{},
	}
	rows := resources.All(cfg.Deps)
	for _, row := range rows {
		k.stored[row.GVR().GroupResource()] = row.GVR().GroupVersion()
		if err := row.AddToScheme(k.Scheme); err != nil {
			return nil, fmt.Errorf("field selectors of %s: %w", row.GVR().Resource, err)
		}
	}
	defaults.Register(k.Scheme)
	var encodings []serializer.CodecFactoryOptionsMutator
	if utilfeature.DefaultFeatureGate.Enabled(features.CBORServingAndStorage) {
		encodings = append(encodings, serializer.WithSerializer(cbor.NewSerializerInfo))
	}
	k.Codecs = serializer.NewCodecFactory(k.Scheme, encodings...)
	options := cfg.Backend.Options(k.codecFor, prefix)
	for _, row := range rows {
		b, err := row.Build(k.Scheme, options)
		if err != nil {
			k.Close()
			return nil, err
		}
		k.built[b.GVR.GroupResource()] = b
		cfg.Deps.Lookup.Add(b.GVR.GroupResource(), b.Store.Store)
	}
	return k, nil
}

// Close closes the stores.
func (k *Kinds) Close() {
	for _, b := range k.built {
		b.Store.Destroy()
	}
}

// Store returns the storage of a resource in the table; nil of any other.
func (k *Kinds) Store(group, resource string) *registry.Store {
	if built := k.built[schema.GroupResource{Group: group, Resource: resource}]; built != nil {
		return built.Store
	}
	return nil
}

func (k *Kinds) codecFor(r schema.GroupResource) (runtime.Codec, runtime.GroupVersioner, error) {
	version, ok := k.stored[r]
	if !ok {
		return nil, nil, fmt.Errorf("nothing defines the resource %q", r)
	}
	return scheme.StorageCodec(k.Scheme, k.Codecs, version)
}

// endpoints returns what serves the paths of each version of a group.
func (k *Kinds) endpoints() map[schema.GroupVersion]map[string]rest.Storage {
	out := map[schema.GroupVersion]map[string]rest.Storage{}
	for _, b := range k.built {
		for _, gv := range b.Served {
			if out[gv] == nil {
				out[gv] = map[string]rest.Storage{}
			}
			maps.Copy(out[gv], b.Endpoints)
		}
	}
	// Bindings also have a path of their own besides the pods'; health, reviews and
	// metrics are not stored.
	core, who := out[corev1.SchemeGroupVersion], k.cfg.Auth
	core["bindings"] = pod.LegacyBinding{Binding: pod.NewBinding(k.Store("", "pods").Store)}
	core["componentstatuses"] = componentstatus.New(k.cfg.Components, printers.ComponentStatuses)
	out[authenticationv1.SchemeGroupVersion] = review.Authentication(who.Authenticator, k.cfg.Audiences)
	out[authorizationv1.SchemeGroupVersion] = review.Authorization(who.Authorizer, who.Rules)
	if k.cfg.Metrics != nil {
		out[metricsv1beta1.SchemeGroupVersion] = metrics.Endpoints(k.cfg.Deps.Lookup, k.cfg.Metrics)
	}
	for gv, resources := range out {
		maps.DeleteFunc(resources, func(path string, _ rest.Storage) bool {
			resource, _, _ := strings.Cut(path, "/") // subresources come and go with it
			return !k.cfg.Served.ResourceEnabled(gv.WithResource(resource))
		})
	}
	return out
}
