package apiserver

import (
	"crypto/x509"
	"fmt"
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/group"
	"k8s.io/apiserver/pkg/authentication/request/anonymous"
	"k8s.io/apiserver/pkg/authentication/request/bearertoken"
	authnunion "k8s.io/apiserver/pkg/authentication/request/union"
	"k8s.io/apiserver/pkg/authentication/request/websocket"
	authnx509 "k8s.io/apiserver/pkg/authentication/request/x509"
	tokenunion "k8s.io/apiserver/pkg/authentication/token/union"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	authzunion "k8s.io/apiserver/pkg/authorization/union"
	apiopenapi "k8s.io/apiserver/pkg/endpoints/openapi"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/apiserver/pkg/server/filters"
	"k8s.io/apiserver/pkg/server/healthz"
	restclient "k8s.io/client-go/rest"
	"k8s.io/component-base/compatibility"
	baseversion "k8s.io/component-base/version"

	"wherry.dev/internal/apiserver/auth/rbac"
	"wherry.dev/internal/apiserver/openapi"
	"wherry.dev/internal/apiserver/scheme"
)

// kubernetesVersion is the API that we speak.
const kubernetesVersion = "1.37.2"

// install puts the library's server together.
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
	check := healthz.NamedCheck("etcd", func(r *http.Request) error { return s.backend.Check(r.Context()) })
	cfg.AddHealthChecks(check)
	if err := s.secure(cfg); err != nil {
		return nil, err
	}
	return cfg, s.authorization(cfg)
}

// effectiveVersion is the library's notion of our version; Info also answers /version.
type effectiveVersion struct {
	compatibility.MutableEffectiveVersion
}

// Info names the Kubernetes version whose API we serve, and our own build.
func (v effectiveVersion) Info() *version.Info {
	info := baseversion.Get()
	if info.GitVersion == "" || info.Major == "" {
		info.Major, info.Minor, info.GitVersion = "1", "37", "v"+kubernetesVersion
	}
	return &info
}

// secure sets up TLS and who clients are.
func (s *Server) secure(cfg *genericapiserver.Config) error {
	serving, err := dynamiccertificates.NewStaticCertKeyContent("serving-cert", s.creds.servingCert, s.creds.servingKey)
	if err != nil {
		return fmt.Errorf("serving certificate: %w", err)
	}
	clientCA, err := dynamiccertificates.NewStaticCAContent("client-ca", s.creds.clientCA)
	if err != nil {
		return fmt.Errorf("client CA: %w", err)
	}
	cfg.SecureServing = &genericapiserver.SecureServingInfo{Listener: s.listener, Cert: serving, ClientCA: clientCA}

	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(s.creds.clientCA)
	opts := authnx509.DefaultVerifyOptions()
	opts.Roots = roots
	token := tokenunion.New(s.tokenAuthenticators()...)
	known := authnunion.New(
		inProcessAuthenticator,
		authnx509.New(opts, authnx509.CommonNameUserConversion),
		bearertoken.New(token),
		websocket.NewProtocolAuthenticator(token),
	)
	all := []authenticator.Request{group.NewAuthenticatedGroupAdder(known)}
	if s.cfg.AnonymousAuth {
		all = append(all, anonymous.NewAuthenticator(nil))
	}
	cfg.Authentication.Authenticator = authnunion.NewFailOnError(all...)
	cfg.Authentication.APIAudiences = s.cfg.APIAudiences
	return nil
}

func (s *Server) tokenAuthenticators() []authenticator.Token {
	return []authenticator.Token{s.users}
}

// authorization asks, in this order: is it an administrator, do the roles allow it.
func (s *Server) authorization(cfg *genericapiserver.Config) error {
	s.rbac = rbac.NewIndex()
	byRole := rbac.NewAuthorizer(s.rbac)
	union, err := authzunion.New(
		authzunion.NamedAuthorizer{AuthorizerName: "Masters", Authorizer: authorizerfactory.NewPrivilegedGroups(user.SystemPrivilegedGroup)},
		authzunion.NamedAuthorizer{AuthorizerName: "RBAC", Authorizer: byRole},
	)
	if err != nil {
		return err
	}
	cfg.Authorization.Authorizer = union
	cfg.RuleResolver = byRole
	return nil
}

var _ authorizer.RuleResolver = (*rbac.Authorizer)(nil)

// installGroups serves every resource of the table.
func (s *Server) installGroups() error {
	parameters := runtime.NewParameterCodec(s.scheme)
	storages := map[string]map[string]rest.Storage{}
	for _, b := range s.built {
		if storages[b.GVR.Group] == nil {
			storages[b.GVR.Group] = map[string]rest.Storage{}
		}
		for path, storage := range b.Endpoints {
			storages[b.GVR.Group][path] = storage
		}
	}
	var groups []*genericapiserver.APIGroupInfo
	for _, gv := range scheme.Groups {
		if len(storages[gv.Group]) == 0 {
			continue
		}
		info := genericapiserver.NewDefaultAPIGroupInfo(gv.Group, s.scheme, parameters, s.codecs)
		info.VersionedResourcesStorageMap[gv.Version] = storages[gv.Group]
		if gv.Group == metav1.GroupName {
			continue
		}
		if gv.Group == "" {
			if err := s.generic.InstallLegacyAPIGroup(genericapiserver.DefaultLegacyAPIPrefix, &info); err != nil {
				return fmt.Errorf("install API group core: %w", err)
			}
			continue
		}
		groups = append(groups, &info)
	}
	if err := s.generic.InstallAPIGroups(groups...); err != nil {
		return fmt.Errorf("install API groups: %w", err)
	}
	return nil
}
