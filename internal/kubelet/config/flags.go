package config

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	cliflag "k8s.io/component-base/cli/flag"
	logsapi "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/component-base/logs/json/register" // --logging-format json
)

// noEffect is the help text of upstream's flags that nothing here reads: setting one logs a
// warning.
const noEffect = "accepted so that upstream's command lines work; it has no effect here, and logs a warning"

// AddFlags adds upstream's flags to a flag set. LoadFiles makes the given ones take precedence over
// --config and --config-dir. The fields must already have their defaults.
func (c *Config) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&c.ConfigFile, "config", c.ConfigFile, "file with a KubeletConfiguration (kubelet.config.k8s.io/v1beta1)")
	fs.StringVar(&c.ConfigDir, "config-dir", c.ConfigDir, "folder with *.conf files that are merged, in lexical order of their paths, over --config")
	fs.StringVar(&c.Kubeconfig, "kubeconfig", c.Kubeconfig, "kubeconfig of the API server; without it the kubelet runs static pods only")
	fs.StringVar(&c.BootstrapKubeconfig, "bootstrap-kubeconfig", c.BootstrapKubeconfig, "kubeconfig to ask for a client certificate with, where there is no valid --kubeconfig")
	fs.StringVar(&c.NodeName, "hostname-override", c.NodeName, "name of the node instead of the host's name")
	fs.StringVar(&c.NodeIP, "node-ip", c.NodeIP, "address of the node, or two of different families separated by a comma; :: prefers IPv6")
	fs.StringVar(&c.CloudProvider, "cloud-provider", c.CloudProvider, "external, where a cloud controller initializes the node, or nothing")
	fs.StringVar(&c.RootDir, "root-dir", c.RootDir, "folder for pods, volumes and records")
	fs.StringVar(&c.CertDir, "cert-dir", c.CertDir, "folder for certificates that the kubelet gets or creates (default <root-dir>/pki)")
	fs.StringVar(&c.ContainerLogsDir, "container-logs-dir", c.ContainerLogsDir, "folder for symlinks to all containers' logs, empty for none")
	fs.Var(cliflag.NewMapStringString(&c.NodeLabels), "node-labels", "labels to register the node with: key=value, separated by commas")
	fs.BoolVar(&c.RegisterSchedulable, "register-schedulable", c.RegisterSchedulable, "register the node as schedulable")
	c.addServerFlags(fs)
	c.addNodeFlags(fs)
	c.addPodFlags(fs)
	c.addManagerFlags(fs)
	logsapi.AddFlags(&c.Logging, fs)
	for _, name := range ignoredFlags {
		fs.Var(&ignored{c: c, name: name}, name, noEffect)
		fs.Lookup(name).Hidden = true
	}
	for _, name := range ignoredSwitches {
		fs.Lookup(name).NoOptDefVal = "true"
	}
}

func (c *Config) addServerFlags(fs *pflag.FlagSet) {
	k := &c.KubeletConfiguration
	fs.BoolVar(k.EnableServer, "enable-server", *k.EnableServer, "serve on --port")
	fs.StringVar(&k.Address, "address", k.Address, "address that the server listens on")
	fs.Int32Var(&k.Port, "port", k.Port, "port that the server listens on")
	fs.Int32Var(&k.ReadOnlyPort, "read-only-port", k.ReadOnlyPort, "port of the read-only server, which needs no credentials; 0 for none")
	fs.Int32Var(k.HealthzPort, "healthz-port", *k.HealthzPort, "port of the health check without TLS, 0 for none")
	fs.StringVar(&k.HealthzBindAddress, "healthz-bind-address", k.HealthzBindAddress, "address of the health check")
	fs.BoolVar(k.EnableDebuggingHandlers, "enable-debugging-handlers", *k.EnableDebuggingHandlers, "serve logs, exec, attach, run and port-forward")
	fs.BoolVar(&k.EnableContentionProfiling, "contention-profiling", k.EnableContentionProfiling, "profile what goroutines wait for")
	fs.StringVar(&k.TLSCertFile, "tls-cert-file", k.TLSCertFile, "certificate of the server")
	fs.StringVar(&k.TLSPrivateKeyFile, "tls-private-key-file", k.TLSPrivateKeyFile, "private key of the server")
	fs.StringSliceVar(&k.TLSCipherSuites, "tls-cipher-suites", k.TLSCipherSuites, "cipher suites of the server: "+strings.Join(cliflag.PreferredTLSCipherNames(), ", "))
	fs.StringVar(&k.TLSMinVersion, "tls-min-version", k.TLSMinVersion, "lowest version of TLS: "+strings.Join(cliflag.TLSPossibleVersions(), ", "))
	fs.BoolVar(&k.RotateCertificates, "rotate-certificates", k.RotateCertificates, "ask the API server for a new client certificate before the old one expires")
	fs.BoolVar(&k.ServerTLSBootstrap, "rotate-server-certificates", k.ServerTLSBootstrap, "ask the API server for the serving certificate, and for a new one before it expires")
	auth := &k.Authentication
	fs.StringVar(&auth.X509.ClientCAFile, "client-ca-file", auth.X509.ClientCAFile, "CA of the clients' certificates")
	fs.BoolVar(auth.Anonymous.Enabled, "anonymous-auth", *auth.Anonymous.Enabled, "authorize requests without credentials as system:anonymous")
	fs.BoolVar(auth.Webhook.Enabled, "authentication-token-webhook", *auth.Webhook.Enabled, "check tokens with the API server")
	fs.DurationVar(&auth.Webhook.CacheTTL.Duration, "authentication-token-webhook-cache-ttl", auth.Webhook.CacheTTL.Duration, "how long the answer for a token is kept")
	fs.StringVar((*string)(&k.Authorization.Mode), "authorization-mode", string(k.Authorization.Mode), "AlwaysAllow or Webhook")
	hook := &k.Authorization.Webhook
	fs.DurationVar(&hook.CacheAuthorizedTTL.Duration, "authorization-webhook-cache-authorized-ttl", hook.CacheAuthorizedTTL.Duration, "how long a permission is kept")
	fs.DurationVar(&hook.CacheUnauthorizedTTL.Duration, "authorization-webhook-cache-unauthorized-ttl", hook.CacheUnauthorizedTTL.Duration, "how long a refusal is kept")
	fs.DurationVar(&k.StreamingConnectionIdleTimeout.Duration, "streaming-connection-idle-timeout", k.StreamingConnectionIdleTimeout.Duration, "accepted; the runtime closes idle streams after a timeout of its own")
}

func (c *Config) addNodeFlags(fs *pflag.FlagSet) {
	k := &c.KubeletConfiguration
	fs.BoolVar(k.RegisterNode, "register-node", *k.RegisterNode, "register the node with the API server")
	fs.Var((*Taints)(&k.RegisterWithTaints), "register-with-taints", "taints to register the node with: key=value:effect, separated by commas")
	fs.StringVar(&k.PodCIDR, "pod-cidr", k.PodCIDR, "range of the pods' addresses, as reported on the node")
	fs.StringVar(&k.ProviderID, "provider-id", k.ProviderID, "ID of the machine at its provider")
	fs.Int32Var(&k.MaxPods, "max-pods", k.MaxPods, "how many pods can run on the node")
	fs.Int32Var(&k.PodsPerCore, "pods-per-core", k.PodsPerCore, "how many pods can run for each core, at most --max-pods; 0 is no limit")
	fs.DurationVar(&k.NodeStatusUpdateFrequency.Duration, "node-status-update-frequency", k.NodeStatusUpdateFrequency.Duration, "accepted; the kubelet reports changes at once")
	fs.Int32Var(k.NodeStatusMaxImages, "node-status-max-images", *k.NodeStatusMaxImages, "how many images are reported, -1 for all")
	fs.Var(cliflag.NewMapStringString(&k.SystemReserved), "system-reserved", "resources kept for the system, such as cpu=200m,memory=150Mi")
	fs.Var(cliflag.NewMapStringString(&k.KubeReserved), "kube-reserved", "resources kept for Kubernetes")
	fs.StringVar(&k.ReservedSystemCPUs, "reserved-cpus", k.ReservedSystemCPUs, "CPUs, such as 0-1,4, kept for system and Kubernetes; instead of the CPU of --system-reserved and --kube-reserved")
	fs.StringVar(&k.SystemReservedCgroup, "system-reserved-cgroup", k.SystemReservedCgroup, "cgroup of the system's daemons, held to --system-reserved by --enforce-node-allocatable=system-reserved")
	fs.StringVar(&k.KubeReservedCgroup, "kube-reserved-cgroup", k.KubeReservedCgroup, "cgroup of Kubernetes' daemons, held to --kube-reserved by --enforce-node-allocatable=kube-reserved")
	fs.StringSliceVar(&k.EnforceNodeAllocatable, "enforce-node-allocatable", k.EnforceNodeAllocatable, "what to limit: pods (all of them together, to what is allocatable), system-reserved and kube-reserved (their cgroups, to what is reserved; with -compressible the CPU only), or none")
	fs.Var(cliflag.NewLangleSeparatedMapStringString(&k.EvictionHard), "eviction-hard", "what pods may not use up, such as memory.available<100Mi")
	fs.Var(cliflag.NewLangleSeparatedMapStringString(&k.EvictionSoft), "eviction-soft", "what pods may not use up for longer than --eviction-soft-grace-period, such as memory.available<1Gi")
	fs.Var(cliflag.NewMapStringString(&k.EvictionSoftGracePeriod), "eviction-soft-grace-period", "how long a threshold of --eviction-soft is crossed before a pod is evicted, such as memory.available=1m30s")
	fs.Var(cliflag.NewMapStringString(&k.EvictionMinimumReclaim), "eviction-minimum-reclaim", "how much more than a threshold has to be free before no more pods are evicted, such as nodefs.available=1Gi")
	fs.Int32Var(&k.EvictionMaxPodGracePeriod, "eviction-max-pod-grace-period", k.EvictionMaxPodGracePeriod, "how many seconds a pod has at most that is evicted at a threshold of --eviction-soft")
	fs.DurationVar(&k.EvictionPressureTransitionPeriod.Duration, "eviction-pressure-transition-period", k.EvictionPressureTransitionPeriod.Duration, "how long a node condition such as DiskPressure outlasts its cause")
	fs.BoolVar(k.FailSwapOn, "fail-swap-on", *k.FailSwapOn, "do not start on a machine with swap")
	fs.BoolVar(k.FailCgroupV1, "fail-cgroupv1", *k.FailCgroupV1, "do not start on a machine with cgroup v1")
	fs.Int32Var(k.EventRecordQPS, "event-qps", *k.EventRecordQPS, "how many events are sent each second; 0 is no limit")
	fs.Int32Var(&k.EventBurst, "event-burst", k.EventBurst, "how many events are sent at once")
	fs.Int32Var(k.KubeAPIQPS, "kube-api-qps", *k.KubeAPIQPS, "how many requests per second go to the API server; the default leaves the limit to the API server's fairness")
	fs.Int32Var(&k.KubeAPIBurst, "kube-api-burst", k.KubeAPIBurst, "how many requests go to the API server at once, with --kube-api-qps")
	fs.StringVar(&k.ContentType, "kube-api-content-type", k.ContentType, "encoding of requests to the API server")
	fs.Var(cliflag.NewMapStringBool(&k.FeatureGates), "feature-gates", "accepted; gates of other implementations have no effect")
}

func (c *Config) addPodFlags(fs *pflag.FlagSet) {
	k := &c.KubeletConfiguration
	fs.StringVar(&k.ContainerRuntimeEndpoint, "container-runtime-endpoint", k.ContainerRuntimeEndpoint, "address of the CRI runtime, such as unix:///run/wherry/cri.sock")
	fs.StringVar(&k.ImageServiceEndpoint, "image-service-endpoint", k.ImageServiceEndpoint, "address of the CRI image service (default: that of the runtime)")
	fs.DurationVar(&k.RuntimeRequestTimeout.Duration, "runtime-request-timeout", k.RuntimeRequestTimeout.Duration, "timeout of runtime calls other than long-running ones")
	fs.StringVar(&k.StaticPodPath, "pod-manifest-path", k.StaticPodPath, "folder, or file, of static pods")
	fs.DurationVar(&k.FileCheckFrequency.Duration, "file-check-frequency", k.FileCheckFrequency.Duration, "how often manifests are read again; changes to the files are seen at once")
	fs.StringVar(&c.CredentialProviderConfig, "image-credential-provider-config", c.CredentialProviderConfig, "file or folder with a CredentialProviderConfig: plugins that give credentials for registries")
	fs.StringVar(&c.CredentialProviderBinDir, "image-credential-provider-bin-dir", c.CredentialProviderBinDir, "folder of the credential provider plugins' executables")
	fs.StringVar(&k.StaticPodURL, "manifest-url", k.StaticPodURL, "URL of static pods")
	fs.Var(cliflag.NewColonSeparatedMultimapStringString(&k.StaticPodURLHeader), "manifest-url-header", "headers for --manifest-url: name:value, separated by commas")
	fs.Lookup("manifest-url-header").Annotations = map[string][]string{"classified": {"true"}} // it may be a password
	fs.DurationVar(&k.HTTPCheckFrequency.Duration, "http-check-frequency", k.HTTPCheckFrequency.Duration, "how often --manifest-url is asked")
	fs.StringVar(&k.PodLogsDir, "pod-logs-dir", k.PodLogsDir, "folder for the pods' logs")
	fs.StringVar(&k.CgroupRoot, "cgroup-root", k.CgroupRoot, "parent cgroup of the pods' cgroups")
	fs.StringVar(&k.CgroupDriver, "cgroup-driver", k.CgroupDriver, "cgroupfs or systemd; what the runtime reports wins")
	fs.BoolVar(k.CgroupsPerQOS, "cgroups-per-qos", *k.CgroupsPerQOS, "put pods into the cgroup of their QoS class; false creates no cgroups for pods and QoS classes, and leaves the containers' to the runtime")
	fs.StringSliceVar(&k.ClusterDNS, "cluster-dns", k.ClusterDNS, "addresses of the cluster's DNS")
	fs.StringVar(&k.ClusterDomain, "cluster-domain", k.ClusterDomain, "domain of the cluster")
	fs.StringVar(k.ResolverConfig, "resolv-conf", *k.ResolverConfig, "the host's resolver configuration that pods get")
	fs.BoolVar(k.SeccompDefault, "seccomp-default", *k.SeccompDefault, "use RuntimeDefault where a pod sets no seccomp profile")
	fs.StringVar(&k.ContainerLogMaxSize, "container-log-max-size", k.ContainerLogMaxSize, "size at which a container's log is rotated")
	fs.Int32Var(k.ContainerLogMaxFiles, "container-log-max-files", *k.ContainerLogMaxFiles, "how many files of a container's log are kept")
	fs.StringSliceVar(&k.AllowedUnsafeSysctls, "allowed-unsafe-sysctls", k.AllowedUnsafeSysctls, "unsafe sysctls that pods may set; a trailing * is a wildcard")
	fs.Int64Var(k.PodPidsLimit, "pod-max-pids", *k.PodPidsLimit, "how many processes a pod may have; -1 is no limit")
	fs.BoolVar(k.CPUCFSQuota, "cpu-cfs-quota", *k.CPUCFSQuota, "enforce CPU limits")
	fs.DurationVar(&k.CPUCFSQuotaPeriod.Duration, "cpu-cfs-quota-period", k.CPUCFSQuotaPeriod.Duration, "period of CPU limits, 1ms to 1s; any other than 100ms needs the feature gate CustomCPUCFSQuotaPeriod")
	fs.DurationVar(&k.SyncFrequency.Duration, "sync-frequency", k.SyncFrequency.Duration, "accepted; the kubelet acts on events")
	fs.Int32Var(k.RegistryPullQPS, "registry-qps", *k.RegistryPullQPS, "how many images may be pulled per second; a pull beyond that fails and is retried; 0 is no limit")
	fs.Int32Var(&k.RegistryBurst, "registry-burst", k.RegistryBurst, "how many pulls may start at once, while --registry-qps limits the long-term rate")
	fs.BoolVar(k.SerializeImagePulls, "serialize-image-pulls", *k.SerializeImagePulls, "pull one image at a time")
	fs.DurationVar(&k.ImageMinimumGCAge.Duration, "minimum-image-ttl-duration", k.ImageMinimumGCAge.Duration, "how long an image that no pod needs is kept at least")
	fs.Int32Var(k.ImageGCHighThresholdPercent, "image-gc-high-threshold", *k.ImageGCHighThresholdPercent, "how full the disk may be, in percent, before images that no pod needs are removed; 100 for never")
	fs.Int32Var(k.ImageGCLowThresholdPercent, "image-gc-low-threshold", *k.ImageGCLowThresholdPercent, "how full the disk is, in percent, when no more images are removed")
	fs.DurationVar(&k.VolumeStatsAggPeriod.Duration, "volume-stats-agg-period", k.VolumeStatsAggPeriod.Duration, "how old the measured size of a volume may be")
	fs.StringVar(&k.VolumePluginDir, "volume-plugin-dir", k.VolumePluginDir, noEffect)
	fs.BoolVar(k.EnableControllerAttachDetach, "enable-controller-attach-detach", *k.EnableControllerAttachDetach, noEffect)
	fs.BoolVar(k.LocalStorageCapacityIsolation, "local-storage-capacity-isolation", *k.LocalStorageCapacityIsolation, "report ephemeral storage as a resource of the node")
}

// addManagerFlags adds the flags of upstream's managers, which do not exist here, and those for
// the kernel and the kubelet's own process.
func (c *Config) addManagerFlags(fs *pflag.FlagSet) {
	k := &c.KubeletConfiguration
	fs.StringVar(&k.CPUManagerPolicy, "cpu-manager-policy", k.CPUManagerPolicy, "none, or static: containers of Guaranteed pods that ask for whole CPUs have them for themselves")
	fs.Var(cliflag.NewMapStringString(&k.CPUManagerPolicyOptions), "cpu-manager-policy-options", "options of the policy static: full-pcpus-only=true, strict-cpu-reservation=true …")
	fs.DurationVar(&k.CPUManagerReconcilePeriod.Duration, "cpu-manager-reconcile-period", k.CPUManagerReconcilePeriod.Duration, noEffect)
	fs.StringVar(&k.MemoryManagerPolicy, "memory-manager-policy", k.MemoryManagerPolicy, "None, or Static: containers of Guaranteed pods have their memory from certain NUMA nodes")
	fs.StringVar(&k.TopologyManagerPolicy, "topology-manager-policy", k.TopologyManagerPolicy, "how devices, CPUs and memory of a pod are aligned with NUMA nodes: none, best-effort, restricted or single-numa-node")
	fs.StringVar(&k.TopologyManagerScope, "topology-manager-scope", k.TopologyManagerScope, "what is aligned: what each container gets, or what the pod gets: container or pod")
	fs.Var(cliflag.NewMapStringString(&k.TopologyManagerPolicyOptions), "topology-manager-policy-options", "options of the policies but none: prefer-closest-numa-nodes=true, max-allowable-numa-nodes=16")
	fs.Var(&reservedMemory{to: &k.ReservedMemory}, "reserved-memory", "what NUMA nodes keep for system and Kubernetes, for the memory manager: 0:memory=1Gi,hugepages-2Mi=64Mi;1:memory=1Gi")
	fs.Var(cliflag.NewMapStringString(&k.QOSReserved), "qos-reserved", noEffect)
	fs.StringVar(&k.KubeletCgroups, "kubelet-cgroups", k.KubeletCgroups, noEffect)
	fs.StringVar(&k.SystemCgroups, "system-cgroups", k.SystemCgroups, noEffect)
	fs.StringVar(&k.HairpinMode, "hairpin-mode", k.HairpinMode, noEffect)
	fs.BoolVar(k.MakeIPTablesUtilChains, "make-iptables-util-chains", *k.MakeIPTablesUtilChains, noEffect)
	fs.BoolVar(&k.ProtectKernelDefaults, "protect-kernel-defaults", k.ProtectKernelDefaults, "do not start on a machine whose kernel settings are not those that Kubernetes expects; they are never changed")
	fs.BoolVar(&k.KernelMemcgNotification, "kernel-memcg-notification", k.KernelMemcgNotification, noEffect)
	fs.Int64Var(&k.MaxOpenFiles, "max-open-files", k.MaxOpenFiles, "how many files the kubelet's process may have open")
	fs.Int32Var(k.OOMScoreAdj, "oom-score-adj", *k.OOMScoreAdj, "how soon the kernel kills the kubelet's process when memory runs out, -1000 (never) to 1000")
	fs.BoolVar(&k.RunOnce, "runonce", k.RunOnce, "not supported, as upstream")
}

// ignoredFlags are flags of upstream's kubelet that have no field in KubeletConfiguration.
var ignoredFlags = []string{
	"runtime-cgroups", "pod-infra-container-image",
	"lock-file", "exit-on-lock-contention", "minimum-container-ttl-duration", "maximum-dead-containers-per-container",
	"maximum-dead-containers", "experimental-mounter-path", "experimental-allocatable-ignore-eviction",
	// of upstream's cAdvisor
	"application-metrics-count-limit", "boot-id-file", "container-hints", "containerd", "containerd-namespace", "enable-load-reader",
	"event-storage-age-limit", "event-storage-event-limit", "global-housekeeping-interval", "housekeeping-interval", "log-cadvisor-usage",
	"machine-id-file", "max-housekeeping-interval", "storage-driver-buffer-duration", "storage-driver-db", "storage-driver-host",
	"storage-driver-password", "storage-driver-secure", "storage-driver-table", "storage-driver-user",
}

// ignoredSwitches are the ignoredFlags that take no value.
var ignoredSwitches = []string{
	"exit-on-lock-contention", "experimental-allocatable-ignore-eviction", "enable-load-reader", "log-cadvisor-usage", "storage-driver-secure",
}

// ignored is a flag that is accepted and has no effect.
type ignored struct {
	c           *Config
	name, value string
}

func (i *ignored) String() string { return i.value }
func (i *ignored) Type() string   { return "string" }

func (i *ignored) Set(s string) error {
	i.value = s
	if !slices.Contains(i.c.ignoredFlags, i.name) {
		i.c.ignoredFlags = append(i.c.ignoredFlags, i.name)
	}
	return nil
}

// Taints is the value of a flag that has taints: key=value:effect, separated by commas.
type Taints []v1.Taint

// Type implements pflag.Value.
func (t *Taints) Type() string { return "[]v1.Taint" }

// String implements pflag.Value.
func (t *Taints) String() string {
	var out []string
	for i := range *t {
		out = append(out, (*t)[i].ToString())
	}
	return strings.Join(out, ",")
}

// Set implements pflag.Value.
func (t *Taints) Set(s string) error {
	*t = nil
	for part := range strings.SplitSeq(s, ",") {
		if part == "" {
			continue
		}
		kv, effect, ok := strings.Cut(part, ":")
		key, value, _ := strings.Cut(kv, "=")
		if !ok || !validTaint(key, value, v1.TaintEffect(effect)) {
			return fmt.Errorf("invalid taint spec: %q, want key=value:effect with effect NoSchedule, PreferNoSchedule or NoExecute", part)
		}
		*t = append(*t, v1.Taint{Key: key, Value: value, Effect: v1.TaintEffect(effect)})
	}
	return nil
}

func validTaint(key, value string, effect v1.TaintEffect) bool {
	effects := []v1.TaintEffect{v1.TaintEffectNoSchedule, v1.TaintEffectPreferNoSchedule, v1.TaintEffectNoExecute}
	return slices.Contains(effects, effect) && len(validation.IsQualifiedName(key)) == 0 && len(validation.IsValidLabelValue(value)) == 0
}
