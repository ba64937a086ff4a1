package mesh

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"wherry.dev/internal/api/cluster"
	"wherry.dev/internal/netns"
)

func newKey(t *testing.T) wgtypes.Key {
	t.Helper()
	key, err := wgtypes.GeneratePrivateKey()
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func TestPeers(t *testing.T) {
	p := planner{
		self: "self", mode: cluster.ModeWireGuard, cluster: prefixes("10.244.0.0/16", "fd00::/48"),
		way: func(a netip.Addr) (Way, error) { return Way{Link: 2, Local: a.String() == "192.0.2.9"}, nil },
	}
	own, b, c := newKey(t).PublicKey(), newKey(t).PublicKey(), newKey(t).PublicKey()
	node := func(name, address, key string, age int, ranges ...string) Node {
		n := nodeOf(object(name, address, ranges...))
		n.Key, n.Created = key, time.Unix(int64(age), 0)
		return n
	}
	got, _, ok := p.plan([]Node{
		node("self", "192.0.2.1", own.String(), 1, "10.244.0.0/24", "fd00::/64"),
		node("b", "192.0.2.2", b.String(), 2, "10.244.1.0/24", "fd00:0:0:1::/64"),
		node("c", "198.51.100.3", c.String(), 3, "10.244.2.0/24"),
		node("same", "192.0.2.4", b.String(), 4, "10.244.4.0/24"),
		node("mine", "192.0.2.5", own.String(), 5, "10.244.5.0/24"),
		node("none", "192.0.2.6", "", 6, "10.244.6.0/24"),
		node("bad", "192.0.2.7", "x", 7, "10.244.7.0/24"),
		node("here", "192.0.2.9", newKey(t).PublicKey().String(), 8, "10.244.8.0/24"),
	})
	if !ok || len(got.peers) != 2 || len(got.ends) != 0 || len(got.routes) != 3 {
		t.Errorf("%+v", got)
	}
	if p := got.peers[b]; p.Outer.String() != "192.0.2.2" || fmt.Sprint(p.Ranges) != "[10.244.1.0/24 fd00:0:0:1::/64]" {
		t.Errorf("%+v", p)
	}
	if p := got.peers[c]; p.Outer.String() != "198.51.100.3" {
		t.Errorf("%+v", p)
	}
	for name, want := range map[string]string{"same": "is another node's", "mine": "is another node's", "none": "has told no key", "bad": "is none"} {
		if err := got.wrong[name]; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if len(got.wrong) != 4 {
		t.Errorf("wrong: %v", got.wrong)
	}
}

func TestKeyStays(t *testing.T) {
	file := filepath.Join(t.TempDir(), "key")
	first, err := LoadKey(file)
	again, err2 := LoadKey(file)
	st, err3 := os.Stat(file)
	if err := errors.Join(err, err2, err3); err != nil || first != again || st.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v, %v", err, first == again, st.Mode())
	}
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadKey(file); err == nil || !strings.Contains(err.Error(), file+" is no key of WireGuard; remove it") {
		t.Error(err)
	}
}

// TestWireGuard sends more than a packet between two nodes, over links on which nothing of it can be read, and follows a node
// that has another address and another key.
func TestWireGuard(t *testing.T) {
	a, b := machine(t), machine(t)
	err := netns.Do(CheckWireGuard, a)
	if errors.Is(err, ErrNoWireGuard) {
		t.Skipf("%v; make test-v2 has a kernel with it", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	ip(t, a, "link set br0 down", "address flush dev br0", "link delete br0")
	ip(t, b, "link set br0 down", "address flush dev br0", "link delete br0")
	f, err := os.Open(b)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	err = netns.Do(func() error {
		cmd := exec.CommandContext(t.Context(), "ip", "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", "/proc/self/fd/3")
		cmd.ExtraFiles = []*os.File{f}
		return cmd.Run()
	}, a)
	if err != nil {
		t.Fatal(err)
	}
	ip(t, a, "link set eth0 up", "address add 192.0.2.1/24 dev eth0")
	ip(t, b, "link set eth0 up", "address add 192.0.2.2/24 dev eth0", "address add 192.0.2.3/24 dev eth0")
	keys := map[string]wgtypes.Key{"a": newKey(t), "b": newKey(t)}
	client := fake.NewClientset()
	for _, n := range []*v1.Node{object("a", "192.0.2.1", "10.244.0.0/24", "fd00::/64"), object("b", "192.0.2.2", "10.244.1.0/24", "fd00:0:0:1::/64")} {
		n.Annotations = map[string]string{cluster.AnnotationWireGuard: keys[n.Name].PublicKey().String()}
		if _, err := client.CoreV1().Nodes().Create(t.Context(), n, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	start := func(name, ns string) (stop func()) {
		return runMesh(t, ns, client, Config{Node: name, Mode: cluster.ModeWireGuard, Key: keys[name]})
	}
	stopA, stopB := start("a", a), start("b", b)
	for _, address := range []string{"10.244.1.0", "fd00:0:0:1::"} {
		transfer(t, a, b, address)
	}
	seen := func() (out wgtypes.Peer) {
		err := netns.Do(func() error {
			c, err := wgctrl.New()
			if err != nil {
				return err
			}
			defer func() { _ = c.Close() }()
			d, err := c.Device(LinkName("test"))
			if err == nil && len(d.Peers) != 1 {
				err = fmt.Errorf("%d peers", len(d.Peers))
			}
			if err == nil {
				out = d.Peers[0]
			}
			return err
		}, a)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	if p := seen(); p.LastHandshakeTime.IsZero() || p.ReceiveBytes+p.TransmitBytes < size || p.Endpoint.String() != "192.0.2.2:51820" {
		t.Errorf("%+v", p)
	}
	mtu := ip(t, a, "-o link show "+LinkName("test"))
	if !strings.Contains(mtu, "mtu 1440") {
		t.Error(mtu)
	}

	// It moves, and starts with a new key.
	stopB()
	keys["b"] = newKey(t)
	moved, err := client.CoreV1().Nodes().Get(t.Context(), "b", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	moved.Status.Addresses[0].Address = "192.0.2.3"
	moved.Annotations[cluster.AnnotationWireGuard] = keys["b"].PublicKey().String()
	if _, err := client.CoreV1().Nodes().Update(t.Context(), moved, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	stopB = start("b", b)
	for end := time.Now().Add(time.Minute); seen().PublicKey != keys["b"].PublicKey() && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
	}
	transfer(t, a, b, "10.244.1.0")
	if p := seen(); p.Endpoint.String() != "192.0.2.3:51820" || p.PublicKey != keys["b"].PublicKey() {
		t.Errorf("after it has moved: %+v", p)
	}
	stopA()
	stopB()
	for _, ns := range []string{a, b} {
		if err := netns.Do(func() error { return Remove("test", prefixes("10.244.0.0/16", "fd00::/48")) }, ns); err != nil {
			t.Error(err)
		}
		if out := ip(t, ns, "link show type wireguard"); out != "" {
			t.Errorf("afterwards there is %s", out)
		}
	}
}

const size = 1 << 20

// transfer sends bytes from one machine to an address of another one, and back.
func transfer(t *testing.T, from, to, address string) {
	t.Helper()
	var l net.Listener
	err := netns.Do(func() (err error) {
		l, err = new(net.ListenConfig).Listen(t.Context(), "tcp", net.JoinHostPort(address, "0"))
		return err
	}, to)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		_, _ = io.Copy(c, io.LimitReader(c, size)) // what is missing is noticed at the other end
		_ = c.Close()
	}()
	err = netns.Do(func() error {
		c, err := (&net.Dialer{Timeout: time.Minute}).DialContext(t.Context(), "tcp", l.Addr().String())
		if err != nil {
			return err
		}
		defer func() { _ = c.Close() }()
		if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
			return err
		}
		go func() { _, _ = c.Write(make([]byte, size)) }()
		n, err := io.Copy(io.Discard, c)
		if err == nil && n != size {
			err = fmt.Errorf("%d bytes of %d", n, size)
		}
		return err
	}, from)
	if err != nil {
		t.Errorf("to %s: %v", address, err)
	}
}
