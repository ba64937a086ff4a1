package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/apiserver/pkg/server/mux"
	"k8s.io/apiserver/pkg/server/routes"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/component-base/configz"
	"k8s.io/component-base/metrics/legacyregistry"
	proxyconfig "k8s.io/kube-proxy/config/v1alpha1"
	"sigs.k8s.io/yaml"

	"wherry.dev/internal/component"
	"wherry.dev/internal/inbound"
	"wherry.dev/internal/proxy"
	"wherry.dev/internal/safepath"
)

// proxyTable is the table of a proxy that runs alone, unless --table names another.
const proxyTable = "wherry-proxy"

// proxyOptions are kube-proxy's flags. They take precedence over the file.
type proxyOptions struct {
	file, master, table string
	writeTo             string
	cleanup, initOnly   bool
	config              proxyconfig.KubeProxyConfiguration // from flags
}

// ignoredProxyFlags are kube-proxy's flags that have no effect here.
var ignoredProxyFlags = func() component.NoEffect {
	out := map[string]string{
		"bind-address-hard-fail": alwaysOn, "conntrack-tcp-be-liberal": notSupportedSwitch, "ipvs-strict-arp": notSupportedSwitch,
		"iptables-localhost-nodeports": notSupportedSwitch,
		"bind-address":                 "addresses for health checks and metrics have flags of their own", "feature-gates": "there are none",
		"kube-api-content-type": "it is always protobuf", "kube-api-qps": "there is no limit", "kube-api-burst": "there is no limit",
		"config-sync-period": "nothing is resynchronised", "oom-score-adj": "it is for whoever starts the proxy",
		"pod-interface-name-prefix": "--detect-local-mode=InterfaceNamePrefix is not there",
	}
	for _, name := range []string{"max-per-core", "min", "tcp-timeout-established", "tcp-timeout-close-wait", "udp-timeout", "udp-timeout-stream"} {
		out["conntrack-"+name] = "the machine's connection tracking is left as it is"
	}
	for _, name := range []string{
		"iptables-masquerade-bit", "iptables-min-sync-period", "iptables-sync-period", "ipvs-exclude-cidrs", "ipvs-min-sync-period",
		"ipvs-scheduler", "ipvs-sync-period", "ipvs-tcp-timeout", "ipvs-tcpfin-timeout", "ipvs-udp-timeout",
	} {
		out[name] = "only nftables is there"
	}
	n := ignored(out)
	n.Refused = map[string]component.Refusal{
		"healthz-port": {Why: "use --healthz-bind-address", Fine: component.IsEmpty},
		"metrics-port": {Why: "use --metrics-bind-address", Fine: component.IsEmpty},
	}
	return n
}()

func proxyCommand() *cobra.Command {
	var o proxyOptions
	var common *component.Common
	cmd := &cobra.Command{
		Use:   "proxy",
		Short: "The service proxy alone, with kube-proxy's flags",
		Long: `Makes the services of the API server at --kubeconfig reachable on this machine, by nftables.
It takes kube-proxy's place. When it ends, the rules stay; --cleanup removes them.`,
		Example: `  wherry proxy --config /var/lib/kube-proxy/config.conf
  wherry proxy --kubeconfig /etc/kubernetes/proxy.conf --cluster-cidr 10.244.0.0/16
  wherry proxy --cleanup`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.cleanup {
				return proxy.Remove(o.table)
			}
			if err := common.Apply(cmd.Context()); err != nil {
				return err
			}
			cfg, err := o.load()
			if err != nil {
				return err
			}
			switch {
			case o.initOnly:
				return nil
			case o.writeTo != "":
				return writeProxyConfig(&cfg, o.writeTo)
			}
			return o.run(cmd.Context(), cfg)
		},
	}
	common = component.AddCommon(cmd, ignoredProxyFlags)
	f, c := cmd.Flags(), &o.config
	f.StringVar(&o.file, "config", "", "file with a KubeProxyConfiguration")
	f.StringVar(&o.master, "master", "", "address of the API server; overrides the kubeconfig's")
	f.StringVar(&o.table, "table", proxyTable, "name of the nftables table; proxies of several clusters on one machine need different ones")
	f.StringVar(&o.writeTo, "write-config-to", "", "write the configuration, with all defaults, to this file, and exit")
	f.BoolVar(&o.initOnly, "init-only", false, "check the configuration, and exit: the proxy needs no right later that it would not need for this")
	f.BoolVar(&o.cleanup, "cleanup", false, "remove the rules, and exit")
	f.StringVar(&c.ClientConnection.Kubeconfig, "kubeconfig", "", "kubeconfig of the API server")
	f.StringVar(&c.HostnameOverride, "hostname-override", "", "name of the node (default: the host name)")
	f.StringVar(&c.ClusterCIDR, "cluster-cidr", "", "networks of the pods, separated by a comma; connections to cluster IPs from elsewhere are masqueraded")
	f.StringVar((*string)(&c.DetectLocalMode), "detect-local-mode", "", "how to tell connections of pods: ClusterCIDR (the default) or BridgeInterface")
	f.StringVar(&c.DetectLocal.BridgeInterface, "pod-bridge-interface", "", "the bridge of this node's pods, with --detect-local-mode=BridgeInterface")
	f.StringVar(&c.HealthzBindAddress, "healthz-bind-address", "", "address of health checks (default 0.0.0.0:10256)")
	f.StringVar(&c.MetricsBindAddress, "metrics-bind-address", "", "address of metrics (default 127.0.0.1:10249)")
	f.StringSliceVar(&c.NodePortAddresses, "nodeport-addresses", nil, "networks of the addresses at which node ports are open, or primary: the node's own (the default)")
	f.BoolVar(&c.NFTables.MasqueradeAll, "masquerade-all", false, "masquerade all connections to cluster IPs")
	f.BoolVar(&c.EnableProfiling, "profiling", false, "serve profiles at the address of metrics")
	f.StringVar((*string)(&c.Mode), "proxy-mode", "", "nftables, which is what there is")
	return cmd
}

// load reads the file, and puts the flags that were given above it.
func (o *proxyOptions) load() (c proxyconfig.KubeProxyConfiguration, err error) {
	if o.file != "" {
		doc, err := safepath.ReadFile(o.file, safepath.ConfigSize)
		if err != nil {
			return c, fmt.Errorf("--config: %w", err)
		}
		if err := yaml.UnmarshalStrict(doc, &c); err != nil {
			return c, fmt.Errorf("--config %s: %w", o.file, err)
		}
		if c.Kind != "KubeProxyConfiguration" {
			return c, fmt.Errorf("--config %s is a %q, not a KubeProxyConfiguration", o.file, c.Kind)
		}
	}
	g := &o.config
	c.ClientConnection.Kubeconfig = cmp.Or(g.ClientConnection.Kubeconfig, c.ClientConnection.Kubeconfig)
	c.HostnameOverride = cmp.Or(g.HostnameOverride, c.HostnameOverride)
	c.DetectLocalMode = cmp.Or(g.DetectLocalMode, c.DetectLocalMode)
	c.DetectLocal.BridgeInterface = cmp.Or(g.DetectLocal.BridgeInterface, c.DetectLocal.BridgeInterface)
	c.ClusterCIDR = cmp.Or(g.ClusterCIDR, c.ClusterCIDR)
	c.HealthzBindAddress = cmp.Or(g.HealthzBindAddress, c.HealthzBindAddress, "0.0.0.0:10256")
	c.MetricsBindAddress = cmp.Or(g.MetricsBindAddress, c.MetricsBindAddress, "127.0.0.1:10249")
	c.Mode = cmp.Or(g.Mode, c.Mode, "nftables")
	c.EnableProfiling = c.EnableProfiling || g.EnableProfiling
	c.NFTables.MasqueradeAll = c.NFTables.MasqueradeAll || g.NFTables.MasqueradeAll
	if len(g.NodePortAddresses) > 0 {
		c.NodePortAddresses = g.NodePortAddresses
	}
	return c, nil
}

// writeProxyConfig writes a configuration to a file, whose format is YAML.
func writeProxyConfig(c *proxyconfig.KubeProxyConfiguration, path string) error {
	c.SetGroupVersionKind(proxyconfig.SchemeGroupVersion.WithKind("KubeProxyConfiguration"))
	return component.WriteConfig(path, c)
}

// proxyConfig translates upstream's configuration.
func proxyConfig(c *proxyconfig.KubeProxyConfiguration) (proxy.Config, error) {
	out := proxy.Config{Node: strings.ToLower(strings.TrimSpace(c.HostnameOverride))}
	if c.Mode != "" && c.Mode != "nftables" {
		return out, fmt.Errorf("mode %q: only nftables is there", c.Mode)
	}
	if out.Node == "" {
		host, err := os.Hostname()
		if err != nil {
			return out, fmt.Errorf("no host name to use as the node name; set --hostname-override: %w", err)
		}
		out.Node = strings.ToLower(host)
	}
	for s := range strings.SplitSeq(c.ClusterCIDR, ",") {
		if s == "" {
			continue
		}
		p, err := netip.ParsePrefix(strings.TrimSpace(s))
		if err != nil {
			return out, fmt.Errorf("clusterCIDR: %w", err)
		}
		out.Pods, out.MasqueradeOutsiders = append(out.Pods, p.Masked()), true
	}
	switch c.DetectLocalMode {
	case "", "ClusterCIDR", "BridgeInterface":
	default:
		return out, fmt.Errorf("detectLocalMode %q: only ClusterCIDR and BridgeInterface are there", c.DetectLocalMode)
	}
	out.Bridge = c.DetectLocal.BridgeInterface
	out.MasqueradeAll = c.NFTables.MasqueradeAll
	var networks []netip.Prefix
	for _, s := range c.NodePortAddresses {
		if s == "primary" {
			continue
		}
		p, err := netip.ParsePrefix(s)
		if err != nil {
			return out, fmt.Errorf("nodePortAddresses: %w", err)
		}
		networks = append(networks, p.Masked())
	}
	if len(networks) > 0 {
		out.Addresses = func() ([]netip.Addr, error) { return localAddresses(networks) }
	}
	return out, nil
}

// localAddresses returns the machine's addresses in the networks.
func localAddresses(networks []netip.Prefix) (out []netip.Addr, err error) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	for _, a := range all {
		p, err := netip.ParsePrefix(a.String())
		if err == nil && slices.ContainsFunc(networks, func(n netip.Prefix) bool { return n.Contains(p.Addr()) }) && !p.Addr().IsLinkLocalUnicast() {
			out = append(out, p.Addr())
		}
	}
	return out, nil
}

func (o *proxyOptions) run(ctx context.Context, c proxyconfig.KubeProxyConfiguration) error {
	cfg, err := proxyConfig(&c)
	if err != nil {
		return err
	}
	cfg.Table = o.table
	client, err := proxyClient(o.master, c.ClientConnection.Kubeconfig)
	if err != nil {
		return err
	}
	f := informers.NewSharedInformerFactory(client, 0)
	p, err := proxy.New(cfg, f)
	if err != nil {
		return err
	}
	health := http.NewServeMux()
	health.HandleFunc("/healthz", p.ServeHealthz)
	health.HandleFunc("/livez", p.ServeLivez)
	figures, err := proxyFigures(&c)
	if err != nil {
		return err
	}
	for address, handler := range map[string]http.Handler{c.HealthzBindAddress: health, c.MetricsBindAddress: figures} {
		stop, err := servePlain(ctx, address, handler)
		if err != nil {
			return err
		}
		defer stop()
	}
	return component.Notify(ctx, p.Ready(), func(ctx context.Context) error {
		f.Start(ctx.Done())
		defer f.Shutdown()
		return p.Run(ctx)
	})
}

// proxyClient returns a client by a kubeconfig, or for a proxy in a pod.
func proxyClient(master, kubeconfig string) (kubernetes.Interface, error) {
	var cfg *rest.Config
	err := errors.New("--kubeconfig is required: it names the API server whose services to serve")
	if kubeconfig == "" && master == "" {
		if inside, insideErr := rest.InClusterConfig(); insideErr == nil {
			cfg, err = inside, nil
		}
	} else if err = safepath.CheckFile(kubeconfig); kubeconfig == "" || err == nil {
		cfg, err = clientcmd.BuildConfigFromFlags(master, kubeconfig)
	}
	if err != nil {
		return nil, err
	}
	cfg.ContentType, cfg.QPS = "application/vnd.kubernetes.protobuf", -1
	return kubernetes.NewForConfig(cfg)
}

// proxyFigures serves what there is to see at the address for metrics.
func proxyFigures(c *proxyconfig.KubeProxyConfiguration) (http.Handler, error) {
	c.SetGroupVersionKind(proxyconfig.SchemeGroupVersion.WithKind("KubeProxyConfiguration"))
	shown, err := configz.New(proxyconfig.GroupName)
	if err == nil {
		err = shown.Set(c)
	}
	if err != nil {
		return nil, err
	}
	m := mux.NewPathRecorderMux("kube-proxy")
	healthz.InstallHandler(m)
	configz.InstallHandler(m)
	m.Handle("/metrics", legacyregistry.Handler())
	m.HandleFunc("/proxyMode", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = w.Write([]byte("nftables"))
	})
	if c.EnableProfiling {
		routes.Profiling{}.Install(m)
	}
	return m, nil
}

// servePlain serves HTTP until stop is called.
func servePlain(ctx context.Context, address string, handler http.Handler) (stop func(), err error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	bound := inbound.Bound(l)
	s := &http.Server{Handler: bound.Handler(handler), ReadHeaderTimeout: 10 * time.Second}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(bound) // it ends by Close, below
	}()
	return func() { _ = s.Close(); <-done }, nil
}
