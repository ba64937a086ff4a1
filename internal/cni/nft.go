package cni

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
)

// Service is a virtual address that leads to backends (`kubernetes` in namespace
// default: the API server).
type Service struct {
	VIP      netip.Addr
	Port     uint16
	Backends []netip.AddrPort
}

// ruleset is all that the instance's table says. It is rendered and replaced as a
// whole, in one kernel transaction: no rule can be forgotten or doubled, and
// connections that are tracked already keep their translation.
type ruleset struct {
	table    string
	bridge   string // "" when pods are on a CNI network of somebody else
	subnet   netip.Prefix
	ports    map[string][]forward // sandbox ID → its host ports
	services []Service
}

// forward is one host port of one pod.
type forward struct {
	PortMapping
	pod netip.Addr
}

func (f forward) key() string {
	return fmt.Sprintf("%s %s %d", f.hostIP(), f.Protocol, f.HostPort)
}

// hostIP is the address the port is open on; zero is all of them.
func (f forward) hostIP() netip.Addr {
	if f.HostIP.IsValid() && f.HostIP.IsUnspecified() {
		return netip.Addr{}
	}
	return f.HostIP
}

// render writes the table in nft(8)'s language.
func (r ruleset) render() string {
	var b strings.Builder
	p := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	p("table ip %s {}", r.table)
	p("delete table ip %s", r.table)
	p("table ip %s {", r.table)
	r.renderPorts(p)
	p("chain services {")
	for _, s := range r.services {
		if rule := s.rule(); rule != "" {
			p("%s", rule)
		}
	}
	p("}")
	p("chain prerouting { type nat hook prerouting priority dstnat; policy accept;")
	if r.bridge != "" {
		p("iifname %q jump services", r.bridge)
	} else {
		p("iifname != \"lo\" jump services")
	}
	p("jump hostports")
	p("}")
	p("chain output { type nat hook output priority -100; policy accept;\njump services\njump hostports\n}")
	if r.bridge != "" {
		r.renderBridge(p)
	}
	p("}")
	return b.String()
}

func (r ruleset) renderPorts(p func(string, ...any)) {
	var all, one []string
	for _, id := range slices.Sorted(maps.Keys(r.ports)) {
		for _, f := range r.ports[id] {
			if ip := f.hostIP(); ip.IsValid() {
				one = append(one, fmt.Sprintf("%s . %s . %d : %s . %d", ip, f.Protocol, f.HostPort, f.pod, f.ContainerPort))
			} else {
				all = append(all, fmt.Sprintf("%s . %d : %s . %d", f.Protocol, f.HostPort, f.pod, f.ContainerPort))
			}
		}
	}
	elements := func(e []string) string {
		if len(e) == 0 {
			return ""
		}
		return "elements = { " + strings.Join(e, ", ") + " }"
	}
	p("map hostports-any { type inet_proto . inet_service : ipv4_addr . inet_service; %s\n}", elements(all))
	p("map hostports-one { type ipv4_addr . inet_proto . inet_service : ipv4_addr . inet_service; %s\n}", elements(one))
	p("chain hostports {")
	p("dnat ip to ip daddr . meta l4proto . th dport map @hostports-one")
	p("fib daddr type local dnat ip to meta l4proto . th dport map @hostports-any")
	p("}")
}

func (r ruleset) renderBridge(p func(string, ...any)) {
	// The bridge routes 127.0.0.0/8 (for host ports on localhost), so what a pod
	// itself sends there must not pass: CVE-2020-8558.
	p("chain guard { type filter hook prerouting priority raw; policy accept;")
	p("iifname %q ip daddr 127.0.0.0/8 drop\n}", r.bridge)
	p("chain postrouting { type nat hook postrouting priority srcnat; policy accept;")
	p("ip saddr %s ip daddr %s ct status dnat masquerade", r.subnet, r.subnet)
	p("ip saddr 127.0.0.0/8 oifname %q masquerade", r.bridge)
	p("ip saddr %s ip daddr != { %s, 224.0.0.0/4 } oifname != %q masquerade\n}", r.subnet, r.subnet, r.bridge)
}

// rule spreads new connections over the backends at random.
func (s Service) rule() string {
	var to []string
	for _, b := range s.Backends {
		if b.Addr().Is4() {
			to = append(to, fmt.Sprintf("%s . %d", b.Addr(), b.Port()))
		}
	}
	if len(to) == 0 || !s.VIP.Is4() {
		return ""
	}
	match := fmt.Sprintf("ip daddr %s tcp dport %d ", s.VIP, s.Port)
	if len(to) == 1 {
		return match + "dnat to " + strings.Replace(to[0], " . ", ":", 1)
	}
	entries := make([]string, len(to))
	for i, t := range to {
		entries[i] = fmt.Sprintf("%d : %s", i, t)
	}
	return match + fmt.Sprintf("dnat ip to numgen random mod %d map { %s }", len(to), strings.Join(entries, ", "))
}

// conflict tells who holds one of the host ports already.
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

// nft runs a script in one transaction.
func nft(ctx context.Context, script string) error {
	cmd := exec.CommandContext(ctx, "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(script)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	if errors.Is(err, exec.ErrNotFound) {
		return errors.New("nft was not found in PATH; install the package nftables")
	}
	if err != nil {
		return fmt.Errorf("nft: %w: %s", err, firstLine(out.String()))
	}
	return nil
}

// deleteTable removes the instance's table; one that is not there is no error.
func deleteTable(ctx context.Context, table string) error {
	return nft(ctx, fmt.Sprintf("table ip %s {}\ndelete table ip %s\n", table, table))
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	return line
}
