package plugin

import (
	"net"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"

	"wherry.dev/internal/netns"
)

const (
	dualStack = `{"type":"bridge","bridge":"br0","isDefaultGateway":true,"ipMasq":true,"hairpinMode":true,"ipam":{"type":"host-local","dataDir":"DATA",
	 "ranges":[[{"subnet":"10.22.0.0/24"}],[{"subnet":"fd00:22::/64"}]]}}`
	portmap = `{"type":"portmap","capabilities":{"portMappings":true},"snat":true}`
)

func ip(t *testing.T, cidr net.IPNet) string {
	t.Helper()
	return toPrefix(cidr).Addr().String()
}

// tcp maps a port of the host to port 80.
func tcp(hostPort int) map[string]any {
	return map[string]any{"hostPort": hostPort, "containerPort": 80, "protocol": "tcp"}
}

func TestChainedPluginsConnectContainers(t *testing.T) {
	h := newHost(t)
	n := h.network("1.1.0", dualStack, portmap)
	if err := n.GetStatusNetworkList(t.Context(), n.list); err != nil {
		t.Fatal(err)
	}
	udp := tcp(8080)
	udp["protocol"] = "udp"
	a, b := h.container(tcp(8080), udp, map[string]any{"hostPort": 9090, "containerPort": 80, "protocol": "sctp"}), h.container()
	ra, rb := n.add(a), n.add(b)
	if len(ra.IPs) != 2 || len(ra.Interfaces) != 3 || ra.Interfaces[2].Sandbox != a.NetNS || len(ra.Routes) != 2 {
		t.Fatalf("result %+v", ra)
	}
	h.serve(a.NetNS, "80", "a")
	h.serve(h.ns, "7000", "host")
	for i := range 2 {
		at := ip(t, ra.IPs[i].Address)
		if got := h.expect(b.NetNS, "tcp", net.JoinHostPort(at, "80"), "a "); !strings.Contains(got, ip(t, rb.IPs[i].Address)) {
			t.Errorf("containers see each other under a foreign address: %s", got)
		}
		gw := ra.IPs[i].Gateway.String()
		h.expect(b.NetNS, "tcp", net.JoinHostPort(gw, "7000"), "host ")
		h.expect(h.ns, "tcp", net.JoinHostPort(gw, "8080"), "a ")
		h.expect(b.NetNS, "tcp", net.JoinHostPort(gw, "8080"), "a ")
		h.expect(a.NetNS, "tcp", net.JoinHostPort(gw, "8080"), "a ") // itself, through the host
		h.expect(b.NetNS, "udp", net.JoinHostPort(gw, "8080"), "a ")
	}
	h.expect(h.ns, "tcp", "127.0.0.1:8080", "a ")
	if left := strings.Join(h.leftovers(), "\n"); !strings.Contains(left, "any-ip sctp . 9090") || !strings.Contains(left, "any-ip6 sctp . 9090") {
		t.Errorf("no SCTP port is open: %s", left)
	}

	for _, rt := range []*libcni.RuntimeConf{a, b} {
		if err := n.CheckNetworkList(t.Context(), n.list, rt); err != nil {
			t.Error(err)
		}
		n.del(rt)
		n.del(rt) // again: DEL can be repeated
	}
	h.wantClean()
	if _, err := h.call(h.ns, "tcp", "127.0.0.1:8080", moment); err == nil {
		t.Error("the host port is still open")
	}
}

func TestEveryVersionOfTheProtocol(t *testing.T) {
	h := newHost(t)
	for _, v := range []string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
		n := h.network(v, dualStack, portmap)
		rt := h.container(tcp(8080))
		if r := n.add(rt); len(r.IPs) != 2 || len(r.Interfaces) != 3 {
			t.Errorf("%s: %+v", v, r)
		}
		n.del(rt)
	}
	h.wantClean()
}

func TestCheckFindsWhatIsMissing(t *testing.T) {
	h := newHost(t)
	n := h.network("1.1.0", dualStack, portmap)
	for want, spoil := range map[string][]string{
		"lost its address":      {"container", "ip", "addr", "del", "ADDR", "dev", "eth0"},
		"route to 0.0.0.0/0":    {"container", "ip", "route", "del", "default"},
		"is down":               {"container", "ip", "link", "set", "eth0", "down"},
		"doesn't match":         {"container", "ip", "link", "set", "eth0", "address", "02:00:00:00:00:09"},
		"no longer connected":   {"host", "sh", "-c", "for i in /sys/class/net/veth*; do :; done; ip link set VETH nomaster"},
		"table wherry-masq":     {"host", "nft", "flush", "set", "inet", "wherry-masq", "pods-ip"},
		"table wherry-portmap":  {"host", "nft", "delete", "table", "inet", "wherry-portmap"},
		"Failed to find addr":   {"data"},
		"veth created for brid": {"host", "ip", "link", "del", "VETH"},
	} {
		rt := h.container(tcp(8081))
		r := n.add(rt)
		if err := n.CheckNetworkList(t.Context(), n.list, rt); err != nil {
			t.Fatalf("before %v: %v", spoil, err)
		}
		for i := range spoil {
			spoil[i] = strings.NewReplacer("ADDR", r.IPs[0].Address.String(), "VETH", r.Interfaces[1].Name).Replace(spoil[i])
		}
		switch spoil[0] {
		case "data":
			s, err := openStore(h.data, "testnet")
			if err == nil {
				err = s.release(owner{rt.ContainerID, "eth0"})
				s.close()
			}
			if err != nil {
				t.Fatal(err)
			}
		default:
			ns := map[string]string{"host": h.ns, "container": rt.NetNS}[spoil[0]]
			h.in(ns, func() error { return exec.Command(spoil[1], spoil[2:]...).Run() })
		}
		if err := n.CheckNetworkList(t.Context(), n.list, rt); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: CHECK says %v; want %q", spoil, err, want)
		}
		n.del(rt)
	}
	h.wantClean()
}

func TestMasquerade(t *testing.T) {
	h := newHost(t)
	outside := newNetNS(t)
	h.in(h.ns, func() error {
		return exec.Command("sh", "-ec", `ip link add up0 type veth peer name down0 netns `+outside+`
ip addr add 192.0.2.1/24 dev up0; ip addr add 2001:db8::1/64 dev up0 nodad; ip link set up0 up`).Run()
	})
	h.in(outside, func() error {
		return exec.Command("sh", "-ec", `ip addr add 192.0.2.2/24 dev down0; ip addr add 2001:db8::2/64 dev down0 nodad; ip link set down0 up
ip route add 10.22.0.0/16 via 192.0.2.1`).Run()
	})
	h.serve(outside, "80", "outside")
	n := h.network("1.1.0", dualStack)
	rt := h.container()
	n.add(rt)
	if got := h.expect(rt.NetNS, "tcp", "192.0.2.2:80", "outside "); !strings.Contains(got, "192.0.2.1:") {
		t.Errorf("seen from outside as %s", got)
	}
	if got := h.expect(rt.NetNS, "tcp", "[2001:db8::2]:80", "outside "); !strings.Contains(got, "[2001:db8::1]:") {
		t.Errorf("seen from outside as %s", got)
	}
	n.del(rt)
	plain := h.network("1.1.0", `{"type":"bridge","bridge":"br1","isGateway":true,"ipam":{"type":"host-local","dataDir":"DATA",
	 "subnet":"10.22.1.0/24","routes":[{"dst":"0.0.0.0/0"}]}}`)
	rt = h.container()
	r := plain.add(rt)
	if got := h.expect(rt.NetNS, "tcp", "192.0.2.2:80", "outside "); !strings.Contains(got, ip(t, r.IPs[0].Address)) {
		t.Errorf("without ipMasq seen from outside as %s", got)
	}
	plain.del(rt)
	h.wantClean()
}

// TestKilledBetweenAnyTwoSteps kills the plugin at ADD and then at DEL. DEL follows, as a runtime
// would call it.
func TestKilledBetweenAnyTwoSteps(t *testing.T) {
	h := newHost(t)
	n := h.network("1.1.0", dualStack, portmap)
	for _, step := range []string{"bridge-made", "host-local-leased", "bridge-gateways", "bridge-plugged", "bridge-masqueraded", "portmap-rules"} {
		rt := h.container(tcp(8080))
		h.failAt = step
		if _, err := n.AddNetworkList(t.Context(), n.list, rt); err == nil {
			t.Fatalf("%s was not hit", step)
		}
		h.failAt = ""
		n.del(rt)
		if left := h.leftovers(); len(left) > 0 {
			t.Errorf("killed at %s, left after DEL: %q", step, left)
		}
	}
	rt := h.container(tcp(8080))
	n.add(rt)
	h.failAt = "bridge-unplugged"
	if err := n.DelNetworkList(t.Context(), n.list, rt); err == nil {
		t.Fatal("bridge-unplugged was not hit")
	}
	h.failAt = ""
	if err := netns.Remove(filepath.Dir(rt.NetNS)); err != nil { // the namespace goes, too
		t.Fatal(err)
	}
	rt.NetNS = ""
	n.del(rt)
	h.wantClean()
}

func TestGarbageCollection(t *testing.T) {
	h := newHost(t)
	n := h.network("1.1.0", dualStack, portmap)
	kept, lost := h.container(tcp(8080)), h.container(tcp(8081))
	n.add(kept)
	n.add(lost)
	if err := netns.Remove(filepath.Dir(lost.NetNS)); err != nil {
		t.Fatal(err)
	}
	n.CNIConfig = libcni.NewCNIConfigWithCacheDir([]string{h.bin}, t.TempDir(), &hostExec{h: h}) // the cache is lost, too
	valid := &libcni.GCArgs{ValidAttachments: []types.GCAttachment{{ContainerID: kept.ContainerID, IfName: "eth0"}}}
	if err := n.GCNetworkList(t.Context(), n.list, valid); err != nil {
		t.Fatal(err)
	}
	left := strings.Join(h.leftovers(), "\n")
	if strings.Contains(left, lost.ContainerID) || !strings.Contains(left, kept.ContainerID) || strings.Count(left, "lease ") != 2 {
		t.Errorf("after GC: %s", left)
	}
	h.serve(kept.NetNS, "80", "kept")
	h.expect(h.ns, "tcp", "127.0.0.1:8080", "kept ")
	n.del(kept)
	for _, plugin := range []string{"bridge", "host-local", "portmap"} {
		conf := strings.ReplaceAll(`{"cniVersion":"1.1.0","name":"testnet",`+dualStack[1:], "DATA", h.data)
		if plugin == "portmap" {
			conf = `{"cniVersion":"1.1.0","name":"testnet","type":"portmap"}`
		}
		if _, fault, _ := h.raw(plugin, conf, "CNI_COMMAND=GC"); fault.Code != types.ErrInvalidNetworkConfig {
			t.Errorf("GC of %s without a list of what is valid: %v", plugin, fault)
		}
	}
}

func TestHostPortInUseNamesItsHolder(t *testing.T) {
	h := newHost(t)
	n := h.network("1.0.0", dualStack, portmap)
	a, b := h.container(tcp(8080)), h.container(tcp(8080))
	n.add(a)
	_, err := n.AddNetworkList(t.Context(), n.list, b)
	if err == nil || !strings.Contains(err.Error(), "host port 8080/TCP is in use by container testnet/"+a.ContainerID+"/eth0") {
		t.Errorf("got %v", err)
	}
	n.del(b)
	n.del(a)
	h.wantClean()
}

// A host port that was requested twice, or that another container had until a moment ago, used to
// be refused without its number.
func TestRefusedHostPortIsNamed(t *testing.T) {
	h := newHost(t)
	n := h.network("1.0.0", dualStack, portmap)
	c := h.container(tcp(8080), tcp(8081), tcp(8080))
	if _, err := n.AddNetworkList(t.Context(), n.list, c); err == nil || !strings.Contains(err.Error(), "host port 8080/TCP is requested twice") {
		t.Errorf("got %v", err)
	}
	n.del(c)
	h.wantClean()
	conf := &portmapConf{ports: []portMapping{{HostPort: 8080, Protocol: "tcp"}, {HostPort: 53, Protocol: "udp"}}}
	err := conf.conflictWith(nil, []netip.Prefix{netip.MustParsePrefix("10.22.0.2/16"), netip.MustParsePrefix("fd00::2/64")})
	if want := "host port 53/UDP or 8080/TCP was in use by another container until a moment ago"; err == nil || err.Error() != want {
		t.Errorf("got %v", err)
	}
}

func TestPortmapOptions(t *testing.T) {
	h := newHost(t)
	one := tcp(8080)
	one["hostIP"] = "10.22.0.1"
	n := h.network("1.0.0", dualStack, `{"type":"portmap","capabilities":{"portMappings":true},"masqAll":true,
	 "conditionsV4":["ip","saddr","!=","10.22.0.9"],"conditionsV6":["ip6","saddr","!=","fd00::9"]}`)
	a, b := h.container(one), h.container()
	n.add(a)
	n.add(b)
	h.serve(a.NetNS, "80", "a")
	h.expect(b.NetNS, "tcp", "10.22.0.1:8080", "a 10.22.0.1:") // masqAll: as the host
	if got, err := h.call(h.ns, "tcp", "127.0.0.1:8080", moment); err == nil {
		t.Errorf("open on another address than hostIP: %q", got)
	}
	n.del(a)
	n.del(b)
	h.wantClean()
}

// TestContainersCannotReachTheHostsLoopback is CVE-2020-8558: host ports on localhost
// need a bridge that routes 127.0.0.0/8.
func TestContainersCannotReachTheHostsLoopback(t *testing.T) {
	h := newHost(t)
	n := h.network("1.0.0", dualStack, portmap)
	rt := h.container(tcp(8080))
	n.add(rt)
	h.serve(h.ns, "7000", "secret")
	h.in(rt.NetNS, func() error {
		return exec.Command("sh", "-ec", `ip addr del 127.0.0.1/8 dev lo; ip route add 127.0.0.1 via 10.22.0.1 dev eth0 onlink
echo 1 > /proc/sys/net/ipv4/conf/eth0/route_localnet`).Run()
	})
	if got, err := h.call(rt.NetNS, "tcp", "127.0.0.1:7000", moment); err == nil {
		t.Errorf("reached: %q", got)
	}
	n.del(rt)
}

func TestBridgeOptions(t *testing.T) {
	h := newHost(t)
	ipam := `"ipam":{"type":"host-local","dataDir":"DATA","subnet":"10.22.2.0/24","gateway":"10.22.2.254","routes":[{"dst":"192.0.2.0/24","mtu":1400}]}`
	n := h.network("1.0.0", `{"type":"bridge","bridge":"br2","isGateway":true,"mtu":1400,"promiscMode":true,"capabilities":{"mac":true,"ips":true},"dns":{"nameservers":["192.0.2.53"]},`+ipam+`}`)
	rt := h.container()
	rt.CapabilityArgs = map[string]any{"mac": "02:11:22:33:44:55", "ips": []string{"10.22.2.77/24"}}
	r := n.add(rt)
	if r.Interfaces[2].Mac != "02:11:22:33:44:55" || r.IPs[0].Address.String() != "10.22.2.77/24" ||
		r.IPs[0].Gateway.String() != "10.22.2.254" || len(r.DNS.Nameservers) != 1 {
		t.Errorf("result %+v", r)
	}
	var out []byte
	h.in(rt.NetNS, func() (err error) {
		out, err = exec.Command("sh", "-c", "ip -o link show eth0; ip route").CombinedOutput()
		return err
	})
	if s := string(out); !strings.Contains(s, "mtu 1400") || !strings.Contains(s, "192.0.2.0/24 via 10.22.2.254 dev eth0 mtu 1400") {
		t.Errorf("in the container: %s", s)
	}
	h.in(h.ns, func() (err error) {
		out, err = exec.Command("sh", "-c", "ip -o -d link show br2; ip -o addr show br2").CombinedOutput()
		return err
	})
	if s := string(out); !strings.Contains(s, "PROMISC") || !strings.Contains(s, "10.22.2.254/24") {
		t.Errorf("on the host: %s", s)
	}
	n.del(rt)

	other := h.network("1.0.0", `{"type":"bridge","bridge":"br2","isGateway":true,"ipam":{"type":"host-local","dataDir":"DATA","subnet":"10.22.3.0/24"}}`)
	rt = h.container()
	if _, err := other.AddNetworkList(t.Context(), other.list, rt); err == nil || !strings.Contains(err.Error(), `"br2" already has an IP address different from 10.22.3.1/24`) {
		t.Errorf("another network on the bridge: %v", err)
	}
	forced := h.network("1.0.0", `{"type":"bridge","bridge":"br2","isGateway":true,"forceAddress":true,"ipam":{"type":"host-local","dataDir":"DATA","subnet":"10.22.3.0/24"}}`)
	forced.add(rt)
	forced.del(rt)
	layer2 := h.network("1.0.0", `{"type":"bridge","bridge":"br2"}`)
	if r := layer2.add(rt); len(r.IPs) != 0 || r.Interfaces[2].Mac == "" {
		t.Errorf("without ipam: %+v", r)
	}
	if _, err := layer2.AddNetworkList(t.Context(), layer2.list, rt); err == nil || !strings.Contains(err.Error(), "already exists") {
		t.Errorf("ADD twice: %v", err)
	}
	layer2.del(rt)
	h.wantClean()
}

func TestLoopbackAndNoop(t *testing.T) {
	h := newHost(t)
	n := h.network("1.1.0", `{"type":"noop"}`, `{"type":"loopback"}`)
	if err := n.GetStatusNetworkList(t.Context(), n.list); err != nil {
		t.Error(err)
	}
	lone := h.network("1.1.0", `{"type":"loopback"}`)
	rt := h.container()
	if err := lone.CheckNetworkList(t.Context(), lone.list, rt); err == nil || !strings.Contains(err.Error(), "interface lo is down") {
		t.Errorf("CHECK before ADD: %v", err)
	}
	n.add(rt)
	if r := lone.add(rt); len(r.IPs) == 0 || r.IPs[0].Address.String() != "127.0.0.1/8" || r.Interfaces[0].Name != "lo" {
		t.Errorf("result %+v", r)
	}
	if err := lone.CheckNetworkList(t.Context(), lone.list, rt); err != nil {
		t.Error(err)
	}
	h.serve(rt.NetNS, "80", "self")
	h.expect(rt.NetNS, "tcp", "127.0.0.1:80", "self ")
	lone.del(rt)
	rt.NetNS = filepath.Join(t.TempDir(), "gone")
	lone.del(rt)
	n.del(rt)
}
