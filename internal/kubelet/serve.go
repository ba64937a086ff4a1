package kubelet

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"path/filepath"
	goruntime "runtime"
	"strconv"

	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	cliflag "k8s.io/component-base/cli/flag"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"
	"k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	"k8s.io/utils/ptr"

	"wherry.dev/internal/inbound"
	"wherry.dev/internal/kubelet/certificates"
	"wherry.dev/internal/kubelet/gauges"
	"wherry.dev/internal/kubelet/server"
	"wherry.dev/internal/pki"
)

// listen opens the ports before anything else, so that a port in use is reported at once.
func (k *Kubelet) listen() error {
	open := func(to *net.Listener, what, flag, address string, port int32) error {
		l, err := net.Listen("tcp", net.JoinHostPort(address, strconv.Itoa(int(port))))
		if err != nil {
			return fmt.Errorf("cannot listen on the port of the kubelet's %s: %w; choose another one with %s", what, err, flag)
		}
		*to = l
		return nil
	}
	if ptr.Deref(k.cfg.EnableServer, true) {
		if err := open(&k.listener, "server", "--port", k.cfg.Address, k.cfg.Port); err != nil {
			return err
		}
	}
	if p := k.cfg.ReadOnlyPort; p != 0 {
		if err := open(&k.readOnly, "read-only server", "--read-only-port, or 0", k.cfg.Address, p); err != nil {
			return err
		}
	}
	if p := ptr.Deref(k.cfg.HealthzPort, 0); p != 0 {
		return open(&k.healthz, "health check", "--healthz-port, or 0", k.cfg.HealthzBindAddress, p)
	}
	return nil
}

func (k *Kubelet) closeListeners() {
	for _, l := range []net.Listener{k.listener, k.readOnly, k.healthz} {
		if l != nil {
			_ = l.Close() // already closed if it was served
		}
	}
}

// port returns the port that the server listens on.
func (k *Kubelet) port() int32 {
	if k.listener != nil {
		if a, ok := k.listener.Addr().(*net.TCPAddr); ok {
			return int32(a.Port)
		}
	}
	return k.cfg.Port
}

// serve starts the servers.
func (k *Kubelet) serve(ctx context.Context, g *errgroup.Group) error {
	if k.listener == nil && k.healthz == nil && k.readOnly == nil {
		return nil
	}
	cfg, err := k.serverConfig(ctx, g)
	if err != nil {
		return err
	}
	cfg.Stats.DriverUsage = k.driverUsage(ctx)
	srv := server.New(cfg, k.table, k.deps.Runtime)
	for _, s := range []struct {
		l     net.Listener
		serve func(context.Context, net.Listener) error
	}{{k.listener, srv.Serve}, {k.readOnly, srv.ServeReadOnly}, {k.healthz, srv.ServeHealthz}} {
		if s.l != nil {
			g.Go(func() error { return s.serve(ctx, s.l) })
		}
	}
	return nil
}

// checkpoints returns the directory of container archives.
func (k *Kubelet) checkpoints() string { return filepath.Join(k.cfg.RootDir, "checkpoints") }

func (k *Kubelet) serverConfig(ctx context.Context, g *errgroup.Group) (server.Config, error) {
	a, z := k.cfg.Authentication, k.cfg.Authorization
	auth, err := server.NewAuth(server.AuthConfig{
		Client: k.deps.Client, NodeName: k.cfg.NodeName, ClientCAFile: a.X509.ClientCAFile,
		Anonymous: ptr.Deref(a.Anonymous.Enabled, false), Tokens: ptr.Deref(a.Webhook.Enabled, true),
		AllowAll: z.Mode == kubeletconfig.KubeletAuthorizationModeAlwaysAllow,
		TokenTTL: a.Webhook.CacheTTL.Duration, AllowTTL: z.Webhook.CacheAuthorizedTTL.Duration, DenyTTL: z.Webhook.CacheUnauthorizedTTL.Duration,
	})
	if err != nil {
		return server.Config{}, err
	}
	stats := &server.Stats{
		Runtime: k.deps.Runtime, Images: k.deps.Images, Pods: k.table, NodeName: k.cfg.NodeName, RootDir: k.cfg.RootDir,
		PodLogs: k.cfg.PodLogsDir, VolumeAge: k.cfg.VolumeStatsAggPeriod.Duration, Machine: k.node.Node().Status.NodeInfo,
	}
	if k.deps.Cgroups != nil {
		stats.PodsCgroup, stats.PodCgroup = k.layout.QOS(v1.PodQOSGuaranteed), k.layout.Pod
	}
	cfg := server.Config{
		Auth: auth, PodLogs: k.cfg.PodLogsDir, Checkpoints: k.checkpoints(), LogQuery: ptr.Deref(k.cfg.EnableSystemLogQuery, false), Configz: k.cfg.KubeletConfiguration,
		Debugging: ptr.Deref(k.cfg.EnableDebuggingHandlers, true), Profiling: ptr.Deref(k.cfg.EnableProfilingHandler, true),
		DebugFlags: ptr.Deref(k.cfg.EnableDebugFlagsHandler, true), Flags: k.cfg.Flags,
		Trace: k.deps.Trace, Volumes: k.deps.Volumes,
		Healthy: k.Healthy, Refresh: k.gauges(stats.Claims).Refresh, Stats: stats,
	}
	if ptr.Deref(k.cfg.EnableSystemLogHandler, true) {
		cfg.SystemLogs = "/var/log"
	}
	if k.cfg.EnableContentionProfiling {
		goruntime.SetBlockProfileRate(1)
	}
	if cfg.MinVersion, err = cliflag.TLSVersion(k.cfg.TLSMinVersion); err != nil {
		return cfg, err
	}
	if cfg.CipherSuites, err = cliflag.TLSCipherSuites(k.cfg.TLSCipherSuites); err != nil {
		return cfg, err
	}
	if len(cfg.CipherSuites) == 0 {
		cfg.CipherSuites = inbound.CipherSuites()
	}
	if cfg.Curves, err = cliflag.TLSCurvePreferences(k.cfg.TLSCurvePreferences); err != nil {
		return cfg, err
	}
	if k.listener != nil {
		cfg.Certificate, err = k.certificate(ctx, g)
	}
	return cfg, err
}

// gauges returns what works out the metrics that need a look at the node.
func (k *Kubelet) gauges(claims func() []v1alpha1.VolumeStats) *gauges.Gauges {
	return &gauges.Gauges{NodeName: k.cfg.NodeName, Pods: k.table.List, Identity: k.identity, Serving: k.serving, Claims: claims}
}

// certificate returns the source of the serving certificate: one signed by the API server, the
// configured files, read again when they change, or one that we create ourselves.
func (k *Kubelet) certificate(ctx context.Context, g *errgroup.Group) (func() (*tls.Certificate, error), error) {
	if k.serving != nil {
		return k.serving.Current, nil
	}
	certFile, keyFile := k.cfg.TLSCertFile, k.cfg.TLSPrivateKeyFile
	if certFile == "" || keyFile == "" {
		var ca *pki.CA
		var err error
		if ca, certFile, keyFile, err = certificates.SelfSigned(k.cfg.CertDir, k.cfg.NodeName, k.hostIPs); err != nil {
			return nil, fmt.Errorf("serving certificate: %w", err)
		}
		g.Go(func() error {
			pki.Keep(ctx, ca)
			return nil
		})
	}
	files, err := pki.OpenFiles(certFile, keyFile)
	if err != nil {
		return nil, fmt.Errorf("serving certificate: %w", err)
	}
	return files.Current, nil
}

// rotateCertificates renews the certificates that the API server signs.
func (k *Kubelet) rotateCertificates(ctx context.Context, g *errgroup.Group) error {
	if k.deps.Client == nil {
		return nil
	}
	if err := os.MkdirAll(k.cfg.CertDir, 0o750); err != nil {
		return err
	}
	if k.cfg.RotateCertificates && k.cfg.HangUp != nil {
		m, err := certificates.NewClient(ctx, k.deps.Client, certificates.Client{
			NodeName: k.cfg.NodeName, Dir: k.cfg.CertDir, HangUp: k.cfg.HangUp, Bootstraps: k.cfg.BootstrapKubeconfig != "",
		})
		if err != nil {
			return err
		}
		k.identity = m
		g.Go(func() error { return m.Run(ctx) })
	}
	if k.cfg.ServerTLSBootstrap {
		s := certificates.Serving{
			NodeName: k.cfg.NodeName, DNSNames: []string{k.cfg.NodeName}, Dir: k.cfg.CertDir,
			CertFile: k.cfg.TLSCertFile, KeyFile: k.cfg.TLSPrivateKeyFile,
		}
		for _, ip := range k.hostIPs {
			s.IPs = append(s.IPs, net.ParseIP(ip))
		}
		if k.cfg.CloudProvider == "external" {
			s.Addresses = func() []v1.NodeAddress { return k.node.Node().Status.Addresses }
		}
		m, err := certificates.NewServer(ctx, k.deps.Client, s)
		if err != nil {
			return err
		}
		k.serving = m
		g.Go(func() error { return m.Run(ctx) })
	}
	return nil
}
