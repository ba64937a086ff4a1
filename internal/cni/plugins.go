package cni

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	result "github.com/containernetworking/cni/pkg/types/100"

	"wherry.dev/internal/cni/rtnl"
	"wherry.dev/internal/failpoint"
	"wherry.dev/internal/netns"
	"wherry.dev/internal/safepath"
	"wherry.dev/internal/trace"
)

// PluginsConfig is where networks are configured and where their plugins are.
type PluginsConfig struct {
	ConfDir  string        // *.conflist, *.conf, *.json: the first valid one by name is used
	BinDirs  []string      // of the plugin executables
	CacheDir string        // records of what is attached to which network, with which configuration
	Timeout  time.Duration // per call of a chain; 0 means two minutes for ADD, one for DEL, less for others
}

// Default timeouts of a chain of plugins. DEL must end before a kubelet gives up on its call
// (after two minutes), or the result would never be known.
const (
	addTimeout    = 2 * time.Minute
	delTimeout    = time.Minute
	gcTimeout     = 10 * time.Second
	statusTimeout = 5 * time.Second
)

func (cfg PluginsConfig) limit(ctx context.Context, standard time.Duration) (context.Context, context.CancelFunc) {
	if cfg.Timeout > 0 {
		standard = cfg.Timeout
	}
	return context.WithTimeout(ctx, standard)
}

// chain is a network that somebody else configured: plugins, run one after another through
// libcni.
type chain struct {
	cfg  PluginsConfig
	list *libcni.NetworkConfigList
	cni  *libcni.CNIConfig
	file string // the file it was read from; "" if from a record
}

// ErrNoNetwork means that nothing is configured in the CNI folder.
var ErrNoNetwork = errors.New("no CNI network is configured")

// Configured reports whether a folder has the configuration of a network, valid or not.
func Configured(confDir string) bool {
	_, _, err := loadChain(PluginsConfig{ConfDir: confDir})
	return !errors.Is(err, ErrNoNetwork)
}

// loadChain reads the configuration folder. It returns ErrNoNetwork if the folder is missing or
// empty; if no file is valid, the error says what is wrong with the first. skipped says what is
// wrong with the files before the one that is used.
func loadChain(cfg PluginsConfig) (c *chain, skipped, err error) {
	if cfg.ConfDir == "" {
		return nil, nil, ErrNoNetwork
	}
	files, err := libcni.ConfFiles(cfg.ConfDir, []string{".conflist", ".conf", ".json"})
	if err != nil {
		return nil, nil, fmt.Errorf("read CNI folder %s: %w", cfg.ConfDir, err)
	}
	slices.Sort(files)
	for _, f := range files {
		list, err := loadNetwork(f)
		if err == nil {
			c := newChain(cfg, list)
			c.file = f
			return c, skipped, nil
		}
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed in the meantime
		}
		if skipped == nil {
			skipped = fmt.Errorf("CNI configuration %s: %w", f, err)
		}
	}
	if skipped != nil {
		return nil, nil, skipped
	}
	return nil, nil, fmt.Errorf("%w in %s", ErrNoNetwork, cfg.ConfDir)
}

func newChain(cfg PluginsConfig, list *libcni.NetworkConfigList) *chain {
	return &chain{cfg: cfg, list: list, cni: libcni.NewCNIConfigWithCacheDir(cfg.BinDirs, cfg.CacheDir, &runner{})}
}

func loadNetwork(file string) (*libcni.NetworkConfigList, error) {
	doc, err := safepath.ReadFile(file, safepath.ConfigSize) // others write to the folder
	if err != nil {
		return nil, err
	}
	list, err := networkOf(doc, filepath.Dir(file))
	if err != nil || len(list.Plugins) == 0 {
		conf, cerr := libcni.ConfFromBytes(doc) //nolint:staticcheck // single-plugin files are deprecated, not gone
		if cerr != nil || conf.Network.Type == "" {
			if err == nil {
				err = errors.New("it lists no plugins")
			}
			return nil, err
		}
		if list, err = libcni.ConfListFromConf(conf); err != nil { //nolint:staticcheck // see above
			return nil, err
		}
	}
	if list.Bytes, err = inline(list); err != nil {
		return nil, err
	}
	return list, checkVersion(list)
}

// networkOf parses a list of plugins, and reads those that are in separate files.
func networkOf(doc []byte, dir string) (*libcni.NetworkConfigList, error) {
	list, err := libcni.NetworkConfFromBytes(doc)
	if err != nil || list.LoadOnlyInlinedPlugins {
		return list, err
	}
	files, err := libcni.ConfFiles(filepath.Join(dir, list.Name), []string{".conf"})
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		doc, err := safepath.ReadFile(f, safepath.ConfigSize)
		if err != nil {
			return nil, err
		}
		plugin, err := libcni.NetworkPluginConfFromBytes(doc)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f, err)
		}
		list.Plugins = append(list.Plugins, plugin)
	}
	return list, nil
}

// checkVersion refuses, by name, a version that no plugin could be asked for.
func checkVersion(list *libcni.NetworkConfigList) error {
	known := []string{"", "0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"}
	if !slices.Contains(known, list.CNIVersion) {
		return fmt.Errorf("cniVersion %q is not supported; the newest supported version is %s", list.CNIVersion, known[len(known)-1])
	}
	return nil
}

// inline returns a network as one document, including the plugins that libcni found in other
// files, so that it can be stored and means the same later.
func inline(list *libcni.NetworkConfigList) ([]byte, error) {
	doc := struct {
		CNIVersion   string            `json:"cniVersion"`
		Name         string            `json:"name"`
		DisableCheck bool              `json:"disableCheck,omitempty"`
		DisableGC    bool              `json:"disableGC,omitempty"`
		Plugins      []json.RawMessage `json:"plugins"`
	}{CNIVersion: list.CNIVersion, Name: list.Name, DisableCheck: list.DisableCheck, DisableGC: list.DisableGC}
	for _, p := range list.Plugins {
		doc.Plugins = append(doc.Plugins, p.Bytes)
	}
	return json.Marshal(doc)
}

func (c *chain) name() string { return c.list.Name }

func (c *chain) types() []string {
	var names []string
	for _, p := range c.list.Plugins {
		names = append(names, p.Network.Type)
	}
	return names
}

// validate asks every plugin which versions it speaks.
func (c *chain) validate(ctx context.Context) error {
	ctx, cancel := c.cfg.limit(ctx, statusTimeout)
	defer cancel()
	if _, err := c.cni.ValidateNetworkList(ctx, c.list); err != nil {
		return fmt.Errorf("CNI network %s: %w", c.name(), err)
	}
	return nil
}

// status asks every plugin whether it could serve ADD (CNI 1.1, STATUS).
func (c *chain) status(ctx context.Context) error {
	ctx, cancel := c.cfg.limit(ctx, statusTimeout)
	defer cancel()
	if err := c.cni.GetStatusNetworkList(ctx, c.list); err != nil {
		return fmt.Errorf("CNI network %s: %w", c.name(), err)
	}
	return nil
}

func runtimeConf(pod Pod) *libcni.RuntimeConf {
	caps := map[string]any{}
	if len(pod.Ports) > 0 {
		caps["portMappings"] = portMappings(pod.Ports)
	}
	if b := pod.Bandwidth; b != (Bandwidth{}) {
		caps["bandwidth"] = bandwidthArgs(b)
	}
	if pod.DNS != nil {
		caps["dns"] = pod.DNS
	}
	if pod.Cgroup != "" {
		caps["cgroupPath"] = pod.Cgroup
	}
	return &libcni.RuntimeConf{
		ContainerID: pod.ID,
		NetNS:       pod.NetNS,
		IfName:      IfName,
		Args: [][2]string{
			{"IgnoreUnknown", "1"},
			{"K8S_POD_NAMESPACE", pod.Namespace},
			{"K8S_POD_NAME", pod.Name},
			{"K8S_POD_INFRA_CONTAINER_ID", pod.ID},
			{"K8S_POD_UID", pod.UID},
		},
		CapabilityArgs: caps,
	}
}

func portMappings(ports []PortMapping) []map[string]any {
	var out []map[string]any
	for _, m := range ports {
		entry := map[string]any{"hostPort": m.HostPort, "containerPort": m.ContainerPort, "protocol": m.Protocol}
		if m.HostIP.IsValid() {
			entry["hostIP"] = m.HostIP.String()
		}
		out = append(out, entry)
	}
	return out
}

// bandwidthArgs returns the bandwidth plugin's arguments. The plugin refuses a rate without a
// burst, and runtimes have always passed the largest possible one.
func bandwidthArgs(b Bandwidth) map[string]uint64 {
	const burst = 1<<32 - 1 // bits
	args := map[string]uint64{}
	if b.Ingress > 0 {
		args["ingressRate"], args["ingressBurst"] = b.Ingress, burst
	}
	if b.Egress > 0 {
		args["egressRate"], args["egressBurst"] = b.Egress, burst
	}
	return args
}

// add runs ADD of every plugin. The caller undoes a failure.
func (c *chain) add(ctx context.Context, pod Pod) (at Attachment, err error) {
	ctx, span := trace.Start(ctx, "network: plugins add")
	defer func() { _ = trace.End(span, err) }()
	ctx, cancel := c.cfg.limit(ctx, addTimeout)
	defer cancel()
	if err := netns.Do(loopbackUp, pod.NetNS); err != nil {
		return at, fmt.Errorf("bring up loopback of sandbox %s: %w", pod.ID, err)
	}
	res, err := c.cni.AddNetworkList(ctx, c.list, runtimeConf(pod))
	if err != nil {
		return at, fmt.Errorf("add sandbox %s to CNI network %s: %w", pod.ID, c.name(), err)
	}
	failpoint.At("plugins-added")
	r, err := result.NewResultFromResult(res)
	if err == nil {
		at, err = attachment(c.name(), r)
	}
	if err != nil {
		return at, fmt.Errorf("add sandbox %s to CNI network %s: %w", pod.ID, c.name(), err)
	}
	return at, nil
}

func loopbackUp() error {
	c, err := rtnl.Open()
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	return c.Do(rtnl.Up(1))
}

// attachment extracts the addresses of the pod's interface from a CNI result.
func attachment(network string, r *result.Result) (Attachment, error) {
	at := Attachment{Network: network, DNS: resolver(r.DNS)}
	for _, ip := range r.IPs {
		if ip == nil {
			continue
		}
		if ip.Interface != nil && *ip.Interface >= 0 && *ip.Interface < len(r.Interfaces) {
			i := r.Interfaces[*ip.Interface]
			if i == nil || i.Sandbox == "" || i.Name != IfName {
				continue
			}
			at.MAC = i.Mac
		}
		if a, ok := netip.AddrFromSlice(ip.Address.IP); ok {
			at.IPs = append(at.IPs, a.Unmap())
		}
	}
	if len(at.IPs) == 0 {
		return at, fmt.Errorf("the plugins assigned no address to %s", IfName)
	}
	doc, err := json.Marshal(r)
	at.Result = doc
	return at, err
}

// resolver returns what a CNI result says of DNS, or nil if it names no server. Part of it may come
// from a DHCP server, so what could not be a value in resolv.conf is left out.
func resolver(r types.DNS) *DNS {
	d := &DNS{Searches: slices.Clone(r.Search), Options: slices.Clone(r.Options)}
	for _, s := range r.Nameservers {
		if a, err := netip.ParseAddr(s); err == nil {
			d.Servers = append(d.Servers, a.String())
		}
	}
	if len(d.Servers) == 0 {
		return nil
	}
	if len(d.Searches) == 0 {
		d.Searches = []string{r.Domain} // "search … will be preferred over domain" (CNI spec 1.1)
	}
	notOneWord := func(s string) bool { return len(strings.Fields(s)) != 1 }
	d.Searches, d.Options = slices.DeleteFunc(d.Searches, notOneWord), slices.DeleteFunc(d.Options, notOneWord)
	return d
}

// del runs DEL of every plugin; plugins must cope if little or nothing is there (CNI spec 1.1,
// DEL).
func (c *chain) del(ctx context.Context, pod Pod) (err error) {
	ctx, span := trace.Start(ctx, "network: plugins del")
	defer func() { _ = trace.End(span, err) }()
	ctx, cancel := c.cfg.limit(ctx, delTimeout)
	defer cancel()
	if ok, err := netns.Pinned(pod.NetNS); err != nil || !ok {
		pod.NetNS = "" // "DEL … should be tolerant of a missing namespace"
	}
	if err := c.cni.DelNetworkList(ctx, c.list, runtimeConf(pod)); err != nil {
		return fmt.Errorf("remove sandbox %s from CNI network %s: %w", pod.ID, c.name(), err)
	}
	return nil
}

// check asks every plugin whether the pod's network is still as ADD left it.
func (c *chain) check(ctx context.Context, pod Pod) error {
	ctx, cancel := c.cfg.limit(ctx, gcTimeout)
	defer cancel()
	err := c.cni.CheckNetworkList(ctx, c.list, runtimeConf(pod))
	if errors.Is(err, libcni.ErrorCheckNotSupp) {
		return nil // configurations before 0.4.0 have no CHECK
	}
	if err != nil {
		return fmt.Errorf("check sandbox %s in CNI network %s: %w", pod.ID, c.name(), err)
	}
	return nil
}

// gc tells every plugin which attachments are valid (CNI 1.1, GC).
func (c *chain) gc(ctx context.Context, valid []string) error {
	ctx, cancel := c.cfg.limit(ctx, gcTimeout)
	defer cancel()
	args := &libcni.GCArgs{ValidAttachments: []types.GCAttachment{}}
	for _, id := range valid {
		args.ValidAttachments = append(args.ValidAttachments, types.GCAttachment{ContainerID: id, IfName: IfName})
	}
	if err := c.cni.GCNetworkList(ctx, c.list, args); err != nil {
		return fmt.Errorf("clean up CNI network %s: %w", c.name(), err)
	}
	return nil
}
