package apiserver

import (
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/spf13/pflag"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/apiserver/pkg/server/flagz"
	"k8s.io/apiserver/pkg/server/options"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/component-base/compatibility"

	"wherry.dev/internal/inbound"
	"wherry.dev/internal/safepath"
)

// ServingOptions say how connections and requests are served, with kube-apiserver's flags.
type ServingOptions struct {
	// ExternalHostname is the host name in addresses that are told to clients.
	ExternalHostname string
	// MinRequestTimeout is the shortest time, in seconds, that a watch may last; it ends at random
	// before twice that.
	MinRequestTimeout int
	// GoawayChance is the share of HTTP/2 requests after which the client is told to connect anew.
	GoawayChance float64
	// ShutdownDelay is how long a server that was told to stop goes on as before, but not ready.
	ShutdownDelay time.Duration
	// ShutdownSendRetryAfter answers requests that come while the last ones end with 429, instead of
	// refusing connections.
	ShutdownSendRetryAfter bool
	// HSTSDirectives are those of the header Strict-Transport-Security; CORSOrigins are regular
	// expressions of the web sites that may ask.
	HSTSDirectives, CORSOrigins []string

	// TLSCipherSuites and TLSMinVersion are names as Go has them; empty means those of inbound.CipherSuites,
	// and TLS 1.2.
	TLSCipherSuites []string
	TLSMinVersion   string
	// SNICertKeys are certificates for some names.
	SNICertKeys []cliflag.NamedCertKey

	// DisableHTTP2 serves HTTP/1.1 alone; MaxStreams is how many requests one connection may have at a time, 0 for
	// the library's number.
	DisableHTTP2 bool
	MaxStreams   int
	// CurvePreferences are the key exchanges of TLS, by number; empty means Go's.
	CurvePreferences []int32
	// SharePort lets other servers bind the same address and port.
	SharePort bool

	// LivezGracePeriod is how long the start may take before /livez fails for it; StorageTimeout is how long readiness
	// waits for the watch caches. WatchGracePeriod is how long watches have to end when the server stops.
	LivezGracePeriod, StorageTimeout, WatchGracePeriod time.Duration
	// DebugSocket is the path of a socket that serves profiles without asking who wants them.
	DebugSocket string
	// ContentionProfiling records who waits for locks.
	ContentionProfiling bool

	// Tracing exports spans to a collector.
	Tracing options.TracingOptions
}

// AddFlags binds the options to flags.
func (o *ServingOptions) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.ExternalHostname, "external-hostname", o.ExternalHostname, "The host name in addresses that are told to clients, as that of the service account issuer's keys.")
	fs.IntVar(&o.MinRequestTimeout, "min-request-timeout", o.MinRequestTimeout, "The shortest time of a watch, in seconds; it ends at random before twice that.")
	fs.Float64Var(&o.GoawayChance, "goaway-chance", o.GoawayChance, "How often an HTTP/2 client is told to connect anew, so that it may find another server: from 0 (never) to 0.02. Leave it at 0 if there is one server, or no load balancer.")
	fs.DurationVar(&o.ShutdownDelay, "shutdown-delay-duration", o.ShutdownDelay, "How long requests are served as before after the server was told to stop. /readyz fails from the beginning, so that load balancers look elsewhere.")
	fs.BoolVar(&o.ShutdownSendRetryAfter, "shutdown-send-retry-after", o.ShutdownSendRetryAfter, "While the last requests end, answer new ones with 429 and Retry-After, and close their connections.")
	fs.StringSliceVar(&o.HSTSDirectives, "strict-transport-security-directives", o.HSTSDirectives, "Directives of HSTS, such as max-age=31536000,includeSubDomains,preload; without any, there is no such header.")
	fs.StringSliceVar(&o.CORSOrigins, "cors-allowed-origins", o.CORSOrigins, "Regular expressions of the origins that may ask across sites, such as //example.com(:|$); each must pin the start and the end of the host.")
	fs.StringSliceVar(&o.TLSCipherSuites, "tls-cipher-suites", o.TLSCipherSuites, "Cipher suites of TLS 1.2 (default: those with forward secrecy and authenticated encryption).")
	fs.StringVar(&o.TLSMinVersion, "tls-min-version", o.TLSMinVersion, "The lowest version of TLS: VersionTLS12 (default) or VersionTLS13.")
	fs.Var(cliflag.NewNamedCertKeyArray(&o.SNICertKeys), "tls-sni-cert-key", "Files of a certificate and its key, and the names that it is for (default: those in it): foo.crt,foo.key:*.foo.com,foo.com. Can be given several times.")
	fs.BoolVar(&o.DisableHTTP2, "disable-http2-serving", o.DisableHTTP2, "Serve HTTP/1.1 alone.")
	fs.IntVar(&o.MaxStreams, "http2-max-streams-per-connection", o.MaxStreams, "How many requests an HTTP/2 connection may have at a time; 0 is the library's number.")
	fs.Int32SliceVar(&o.CurvePreferences, "tls-curve-preferences", o.CurvePreferences, "Key exchanges of TLS that are allowed, as the numbers of Go's tls.CurveID, separated by commas (default: Go's).")
	fs.BoolVar(&o.SharePort, "permit-port-sharing", o.SharePort, "Bind the port with SO_REUSEPORT, so that several servers can.")
	fs.DurationVar(&o.LivezGracePeriod, "livez-grace-period", o.LivezGracePeriod, "How long the start may take before /livez fails for it.")
	fs.DurationVar(&o.StorageTimeout, "storage-initialization-timeout", o.StorageTimeout, "How long readiness waits for the watch caches at most.")
	fs.DurationVar(&o.WatchGracePeriod, "shutdown-watch-termination-grace-period", o.WatchGracePeriod, "How long watches have to end when the server stops.")
	fs.StringVar(&o.DebugSocket, "debug-socket-path", o.DebugSocket, "A unix socket that serves profiles to whoever can open it, without asking who that is.")
	fs.BoolVar(&o.ContentionProfiling, "contention-profiling", o.ContentionProfiling, "Record who waits for locks, if --profiling.")
	o.Tracing.AddFlags(fs)
}

// Validate returns everything that is wrong.
func (o *ServingOptions) Validate() []error {
	upstream := options.NewServerRunOptionsForComponent("", compatibility.NewComponentGlobalsRegistry())
	upstream.MinRequestTimeout, upstream.GoawayChance, upstream.ShutdownDelayDuration = o.MinRequestTimeout, o.GoawayChance, o.ShutdownDelay
	upstream.HSTSDirectives, upstream.CorsAllowedOriginList = o.HSTSDirectives, o.CORSOrigins
	upstream.LivezGracePeriod, upstream.StorageInitializationTimeout = o.LivezGracePeriod, o.StorageTimeout
	upstream.ShutdownWatchTerminationGracePeriod = o.WatchGracePeriod
	errs := append(upstream.Validate(), o.Tracing.Validate()...)
	if _, err := cliflag.TLSCipherSuites(o.TLSCipherSuites); err != nil {
		errs = append(errs, fmt.Errorf("--tls-cipher-suites: %w", err))
	}
	if _, err := cliflag.TLSVersion(o.TLSMinVersion); err != nil {
		errs = append(errs, fmt.Errorf("--tls-min-version: %w", err))
	}
	if _, err := cliflag.TLSCurvePreferences(o.CurvePreferences); err != nil {
		errs = append(errs, fmt.Errorf("--tls-curve-preferences: %w", err))
	}
	if o.MaxStreams < 0 {
		errs = append(errs, fmt.Errorf("--http2-max-streams-per-connection %d is negative", o.MaxStreams))
	}
	for _, pair := range o.SNICertKeys {
		for _, file := range []string{pair.CertFile, pair.KeyFile} {
			if err := safepath.CheckFile(file); err != nil {
				errs = append(errs, fmt.Errorf("--tls-sni-cert-key: %w", err))
			}
		}
	}
	return errs
}

// applyTo configures a server that has its certificate already.
func (o *ServingOptions) applyTo(cfg *genericapiserver.Config) error {
	if o.ExternalHostname != "" {
		cfg.ExternalAddress = o.ExternalHostname
	}
	cfg.MinRequestTimeout = o.MinRequestTimeout
	cfg.GoawayChance = o.GoawayChance
	cfg.ShutdownDelayDuration = o.ShutdownDelay
	cfg.ShutdownSendRetryAfter = o.ShutdownSendRetryAfter
	cfg.HSTSDirectives, cfg.CorsAllowedOriginList = o.HSTSDirectives, o.CORSOrigins
	cfg.LivezGracePeriod, cfg.StorageInitializationTimeout, cfg.ShutdownWatchTerminationGracePeriod = o.LivezGracePeriod, o.StorageTimeout, o.WatchGracePeriod
	cfg.DebugSocketPath, cfg.EnableContentionProfiling = o.DebugSocket, o.ContentionProfiling
	cfg.SecureServing.DisableHTTP2, cfg.SecureServing.HTTP2MaxStreamsPerConnection = o.DisableHTTP2, o.MaxStreams
	var err error
	if cfg.SecureServing.CurvePreferences, err = cliflag.TLSCurvePreferences(o.CurvePreferences); err != nil {
		return fmt.Errorf("--tls-curve-preferences: %w", err)
	}
	cfg.SecureServing.CipherSuites = inbound.CipherSuites()
	if len(o.TLSCipherSuites) > 0 {
		if cfg.SecureServing.CipherSuites, err = cliflag.TLSCipherSuites(o.TLSCipherSuites); err != nil {
			return fmt.Errorf("--tls-cipher-suites: %w", err)
		}
	}
	if cfg.SecureServing.MinTLSVersion, err = cliflag.TLSVersion(o.TLSMinVersion); err != nil {
		return fmt.Errorf("--tls-min-version: %w", err)
	}
	for _, pair := range o.SNICertKeys {
		cert, err := dynamiccertificates.NewDynamicSNIContentFromFiles("sni-serving-cert", pair.CertFile, pair.KeyFile, pair.Names...)
		if err != nil {
			return fmt.Errorf("--tls-sni-cert-key: %w", err)
		}
		cfg.SecureServing.SNICerts = append(cfg.SecureServing.SNICerts, cert)
	}
	if err := o.Tracing.ApplyTo(nil, cfg); err != nil {
		return fmt.Errorf("--tracing-config-file: %w", err)
	}
	return nil
}

// flags returns what /flagz shows: every flag and its value.
func (c *Config) flags() flagz.Reader {
	if c.given == nil {
		return nil
	}
	return flagz.NamedFlagSetsReader{FlagSets: cliflag.NamedFlagSets{FlagSets: map[string]*pflag.FlagSet{"wherry": c.given}}}
}

// keysURI returns where the keys are that sign the tokens of service accounts.
func (s *Server) keysURI(path string) string {
	if s.cfg.ServiceAccountKeysURI != "" {
		return s.cfg.ServiceAccountKeysURI
	}
	host := s.advertised()
	if name := s.cfg.Serving.ExternalHostname; name != "" {
		host = name
		if _, _, err := net.SplitHostPort(name); err != nil {
			host = net.JoinHostPort(name, strconv.Itoa(s.cfg.SecurePort))
		}
	}
	return "https://" + host + path
}
