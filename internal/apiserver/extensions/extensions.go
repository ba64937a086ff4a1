// Package extensions serves the kinds that users define (CustomResourceDefinitions), and their
// objects.
package extensions

import (
	"fmt"
	"maps"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver"
	informers "k8s.io/apiextensions-apiserver/pkg/client/informers/externalversions/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/tools/cache"

	"wherry.dev/internal/apiserver/scheme"
	"wherry.dev/internal/apiserver/storage"
)

// Config is what the server of users' kinds needs from those around it.
type Config struct {
	// Generic is shared with the other servers of the chain; New changes nothing in it.
	Generic *genericapiserver.Config
	Backend *storage.Backend
	// Services and Credentials are how webhooks that convert objects are reached.
	Services    webhook.ServiceResolver
	Credentials webhook.AuthenticationInfoResolverWrapper
	// Alone says that there is no other API server on the same data. If there may be, objects of a new
	// kind can be created two seconds later, so that the others know it too.
	Alone bool
}

// Server serves definitions, and objects of the kinds that they define.
type Server struct {
	*genericapiserver.GenericAPIServer
	Definitions informers.CustomResourceDefinitionInformer

	known chan struct{} // closed when all definitions are
}

// knownHook tells when all definitions are known, and knownSignal keeps requests for other kinds from
// being answered as not found before. They are the library's; its own hook ends the whole process
// when the server is told to stop early.
const (
	knownHook   = "crd-informer-synced"
	knownSignal = "CRDInformerHasNotSynced"
)

// New returns a server that leaves requests for other paths to next.
func New(cfg Config, next genericapiserver.DelegationTarget) (*Server, error) {
	generic := *cfg.Generic
	generic.PostStartHooks = map[string]genericapiserver.PostStartHookConfigEntry{}
	generic.DisabledPostStartHooks = sets.NewString(knownHook)
	generic.MergedResourceConfig = apiserver.DefaultAPIResourceConfigSource()
	generic.RESTOptionsGetter = cfg.Backend.Options(codecForDefinitions, prefix)
	config := apiserver.Config{
		GenericConfig: &genericapiserver.RecommendedConfig{Config: generic},
		ExtraConfig: apiserver.ExtraConfig{
			CRDRESTOptionsGetter: cfg.Backend.Options(codecForObjects, prefix),
			MasterCount:          1,
			ServiceResolver:      cfg.Services,
			AuthResolverWrapper:  cfg.Credentials,
		},
	}
	server, err := config.Complete().New(next)
	if err != nil {
		return nil, fmt.Errorf("server of custom resources: %w", err)
	}
	s := &Server{
		GenericAPIServer: server.GenericAPIServer,
		Definitions:      server.Informers.Apiextensions().V1().CustomResourceDefinitions(),
		known:            make(chan struct{}),
	}
	if cfg.Alone {
		if err := s.Definitions.Informer().SetTransform(atOnce); err != nil {
			return nil, fmt.Errorf("server of custom resources: %w", err)
		}
	}
	return s, nil
}

// MuxAndDiscoveryCompleteSignals implements genericapiserver.DelegationTarget.
func (s *Server) MuxAndDiscoveryCompleteSignals() map[string]<-chan struct{} {
	signals := maps.Clone(s.GenericAPIServer.MuxAndDiscoveryCompleteSignals())
	signals[knownSignal] = s.known
	return signals
}

// Announce makes front, the first server of the chain, tell when all definitions are known.
func (s *Server) Announce(front *genericapiserver.GenericAPIServer) error {
	return front.AddPostStartHook(knownHook, func(hook genericapiserver.PostStartHookContext) error {
		if cache.WaitFor(hook, "", s.Definitions.Informer().HasSyncedChecker()) {
			close(s.known)
		}
		return nil
	})
}

// establishing is for how long after a kind is established the library holds back the creation of its
// objects, so that other servers know it too.
const establishing = 2 * time.Second

// atOnce is for a server without others: it makes a definition that was established a moment ago look
// as if that were long enough ago for objects to be created.
func atOnce(o any) (any, error) {
	crd, ok := o.(*apiextensionsv1.CustomResourceDefinition)
	if !ok {
		return o, nil
	}
	for i := range crd.Status.Conditions {
		c := &crd.Status.Conditions[i]
		if c.Type == apiextensionsv1.Established && time.Since(c.LastTransitionTime.Time) < establishing {
			c.LastTransitionTime = metav1.NewTime(c.LastTransitionTime.Add(-establishing))
		}
	}
	return crd, nil
}

// prefix is the key of a resource in storage, the same as upstream's.
func prefix(r schema.GroupResource) string { return r.Group + "/" + r.Resource }

func codecForDefinitions(schema.GroupResource) (runtime.Codec, runtime.GroupVersioner, error) {
	return scheme.StorageCodec(apiserver.Scheme, apiserver.Codecs, apiextensionsv1.SchemeGroupVersion)
}

// codecForObjects is how objects are stored whose definition says nothing else: as JSON. The library
// adds the conversion to the version in which the definition wants them stored.
func codecForObjects(schema.GroupResource) (runtime.Codec, runtime.GroupVersioner, error) {
	return unstructured.UnstructuredJSONScheme, nil, nil
}
