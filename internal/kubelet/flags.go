package kubelet

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"
	"sigs.k8s.io/yaml"
)

// AddFlags adds upstream's flags to a flag set. --config and --config-dir are read
// by LoadFiles, flags that were given win over them.
func (c *Config) AddFlags(fs *pflag.FlagSet) {
	k := &c.KubeletConfiguration
	fs.StringVar(&c.ConfigFile, "config", c.ConfigFile, "file with a KubeletConfiguration (kubelet.config.k8s.io/v1beta1)")
	fs.StringVar(&c.ConfigDir, "config-dir", c.ConfigDir, "folder with *.conf files that are merged, in order of their names, over --config")
	fs.StringVar(&c.Kubeconfig, "kubeconfig", c.Kubeconfig, "kubeconfig of the API server; without it the kubelet runs static pods only")
	fs.StringVar(&c.NodeName, "hostname-override", c.NodeName, "name of the node instead of the host's name")
	fs.StringVar(&c.NodeIP, "node-ip", c.NodeIP, "address of the node, or two of different families separated by a comma")
	fs.StringVar(&c.RootDir, "root-dir", c.RootDir, "folder for pods, volumes and records")
	fs.StringVar(&c.CertDir, "cert-dir", c.CertDir, "folder for the serving certificate when none is given (default <root-dir>/pki)")
	fs.StringVar(&c.ContainerLogsDir, "container-logs-dir", c.ContainerLogsDir, "folder for symlinks to all containers' logs, empty for none")
	fs.StringToStringVar(&c.NodeLabels, "node-labels", c.NodeLabels, "labels to register the node with")
	fs.BoolVar(&c.RegisterSchedulable, "register-schedulable", c.RegisterSchedulable, "register the node as schedulable")
	fs.StringVar(&k.ContainerRuntimeEndpoint, "container-runtime-endpoint", k.ContainerRuntimeEndpoint, "address of the CRI runtime, such as unix:///run/wherry/cri.sock")
	fs.StringVar(&k.ImageServiceEndpoint, "image-service-endpoint", k.ImageServiceEndpoint, "address of the CRI image service (default that of the runtime)")
	fs.StringVar(&k.PodLogsDir, "pod-logs-dir", k.PodLogsDir, "folder for the pods' logs")
	fs.StringVar(&k.StaticPodPath, "pod-manifest-path", k.StaticPodPath, "folder, or file, of static pods")
	fs.StringVar(&k.Address, "address", k.Address, "address that the server listens on")
	fs.Int32Var(&k.Port, "port", k.Port, "port that the server listens on")
	fs.Int32Var(k.HealthzPort, "healthz-port", *k.HealthzPort, "port of the health check without TLS, 0 for none")
	fs.StringVar(&k.HealthzBindAddress, "healthz-bind-address", k.HealthzBindAddress, "address of the health check")
	fs.StringVar(&k.CgroupRoot, "cgroup-root", k.CgroupRoot, "cgroup that the pods' groups lie in")
	fs.StringVar(&k.CgroupDriver, "cgroup-driver", k.CgroupDriver, "driver of cgroups; only cgroupfs is used")
	fs.StringSliceVar(&k.ClusterDNS, "cluster-dns", k.ClusterDNS, "addresses of the cluster's DNS")
	fs.StringVar(&k.ClusterDomain, "cluster-domain", k.ClusterDomain, "domain of the cluster")
	fs.StringVar(k.ResolverConfig, "resolv-conf", *k.ResolverConfig, "resolver configuration of the host that pods get")
	fs.Int32Var(&k.MaxPods, "max-pods", k.MaxPods, "how many pods can run on the node")
	fs.StringToStringVar(&k.SystemReserved, "system-reserved", k.SystemReserved, "resources kept for the system, such as cpu=200m,memory=150Mi")
	fs.StringToStringVar(&k.KubeReserved, "kube-reserved", k.KubeReserved, "resources kept for Kubernetes")
	fs.Var((*thresholds)(&k.EvictionHard), "eviction-hard", "what pods may not use up, such as memory.available<100Mi")
	fs.BoolVar(k.RegisterNode, "register-node", *k.RegisterNode, "register the node with the API server")
	fs.Var((*taints)(&k.RegisterWithTaints), "register-with-taints", "taints to register the node with: key=value:effect, separated by commas")
	fs.StringVar(&k.PodCIDR, "pod-cidr", k.PodCIDR, "addresses of the pods, as reported")
	fs.StringVar(&k.ProviderID, "provider-id", k.ProviderID, "ID of the machine at its provider")
	fs.StringVar(&k.TLSCertFile, "tls-cert-file", k.TLSCertFile, "certificate of the server")
	fs.StringVar(&k.TLSPrivateKeyFile, "tls-private-key-file", k.TLSPrivateKeyFile, "private key of the server")
	fs.StringVar(&k.Authentication.X509.ClientCAFile, "client-ca-file", k.Authentication.X509.ClientCAFile, "CA of the clients' certificates")
	fs.BoolVar(k.Authentication.Anonymous.Enabled, "anonymous-auth", *k.Authentication.Anonymous.Enabled, "authorize requests without credentials as system:anonymous")
	fs.BoolVar(k.Authentication.Webhook.Enabled, "authentication-token-webhook", *k.Authentication.Webhook.Enabled, "check tokens with the API server")
	fs.StringVar((*string)(&k.Authorization.Mode), "authorization-mode", string(k.Authorization.Mode), "AlwaysAllow or Webhook")
	fs.BoolVar(k.SeccompDefault, "seccomp-default", *k.SeccompDefault, "RuntimeDefault where a pod says nothing")
	fs.StringVar(&k.ContainerLogMaxSize, "container-log-max-size", k.ContainerLogMaxSize, "size at which a container's log is rotated")
	fs.Int32Var(k.ContainerLogMaxFiles, "container-log-max-files", *k.ContainerLogMaxFiles, "how many files of a container's log are kept")
	fs.StringSliceVar(&k.AllowedUnsafeSysctls, "allowed-unsafe-sysctls", k.AllowedUnsafeSysctls, "sysctls that pods may set although they are not safe; a trailing * matches more")
	fs.Int64Var(k.PodPidsLimit, "pod-max-pids", *k.PodPidsLimit, "how many processes a pod may have, -1 for any number")
	fs.BoolVar(k.CPUCFSQuota, "cpu-cfs-quota", *k.CPUCFSQuota, "enforce CPU limits")
	fs.DurationVar(&k.RuntimeRequestTimeout.Duration, "runtime-request-timeout", k.RuntimeRequestTimeout.Duration, "time for calls of the runtime that do not take long")
	fs.DurationVar(&k.SyncFrequency.Duration, "sync-frequency", k.SyncFrequency.Duration, "accepted; the kubelet acts on events")
	fs.Var(&ignored{c: c, name: "feature-gates"}, "feature-gates", "accepted; gates of other implementations have no effect")
	for _, name := range unimplemented {
		fs.Var(&ignored{c: c, name: name}, name, "accepted, not implemented")
		_ = fs.MarkHidden(name) // the flag was added the line before
	}
}

// unimplemented flags of upstream's kubelet are accepted with a warning.
var unimplemented = []string{
	"bootstrap-kubeconfig", "cloud-provider", "cpu-manager-policy", "eviction-soft", "eviction-soft-grace-period",
	"eviction-max-pod-grace-period", "eviction-minimum-reclaim", "eviction-pressure-transition-period", "fail-swap-on",
	"image-credential-provider-config", "image-credential-provider-bin-dir", "image-gc-high-threshold", "image-gc-low-threshold",
	"kernel-memcg-notification", "kube-api-burst", "kube-api-qps", "max-open-files", "memory-manager-policy",
	"protect-kernel-defaults", "read-only-port", "registry-burst", "registry-qps", "reserved-cpus", "rotate-certificates",
	"rotate-server-certificates", "serialize-image-pulls", "streaming-connection-idle-timeout", "system-cgroups",
	"topology-manager-policy", "volume-plugin-dir", "pod-infra-container-image", "runtime-cgroups", "kubelet-cgroups",
	"enable-controller-attach-detach", "hairpin-mode", "event-qps", "event-burst", "node-status-update-frequency",
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
	i.c.Warnings = append(i.c.Warnings, fmt.Sprintf("--%s is accepted, and not implemented", i.name))
	return nil
}

// IsBoolFlag lets boolean flags be given without a value.
func (i *ignored) IsBoolFlag() bool { return true }

// thresholds is signal<value, separated by commas.
type thresholds map[string]string

func (t *thresholds) Type() string { return "mapStringString" }

func (t *thresholds) String() string {
	var out []string
	for k, v := range *t {
		out = append(out, k+"<"+v)
	}
	slices.Sort(out)
	return strings.Join(out, ",")
}

func (t *thresholds) Set(s string) error {
	*t = thresholds{}
	for part := range strings.SplitSeq(s, ",") {
		if part == "" {
			continue
		}
		k, v, ok := strings.Cut(part, "<")
		if !ok {
			return fmt.Errorf("%q is not signal<value", part)
		}
		(*t)[strings.TrimSpace(k)] = strings.TrimSpace(v)
	}
	return nil
}

// taints is key=value:effect, separated by commas.
type taints []v1.Taint

func (t *taints) Type() string { return "[]v1.Taint" }

func (t *taints) String() string {
	var out []string
	for i := range *t {
		out = append(out, (*t)[i].ToString())
	}
	return strings.Join(out, ",")
}

func (t *taints) Set(s string) error {
	*t = nil
	for part := range strings.SplitSeq(s, ",") {
		if part == "" {
			continue
		}
		kv, effect, ok := strings.Cut(part, ":")
		key, value, _ := strings.Cut(kv, "=")
		if !ok || key == "" || !slices.Contains([]v1.TaintEffect{v1.TaintEffectNoSchedule, v1.TaintEffectPreferNoSchedule, v1.TaintEffectNoExecute}, v1.TaintEffect(effect)) {
			return fmt.Errorf("%q is not key=value:effect with effect NoSchedule, PreferNoSchedule or NoExecute", part)
		}
		*t = append(*t, v1.Taint{Key: key, Value: value, Effect: v1.TaintEffect(effect)})
	}
	return nil
}

// LoadFiles reads --config and --config-dir. Flags that were given win: they are set
// again afterwards. fs is the flag set that AddFlags filled, parsed.
func (c *Config) LoadFiles(fs *pflag.FlagSet) error {
	var files []string
	if c.ConfigFile != "" {
		files = append(files, c.ConfigFile)
	}
	if c.ConfigDir != "" {
		more, err := filepath.Glob(filepath.Join(c.ConfigDir, "*.conf"))
		if err != nil {
			return err
		}
		slices.Sort(more)
		files = append(files, more...)
	}
	again := given(fs)
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			return fmt.Errorf("kubelet configuration: %w", err)
		}
		if err := c.Merge(data); err != nil {
			return fmt.Errorf("kubelet configuration %s: %w", f, err)
		}
	}
	var errs []error
	for _, set := range again {
		errs = append(errs, set())
	}
	return errors.Join(errs...)
}

// given returns, for each flag that was given, what sets it to its value of now.
func given(fs *pflag.FlagSet) []func() error {
	var again []func() error
	fs.Visit(func(f *pflag.Flag) {
		if slice, ok := f.Value.(pflag.SliceValue); ok {
			values := slices.Clone(slice.GetSlice())
			again = append(again, func() error { return slice.Replace(values) })
			return
		}
		if _, none := f.Value.(*ignored); none {
			return
		}
		value := f.Value.String()
		if f.Value.Type() == "stringToString" {
			value = strings.Trim(value, "[]")
		}
		again = append(again, func() error { return f.Value.Set(value) })
	})
	return again
}

// Merge reads a KubeletConfiguration (YAML or JSON) over what is there.
func (c *Config) Merge(data []byte) error {
	var meta metav1.TypeMeta
	if err := yaml.Unmarshal(data, &meta); err != nil {
		return err
	}
	if meta.Kind != "KubeletConfiguration" || meta.APIVersion != kubeletconfig.SchemeGroupVersion.String() {
		return fmt.Errorf("kind %q of %q is not KubeletConfiguration of %s", meta.Kind, meta.APIVersion, kubeletconfig.SchemeGroupVersion)
	}
	if err := yaml.UnmarshalStrict(data, &c.KubeletConfiguration); err != nil {
		return err
	}
	var fields map[string]any
	if err := yaml.Unmarshal(data, &fields); err != nil {
		return err
	}
	for _, name := range unimplementedFields {
		if _, ok := fields[name]; ok {
			c.Warnings = append(c.Warnings, fmt.Sprintf("KubeletConfiguration: %s is accepted, and not implemented", name))
		}
	}
	return nil
}

// unimplementedFields of KubeletConfiguration are accepted with a warning.
var unimplementedFields = []string{
	"staticPodURL", "readOnlyPort", "tlsCipherSuites", "tlsMinVersion", "tlsCurvePreferences", "rotateCertificates",
	"serverTLSBootstrap", "registryPullQPS", "registryBurst", "imagePullCredentialsVerificationPolicy", "imageMinimumGCAge",
	"imageMaximumGCAge", "imageGCHighThresholdPercent", "imageGCLowThresholdPercent", "cpuManagerPolicy", "memoryManagerPolicy",
	"topologyManagerPolicy", "qosReserved", "serializeImagePulls", "maxParallelImagePulls", "evictionSoft", "evictionSoftGracePeriod",
	"evictionMinimumReclaim", "podsPerCore", "protectKernelDefaults", "memorySwap", "reservedSystemCPUs", "systemReservedCgroup",
	"kubeReservedCgroup", "enforceNodeAllocatable", "shutdownGracePeriod", "shutdownGracePeriodCriticalPods",
	"shutdownGracePeriodByPodPriority", "reservedMemory", "memoryThrottlingFactor", "tracing", "runOnce",
}
