package cni

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"wherry.dev/internal/netns"
)

// newConfig returns a bridge network that no other test uses, and removes it at the end.
func newConfig(t *testing.T) BridgeConfig {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	n := time.Now().UnixNano() ^ int64(os.Getpid())<<20
	cfg := BridgeConfig{
		Name:  fmt.Sprintf("wt%x", n&0xffffff),
		Table: fmt.Sprintf("wherry-test-%x", n&0xffffff),
		Subnets: []netip.Prefix{
			netip.MustParsePrefix(fmt.Sprintf("10.%d.%d.0/24", 128+n>>8&63, n&255)),
			netip.MustParsePrefix(fmt.Sprintf("fd00:%x:%x::/64", n>>16&0xffff, n&0xffff)),
		},
		Dir: t.TempDir(),
	}
	t.Cleanup(func() {
		if err := cfg.Remove(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
		if gone, err := linkGone(cfg.Name); err != nil || !gone {
			t.Errorf("bridge %s is still there: %v", cfg.Name, err)
		}
		if out, err := exec.Command("nft", "list", "table", "inet", cfg.Table).CombinedOutput(); err == nil {
			t.Errorf("table is still there: %s", out)
		}
	})
	return cfg
}

func openTestBridge(t *testing.T, cfg BridgeConfig, live map[string]Pod) *Bridge {
	t.Helper()
	b, err := OpenBridge(t.Context(), cfg, live)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

var podCount int

func newPod(t *testing.T, ports ...PortMapping) Pod {
	t.Helper()
	podCount++
	id := fmt.Sprintf("%06x%03d%02x", os.Getpid()&0xffffff, podCount, time.Now().UnixNano()&0xff) // names of links are made from its prefix
	dir := filepath.Join(t.TempDir(), "ns")
	if err := netns.Create(dir, []netns.Kind{netns.Net}, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := netns.Remove(dir); err != nil {
			t.Error(err)
		}
	})
	return Pod{ID: id, Name: "p", Namespace: "ns", UID: "u", NetNS: netns.Path(dir, netns.Net), Ports: ports}
}

// serve answers every connection with the text, inside the pod ("" means the host).
func serve(t *testing.T, ns, addr, text string) netip.AddrPort {
	t.Helper()
	var l net.Listener
	listen := func() (err error) { l, err = net.Listen("tcp", addr); return err }
	if err := inside(ns, listen); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = fmt.Fprintf(c, "%s %s\n", text, c.RemoteAddr())
			_ = c.Close()
		}
	}()
	t.Cleanup(func() { _ = l.Close(); <-done })
	return netip.MustParseAddrPort(l.Addr().String())
}

func inside(ns string, fn func() error) error {
	if ns == "" {
		return fn()
	}
	return netns.Do(fn, ns)
}

// How long to try a connection: one that must succeed, and one that must fail, where hearing
// nothing may be the only sign.
const (
	patience = time.Minute
	moment   = 2 * time.Second
)

// call connects from inside the pod and returns the server's text.
func call(t *testing.T, ns, addr string, within time.Duration) (string, error) {
	t.Helper()
	var line string
	err := inside(ns, func() error {
		c, err := net.DialTimeout("tcp", addr, within)
		if err != nil {
			return err
		}
		defer func() { _ = c.Close() }()
		line, err = bufio.NewReader(c).ReadString('\n')
		return err
	})
	return line, err
}

func expect(t *testing.T, ns, addr, prefix string) string {
	t.Helper()
	got, err := call(t, ns, addr, patience)
	if err != nil || !strings.HasPrefix(got, prefix) {
		t.Errorf("call to %s: %q, %v; want %q", addr, got, err, prefix)
	}
	return got
}

func setup(t *testing.T, b *Bridge, p Pod) Attachment {
	t.Helper()
	at, err := b.Setup(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

func TestPodsReachEachOtherAndTheHost(t *testing.T) {
	b := openTestBridge(t, newConfig(t), nil)
	p1, p2 := newPod(t), newPod(t)
	a1, a2 := setup(t, b, p1), setup(t, b, p2)
	serve(t, p2.NetNS, ":8080", "pod2")
	host := serve(t, "", b.Gateway().String()+":0", "host")
	if got := expect(t, p1.NetNS, a2.IPs[0].String()+":8080", "pod2 "); !strings.Contains(got, a1.IPs[0].String()) {
		t.Errorf("pods see each other under a foreign address: %s", got)
	}
	expect(t, p1.NetNS, host.String(), "host ")
	expect(t, "", a2.IPs[0].String()+":8080", "pod2 ")
	expect(t, p2.NetNS, "127.0.0.1:8080", "pod2 ")
}

func TestHostPorts(t *testing.T) {
	b := openTestBridge(t, newConfig(t), nil)
	free := serve(t, "", "127.0.0.1:0", "host") // a port that nobody else uses
	port := free.Port() ^ 1
	m := PortMapping{Protocol: "tcp", ContainerPort: 8080, HostPort: port}
	p1, p2 := newPod(t, m), newPod(t)
	setup(t, b, p1)
	setup(t, b, p2)
	serve(t, p1.NetNS, ":8080", "pod1")
	local := fmt.Sprintf("127.0.0.1:%d", port)
	gw := fmt.Sprintf("%s:%d", b.Gateway(), port)
	expect(t, "", local, "pod1 ")
	expect(t, "", gw, "pod1 ")
	expect(t, p2.NetNS, gw, "pod1 ")
	expect(t, p1.NetNS, gw, "pod1 ") // itself, through the host

	if _, err := b.Setup(t.Context(), newPod(t, m)); err == nil || !strings.Contains(err.Error(), "in use by sandbox") {
		t.Errorf("the same host port twice: %v", err)
	}
	b = openTestBridge(t, b.cfg, map[string]Pod{p1.ID: p1, p2.ID: p2}) // as after kill -9
	expect(t, "", local, "pod1 ")
	if err := b.Teardown(t.Context(), p1); err != nil {
		t.Fatal(err)
	}
	if got, err := call(t, "", local, moment); err == nil {
		t.Errorf("the host port is still open: %q", got)
	}
}

// TestPodsCannotReachTheHostsLoopback is CVE-2020-8558: the bridge routes 127.0.0.0/8.
func TestPodsCannotReachTheHostsLoopback(t *testing.T) {
	b := openTestBridge(t, newConfig(t), nil)
	p := newPod(t)
	setup(t, b, p)
	host := serve(t, "", "127.0.0.1:0", "secret")
	script := fmt.Sprintf("ip addr del 127.0.0.1/8 dev lo; ip route add 127.0.0.1 via %s dev eth0 onlink; sysctl -qw net.ipv4.conf.eth0.route_localnet=1", b.Gateway())
	if out, err := exec.Command("nsenter", "--net="+p.NetNS, "sh", "-c", script).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if got, err := call(t, p.NetNS, host.String(), moment); err == nil {
		t.Errorf("a pod reached the host's loopback: %s", got)
	}
}

func TestSetupAfterAKill(t *testing.T) {
	cfg := newConfig(t)
	b := openTestBridge(t, cfg, nil)
	p := newPod(t)
	first := setup(t, b, p)
	// The process dies before it has recorded the attachment; the pod is retried.
	b = openTestBridge(t, cfg, map[string]Pod{p.ID: p})
	if again := setup(t, b, p); again.IPs[0] != first.IPs[0] {
		t.Errorf("address %v, then %v", first.IPs, again.IPs)
	}
	serve(t, p.NetNS, ":8080", "pod")
	expect(t, "", first.IPs[0].String()+":8080", "pod ")
}

func TestAddressIsFreeOnlyWhenTheVethIsGone(t *testing.T) {
	cfg := newConfig(t)
	cfg.Subnets = []netip.Prefix{netip.PrefixFrom(cfg.Subnets[0].Addr(), 29)} // room for five pods
	b := openTestBridge(t, cfg, nil)
	var pods []Pod
	for range 5 {
		p := newPod(t)
		setup(t, b, p)
		pods = append(pods, p)
	}
	if _, err := b.Setup(t.Context(), newPod(t)); err == nil || !strings.Contains(err.Error(), "no free address") {
		t.Errorf("a sixth pod: %v", err)
	}
	if err := b.Teardown(t.Context(), pods[0]); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Setup(t.Context(), newPod(t)); err == nil {
		t.Error("an address was given away while its veth was there")
	}
	if err := netns.Remove(filepath.Dir(pods[0].NetNS)); err != nil {
		t.Fatal(err)
	}
	waitReclaimed(t, b)
	setup(t, b, newPod(t))
}

func waitReclaimed(t *testing.T, b *Bridge) {
	t.Helper()
	for deadline := time.Now().Add(60 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		n := 0
		for _, l := range b.pools {
			draining, err := l.reclaim(0)
			if err != nil {
				t.Fatal(err)
			}
			n += draining
		}
		if n == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d addresses are still draining", n)
		}
	}
}

// TestHostPortsOfBothFamilies: a port on all of the host's addresses, on one of them, and used by
// the pod itself.
func TestHostPortsOfBothFamilies(t *testing.T) {
	b := openTestBridge(t, newConfig(t), nil)
	gw4, gw6 := b.pools[0].gateway(), b.pools[1].gateway()
	// Not ephemeral ports: connections to other listeners would lead to the pod.
	any, one := uint16(20000+os.Getpid()%2000), uint16(22000+os.Getpid()%2000)
	p := newPod(t, PortMapping{Protocol: "tcp", ContainerPort: 8080, HostPort: any},
		PortMapping{Protocol: "udp", ContainerPort: 8080, HostPort: any},
		PortMapping{Protocol: "sctp", ContainerPort: 8080, HostPort: any},
		PortMapping{Protocol: "tcp", ContainerPort: 8080, HostPort: one, HostIP: gw6},
		PortMapping{Protocol: "tcp", ContainerPort: 8080, HostPort: one + 1, HostIP: netip.MustParseAddr("0.0.0.0")})
	other := newPod(t)
	at := setup(t, b, p)
	setup(t, b, other)
	if len(at.IPs) != 2 || !at.IPs[0].Is4() || !at.IPs[1].Is6() {
		t.Fatalf("addresses %v", at.IPs)
	}
	serve(t, p.NetNS, ":8080", "pod")
	for _, from := range []string{"", p.NetNS, other.NetNS} {
		expect(t, from, netip.AddrPortFrom(gw4, any).String(), "pod ")
		expect(t, from, netip.AddrPortFrom(gw6, any).String(), "pod ")
		expect(t, from, netip.AddrPortFrom(gw6, one).String(), "pod ")
		expect(t, from, netip.AddrPortFrom(gw4, one+1).String(), "pod ")
	}
	for _, closed := range []netip.AddrPort{netip.AddrPortFrom(gw4, one), netip.AddrPortFrom(gw6, one+1)} {
		if got, err := call(t, "", closed.String(), moment); err == nil {
			t.Errorf("%s is open: %q", closed, got)
		}
	}
	out, err := exec.Command("nft", "list", "table", "inet", b.cfg.Table).CombinedOutput()
	if err != nil || strings.Count(string(out), fmt.Sprintf("sctp . %d :", any)) != 2 || strings.Count(string(out), fmt.Sprintf("udp . %d :", any)) != 2 {
		t.Errorf("%v: %s", err, out)
	}
	if err := b.Check(p); err != nil {
		t.Error(err)
	}
	if err := b.Teardown(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if err := b.Check(p); err == nil {
		t.Error("CHECK of a pod that is gone")
	}
}

// TestUDPFlowFollowsANewHostPort: the kernel remembers a flow from before the port was opened,
// and would route it past the pod for ever.
func TestUDPFlowFollowsANewHostPort(t *testing.T) {
	b := openTestBridge(t, newConfig(t), nil)
	client := newPod(t)
	setup(t, b, client)
	port := uint16(25000 + os.Getpid()%2000) // not an ephemeral port
	var c net.Conn
	err := inside(client.NetNS, func() (err error) {
		c, err = net.Dial("udp", netip.AddrPortFrom(b.Gateway(), port).String())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	_, _ = c.Write([]byte("nobody listens yet"))
	_, _ = c.Read(make([]byte, 1)) // the refusal
	p := newPod(t, PortMapping{Protocol: "udp", ContainerPort: 53, HostPort: port})
	var u net.PacketConn
	if err := inside(p.NetNS, func() (err error) { u, err = net.ListenPacket("udp", ":53"); return err }); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = u.Close() }()
	setup(t, b, p)
	if _, err := c.Write([]byte("now")); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 10)
	if err := u.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if n, _, err := u.ReadFrom(buf); err != nil || string(buf[:n]) != "now" {
		t.Errorf("%q, %v", buf[:n], err)
	}
}

func TestBandwidth(t *testing.T) {
	b := openTestBridge(t, newConfig(t), nil)
	p := newPod(t)
	p.Bandwidth = Bandwidth{Ingress: 8e6, Egress: 16e6}
	at := setup(t, b, p)
	for _, c := range []struct{ ns, link, want string }{{"", at.Link, "rate 8Mbit"}, {p.NetNS, IfName, "rate 16Mbit"}} {
		err := inside(c.ns, func() error {
			out, err := exec.Command("tc", "qdisc", "show", "dev", c.link).CombinedOutput()
			if !strings.Contains(string(out), "qdisc tbf") || !strings.Contains(string(out), c.want) {
				t.Errorf("%s: %s, want %s", c.link, out, c.want)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
	serve(t, p.NetNS, ":8080", "pod")
	expect(t, "", at.IPs[0].String()+":8080", "pod ")
}

// TestLostLeaseOfALivePod: its address is not given to another pod.
func TestLostLeaseOfALivePod(t *testing.T) {
	cfg := newConfig(t)
	b := openTestBridge(t, cfg, nil)
	p := newPod(t)
	p.IPs = setup(t, b, p).IPs
	for i, l := range b.pools {
		if err := os.WriteFile(filepath.Join(l.dir, p.IPs[i].String()), []byte("rubbish"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	b = openTestBridge(t, cfg, map[string]Pod{p.ID: p})
	if err := b.Check(p); err != nil {
		t.Error(err)
	}
	if other := setup(t, b, newPod(t)); other.IPs[0] == p.IPs[0] || other.IPs[1] == p.IPs[1] {
		t.Errorf("two pods have %v", other.IPs)
	}
}

func BenchmarkSetup(b *testing.B) {
	cfg := BridgeConfig{Name: fmt.Sprintf("wb%x", os.Getpid()), Table: fmt.Sprintf("wherry-bench-%d", os.Getpid()),
		Subnets: []netip.Prefix{netip.MustParsePrefix("10.201.0.0/16")}, Dir: b.TempDir()}
	br, err := OpenBridge(b.Context(), cfg, nil)
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = br.Close(); _ = cfg.Remove(context.WithoutCancel(b.Context())) }()
	dir := b.TempDir()
	for i := 0; b.Loop(); i++ {
		d := filepath.Join(dir, fmt.Sprint(i))
		if err := netns.Create(d, []netns.Kind{netns.Net, netns.IPC, netns.UTS}, nil); err != nil {
			b.Fatal(err)
		}
		p := Pod{ID: fmt.Sprintf("%06x%d", i, os.Getpid()), NetNS: netns.Path(d, netns.Net)}
		if _, err := br.Setup(b.Context(), p); err != nil {
			b.Fatal(err)
		}
		if err := br.Teardown(b.Context(), p); err != nil {
			b.Fatal(err)
		}
		if err := netns.Remove(d); err != nil {
			b.Fatal(err)
		}
	}
}

// A start that was cancelled while the bridge was being set up used to panic: the clean-up closed
// a network without a bridge.
func TestNetworkThatDoesNotComeUpIsNone(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	n, err := Open(ctx, Config{Bridge: newConfig(t), Plugins: PluginsConfig{ConfDir: t.TempDir(), CacheDir: t.TempDir()}}, nil, nil)
	if n != nil || err == nil {
		t.Errorf("%v, %v", n, err)
	}
}

// A check that could not find out whether the pod's link is there used to add that it is gone.
func TestCheckThatFailsDoesNotSayThatTheLinkIsGone(t *testing.T) {
	b := openTestBridge(t, newConfig(t), nil)
	p := newPod(t)
	setup(t, b, p)
	var most unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &most); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Max: most.Max}); err != nil { // no socket can be opened
		t.Fatal(err)
	}
	err := b.Check(p)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &most); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(err, unix.EMFILE) || strings.Contains(err.Error(), "is gone") {
		t.Errorf("got %v", err)
	}
}
