package apiserver

import (
	"context"
	"fmt"
	"maps"
	"net/http"

	"github.com/emicklei/go-restful/v3"
	apiextensionsserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	extensionsopenapi "k8s.io/apiextensions-apiserver/pkg/generated/openapi"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	genericfilters "k8s.io/apiserver/pkg/endpoints/filters"
	apiopenapi "k8s.io/apiserver/pkg/endpoints/openapi"
	"k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/apiserver/pkg/server/filters"
	"k8s.io/apiserver/pkg/server/healthz"
	utilflowcontrol "k8s.io/apiserver/pkg/util/flowcontrol"
	"k8s.io/apiserver/pkg/util/notfoundhandler"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/informers"
	"k8s.io/component-base/compatibility"
	baseversion "k8s.io/component-base/version"
	aggregatorscheme "k8s.io/kube-aggregator/pkg/apiserver/scheme"
	aggregatoropenapi "k8s.io/kube-aggregator/pkg/generated/openapi"
	"k8s.io/kube-openapi/pkg/common"

	"wherry.dev/internal/apiserver/aggregation"
	"wherry.dev/internal/apiserver/auth/token"
	"wherry.dev/internal/apiserver/extensions"
	"wherry.dev/internal/apiserver/openapi"
	"wherry.dev/internal/apiserver/openapi/ondemand"
	"wherry.dev/internal/apiserver/refusal"
	"wherry.dev/internal/apiserver/registry"
	"wherry.dev/internal/apiserver/registry/componentstatus"
	"wherry.dev/internal/apiserver/stacks"
	ownversion "wherry.dev/internal/version"
)

// kubernetesVersion is the version of the API that we serve.
const kubernetesVersion = "1.37.2"

// chain is the servers through which a request goes until one serves it: aggregator → Kubernetes'
// own kinds → kinds of users → not found. Filters, authentication and authorization are those of the
// first.
type chain struct {
	front      *genericapiserver.GenericAPIServer
	remotes    *aggregation.Remotes
	kinds      *genericapiserver.GenericAPIServer
	extensions *extensions.Server
	generic    *genericapiserver.Config
}

// install assembles the chain, from its end to its front.
func (s *Server) install() (*chain, error) {
	generic, err := s.genericConfig()
	if err != nil {
		return nil, err
	}
	client, err := s.ownClient()
	if err != nil {
		return nil, err
	}
	shared := informers.NewSharedInformerFactory(client, 0)
	if s.cfg.PriorityAndFairness {
		generic.FlowControl = utilflowcontrol.New(shared, client.FlowcontrolV1(), s.cfg.MaxRequestsInFlight+s.cfg.MaxMutatingRequestsInFlight)
	}
	if s.objects, err = s.startingObjects(client, shared); err != nil {
		return nil, err
	}
	c := &chain{generic: generic}
	end := genericapiserver.NewEmptyDelegateWithCustomHandler(notfoundhandler.New(s.kinds.Codecs, genericfilters.NoMuxAndDiscoveryIncompleteKey))
	c.extensions, err = extensions.New(extensions.Config{
		Generic: generic, Backend: s.backend, Services: s.urls, Alone: s.cfg.alone(),
		Credentials: webhook.NewDefaultAuthenticationInfoResolverWrapper(nil, nil, generic.LoopbackClientConfig, nil),
	}, end)
	if err != nil {
		return nil, err
	}
	if c.kinds, err = s.kinds.Install(generic, c.extensions); err != nil {
		return nil, fmt.Errorf("server of Kubernetes' own kinds: %w", err)
	}
	front := aggregation.Config{
		Generic: generic, Backend: s.backend, Informers: shared, Services: s.urls,
		ProxyCert: s.creds.proxyCert, ProxyKey: s.creds.proxyKey,
		Definitions: c.extensions.Definitions,
		Metrics:     s.cfg.MetricsAPI, RejectRedirects: s.cfg.RejectForwardingRedirects,
	}
	server, err := aggregation.New(front, c.kinds)
	if err != nil {
		return nil, err
	}
	c.front, c.remotes = server.GenericAPIServer, aggregation.NewRemotes(front, server)
	c.front.ShutdownTimeout = shutdownTimeout
	if err := c.extensions.Announce(c.front); err != nil {
		return nil, err
	}
	issuer, err := token.Discovery(s.cfg.ServiceAccountIssuers[0], s.keysURI(token.KeysPath), s.creds.serviceAccountKeys)
	if err != nil {
		return nil, err
	}
	for path, handler := range issuer {
		c.front.Handler.NonGoRestfulMux.Handle(path, handler)
	}
	for prefix, handler := range s.cfg.Paths {
		c.front.Handler.NonGoRestfulMux.UnlistedHandlePrefix(prefix, handler)
	}
	s.clients.Serve(c.front.Handler)
	return c, nil
}

// runnable is a server that serves until its context ends.
type runnable interface {
	RunWithContext(ctx context.Context) error
}

// prepare installs what needs every group to be there, and returns the server to run.
func (c *chain) prepare() runnable {
	prepared := c.front.PrepareRun()
	ondemand.Install(ondemand.Config{
		Containers:  []*restful.Container{c.front.Handler.GoRestfulContainer, c.kinds.Handler.GoRestfulContainer, c.extensions.Handler.GoRestfulContainer},
		Definitions: c.extensions.Definitions.Lister(),
		Remotes:     c.remotes,
		V2:          c.generic.OpenAPIConfig,
		V3:          c.generic.OpenAPIV3Config,
		Build:       ownversion.Version + " " + kubernetesVersion,
	}, c.front.Handler.NonGoRestfulMux)
	return prepared
}

// genericConfig returns what the servers of the chain have in common.
func (s *Server) genericConfig() (*genericapiserver.Config, error) {
	cfg := genericapiserver.NewConfig(s.kinds.Codecs)
	cfg.EffectiveVersion = effectiveVersion{compatibility.NewEffectiveVersionFromString(kubernetesVersion, "", "")}
	cfg.ExternalAddress = s.loopbackAddr()
	cfg.PublicAddress = s.cfg.AdvertiseAddress
	cfg.RequestTimeout = s.cfg.RequestTimeout
	cfg.MaxRequestsInFlight = s.cfg.MaxRequestsInFlight
	cfg.MaxMutatingRequestsInFlight = s.cfg.MaxMutatingRequestsInFlight
	cfg.EnableProfiling = s.cfg.Profiling
	cfg.MergedResourceConfig = s.apis
	cfg.StorageObjectCountTracker = s.backend.Counts()
	cfg.LoopbackClientConfig = s.clients.Own()
	cfg.AggregatedDiscoveryGroupManager = aggregated.NewResourceManager("apis")
	cfg.LongRunningFunc = filters.BasicLongRunningRequestCheck(
		sets.NewString("watch", "proxy"), sets.NewString("attach", "exec", "proxy", "log", "portforward"))
	namer := apiopenapi.NewDefinitionNamer(s.kinds.Scheme, apiextensionsserver.Scheme, aggregatorscheme.Scheme)
	cfg.OpenAPIConfig = genericapiserver.DefaultOpenAPIConfig(definitions, namer)
	cfg.OpenAPIConfig.Info.Title = "Kubernetes"
	cfg.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(definitions, namer)
	cfg.OpenAPIV3Config.Info.Title = "Kubernetes"
	// The library builds from it what server-side apply needs; what clients ask for is built on demand.
	cfg.SkipOpenAPIInstallation = true
	check := healthz.NamedCheck("etcd", func(r *http.Request) error { return s.backend.Check(r.Context()) })
	cfg.AddHealthChecks(check)
	// As upstream, not in /livez: a restart of this server brings no KMS plugin back.
	cfg.HealthzChecks = append(cfg.HealthzChecks, s.backend.EncryptionChecks()...)
	cfg.ReadyzChecks = append(cfg.ReadyzChecks, s.backend.EncryptionChecks()...)
	cfg.Authorization.Authorizer = s.auth.Authorizer
	cfg.RuleResolver = s.auth.Rules
	var err error
	if cfg.AdmissionControl, err = s.makeAdmission(cfg.EffectiveVersion); err != nil {
		return nil, err
	}
	if err := s.cfg.Audit.ApplyTo(cfg); err != nil {
		return nil, fmt.Errorf("audit (--audit-policy-file, --audit-log-path, --audit-webhook-config-file): %w", err)
	}
	s.secure(cfg)
	cfg.Flagz = s.cfg.flags()
	return cfg, s.cfg.Serving.applyTo(cfg)
}

// definitions describes the types of all servers of the chain.
func definitions(ref common.ReferenceCallback) map[string]common.OpenAPIDefinition {
	out := extensionsopenapi.GetOpenAPIDefinitions(ref)
	maps.Copy(out, aggregatoropenapi.GetOpenAPIDefinitions(ref))
	maps.Copy(out, openapi.GetOpenAPIDefinitions(ref))
	return out
}

// effectiveVersion is our version as the library wants it; Info is also what /version answers.
type effectiveVersion struct {
	compatibility.MutableEffectiveVersion
}

// Info returns the Kubernetes version whose API we serve, and our own build.
func (v effectiveVersion) Info() *version.Info {
	info := v.MutableEffectiveVersion.Info()
	if built := baseversion.Get(); built.GitVersion == "" || built.Major == "" {
		info.GitVersion = "v" + kubernetesVersion
	}
	return info
}

// secure configures TLS and authentication.
func (s *Server) secure(cfg *genericapiserver.Config) {
	cfg.SecureServing = &genericapiserver.SecureServingInfo{
		Listener: s.listener, Cert: s.creds.serving,
		ClientCA: dynamiccertificates.NewUnionCAContentProvider(s.creds.clientCA, s.creds.requestHeader.CAContentProvider),
	}
	cfg.BuildHandlerChainFunc = func(api http.Handler, c *genericapiserver.Config) http.Handler {
		return s.listener.Handler(genericapiserver.DefaultBuildHandlerChain(onGrownStacks(refusal.Panics(s.holding(api), s.kinds.Codecs), c.LongRunningFunc), c))
	}
	cfg.Authentication.Authenticator = s.auth.Authenticator
	cfg.Authentication.RequestHeaderConfig = s.creds.requestHeader
	cfg.Authentication.APIAudiences = s.cfg.APIAudiences
}

// holding lets admission hold something for writes of kinds that are not ours, until they are over.
func (s *Server) holding(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, ok := request.RequestInfoFrom(r.Context())
		if !ok || !info.IsResourceRequest || !writes[info.Verb] || s.store(info.APIGroup, info.Resource) != nil {
			h.ServeHTTP(w, r)
			return
		}
		ctx, over := registry.Holding(r.Context())
		defer over()
		h.ServeHTTP(w, r.WithContext(ctx))
	})
}

var writes = map[string]bool{"create": true, "update": true, "patch": true}

// onGrownStacks serves requests that end soon on stacks of the pool. A watch would keep its stack.
func onGrownStacks(h http.Handler, long request.LongRunningRequestCheck) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if info, ok := request.RequestInfoFrom(r.Context()); !ok || long(r, info) {
			h.ServeHTTP(w, r)
			return
		}
		stacks.Run(func() { h.ServeHTTP(w, r) })
	})
}

// The ports at which upstream's components serve their health.
const (
	schedulerPort         = 10259
	controllerManagerPort = 10257
)

// components returns the health checks of the control plane.
func (s *Server) components() map[string]componentstatus.Check {
	checks := maps.Clone(s.cfg.Components)
	if checks == nil {
		checks = map[string]componentstatus.Check{
			"scheduler":          componentstatus.Local(schedulerPort),
			"controller-manager": componentstatus.Local(controllerManagerPort),
		}
	}
	etcd := componentstatus.Try(s.backend.Check)
	for i := range max(1, len(s.cfg.EtcdServers)) {
		checks[fmt.Sprintf("etcd-%d", i)] = etcd
	}
	return checks
}
