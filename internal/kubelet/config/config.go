// Package config is what a kubelet can be told: upstream's flags, config file and drop-ins,
// with their defaults and rules.
package config

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/cpuset"

	"wherry.dev/internal/kubelet/credential"
	"wherry.dev/internal/kubelet/eviction"
)

// Config is all that a kubelet can be told. What KubeletConfiguration has (package
// k8s.io/kubelet/config/v1beta1) is meant as documented there.
type Config struct {
	kubeletconfig.KubeletConfiguration

	// NodeName in the API; the host's name when empty.
	NodeName string
	// NodeIP to report, or two of different families, separated by a comma.
	NodeIP string
	// RootDir holds pods, records and plugins (/var/lib/kubelet).
	RootDir string
	// CertDir holds the serving certificate when none is configured (RootDir/pki).
	CertDir string
	// ContainerLogsDir gets a symlink for each container's log; empty for none.
	ContainerLogsDir string
	NodeLabels       map[string]string
	// RegisterSchedulable false registers the node as unschedulable.
	RegisterSchedulable bool
	// Kubeconfig of the API server; what counts is the client that is made of it.
	Kubeconfig string
	// BootstrapKubeconfig is what a Kubeconfig is got with.
	BootstrapKubeconfig string
	// CloudProvider "external" registers the node with the taint that a cloud
	// controller takes away.
	CloudProvider string
	// CredentialProviderConfig is a file or folder that tells of image credential
	// provider plugins, CredentialProviderBinDir the folder of their executables.
	CredentialProviderConfig, CredentialProviderBinDir string
	// ConfigFile and ConfigDir are read by LoadFiles.
	ConfigFile, ConfigDir string

	// NoClusterDNS says that clusterDNS is empty because the cluster has no DNS: that is no
	// mistake of this kubelet's configuration, of which each pod would be warned.
	NoClusterDNS bool

	// Flags, if not nil, are shown at /flagz.
	Flags *pflag.FlagSet

	// HangUp, set when the client is made, ends the client's connections, for a new certificate.
	HangUp func()
	// ignoredFlags were given.
	ignoredFlags []string
}

// Validate says, as a kubelet would, what is wrong with the configuration.
func (c *Config) Validate() error {
	filled := *c
	if err := filled.Complete(); err != nil {
		return fmt.Errorf("kubelet configuration: %w", err)
	}
	if c.CredentialProviderConfig != "" { // a plugin that is missing is told before anything is waited for
		if _, err := credential.Load(c.CredentialProviderConfig, c.CredentialProviderBinDir, nil); err != nil {
			return fmt.Errorf("kubelet configuration: %w", err)
		}
	}
	return nil
}

// Complete fills in what follows from the rest, and refuses what cannot work.
func (c *Config) Complete() error {
	if c.NodeName == "" {
		host, err := os.Hostname()
		if err != nil {
			return fmt.Errorf("node name: %w; set --hostname-override", err)
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

// Reserved is what pods may not use: for the system, for Kubernetes, and what the
// hard eviction thresholds keep free.
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
	if c.ReservedSystemCPUs != "" { // these CPUs, and not so many
		set, err := cpuset.Parse(c.ReservedSystemCPUs)
		if err != nil {
			return nil, fmt.Errorf("--reserved-cpus %s: %w", c.ReservedSystemCPUs, err)
		}
		add(v1.ResourceCPU, *resource.NewQuantity(int64(set.Size()), resource.DecimalSI))
	}
	for signal, target := range map[string]struct {
		name  v1.ResourceName
		total int64
	}{"memory.available": {v1.ResourceMemory, memory}, eviction.NodeFsAvailable: {v1.ResourceEphemeralStorage, storage}} {
		if value := c.EvictionHard[signal]; value != "" {
			q, err := eviction.Quantity(value, target.total)
			if err != nil {
				return nil, fmt.Errorf("--eviction-hard: %s: %w", signal, err)
			}
			add(target.name, q)
		}
	}
	return out, nil
}

// Swap that containers may use (memorySwap.swapBehavior).
const (
	SwapNone    = "NoSwap"
	SwapLimited = "LimitedSwap"
)

// PodLimit is how many pods a machine with so many CPUs may run.
func (c *Config) PodLimit(cpus int64) int64 {
	if c.PodsPerCore > 0 {
		return min(int64(c.PodsPerCore)*cpus, int64(c.MaxPods))
	}
	return int64(c.MaxPods)
}
