package proxy

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"wherry.dev/internal/netns"
	nft "wherry.dev/internal/proxy/nftables"
	"wherry.dev/test/leaks"
)

func TestMain(m *testing.M) {
	if space := os.Getenv(writerEnv); space != "" {
		fmt.Fprintln(os.Stderr, writeForEver(space))
		os.Exit(1)
	}
	runtime.LockOSThread()
	// Package net probes the machine's abilities once, in the namespace it is in at that time.
	if l, err := net.Listen("tcp", "localhost:0"); err == nil {
		_ = l.Close()
	}
	os.Exit(leaks.Watch(m).Run())
}

// machine is a node in a network namespace, with pods a, b and c on a bridge and a neighbour.
type machine struct {
	t      *testing.T
	spaces map[string]string // paths of namespaces, by name: host, neighbour, a, b, c
	kernel kernel
	state  *state
	node   Node
}

// The machine's addresses.
const (
	hostIP, hostIP6           = "192.168.77.1", "fd77::1"
	neighbourIP, neighbourIP6 = "192.168.77.2", "fd77::2"
)

func podIP(name string) string  { return fmt.Sprintf("10.244.0.%d", 10+name[0]-'a') }
func podIP6(name string) string { return fmt.Sprintf("fd10::%d", 10+name[0]-'a') }

func newMachine(t *testing.T) *machine {
	t.Helper()
	m := &machine{t: t, spaces: map[string]string{}, state: newState()}
	for _, name := range []string{"host", "neighbour", "a", "b", "c"} {
		dir := filepath.Join(t.TempDir(), name)
		if err := netns.Create(dir, []netns.Kind{netns.Net}, nil); err != nil {
			t.Skip("needs root: ", err)
		}
		t.Cleanup(func() {
			if err := netns.Remove(dir); err != nil {
				t.Error(err)
			}
		})
		m.spaces[name] = netns.Path(dir, netns.Net)
		m.in(name, "ip", "link", "set", "lo", "up")
		m.in(name, "sh", "-c", "echo 0 > /proc/sys/net/ipv6/conf/default/accept_dad") // addresses work at once
	}
	m.in("host", "ip", "link", "add", "wh-test", "type", "bridge", "mcast_snooping", "0")
	m.in("host", "ip", "link", "set", "wh-test", "up")
	m.in("host", "ip", "address", "add", "10.244.0.1/24", "dev", "wh-test")
	m.in("host", "ip", "address", "add", "fd10::1/64", "dev", "wh-test", "nodad")
	for _, s := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding", "net/ipv4/conf/wh-test/route_localnet"} {
		m.in("host", "sh", "-c", "echo 1 > /proc/sys/"+s)
	}
	m.cable("neighbour", "eth0", neighbourIP+"/24", neighbourIP6+"/64")
	m.in("host", "ip", "address", "add", hostIP+"/24", "dev", "to-neighbour")
	m.in("host", "ip", "address", "add", hostIP6+"/64", "dev", "to-neighbour", "nodad")
	m.in("host", "ip", "route", "add", "default", "via", neighbourIP)
	m.in("host", "ip", "-6", "route", "add", "default", "via", neighbourIP6)
	m.in("neighbour", "ip", "route", "add", "default", "via", hostIP)
	m.in("neighbour", "ip", "-6", "route", "add", "default", "via", hostIP6)
	for _, p := range []string{"a", "b", "c"} {
		m.cable(p, "eth0", podIP(p)+"/32", podIP6(p)+"/128")
		m.in("host", "ip", "link", "set", "to-"+p, "master", "wh-test")
		m.in("host", "ip", "link", "set", "to-"+p, "type", "bridge_slave", "hairpin", "on")
		// Pods reach each other through the host, as on a network without a bridge.
		m.in(p, "ip", "route", "add", "10.244.0.1", "dev", "eth0")
		m.in(p, "ip", "route", "add", "default", "via", "10.244.0.1")
		m.in(p, "ip", "-6", "route", "add", "fd10::1", "dev", "eth0")
		m.in(p, "ip", "-6", "route", "add", "default", "via", "fd10::1")
	}
	m.open()
	t.Cleanup(m.listable)
	return m
}

// cable connects a namespace with the host's link to-NAME.
func (m *machine) cable(name, link, ip, ip6 string) {
	m.t.Helper()
	sleep := exec.Command("sleep", "infinity") //nolint:noctx // killed below
	if err := netns.Do(sleep.Start, m.spaces[name]); err != nil {
		m.t.Fatal(err)
	}
	m.in("host", "ip", "link", "add", "to-"+name, "type", "veth", "peer", "name", link, "netns", fmt.Sprint(sleep.Process.Pid))
	_ = sleep.Process.Kill()
	_ = sleep.Wait()
	m.in("host", "ip", "link", "set", "to-"+name, "up")
	m.in(name, "ip", "link", "set", link, "up")
	m.in(name, "ip", "address", "add", ip, "dev", link)
	m.in(name, "ip", "address", "add", ip6, "dev", link, "nodad")
}

func (m *machine) in(name string, args ...string) string {
	m.t.Helper()
	var out []byte
	err := netns.Do(func() (err error) {
		out, err = exec.Command(args[0], args[1:]...).CombinedOutput()
		return err
	}, m.spaces[name])
	if err != nil {
		m.t.Fatalf("%s: %v: %v: %s", name, args, err, out)
	}
	return string(out)
}

// open makes an empty table.
func (m *machine) open() {
	m.t.Helper()
	var conn *nft.Conn
	m.check(netns.Do(func() (err error) {
		conn, err = nft.Open()
		return err
	}, m.spaces["host"]))
	m.t.Cleanup(func() { _ = conn.Close() })
	m.kernel = kernel{conn: conn, table: "wherry-test-proxy", layout: layout{
		bridge: "wh-test", others: "wh-", pods: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/24"), netip.MustParsePrefix("fd10::/64")},
	}}
	m.node = Node{Name: "n", Addresses: []netip.Addr{netip.MustParseAddr(hostIP), netip.MustParseAddr(hostIP6)}}
	m.check(m.kernel.replace(m.state))
}

func (m *machine) check(err error) {
	m.t.Helper()
	if err != nil {
		m.t.Fatal(err)
	}
}

// serve plans for a service and writes what changed.
func (m *machine) serve(svc *v1.Service, all ...*discoveryv1.EndpointSlice) {
	m.t.Helper()
	r := Plan(svc, all, m.node)
	var c change
	m.state.set(svc.Namespace+"/"+svc.Name, r, &c)
	m.check(m.kernel.apply(m.state, c))
	udp := stale{}
	udp.add(&r)
	m.check(netns.Do(udp.clear, m.spaces["host"]))
}

// listen makes a namespace answer with its name and the client's address on all its addresses, at port
// 8080.
func (m *machine) listen(name string) {
	m.t.Helper()
	const at = ":8080"
	var l net.Listener
	var u net.PacketConn
	m.check(netns.Do(func() (err error) {
		if l, err = net.Listen("tcp", at); err != nil { //nolint:noctx // of a test
			return err
		}
		u, err = net.ListenPacket("udp", at) //nolint:noctx // of a test
		return err
	}, m.spaces[name]))
	done := make(chan struct{}, 2)
	go func() {
		defer func() { done <- struct{}{} }()
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			host, _, _ := net.SplitHostPort(c.RemoteAddr().String())
			_, _ = io.WriteString(c, name+" "+host)
			_ = c.Close()
		}
	}()
	go func() {
		defer func() { done <- struct{}{} }()
		for buf := make([]byte, 64); ; {
			_, from, err := u.ReadFrom(buf)
			if err != nil {
				return
			}
			host, _, _ := net.SplitHostPort(from.String())
			_, _ = u.WriteTo([]byte(name+" "+host), from)
		}
	}()
	m.t.Cleanup(func() { _, _ = l.Close(), u.Close(); <-done; <-done })
}

// ask connects from a namespace, and returns the answer: "refused", "silence", or who it was and how
// they saw the client.
func (m *machine) ask(from, to string) (server, client string) {
	m.t.Helper()
	return m.askFor(patience, from, to)
}

// silence is how long nobody must answer: what answers, does so in far less.
const silence = 2 * time.Second

func (m *machine) askFor(atMost time.Duration, from, to string) (server, client string) {
	m.t.Helper()
	var c net.Conn
	err := netns.Do(func() (err error) {
		c, err = (&net.Dialer{Timeout: atMost}).DialContext(m.t.Context(), "tcp", to)
		return err
	}, m.spaces[from])
	if err != nil {
		return m.failure(err), ""
	}
	defer func() { _ = c.Close() }()
	return m.exchange(c, atMost)
}

func (m *machine) exchange(c net.Conn, atMost time.Duration) (server, client string) {
	m.t.Helper()
	m.check(c.SetDeadline(time.Now().Add(atMost)))
	if strings.HasPrefix(c.RemoteAddr().Network(), "udp") {
		if _, err := io.WriteString(c, "?"); err != nil {
			return m.failure(err), ""
		}
	}
	buf := make([]byte, 64)
	n, err := c.Read(buf)
	if err != nil {
		return m.failure(err), ""
	}
	server, client, _ = strings.Cut(string(buf[:n]), " ")
	return server, client
}

func (m *machine) failure(err error) string {
	m.t.Helper()
	timeout, ok := errors.AsType[net.Error](err)
	switch {
	case errors.Is(err, unix.ECONNREFUSED):
		return "refused"
	case errors.Is(err, unix.EHOSTUNREACH):
		return "unreachable"
	case ok && timeout.Timeout():
		return "silence"
	}
	m.t.Fatal(err)
	return ""
}

// want asks, and compares who answers.
func (m *machine) want(from, to, server string) (client string) {
	m.t.Helper()
	atMost := patience
	if server == "silence" {
		atMost = silence
	}
	got, client := m.askFor(atMost, from, to)
	if got != server {
		m.t.Errorf("%s to %s: %s, want %s", from, to, got, server)
	}
	return client
}

// listable checks that nft(8) does not stumble over the table: if it does, it lists nobody's tables.
func (m *machine) listable() {
	m.t.Helper()
	m.in("host", "nft", "list", "tables")
	m.in("host", "nft", "list", "ruleset")
	m.in("host", "nft", "-j", "list", "ruleset")
}

func ready(name string) discoveryv1.Endpoint {
	return discoveryv1.Endpoint{Addresses: []string{podIP(name)}, NodeName: new("n")}
}

func ready6(name string) discoveryv1.Endpoint {
	return discoveryv1.Endpoint{Addresses: []string{podIP6(name)}, NodeName: new("n")}
}

const clusterIP, clusterIP6 = "10.96.0.7", "fd96::7"

func TestTraffic(t *testing.T) {
	m := newMachine(t)
	for _, p := range []string{"a", "b"} {
		m.listen(p)
	}
	svc, all := service(), slices4(ready("a"))
	m.serve(svc, all...)
	for _, from := range []string{"host", "b", "c"} {
		m.want(from, clusterIP+":80", "a")
	}
	if client := m.want("b", clusterIP+":80", "a"); client != podIP("b") {
		t.Errorf("a pod is seen as %s", client)
	}
	if client := m.want("a", clusterIP+":80", "a"); client == podIP("a") {
		t.Errorf("through a service to itself: from %s", client)
	}
	m.listable()
	if s := m.in("host", "nft", "list", "chains"); strings.Contains(s, "learn") {
		t.Errorf("no service has affinity, but all connections pay for it: %s", s)
	}
	// A port that the service does not have, and a service without endpoints: both are refused.
	m.want("b", clusterIP+":81", "refused")
	m.serve(svc)
	// All of them at once: the kernel limits how many ICMP answers it sends, and here it sends few.
	m.in("host", "sh", "-c", "echo 1000000000 > /proc/sys/net/ipv4/icmp_ratelimit")
	for range 20 {
		m.want("b", clusterIP+":80", "refused")
	}
	for _, from := range []string{"host", "b"} {
		m.want(from, clusterIP+":80", "refused")
	}
	m.serve(svc, slices4(ready("b"))...)
	m.want("c", clusterIP+":80", "b")
	// Both get connections.
	m.serve(svc, slices4(ready("a"), ready("b"))...)
	got := map[string]int{}
	for range 60 {
		server, _ := m.ask("c", clusterIP+":80")
		got[server]++
	}
	if got["a"] < 10 || got["b"] < 10 || got["a"]+got["b"] != 60 {
		t.Errorf("answers: %v", got)
	}
	m.check(m.kernel.apply(m.state, m.gone(svc)))
	if s := m.in("host", "nft", "-j", "list", "map", "inet", "wherry-test-proxy", "services4"); strings.Contains(s, clusterIP) {
		t.Errorf("a deleted service: %s", s)
	}
}

func (m *machine) gone(svc *v1.Service) (c change) {
	m.state.set(svc.Namespace+"/"+svc.Name, Rules{}, &c)
	return c
}

func TestIPv6Traffic(t *testing.T) {
	m := newMachine(t)
	m.listen("a")
	svc := service(func(s *v1.Service) {
		s.Spec.Type, s.Spec.Ports[0].NodePort = v1.ServiceTypeNodePort, 30080
		s.Spec.ClusterIPs = []string{clusterIP, clusterIP6}
		s.Spec.SessionAffinity = v1.ServiceAffinityClientIP
	})
	six := &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv6, Ports: slices4()[0].Ports, Endpoints: []discoveryv1.Endpoint{ready6("a")}}
	m.serve(svc, six)
	for range 2 {
		m.want("b", "["+clusterIP6+"]:80", "a")
		m.want("host", "["+clusterIP6+"]:80", "a")
		m.want("neighbour", "["+hostIP6+"]:30080", "a")
	}
	m.want("b", "["+clusterIP6+"]:81", "refused")
	m.want("b", clusterIP+":80", "refused") // no endpoint of that family
	m.listable()
	m.serve(svc)
	m.want("b", "["+clusterIP6+"]:80", "refused")
}

func TestNodePorts(t *testing.T) {
	m := newMachine(t)
	m.listen("a")
	at := hostIP + ":30080"
	nodePort := func(s *v1.Service) {
		s.Spec.Type, s.Spec.Ports[0].NodePort = v1.ServiceTypeNodePort, 30080
		s.Spec.ExternalIPs = []string{"203.0.113.9"}
	}
	m.serve(service(nodePort), slices4(ready("a"))...)
	if client := m.want("neighbour", at, "a"); client == neighbourIP {
		t.Error("cluster policy: the source was kept")
	}
	m.want("neighbour", "203.0.113.9:80", "a")
	m.want("b", at, "a")
	m.want("host", at, "a")
	m.want("neighbour", hostIP+":30081", "refused")
	local := func(s *v1.Service) { nodePort(s); s.Spec.ExternalTrafficPolicy = v1.ServiceExternalTrafficPolicyLocal }
	m.serve(service(local), slices4(ready("a"))...)
	if client := m.want("neighbour", at, "a"); client != neighbourIP {
		t.Errorf("local policy: the client is seen as %s", client)
	}
	m.want("b", at, "a")
	m.want("host", at, "a")
	// Its endpoint is on another node: strangers get no answer, pods and the node do.
	remote := ready("a")
	remote.NodeName = new("other")
	m.serve(service(local), slices4(remote)...)
	m.want("neighbour", at, "silence")
	m.want("b", at, "a")
	m.want("host", at, "a")
	m.serve(service(local))
	m.want("neighbour", at, "refused")
}

func TestLoadBalancerSources(t *testing.T) {
	m := newMachine(t)
	m.listen("a")
	balanced := func(ranges ...string) *v1.Service {
		return service(func(s *v1.Service) {
			s.Spec.Type, s.Spec.LoadBalancerSourceRanges = v1.ServiceTypeLoadBalancer, ranges
			s.Status.LoadBalancer.Ingress = []v1.LoadBalancerIngress{{IP: "203.0.113.1"}}
		})
	}
	all := slices4(ready("a"))
	m.serve(balanced(), all...)
	m.want("neighbour", "203.0.113.1:80", "a")
	m.serve(balanced("198.51.100.0/24", "192.168.77.2/31"), all...)
	m.want("neighbour", "203.0.113.1:80", "a")
	m.serve(balanced("198.51.100.0/24", "192.168.77.8/29"), all...)
	m.want("neighbour", "203.0.113.1:80", "silence")
	m.serve(balanced("0.0.0.0/0", "198.51.100.0/24"), all...)
	m.want("neighbour", "203.0.113.1:80", "a")
}

func TestAffinity(t *testing.T) {
	m := newMachine(t)
	for _, p := range []string{"a", "b"} {
		m.listen(p)
	}
	sticky := service(func(s *v1.Service) {
		s.Spec.SessionAffinity = v1.ServiceAffinityClientIP
		s.Spec.SessionAffinityConfig = &v1.SessionAffinityConfig{ClientIP: &v1.ClientIPConfig{TimeoutSeconds: new(int32(600))}}
	})
	m.serve(sticky, slices4(ready("a"), ready("b"))...)
	first, _ := m.ask("c", clusterIP+":80")
	for range 20 {
		m.want("c", clusterIP+":80", first)
	}
	// Also after a restart of the proxy, and although endpoints come before its own.
	m.check(m.kernel.replace(m.state))
	m.serve(sticky, slices4(ready("a"), ready("b"), discoveryv1.Endpoint{Addresses: []string{"10.0.0.1"}})...)
	for range 20 {
		m.want("c", clusterIP+":80", first)
	}
	// Its endpoint goes: it gets another one, and stays there when the old one is back.
	other := map[string]string{"a": "b", "b": "a"}[first]
	m.serve(sticky, slices4(ready(other))...)
	m.want("c", clusterIP+":80", other)
	m.serve(sticky, slices4(ready("a"), ready("b"))...)
	for range 10 {
		m.want("c", clusterIP+":80", other)
	}
}

func TestUDPFlowsFollowTheirEndpoints(t *testing.T) {
	m := newMachine(t)
	for _, p := range []string{"a", "b"} {
		m.listen(p)
	}
	udp := service(func(s *v1.Service) { s.Spec.Ports[0].Protocol = v1.ProtocolUDP })
	of := func(e ...discoveryv1.Endpoint) []*discoveryv1.EndpointSlice {
		all := slices4(e...)
		all[0].Ports[0].Protocol = new(v1.ProtocolUDP)
		return all
	}
	m.serve(udp, of(ready("a"))...)
	var c net.Conn
	m.check(netns.Do(func() (err error) {
		c, err = net.Dial("udp", clusterIP+":80") //nolint:noctx // of a test
		return err
	}, m.spaces["c"]))
	defer func() { _ = c.Close() }()
	if got, _ := m.exchange(c, patience); got != "a" {
		t.Fatalf("first %s", got)
	}
	m.serve(udp, of(ready("b"))...)
	if got, _ := m.exchange(c, patience); got != "b" {
		t.Errorf("the flow goes to %s", got)
	}
	m.want("c", clusterIP+":80", "refused") // another protocol
}

// TestServerOnLoopback: on a machine without a network, the API server's endpoint is 127.0.0.1.
func TestServerOnLoopback(t *testing.T) {
	m := newMachine(t)
	m.listen("host")
	m.serve(service(), slices4(discoveryv1.Endpoint{Addresses: []string{"127.0.0.1"}})...)
	for _, from := range []string{"a", "host"} {
		m.want(from, clusterIP+":80", "host")
	}
}

// TestPodsOfAnotherInstance: they have services of their own at the same addresses.
func TestPodsOfAnotherInstance(t *testing.T) {
	m := newMachine(t)
	m.kernel.layout.bridge = "wh-mine"
	m.check(m.kernel.replace(m.state))
	m.listen("a")
	m.serve(service(), slices4(ready("a"))...)
	m.want("host", clusterIP+":80", "a")
	m.want("b", clusterIP+":80", "unreachable")
}

// TestConnectionsSurviveARestart: the table is replaced under a connection.
func TestConnectionsSurviveARestart(t *testing.T) {
	m := newMachine(t)
	var l net.Listener
	m.check(netns.Do(func() (err error) {
		l, err = net.Listen("tcp", ":8080") //nolint:noctx // of a test
		return err
	}, m.spaces["a"]))
	defer func() { _ = l.Close() }()
	m.serve(service(), slices4(ready("a"))...)
	var c net.Conn
	m.check(netns.Do(func() (err error) {
		c, err = net.Dial("tcp", clusterIP+":80") //nolint:noctx // of a test
		return err
	}, m.spaces["c"]))
	defer func() { _ = c.Close() }()
	s, err := l.Accept()
	m.check(err)
	defer func() { _ = s.Close() }()
	m.check(m.kernel.replace(m.state))
	m.serve(service(), slices4(ready("b"))...)
	_, err = io.WriteString(c, "hello")
	m.check(err)
	buf := make([]byte, 5)
	m.check(s.SetReadDeadline(time.Now().Add(patience)))
	if _, err := io.ReadFull(s, buf); err != nil || string(buf) != "hello" {
		t.Errorf("%q, %v", buf, err)
	}
}

// TestAFailedTransactionChangesNothing: somebody removed an element, so that our deletion fails. The
// whole table puts it right; a foreign table is not touched.
func TestAFailedTransactionChangesNothing(t *testing.T) {
	m := newMachine(t)
	m.listen("a")
	m.in("host", "nft", "add", "table", "inet", "foreign")
	m.serve(service(), slices4(ready("a"))...)
	m.in("host", "nft", "flush", "map", "inet", "wherry-test-proxy", "services4")
	var c change
	m.state.set("a/web", Plan(service(func(s *v1.Service) { s.Spec.ClusterIPs = []string{"10.96.0.8"} }), slices4(ready("a")), m.node), &c)
	if err := m.kernel.apply(m.state, c); !errors.Is(err, unix.ENOENT) {
		t.Fatalf("got %v", err)
	}
	m.want("b", "10.96.0.8:80", "unreachable")
	m.check(m.kernel.replace(m.state))
	m.want("b", "10.96.0.8:80", "a")
	m.in("host", "nft", "list", "table", "inet", "foreign")
	m.check(m.kernel.conn.Remove(m.kernel.table))
	m.check(m.kernel.conn.Remove(m.kernel.table))
	if got := m.in("host", "nft", "list", "tables"); strings.TrimSpace(got) != "table inet foreign" {
		t.Errorf("left: %s", got)
	}
}
