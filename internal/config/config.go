// Package config has the one Config of `wherry up`: its defaults, how it is read from a file,
// drop-ins, the environment and flags, and how it is validated.
//
// Precedence, lowest first: defaults, config file, drop-ins in the order of their
// names, WHERRY_DATA_DIR and WHERRY_RUN_DIR, flags.
package config

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"

	"wherry.dev/internal/api/cluster"
	"wherry.dev/internal/safepath"
)

// Places that the default instance uses. With another --data-dir everything is kept below that, so
// that instances do not collide.
const (
	DefaultDataDir     = "/var/lib/wherry"
	DefaultRunDir      = "/run/wherry"
	DefaultConfigFile  = "/etc/wherry/config.yaml"
	DefaultManifestDir = "/etc/wherry/manifests"

	OwnProxy = "nftables"
	NoProxy  = "none"

	OwnStorage = "directories"
	NoStorage  = "none"

	// DefaultPodCIDR is a node's range of DefaultClusterCIDR.
	DefaultPodCIDR     = "10.244.0.0/24"
	DefaultClusterCIDR = "10.244.0.0/16"

	EnvDataDir = "WHERRY_DATA_DIR"
	EnvRunDir  = "WHERRY_RUN_DIR"
)

// Config is what one instance, a whole node, is started with. A config file uses the names of the
// flags.
type Config struct {
	DataDir string `json:"data-dir,omitempty"`
	RunDir  string `json:"run-dir,omitempty"`

	NodeName    string   `json:"node-name,omitempty"`
	NodeIP      string   `json:"node-ip,omitempty"`
	nodeIPFound bool     // nobody gave it
	NodeLabels  []string `json:"node-labels,omitempty"`
	BindAddress string   `json:"bind-address,omitempty"`
	SecurePort  int      `json:"secure-port,omitempty"`
	KubeletPort int      `json:"kubelet-port,omitempty"`

	// Role says what of a cluster runs here.
	Role Role `json:"role,omitempty"`
	// Server is the URL of the API server that a node has joined.
	Server string `json:"server,omitempty"`
	// JoinServer is the URL of a server whose cluster this one joins as another server, unless it has before.
	JoinServer string `json:"join-server,omitempty"`
	// Joined: the cluster tells this server what its networks are, and gives its node a range, as it does for nodes alone.
	Joined bool `json:"joined,omitempty"`
	// PeerPort is where the etcds of other servers reach this one's, once there are others.
	PeerPort int `json:"peer-port,omitempty"`

	// PodCIDR is this node's range of ClusterCIDR, the network of all pods. Nodes that join are given theirs.
	PodCIDR     string `json:"pod-cidr,omitempty"`
	ClusterCIDR string `json:"cluster-cidr,omitempty"`
	// NodeMask4 and NodeMask6 are the sizes of nodes' ranges, as lengths of prefixes.
	NodeMask4 int `json:"node-cidr-mask-size-ipv4,omitempty"`
	NodeMask6 int `json:"node-cidr-mask-size-ipv6,omitempty"`
	// NetworkMode says how pods reach those of other nodes: one of cluster.Mode….
	NetworkMode   string   `json:"network-mode,omitempty"`
	ServiceCIDR   string   `json:"service-cidr,omitempty"`
	ClusterDomain string   `json:"cluster-domain,omitempty"`
	ClusterDNS    []string `json:"cluster-dns,omitempty"`
	// DNS says who answers for the cluster's names: DNSBuiltin or DNSNone.
	DNS            string   `json:"dns,omitempty"`
	DNSResolvers   []string `json:"dns-resolver,omitempty"`
	DNSStubDomains []string `json:"dns-stub-domain,omitempty"`

	EtcdServers []string `json:"etcd-servers,omitempty"`
	// EncryptionConfig is a file that says how objects are encrypted in etcd; it is read again when it
	// changes if EncryptionReload is set.
	EncryptionConfig string `json:"encryption-provider-config,omitempty"`
	EncryptionReload bool   `json:"encryption-provider-config-automatic-reload,omitempty"`
	// APIServerArgs are flags of the API server, each NAME=VALUE.
	APIServerArgs []string `json:"apiserver-arg,omitempty"`
	// ControllerArgs are flags of the controllers, each NAME=VALUE.
	ControllerArgs []string `json:"controller-manager-arg,omitempty"`
	// KubeletArgs are flags of the kubelet, each NAME=VALUE.
	KubeletArgs []string `json:"kubelet-arg,omitempty"`

	ManifestDir string   `json:"pod-manifest-path,omitempty"`
	PodLogsDir  string   `json:"pod-logs-dir,omitempty"`
	CNIConfDir  string   `json:"cni-conf-dir,omitempty"`
	CNIBinDirs  []string `json:"cni-bin-dir,omitempty"`
	Runtime     string   `json:"runtime,omitempty"`
	// RuntimeEndpoint is the socket of another CRI runtime to use instead of our own.
	RuntimeEndpoint string `json:"container-runtime-endpoint,omitempty"`
	// Runtimes are additional OCI runtimes, keyed by the handler that a RuntimeClass names; they
	// can be set in a file only.
	Runtimes       map[string]Runtime `json:"runtimes,omitempty"`
	DefaultUlimits []string           `json:"default-ulimits,omitempty"`
	CDISpecDirs    []string           `json:"cdi-spec-dirs,omitempty"`

	RegistryCertsDirs        []string        `json:"registry-certs-dir,omitempty"`
	ImagePullProgressTimeout metav1.Duration `json:"image-pull-progress-timeout"`
	PinnedImages             []string        `json:"pinned-images,omitempty"`

	MaxPods int `json:"max-pods,omitempty"`
	// PodMaxPids is how many processes a pod may have; -1 for as many as the machine allows.
	PodMaxPids int64 `json:"pod-max-pids,omitempty"`
	// SeccompDefault confines containers whose pod says nothing about seccomp.
	SeccompDefault bool `json:"seccomp-default"`

	SchedulerConfig string `json:"scheduler-config,omitempty"`
	// LocalStorage says whether claims get directories on the node's disk: OwnStorage, or NoStorage.
	LocalStorage string `json:"local-storage,omitempty"`
	// CloudProvider is cluster.CloudExternal, or "" for no cloud.
	CloudProvider string `json:"cloud-provider,omitempty"`
	// Proxy says who makes services reachable: OwnProxy, or NoProxy for somebody else.
	Proxy     string `json:"proxy,omitempty"`
	Verbosity int    `json:"v,omitempty"`
}

// Runtime is a program that runs containers.
type Runtime struct {
	Path    string   `json:"path"`              // or its name in PATH
	Type    string   `json:"type,omitempty"`    // whose command line it takes: crun or runc
	Options []string `json:"options,omitempty"` // arguments before every command
}

// Default returns the defaults that do not depend on anything else.
func Default() Config {
	return Config{
		DataDir: DefaultDataDir, RunDir: DefaultRunDir,
		BindAddress: "0.0.0.0", SecurePort: 6443, KubeletPort: 10250, PeerPort: 2380,
		PodCIDR: DefaultPodCIDR, NetworkMode: cluster.ModeAuto, ServiceCIDR: "10.96.0.0/16", ClusterDomain: "cluster.local", DNS: DNSBuiltin,
		CNIBinDirs: []string{"/opt/cni/bin"}, Proxy: OwnProxy, LocalStorage: OwnStorage, MaxPods: 110, PodMaxPids: 4096, SeccompDefault: true,
		RegistryCertsDirs:        []string{"/etc/wherry/certs.d", "/etc/containerd/certs.d"},
		ImagePullProgressTimeout: metav1.Duration{Duration: 5 * time.Minute},
	}
}

// Dirs returns the data and run dirs from flags, environment and the default config file, in that
// order, for commands that only need to find their instance. If none of them names a run dir it is
// "", which means that of the instance's last start.
func Dirs(dataFlag, runFlag string) (data, run string, err error) {
	c := Config{DataDir: DefaultDataDir}
	if dataFlag == "" && os.Getenv(EnvDataDir) == "" {
		// a file that this user may not read counts as missing, as for kubectl with a user's own
		// config
		if err := c.Load(""); err != nil && !errors.Is(err, fs.ErrPermission) {
			return "", "", err
		}
	}
	c.fromEnv()
	if dataFlag != "" {
		c.DataDir = dataFlag
	}
	if runFlag != "" {
		c.RunDir = runFlag
	}
	return c.DataDir, c.RunDir, c.absolute()
}

func (c *Config) fromEnv() {
	if d := os.Getenv(EnvDataDir); d != "" {
		c.DataDir = d
	}
	if d := os.Getenv(EnvRunDir); d != "" {
		c.RunDir = d
	}
}

func (c *Config) absolute() error {
	for _, p := range []*string{&c.DataDir, &c.RunDir} {
		if *p == "" {
			continue
		}
		abs, err := filepath.Abs(*p)
		if err != nil {
			return err
		}
		*p = abs
	}
	return nil
}

// AddFlags binds every field to a flag; the values in c are the defaults that --help shows.
func (c *Config) AddFlags(f *pflag.FlagSet) {
	f.StringVar((*string)(&c.Role), "role", string(c.Role), "what runs here: server, for a control plane without a node (default: a server with a node; 'wherry join' is for nodes alone)")
	f.StringVar(&c.NodeName, "node-name", c.NodeName, "name of the node (default: the host name)")
	f.StringVar(&c.NodeIP, "node-ip", c.NodeIP, "address of the node, or two of different IP families separated by a comma (default: the address on the default route)")
	f.StringSliceVar(&c.NodeLabels, "node-labels", c.NodeLabels, "labels for the node, key=value")
	f.StringVar(&c.BindAddress, "bind-address", c.BindAddress, "address on which the API server and the kubelet listen")
	f.IntVar(&c.SecurePort, "secure-port", c.SecurePort, "port of the API server")
	f.StringVar(&c.JoinServer, "join-server", c.JoinServer, "URL of a server whose cluster this one joins as another server, with a token of 'wherry token create --server'; not looked at once it has joined")
	f.IntVar(&c.PeerPort, "peer-port", c.PeerPort, "port of --node-ip at which the etcds of other servers reach this one's, once there are others")
	f.IntVar(&c.KubeletPort, "kubelet-port", c.KubeletPort, "port of the kubelet")
	f.StringVar(&c.PodCIDR, "pod-cidr", c.PodCIDR, "network that this node's pods get their addresses from, or two of different IP families separated by a comma")
	f.StringVar(&c.ClusterCIDR, "cluster-cidr", c.ClusterCIDR, "network of all nodes' pods, from which nodes that join get their ranges (default "+DefaultClusterCIDR+", or --pod-cidr if that is given: then no node can join)")
	f.IntVar(&c.NodeMask4, "node-cidr-mask-size-ipv4", c.NodeMask4, "size of nodes' ranges, as the length of a prefix (default 24)")
	f.IntVar(&c.NodeMask6, "node-cidr-mask-size-ipv6", c.NodeMask6, "the same, for IPv6 (default 64)")
	f.StringVar(&c.NetworkMode, "network-mode", c.NetworkMode, "how pods reach those of other nodes: auto (routes to nodes on the same link, VXLAN to others), routes, vxlan, wireguard (encrypted, if the kernel has it), or none, for somebody else's network")
	f.StringVar(&c.ServiceCIDR, "service-cidr", c.ServiceCIDR, "network that services get their addresses from, or two of different IP families separated by a comma")
	f.StringVar(&c.ClusterDomain, "cluster-domain", c.ClusterDomain, "DNS domain of the cluster")
	c.addDNSFlags(f)
	f.StringSliceVar(&c.EtcdServers, "etcd-servers", c.EtcdServers, "URLs of an external etcd (default: etcd inside this process)")
	f.StringVar(&c.EncryptionConfig, "encryption-provider-config", c.EncryptionConfig, "file with an EncryptionConfiguration: how objects are encrypted in etcd")
	f.BoolVar(&c.EncryptionReload, "encryption-provider-config-automatic-reload", c.EncryptionReload, "read that file again when it changes")
	f.StringArrayVar(&c.APIServerArgs, "apiserver-arg", c.APIServerArgs, "a flag of 'wherry apiserver', NAME=VALUE, for authentication, authorization, admission, audit and the like; may be repeated")
	f.StringArrayVar(&c.ControllerArgs, "controller-manager-arg", c.ControllerArgs, "a flag of 'wherry controller-manager', NAME=VALUE, for autoscalers, grace periods of nodes and the like; may be repeated")
	f.StringArrayVar(&c.KubeletArgs, "kubelet-arg", c.KubeletArgs, "a flag of 'wherry kubelet', NAME=VALUE, for reservations, evictions, CPUs, NUMA nodes and the like; may be repeated")
	f.StringVar(&c.ManifestDir, "pod-manifest-path", c.ManifestDir, "folder of static pods (default: "+DefaultManifestDir+", or DATA-DIR/manifests for another --data-dir)")
	f.StringVar(&c.PodLogsDir, "pod-logs-dir", c.PodLogsDir, "folder of the containers' logs (default: /var/log/pods, or DATA-DIR/log/pods for another --data-dir)")
	f.StringVar(&c.CNIConfDir, "cni-conf-dir", c.CNIConfDir, "folder of CNI networks; if it has none, Wherry's own bridge is used (default: DATA-DIR/cni/net.d)")
	f.StringSliceVar(&c.CNIBinDirs, "cni-bin-dir", c.CNIBinDirs, "folders of CNI plugins")
	f.StringVar(&c.RuntimeEndpoint, "container-runtime-endpoint", c.RuntimeEndpoint, "socket of another CRI runtime to use, such as unix:///run/containerd/containerd.sock, instead of Wherry's own; it then manages images and the pods' network")
	f.StringVar(&c.Runtime, "runtime", c.Runtime, "OCI runtime: crun or runc (default: the first one installed)")
	c.addRuntimeFlags(f)
	c.AddImageFlags(f)
	f.IntVar(&c.MaxPods, "max-pods", c.MaxPods, "how many pods the node accepts")
	f.Int64Var(&c.PodMaxPids, "pod-max-pids", c.PodMaxPids, "how many processes a pod may have; -1 removes the limit")
	f.BoolVar(&c.SeccompDefault, "seccomp-default", c.SeccompDefault, "use the runtime's seccomp profile (RuntimeDefault) for containers whose pod sets none; upstream's kubelet leaves those unconfined")
	f.StringVar(&c.SchedulerConfig, "scheduler-config", c.SchedulerConfig, "file with a KubeSchedulerConfiguration")
	f.StringVar(&c.LocalStorage, "local-storage", c.LocalStorage, "what claims of the storage class local get: directories on the node's disk, or none, for somebody else's storage")
	f.StringVar(&c.CloudProvider, "cloud-provider", c.CloudProvider, "external, for a cluster in a cloud whose own controller manager runs: it gives nodes their addresses, zones and provider ID before they are used, and balances services")
	f.StringVar(&c.Proxy, "proxy", c.Proxy, "who makes services reachable: nftables (Wherry itself), or none, for kube-proxy or a network such as Cilium")
	f.IntVarP(&c.Verbosity, "v", "v", c.Verbosity, "verbosity of the log")
}

func (c *Config) addRuntimeFlags(f *pflag.FlagSet) {
	f.StringSliceVar(&c.DefaultUlimits, "default-ulimits", c.DefaultUlimits, "resource limits of every container, NAME=SOFT:HARD, such as nofile=1024:4096")
	f.StringSliceVar(&c.CDISpecDirs, "cdi-spec-dirs", c.CDISpecDirs, "folders of CDI device specs (default /etc/cdi,/var/run/cdi)")
}

// AddImageFlags binds the fields that the runtime needs for images.
func (c *Config) AddImageFlags(f *pflag.FlagSet) {
	f.StringSliceVar(&c.RegistryCertsDirs, "registry-certs-dir", c.RegistryCertsDirs, "folders that configure registries, mirrors and certificates as containerd's certs.d does: HOST/hosts.toml, _default; the first one that configures a registry wins")
	f.DurationVar(&c.ImagePullProgressTimeout.Duration, "image-pull-progress-timeout", c.ImagePullProgressTimeout.Duration, "give up an image pull whose registry has sent nothing for this long")
	f.StringSliceVar(&c.PinnedImages, "pinned-images", c.PinnedImages, "images that are never garbage-collected; NAME* matches every name that begins with NAME")
}

// Load reads the config file and its drop-ins into c. A file that was not named explicitly may be
// missing.
func (c *Config) Load(file string) error {
	asked := file != ""
	if !asked {
		file = DefaultConfigFile
	}
	if err := c.merge(file); err != nil && (asked || !errors.Is(err, fs.ErrNotExist)) {
		return err
	}
	dropIns, err := filepath.Glob(filepath.Join(filepath.Dir(file), "config.d", "*.yaml"))
	if err != nil {
		return err
	}
	slices.Sort(dropIns)
	for _, d := range dropIns {
		if err := c.merge(d); err != nil {
			return err
		}
	}
	c.fromEnv()
	return nil
}

func (c *Config) merge(file string) error {
	data, err := safepath.ReadFile(file, safepath.ConfigSize)
	if err != nil {
		return fmt.Errorf("config file: %w", err)
	}
	if len(bytes.TrimSpace(data)) == 0 {
		return nil
	}
	if err := yaml.UnmarshalStrict(data, c); err != nil {
		return fmt.Errorf("config file %s: %w", file, err)
	}
	return nil
}

// Complete fills in the defaults that depend on other fields and on the machine, and returns
// everything that is wrong at once.
func (c *Config) Complete() error {
	if err := c.absolute(); err != nil {
		return err
	}
	if c.NodeName == "" {
		host, err := os.Hostname()
		if err != nil {
			return fmt.Errorf("no host name to use as the node name; set --node-name: %w", err)
		}
		c.NodeName = strings.ToLower(host)
	}
	c.DefaultDirs()
	c.defaultNetworks()
	if c.NodeIP == "" {
		ip, err := defaultIP()
		if err != nil {
			return err
		}
		c.NodeIP, c.nodeIPFound = ip.String(), true
	}
	return c.validate()
}

// DefaultDirs fills in the folders that derive from the data dir.
func (c *Config) DefaultDirs() {
	orDefault(&c.ManifestDir, DefaultManifestDir, c.below("manifests"))
	orDefault(&c.PodLogsDir, "/var/log/pods", c.below("log", "pods"))
	orDefault(&c.CNIConfDir, c.path("cni", "net.d"), "")
}

func (c *Config) path(elem ...string) string {
	return filepath.Join(append([]string{c.DataDir}, elem...)...)
}

// below returns a path in the data dir for any instance but the default one.
func (c *Config) below(elem ...string) string {
	if c.DataDir == DefaultDataDir {
		return ""
	}
	return c.path(elem...)
}

func orDefault(field *string, usual, instead string) {
	switch {
	case *field != "":
	case instead != "":
		*field = instead
	default:
		*field = usual
	}
}

func (c *Config) validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	for _, msg := range validation.IsDNS1123Subdomain(c.NodeName) {
		bad("--node-name %q: %s", c.NodeName, msg)
	}
	nodeIPs, err := parseNodeIPs(c.NodeIP)
	if err != nil {
		bad("%w", err)
	}
	if net.ParseIP(c.BindAddress) == nil {
		bad("--bind-address %q is not an IP address", c.BindAddress)
	}
	for flag, port := range map[string]int{"secure-port": c.SecurePort, "kubelet-port": c.KubeletPort, "peer-port": c.PeerPort} {
		if port < 1 || port > 65535 {
			bad("--%s %d must be between 1 and 65535", flag, port)
		}
	}
	if c.PeerPort == c.SecurePort || c.PeerPort == c.KubeletPort {
		bad("--peer-port %d is the port of the API server or the kubelet; give it another", c.PeerPort)
	}
	if c.SecurePort == c.KubeletPort {
		bad("--secure-port and --kubelet-port are both %d; give them different ports", c.SecurePort)
	}
	if c.RuntimeEndpoint != "" && c.Runtime != "" {
		bad("--runtime %s is for Wherry's own container runtime; leave it out with --container-runtime-endpoint", c.Runtime)
	}
	if !slices.Contains(cluster.Modes, c.NetworkMode) {
		bad("--network-mode %q must be one of %s", c.NetworkMode, strings.Join(cluster.Modes, ", "))
	}
	if !c.Role.Valid() {
		bad("--role %q must be %s, or left out for a server with a node", c.Role, ServerOnly)
	}
	services := c.validateNetworks(nodeIPs, bad)
	for _, dns := range c.ClusterDNS {
		if net.ParseIP(dns) == nil {
			bad("--cluster-dns %q is not an IP address", dns)
		}
	}
	if services {
		c.validateDNS(bad)
	}
	if c.Proxy != OwnProxy && c.Proxy != NoProxy {
		bad("--proxy %q must be %s or %s", c.Proxy, OwnProxy, NoProxy)
	}
	if c.CloudProvider != "" && c.CloudProvider != cluster.CloudExternal {
		bad("--cloud-provider %q must be %s, or left out", c.CloudProvider, cluster.CloudExternal)
	}
	if c.LocalStorage != OwnStorage && c.LocalStorage != NoStorage {
		bad("--local-storage %q must be %s or %s", c.LocalStorage, OwnStorage, NoStorage)
	}
	if c.MaxPods < 1 {
		bad("--max-pods %d must be at least 1", c.MaxPods)
	}
	if c.PodMaxPids < 1 && c.PodMaxPids != -1 {
		bad("--pod-max-pids %d must be at least 1, or -1 for no limit", c.PodMaxPids)
	}
	if c.ImagePullProgressTimeout.Duration <= 0 {
		bad("--image-pull-progress-timeout %s must be positive", c.ImagePullProgressTimeout.Duration)
	}
	switch {
	case c.DataDir == "/" || c.RunDir == "/":
		bad("--data-dir and --run-dir must not be the root folder")
	case c.DataDir == c.RunDir:
		bad("--data-dir and --run-dir are both %s; give them different folders", c.DataDir)
	case strings.HasPrefix(c.DataDir, c.RunDir+"/"):
		bad("--data-dir %s lies in --run-dir %s, which every `wherry down` removes; give it another folder", c.DataDir, c.RunDir)
	}
	return errors.Join(errs...)
}

// GivenNodeIP returns the addresses that somebody gave the node; "" if they were found.
func (c *Config) GivenNodeIP() string {
	if c.nodeIPFound {
		return ""
	}
	return c.NodeIP
}

// NodeIPs returns the addresses of the node: one, or two of different families. The first is where its servers
// are reached. The configuration must be complete.
func (c *Config) NodeIPs() []netip.Addr {
	ips, err := parseNodeIPs(c.NodeIP)
	if err != nil {
		panic(err) // impossible: Complete checks it
	}
	return ips
}

func parseNodeIPs(s string) (out []netip.Addr, err error) {
	for part := range strings.SplitSeq(s, ",") {
		ip, err := netip.ParseAddr(part)
		if err != nil {
			return nil, fmt.Errorf("--node-ip %q is not an IP address", part)
		}
		out = append(out, ip.Unmap())
	}
	if len(out) > 2 || len(out) == 2 && out[0].Is4() == out[1].Is4() {
		return nil, fmt.Errorf("--node-ip %s must be one address, or two of different families", s)
	}
	return out, nil
}

// validateNetworks checks the networks of pods and services. It reports whether those of services can be used.
func (c *Config) validateNetworks(nodeIPs []netip.Addr, bad func(string, ...any)) (services bool) {
	if !c.Role.HasServer() {
		return false // what a node has to know of networks, the server tells
	}
	pods, ok := parseNetworks(c.PodCIDR, "pod-cidr", bad)
	if c.ClusterCIDR != "" { // Complete fills it in
		whole, wok := parseNetworks(c.ClusterCIDR, "cluster-cidr", bad)
		if ok && wok {
			c.validateRanges(pods, whole, bad)
		}
		pods = append(pods, whole...)
	}
	all, services := parseNetworks(c.ServiceCIDR, "service-cidr", bad)
	for _, s := range all {
		if i := slices.IndexFunc(pods, s.Overlaps); i >= 0 {
			bad("--pod-cidr %s and --service-cidr %s overlap; choose networks that do not", pods[i], s)
		}
	}
	if services && len(nodeIPs) > 0 && all[0].Addr().Is4() != nodeIPs[0].Is4() {
		bad("--service-cidr %s must begin with a network of the address family of --node-ip %s, because the service kubernetes leads there",
			c.ServiceCIDR, c.NodeIP)
	}
	return services
}

// parseNetworks parses one network, or two of different families. ok is false if something is wrong.
func parseNetworks(s, flag string, bad func(string, ...any)) (out []netip.Prefix, ok bool) {
	ok = true
	for part := range strings.SplitSeq(s, ",") {
		n, err := netip.ParsePrefix(part)
		if err != nil {
			bad("--%s %q is not a network such as 10.244.0.0/24", flag, part)
			ok = false
			continue
		}
		if n.Addr().BitLen()-n.Bits() < 3 {
			bad("--%s %s is too small: it must have at least 8 addresses", flag, part)
		}
		out = append(out, n.Masked())
	}
	if _, _, err := twoNetworks(s, flag); err != nil && ok {
		bad("%w", err)
		ok = false
	}
	return out, ok
}

// PodNetworks parses --pod-cidr: one network, or two of different IP families separated by a comma;
// second is zero if there is only one.
func PodNetworks(s string) (first, second netip.Prefix, err error) { return twoNetworks(s, "pod-cidr") }

// ServiceNetworks parses --service-cidr, as PodNetworks does --pod-cidr.
func ServiceNetworks(s string) (first, second netip.Prefix, err error) {
	return twoNetworks(s, "service-cidr")
}

func twoNetworks(s, flag string) (first, second netip.Prefix, err error) {
	a, b, two := strings.Cut(s, ",")
	if first, err = netip.ParsePrefix(a); err != nil {
		return first, second, fmt.Errorf("--%s: %w", flag, err)
	}
	if !two {
		return first, second, nil
	}
	if second, err = netip.ParsePrefix(b); err != nil {
		return first, second, fmt.Errorf("--%s: %w", flag, err)
	}
	if first.Addr().Is4() == second.Addr().Is4() {
		return first, second, fmt.Errorf("--%s %s: two networks must be one of IPv4 and one of IPv6", flag, s)
	}
	return first, second, nil
}

// InstanceID returns a short ID that is always the same for a data dir, and is part of every name
// that is unique on the machine: bridge, nftables table, cgroup.
func (c *Config) InstanceID() string {
	sum := sha256.Sum256([]byte(c.DataDir))
	return hex.EncodeToString(sum[:4])
}

// Kubeconfig is the path of the administrator's kubeconfig; `wherry kubectl` uses it.
func (c *Config) Kubeconfig() string { return c.path("kubeconfig") }

// ImagesDir holds archives that are imported at start.
func (c *Config) ImagesDir() string { return c.path("images") }

// CRISocket is the path at which crictl and other kubelets reach the runtime.
func (c *Config) CRISocket() string { return filepath.Join(c.RunDir, "cri.sock") }

// CgroupRoot is the parent of every cgroup of this instance.
func (c *Config) CgroupRoot() string { return "/wherry-" + c.InstanceID() }
