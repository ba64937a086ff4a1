package apiserver

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apiserver/pkg/server/options"

	"wherry.dev/internal/apiserver/auth"
	"wherry.dev/internal/apiserver/registry/componentstatus"
	"wherry.dev/internal/safepath"
)

// Config configures an API server. DefaultConfig fills in what most users leave alone; AddFlags
// binds the fields to kube-apiserver's flags.
type Config struct {
	// DataDir holds the embedded etcd's data, in its subfolder etcd.
	DataDir string
	// CertDir holds the certificates and keys; missing ones are created at start.
	CertDir string

	// BindAddress and SecurePort are where HTTPS is served. Port 0 takes a free one.
	BindAddress net.IP
	SecurePort  int
	// AdvertiseAddress is where others reach this server: the endpoint of the service
	// default/kubernetes. If nil, it is the bind address, or else the host's own address.
	AdvertiseAddress net.IP
	// ServiceCIDR is the range of the services' cluster IPs.
	ServiceCIDR *net.IPNet
	// ClusterDomain is the DNS domain in the serving certificate.
	ClusterDomain string
	// ServingNames are additional names and addresses in the serving certificate.
	ServingNames []string

	// EtcdServers are the URLs of an external etcd; if empty, etcd is embedded.
	EtcdServers                           []string
	EtcdCertFile, EtcdKeyFile, EtcdCAFile string
	// EtcdCompactionInterval is how often old revisions are dropped; 0 means never.
	EtcdCompactionInterval time.Duration
	// EventTTL is how long events are kept.
	EventTTL time.Duration

	// Files that replace generated ones.
	ClientCAFile                 string
	TLSCertFile, TLSKeyFile      string
	ServiceAccountKeyFiles       []string
	ServiceAccountSigningKeyFile string
	ServiceAccountIssuer         string
	APIAudiences                 []string
	// ServiceAccountMaxExpiration limits the lifetime that tokens may ask for; 0 means no limit.
	ServiceAccountMaxExpiration time.Duration

	// RequestHeader selects the proxies (aggregators) that are trusted to name a request's user in
	// its headers: those with a certificate of ClientCAFile, or of our own front-proxy CA if it is
	// empty.
	RequestHeader options.RequestHeaderAuthenticationOptions

	// ProxyClientCert and ProxyClientKey are how this server proves to aggregated API servers that it
	// names the users of requests; issued by our own front-proxy CA if both that and they are empty.
	ProxyClientCert, ProxyClientKey string

	// How the kubelets of nodes are reached; generated and issued if empty.
	KubeletClientCert, KubeletClientKey, KubeletCAFile string
	KubeletTimeout                                     time.Duration

	// Authentication is what clients are recognized by, beside certificates and the tokens of service accounts.
	Authentication auth.Authentication
	// Authorization says who decides what they may do.
	Authorization auth.Authorization
	// RequestTimeout limits requests that are not watches, logs or connections.
	RequestTimeout time.Duration
	// MaxRequestsInFlight and MaxMutatingRequestsInFlight limit concurrency.
	MaxRequestsInFlight, MaxMutatingRequestsInFlight int
	// Profiling serves /debug/pprof to users who are allowed to see it.
	Profiling bool
	// GarbageCollector says that a garbage collector runs: deletions in the foreground, and those
	// that orphan dependents, wait for it. Without it, an object is gone at once.
	GarbageCollector bool
	// Components are the health checks of the scheduler and the controllers. If nil, they are looked
	// for at their ports on this machine.
	Components map[string]componentstatus.Check
	// MetricsAPI serves metrics.k8s.io from the kubelets' own metrics. Without it the group is free for
	// somebody else.
	MetricsAPI bool
	// DisableAdmission names the admission plugins to leave out.
	DisableAdmission []string

	// ignored collects the given flags that have no effect here, to warn about them.
	ignored *pflag.FlagSet
}

// DefaultConfig returns upstream's defaults.
func DefaultConfig() Config {
	_, cidr, err := net.ParseCIDR("10.96.0.0/12")
	if err != nil {
		panic(err) // impossible: the string is a constant
	}
	return Config{
		DataDir:                "/var/lib/wherry",
		BindAddress:            net.IPv4zero,
		SecurePort:             6443,
		ServiceCIDR:            cidr,
		ClusterDomain:          "cluster.local",
		EtcdCompactionInterval: 5 * time.Minute,
		EventTTL:               time.Hour,
		ServiceAccountIssuer:   "https://kubernetes.default.svc.cluster.local",
		KubeletTimeout:         5 * time.Second,
		RequestHeader: options.RequestHeaderAuthenticationOptions{
			UsernameHeaders:     []string{"X-Remote-User"},
			UIDHeaders:          []string{"X-Remote-Uid"},
			GroupHeaders:        []string{"X-Remote-Group"},
			ExtraHeaderPrefixes: []string{"X-Remote-Extra-"},
			AllowedNames:        []string{frontProxyUser},
		},
		Authentication:              auth.DefaultAuthentication(),
		Authorization:               auth.DefaultAuthorization(),
		RequestTimeout:              time.Minute,
		MaxRequestsInFlight:         400,
		MaxMutatingRequestsInFlight: 200,
		Profiling:                   true,
		MetricsAPI:                  true,
	}
}

// Validate returns everything that is wrong. Each error names the flag to correct.
func (c *Config) Validate() []error {
	var errs []error
	bad := func(cond bool, msg string, args ...any) {
		if cond {
			errs = append(errs, fmt.Errorf(msg, args...))
		}
	}
	bad(c.DataDir == "" && len(c.EtcdServers) == 0, "--data-dir is required without --etcd-servers")
	bad(c.CertDir == "" && c.DataDir == "", "--cert-dir is required")
	bad(c.SecurePort < 0 || c.SecurePort > 65535, "--secure-port %d must be between 0 and 65535", c.SecurePort)
	bad(c.BindAddress == nil, "--bind-address is required")
	bad(c.AdvertiseAddress != nil && c.AdvertiseAddress.IsUnspecified(), "--advertise-address %s must be an address that others can reach", c.AdvertiseAddress)
	bad(c.ServiceCIDR == nil, "--service-cluster-ip-range is required")
	if c.ServiceCIDR != nil {
		ones, bits := c.ServiceCIDR.Mask.Size()
		bad(bits-ones < 3, "--service-cluster-ip-range %s is too small: it must have at least 8 addresses", c.ServiceCIDR)
	}
	for _, server := range c.EtcdServers {
		u, err := url.Parse(server)
		bad(err != nil || !slices.Contains([]string{"http", "https", "unix", "unixs"}, u.Scheme), "--etcd-servers %s is not a URL such as https://10.0.0.1:2379", server)
	}
	for flag, files := range map[string][]string{
		"--client-ca-file": {c.ClientCAFile}, "--requestheader-client-ca-file": {c.RequestHeader.ClientCAFile},
		"--proxy-client-cert-file": {c.ProxyClientCert}, "--proxy-client-key-file": {c.ProxyClientKey},
		"--tls-cert-file": {c.TLSCertFile}, "--tls-private-key-file": {c.TLSKeyFile},
		"--etcd-cafile": {c.EtcdCAFile}, "--etcd-certfile": {c.EtcdCertFile}, "--etcd-keyfile": {c.EtcdKeyFile},
		"--kubelet-certificate-authority": {c.KubeletCAFile}, "--kubelet-client-certificate": {c.KubeletClientCert}, "--kubelet-client-key": {c.KubeletClientKey},
		"--service-account-signing-key-file": {c.ServiceAccountSigningKeyFile}, "--service-account-key-file": c.ServiceAccountKeyFiles,
	} {
		for _, file := range files {
			err := safepath.CheckFile(file)
			bad(err != nil, "%s: %w", flag, err)
		}
	}
	bad((c.TLSCertFile == "") != (c.TLSKeyFile == ""), "--tls-cert-file and --tls-private-key-file must be set together")
	bad((c.ProxyClientCert == "") != (c.ProxyClientKey == ""), "--proxy-client-cert-file and --proxy-client-key-file must be set together")
	bad((c.EtcdCertFile == "") != (c.EtcdKeyFile == ""), "--etcd-certfile and --etcd-keyfile must be set together")
	bad((c.KubeletClientCert == "") != (c.KubeletClientKey == ""), "--kubelet-client-certificate and --kubelet-client-key must be set together")
	errs = append(errs, c.RequestHeader.Validate()...)
	errs = append(errs, c.Authentication.Validate()...)
	errs = append(errs, c.Authorization.Validate()...)
	bad(c.ServiceAccountIssuer == "", "--service-account-issuer is required")
	bad(c.EventTTL <= 0, "--event-ttl must be positive")
	bad(c.RequestTimeout <= 0, "--request-timeout must be positive")
	bad(c.MaxRequestsInFlight < 0 || c.MaxMutatingRequestsInFlight < 0, "--max-requests-inflight and --max-mutating-requests-inflight must not be negative")
	return errs
}

// complete derives what was left unset; the listener's port is known by then.
func (c *Config) complete() error {
	if errs := c.Validate(); len(errs) > 0 {
		return errors.Join(errs...)
	}
	if c.CertDir == "" {
		c.CertDir = filepath.Join(c.DataDir, "pki")
	}
	if c.AdvertiseAddress == nil {
		ip, err := advertiseAddress(c.BindAddress)
		if err != nil {
			return err
		}
		c.AdvertiseAddress = ip
	}
	if len(c.APIAudiences) == 0 {
		c.APIAudiences = []string{c.ServiceAccountIssuer}
	}
	return nil
}
