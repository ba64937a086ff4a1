package apiserver

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	utilport "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/server/options"
	utilnet "k8s.io/utils/net"

	"wherry.dev/internal/apiserver/admission"
	"wherry.dev/internal/apiserver/auth"
	"wherry.dev/internal/apiserver/registry/componentstatus"
	"wherry.dev/internal/apiserver/registry/service"
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
	// ServiceCIDRs are the ranges of the services' cluster IPs: one, or one of each address family. Services
	// get an address of the first unless they ask for more.
	ServiceCIDRs []*net.IPNet
	// ClusterDomain is the DNS domain in the serving certificate.
	ClusterDomain string
	// ServingNames are additional names and addresses in the serving certificate.
	ServingNames []string

	// PeerName and PeerAddress (host:port, with an address of its own) are how the embedded etcds of other servers know and
	// reach this one's, once there are others (WillHaveMembers). Waiting is told whom a start waits for; it may be nil.
	PeerName, PeerAddress string
	Waiting               func(string)
	// EtcdServers are the URLs of an external etcd; if empty, etcd is embedded.
	EtcdServers                           []string
	EtcdCertFile, EtcdKeyFile, EtcdCAFile string
	// EtcdCompactionInterval is how often old revisions are dropped; 0 means never.
	EtcdCompactionInterval time.Duration
	// EncryptionConfig is a file with an EncryptionConfiguration: how objects are encrypted in etcd.
	// With EncryptionReload, it is read again when it changes.
	EncryptionConfig string
	EncryptionReload bool
	// EventTTL is how long events are kept.
	EventTTL time.Duration

	// Files that replace generated ones.
	ClientCAFile                 string
	TLSCertFile, TLSKeyFile      string
	ServiceAccountKeyFiles       []string
	ServiceAccountSigningKeyFile string
	// ServiceAccountIssuers are accepted in tokens of service accounts. The first one is named in new
	// tokens, and in discovery.
	ServiceAccountIssuers []string
	APIAudiences          []string
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
	// KubeletAddressTypes are those of the addresses at which they are reached, the preferred one first.
	KubeletAddressTypes []string

	// ServiceAccountKeysURI is where the issuer's keys are published (default: here).
	ServiceAccountKeysURI string
	// APIs says which APIs are switched off; what they stored stays.
	APIs options.APIEnablementOptions
	// Required are the resources that somebody in this process needs, besides the server itself.
	Required []Required
	// FeatureGates are those of the API server's libraries, for all of the process, GenericWorkload and CSIVolumeHealth.
	FeatureGates map[string]bool
	// Serving says how connections and requests are served.
	Serving ServingOptions
	// NodePorts is the range that services get their node ports from.
	NodePorts utilport.PortRange
	// Stay is how long pods tolerate a node that is not ready or not reachable, if they do not say.
	Stay admission.TolerationSeconds
	// DeleteCollectionWorkers is how many objects are deleted at a time when all are.
	DeleteCollectionWorkers int

	// Authentication is what clients are recognized by, beside certificates and the tokens of service accounts.
	Authentication auth.Authentication
	// Authorization says who decides what they may do.
	Authorization auth.Authorization
	// RequestTimeout limits requests that are not watches, logs or connections.
	RequestTimeout time.Duration
	// PriorityAndFairness gives each kind of client a share of the server, as FlowSchemas and
	// PriorityLevelConfigurations say.
	PriorityAndFairness bool
	// NodesJoin: nodes join this server by tokens, and may read what their network needs (docs/nodes.md).
	NodesJoin bool
	// LocalStorage: there are nodes that make volumes on their disks; the class for them is made, once.
	LocalStorage bool
	// MaxRequestsInFlight and MaxMutatingRequestsInFlight limit concurrency: together with priority and
	// fairness, each for itself without.
	MaxRequestsInFlight, MaxMutatingRequestsInFlight int
	// Audit says which requests are recorded, and where.
	Audit options.AuditOptions
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
	// Paths are served besides the API, by prefix, to those who may get them (non-resource URLs).
	Paths map[string]http.Handler
	// AggregatorRouting calls services (those of webhooks, for example) at their endpoints, for servers on
	// machines where cluster IPs lead nowhere.
	AggregatorRouting bool
	// RejectForwardingRedirects keeps redirects of aggregated servers from clients.
	RejectForwardingRedirects bool
	// EnableAdmission and DisableAdmission name the admission plugins to run besides those that run by
	// default, and those of the latter to leave out. AdmissionConfigFile is an AdmissionConfiguration.
	EnableAdmission, DisableAdmission []string
	AdmissionConfigFile               string

	// given are the flags, to warn about those that have no effect.
	given *pflag.FlagSet
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
		ServiceCIDRs:           []*net.IPNet{cidr},
		ClusterDomain:          "cluster.local",
		EtcdCompactionInterval: 5 * time.Minute,
		EventTTL:               time.Hour,
		ServiceAccountIssuers:  []string{"https://kubernetes.default.svc.cluster.local"},
		KubeletTimeout:         5 * time.Second,
		KubeletAddressTypes:    []string{"Hostname", "InternalDNS", "InternalIP", "ExternalDNS", "ExternalIP"},
		RequestHeader: options.RequestHeaderAuthenticationOptions{
			UsernameHeaders:     []string{"X-Remote-User"},
			UIDHeaders:          []string{"X-Remote-Uid"},
			GroupHeaders:        []string{"X-Remote-Group"},
			ExtraHeaderPrefixes: []string{"X-Remote-Extra-"},
			AllowedNames:        []string{frontProxyUser},
		},
		APIs:                        *options.NewAPIEnablementOptions(),
		RejectForwardingRedirects:   true,
		Serving:                     ServingOptions{MinRequestTimeout: 1800, StorageTimeout: time.Minute, WatchGracePeriod: shutdownTimeout},
		NodePorts:                   service.DefaultNodePorts,
		Stay:                        admission.TolerationSeconds{NotReady: 300, Unreachable: 300},
		DeleteCollectionWorkers:     4,
		Authentication:              auth.DefaultAuthentication(),
		Authorization:               auth.DefaultAuthorization(),
		RequestTimeout:              time.Minute,
		PriorityAndFairness:         true,
		MaxRequestsInFlight:         400,
		MaxMutatingRequestsInFlight: 200,
		Audit:                       *options.NewAuditOptions(),
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
	c.validateServiceCIDRs(bad)
	for _, server := range c.EtcdServers {
		u, err := url.Parse(server)
		bad(err != nil || !slices.Contains([]string{"http", "https", "unix", "unixs"}, u.Scheme), "--etcd-servers %s is not a URL such as https://10.0.0.1:2379", server)
	}
	for flag, files := range map[string][]string{
		"--client-ca-file": {c.ClientCAFile}, "--requestheader-client-ca-file": {c.RequestHeader.ClientCAFile},
		"--proxy-client-cert-file": {c.ProxyClientCert}, "--proxy-client-key-file": {c.ProxyClientKey},
		"--tls-cert-file": {c.TLSCertFile}, "--tls-private-key-file": {c.TLSKeyFile},
		"--encryption-provider-config": {c.EncryptionConfig},
		"--etcd-cafile":                {c.EtcdCAFile}, "--etcd-certfile": {c.EtcdCertFile}, "--etcd-keyfile": {c.EtcdKeyFile},
		"--kubelet-certificate-authority": {c.KubeletCAFile}, "--kubelet-client-certificate": {c.KubeletClientCert}, "--kubelet-client-key": {c.KubeletClientKey},
		"--audit-policy-file": {c.Audit.PolicyFile}, "--audit-webhook-config-file": {c.Audit.WebhookOptions.ConfigFile},
		"--service-account-signing-key-file": {c.ServiceAccountSigningKeyFile}, "--service-account-key-file": c.ServiceAccountKeyFiles,
	} {
		for _, file := range files {
			err := safepath.CheckFile(file)
			bad(err != nil, "%s: %w", flag, err)
		}
	}
	bad((c.TLSCertFile == "") != (c.TLSKeyFile == ""), "--tls-cert-file and --tls-private-key-file must be set together")
	bad((c.ProxyClientCert == "") != (c.ProxyClientKey == ""), "--proxy-client-cert-file and --proxy-client-key-file must be set together")
	bad(c.EncryptionReload && c.EncryptionConfig == "", "--encryption-provider-config-automatic-reload must be set with --encryption-provider-config")
	bad((c.EtcdCertFile == "") != (c.EtcdKeyFile == ""), "--etcd-certfile and --etcd-keyfile must be set together")
	bad((c.KubeletClientCert == "") != (c.KubeletClientKey == ""), "--kubelet-client-certificate and --kubelet-client-key must be set together")
	bad(len(c.KubeletAddressTypes) == 0, "--kubelet-preferred-address-types must name at least one type")
	for _, kind := range c.KubeletAddressTypes {
		types := DefaultConfig().KubeletAddressTypes
		bad(!slices.Contains(types, kind), "--kubelet-preferred-address-types: %q is not one of %s", kind, strings.Join(types, ", "))
	}
	errs = append(errs, c.RequestHeader.Validate()...)
	errs = append(errs, c.admissionPlugins().Validate()...)
	errs = append(errs, c.Audit.Validate()...)
	errs = append(errs, c.Serving.Validate()...)
	errs = append(errs, c.refused()...)
	errs = append(errs, c.missingAPIs()...)
	bad(c.NodePorts.Base < 1 || c.NodePorts.Size < 1, "--service-node-port-range %s must have at least one port", c.NodePorts)
	bad(c.Stay.NotReady < 0 || c.Stay.Unreachable < 0, "--default-not-ready-toleration-seconds and --default-unreachable-toleration-seconds must not be negative")
	bad(c.DeleteCollectionWorkers < 1, "--delete-collection-workers must be greater than 0")
	if c.ServiceAccountKeysURI != "" {
		u, err := url.Parse(c.ServiceAccountKeysURI)
		bad(err != nil || u.Scheme != "https", "--service-account-jwks-uri %s must be a URL with the scheme https", c.ServiceAccountKeysURI)
	}
	errs = append(errs, c.Authentication.Validate()...)
	errs = append(errs, c.Authorization.Validate()...)
	errs = append(errs, c.badIssuers()...)
	bad(c.EventTTL <= 0, "--event-ttl must be positive")
	bad(c.RequestTimeout <= 0, "--request-timeout must be positive")
	bad(c.MaxRequestsInFlight < 0 || c.MaxMutatingRequestsInFlight < 0, "--max-requests-inflight and --max-mutating-requests-inflight must not be negative")
	bad(c.PriorityAndFairness && c.MaxRequestsInFlight+c.MaxMutatingRequestsInFlight == 0,
		"--max-requests-inflight and --max-mutating-requests-inflight must add up to something positive, or --enable-priority-and-fairness be false")
	return errs
}

// badIssuers returns what is wrong with the issuers of service account tokens.
func (c *Config) badIssuers() []error {
	if len(c.ServiceAccountIssuers) == 0 {
		return []error{errors.New("--service-account-issuer is required")}
	}
	var errs []error
	for i, issuer := range c.ServiceAccountIssuers {
		_, err := url.Parse(issuer)
		switch {
		case issuer == "":
			errs = append(errs, errors.New("--service-account-issuer must not be empty"))
		case strings.Contains(issuer, ":") && err != nil:
			errs = append(errs, fmt.Errorf("--service-account-issuer %q has a colon, but is not a URL: %w", issuer, err))
		case slices.Contains(c.ServiceAccountIssuers[:i], issuer):
			errs = append(errs, fmt.Errorf("--service-account-issuer %q is given twice", issuer))
		}
	}
	return errs
}

// complete derives what was left unset; the listener's port is known by then.
func (c *Config) complete() error {
	if c.AdvertiseAddress == nil && c.BindAddress != nil {
		ip, err := advertiseAddress(c.BindAddress)
		if err != nil {
			return err
		}
		c.AdvertiseAddress = ip
	}
	if errs := c.Validate(); len(errs) > 0 {
		return errors.Join(errs...)
	}
	if c.CertDir == "" {
		c.CertDir = filepath.Join(c.DataDir, "pki")
	}
	if len(c.APIAudiences) == 0 {
		c.APIAudiences = slices.Clone(c.ServiceAccountIssuers)
	}
	return nil
}

func (c *Config) validateServiceCIDRs(bad func(bool, string, ...any)) {
	const flag = "--service-cluster-ip-range"
	bad(len(c.ServiceCIDRs) == 0, flag+" is required")
	bad(len(c.ServiceCIDRs) > 2, flag+" must not contain more than two entries")
	for _, n := range c.ServiceCIDRs {
		ones, bits := n.Mask.Size()
		bad(bits-ones < 3, flag+" %s is too small: it must have at least 8 addresses", n)
	}
	if len(c.ServiceCIDRs) == 2 {
		bad(utilnet.IsIPv6CIDR(c.ServiceCIDRs[0]) == utilnet.IsIPv6CIDR(c.ServiceCIDRs[1]),
			flag+" %s,%s: two ranges must be one of IPv4 and one of IPv6", c.ServiceCIDRs[0], c.ServiceCIDRs[1])
	}
	if len(c.ServiceCIDRs) > 0 && c.AdvertiseAddress != nil {
		bad(utilnet.IsIPv6CIDR(c.ServiceCIDRs[0]) != utilnet.IsIPv6(c.AdvertiseAddress),
			flag+" %s must be of the address family of --advertise-address %s, because the service kubernetes leads there: "+
				"choose another range, or put the one of that family first", c.ServiceCIDRs[0], c.AdvertiseAddress)
	}
}
