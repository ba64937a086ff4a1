package cni

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"

	"github.com/containernetworking/cni/libcni"
	types "github.com/containernetworking/cni/pkg/types/100"

	"wherry.dev/internal/netns"
	"wherry.dev/internal/trace"
)

// PluginsConfig says where networks are configured and where their plugins lie.
type PluginsConfig struct {
	ConfDir  string   // *.conflist, *.conf, *.json: the first by name that is valid counts
	BinDirs  []string // of the plugin executables
	CacheDir string   // libcni keeps results there, for DEL
}

// Plugins is a network that somebody else configured, run through libcni.
type Plugins struct {
	cfg  PluginsConfig
	list *libcni.NetworkConfigList
	cni  libcni.CNI
}

// ErrNoNetwork says that nothing is configured in the CNI folder.
var ErrNoNetwork = errors.New("no CNI network is configured")

// LoadPlugins reads the configuration folder. A folder that is missing or empty is
// ErrNoNetwork; one in which no file is valid says what is wrong with the first.
func LoadPlugins(cfg PluginsConfig) (*Plugins, error) {
	if cfg.ConfDir == "" {
		return nil, ErrNoNetwork
	}
	files, err := libcni.ConfFiles(cfg.ConfDir, []string{".conflist", ".conf", ".json"})
	if err != nil {
		return nil, fmt.Errorf("read CNI folder %s: %w", cfg.ConfDir, err)
	}
	slices.Sort(files)
	var first error
	for _, f := range files {
		list, err := loadNetwork(f)
		if err == nil {
			return &Plugins{cfg: cfg, list: list, cni: libcni.NewCNIConfigWithCacheDir(cfg.BinDirs, cfg.CacheDir, nil)}, nil
		}
		if first == nil {
			first = fmt.Errorf("CNI configuration %s: %w", f, err)
		}
	}
	if first != nil {
		return nil, first
	}
	return nil, fmt.Errorf("%w in %s", ErrNoNetwork, cfg.ConfDir)
}

func loadNetwork(file string) (*libcni.NetworkConfigList, error) {
	list, err := libcni.ConfListFromFile(file)
	if err == nil && len(list.Plugins) > 0 {
		return list, nil
	}
	conf, cerr := libcni.ConfFromFile(file) //nolint:staticcheck // single-plugin files are deprecated, not gone
	if cerr != nil || conf.Network.Type == "" {
		if err == nil {
			err = errors.New("no plugins in it")
		}
		return nil, err
	}
	return libcni.ConfListFromConf(conf) //nolint:staticcheck // see above
}

// Name is that of the network.
func (p *Plugins) Name() string { return p.list.Name }

// Check finds every plugin of the chain, so that a missing one is known before the
// first pod.
func (p *Plugins) Check(ctx context.Context) error {
	if _, err := p.cni.ValidateNetworkList(ctx, p.list); err != nil {
		return fmt.Errorf("CNI network %s: %w", p.list.Name, err)
	}
	return nil
}

func (p *Plugins) runtimeConf(pod Pod) *libcni.RuntimeConf {
	rt := &libcni.RuntimeConf{
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
		CapabilityArgs: map[string]any{},
	}
	if len(pod.Ports) > 0 {
		ports := make([]map[string]any, 0, len(pod.Ports))
		for _, m := range pod.Ports {
			entry := map[string]any{"hostPort": m.HostPort, "containerPort": m.ContainerPort, "protocol": m.Protocol}
			if m.HostIP.IsValid() {
				entry["hostIP"] = m.HostIP.String()
			}
			ports = append(ports, entry)
		}
		rt.CapabilityArgs["portMappings"] = ports
	}
	return rt
}

// Setup runs ADD of every plugin. When one fails, DEL follows.
func (p *Plugins) Setup(ctx context.Context, pod Pod) (at Attachment, err error) {
	ctx, span := trace.Start(ctx, "network: plugins add")
	defer func() { _ = trace.End(span, err) }()
	if err := netns.Do(loopbackUp, pod.NetNS); err != nil {
		return at, fmt.Errorf("bring up loopback of sandbox %s: %w", pod.ID, err)
	}
	res, err := p.cni.AddNetworkList(ctx, p.list, p.runtimeConf(pod))
	if err != nil {
		err = fmt.Errorf("add sandbox %s to CNI network %s: %w", pod.ID, p.list.Name, err)
		return at, errors.Join(err, p.Teardown(context.WithoutCancel(ctx), pod))
	}
	r, err := types.NewResultFromResult(res)
	if err != nil {
		return at, errors.Join(err, p.Teardown(context.WithoutCancel(ctx), pod))
	}
	if at, err = attachment(p.list.Name, r); err != nil {
		return at, errors.Join(err, p.Teardown(context.WithoutCancel(ctx), pod))
	}
	return at, nil
}

func loopbackUp() error {
	c, err := openRTNL()
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	return c.do(upReq(1))
}

// attachment reads the addresses of the pod's interface out of a CNI result.
func attachment(network string, r *types.Result) (Attachment, error) {
	at := Attachment{Network: network}
	for _, ip := range r.IPs {
		if ip.Interface != nil && *ip.Interface >= 0 && *ip.Interface < len(r.Interfaces) {
			i := r.Interfaces[*ip.Interface]
			if i.Sandbox == "" || i.Name != IfName {
				continue
			}
			at.MAC = i.Mac
		}
		if a, ok := netip.AddrFromSlice(ip.Address.IP); ok {
			at.IPs = append(at.IPs, a.Unmap())
		}
	}
	if len(at.IPs) == 0 {
		return at, fmt.Errorf("CNI network %s gave no address to %s", network, IfName)
	}
	doc, err := json.Marshal(r)
	at.Result = doc
	return at, err
}

// Teardown runs DEL of every plugin; plugins must bear that little or nothing is
// there (CNI spec 1.1, DEL).
func (p *Plugins) Teardown(ctx context.Context, pod Pod) error {
	if _, err := os.Stat(pod.NetNS); err != nil {
		pod.NetNS = "" // "DEL … should be tolerant of a missing namespace"
	}
	if err := p.cni.DelNetworkList(ctx, p.list, p.runtimeConf(pod)); err != nil {
		return fmt.Errorf("remove sandbox %s from CNI network %s: %w", pod.ID, p.list.Name, err)
	}
	return nil
}
