package config

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/util/cert"
	cliflag "k8s.io/component-base/cli/flag"
	logsapi "k8s.io/component-base/logs/api/v1"
	tracing "k8s.io/component-base/tracing/api/v1"
	"k8s.io/component-helpers/node/util/sysctl"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"
	kubeletapis "k8s.io/kubelet/pkg/apis"
	"k8s.io/utils/cpuset"
	"k8s.io/utils/ptr"

	apivalidation "wherry.dev/internal/api/validation"
	"wherry.dev/internal/kubelet/cpus"
	"wherry.dev/internal/kubelet/eviction"
	"wherry.dev/internal/kubelet/memory"
	"wherry.dev/internal/kubelet/numa"
	"wherry.dev/internal/kubelet/podplan"
	"wherry.dev/internal/safepath"
)

// problems collects, in upstream's words, what is wrong with a configuration.
type problems struct{ list []error }

func (p *problems) add(format string, args ...any) {
	p.list = append(p.list, fmt.Errorf("invalid configuration: "+format, args...))
}

// check adds a problem unless ok.
func (p *problems) check(ok bool, format string, args ...any) {
	if !ok {
		p.add(format, args...)
	}
}

// validate returns an error for what cannot work, with the field, its value and what would be
// valid.
func (c *Config) validate() error {
	p := &problems{}
	c.validateFlags(p)
	c.validateServer(p)
	c.validateNumbers(p)
	c.validateNode(p)
	c.validateShutdown(p)
	c.validateReserved(p)
	k := &c.KubeletConfiguration
	if err := podplan.CheckSysctlPatterns(k.AllowedUnsafeSysctls); err != nil {
		p.add("allowedUnsafeSysctls: %v", err)
	}
	c.validateSysctls(p)
	for _, err := range logsapi.Validate(&k.Logging, nil, field.NewPath("logging")) {
		p.list = append(p.list, err)
	}
	for _, err := range tracing.ValidateTracingConfiguration(k.Tracing, nil, field.NewPath("tracing")) {
		p.list = append(p.list, err)
	}
	return errors.Join(p.list...)
}

func (c *Config) validateFlags(p *problems) {
	if msgs := validation.IsDNS1123Subdomain(c.NodeName); len(msgs) > 0 {
		p.list = append(p.list, fmt.Errorf("node name %q: %s; set --hostname-override", c.NodeName, strings.Join(msgs, ", ")))
	}
	for flag, path := range map[string]string{"--root-dir": c.RootDir, "--cert-dir": c.CertDir, "--pod-manifest-path": c.StaticPodPath} {
		if path != "" && !filepath.IsAbs(path) {
			p.list = append(p.list, fmt.Errorf("%s %q must be an absolute path", flag, path))
		}
	}
	p.check(c.RootDir != "", "--root-dir must not be empty")
	if c.CloudProvider != "" && c.CloudProvider != "external" {
		p.list = append(p.list, fmt.Errorf("--cloud-provider %q: unknown cloud provider, want external or nothing", c.CloudProvider))
	}
	c.validateLabels(p)
}

// validateLabels refuses Kubernetes' own labels that a kubelet may not set: NodeRestriction would
// refuse the node.
func (c *Config) validateLabels(p *problems) {
	var unknown []string
	for _, key := range slices.Sorted(maps.Keys(c.NodeLabels)) {
		if isKubernetesLabel(key) && !kubeletapis.IsKubeletLabel(key) {
			unknown = append(unknown, key)
		}
		msgs := append(validation.IsQualifiedName(key), validation.IsValidLabelValue(c.NodeLabels[key])...)
		if len(msgs) > 0 {
			p.list = append(p.list, fmt.Errorf("invalid node labels: '%s=%s' - %s", key, c.NodeLabels[key], strings.Join(msgs, ", ")))
		}
	}
	if len(unknown) > 0 {
		p.list = append(p.list, fmt.Errorf("unknown 'kubernetes.io' or 'k8s.io' labels specified with --node-labels: %v\n"+
			"--node-labels in the 'kubernetes.io' namespace must begin with an allowed prefix (%s) or be in the specifically allowed set (%s)",
			unknown, strings.Join(kubeletapis.KubeletLabelNamespaces(), ", "), strings.Join(kubeletapis.KubeletLabels(), ", ")))
	}
}

func isKubernetesLabel(key string) bool {
	ns, _, ok := strings.Cut(key, "/")
	return ok && (ns == "kubernetes.io" || strings.HasSuffix(ns, ".kubernetes.io") || ns == "k8s.io" || strings.HasSuffix(ns, ".k8s.io"))
}

func (c *Config) validateServer(p *problems) {
	k := &c.KubeletConfiguration
	for name, address := range map[string]string{"address (--address)": k.Address, "healthzBindAddress (--healthz-bind-address)": k.HealthzBindAddress} {
		p.check(net.ParseIP(address) != nil, "%s %q is not an IP address", name, address)
	}
	for name, port := range map[string]int32{
		"port (--port)": k.Port, "healthzPort (--healthz-port)": *k.HealthzPort, "readOnlyPort (--read-only-port)": k.ReadOnlyPort,
	} {
		p.check(port >= 0 && port <= 65535, "%s %v must be between 0 and 65535, inclusive", name, port)
	}
	switch k.Authorization.Mode {
	case kubeletconfig.KubeletAuthorizationModeAlwaysAllow, kubeletconfig.KubeletAuthorizationModeWebhook:
	default:
		p.add("authorization.mode (--authorization-mode) %q must be one of: %q, %q", k.Authorization.Mode,
			kubeletconfig.KubeletAuthorizationModeAlwaysAllow, kubeletconfig.KubeletAuthorizationModeWebhook)
	}
	if _, err := cliflag.TLSVersion(k.TLSMinVersion); err != nil {
		p.add("tlsMinVersion (--tls-min-version): %v; possible values: %s", err, strings.Join(cliflag.TLSPossibleVersions(), ", "))
	}
	if _, err := cliflag.TLSCipherSuites(k.TLSCipherSuites); err != nil {
		p.add("tlsCipherSuites (--tls-cipher-suites): %v; preferred values: %s", err, strings.Join(cliflag.PreferredTLSCipherNames(), ", "))
	}
	if _, err := cliflag.TLSCurvePreferences(k.TLSCurvePreferences); err != nil {
		p.add("tlsCurvePreferences: %v", err)
	}
	for name, file := range map[string]string{
		"tlsCertFile (--tls-cert-file)": k.TLSCertFile, "tlsPrivateKeyFile (--tls-private-key-file)": k.TLSPrivateKeyFile,
		"--kubeconfig": c.Kubeconfig, "--bootstrap-kubeconfig": c.BootstrapKubeconfig,
	} {
		if err := safepath.CheckFile(file); err != nil {
			p.add("%s: %v", name, err)
		}
	}
	if file := k.Authentication.X509.ClientCAFile; file != "" {
		err := safepath.CheckFile(file)
		if err == nil {
			_, err = cert.NewPool(file)
		}
		if err != nil {
			p.add("authentication.x509.clientCAFile (--client-ca-file): %v", err)
		}
	}
	p.check((k.TLSCertFile == "") == (k.TLSPrivateKeyFile == ""),
		"tlsCertFile (--tls-cert-file) and tlsPrivateKeyFile (--tls-private-key-file) must be set together")
	p.check(!ptr.Deref(k.EnableSystemLogQuery, false) || ptr.Deref(k.EnableSystemLogHandler, true),
		"enableSystemLogHandler is required for enableSystemLogQuery")
	p.check(!k.RunOnce, "runOnce (--runOnce) %v, Runonce mode has been deprecated and should not be set", k.RunOnce)
	p.check(k.ContainerRuntimeEndpoint != "", "the containerRuntimeEndpoint was not specified or empty")
}

func (c *Config) validateNumbers(p *problems) {
	k := &c.KubeletConfiguration
	for name, n := range map[string]int64{
		"eventBurst (--event-burst)": int64(k.EventBurst), "eventRecordQPS (--event-qps)": int64(*k.EventRecordQPS),
		"kubeAPIBurst (--kube-api-burst)": int64(k.KubeAPIBurst), "kubeAPIQPS (--kube-api-qps)": int64(*k.KubeAPIQPS),
		"maxOpenFiles (--max-open-files)": k.MaxOpenFiles, "maxPods (--max-pods)": int64(k.MaxPods),
		"podsPerCore (--pods-per-core)": int64(k.PodsPerCore), "registryBurst (--registry-burst)": int64(k.RegistryBurst),
		"registryPullQPS (--registry-qps)": int64(*k.RegistryPullQPS),
	} {
		p.check(n >= 0, "%s %v must not be a negative number", name, n)
	}
	for name, n := range map[string]int32{
		"imageGCHighThresholdPercent (--image-gc-high-threshold)": *k.ImageGCHighThresholdPercent,
		"imageGCLowThresholdPercent (--image-gc-low-threshold)":   *k.ImageGCLowThresholdPercent,
	} {
		p.check(n >= 0 && n <= 100, "%s %v must be between 0 and 100, inclusive", name, n)
	}
	p.check(*k.ImageGCLowThresholdPercent < *k.ImageGCHighThresholdPercent,
		"imageGCLowThresholdPercent (--image-gc-low-threshold) %v must be less than imageGCHighThresholdPercent (--image-gc-high-threshold) %v",
		*k.ImageGCLowThresholdPercent, *k.ImageGCHighThresholdPercent)
	least, most := k.ImageMinimumGCAge.Duration, k.ImageMaximumGCAge.Duration
	p.check(least >= 0, "imageMinimumGCAge %v must not be negative", least)
	p.check(most >= 0, "imageMaximumGCAge %v must not be negative", most)
	p.check(most <= 0 || most > least, "imageMaximumGCAge %v must be greater than imageMinimumGCAge %v", most, least)
	switch period := k.CPUCFSQuotaPeriod.Duration; {
	case !c.FeatureGates[gateCFSPeriod]:
		p.check(period == 100*time.Millisecond, "cpuCFSQuotaPeriod (--cpu-cfs-quota-period) %v requires feature gate %s", *k.CPUCFSQuotaPeriod, gateCFSPeriod)
	default:
		p.check(period >= time.Millisecond && period <= time.Second, "cpuCFSQuotaPeriod (--cpu-cfs-quota-period) %v must be between 1ms and 1sec, inclusive", *k.CPUCFSQuotaPeriod)
	}
	if f := k.MemoryThrottlingFactor; f != nil {
		p.check(*f > 0 && *f <= 1, "memoryThrottlingFactor %v must be greater than 0 and less than or equal to 1.0", *f)
	}
	p.check(k.MemoryReservationPolicy == kubeletconfig.NoneMemoryReservationPolicy || k.MemoryReservationPolicy == kubeletconfig.TieredReservationMemoryReservationPolicy,
		"option %q specified for memoryReservationPolicy. Valid options are %q or %q", k.MemoryReservationPolicy,
		kubeletconfig.NoneMemoryReservationPolicy, kubeletconfig.TieredReservationMemoryReservationPolicy)
	p.check(k.NodeLeaseDurationSeconds > 0, "nodeLeaseDurationSeconds must be greater than 0")
	p.check(*k.NodeStatusMaxImages >= -1, "nodeStatusMaxImages (--node-status-max-images) %v must be -1 or greater", *k.NodeStatusMaxImages)
	p.check(*k.OOMScoreAdj >= -1000 && *k.OOMScoreAdj <= 1000, "oomScoreAdj (--oom-score-adj) %v must be between -1000 and 1000, inclusive", *k.OOMScoreAdj)
	p.check(k.MaxParallelImagePulls == nil || *k.MaxParallelImagePulls <= 1 || !*k.SerializeImagePulls,
		"maxParallelImagePulls cannot be larger than 1 unless SerializeImagePulls (--serialize-image-pulls) is set to false")
	p.check(k.MaxParallelImagePulls == nil || *k.MaxParallelImagePulls >= 1, "maxParallelImagePulls %v must be a positive number", ptr.Deref(k.MaxParallelImagePulls, 0))
	if _, err := resource.ParseQuantity(k.ContainerLogMaxSize); err != nil {
		p.add("containerLogMaxSize (--container-log-max-size) %q: %v", k.ContainerLogMaxSize, err)
	}
	p.check(*k.ContainerLogMaxFiles > 1, "containerLogMaxFiles must be greater than 1")
	p.check(*k.ContainerLogMaxWorkers >= 1, "containerLogMaxWorkers must be greater than or equal to 1")
	p.check(k.ContainerLogMonitorInterval.Duration >= 3*time.Second, "containerLogMonitorInterval must be a positive time duration greater than or equal to 3s")
	p.check(k.PodLogsDir != "", "podLogsDir was not specified")
	p.check(filepath.IsAbs(k.PodLogsDir), "pod logs path %q must be absolute path", k.PodLogsDir)
	p.check(filepath.Clean(k.PodLogsDir) == k.PodLogsDir, "pod logs path %q must be normalized", k.PodLogsDir)
	if d := k.CrashLoopBackOff.MaxContainerRestartPeriod; d != nil {
		p.check(d.Duration >= time.Second && d.Duration <= 300*time.Second,
			"CrashLoopBackOff.MaxContainerRestartPeriod (got: %v seconds) must be set between 1s and 300s", d.Seconds())
	}
}

func (c *Config) validateNode(p *problems) {
	k := &c.KubeletConfiguration
	for _, ip := range k.ClusterDNS {
		p.check(net.ParseIP(ip) != nil, "clusterDNS (--cluster-dns) %q is not an IP address", ip)
	}
	for i := range k.RegisterWithTaints {
		t := &k.RegisterWithTaints[i]
		p.check(validTaint(t.Key, t.Value, t.Effect), "registerWithTaints (--register-with-taints) %q: want key=value:effect, with effect NoSchedule, PreferNoSchedule or NoExecute", t.ToString())
		p.check(t.TimeAdded == nil, "taint.TimeAdded is not nil")
	}
	switch k.MemorySwap.SwapBehavior {
	case "", SwapNone, SwapLimited:
	default:
		p.add("memorySwap.swapBehavior %q must be one of: \"\", %q or %q", k.MemorySwap.SwapBehavior, SwapLimited, SwapNone)
	}
	seen := map[string]bool{}
	for _, one := range []string{"system-reserved", "kube-reserved"} {
		both := slices.Contains(k.EnforceNodeAllocatable, one) && slices.Contains(k.EnforceNodeAllocatable, one+"-compressible")
		p.check(!both, "both %q and %q cannot be specified together in enforceNodeAllocatable (--enforce-node-allocatable)", one, one+"-compressible")
	}
	for _, what := range k.EnforceNodeAllocatable {
		p.check(!seen[what], "duplicated enforcements %q in enforceNodeAllocatable (--enforce-node-allocatable)", what)
		seen[what] = true
		p.check(what == "none" || *k.CgroupsPerQOS, "cgroupsPerQOS (--cgroups-per-qos) must be set to true when %q contained in enforceNodeAllocatable (--enforce-node-allocatable)", what)
		switch what {
		case "pods":
		case "none":
			p.check(len(k.EnforceNodeAllocatable) == 1,
				"enforceNodeAllocatable (--enforce-node-allocatable) may not contain additional enforcements when %q is specified", what)
		case "system-reserved", "system-reserved-compressible":
			p.check(k.SystemReservedCgroup != "", "systemReservedCgroup (--system-reserved-cgroup) must be specified when %q included in enforceNodeAllocatable (--enforce-node-allocatable)", what)
		case "kube-reserved", "kube-reserved-compressible":
			p.check(k.KubeReservedCgroup != "", "kubeReservedCgroup (--kube-reserved-cgroup) must be specified when %q included in enforceNodeAllocatable (--enforce-node-allocatable)", what)
		default:
			p.add("option %q specified for enforceNodeAllocatable (--enforce-node-allocatable). Valid options are %q, %q, %q, %q, %q or %q",
				what, "pods", "system-reserved", "system-reserved-compressible", "kube-reserved", "kube-reserved-compressible", "none")
		}
	}
}

func (c *Config) validateShutdown(p *problems) {
	k := &c.KubeletConfiguration
	whole, critical := k.ShutdownGracePeriod.Duration, k.ShutdownGracePeriodCriticalPods.Duration
	p.check(critical <= whole, "shutdownGracePeriodCriticalPods %v must be <= shutdownGracePeriod %v", critical, whole)
	for name, d := range map[string]time.Duration{"shutdownGracePeriod": whole, "shutdownGracePeriodCriticalPods": critical} {
		p.check(d == 0 || d >= time.Second, "%s %v must be either zero or otherwise >= 1 sec", name, d)
	}
	p.check(len(k.ShutdownGracePeriodByPodPriority) == 0 || whole == 0 && critical == 0,
		"Cannot specify both shutdownGracePeriodByPodPriority and shutdownGracePeriod at the same time")
}

// validateSysctls refuses, for all pods, patterns and sysctls that belong to the whole machine.
func (c *Config) validateSysctls(p *problems) {
	p.check(len(c.DefaultPodSysctls) == 0 || c.FeatureGates[gatePodSysctls], "defaultPodSysctls requires feature gate %s", gatePodSysctls)
	seen := map[string]string{}
	for _, given := range slices.Sorted(maps.Keys(c.DefaultPodSysctls)) {
		ns, name, _ := sysctl.GetNamespace(given)
		p.check(ns != sysctl.UnknownNamespace, "defaultPodSysctls: the sysctl %q is not known to be namespaced", given)
		p.check(apivalidation.IsSysctlName(given), "defaultPodSysctls: %q is not a valid sysctl name", given)
		p.check(seen[name] == "", "defaultPodSysctls: %q and %q are the same sysctl", seen[name], given)
		seen[name] = given
	}
}

func (c *Config) validateReserved(p *problems) {
	k := &c.KubeletConfiguration
	for _, err := range []error{
		cpus.Check(k.CPUManagerPolicy, k.CPUManagerPolicyOptions, c.FeatureGates[cpus.AlphaOptions]),
		memory.Check(k.MemoryManagerPolicy, k.ReservedMemory),
		numa.Check(k.TopologyManagerPolicy, k.TopologyManagerScope, k.TopologyManagerPolicyOptions),
	} {
		if err != nil {
			p.list = append(p.list, err)
		}
	}
	if k.ReservedSystemCPUs != "" {
		p.check(k.SystemReservedCgroup == "" && k.KubeReservedCgroup == "",
			"can't use reservedSystemCPUs (--reserved-cpus) with systemReservedCgroup (--system-reserved-cgroup) or kubeReservedCgroup (--kube-reserved-cgroup)")
		if _, err := cpuset.Parse(k.ReservedSystemCPUs); err != nil {
			p.add("unable to parse reservedSystemCPUs (--reserved-cpus) %v, error: %v", k.ReservedSystemCPUs, err)
			return
		}
	}
	if _, err := c.Reserved(0, 0); err != nil {
		p.list = append(p.list, err)
	}
	if _, err := eviction.Parse(c.EvictionLimits()); err != nil {
		p.list = append(p.list, err)
	}
}
