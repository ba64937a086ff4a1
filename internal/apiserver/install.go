package apiserver

import (
	"fmt"
	"maps"
	"net/http"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	apiopenapi "k8s.io/apiserver/pkg/endpoints/openapi"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/filters"
	"k8s.io/apiserver/pkg/server/healthz"
	restclient "k8s.io/client-go/rest"
	"k8s.io/component-base/compatibility"
	baseversion "k8s.io/component-base/version"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"wherry.dev/internal/apiserver/admission"
	"wherry.dev/internal/apiserver/auth/token"
	"wherry.dev/internal/apiserver/openapi"
	"wherry.dev/internal/apiserver/registry/componentstatus"
	"wherry.dev/internal/apiserver/registry/metrics"
	"wherry.dev/internal/apiserver/registry/pod"
	"wherry.dev/internal/apiserver/registry/printers"
	"wherry.dev/internal/apiserver/registry/review"
	"wherry.dev/internal/apiserver/scheme"
)

// kubernetesVersion is the version of the API that we serve.
const kubernetesVersion = "1.37.2"

// install assembles the library's server.
func (s *Server) install() error {
	generic, err := s.genericConfig()
	if err != nil {
		return err
	}
	s.generic, err = generic.Complete(nil).New("wherry-apiserver", genericapiserver.NewEmptyDelegate())
	if err != nil {
		return fmt.Errorf("API server: %w", err)
	}
	s.generic.ShutdownTimeout = shutdownTimeout
	if err := s.installGroups(); err != nil {
		return err
	}
	discovery, err := token.Discovery(s.cfg.ServiceAccountIssuer, s.advertised(), s.creds.serviceAccountKeys)
	if err != nil {
		return err
	}
	for path, handler := range discovery {
		s.generic.Handler.NonGoRestfulMux.Handle(path, handler)
	}
	s.handler = s.generic.Handler
	return nil
}

func (s *Server) genericConfig() (*genericapiserver.Config, error) {
	cfg := genericapiserver.NewConfig(s.codecs)
	cfg.EffectiveVersion = effectiveVersion{compatibility.NewEffectiveVersionFromString(kubernetesVersion, "", "")}
	cfg.ExternalAddress = s.loopbackAddr()
	cfg.PublicAddress = s.cfg.AdvertiseAddress
	cfg.RequestTimeout = s.cfg.RequestTimeout
	cfg.MaxRequestsInFlight = s.cfg.MaxRequestsInFlight
	cfg.MaxMutatingRequestsInFlight = s.cfg.MaxMutatingRequestsInFlight
	cfg.EnableProfiling = s.cfg.Profiling
	cfg.ShutdownWatchTerminationGracePeriod = shutdownTimeout
	cfg.StorageObjectCountTracker = nil
	cfg.LoopbackClientConfig = &restclient.Config{}
	cfg.RESTOptionsGetter = s.backend
	cfg.LongRunningFunc = filters.BasicLongRunningRequestCheck(
		sets.NewString("watch", "proxy"), sets.NewString("attach", "exec", "proxy", "log", "portforward"))
	namer := apiopenapi.NewDefinitionNamer(s.scheme)
	cfg.OpenAPIConfig = genericapiserver.DefaultOpenAPIConfig(openapi.GetOpenAPIDefinitions, namer)
	cfg.OpenAPIConfig.Info.Title = "Kubernetes"
	cfg.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(openapi.GetOpenAPIDefinitions, namer)
	cfg.OpenAPIV3Config.Info.Title = "Kubernetes"
	// The library builds from it what server-side apply needs; what clients ask for is built on demand.
	cfg.SkipOpenAPIInstallation = true
	s.openAPIV2, s.openAPIV3 = cfg.OpenAPIConfig, cfg.OpenAPIV3Config
	check := healthz.NamedCheck("etcd", func(r *http.Request) error { return s.backend.Check(r.Context()) })
	cfg.AddHealthChecks(check)
	cfg.Authorization.Authorizer = s.authorizer
	cfg.RuleResolver = s.rules
	if err := s.makeHooks(cfg.EffectiveVersion); err != nil {
		return nil, err
	}
	cfg.AdmissionControl = admission.Chain(s.lookup, func() authorizer.Authorizer { return s.authorizer }, s.backend.Room, s.hooks.Plugins(), s.cfg.DisableAdmission)
	return cfg, s.secure(cfg)
}

// effectiveVersion is our version as the library wants it; Info is also what /version answers.
type effectiveVersion struct {
	compatibility.MutableEffectiveVersion
}

// Info returns the Kubernetes version whose API we serve, and our own build.
func (v effectiveVersion) Info() *version.Info {
	info := baseversion.Get()
	if info.GitVersion == "" || info.Major == "" {
		info.Major, info.Minor, info.GitVersion = "1", "37", "v"+kubernetesVersion
	}
	return &info
}

// installGroups installs every resource of the table.
func (s *Server) installGroups() error {
	storages := s.endpoints()
	parameters := runtime.NewParameterCodec(s.scheme)
	groups := map[string]*genericapiserver.APIGroupInfo{}
	var order []*genericapiserver.APIGroupInfo
	for _, gv := range scheme.Groups {
		if len(storages[gv]) == 0 {
			continue
		}
		if groups[gv.Group] == nil {
			info := genericapiserver.NewDefaultAPIGroupInfo(gv.Group, s.scheme, parameters, s.codecs)
			groups[gv.Group] = &info
			if gv.Group != corev1.GroupName {
				order = append(order, &info)
			}
		}
		groups[gv.Group].VersionedResourcesStorageMap[gv.Version] = storages[gv]
	}
	if err := s.generic.InstallLegacyAPIGroup(genericapiserver.DefaultLegacyAPIPrefix, groups[corev1.GroupName]); err != nil {
		return fmt.Errorf("install API group core: %w", err)
	}
	if err := s.generic.InstallAPIGroups(order...); err != nil {
		return fmt.Errorf("install API groups: %w", err)
	}
	return nil
}

// endpoints returns what serves the paths of each version of a group.
func (s *Server) endpoints() map[schema.GroupVersion]map[string]rest.Storage {
	out := map[schema.GroupVersion]map[string]rest.Storage{}
	for _, b := range s.built {
		for _, gv := range b.Served {
			if out[gv] == nil {
				out[gv] = map[string]rest.Storage{}
			}
			maps.Copy(out[gv], b.Endpoints)
		}
	}
	// Bindings also have a path of their own besides the pods'; health, reviews and
	// metrics are not stored.
	out[corev1.SchemeGroupVersion]["bindings"] = pod.LegacyBinding{Binding: pod.NewBinding(s.store("", "pods").Store)}
	out[corev1.SchemeGroupVersion]["componentstatuses"] = componentstatus.New(s.components(), printers.ComponentStatuses)
	out[authenticationv1.SchemeGroupVersion] = review.Authentication(s.authenticator, s.cfg.APIAudiences)
	out[authorizationv1.SchemeGroupVersion] = review.Authorization(s.authorizer, s.rules)
	if s.cfg.MetricsAPI {
		out[metricsv1beta1.SchemeGroupVersion] = metrics.Endpoints(s.lookup, s.scraper)
	}
	return out
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
