// Package config has everything that can be configured in a kubelet: upstream's flags, config file
// and drop-ins, with their defaults and rules.
package config

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/cpuset"

	"wherry.dev/internal/kubelet/credential"
	"wherry.dev/internal/kubelet/eviction"
)

// Config is the complete configuration of a kubelet. The fields of KubeletConfiguration (package
// k8s.io/kubelet/config/v1beta1) mean what is documented there.
type Config struct {
	kubeletconfig.KubeletConfiguration

	// NodeName in the API; if empty, the host's name.
	NodeName string
	// NodeIP to report, or two of different families, separated by a comma.
	NodeIP string
	// RootDir holds pods, records and plugins (/var/lib/kubelet).
	RootDir string
	// CertDir holds the serving certificate if none is configured (RootDir/pki).
	CertDir string
	// ContainerLogsDir gets a symlink for each container's log; empty for none.
	ContainerLogsDir string
	NodeLabels       map[string]string
	// RegisterSchedulable false registers the node as unschedulable.
	RegisterSchedulable bool
	// Kubeconfig of the API server. What counts is the client that is created from it.
	Kubeconfig string
	// BootstrapKubeconfig is used to obtain a Kubeconfig.
	BootstrapKubeconfig string
	// CloudProvider "external" registers the node with the taint that a cloud controller removes.
	CloudProvider string
	// CredentialProviderConfig is a file or directory that configures image credential
	// provider plugins; CredentialProviderBinDir is the directory of their executables.
	CredentialProviderConfig, CredentialProviderBinDir string
	// ConfigFile and ConfigDir are read by LoadFiles.
	ConfigFile, ConfigDir string

	// NoClusterDNS says that clusterDNS is empty because the cluster has no DNS. That is not a
	// configuration mistake of this kubelet that every pod should be warned about.
	NoClusterDNS bool

	// Flags, if not nil, are served at /flagz.
	Flags *pflag.FlagSet

	// HangUp, set when the client is created, closes the client's connections, for a new
	// certificate.
	HangUp func()
	// ignoredFlags are the flags that were given and have no effect.
	ignoredFlags []string
}

// Validate returns an error, in upstream's words, for what is wrong with the configuration.
func (c *Config) Validate() error {
	filled := *c
	if err := filled.Complete(); err != nil {
		return fmt.Errorf("kubelet configuration: %w", err)
	}
	if c.CredentialProviderConfig != "" { // report a missing plugin before waiting for anything
		if _, err := credential.Load(c.CredentialProviderConfig, c.CredentialProviderBinDir, nil); err != nil {
			return fmt.Errorf("kubelet configuration: %w", err)
		}
	}
	return nil
}

// Complete derives fields from others, and returns an error for what cannot work.
func (c *Config) Complete() error {
	if c.NodeName == "" {
		host, err := os.Hostname()
		if err != nil {
			return fmt.Errorf("no host name to use as the node name; set --hostname-override: %w", err)
		}
		c.NodeName = strings.ToLower(strings.TrimSpace(host))
	}
	if c.CertDir == "" {
		c.CertDir = filepath.Join(c.RootDir, "pki")
	}
	if c.HealthzPort == nil {
		c.HealthzPort = new(int32)
	}
	return c.validate()
}

// Reserved returns what pods may not use: what is reserved for the system and for Kubernetes, and
// what the hard eviction thresholds keep free.
func (c *Config) Reserved(memory, storage int64) (v1.ResourceList, error) {
	out := v1.ResourceList{}
	add := func(name v1.ResourceName, q resource.Quantity) {
		sum := out[name]
		sum.Add(q)
		out[name] = sum
	}
	for flag, list := range map[string]map[string]string{"--system-reserved": c.SystemReserved, "--kube-reserved": c.KubeReserved} {
		for name, value := range list {
			q, err := resource.ParseQuantity(value)
			if err != nil || q.Sign() < 0 {
				return nil, fmt.Errorf("%s: %s=%q is not a quantity", flag, name, value)
			}
			if name != string(v1.ResourceCPU) || c.ReservedSystemCPUs == "" {
				add(v1.ResourceName(name), q)
			}
		}
	}
	if c.ReservedSystemCPUs != "" { // these CPUs, rather than a number of them
		set, err := cpuset.Parse(c.ReservedSystemCPUs)
		if err != nil {
			return nil, fmt.Errorf("--reserved-cpus %s: %w", c.ReservedSystemCPUs, err)
		}
		add(v1.ResourceCPU, *resource.NewQuantity(int64(set.Size()), resource.DecimalSI))
	}
	for signal, target := range map[string]struct {
		name  v1.ResourceName
		total int64
	}{eviction.MemoryAvailable: {v1.ResourceMemory, memory}, eviction.NodeFsAvailable: {v1.ResourceEphemeralStorage, storage}} {
		if value := c.EvictionHard[signal]; value != "" {
			q, err := eviction.Kept(value, target.total)
			if err != nil {
				return nil, fmt.Errorf("--eviction-hard: %s: %w", signal, err)
			}
			add(target.name, q)
		}
	}
	return out, nil
}

// EvictionLimits returns the thresholds at which pods are evicted.
func (c *Config) EvictionLimits() eviction.Limits {
	return eviction.Limits{
		Hard: c.EvictionHard, Soft: c.EvictionSoft, SoftGrace: c.EvictionSoftGracePeriod, MinReclaim: c.EvictionMinimumReclaim,
		Pods: slices.Contains(c.EnforceNodeAllocatable, "pods"),
	}
}

// Swap behaviors for containers (memorySwap.swapBehavior).
const (
	SwapNone    = "NoSwap"
	SwapLimited = "LimitedSwap"
)

// PodLimit returns how many pods a machine with that many CPUs may run.
func (c *Config) PodLimit(cpus int64) int64 {
	if c.PodsPerCore > 0 {
		return min(int64(c.PodsPerCore)*cpus, int64(c.MaxPods))
	}
	return int64(c.MaxPods)
}
