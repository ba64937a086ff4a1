// Package aggregation is the front of the API server: it sends requests for a group and version to
// the server that the APIService of that name names, or else to this one, and makes one discovery of
// all of them.
package aggregation

import (
	"fmt"

	apiextensionsinformers "k8s.io/apiextensions-apiserver/pkg/client/informers/externalversions/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/informers"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/apiserver"
	aggregatorscheme "k8s.io/kube-aggregator/pkg/apiserver/scheme"
	"k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"
	"k8s.io/kube-aggregator/pkg/controllers/autoregister"

	"wherry.dev/internal/apiserver/scheme"
	"wherry.dev/internal/apiserver/storage"
)

// Config is what the aggregator needs from the servers around it.
type Config struct {
	// Generic is shared with the other servers of the chain; New changes nothing in it.
	Generic *genericapiserver.Config
	Backend *storage.Backend
	// Informers are those of the services that other servers are behind.
	Informers informers.SharedInformerFactory
	// Services finds the addresses of these.
	Services apiserver.ServiceResolver
	// ProxyCert and ProxyKey are the files with which this server proves to others that it is the one
	// that names the user of a request.
	ProxyCert, ProxyKey string
	// Definitions are the kinds of users; each group and version gets an APIService.
	Definitions apiextensionsinformers.CustomResourceDefinitionInformer
	// RejectRedirects says that redirects of other servers are not passed on.
	RejectRedirects bool
	// Metrics says that this server serves metrics.k8s.io as long as nobody else does.
	Metrics bool
}

// New returns a server that passes requests for what no other server has to next.
func New(cfg Config, next genericapiserver.DelegationTarget) (*apiserver.APIAggregator, error) {
	generic := *cfg.Generic
	generic.PostStartHooks = map[string]genericapiserver.PostStartHookConfigEntry{}
	generic.MergedResourceConfig = apiserver.DefaultAPIResourceConfigSource()
	generic.RESTOptionsGetter = cfg.Backend.Options(codec, prefix)
	config := apiserver.Config{
		GenericConfig: &genericapiserver.RecommendedConfig{Config: generic, SharedInformerFactory: cfg.Informers},
		ExtraConfig: apiserver.ExtraConfig{
			ProxyClientCertFile:       cfg.ProxyCert,
			ProxyClientKeyFile:        cfg.ProxyKey,
			ServiceResolver:           cfg.Services,
			RejectForwardingRedirects: cfg.RejectRedirects,
		},
	}
	server, err := config.Complete().NewWithDelegate(next)
	if err != nil {
		return nil, fmt.Errorf("aggregator: %w", err)
	}
	if err := register(cfg, server, next); err != nil {
		return nil, fmt.Errorf("aggregator: %w", err)
	}
	for _, gv := range groupVersions(server.GenericAPIServer.ListedPaths()) {
		if p, ok := priorities[gv]; ok { // of one that nobody serves, discovery would show the name
			generic.AggregatedDiscoveryGroupManager.SetGroupVersionPriority(metav1.GroupVersion(gv), int(p.group), int(p.version))
		}
	}
	return server, nil
}

// prefix is the key of a resource in storage, the same as upstream's.
func prefix(r schema.GroupResource) string { return r.Group + "/" + r.Resource }

func codec(schema.GroupResource) (runtime.Codec, runtime.GroupVersioner, error) {
	return scheme.StorageCodec(aggregatorscheme.Scheme, aggregatorscheme.Codecs, apiregistrationv1.SchemeGroupVersion)
}

// register keeps the APIServices of what this server itself serves.
func register(cfg Config, server *apiserver.APIAggregator, next genericapiserver.DelegationTarget) error {
	client, err := clientset.NewForConfig(cfg.Generic.LoopbackClientConfig)
	if err != nil {
		return err
	}
	api := client.ApiregistrationV1()
	services := server.APIRegistrationInformers.Apiregistration().V1().APIServices()
	auto := autoregister.NewAutoRegisterController(services, api)
	for _, gv := range groupVersions(next.ListedPaths()) {
		if service := local(gv); service != nil && gv != metrics {
			auto.AddAPIServiceToSyncOnStart(service)
		}
	}
	defined, err := newDefined(cfg.Definitions, auto)
	if err != nil {
		return err
	}
	own, err := newFallback(services, api, metrics, cfg.Metrics)
	if err != nil {
		return err
	}
	return server.GenericAPIServer.AddPostStartHook("kube-apiserver-autoregistration", func(hook genericapiserver.PostStartHookContext) error {
		go func() {
			// Before the definitions are known, their APIServices would be taken for leftovers.
			if defined.await(hook) != nil {
				return // told to stop
			}
			go own.run(hook)
			auto.Run(1, hook.Done())
		}()
		return nil
	})
}
