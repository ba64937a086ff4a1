package apiserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"k8s.io/kube-openapi/pkg/common"

	"wherry.dev/internal/api/defaults"
	authnode "wherry.dev/internal/apiserver/auth/nodeauthorizer"
	"wherry.dev/internal/apiserver/auth/rbac"
	"wherry.dev/internal/apiserver/auth/token"
	"wherry.dev/internal/apiserver/hooks"
	"wherry.dev/internal/apiserver/openapi/ondemand"
	"wherry.dev/internal/apiserver/registry"
	"wherry.dev/internal/apiserver/registry/metrics"
	"wherry.dev/internal/apiserver/registry/node"
	"wherry.dev/internal/apiserver/registry/resources"
	"wherry.dev/internal/apiserver/registry/service"
	"wherry.dev/internal/apiserver/registry/serviceaccount"
	"wherry.dev/internal/apiserver/scheme"
	"wherry.dev/internal/apiserver/serviceurl"
	"wherry.dev/internal/apiserver/storage"
	"wherry.dev/internal/inbound"
	"wherry.dev/internal/pki"
	"wherry.dev/internal/version"
)

// Server is an API server that has its data open and its port bound.
type Server struct {
	cfg      Config
	listener *inbound.Listener
	creds    *credentials
	scheme   *runtime.Scheme
	codecs   serializer.CodecFactory
	backend  *storage.Backend
	lookup   *registry.Lookup
	kubelets *node.Connector
	services *service.Allocator
	scraper  *metrics.Scraper
	stored   map[schema.GroupResource]schema.GroupVersion // the versions in which objects are stored
	built    map[schema.GroupResource]*registry.Built
	// What authorization decides with.
	roles         *rbac.Index
	byRole        *rbac.Authorizer
	nodePods      *authnode.Index
	rules         authorizer.RuleResolver
	authorizer    authorizer.Authorizer
	tokens        *token.Authenticator
	issuer        *token.Issuer
	authenticator authenticator.Request
	users         *loopbackUsers
	mapper        *mapper
	hooks         *hooks.Hooks
	serviceURLs   *serviceurl.Resolver // where webhooks, and whatever else is called from here, are reached
	generic       *genericapiserver.GenericAPIServer
	// What the OpenAPI documents are built from.
	openAPIV2 *common.Config
	openAPIV3 *common.OpenAPIV3Config

	// handler serves in-process requests; set once everything is installed.
	handler http.Handler
	ready   chan struct{}
	// prepared is closed when every path is installed.
	prepared chan struct{}
}

// New opens the data, creates missing certificates, and binds the port. The caller must call Run,
// even if only to stop at once, because Run releases all of that.
func New(ctx context.Context, cfg Config) (*Server, error) {
	if errs := cfg.Validate(); len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	listener, err := listen(&cfg)
	if err != nil {
		return nil, err
	}
	cfg.SecurePort = listener.Addr().(*net.TCPAddr).Port
	s := &Server{cfg: cfg, listener: inbound.Bound(listener), users: newLoopbackUsers(), ready: make(chan struct{}), prepared: make(chan struct{})}
	if err := s.open(ctx); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// open does the steps of New that can fail halfway; close undoes them.
func (s *Server) open(ctx context.Context) error {
	if err := s.cfg.complete(); err != nil {
		return err
	}
	s.cfg.warnIgnored(klog.FromContext(ctx))
	if lost := s.cfg.LostData(); lost != "" {
		klog.FromContext(ctx).Error(nil, lost)
	}
	var err error
	if s.creds, err = loadCredentials(&s.cfg, time.Now()); err != nil {
		return err
	}
	if err := s.makeScheme(); err != nil {
		return err
	}
	if s.backend, err = storage.Open(ctx, s.storageConfig()); err != nil {
		return err
	}
	if err := s.buildStores(ctx); err != nil {
		return err
	}
	if err := s.makeAuth(); err != nil {
		return err
	}
	return s.install()
}

// close releases what open acquired.
func (s *Server) close() error {
	var errs []error
	if s.generic != nil {
		s.generic.Destroy()
	}
	if s.scraper != nil {
		s.scraper.Close()
	}
	if s.kubelets != nil {
		s.kubelets.Close()
	}
	for _, b := range s.built {
		b.Store.Destroy()
	}
	if s.backend != nil {
		errs = append(errs, s.backend.Close())
	}
	if err := s.listener.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func (s *Server) makeScheme() error {
	s.scheme, s.stored = scheme.New(), map[schema.GroupResource]schema.GroupVersion{}
	for _, row := range resources.All(resources.Deps{}) {
		s.stored[row.GVR().GroupResource()] = row.GVR().GroupVersion()
		if err := row.AddToScheme(s.scheme); err != nil {
			return fmt.Errorf("field selectors of %s: %w", row.GVR().Resource, err)
		}
	}
	defaults.Register(s.scheme)
	s.codecs = serializer.NewCodecFactory(s.scheme)
	return nil
}

func (s *Server) storageConfig() storage.Config {
	return storage.Config{
		Dir:                s.cfg.etcdDir(),
		Servers:            s.cfg.EtcdServers,
		CertFile:           s.cfg.EtcdCertFile,
		KeyFile:            s.cfg.EtcdKeyFile,
		CAFile:             s.cfg.EtcdCAFile,
		CompactionInterval: s.cfg.EtcdCompactionInterval,
		GarbageCollection:  s.cfg.GarbageCollector,
		Prefixes:           storagePrefixes,
		CodecFor: func(r schema.GroupResource) (runtime.Codec, runtime.GroupVersioner, error) {
			version, ok := s.stored[r]
			if !ok {
				return nil, nil, fmt.Errorf("nothing defines the resource %q", r)
			}
			return scheme.StorageCodec(s.scheme, s.codecs, version)
		},
	}
}

// storagePrefixes are the keys that differ from the resource's name. They are upstream's, so that
// either server can read the other's data.
var storagePrefixes = map[schema.GroupResource]string{
	{Resource: "endpoints"}:                            "services/endpoints",
	{Resource: "services"}:                             "services/specs",
	{Resource: "nodes"}:                                "minions",
	{Group: "node.k8s.io", Resource: "runtimeclasses"}: "runtimeclasses",
}

func (s *Server) buildStores(ctx context.Context) error {
	deps, err := s.deps(ctx)
	if err != nil {
		return err
	}
	s.built = map[schema.GroupResource]*registry.Built{}
	for _, row := range resources.All(deps) {
		b, err := row.Build(s.scheme, s.backend)
		if err != nil {
			return err
		}
		s.built[b.GVR.GroupResource()] = b
		s.lookup.Add(b.GVR.GroupResource(), b.Store.Store)
	}
	return nil
}

// deps returns what the rows of the table need from us.
func (s *Server) deps(ctx context.Context) (resources.Deps, error) {
	s.lookup = registry.NewLookup()
	files := node.TLS{CertFile: s.creds.kubeletCert, KeyFile: s.creds.kubeletKey, CAFile: s.creds.kubeletRoot}
	var err error
	if s.kubelets, err = node.NewConnector(s.lookup, files, s.cfg.KubeletTimeout); err != nil {
		return resources.Deps{}, err
	}
	s.scraper = metrics.NewScraper(context.WithoutCancel(ctx), s.kubelets)
	s.issuer, err = token.NewIssuer(s.cfg.ServiceAccountIssuer, s.creds.serviceAccountKey)
	if err != nil {
		return resources.Deps{}, err
	}
	if s.mapper, err = newMapper(s.ClientConfig(user.APIServerUser, user.SystemPrivilegedGroup)); err != nil {
		return resources.Deps{}, err
	}
	s.serviceURLs = &serviceurl.Resolver{
		Context: context.WithoutCancel(ctx), Lookup: s.lookup, ByEndpoint: s.cfg.AggregatorRouting,
		Self: &url.URL{Scheme: "https", Host: s.loopbackAddr()},
	}
	s.services = service.NewAllocator(ctx, s.cfg.ServiceCIDR, s.backend)
	return resources.Deps{
		Lookup:   s.lookup,
		Services: s.services,
		Kubelets: s.kubelets,
		Tokens: &serviceaccount.Token{
			Issuer:     s.issuer,
			Audiences:  s.cfg.APIAudiences,
			MaxSeconds: int64(s.cfg.ServiceAccountMaxExpiration.Seconds()),
			Lookup:     s.lookup,
		},
		Authorizer: func() authorizer.Authorizer { return s.authorizer },
		Roles:      func() (*rbac.Authorizer, *rbac.Index) { return s.byRole, s.roles },
		Mapper:     func() meta.RESTMapper { return s.mapper },
		EventTTL:   s.cfg.EventTTL,
	}, nil
}

// store returns the storage of a resource in the table.
func (s *Server) store(group, resource string) *registry.Store {
	return s.built[schema.GroupResource{Group: group, Resource: resource}].Store
}

// Ready returns a channel that is closed once requests are served and the objects that every
// cluster starts with exist.
func (s *Server) Ready() <-chan struct{} { return s.ready }

// RestartDue returns a channel that is closed when another process should open the embedded etcd's
// data: etcd has failed, and requests are answered with the reason, or it will fail before long.
func (s *Server) RestartDue() <-chan struct{} { return s.backend.RestartDue() }

// RestartReason returns why RestartDue is closed, or nil.
func (s *Server) RestartReason() error { return s.backend.RestartReason() }

// CA returns the certificate authority of the instance. Clients with a certificate that it has
// signed are authenticated. It also signed the serving certificate, unless one was given.
func (s *Server) CA() *pki.CA { return s.creds.ca }

// TokenIssuer returns who signs the tokens of service accounts.
func (s *Server) TokenIssuer() *token.Issuer { return s.issuer }

// Addr returns the address at which HTTPS is served.
func (s *Server) Addr() *net.TCPAddr { return s.listener.Addr().(*net.TCPAddr) }

// Run serves until ctx ends. It returns when requests are drained, etcd is closed and every
// goroutine is gone. It can be called once.
func (s *Server) Run(ctx context.Context) error {
	log := klog.FromContext(ctx)
	group, gctx := errgroup.WithContext(ctx)
	// The index and the bootstrap outlive ctx, until HTTP has drained.
	inner, stopInner := context.WithCancel(context.WithoutCancel(ctx))
	defer stopInner()
	if err := s.withdrawAtStop(inner); err != nil {
		return errors.Join(err, s.close())
	}
	var background sync.WaitGroup
	followers := s.followers()
	for _, f := range followers {
		background.Go(func() {
			if err := f.run(inner); err != nil {
				log.Error(err, "Failed to watch storage", "resource", f.name)
			}
		})
	}
	group.Go(func() error { return s.serve(gctx) })
	group.Go(func() error { return s.hooks.Run(gctx, s.prepared) })
	group.Go(func() error {
		if err := s.bootstrap(gctx, followers); err != nil {
			return err
		}
		return s.keepTrust(gctx)
	})
	err := group.Wait()
	stopInner()
	background.Wait()
	return errors.Join(err, s.close())
}

// serve runs the library's server: it stops accepting connections when ctx ends, and returns when
// all requests are drained.
func (s *Server) serve(ctx context.Context) error {
	prepared := s.generic.PrepareRun()
	ondemand.Install(s.generic.Handler.GoRestfulContainer, s.generic.Handler.NonGoRestfulMux, s.openAPIV2, s.openAPIV3, version.Version+" "+kubernetesVersion)
	close(s.prepared)
	if err := prepared.RunWithContext(ctx); err != nil {
		return fmt.Errorf("API server: %w", err)
	}
	return nil
}

// ClientConfig returns a client configuration for a component of this process: it is authenticated
// as user with groups (and system:authenticated), and authorized like any other client. Requests do
// not touch the network, except those that upgrade the connection, which go over TLS to our own
// port.
func (s *Server) ClientConfig(user string, groups ...string) *rest.Config {
	info, token := s.users.add(user, groups)
	return &rest.Config{
		Host:        "https://" + s.loopbackAddr(),
		BearerToken: token,
		QPS:         -1,
		Timeout:     0,
		TLSClientConfig: rest.TLSClientConfig{
			ServerName: "localhost",
			CAData:     s.servingCA(),
		},
		ContentConfig: rest.ContentConfig{
			ContentType:        runtime.ContentTypeProtobuf,
			AcceptContentTypes: runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON,
		},
		WrapTransport: func(next http.RoundTripper) http.RoundTripper {
			return &inProcess{handler: func() http.Handler { return s.handler }, user: info, next: next}
		},
	}
}

func (s *Server) loopbackAddr() string {
	addr := s.Addr()
	ip := addr.IP
	if ip.IsUnspecified() {
		ip = net.IPv4(127, 0, 0, 1)
	}
	return net.JoinHostPort(ip.String(), fmt.Sprint(addr.Port))
}

// servingCA returns what clients verify the serving certificate with: our CA, or the certificate
// itself if one was given.
func (s *Server) servingCA() []byte {
	if s.cfg.TLSCertFile != "" {
		return s.creds.servingCert
	}
	return s.creds.caPEM
}
