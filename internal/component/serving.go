package component

import (
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apiserver/pkg/authentication/user"
	apifilters "k8s.io/apiserver/pkg/endpoints/filters"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/filters"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/apiserver/pkg/server/mux"
	"k8s.io/apiserver/pkg/server/options"
	"k8s.io/apiserver/pkg/server/routes"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/metrics/legacyregistry"

	"wherry.dev/internal/inbound"
)

// Serving is how a control plane component that runs alone exposes its health, metrics and
// profiles: over TLS, to clients that the API server authorizes. Its flags are those of every
// upstream component.
type Serving struct {
	secure *options.SecureServingOptionsWithLoopback
	authn  *options.DelegatingAuthenticationOptions
	authz  *options.DelegatingAuthorizationOptions
	paths  map[string]http.Handler // besides its own; see Handle

	// NoProfiling leaves /debug/pprof out.
	NoProfiling bool
}

// NewServing returns the options of a component, with its port by default.
func NewServing(component string, port int) Serving {
	s := Serving{
		secure: options.NewSecureServingOptions().WithLoopback(),
		authn:  options.NewDelegatingAuthenticationOptions(),
		authz:  options.NewDelegatingAuthorizationOptions(),
	}
	s.secure.BindPort = port
	s.secure.ServerCert.PairName = component
	s.secure.ServerCert.CertDirectory = "" // made in memory, unless files are given
	s.authn.TolerateInClusterLookupFailure = true
	s.authn.RemoteKubeConfigFileOptional = true
	s.authz.RemoteKubeConfigFileOptional = true
	s.authz.AlwaysAllowPaths = []string{"/healthz", "/livez", "/readyz"}
	return s
}

// AddFlags adds the flags.
func (s *Serving) AddFlags(f *pflag.FlagSet) {
	s.secure.AddFlags(f)
	s.authn.AddFlags(f)
	s.authz.AddFlags(f)
}

// Handle serves a path, and all below it if it ends with a slash, to those who may get them. It is called before
// Start.
func (s *Serving) Handle(path string, h http.Handler) {
	if s.paths == nil {
		s.paths = map[string]http.Handler{}
	}
	s.paths[path] = h
}

// Start serves until stop is called; with port 0 it does not serve at all.
func (s *Serving) Start() (stop func(), err error) {
	if errs := append(append(s.secure.Validate(), s.authn.Validate()...), s.authz.Validate()...); len(errs) > 0 {
		return nil, utilerrors.NewAggregate(errs)
	}
	if s.secure.BindPort == 0 && s.secure.Listener == nil {
		return func() {}, nil
	}
	if err := s.secure.MaybeDefaultWithSelfSignedCerts("localhost", nil, []net.IP{net.IPv4(127, 0, 0, 1)}); err != nil {
		return nil, fmt.Errorf("serving certificate: %w", err)
	}
	var info *server.SecureServingInfo
	var loopback *rest.Config
	if err := s.secure.ApplyTo(&info, &loopback); err != nil {
		return nil, err
	}
	if len(s.secure.CipherSuites) == 0 {
		info.CipherSuites = inbound.CipherSuites()
	}
	in := inbound.Bound(info.Listener)
	info.Listener = in
	handler, err := s.handler(info)
	if err != nil {
		return nil, err
	}
	handler = in.Handler(handler)
	ended := make(chan struct{})
	stopped, listenerStopped, err := info.Serve(handler, time.Second, ended)
	if err != nil {
		return nil, err
	}
	return func() {
		close(ended)
		<-listenerStopped
		<-stopped
	}, nil
}

func (s *Serving) handler(info *server.SecureServingInfo) (http.Handler, error) {
	var authn server.AuthenticationInfo
	if err := s.authn.ApplyTo(&authn, info, nil); err != nil {
		return nil, fmt.Errorf("authentication: %w", err)
	}
	var authz server.AuthorizationInfo
	if err := s.authz.ApplyTo(&authz); err != nil {
		return nil, fmt.Errorf("authorization: %w", err)
	}
	m := mux.NewPathRecorderMux("component")
	for _, path := range []string{"/healthz", "/livez", "/readyz"} {
		healthz.InstallPathHandler(m, path, healthz.PingHealthz)
	}
	m.Handle("/metrics", legacyregistry.Handler())
	for path, h := range s.paths {
		if strings.HasSuffix(path, "/") {
			m.UnlistedHandlePrefix(path, h)
		} else {
			m.UnlistedHandle(path, h)
		}
	}
	if !s.NoProfiling {
		routes.Profiling{}.Install(m)
	}
	codecs := errorCodecs()
	failed := apifilters.Unauthorized(codecs)
	resolver := &apirequest.RequestInfoFactory{}
	h := apifilters.WithAuthorization(m, authz.Authorizer, codecs)
	h = apifilters.WithAuthentication(proves(h), authn.Authenticator, failed, nil, nil)
	h = apifilters.WithRequestInfo(h, resolver)
	h = apifilters.WithCacheControl(h)
	return filters.WithPanicRecovery(h, resolver), nil
}

// proves tells the listener which connections are authenticated.
func proves(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if who, ok := apirequest.UserFrom(req.Context()); ok && who.GetName() != user.Anonymous {
			inbound.Proven(req.Context())
		}
		h.ServeHTTP(w, req)
	})
}

// errorCodecs encode refusals, which are API objects.
func errorCodecs() serializer.CodecFactory {
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	return serializer.NewCodecFactory(scheme)
}
