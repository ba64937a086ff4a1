package cni

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestServicesKeepTheirClientsAddresses: pods of one node that met through a service, or a host port,
// were seen with the bridge's address. Bridges can show the firewall what they switch, or not; it holds
// in both cases.
func TestServicesKeepTheirClientsAddresses(t *testing.T) {
	for _, shown := range []string{"0", "1"} {
		t.Run("bridge-nf-call="+shown, func(t *testing.T) { keepsClients(t, shown) })
	}
}

func keepsClients(t *testing.T, shown string) {
	host := pluginHost(t)
	cfg := BridgeConfig{Name: "wt0", Table: "wherry-test", Dir: t.TempDir(), Subnets: []netip.Prefix{
		netip.MustParsePrefix("10.9.0.0/24"), netip.MustParsePrefix("fd09::/64"),
	}}
	p1, p2 := newPod(t), newPod(t, PortMapping{Protocol: "tcp", ContainerPort: 8080, HostPort: 30000})
	var a1, a2 Attachment
	err := inside(host, func() error {
		if err := showBridged(shown); err != nil {
			return err
		}
		b := openTestBridge(t, cfg, nil)
		a1, a2 = setup(t, b, p1), setup(t, b, p2)
		script := fmt.Sprintf(`table inet services { chain p { type nat hook prerouting priority dstnat - 1;
			ip daddr 10.96.0.1 tcp dport 80 dnat ip to %s:8080
			ip6 daddr fd96::1 tcp dport 80 dnat ip6 to [%s]:8080
		}; }`, a2.IPs[0], a2.IPs[1])
		cmd := exec.Command("nft", "-f", "-")
		cmd.Stdin = strings.NewReader(script)
		out, err := cmd.CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	serve(t, p2.NetNS, ":8080", "pod2")
	for to, client := range map[string]netip.Addr{
		"10.96.0.1:80": a1.IPs[0], "[fd96::1]:80": a1.IPs[1], // services
		"10.9.0.1:30000": a1.IPs[0], "[fd09::1]:30000": a1.IPs[1], // a host port
		netip.AddrPortFrom(a2.IPs[0], 8080).String(): a1.IPs[0], netip.AddrPortFrom(a2.IPs[1], 8080).String(): a1.IPs[1],
	} {
		got := expect(t, p1.NetNS, to, "pod2 ")
		if seen, err := netip.ParseAddrPort(strings.TrimPrefix(strings.TrimSpace(got), "pod2 ")); err != nil || seen.Addr().Unmap() != client {
			t.Errorf("through %s the client is seen as %s, not %s", to, got, client)
		}
	}
	expect(t, p2.NetNS, "10.9.0.1:30000", "pod2 ") // itself, through its host port
	for _, ip := range a2.IPs {
		if out, err := ipIn(p1.NetNS, "route", "get", ip.String()); err != nil || strings.Contains(string(out), "redirect") || !strings.Contains(string(out), "via ") {
			t.Errorf("the way to %s: %s, %v", ip, out, err)
		}
	}

	// What the firewall forbids does not happen.
	drop := fmt.Sprintf("table inet forbids { chain f { type filter hook forward priority 0; ip daddr %s drop; ip6 daddr %s drop; }; }", a2.IPs[0], a2.IPs[1])
	if err := inside(host, func() error { return exec.Command("nft", drop).Run() }); err != nil {
		t.Fatal(err)
	}
	for _, ip := range a2.IPs {
		if got, err := call(t, p1.NetNS, netip.AddrPortFrom(ip, 8080).String(), moment); err == nil {
			t.Errorf("past the firewall: %s", got)
		}
	}
}

// showBridged says whether bridges of the namespace show the firewall what they switch.
func showBridged(value string) error {
	var errs []error
	for _, name := range []string{"iptables", "ip6tables"} {
		path := filepath.Join("/proc/sys/net/bridge", "bridge-nf-call-"+name)
		if _, err := os.Stat(path); err != nil && value == "0" {
			continue // the kernel cannot do it at all
		}
		errs = append(errs, os.WriteFile(path, []byte(value), 0))
	}
	return errors.Join(errs...)
}
