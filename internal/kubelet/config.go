package kubelet

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"
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
	// Kubeconfig of the API server; what counts for New is Deps.Client.
	Kubeconfig string
	// ConfigFile and ConfigDir are read by LoadFiles.
	ConfigFile, ConfigDir string

	// Warnings collects what was accepted and is not implemented; Run logs them.
	Warnings []string
}

// DefaultConfig is what upstream's kubelet has without flags and config file.
func DefaultConfig() Config {
	return Config{
		RootDir: "/var/lib/kubelet", ContainerLogsDir: "/var/log/containers", RegisterSchedulable: true,
		KubeletConfiguration: kubeletconfig.KubeletConfiguration{
			ContainerRuntimeEndpoint: "unix:///run/containerd/containerd.sock", CgroupDriver: "cgroupfs",
			PodLogsDir: "/var/log/pods", Address: "0.0.0.0", Port: 10250,
			HealthzPort: new(int32(10248)), HealthzBindAddress: "127.0.0.1",
			EnableServer: new(true), EnableDebuggingHandlers: new(true), EnableProfilingHandler: new(true),
			RegisterNode: new(true), MaxPods: 110, PodPidsLimit: new(int64(-1)),
			ResolverConfig: new("/etc/resolv.conf"), CPUCFSQuota: new(true),
			SyncFrequency:             metav1.Duration{Duration: time.Minute},
			NodeStatusReportFrequency: metav1.Duration{Duration: 5 * time.Minute},
			NodeStatusUpdateFrequency: metav1.Duration{Duration: 10 * time.Second},
			NodeLeaseDurationSeconds:  40, NodeStatusMaxImages: new(int32(50)),
			RuntimeRequestTimeout: metav1.Duration{Duration: 2 * time.Minute},
			EventRecordQPS:        new(int32(50)), EventBurst: 100,
			ContainerLogMaxSize: "10Mi", ContainerLogMaxFiles: new(int32(5)),
			ContainerLogMonitorInterval: &metav1.Duration{Duration: 10 * time.Second},
			CgroupsPerQOS:               new(true), SeccompDefault: new(false),
			StreamingConnectionIdleTimeout: metav1.Duration{Duration: 4 * time.Hour},
			EvictionHard: map[string]string{
				"memory.available": "100Mi", "nodefs.available": "10%", "nodefs.inodesFree": "5%", "imagefs.available": "15%",
			},
			Authentication: kubeletconfig.KubeletAuthentication{
				Anonymous: kubeletconfig.KubeletAnonymousAuthentication{Enabled: new(false)},
				Webhook: kubeletconfig.KubeletWebhookAuthentication{
					Enabled: new(true), CacheTTL: metav1.Duration{Duration: 2 * time.Minute},
				},
			},
			Authorization: kubeletconfig.KubeletAuthorization{
				Mode: kubeletconfig.KubeletAuthorizationModeWebhook,
				Webhook: kubeletconfig.KubeletWebhookAuthorization{
					CacheAuthorizedTTL:   metav1.Duration{Duration: 5 * time.Minute},
					CacheUnauthorizedTTL: metav1.Duration{Duration: 30 * time.Second},
				},
			},
			ImageGCHighThresholdPercent: new(int32(85)), ImageGCLowThresholdPercent: new(int32(80)),
		},
	}
}

// complete fills in what follows from the rest, and refuses what cannot work.
func (c *Config) complete() error {
	if c.NodeName == "" {
		host, err := os.Hostname()
		if err != nil {
			return fmt.Errorf("node name: %w; set --hostname-override", err)
		}
		c.NodeName = strings.ToLower(strings.TrimSpace(host))
	}
	if msgs := validation.IsDNS1123Subdomain(c.NodeName); len(msgs) > 0 {
		return fmt.Errorf("node name %q: %s; set --hostname-override", c.NodeName, strings.Join(msgs, ", "))
	}
	if c.CertDir == "" {
		c.CertDir = filepath.Join(c.RootDir, "pki")
	}
	if c.HealthzPort == nil {
		c.HealthzPort = new(int32)
	}
	var errs []error
	for _, dir := range []struct{ flag, path string }{
		{"--root-dir", c.RootDir}, {"--pod-logs-dir", c.PodLogsDir}, {"--pod-manifest-path", c.StaticPodPath},
	} {
		if dir.path != "" && !filepath.IsAbs(dir.path) {
			errs = append(errs, fmt.Errorf("%s %q must be an absolute path", dir.flag, dir.path))
		}
	}
	if c.RootDir == "" || c.PodLogsDir == "" {
		errs = append(errs, errors.New("--root-dir and podLogsDir must not be empty"))
	}
	if net.ParseIP(c.Address) == nil {
		errs = append(errs, fmt.Errorf("--address %q is not an IP address", c.Address))
	}
	for _, ip := range c.ClusterDNS {
		if net.ParseIP(ip) == nil {
			errs = append(errs, fmt.Errorf("--cluster-dns %q is not an IP address", ip))
		}
	}
	for _, p := range []int32{c.Port, *c.HealthzPort} {
		if p < 0 || p > 65535 {
			errs = append(errs, fmt.Errorf("port %d is not between 0 and 65535", p))
		}
	}
	if c.MaxPods < 0 {
		errs = append(errs, fmt.Errorf("--max-pods %d must not be negative", c.MaxPods))
	}
	if c.NodeLeaseDurationSeconds < 4 {
		errs = append(errs, fmt.Errorf("nodeLeaseDurationSeconds %d must be at least 4", c.NodeLeaseDurationSeconds))
	}
	if _, err := c.reserved(0, 0); err != nil {
		errs = append(errs, err)
	}
	if _, err := resource.ParseQuantity(c.ContainerLogMaxSize); err != nil {
		errs = append(errs, fmt.Errorf("containerLogMaxSize %q: %w", c.ContainerLogMaxSize, err))
	}
	return errors.Join(errs...)
}

// reserved is what pods may not use: for the system, for Kubernetes, and what the
// hard eviction thresholds keep free.
func (c *Config) reserved(memory, storage int64) (v1.ResourceList, error) {
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
			add(v1.ResourceName(name), q)
		}
	}
	for signal, target := range map[string]struct {
		name  v1.ResourceName
		total int64
	}{"memory.available": {v1.ResourceMemory, memory}, "nodefs.available": {v1.ResourceEphemeralStorage, storage}} {
		if value := c.EvictionHard[signal]; value != "" {
			q, err := threshold(value, target.total)
			if err != nil {
				return nil, fmt.Errorf("--eviction-hard: %s: %w", signal, err)
			}
			add(target.name, q)
		}
	}
	return out, nil
}

// threshold reads an eviction threshold: a quantity, or a percentage of a total.
func threshold(s string, total int64) (resource.Quantity, error) {
	if p, ok := strings.CutSuffix(s, "%"); ok {
		n, err := strconv.ParseFloat(p, 64)
		if err != nil || n < 0 || n > 100 {
			return resource.Quantity{}, fmt.Errorf("%q is not a percentage", s)
		}
		return *resource.NewQuantity(int64(float64(total)*n/100), resource.BinarySI), nil
	}
	return resource.ParseQuantity(s)
}
