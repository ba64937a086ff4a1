package apiserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	genericapiserver "k8s.io/apiserver/pkg/server"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"wherry.dev/internal/apiserver/auth"
	"wherry.dev/internal/apiserver/auth/token"
	"wherry.dev/internal/apiserver/bootstrap"
	"wherry.dev/internal/apiserver/hooks"
	"wherry.dev/internal/apiserver/kinds"
	"wherry.dev/internal/apiserver/loopback"
	"wherry.dev/internal/apiserver/registry"
	"wherry.dev/internal/apiserver/registry/metrics"
	"wherry.dev/internal/apiserver/registry/node"
	"wherry.dev/internal/apiserver/registry/resources"
	"wherry.dev/internal/apiserver/registry/service"
	"wherry.dev/internal/apiserver/registry/serviceaccount"
	"wherry.dev/internal/apiserver/serviceurl"
	"wherry.dev/internal/apiserver/storage"
	"wherry.dev/internal/inbound"
	"wherry.dev/internal/pki"
)

// Server is an API server that has its data open and its port bound.
type Server struct {
	cfg      Config
	listener *inbound.Listener
	creds    *credentials
	clients  *loopback.Clients
	lookup   *registry.Lookup
	auth     *auth.Auth
	backend  *storage.Backend
	apis     *serverstorage.ResourceConfig // which APIs are served
	kubelets *node.Connector
	services *service.Allocator
	scraper  *metrics.Scraper
	issuer   *token.Issuer
	kinds    *kinds.Kinds
	mapper   *mapper
	hooks    *hooks.Hooks
	urls     *serviceurl.Resolver // where webhooks, and whatever else is called from here, are reached
	chain    *chain
	objects  *bootstrap.Objects // what every cluster starts with

	followers []follower // the indexes that authorization reads

	ready chan struct{}
	// prepared is closed when every path is installed.
	prepared chan struct{}
}

// New opens the data, creates missing certificates, and binds the port. The caller must call Run,
// even if only to stop at once, because Run releases all of that.
func New(ctx context.Context, cfg Config) (*Server, error) {
	if errs := cfg.Validate(); len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	listener, err := listen(ctx, &cfg)
	if err != nil {
		return nil, err
	}
	cfg.SecurePort = listener.Addr().(*net.TCPAddr).Port
	s := &Server{cfg: cfg, listener: inbound.Bound(listener), ready: make(chan struct{}), prepared: make(chan struct{})}
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
	if err := s.cfg.setFeatures(klog.FromContext(ctx)); err != nil {
		return err
	}
	s.cfg.warnIgnored(ctx)
	if lost := s.cfg.LostData(); lost != "" {
		klog.FromContext(ctx).Error(nil, lost)
	}
	var err error
	if s.apis, err = s.cfg.apis(); err != nil {
		return err
	}
	s.leaveOut(klog.FromContext(ctx))
	if s.creds, err = loadCredentials(&s.cfg, time.Now()); err != nil {
		return err
	}
	s.clients, s.lookup = loopback.New(s.loopbackAddr(), s.servingCA()), registry.NewLookup()
	if s.auth, err = auth.New(ctx, s.authConfig()); err != nil {
		return err
	}
	if s.backend, err = storage.Open(ctx, s.storageConfig()); err != nil {
		return err
	}
	if err := s.openKinds(ctx); err != nil {
		return err
	}
	s.followers = s.newFollowers()
	s.chain, err = s.install() //nolint:contextcheck // what it starts runs with the server, and ends with the context of its hooks
	return err
}

// close releases what open acquired.
func (s *Server) close() error {
	var errs []error
	if s.chain != nil {
		s.chain.front.Destroy()
	}
	if s.scraper != nil {
		s.scraper.Close()
	}
	if s.kubelets != nil {
		s.kubelets.Close()
	}
	if s.kinds != nil {
		s.kinds.Close()
	}
	if s.backend != nil {
		errs = append(errs, s.backend.Close())
	}
	if s.auth != nil {
		s.auth.Close()
	}
	if err := s.listener.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// id is how this server is named in metrics and leases.
func (s *Server) id() string {
	return genericapiserver.NewConfig(serializer.CodecFactory{}).APIServerID
}

func (s *Server) authConfig() auth.Config {
	return auth.Config{
		ClientCA:      s.creds.clientCA,
		RequestHeader: s.creds.requestHeader,
		Issuers:       s.cfg.ServiceAccountIssuers,
		Audiences:     s.cfg.APIAudiences,
		Keys:          s.creds.serviceAccountKeys,
		Clients:       s.clients,
		Lookup:        s.lookup,
		VolumeHealth:  s.cfg.features().VolumeHealth,

		Authentication: s.cfg.Authentication,
		Authorization:  s.cfg.Authorization,
		ID:             s.id(),
	}
}

func (s *Server) storageConfig() storage.Config {
	return storage.Config{
		Dir:                s.cfg.etcdDir(),
		Peers:              s.peers(),
		Servers:            s.cfg.EtcdServers,
		CertFile:           s.cfg.EtcdCertFile,
		KeyFile:            s.cfg.EtcdKeyFile,
		CAFile:             s.cfg.EtcdCAFile,
		CompactionInterval: s.cfg.EtcdCompactionInterval,
		Encryption:         storage.Encryption{File: s.cfg.EncryptionConfig, Reload: s.cfg.EncryptionReload, ServerID: s.advertised()},
		GarbageCollection:  s.cfg.GarbageCollector,
		DeleteWorkers:      s.cfg.DeleteCollectionWorkers,
	}
}

// openKinds opens the stores of Kubernetes' own kinds, and what they need.
func (s *Server) openKinds(ctx context.Context) error {
	files := node.TLS{CertFile: s.creds.kubeletCert, KeyFile: s.creds.kubeletKey, CAFile: s.creds.kubeletRoot}
	var err error
	order := make([]corev1.NodeAddressType, len(s.cfg.KubeletAddressTypes))
	for i, kind := range s.cfg.KubeletAddressTypes {
		order[i] = corev1.NodeAddressType(kind)
	}
	if s.kubelets, err = node.NewConnector(s.lookup, files, order, s.cfg.KubeletTimeout); err != nil {
		return err
	}
	if s.issuer, err = token.NewIssuer(s.cfg.ServiceAccountIssuers[0], s.creds.serviceAccountKey); err != nil {
		return err
	}
	if s.mapper, err = newMapper(s.clients.Own()); err != nil {
		return err
	}
	s.urls = &serviceurl.Resolver{
		Context: context.WithoutCancel(ctx), Lookup: s.lookup, ByEndpoint: s.cfg.AggregatorRouting,
		Self: url.URL{Scheme: "https", Host: s.clients.Addr()},
	}
	s.services = service.NewAllocator(ctx, s.cfg.ServiceCIDRs, s.cfg.NodePorts, s.backend, s.lookup)
	if s.cfg.MetricsAPI {
		s.scraper = metrics.NewScraper(context.WithoutCancel(ctx), s.kubelets)
	}
	s.kinds, err = kinds.Open(ctx, kinds.Config{
		Auth:    s.auth,
		Backend: s.backend,
		Deps: resources.Deps{
			Lookup:   s.lookup,
			Services: s.services,
			Kubelets: s.kubelets,
			Tokens: &serviceaccount.Token{
				Issuer:     s.issuer,
				Audiences:  s.cfg.APIAudiences,
				MaxSeconds: int64(s.cfg.ServiceAccountMaxExpiration.Seconds()),
				Lookup:     s.lookup,
			},
			Auth:     s.auth,
			Mapper:   s.mapper,
			EventTTL: s.cfg.EventTTL,
			Features: s.cfg.features(),
		},
		Served:     s.apis,
		Audiences:  s.cfg.APIAudiences,
		Components: s.components(),
		Metrics:    s.scraper,
	})
	return err
}

// store returns the storage of a resource in the table.
func (s *Server) store(group, resource string) *registry.Store { return s.kinds.Store(group, resource) }

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
	for _, f := range s.followers {
		background.Go(func() {
			if err := f.run(inner); err != nil {
				log.Error(err, "Failed to watch storage", "resource", f.name)
			}
		})
	}
	background.Go(func() { s.auth.Run(inner) })
	background.Go(func() { pki.Keep(inner, s.creds.authorities...) })
	background.Go(func() {
		if err := s.lookup.Run(inner); err != nil {
			log.Error(err, "Failed to watch storage for admission")
		}
	})
	group.Go(func() error { return s.serve(gctx) })
	group.Go(func() error { return s.hooks.Run(gctx, s.prepared) })
	group.Go(func() error { return s.start(gctx) })
	err := group.Wait()
	stopInner()
	background.Wait()
	return errors.Join(err, s.close())
}

// serve runs the library's server: it stops accepting connections when ctx ends, and returns when
// all requests are drained.
func (s *Server) serve(ctx context.Context) error {
	prepared := s.chain.prepare()
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
	return s.clients.Config(user, groups...)
}

func (s *Server) loopbackAddr() string {
	addr := s.Addr()
	ip := addr.IP
	if ip.IsUnspecified() {
		ip = net.IPv4(127, 0, 0, 1)
	}
	return net.JoinHostPort(ip.String(), strconv.Itoa(addr.Port))
}

// servingCA returns the file with which clients verify the serving certificate: our CA, or the
// certificate itself if one was given.
func (s *Server) servingCA() string { return cmp.Or(s.cfg.TLSCertFile, s.creds.ca.CertFile) }
