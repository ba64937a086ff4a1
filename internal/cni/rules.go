package cni

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// ruleset is the whole content of the instance's table. It is rendered and replaced as a whole,
// in one kernel transaction: no rule can be forgotten or doubled, and connections that are
// already tracked keep their translation.
type ruleset struct {
	table   string
	bridge  string // "" if the pods are on somebody else's CNI network
	subnets []netip.Prefix
	cluster []netip.Prefix       // see BridgeConfig
	overlay string               // see BridgeConfig
	ports   map[string][]forward // sandbox ID → its host ports
}

// forward is one host port of one pod.
type forward struct {
	PortMapping
	pod netip.Addr
}

func (f forward) key() string {
	return fmt.Sprintf("%s %s %s %d", familyOf(f.pod).ip, f.hostIP(), f.Protocol, f.HostPort)
}

// hostIP returns the address on which the port is open; zero means all of them.
func (f forward) hostIP() netip.Addr {
	if f.HostIP.IsValid() && f.HostIP.IsUnspecified() {
		return netip.Addr{}
	}
	return f.HostIP
}

// family has nft's names for an IP family.
type family struct{ ip, addr, multicast string }

var (
	ipv4 = family{"ip", "ipv4_addr", "224.0.0.0/4"}
	ipv6 = family{"ip6", "ipv6_addr", "ff00::/8"}
)

func familyOf(a netip.Addr) family {
	if a.Is4() {
		return ipv4
	}
	return ipv6
}

// element returns where a host port goes: into the map for its address, or the one for all.
func (f forward) element() (set, element string) {
	to := fmt.Sprintf("%s . %d : %s . %d", f.Protocol, f.HostPort, f.pod, f.ContainerPort)
	if ip := f.hostIP(); ip.IsValid() {
		return "hostports-one-" + familyOf(f.pod).ip, ip.String() + " . " + to
	}
	return "hostports-any-" + familyOf(f.pod).ip, to
}

// hairpin returns the pair of addresses of a pod that reaches itself through a host port.
func (f forward) hairpin() (set, element string) {
	return "hairpins-" + familyOf(f.pod).ip, fmt.Sprintf("%s . %s", f.pod, f.pod)
}

// renderNew renders the script that adds host ports to the existing table. That takes the kernel
// 1 ms; replacing the table takes 15, because it waits until nothing uses the old one.
func (r ruleset) renderNew(fs []forward) string {
	var b strings.Builder
	for _, f := range fs {
		set, e := f.element()
		fmt.Fprintf(&b, "create element inet %s %s { %s }\n", r.table, set, e)
		set, e = f.hairpin()
		fmt.Fprintf(&b, "add element inet %s %s { %s }\n", r.table, set, e) // its other ports may have it already
	}
	return b.String()
}

// render renders the table in nft(8)'s language.
func (r ruleset) render() string {
	var b strings.Builder
	p := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	p("table inet %s {}", r.table)
	p("delete table inet %s", r.table)
	p("table inet %s {", r.table)
	r.renderPorts(p)
	p("chain prerouting { type nat hook prerouting priority dstnat; policy accept;\njump hostports\n}")
	p("chain output { type nat hook output priority -100; policy accept;\njump hostports\n}")
	if r.bridge != "" {
		r.renderBridge(p)
	}
	p("}")
	return b.String()
}

func (r ruleset) renderPorts(p func(string, ...any)) {
	elements := map[string][]string{}
	for _, id := range slices.Sorted(maps.Keys(r.ports)) {
		for _, f := range r.ports[id] {
			set, e := f.element()
			elements[set] = append(elements[set], e)
			if set, e = f.hairpin(); !slices.Contains(elements[set], e) {
				elements[set] = append(elements[set], e)
			}
		}
	}
	list := func(name string) string {
		if len(elements[name]) == 0 {
			return ""
		}
		return "elements = { " + strings.Join(elements[name], ", ") + " }"
	}
	for _, f := range []family{ipv4, ipv6} {
		p("map hostports-any-%s { type inet_proto . inet_service : %s . inet_service; %s\n}", f.ip, f.addr, list("hostports-any-"+f.ip))
		p("set hairpins-%s { type %s . %s; %s\n}", f.ip, f.addr, f.addr, list("hairpins-"+f.ip))
		p("map hostports-one-%s { type %s . inet_proto . inet_service : %s . inet_service; %s\n}", f.ip, f.addr, f.addr, list("hostports-one-"+f.ip))
	}
	p("chain hostports {")
	for _, f := range []family{ipv4, ipv6} {
		p("dnat %s to %s daddr . meta l4proto . th dport map @hostports-one-%s", f.ip, f.ip, f.ip)
		p("meta nfproto %s fib daddr type local dnat %s to meta l4proto . th dport map @hostports-any-%s",
			strings.TrimSuffix(f.addr, "_addr"), f.ip, f.ip)
	}
	p("}")
}

func (r ruleset) renderBridge(p func(string, ...any)) {
	// The bridge routes 127.0.0.0/8 (for host ports on localhost), so packets that a pod itself
	// sends there must be dropped: CVE-2020-8558.
	p("chain guard { type filter hook prerouting priority raw; policy accept;")
	p("iifname %q ip daddr 127.0.0.0/8 drop\n}", r.bridge)
	// Packets between pods come from the bridge and leave by it. That is no detour, so nobody is told of a
	// shorter way.
	p("chain redirects { type filter hook output priority filter; policy accept;")
	p("oifname %q icmp type redirect drop\noifname %q icmpv6 type nd-redirect drop\n}", r.bridge, r.bridge)
	// A pod's TCP learns how large packets to other nodes may be when it connects. That holds where the kernel's
	// messages about it are lost, too.
	if r.overlay != "" {
		p("chain sizes { type filter hook forward priority mangle; policy accept;")
		p("oifname %q tcp flags & (syn | rst) == syn tcp option maxseg size set rt mtu\n}", r.overlay)
	}
	p("chain postrouting { type nat hook postrouting priority srcnat; policy accept;")
	p("ip saddr 127.0.0.0/8 oifname %q masquerade", r.bridge)
	for _, s := range r.subnets {
		f := familyOf(s.Addr())
		p("%s saddr . %s daddr @hairpins-%s ct status dnat masquerade", f.ip, f.ip, f.ip)
		p("%s saddr %s %s daddr != { %s, %s } oifname != %q masquerade", f.ip, s, f.ip, r.kept(s), f.multicast, r.bridge)
	}
	p("}")
}

// kept lists the networks that see the own addresses of pods of a subnet.
func (r ruleset) kept(subnet netip.Prefix) string {
	var list []string
	inside := false
	for _, c := range r.cluster {
		if c.Addr().Is4() == subnet.Addr().Is4() {
			list = append(list, c.Masked().String())
			inside = inside || c.Overlaps(subnet)
		}
	}
	if !inside {
		list = append(list, subnet.String())
	}
	return strings.Join(list, ", ")
}

// conflict returns an error that names the pod that already holds one of the host ports.
func (r ruleset) conflict(id string, ports []forward) error {
	taken := map[string]string{}
	for other, fs := range r.ports {
		if other == id {
			continue
		}
		for _, f := range fs {
			taken[f.key()] = other
		}
	}
	for _, f := range ports {
		if other, ok := taken[f.key()]; ok {
			return fmt.Errorf("host port %d/%s is in use by sandbox %s", f.HostPort, strings.ToUpper(f.Protocol), other)
		}
	}
	return nil
}
