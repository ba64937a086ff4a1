package policy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"wherry.dev/internal/netns"
	nft "wherry.dev/internal/proxy/nftables"
	"wherry.dev/test/leaks"
)

func TestMain(m *testing.M) {
	runtime.LockOSThread()
	// Package net probes the machine's abilities once, in the namespace it is in at that time.
	if l, err := net.Listen("tcp", "localhost:0"); err == nil {
		_ = l.Close()
	}
	os.Exit(leaks.Watch(m).Run())
}

// machine is a node in a network namespace, with pods a, b and c on a bridge as cni makes it, and a
// neighbour.
type machine struct {
	t      testing.TB
	spaces map[string]string // paths of namespaces, by name
	kernel kernel
	facts  *Facts
}

const (
	serviceIP, serviceIP6 = "10.96.0.7", "fd96::7" // lead to pod a
	hostIP, neighbourIP   = "192.168.77.1", "192.168.77.2"
)

func podIP(name string) string  { return fmt.Sprintf("10.244.0.%d", 10+name[0]-'a') }
func podIP6(name string) string { return fmt.Sprintf("fd10::%d", 10+name[0]-'a') }

func newMachine(t testing.TB) *machine {
	t.Helper()
	m := &machine{t: t, spaces: map[string]string{}, facts: facts(pod("a"), pod("b"), pod("c"))}
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
		m.in(name, "ip link set lo up && echo 0 > /proc/sys/net/ipv6/conf/default/accept_dad")
	}
	m.in("host", "for n in iptables ip6tables; do echo 0 > /proc/sys/net/bridge/bridge-nf-call-$n; done") // only our bridge does it
	m.in("host", "ip link add wh-test type bridge mcast_snooping 0 nf_call_iptables 1 nf_call_ip6tables 1 && ip link set wh-test up")
	m.in("host", "ip address add 10.244.0.1/24 dev wh-test && ip address add fd10::1/64 dev wh-test nodad")
	m.in("host", "echo 1 > /proc/sys/net/ipv4/ip_forward && echo 1 > /proc/sys/net/ipv6/conf/all/forwarding")
	m.cable("neighbour", neighbourIP+"/24", "fd77::2/64")
	m.in("host", "ip address add "+hostIP+"/24 dev to-neighbour && ip address add fd77::1/64 dev to-neighbour nodad")
	m.in("neighbour", "ip route add default via "+hostIP+" && ip -6 route add default via fd77::1")
	for _, p := range []string{"a", "b", "c"} {
		m.cable(p, podIP(p)+"/24", podIP6(p)+"/64")
		m.in("host", "ip link set to-"+p+" master wh-test && ip link set to-"+p+" type bridge_slave hairpin on")
		m.in(p, "ip route add default via 10.244.0.1 && ip -6 route add default via fd10::1")
		m.listen(p, 80)
		m.listen(p, 81)
	}
	m.listen("neighbour", 80)
	m.listen("host", 80)
	m.in("host", `nft 'table inet services {
		chain in { type nat hook prerouting priority -100; ip daddr `+serviceIP+` dnat ip to `+podIP("a")+`; ip6 daddr `+serviceIP6+` dnat ip6 to `+podIP6("a")+`; }
		chain out { type nat hook postrouting priority 100; ct status dnat masquerade; }
	}'`)
	m.check(netns.Do(func() (err error) {
		m.kernel.conn, err = nft.Open()
		return err
	}, m.spaces["host"]))
	t.Cleanup(func() { _ = m.kernel.conn.Close() })
	m.kernel.table, m.kernel.bridge = "wherry-test-policy", "wh-test"
	p := NewPlan(m.facts)
	m.check(m.kernel.replace(&p))
	return m
}

// cable connects a namespace's eth0 with the host's link to-NAME.
func (m *machine) cable(name, ip, ip6 string) {
	m.t.Helper()
	sleep := exec.Command("sleep", "infinity") //nolint:noctx // killed below
	m.check(netns.Do(sleep.Start, m.spaces[name]))
	m.in("host", fmt.Sprintf("ip link add to-%s type veth peer name eth0 netns %d && ip link set to-%s up", name, sleep.Process.Pid, name))
	_ = sleep.Process.Kill()
	_ = sleep.Wait()
	m.in(name, "ip link set eth0 up && ip address add "+ip+" dev eth0 && ip address add "+ip6+" dev eth0 nodad")
}

func (m *machine) in(name, script string) {
	m.t.Helper()
	var out []byte
	err := netns.Do(func() (err error) {
		out, err = exec.Command("sh", "-c", script).CombinedOutput() //nolint:noctx // of a test
		return err
	}, m.spaces[name])
	if err != nil {
		m.t.Fatalf("%s: %s: %v: %s", name, script, err, out)
	}
}

func (m *machine) check(err error) {
	m.t.Helper()
	if err != nil {
		m.t.Fatal(err)
	}
}

// apply puts policies in the place of those that there are.
func (m *machine) apply(policies ...*networkingv1.NetworkPolicy) {
	m.t.Helper()
	m.facts.Policies = policies
	p := NewPlan(m.facts)
	m.check(m.kernel.apply(&p))
	m.listable()
}

// listable checks that nft(8) does not stumble over the table: if it does, it lists nobody's tables.
func (m *machine) listable() {
	m.t.Helper()
	m.in("host", "nft list tables && nft list ruleset && nft -j list ruleset")
}

// listen makes a namespace answer with its name on all its addresses.
func (m *machine) listen(name string, port int) {
	m.t.Helper()
	var l net.Listener
	var u net.PacketConn
	m.check(netns.Do(func() (err error) {
		if l, err = net.Listen("tcp", fmt.Sprintf(":%d", port)); err != nil { //nolint:noctx // of a test
			return err
		}
		u, err = net.ListenPacket("udp", fmt.Sprintf(":%d", port)) //nolint:noctx // of a test
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
			_, _ = io.WriteString(c, name)
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
			_, _ = u.WriteTo([]byte(name), from)
		}
	}()
	m.t.Cleanup(func() { _, _ = l.Close(), u.Close(); <-done; <-done })
}

// ask returns who answers, or "silence" if nobody did in time.
func (m *machine) ask(from, network, to string, patience time.Duration) string {
	m.t.Helper()
	var c net.Conn
	ctx, cancel := context.WithTimeout(m.t.Context(), patience)
	defer cancel()
	err := netns.Do(func() (err error) {
		c, err = (&net.Dialer{}).DialContext(ctx, network, to)
		return err
	}, m.spaces[from])
	if err != nil {
		return m.failure(err)
	}
	defer func() { _ = c.Close() }()
	m.check(c.SetDeadline(time.Now().Add(patience)))
	if network == "udp" {
		_, err := io.WriteString(c, "?")
		m.check(err)
	}
	buf := make([]byte, 64)
	n, err := c.Read(buf)
	if err != nil {
		return m.failure(err)
	}
	return string(buf[:n])
}

// silence is how long nobody must answer, where what is allowed takes microseconds. An answer may take
// longer on a busy machine.
const (
	silence = 300 * time.Millisecond
	ample   = time.Minute
)

func (m *machine) failure(err error) string {
	m.t.Helper()
	if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() || errors.Is(err, context.DeadlineExceeded) {
		return "silence"
	}
	m.t.Fatal(err)
	return ""
}

// open and shut say whether a pod gets an answer from port 80 of another namespace, in both families
// and by both protocols.
func (m *machine) open(from string, to ...string) { m.t.Helper(); m.expect(from, true, to) }
func (m *machine) shut(from string, to ...string) { m.t.Helper(); m.expect(from, false, to) }

func (m *machine) expect(from string, open bool, to []string) {
	m.t.Helper()
	for _, name := range to {
		addresses := []string{podIP(name), podIP6(name)}
		switch name {
		case "neighbour":
			addresses = []string{neighbourIP, "fd77::2"}
		case "host":
			addresses = []string{hostIP, "fd77::1"}
		case "service":
			addresses, name = []string{serviceIP, serviceIP6}, "a"
		}
		want, patience := "silence", silence
		if open {
			want, patience = name, ample
		}
		for _, a := range addresses {
			for _, network := range []string{"tcp", "udp"} {
				if name == "host" && network == "udp" {
					continue // it would answer from another address
				}
				if got := m.ask(from, network, net.JoinHostPort(a, "80"), patience); got != want {
					m.t.Errorf("%s to %s/%s: %s, want %s", from, network, a, got, want)
				}
			}
		}
	}
}

func TestDenyAll(t *testing.T) {
	m := newMachine(t)
	m.open("b", "a", "service", "neighbour", "host")
	m.apply(policy("deny", on("a"), isolates(ingress)))
	m.shut("b", "a", "service")
	m.shut("neighbour", "a")
	m.open("host", "a") // probes
	m.open("a", "a", "service", "b", "neighbour", "host")
	m.open("b", "c")
	m.apply(policy("deny", on("a"), isolates(egress)))
	m.shut("a", "b", "neighbour")
	m.open("a", "a", "service", "host")
	m.open("b", "a", "service") // what a answers is not what it asks
	m.open("neighbour", "a")
	m.apply()
	m.open("b", "a", "service")
	m.open("a", "b", "neighbour")
}

func TestAllow(t *testing.T) {
	m := newMachine(t)
	tcp80 := port80(v1.ProtocolTCP)
	m.apply(policy("b", on("a"), from(pods0("b"))), policy("one-port", on("a"), fromOn(tcp80, pods0("c"))))
	m.open("b", "a", "service")
	m.shut("neighbour", "a")
	for to, want := range map[string]string{"tcp " + podIP("a") + ":80": "a", "tcp " + podIP("a") + ":81": "silence",
		"udp " + podIP("a") + ":80": "silence", "tcp [" + podIP6("a") + "]:80": "a", "tcp [" + podIP6("a") + "]:81": "silence",
		"tcp " + serviceIP + ":80": "a", "tcp " + serviceIP + ":81": "silence"} {
		network, address, _ := strings.Cut(to, " ")
		patience := ample
		if want == "silence" {
			patience = silence
		}
		if got := m.ask("c", network, address, patience); got != want {
			t.Errorf("%s: %s, want %s", to, got, want)
		}
	}
	// To a through the service, and to nobody else.
	m.apply(policy("to", on("b"), to(pods0("a"))))
	m.open("b", "a", "service", "host")
	m.shut("b", "c", "neighbour")
	// Whoever is outside, but for one.
	m.apply(policy("block", on("a"), from(cidr("0.0.0.0/0", podIP("b")+"/32"), cidr("::/0", podIP6("b")+"/128"))))
	m.open("neighbour", "a")
	m.open("c", "a")
	m.shut("b", "a", "service")
}

// TestListing: nft(8) lists policies of every sort; apply looks.
func TestListing(t *testing.T) {
	m := newMachine(t)
	for _, change := range []func(*spec){
		fromOn(append(port80(v1.ProtocolSCTP), access1(v1.ProtocolUDP, 1000, 2000))),
		toOn(append(port80(v1.ProtocolTCP), access1(v1.ProtocolTCP, 1, 65535)), pods0("b"), cidr("0.0.0.0/0", "10.0.0.0/9"), cidr("::/0", "fd10::/64")),
		fromOn([]access{access1(v1.ProtocolTCP, "http", 0)}, both(pods0("b"), team("red")), cidr("192.0.2.1/32")),
		from(team("red")),
		to(cidr("0.0.0.0/0"), cidr("::/0")),
		isolates(ingress, egress),
	} {
		m.apply(policy("p", on("a"), change), policy("all", change))
	}
}

// The ranges of pods grow and shrink; old and new ones overlap within one transaction.
func TestRangesThatGrow(t *testing.T) {
	m := newMachine(t)
	for range 3 {
		m.apply(policy("x", on("a"), from(cidr("10.244.0.0/24"), cidr("fd10::/64"))))
		m.open("c", "a")
		m.apply(policy("x", on("a"), from(cidr("10.244.0.0/28"), cidr("fd10::/120"))))
		m.open("b", "a")
		m.apply(policy("x", on("a"), from(cidr("10.244.0.10/31"), cidr("fd10::10/127"))))
		m.shut("c", "a")
	}
	p := NewPlan(m.facts)
	m.check(m.kernel.replace(&p))
	m.open("b", "a")
	m.shut("c", "a")
}

// A connection that was allowed goes on while the table is replaced as a whole.
func TestConnectionsSurviveAReplacement(t *testing.T) {
	m := newMachine(t)
	m.apply(policy("x", on("a"), from(pods0("b"))))
	var l net.Listener
	var c net.Conn
	m.check(netns.Do(func() (err error) {
		l, err = net.Listen("tcp", ":90") //nolint:noctx // of a test
		return err
	}, m.spaces["a"]))
	defer func() { _ = l.Close() }()
	m.check(netns.Do(func() (err error) {
		c, err = net.Dial("tcp", podIP("a")+":90") //nolint:noctx // of a test
		return err
	}, m.spaces["b"]))
	defer func() { _ = c.Close() }()
	s, err := l.Accept()
	m.check(err)
	defer func() { _ = s.Close() }()
	p := NewPlan(m.facts)
	m.check(m.kernel.replace(&p))
	for _, pair := range [][2]net.Conn{{c, s}, {s, c}} {
		_, err := io.WriteString(pair[0], "!")
		m.check(err)
		m.check(pair[1].SetDeadline(time.Now().Add(ample)))
		_, err = pair[1].Read(make([]byte, 1))
		m.check(err)
	}
}

// Nothing of another instance's bridge is judged, even if it has the same addresses.
func TestOtherBridges(t *testing.T) {
	m := newMachine(t)
	m.kernel.bridge = "wh-other"
	m.facts.Policies = []*networkingv1.NetworkPolicy{policy("deny", on(""), isolates(ingress, egress))}
	p := NewPlan(m.facts)
	m.check(m.kernel.replace(&p))
	m.open("b", "a", "service", "neighbour")
}

func TestFailedTransactionLeavesTheTable(t *testing.T) {
	m := newMachine(t)
	m.apply(policy("deny", on("a"), isolates(ingress)))
	m.kernel.told = content{elements: elements{selves + "4": {key{"12345678", ""}: {Key: "12345678"}}}}
	p := NewPlan(facts())
	if err := m.kernel.apply(&p); !errors.Is(err, unix.ENOENT) {
		t.Fatalf("an element that is not there was deleted: %v", err)
	}
	m.shut("b", "a")
	m.check(m.kernel.replace(&p))
	m.open("b", "a")
}
