package plugin

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	result "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"

	"wherry.dev/internal/cni/nft"
	"wherry.dev/internal/cni/rtnl"
	"wherry.dev/internal/failpoint"
)

// portmapConf has upstream's fields for nftables. Those for iptables are refused: markMasqBit and
// externalSetMarkChain, and conditions in iptables' language.
type portmapConf struct {
	types.PluginConf
	Backend       string          `json:"backend"`
	SNAT          *bool           `json:"snat"` // nil means true
	ConditionsV4  []string        `json:"conditionsV4"`
	ConditionsV6  []string        `json:"conditionsV6"`
	MasqAll       bool            `json:"masqAll"`
	RuntimeConfig json.RawMessage `json:"runtimeConfig"`
	Args          map[string]any  `json:"args"`

	ports []portMapping
}

type portMapping struct {
	HostPort      int    `json:"hostPort"`
	ContainerPort int    `json:"containerPort"`
	Protocol      string `json:"protocol"`
	HostIP        string `json:"hostIP"`

	hostIP netip.Addr // zero means every address
}

// String names the host port in an error.
func (p portMapping) String() string {
	return fmt.Sprintf("%d/%s", p.HostPort, strings.ToUpper(p.Protocol))
}

func readPortmap(stdin []byte) (*portmapConf, error) {
	c := &portmapConf{}
	if err := readConf(stdin, c); err != nil {
		return nil, err
	}
	switch {
	case c.Backend != "" && c.Backend != "nftables":
		return nil, types.NewError(types.ErrUnsupportedField, fmt.Sprintf("unsupported field backend: %q; this plugin has \"nftables\"", c.Backend), "")
	case c.IPAM.Type != "":
		return nil, types.NewError(types.ErrUnsupportedField, "unsupported field ipam.type: "+c.IPAM.Type, "")
	}
	for key, conditions := range map[string][]string{"conditionsV4": c.ConditionsV4, "conditionsV6": c.ConditionsV6} {
		if len(conditions) > 0 && strings.HasPrefix(conditions[0], "-") || len(conditions) > 0 && strings.HasPrefix(conditions[0], "!") {
			return nil, types.NewError(types.ErrUnsupportedField, fmt.Sprintf("unsupported field %s: %q; this plugin takes conditions in nft syntax", key, conditions), "")
		}
		if strings.ContainsAny(strings.Join(conditions, " "), "\n;{}#\\") {
			return nil, invalid("%s: %q is not just a condition", key, conditions)
		}
	}
	return c, c.readPorts()
}

func (c *portmapConf) readPorts() error {
	if len(c.RuntimeConfig) == 0 {
		return nil
	}
	var rc struct {
		PortMappings []portMapping `json:"portMappings"`
	}
	if err := json.Unmarshal(c.RuntimeConfig, &rc); err != nil {
		return types.NewError(types.ErrDecodingFailure, "cannot read runtimeConfig: "+err.Error(), "")
	}
	if err := refuseUnknown(c.RuntimeConfig, "runtimeConfig.", rc); err != nil {
		return err
	}
	for _, p := range rc.PortMappings {
		p.Protocol = strings.ToLower(p.Protocol)
		switch {
		case p.ContainerPort <= 0 || p.ContainerPort > 65535:
			return invalid("Invalid container port number: %d", p.ContainerPort)
		case p.HostPort <= 0 || p.HostPort > 65535:
			return invalid("Invalid host port number: %d", p.HostPort)
		case p.Protocol != "tcp" && p.Protocol != "udp" && p.Protocol != "sctp":
			return invalid("Invalid protocol %q of host port %d", p.Protocol, p.HostPort)
		}
		if p.HostIP != "" {
			a, err := netip.ParseAddr(p.HostIP)
			if err != nil {
				return invalid("host IP of host port %d: %v", p.HostPort, err)
			}
			p.hostIP = a.Unmap()
		}
		c.ports = append(c.ports, p)
	}
	return nil
}

// table returns the name of the table for all networks with the same conditions.
func (c *portmapConf) table() string {
	const name = "wherry-portmap"
	if len(c.ConditionsV4)+len(c.ConditionsV6) == 0 {
		return name
	}
	h := sha256.Sum256([]byte(strings.Join(c.ConditionsV4, " ") + "\n" + strings.Join(c.ConditionsV6, " ")))
	return name + "-" + hex.EncodeToString(h[:4])
}

// addrs returns the container's first address of each IP family.
func (c *portmapConf) addrs(args *skel.CmdArgs, r *result.Result) []netip.Prefix {
	var first []netip.Prefix
	for _, p := range ownAddrs(args, r) {
		if !slices.ContainsFunc(first, func(x netip.Prefix) bool { return x.Addr().Is4() == p.Addr().Is4() }) {
			first = append(first, p)
		}
	}
	return first
}

// fits reports whether a mapping applies to an address's IP family.
func (p portMapping) fits(a netip.Addr) bool { return !p.hostIP.IsValid() || p.hostIP.Is4() == a.Is4() }

func portmapAdd(ctx context.Context, args *skel.CmdArgs) error {
	c, err := readPortmap(args.StdinData)
	if err != nil {
		return err
	}
	r, err := previous(&c.PluginConf)
	if err != nil {
		return err
	}
	if r == nil {
		return invalid("must be called as chained plugin")
	}
	if len(c.ports) == 0 {
		return types.PrintResult(r, c.CNIVersion)
	}
	addrs := c.addrs(args, r)
	devices := localDevices(addrs)
	err = c.elements(tag(c.Name, args.ContainerID, args.IfName), addrs, devices).add(ctx)
	if errors.Is(err, nft.ErrExists) {
		return c.conflict(ctx, addrs)
	}
	if err != nil {
		return fmt.Errorf("unable to set up nftables rules for port mappings: %w", err)
	}
	failpoint.At("portmap-rules")
	for _, d := range devices { // the guard is now in place
		if err := writeSysctl("net/ipv4/conf/"+d+"/route_localnet", "1"); err != nil {
			return errors.Join(fmt.Errorf("unable to enable route_localnet: %w", err), removeTagged(ctx, c.table(), tag(c.Name, args.ContainerID, args.IfName)))
		}
	}
	if err := rtnl.ForgetUDP(c.udpPorts()); err != nil {
		return errors.Join(err, removeTagged(ctx, c.table(), tag(c.Name, args.ContainerID, args.IfName)))
	}
	return types.PrintResult(r, c.CNIVersion)
}

func (c *portmapConf) udpPorts() []uint16 {
	var ports []uint16
	for _, p := range c.ports {
		if p.Protocol == "udp" {
			ports = append(ports, uint16(p.HostPort))
		}
	}
	return ports
}

// localDevices returns the links that lead to the IPv4 addresses. With SNAT, traffic from
// 127.0.0.1 goes through them, too.
func localDevices(addrs []netip.Prefix) []string {
	var names []string
	for _, p := range addrs {
		if !p.Addr().Is4() {
			continue
		}
		routes, err := netlink.RouteGet(p.Addr().AsSlice())
		if err != nil || len(routes) == 0 {
			continue // the host has no route to this address: only others can use the port
		}
		if link, err := netlink.LinkByIndex(routes[0].LinkIndex); err == nil && link.Attrs().Name != lo {
			names = append(names, link.Attrs().Name)
		}
	}
	return names
}

// elements returns the attachment's host ports and what goes with them.
func (c *portmapConf) elements(tag string, addrs []netip.Prefix, devices []string) elements {
	es := elements{table: c.table(), tag: tag, render: c.renderTable}
	snat := c.SNAT == nil || *c.SNAT
	for _, pod := range addrs {
		ip := suffix(pod.Addr())
		for _, m := range c.ports {
			if m.fits(pod.Addr()) {
				set, key := m.element(ip)
				es.own = append(es.own, element{set, key, fmt.Sprintf("%s . %d", pod.Addr(), m.ContainerPort)})
			}
		}
		if !snat {
			continue
		}
		from := pod.Masked()
		if c.MasqAll {
			from = netip.PrefixFrom(unspecified(pod.Addr()), 0)
		}
		es.shared = append(es.shared, element{set: "near-" + ip, key: from.String() + " . " + pod.Addr().String()})
		if pod.Addr().Is4() {
			es.shared = append(es.shared, element{set: "local-ip", key: pod.Addr().String()})
		}
	}
	if snat {
		for _, d := range devices {
			es.untagged = append(es.untagged, element{set: "guarded", key: strconv.Quote(d)})
		}
	}
	return es
}

func unspecified(a netip.Addr) netip.Addr {
	if a.Is4() {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

// element returns where a mapping goes: on one address of the host, or on all of them.
func (p portMapping) element(ip string) (set, key string) {
	if p.hostIP.IsValid() && !p.hostIP.IsUnspecified() {
		return "one-" + ip, fmt.Sprintf("%s . %s . %d", p.hostIP, p.Protocol, p.HostPort)
	}
	return "any-" + ip, fmt.Sprintf("%s . %d", p.Protocol, p.HostPort)
}

// renderTable renders the table without elements. Connections that return to the network they
// came from are masqueraded; otherwise the answers would not pass through the host.
func (c *portmapConf) renderTable(b *strings.Builder) {
	t := c.table()
	p := func(format string, a ...any) { fmt.Fprintf(b, format+"\n", a...) }
	p("table inet %s {", t)
	for _, f := range [][2]string{{"ip", "ipv4_addr"}, {"ip6", "ipv6_addr"}} {
		p("map any-%s { type inet_proto . inet_service : %s . inet_service; }", f[0], f[1])
		p("map one-%s { type %s . inet_proto . inet_service : %s . inet_service; }", f[0], f[1], f[1])
		p("set near-%s { type %s . %s; flags interval; }", f[0], f[1], f[1])
	}
	p("set local-ip { type ipv4_addr; }\nset guarded { type ifname; }")
	p("chain hostports {\n}")
	chains := []string{"hostports", "prerouting", "output", "postrouting", "guard"}
	p("chain prerouting { type nat hook prerouting priority dstnat; policy accept; }")
	p("chain output { type nat hook output priority -100; policy accept; }")
	p("chain postrouting { type nat hook postrouting priority srcnat; policy accept; }")
	p("chain guard { type filter hook prerouting priority raw; policy accept; }\n}")
	for _, chain := range chains {
		p("flush chain inet %s %s", t, chain)
	}
	p("table inet %s {\nchain hostports {", t)
	for _, f := range [][2]string{{"ip", "ipv4"}, {"ip6", "ipv6"}} {
		p("dnat %s to %s daddr . meta l4proto . th dport map @one-%s", f[0], f[0], f[0])
		p("meta nfproto %s fib daddr type local dnat %s to meta l4proto . th dport map @any-%s", f[1], f[0], f[0])
	}
	p("}")
	for _, chain := range []string{"prerouting", "output"} {
		p("chain %s {", chain)
		p("meta nfproto ipv4 %s jump hostports", strings.Join(c.ConditionsV4, " "))
		p("meta nfproto ipv6 %s jump hostports\n}", strings.Join(c.ConditionsV6, " "))
	}
	p("chain postrouting {")
	p("ip saddr . ip daddr @near-ip ct status dnat masquerade")
	p("ip6 saddr . ip6 daddr @near-ip6 ct status dnat masquerade")
	p("ip saddr 127.0.0.0/8 ip daddr @local-ip masquerade\n}")
	// These links route 127.0.0.0/8 for host ports on localhost; packets that arrive on them for
	// that network must be dropped: CVE-2020-8558.
	p("chain guard {\niifname @guarded ip daddr 127.0.0.0/8 drop\n}\n}")
}

// conflict returns an error that names the host port that could not be had, and its owner.
func (c *portmapConf) conflict(ctx context.Context, addrs []netip.Prefix) error {
	es, err := nft.Elements(ctx, "inet", c.table())
	if err != nil {
		return fmt.Errorf("list nftables table %s: %w", c.table(), err)
	}
	return c.conflictWith(es, addrs)
}

func (c *portmapConf) conflictWith(es []nft.Element, addrs []netip.Prefix) error {
	seen := map[element]bool{}
	var asked []string
	for _, pod := range addrs {
		for _, m := range c.ports {
			if !m.fits(pod.Addr()) {
				continue
			}
			set, key := m.element(suffix(pod.Addr()))
			if i := slices.IndexFunc(es, func(e nft.Element) bool { return e.Set == set && e.Key == key }); i >= 0 {
				return fmt.Errorf("host port %s is in use by container %s (network/container/interface)", m, es[i].Comment)
			}
			if seen[element{set: set, key: key}] {
				return fmt.Errorf("host port %s is requested twice", m)
			}
			seen[element{set: set, key: key}] = true
			asked = append(asked, m.String())
		}
	}
	slices.Sort(asked)
	return fmt.Errorf("host port %s was in use by another container until a moment ago", strings.Join(slices.Compact(asked), " or "))
}

func portmapDel(ctx context.Context, args *skel.CmdArgs) error {
	c, err := readPortmap(args.StdinData)
	if err != nil {
		return err
	}
	return removeTagged(ctx, c.table(), tag(c.Name, args.ContainerID, args.IfName))
}

func portmapCheck(ctx context.Context, args *skel.CmdArgs) error {
	c, err := readPortmap(args.StdinData)
	if err != nil {
		return err
	}
	r, err := previous(&c.PluginConf)
	if err != nil {
		return err
	}
	if r == nil {
		return invalid("Required prevResult missing")
	}
	want := 0
	for _, a := range c.addrs(args, r) {
		for _, m := range c.ports {
			if m.fits(a.Addr()) {
				want++
			}
		}
	}
	if want == 0 {
		return nil
	}
	return checkTagged(ctx, c.table(), tag(c.Name, args.ContainerID, args.IfName), want)
}

func portmapGC(ctx context.Context, args *skel.CmdArgs) error {
	c, err := readPortmap(args.StdinData)
	if err != nil {
		return err
	}
	valid, err := validAttachments(args.StdinData)
	if err != nil {
		return err
	}
	return collectTagged(ctx, c.table(), c.Name, valid)
}

func portmapStatus(_ context.Context, args *skel.CmdArgs) error {
	if _, err := readPortmap(args.StdinData); err != nil {
		return err
	}
	if err := nftInstalled(); err != nil {
		return unavailable(err)
	}
	return nil
}
