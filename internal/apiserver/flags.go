package apiserver

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"strings"

	"github.com/go-logr/logr"
	"github.com/spf13/pflag"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/component-base/featuregate"
	"k8s.io/klog/v2"

	"wherry.dev/internal/api/gated"
	"wherry.dev/internal/apiserver/admission"
	"wherry.dev/internal/component"
)

// AddFlags binds the configuration to flags; c's values are the defaults. The names are
// kube-apiserver's. Those of its flags that have no effect here are accepted too.
func (c *Config) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&c.DataDir, "data-dir", c.DataDir, "Folder of the embedded etcd's data and of generated certificates.")
	fs.StringVar(&c.CertDir, "cert-dir", c.CertDir, "Folder of certificates and keys; missing ones are made (default: pki in --data-dir).")
	fs.IPVar(&c.BindAddress, "bind-address", c.BindAddress, "The address to serve HTTPS on.")
	fs.IntVar(&c.SecurePort, "secure-port", c.SecurePort, "The port to serve HTTPS on; 0 takes a free one.")
	fs.IPVar(&c.AdvertiseAddress, "advertise-address", c.AdvertiseAddress, "The address where the rest of the cluster reaches this server.")
	fs.Var(&cidrsFlag{&c.ServiceCIDRs}, "service-cluster-ip-range", "The range that services get their cluster IPs from, or two of different address families, separated by a comma.")
	fs.StringVar(&c.ClusterDomain, "cluster-domain", c.ClusterDomain, "The DNS domain named in the generated serving certificate.")
	fs.StringSliceVar(&c.ServingNames, "tls-san", c.ServingNames, "Further names or addresses for the generated serving certificate.")

	fs.StringSliceVar(&c.EtcdServers, "etcd-servers", c.EtcdServers, "URLs of an external etcd; empty embeds one.")
	fs.StringVar(&c.EtcdCertFile, "etcd-certfile", c.EtcdCertFile, "Client certificate for etcd.")
	fs.StringVar(&c.EtcdKeyFile, "etcd-keyfile", c.EtcdKeyFile, "Key of the client certificate for etcd.")
	fs.StringVar(&c.EtcdCAFile, "etcd-cafile", c.EtcdCAFile, "Certificate authority of etcd.")
	fs.DurationVar(&c.EtcdCompactionInterval, "etcd-compaction-interval", c.EtcdCompactionInterval, "How often old revisions are compacted; 0 means never.")
	fs.StringVar(&c.EncryptionConfig, "encryption-provider-config", c.EncryptionConfig, "File with an EncryptionConfiguration: how objects are encrypted in etcd.")
	fs.BoolVar(&c.EncryptionReload, "encryption-provider-config-automatic-reload", c.EncryptionReload, "Read the file again when it changes.")
	fs.DurationVar(&c.EventTTL, "event-ttl", c.EventTTL, "How long events are kept.")

	fs.StringVar(&c.ClientCAFile, "client-ca-file", c.ClientCAFile, "Certificate authority of clients (default: our own).")
	fs.StringVar(&c.TLSCertFile, "tls-cert-file", c.TLSCertFile, "Serving certificate (default: issued by our own CA).")
	fs.StringVar(&c.TLSKeyFile, "tls-private-key-file", c.TLSKeyFile, "Key of the serving certificate.")
	fs.StringSliceVar(&c.ServiceAccountKeyFiles, "service-account-key-file", c.ServiceAccountKeyFiles, "Further keys, in PEM, that service account tokens may be signed by.")
	fs.StringVar(&c.ServiceAccountSigningKeyFile, "service-account-signing-key-file", c.ServiceAccountSigningKeyFile, "Key that signs service account tokens (default: made in --cert-dir).")
	fs.StringArrayVar(&c.ServiceAccountIssuers, "service-account-issuer", c.ServiceAccountIssuers, "Issuers of service account tokens that are accepted; can be given several times. New tokens, and discovery, name the first.")
	fs.StringSliceVar(&c.APIAudiences, "api-audiences", c.APIAudiences, "Audiences of tokens for this API (default: the issuers).")
	fs.DurationVar(&c.ServiceAccountMaxExpiration, "service-account-max-token-expiration", c.ServiceAccountMaxExpiration, "The longest lifetime that tokens may ask for; 0 is no limit.")

	fs.StringVar(&c.KubeletClientCert, "kubelet-client-certificate", c.KubeletClientCert, "Client certificate for kubelets (default: issued by our own CA).")
	fs.StringVar(&c.KubeletClientKey, "kubelet-client-key", c.KubeletClientKey, "Key of the client certificate for kubelets.")
	fs.StringVar(&c.KubeletCAFile, "kubelet-certificate-authority", c.KubeletCAFile, "Certificate authority of kubelets (default: our own).")
	fs.StringSliceVar(&c.KubeletAddressTypes, "kubelet-preferred-address-types", c.KubeletAddressTypes, "Types of the addresses of nodes at which kubelets are reached, the preferred one first.")
	fs.DurationVar(&c.KubeletTimeout, "kubelet-timeout", c.KubeletTimeout, "Timeout of connecting to a kubelet.")

	c.RequestHeader.AddFlags(fs)
	fs.StringVar(&c.ProxyClientCert, "proxy-client-cert-file", c.ProxyClientCert, "Client certificate for aggregated API servers (default: issued by our own front-proxy CA).")
	fs.StringVar(&c.ProxyClientKey, "proxy-client-key-file", c.ProxyClientKey, "Key of the client certificate for aggregated API servers.")
	c.Authentication.AddFlags(fs)
	c.Authorization.AddFlags(fs)
	fs.DurationVar(&c.RequestTimeout, "request-timeout", c.RequestTimeout, "Timeout of requests that are neither watches, logs nor connections.")
	fs.BoolVar(&c.PriorityAndFairness, "enable-priority-and-fairness", c.PriorityAndFairness, "Share the server among clients as FlowSchemas and PriorityLevelConfigurations say, instead of only bounding the number of requests.")
	fs.IntVar(&c.MaxRequestsInFlight, "max-requests-inflight", c.MaxRequestsInFlight, "How many reading requests run at a time. With priority and fairness, this and --max-mutating-requests-inflight add up to one limit of all requests; without, 0 is no limit.")
	fs.IntVar(&c.MaxMutatingRequestsInFlight, "max-mutating-requests-inflight", c.MaxMutatingRequestsInFlight, "How many writing requests run at a time; see --max-requests-inflight.")
	c.APIs.AddFlags(fs)
	fs.Var(cliflag.NewMapStringBool(&c.FeatureGates), "feature-gates", "Gates of features that are not final: Name=true|false, separated by commas.")
	c.Audit.AddFlags(fs)
	c.Serving.AddFlags(fs)
	fs.StringVar(&c.ServiceAccountKeysURI, "service-account-jwks-uri", c.ServiceAccountKeysURI, "Where the keys of the service account issuer are published (default: by this server).")
	fs.Var(&c.NodePorts, "service-node-port-range", "The range that services get their node ports from, such as 30000-32767.")
	fs.Int64Var(&c.Stay.NotReady, "default-not-ready-toleration-seconds", c.Stay.NotReady, "How long a pod that does not say stays on a node that is not ready.")
	fs.Int64Var(&c.Stay.Unreachable, "default-unreachable-toleration-seconds", c.Stay.Unreachable, "How long a pod that does not say stays on a node that is not reachable.")
	fs.IntVar(&c.DeleteCollectionWorkers, "delete-collection-workers", c.DeleteCollectionWorkers, "How many objects of a collection are deleted at a time.")
	fs.BoolVar(&c.Profiling, "profiling", c.Profiling, "Serve /debug/pprof.")
	fs.BoolVar(&c.GarbageCollector, "enable-garbage-collector", c.GarbageCollector, "A garbage collector runs (with kube-controller-manager, for example), and deletions may wait for it.")
	fs.BoolVar(&c.MetricsAPI, "enable-metrics-api", c.MetricsAPI, "Serve metrics.k8s.io, for kubectl top and autoscalers, from the kubelets' own metrics. Nothing is measured unless somebody asks.")
	fs.BoolVar(&c.AggregatorRouting, "enable-aggregator-routing", c.AggregatorRouting, "Call services, those of webhooks for example, at their endpoints instead of their cluster IPs.")
	fs.StringSliceVar(&c.EnableAdmission, "enable-admission-plugins", c.EnableAdmission,
		"Admission plugins to run besides those that run by default ("+strings.Join(admission.Defaults(), ", ")+
			"), of: "+strings.Join(admission.Names(), ", ")+". Their order does not matter.")
	fs.StringSliceVar(&c.DisableAdmission, "disable-admission-plugins", c.DisableAdmission,
		"Admission plugins to leave out of those that run by default (see --enable-admission-plugins).")
	fs.StringVar(&c.AdmissionConfigFile, "admission-control-config-file", c.AdmissionConfigFile,
		"File with the configuration of admission plugins (AdmissionConfiguration of apiserver.config.k8s.io/v1).")
	fs.BoolVar(&c.RejectForwardingRedirects, "aggregator-reject-forwarding-redirect", c.RejectForwardingRedirects,
		"Do not pass on redirects of aggregated API servers.")
	noEffect.AddFlags(fs)
	c.given = fs
}

// noEffect are kube-apiserver's flags that have no effect here.
var noEffect = component.NoEffect{
	Ignored: map[string]string{
		"allow-privileged":                        "privileged pods are always allowed",
		"endpoint-reconciler-type":                "each server keeps its own address in the service's endpoints",
		"storage-media-type":                      "objects are stored in protobuf",
		"watch-cache":                             "the watch cache is always on",
		"watch-cache-sizes":                       "the sizes adapt by themselves",
		"default-watch-cache-size":                "the sizes adapt by themselves",
		"service-account-lookup":                  "tokens are always looked up",
		"service-account-extend-token-expiration": "tokens are extended, as by default upstream",
		"etcd-count-metric-poll-period":           "nothing is counted while nobody lists",
		"etcd-db-metric-poll-interval":            "etcd is not asked for its size from time to time",
		"etcd-healthcheck-timeout":                "a check takes as long as whoever asks for it waits",
		"etcd-readycheck-timeout":                 "a check takes as long as whoever asks for it waits",
		"lease-reuse-duration-seconds":            "the time is upstream's default",
		"send-retry-after-while-not-ready-once":   "requests wait until there is an answer",
		"coordinated-leadership-lease-duration":   "leaders are not chosen by the server",
		"coordinated-leadership-renew-deadline":   "leaders are not chosen by the server",
		"coordinated-leadership-retry-period":     "leaders are not chosen by the server",
		"peer-advertise-ip":                       "requests are not passed to other servers of the cluster",
		"peer-advertise-port":                     "requests are not passed to other servers of the cluster",
		"peer-ca-file":                            "requests are not passed to other servers of the cluster",
		"permit-address-sharing":                  "SO_REUSEADDR is always set",
	},
	Refused: map[string]component.Refusal{
		"admission-control":           {Why: "use --enable-admission-plugins and --disable-admission-plugins", Fine: component.IsEmpty},
		"authorization-policy-file":   {Why: "there is no mode ABAC; use RBAC", Fine: component.IsEmpty},
		"egress-selector-config-file": {Why: "connections would not go through the proxies that it names: that is not supported", Fine: component.IsEmpty},
		"enable-logs-handler":         {Why: "files of the machine are not served", Fine: component.IsFalse},
		"etcd-prefix":                 {Why: "the prefix is always /registry", Fine: func(v string) bool { return strings.Trim(v, "/") == "registry" }},
		"etcd-servers-overrides":      {Why: "all objects are in one etcd", Fine: component.IsEmpty},
		"kubernetes-service-node-port": {
			Why: "the service kubernetes has no node port; make a service of your own for it", Fine: component.IsZero,
		},
		"max-connection-bytes-per-sec":     {Why: "connections are not slowed down", Fine: component.IsZero},
		"service-account-signing-endpoint": {Why: "tokens are signed by a key in a file: --service-account-signing-key-file", Fine: component.IsEmpty},
		"storage-backend":                  {Why: "the backend is always etcd3", Fine: func(v string) bool { return v == "" || v == "etcd3" }},
		"emulation-forward-compatible":     {Why: "no earlier version is emulated", Fine: component.IsFalse},
		"runtime-config-emulation-forward-compatible": {
			Why: "no earlier version is emulated", Fine: component.IsFalse,
		},
	},
	Switches: []string{
		"allow-privileged", "service-account-extend-token-expiration", "service-account-lookup", "watch-cache",
		"send-retry-after-while-not-ready-once", "permit-address-sharing", "enable-logs-handler",
		"emulation-forward-compatible", "runtime-config-emulation-forward-compatible",
	},
}.With(component.Emulation)

// refused returns an error for each flag that asks for what cannot be left out.
func (c *Config) refused() []error {
	if c.given == nil {
		return nil
	}
	return noEffect.Check(c.given)
}

// warnIgnored logs the given flags that have no effect.
func (c *Config) warnIgnored(ctx context.Context) {
	if c.Audit.PolicyFile == "" && c.Audit.LogOptions.Path+c.Audit.WebhookOptions.ConfigFile != "" {
		klog.FromContext(ctx).Info("Nothing is audited without --audit-policy-file")
	}
	if c.given != nil {
		noEffect.Warn(ctx, c.given)
	}
}

// setFeatures opens and closes the gates of this process. One that the API server's libraries do not
// know, as those of other components, is named in the log.
func (c *Config) setFeatures(log logr.Logger) error {
	gates, set := utilfeature.DefaultMutableFeatureGate, map[string]bool{}
	known := gates.GetAll()
	for name, on := range c.FeatureGates {
		name = component.Gate(name)
		if _, ok := known[featuregate.Feature(name)]; ok {
			set[name] = on
		} else if !gated.Known(name) {
			log.Info("Feature gate has no effect", "flag", "--feature-gates", "gate", name)
		}
	}
	if err := c.features().Check(); err != nil {
		return fmt.Errorf("--feature-gates: %w", err)
	}
	if err := gates.SetFromMap(set); err != nil {
		return fmt.Errorf("--feature-gates: %w", err)
	}
	return nil
}

func (c *Config) etcdDir() string { return etcdIn(c.DataDir) }

func etcdIn(dataDir string) string { return filepath.Join(dataDir, "etcd") }

// cidrsFlag is a pflag.Value for networks.
type cidrsFlag struct{ to *[]*net.IPNet }

func (f *cidrsFlag) String() string {
	if f.to == nil {
		return ""
	}
	var out []string
	for _, n := range *f.to {
		out = append(out, n.String())
	}
	return strings.Join(out, ",")
}

func (f *cidrsFlag) Set(s string) error {
	var out []*net.IPNet
	for part := range strings.SplitSeq(s, ",") {
		_, n, err := net.ParseCIDR(strings.TrimSpace(part))
		if err != nil {
			return fmt.Errorf("%q is not a network such as 10.96.0.0/12", part)
		}
		out = append(out, n)
	}
	*f.to = out
	return nil
}

func (*cidrsFlag) Type() string { return "cidrs" }
