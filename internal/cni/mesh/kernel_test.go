package mesh

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"

	"wherry.dev/internal/api/cluster"
	"wherry.dev/internal/netns"
)

// machine is a network namespace with a link on which 192.0.2.0/24 is, and a default route.
func machine(t testing.TB) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	dir := filepath.Join(t.TempDir(), "ns")
	if err := netns.Create(dir, []netns.Kind{netns.Net}, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := netns.Remove(dir); err != nil {
			t.Error(err)
		}
	})
	ns := netns.Path(dir, netns.Net)
	ip(t, ns, "link set lo up", "link add br0 type bridge", "link set br0 up", "address add 192.0.2.1/24 dev br0", "address add 2001:db8::1/64 dev br0 nodad",
		"route add default via 192.0.2.254", "link add eth1 type bridge", "link set eth1 up", "address add 192.0.2.129/32 dev eth1")
	return ns
}

func ip(t testing.TB, ns string, commands ...string) string {
	t.Helper()
	var all []byte
	for _, c := range commands {
		err := netns.Do(func() error {
			out, err := exec.Command("ip", strings.Fields(c)...).CombinedOutput() //nolint:noctx // it ends at once
			all = append(all, out...)
			return err
		}, ns)
		if err != nil {
			t.Fatalf("ip %s: %v: %s", c, err, all)
		}
	}
	return string(all)
}

// object returns a Node.
func object(name, address string, ranges ...string) *v1.Node {
	n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1.NodeSpec{PodCIDRs: ranges}}
	for a := range strings.SplitSeq(address, ",") {
		n.Status.Addresses = append(n.Status.Addresses, v1.NodeAddress{Type: v1.NodeInternalIP, Address: a})
	}
	return n
}

// play runs a mesh in a machine on the nodes, and then f.
func play(t *testing.T, mode string, nodes []*v1.Node, f func(ns string, client *fake.Clientset)) {
	t.Helper()
	ns := machine(t)
	client := fake.NewClientset()
	for _, n := range nodes {
		if _, err := client.CoreV1().Nodes().Create(t.Context(), n, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	stop := runMesh(t, ns, client, Config{Node: "self", Mode: mode, VNI: 77})
	f(ns, client)
	stop()
	if err := netns.Do(func() error { return Remove("test", prefixes("10.244.0.0/16", "fd00::/48")) }, ns); err != nil {
		t.Error(err)
	}
	if got := routesOf(t, ns); len(got) > 0 {
		t.Errorf("afterwards there are %q", got)
	}
	if out := ip(t, ns, "link show type vxlan"); out != "" {
		t.Errorf("afterwards there is %s", out)
	}
}

// runMesh runs a mesh in a machine until stop, and returns when it is ready.
func runMesh(t *testing.T, ns string, client kubernetes.Interface, cfg Config) (stop func()) {
	t.Helper()
	cfg.Instance, cfg.Cluster = "test", prefixes("10.244.0.0/16", "fd00::/48")
	factory := informers.NewSharedInformerFactory(client, 0)
	m, err := New(cfg, factory)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	factory.Start(ctx.Done())
	done := make(chan error, 1)
	go func() { done <- netns.Do(func() error { return m.Run(ctx) }, ns) }()
	select {
	case <-m.Ready():
	case err := <-done:
		t.Fatal(err)
	}
	return func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		factory.Shutdown()
	}
}

func routesOf(t *testing.T, ns string) (out []string) {
	t.Helper()
	for line := range strings.Lines(ip(t, ns, "-4 route show proto 87", "-6 route show proto 87")) {
		fields := strings.Fields(line)
		out = append(out, strings.Join(fields[:min(5, len(fields))], " "))
	}
	return out
}

// shows waits until the machine has these routes.
func shows(t *testing.T, ns string, want ...string) {
	t.Helper()
	var got []string
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if got = routesOf(t, ns); slices.Equal(got, want) {
			return
		}
	}
	t.Fatalf("routes %q, want %q", got, want)
}

// The kernel follows nodes that come, move and go, and gets back what somebody else has taken from it.
func TestTheKernelFollowsNodes(t *testing.T) {
	play(t, cluster.ModeAuto, []*v1.Node{object("self", "192.0.2.1", "10.244.0.0/24", "fd00::/64"), object("b", "192.0.2.2,2001:db8::2", "10.244.1.0/24", "fd00:0:0:1::/64")},
		func(ns string, c *fake.Clientset) {
			nodes := c.CoreV1().Nodes()
			shows(t, ns, "10.244.1.0/24 via 192.0.2.2 dev br0", "fd00:0:0:1::/64 via 2001:db8::2 dev br0")
			if _, err := nodes.Create(t.Context(), object("c", "198.51.100.3", "10.244.2.0/24", "fd00:0:0:2::/64"), metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			both := []string{"10.244.1.0/24 via 192.0.2.2 dev br0", "10.244.2.0/24 via 10.244.2.0 dev whx-test", "fd00:0:0:1::/64 via 2001:db8::2 dev br0", "fd00:0:0:2::/64 via fd00:0:0:2:: dev whx-test"}
			shows(t, ns, both...)
			fdb := func() string {
				return ip(t, ns, "neigh show dev whx-test nud permanent") + bridge(t, ns)
			}
			mac := macOf(prefixes("10.244.2.0/24")).String()
			for _, want := range []string{"10.244.2.0 lladdr " + mac, "fd00:0:0:2:: lladdr " + mac, mac + " dst 198.51.100.3 self permanent"} {
				if got := fdb(); !strings.Contains(got, want) {
					t.Errorf("no %q in %s", want, got)
				}
			}
			// Somebody cleans up.
			ip(t, ns, "route del 10.244.1.0/24", "link del whx-test")
			shows(t, ns, both...)
			// The node moves onto the link.
			if _, err := nodes.Update(t.Context(), object("c", "192.0.2.3,2001:db8::3", "10.244.2.0/24", "fd00:0:0:2::/64"), metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			shows(t, ns, "10.244.1.0/24 via 192.0.2.2 dev br0", "10.244.2.0/24 via 192.0.2.3 dev br0", "fd00:0:0:1::/64 via 2001:db8::2 dev br0", "fd00:0:0:2::/64 via 2001:db8::3 dev br0")
			if out := ip(t, ns, "link show type vxlan"); out != "" {
				t.Errorf("a tunnel that nobody needs: %s", out)
			}
			if err := nodes.Delete(t.Context(), "b", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			shows(t, ns, "10.244.2.0/24 via 192.0.2.3 dev br0", "fd00:0:0:2::/64 via 2001:db8::3 dev br0")
		})
}

func bridge(t *testing.T, ns string) string {
	t.Helper()
	var out []byte
	err := netns.Do(func() (err error) {
		out, err = exec.Command("bridge", "fdb", "show", "dev", "whx-test").CombinedOutput() //nolint:noctx // it ends at once
		return err
	}, ns)
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return string(bytes.TrimSpace(out))
}

// The tunnel is as large as the link allows, also after that has changed, and is made anew when this node has another address.
func TestTheTunnelFollowsItsLink(t *testing.T) {
	play(t, cluster.ModeVXLAN, []*v1.Node{object("self", "192.0.2.1", "10.244.0.0/24"), object("b", "192.0.2.2", "10.244.1.0/24")}, func(ns string, c *fake.Clientset) {
		tunnel := func(want string) {
			t.Helper()
			var got string
			for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
				if got = ip(t, ns, "-d link show type vxlan"); strings.Contains(got, want) {
					return
				}
			}
			t.Fatalf("no %q in %s", want, got)
		}
		shows(t, ns, "10.244.1.0/24 via 10.244.1.0 dev whx-test")
		tunnel("mtu 1450 ")
		ip(t, ns, "link set br0 mtu 1400")
		tunnel("mtu 1350 ")
		if _, err := c.CoreV1().Nodes().Update(t.Context(), object("self", "192.0.2.129", "10.244.0.0/24"), metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		tunnel("local 192.0.2.129")
		shows(t, ns, "10.244.1.0/24 via 10.244.1.0 dev whx-test")
	})
}

// BenchmarkNodes measures how long the kernel takes to be told of 500 nodes, and of one that has changed among them
// (aims: a second, 20 ms).
func BenchmarkNodes(b *testing.B) {
	for _, mode := range []string{cluster.ModeRoutes, cluster.ModeVXLAN} {
		nodes := []Node{node("self", 1, "192.0.2.1", "10.244.0.0/24")}
		for i := range 500 {
			n := Node{Name: fmt.Sprint("n", i), Addresses: []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, byte(2 + i%100)})}}
			n.Ranges = []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(240 + (i+1)>>8), byte(i + 1), 0}), 24)}
			nodes = append(nodes, n)
		}
		p := planner{self: "self", mode: mode, cluster: prefixes("10.240.0.0/12"), way: wayTo}
		k := kernel{link: LinkName("bench"), vni: 78, cluster: p.cluster}
		sync := func(b *testing.B, ns string, nodes []Node) {
			b.Helper()
			err := netns.Do(func() error {
				plan, own, ok := p.plan(nodes)
				if !ok || len(plan.routes) != len(nodes)-1 {
					return fmt.Errorf("%d routes: %v", len(plan.routes), plan.wrong)
				}
				return k.apply(plan, own)
			}, ns)
			if err != nil {
				b.Fatal(err)
			}
		}
		b.Run(mode+"/all", func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				ns := machine(b)
				b.StartTimer()
				sync(b, ns, nodes)
			}
		})
		b.Run(mode+"/one", func(b *testing.B) {
			ns := machine(b)
			sync(b, ns, nodes)
			for i := 0; b.Loop(); i++ {
				changed := slices.Clone(nodes)
				changed[250].Addresses = []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, byte(150 + i%50)})}
				sync(b, ns, changed)
			}
		})
	}
}
