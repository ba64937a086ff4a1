package cni

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	result "github.com/containernetworking/cni/pkg/types/100"
)

// theirs is where Debian's package containernetworking-plugins has its executables.
const theirs = "/usr/lib/cni"

func needsTheirs(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		if _, err := os.Stat(filepath.Join(theirs, name)); err != nil {
			t.Skipf("needs the plugin %s of the package containernetworking-plugins", name)
		}
	}
}

// lan is a cable between a host, on which Wherry runs, and a router. Both are network namespaces.
type lan struct {
	t            *testing.T
	host, router string
}

const routerIP = "10.23.0.1"

// newLAN connects the host's link lan0 with the router's.
func newLAN(t *testing.T) *lan {
	t.Helper()
	l := &lan{t: t, host: pluginHost(t), router: pluginHost(t)}
	l.ip(l.host, "link", "add", "lan0", "type", "veth", "peer", "name", "lan0", "netns", l.pid(l.router))
	l.ip(l.host, "link", "set", "lan0", "up")
	l.ip(l.router, "link", "set", "lan0", "up")
	l.ip(l.router, "address", "add", routerIP+"/24", "dev", "lan0")
	return l
}

// pid is a process in the namespace, for ip, which wants one, or a name that is known to everybody.
func (l *lan) pid(ns string) string {
	l.t.Helper()
	cmd := exec.Command("sleep", "infinity") //nolint:noctx // killed below
	if err := inside(ns, cmd.Start); err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return fmt.Sprint(cmd.Process.Pid)
}

func (l *lan) ip(ns string, args ...string) {
	l.t.Helper()
	if out, err := ipIn(ns, args...); err != nil {
		l.t.Fatalf("ip %s: %v: %s", strings.Join(args, " "), err, out)
	}
}

func ipIn(ns string, args ...string) (out []byte, err error) {
	err = inside(ns, func() error {
		out, err = exec.Command("ip", args...).CombinedOutput()
		return err
	})
	return out, err
}

// background runs a program in the namespace until the test ends, and shows what it said if the test
// failed.
func (l *lan) background(ns, path string, args ...string) {
	l.t.Helper()
	var log bytes.Buffer
	cmd := exec.Command(path, args...) //nolint:noctx // ended below
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := inside(ns, cmd.Start); err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended by itself
		_ = cmd.Wait()
		if l.t.Failed() {
			l.t.Logf("%s: %s", filepath.Base(path), log.String())
		}
	})
}

// serveDHCP makes the router lend two addresses, and returns the socket of the dhcp
// plugin's daemon, which asks for them on behalf of pods.
func (l *lan) serveDHCP() (socket string) {
	l.t.Helper()
	dir := l.t.TempDir()
	out, err := exec.Command("busybox", "udhcpd", "--help").CombinedOutput()
	if !strings.Contains(string(out), "Usage: udhcpd") {
		l.t.Skipf("busybox has no udhcpd: %v", err)
	}
	leases, conf := filepath.Join(dir, "leases"), filepath.Join(dir, "udhcpd.conf")
	text := fmt.Sprintf(`interface lan0
start 10.23.0.100
end 10.23.0.101
pidfile %s
lease_file %s
opt subnet 255.255.255.0
opt router %s
opt lease 3600
`, filepath.Join(dir, "pid"), leases, routerIP)
	if err := errors.Join(os.WriteFile(conf, []byte(text), 0o600), os.WriteFile(leases, nil, 0o600)); err != nil {
		l.t.Fatal(err)
	}
	l.background(l.router, "busybox", "udhcpd", "-f", conf)
	socket = filepath.Join(dir, "dhcp.sock")
	l.background(l.host, filepath.Join(theirs, "dhcp"), "daemon", "-socketpath", socket, "-timeout", "20s")
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) { // nothing reports that it listens
		c, err := net.Dial("unix", socket)
		if err == nil {
			_ = c.Close()
			return socket
		}
		if time.Now().After(deadline) {
			l.t.Fatal(err)
		}
	}
}

// network configures a chain of Debian's plugins.
func (l *lan) network(plugins ...string) *Network {
	l.t.Helper()
	cfg := PluginsConfig{ConfDir: l.t.TempDir(), BinDirs: []string{theirs}, CacheDir: l.t.TempDir()}
	doc := fmt.Sprintf(`{"cniVersion":"1.0.0","name":"lan","plugins":[%s]}`, strings.Join(plugins, ","))
	if err := os.WriteFile(filepath.Join(cfg.ConfDir, "10-lan.conflist"), []byte(doc), 0o600); err != nil {
		l.t.Fatal(err)
	}
	n := openPlugins(l.t, cfg)
	if err := inside(l.host, func() error { return n.Status(l.t.Context()) }); err != nil {
		l.t.Fatal(err)
	}
	return n
}

// join connects a pod, and asks whether CHECK agrees.
func (l *lan) join(n *Network, p Pod) (Attachment, result.Result) {
	l.t.Helper()
	var at Attachment
	err := inside(l.host, func() (err error) {
		if at, err = n.Setup(l.t.Context(), p); err != nil {
			return err
		}
		return n.Check(l.t.Context(), p, at.Network)
	})
	if err != nil {
		l.t.Fatal(err)
	}
	var r result.Result
	if err := json.Unmarshal(at.Result, &r); err != nil {
		l.t.Fatal(err)
	}
	return at, r
}

// leave disconnects a pod, twice.
func (l *lan) leave(n *Network, p Pod) {
	l.t.Helper()
	for range 2 {
		if err := inside(l.host, func() error { return n.Teardown(l.t.Context(), p, "lan") }); err != nil {
			l.t.Error(err)
		}
	}
	if out, err := ipIn(p.NetNS, "link", "show", IfName); err == nil {
		l.t.Errorf("the pod still has %s", out)
	}
}

// reaches calls a server in the pod from the router and back.
func (l *lan) reaches(p Pod, at Attachment) {
	l.t.Helper()
	serve(l.t, p.NetNS, ":8080", p.ID)
	expect(l.t, l.router, at.IPs[0].String()+":8080", p.ID+" "+routerIP)
	router := serve(l.t, l.router, routerIP+":0", "router")
	expect(l.t, p.NetNS, router.String(), "router "+at.IPs[0].String())
}

// TestMacvlanWithAddressesByDHCP: pods are on the host's own network, with addresses that its router
// lends to them.
func TestMacvlanWithAddressesByDHCP(t *testing.T) {
	needsTheirs(t, "macvlan", "dhcp")
	l := newLAN(t)
	socket := l.serveDHCP()
	n := l.network(fmt.Sprintf(`{"type":"macvlan","master":"lan0","mode":"bridge",
	 "ipam":{"type":"dhcp","daemonSocketPath":%q}}`, socket))
	p, q := newPod(t), newPod(t)
	at, r := l.join(n, p)
	bt, _ := l.join(n, q)
	lent := netip.MustParsePrefix("10.23.0.100/31")
	if !lent.Contains(at.IPs[0]) || !lent.Contains(bt.IPs[0]) || at.IPs[0] == bt.IPs[0] {
		t.Errorf("addresses %v and %v", at.IPs, bt.IPs)
	}
	if len(r.IPs) != 1 || r.IPs[0].Gateway.String() != routerIP || at.MAC == "" {
		t.Errorf("result %+v", r)
	}
	l.reaches(p, at)
	l.reaches(q, bt)
	expect(t, q.NetNS, at.IPs[0].String()+":8080", p.ID+" "+bt.IPs[0].String())
	l.leave(n, p)
	x := newPod(t)
	if xt, _ := l.join(n, x); xt.IPs[0] != at.IPs[0] {
		t.Errorf("the router lent %v, not %v, which was given back", xt.IPs, at.IPs)
	}
	l.leave(n, q)
	l.leave(n, x)
}

// TestTuningInAChain: what it sets holds in the pod, and the pod's record has the new MAC address.
func TestTuningInAChain(t *testing.T) {
	needsTheirs(t, "macvlan", "tuning", "static")
	l := newLAN(t)
	const mac = "0a:58:0a:17:00:32"
	n := l.network(`{"type":"macvlan","master":"lan0","mode":"bridge",
		 "ipam":{"type":"static","addresses":[{"address":"10.23.0.50/24"}]}}`,
		`{"type":"tuning","mac":"`+mac+`","mtu":1400,"allmulti":true,
		 "sysctl":{"net.core.somaxconn":"500","net.ipv4.conf.eth0.arp_filter":"1"}}`)
	p := newPod(t)
	at, _ := l.join(n, p)
	if at.MAC != mac {
		t.Errorf("the pod's MAC address is recorded as %s", at.MAC)
	}
	link, err := ipIn(p.NetNS, "-o", "link", "show", IfName)
	for _, want := range []string{mac, "mtu 1400", "ALLMULTI"} {
		if err != nil || !strings.Contains(string(link), want) {
			t.Errorf("the pod's link has no %s: %s, %v", want, link, err)
		}
	}
	for path, want := range map[string]string{"core/somaxconn": "500\n", "ipv4/conf/eth0/arp_filter": "1\n"} {
		var got []byte
		if err := inside(p.NetNS, func() (err error) {
			got, err = os.ReadFile("/proc/sys/net/" + path)
			return err
		}); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v", path, got, err)
		}
	}
	l.reaches(p, at)
	l.ip(p.NetNS, "link", "set", IfName, "mtu", "1500")
	err = inside(l.host, func() error { return n.Check(t.Context(), p, at.Network) })
	if err == nil || !strings.Contains(err.Error(), "tuning") {
		t.Errorf("CHECK of a pod whose link was changed: %v", err)
	}
	l.leave(n, p)
}

// TestVLAN: pods are in a VLAN of the cable, which the router tells apart from what is untagged.
func TestVLAN(t *testing.T) {
	needsTheirs(t, "vlan", "host-local")
	l := newLAN(t)
	if out, err := ipIn(l.router, "link", "add", "link", "lan0", "name", "lan0.5", "type", "vlan", "id", "5"); err != nil {
		t.Skipf("the kernel has no links of the type vlan (CONFIG_VLAN_8021Q): ip: %s", bytes.TrimSpace(out))
	}
	l.ip(l.router, "address", "flush", "dev", "lan0")
	l.ip(l.router, "address", "add", routerIP+"/24", "dev", "lan0.5")
	l.ip(l.router, "link", "set", "lan0.5", "up")
	n := l.network(fmt.Sprintf(`{"type":"vlan","master":"lan0","vlanId":5,
	 "ipam":{"type":"host-local","dataDir":%q,"subnet":"10.23.0.0/24","rangeStart":"10.23.0.50"}}`, t.TempDir()))
	p := newPod(t)
	at, _ := l.join(n, p)
	l.reaches(p, at)
	l.leave(n, p)
}
