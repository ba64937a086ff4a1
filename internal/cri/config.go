// Package cri is Wherry's container runtime: the CRI v1 RuntimeService and
// ImageService, for the kubelet in the same process and for others over a socket.
//
// What it guarantees: the folder of a sandbox or container is the truth. It is written before the
// effect, and everything is rebuilt from disk at start. Killing Wherry at any moment loses no
// container, exit code or log line and leaks nothing; every verb can be repeated afterwards.
// Containers do not notice when Wherry stops.
//
// It never sees a Kubernetes Pod: it knows only what CRI tells it.
//
// This package has the verbs, a file each. What they act on has packages of its own: sandbox and
// container (one of each, from its record to its removal), imageservice, stream (exec, attach,
// port-forward), stats and metrics, and below them disk (folders and records), monitor (conmon's
// processes), rootfs, confine (seccomp, AppArmor, SELinux, CDI, ulimits) and crierror.
package cri

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"k8s.io/klog/v2"

	"wherry.dev/internal/cni"
	"wherry.dev/internal/cri/disk"
	"wherry.dev/internal/oci"
	"wherry.dev/internal/record"
)

// Config describes one instance of the runtime. Instances on the same machine differ in Root,
// State, InstanceID and the pod network.
type Config struct {
	Root       string // durable: records, writable layers
	State      string // not needed after a reboot: sockets, mounts, namespaces; best on a tmpfs
	Socket     string // the CRI socket; "" serves in-process callers only
	InstanceID string // short; makes the bridge, the nftables table and the cgroups unique

	Runtimes       map[string]RuntimeConfig // by handler name, in addition to the crun and runc found in PATH
	DefaultRuntime string                   // for the empty handler; "" means crun if there is one, else runc
	Conmon         string                   // "" means the one in PATH

	PodCIDR  netip.Prefix // addresses for pods on our bridge; zero means 10.88.0.0/16
	PodCIDR2 netip.Prefix // of the other IP family, to give each pod two addresses; zero means none
	// AwaitPodCIDR: PodCIDR and PodCIDR2 are not known, and are what UpdateRuntimeConfig last told. Until it has told any
	// the network is not ready.
	AwaitPodCIDR bool
	Overlay      string         // the link to other nodes' pods whose packets may be smaller than the bridge's; "" if there is none
	ClusterCIDRs []netip.Prefix // the networks of all nodes' pods, which see each other's own addresses
	Bridge       string         // its name; "" means wh- and the instance ID
	MTU          int            // of the bridge; 0 means 1500
	CNIConfDir   string         // "" means always our own bridge
	Guard        cni.Guard      `json:"-"` // of pods on our bridge; nil admits everybody
	CNIOnly      bool           // no bridge of our own: not ready until there is a CNI network
	CNIBinDirs   []string
	CNITimeout   time.Duration // for each call of a chain of plugins; 0 means up to two minutes

	DefaultUlimits []string // for every container, such as nofile=1024:2048
	CDISpecDirs    []string // of CDI devices; nil means /etc/cdi and /var/run/cdi

	StreamAddress string // where exec, attach and port-forward are served; "" means 127.0.0.1:0
	Version       string // of Wherry, for the Version call

	Progress func(string) `json:"-"` // called with what a start waits for; nil only logs it
}

// RuntimeConfig is an OCI runtime for one handler.
type RuntimeConfig struct {
	Path    string   `json:"path"`              // path of the executable, or its name in PATH
	Type    string   `json:"type,omitempty"`    // whose command line it takes: oci.Crun or oci.Runc; "" goes by its name
	Options []string `json:"options,omitempty"` // arguments before every command
}

// Check returns an error if New could not work: a program is not installed, or settings
// contradict each other. It creates nothing.
func (c Config) Check() error {
	_, err := c.withDefaults()
	return err
}

// withDefaults fills in the fields left empty and finds the required programs.
func (c Config) withDefaults() (Config, error) {
	if c.Root == "" || c.State == "" {
		return c, errors.New("cri: Root and State must be set")
	}
	if c.InstanceID == "" || len(c.InstanceID) > 8 || strings.Trim(c.InstanceID, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
		return c, fmt.Errorf("cri: instance ID %q: want 1 to 8 characters of a-z, 0-9 and -", c.InstanceID)
	}
	c = c.withNetworkDefaults()
	if c.StreamAddress == "" {
		c.StreamAddress = "127.0.0.1:0"
	}
	if c.CDISpecDirs == nil {
		c.CDISpecDirs = []string{"/etc/cdi", "/var/run/cdi"}
	}
	if c.Version == "" {
		c.Version = "0.0.0"
	}
	for _, l := range c.DefaultUlimits {
		if _, err := oci.ParseUlimit(l); err != nil {
			return c, fmt.Errorf("cri: %w", err)
		}
	}
	return c.withPrograms()
}

func (c Config) withNetworkDefaults() Config {
	if !c.PodCIDR.IsValid() && !c.AwaitPodCIDR {
		c.PodCIDR = netip.MustParsePrefix("10.88.0.0/16")
	}
	if c.AwaitPodCIDR {
		c.PodCIDR, c.PodCIDR2 = c.toldPodNetworks()
	}
	if c.Bridge == "" {
		c.Bridge = "wh-" + c.InstanceID
	}
	if len(c.CNIBinDirs) == 0 {
		c.CNIBinDirs = []string{"/opt/cni/bin"}
	}
	return c
}

// podNetworks is where is kept what UpdateRuntimeConfig last told.
func (c Config) podNetworks() string { return filepath.Join(c.Root, "pod-networks.json") }

// toldPodNetworks returns it; nothing, if there is no record that can be read.
func (c Config) toldPodNetworks() (first, second netip.Prefix) {
	var told []netip.Prefix
	if _, err := record.Read(c.podNetworks(), &told); err != nil && !errors.Is(err, fs.ErrNotExist) {
		klog.Background().Error(err, "The node's range of addresses is lost, waiting to be told again")
	}
	told = append(told, netip.Prefix{}, netip.Prefix{})
	return told[0], told[1]
}

// withPrograms finds conmon and the OCI runtimes.
func (c Config) withPrograms() (Config, error) {
	var missing []string
	var err error
	if c.Conmon == "" {
		if c.Conmon, err = exec.LookPath("conmon"); err != nil {
			missing = append(missing, "conmon")
		}
	}
	found := map[string]RuntimeConfig{}
	for _, name := range []string{oci.Crun, oci.Runc} {
		if path, err := exec.LookPath(name); err == nil {
			found[name] = RuntimeConfig{Path: path}
		}
	}
	for name, r := range c.Runtimes {
		if found[name], err = r.resolve(name); err != nil {
			return c, err
		}
	}
	if len(found) == 0 {
		missing = append(missing, "crun")
	}
	if len(missing) > 0 {
		return c, fmt.Errorf("cri: %s not found in PATH; install it: apt-get install %s, or dnf install %s",
			strings.Join(missing, " and "), strings.Join(missing, " "), strings.Join(missing, " "))
	}
	c.Runtimes = found
	return c.withDefaultRuntime()
}

// handlerName matches a DNS label (RFC 1123).
var handlerName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

func (r RuntimeConfig) resolve(handler string) (RuntimeConfig, error) {
	if !handlerName.MatchString(handler) {
		return r, fmt.Errorf("cri: runtime handler %q: want a DNS label, as in a RuntimeClass: up to 63 characters of a-z, 0-9 and -", handler)
	}
	switch r.Type {
	case "", oci.Crun, oci.Runc:
	default:
		return r, fmt.Errorf("cri: runtime handler %s: type %q must be %s or %s: the command line that the runtime understands (containerd's shims are not supported)",
			handler, r.Type, oci.Crun, oci.Runc)
	}
	path, err := exec.LookPath(r.Path)
	if err != nil {
		return r, fmt.Errorf("cri: runtime handler %s: %w", handler, err)
	}
	r.Path = path
	return r, nil
}

func (c Config) withDefaultRuntime() (Config, error) {
	if c.DefaultRuntime == "" {
		for _, name := range append([]string{oci.Crun, oci.Runc}, slices.Sorted(maps.Keys(c.Runtimes))...) {
			if _, ok := c.Runtimes[name]; ok {
				c.DefaultRuntime = name
				break
			}
		}
	}
	if _, ok := c.Runtimes[c.DefaultRuntime]; !ok {
		return c, fmt.Errorf("cri: the default runtime %s is not configured", c.DefaultRuntime)
	}
	return c, nil
}

func (c Config) layout() disk.Layout { return disk.Layout{Root: c.Root, State: c.State} }

// cgroupRoot returns the parent of the instance's cgroups that no caller has placed elsewhere.
func (c Config) cgroupRoot() string { return "/wherry-" + c.InstanceID }

// monitorCgroup returns the cgroup of the conmons.
func (c Config) monitorCgroup() string { return c.cgroupRoot() + "/monitor" }

func (c Config) network() cni.Config {
	var subnets []netip.Prefix
	for _, p := range []netip.Prefix{c.PodCIDR, c.PodCIDR2} {
		if p.IsValid() {
			subnets = append(subnets, p)
		}
	}
	return cni.Config{
		Awaits: c.AwaitPodCIDR,
		Bridge: cni.BridgeConfig{
			Name: c.Bridge, Table: "wherry-" + c.InstanceID, Subnets: subnets, Cluster: c.ClusterCIDRs, Overlay: c.Overlay, MTU: c.MTU,
			Dir: filepath.Join(c.State, "network"), Guard: c.Guard,
		},
		// In the durable folder: what plugins hold outlives a reboot, so the knowledge of how to
		// release it must, too.
		Plugins:     cni.PluginsConfig{ConfDir: c.CNIConfDir, BinDirs: c.CNIBinDirs, CacheDir: filepath.Join(c.Root, "cni"), Timeout: c.CNITimeout},
		PluginsOnly: c.CNIOnly,
	}
}
