package proxy

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"wherry.dev/internal/netns"
	nft "wherry.dev/internal/proxy/nftables"
)

// patience bounds every wait; a slow machine is no reason to fail.
const patience = time.Minute

// until asks again and again.
func (m *machine) until(what string, ok func() bool) {
	m.t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); !ok(); <-tick.C {
		if time.Now().After(deadline) {
			m.t.Fatalf("never: %s", what)
		}
	}
}

// run runs a whole proxy in the machine's namespace, fed by the client.
func (m *machine) run(client *fake.Clientset) {
	m.t.Helper()
	f := informers.NewSharedInformerFactory(client, 0)
	l := m.kernel.layout
	p, err := New(Config{Node: "n", Table: m.kernel.table, Bridge: l.bridge, OtherBridges: l.others, Pods: l.pods}, f)
	m.check(err)
	ctx, cancel := context.WithCancel(m.t.Context())
	f.Start(ctx.Done())
	ended := make(chan error, 1)
	go func() { ended <- netns.Do(func() error { return p.Run(ctx) }, m.spaces["host"]) }()
	m.t.Cleanup(func() {
		cancel()
		f.Shutdown()
		if err := <-ended; err != nil {
			m.t.Error(err)
		}
	})
	select {
	case <-p.Ready():
	case <-time.After(patience):
		m.t.Fatal("the proxy is not ready")
	}
}

// get asks by HTTP from the neighbour.
func (m *machine) get(url string) (code int, body string) {
	m.t.Helper()
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, to string) (c net.Conn, err error) {
			err = netns.Do(func() (err error) {
				c, err = (&net.Dialer{Timeout: time.Second}).DialContext(ctx, network, to)
				return err
			}, m.spaces["neighbour"])
			return c, err
		},
	}}
	resp, err := client.Get(url) //nolint:noctx // see DialContext
	if err != nil {
		return 0, ""
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	m.check(err)
	return resp.StatusCode, strings.Join(strings.Fields(string(text)), "")
}

// What pods send to addresses of service ranges that no service has, does not leave the node. The ranges may
// come and go, nest, and be unknown.
func TestUnusedAddressesOfServicesLeadNowhere(t *testing.T) {
	for name, change := range map[string]func(*layout){
		"pods on a bridge":       func(*layout) {},
		"pods by their networks": func(l *layout) { l.bridge, l.others = "", "" },
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			change(&m.kernel.layout)
			m.listen("a")
			m.listen("neighbour") // the node's default route leads there
			const unused, unused6, other = "10.96.0.99", "fd96::99", "10.97.0.99"
			for _, ip := range []string{unused + "/32", unused6 + "/128", other + "/32"} {
				m.in("neighbour", "ip", "address", "add", ip, "dev", "lo")
			}
			for _, p := range []string{"10.244.0.0/24", "fd10::/64"} {
				m.in("neighbour", "ip", "route", "replace", p, "via", map[bool]string{true: hostIP, false: hostIP6}[strings.Contains(p, ".")])
			}
			svc := service()
			s := slices4(ready("a"))[0]
			s.ObjectMeta = metav1.ObjectMeta{Namespace: "a", Name: "web-1", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}}
			client := fake.NewClientset(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}, svc, s)
			m.run(client)
			reaches := func(to string) func() bool {
				return func() bool { got, _ := m.askFor(silence, "b", to); return got == "neighbour" }
			}
			stops := func(to string) func() bool {
				return func() bool { got, _ := m.askFor(silence/4, "b", to); return got == "silence" }
			}
			if !reaches(unused+":8080")() || !reaches("["+unused6+"]:8080")() {
				t.Fatal("without ranges, nothing is dropped")
			}
			ranges := client.NetworkingV1().ServiceCIDRs()
			create := func(name string, cidrs ...string) {
				c := &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: cidrs}}
				_, err := ranges.Create(t.Context(), c, metav1.CreateOptions{})
				m.check(err)
			}
			create("kubernetes", "10.96.0.0/16", "fd96::/112")
			create("nested", "10.96.0.0/24")
			m.until("unused addresses of services lead nowhere", stops(unused+":8080"))
			m.want("b", "["+unused6+"]:8080", "silence")
			m.want("b", clusterIP+":80", "a")
			m.want("b", clusterIP+":81", "refused")
			m.want("host", unused+":8080", "neighbour") // not a pod: another instance's service may be there
			m.want("b", other+":8080", "neighbour")
			create("more", "10.97.0.0/16")
			m.until("a new range counts", stops(other+":8080"))
			m.check(ranges.Delete(t.Context(), "more", metav1.DeleteOptions{}))
			m.until("a range that is gone does not count", reaches(other+":8080"))
		})
	}
}

// TestRun: a whole proxy, from what the API server says to what clients see.
func TestRun(t *testing.T) {
	m := newMachine(t)
	for _, p := range []string{"a", "b"} {
		m.listen(p)
	}
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Status: v1.NodeStatus{Addresses: []v1.NodeAddress{
		{Type: v1.NodeInternalIP, Address: hostIP}, {Type: v1.NodeInternalIP, Address: hostIP6},
	}}}
	svc := service(func(s *v1.Service) {
		s.Spec.Type, s.Spec.ExternalTrafficPolicy = v1.ServiceTypeLoadBalancer, v1.ServiceExternalTrafficPolicyLocal
		s.Spec.HealthCheckNodePort, s.Spec.Ports[0].NodePort = 32000, 30080
		s.Spec.Ports = append(s.Spec.Ports, v1.ServicePort{Name: "udp", Protocol: v1.ProtocolUDP, Port: 80, NodePort: 30080})
	})
	client := fake.NewClientset(node, svc)
	m.run(client)
	endpoints := func(e ...discoveryv1.Endpoint) {
		t.Helper()
		s := slices4(e...)[0]
		s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: new("udp"), Port: new(int32(8080)), Protocol: new(v1.ProtocolUDP)})
		s.ObjectMeta = metav1.ObjectMeta{Namespace: "a", Name: "web-1", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}}
		own := client.DiscoveryV1().EndpointSlices("a")
		_, err := own.Create(t.Context(), s, metav1.CreateOptions{})
		if err != nil {
			_, err = own.Update(t.Context(), s, metav1.UpdateOptions{})
		}
		m.check(err)
	}
	healthPort := func(url string, code int, local int) {
		t.Helper()
		m.until(fmt.Sprintf("%s answers %d", url, code), func() bool {
			got, body := m.get(url)
			return got == code && strings.Contains(body, fmt.Sprintf(`"localEndpoints":%d,"service":{"name":"web","namespace":"a"}`, local))
		})
	}
	at, at6 := "http://"+hostIP+":32000/", "http://["+hostIP6+"]:32000/"
	healthPort(at, 503, 0)
	endpoints(ready("a"))
	healthPort(at, 200, 1)
	healthPort(at6, 200, 1)
	if got := m.want("neighbour", hostIP+":30080", "a"); got != neighbourIP {
		t.Errorf("the client is seen as %s", got)
	}

	// A flow of UDP, from a pod and from outside, follows its endpoint.
	flow := map[string]net.Conn{}
	for from, to := range map[string]string{"c": clusterIP + ":80", "neighbour": hostIP + ":30080"} {
		m.check(netns.Do(func() (err error) {
			flow[from], err = net.Dial("udp", to) //nolint:noctx // of a test
			return err
		}, m.spaces[from]))
		defer func() { _ = flow[from].Close() }()
		if got, _ := m.exchange(flow[from], patience); got != "a" {
			t.Errorf("%s first gets %s", from, got)
		}
	}
	endpoints(ready("b"))
	for from, c := range flow {
		m.until(from+"'s flow goes to b", func() bool { got, _ := m.exchange(c, silence); return got == "b" })
	}
	remote := ready("b")
	remote.NodeName = new("other")
	endpoints(remote)
	healthPort(at, 503, 0)

	// No load balancer asks any more.
	_, err := client.CoreV1().Services("a").Patch(t.Context(), "web", types.MergePatchType,
		[]byte(`{"spec":{"type":"ClusterIP","externalTrafficPolicy":null,"healthCheckNodePort":null}}`), metav1.PatchOptions{})
	m.check(err)
	m.until("the port for health checks is closed", func() bool { code, _ := m.get(at); return code == 0 })
}

// writerEnv names the namespace in which this program only writes the table, again and again.
const writerEnv = "WHERRY_TEST_PROXY_WRITER"

const writerTable = "wherry-writer-proxy"

// generation returns many services with affinity that all have one endpoint, which tells the generation.
func generation(n int) *state {
	s, c := newState(), change{}
	for i := range 300 {
		svc, _ := many(i, 0)
		svc.Spec.SessionAffinity = v1.ServiceAffinityClientIP
		s.set("a/"+svc.Name, Plan(svc, slices4(discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.0.0.%d", n)}}), Node{Name: "n"}), &c)
	}
	return s
}

// writeForEver writes both generations in turn: changes, and whole tables.
func writeForEver(space string) error {
	return netns.Do(func() error {
		conn, err := nft.Open()
		if err != nil {
			return err
		}
		k, s := kernel{conn: conn, table: writerTable}, generation(1)
		if err := k.replace(s); err != nil {
			return err
		}
		fmt.Println("writing")
		for n := 0; ; n++ {
			if n%4 == 3 {
				if err := k.replace(generation(1 + n%2)); err != nil {
					return err
				}
				s = generation(1 + n%2)
			}
			var c change
			for key := range s.services {
				svc, _ := many(0, 0)
				ip := s.services[key].rules.ClusterIPs[0]
				svc.Spec.ClusterIPs, svc.Spec.SessionAffinity = []string{ip.String()}, v1.ServiceAffinityClientIP
				all := slices4(discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.0.0.%d", 1+n%2)}})
				s.set(key, Plan(svc, all, Node{Name: "n"}), &c)
			}
			if err := k.apply(s, c); err != nil {
				return err
			}
		}
	}, space)
}

// TestKilledWhileItWrites: whenever the proxy dies, the table is as one transaction left it, and those
// of others are as they were.
func TestKilledWhileItWrites(t *testing.T) {
	m := newMachine(t)
	m.in("host", "nft", "add table inet foreign; add chain inet foreign c { type filter hook forward priority 0; }; add rule inet foreign c counter accept")
	foreign := m.in("host", "nft", "-s", "list", "table", "inet", "foreign")
	seen := map[netip.Addr]int{}
	for range 20 {
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env, cmd.Stderr = append(os.Environ(), writerEnv+"="+m.spaces["host"]), os.Stderr
		out, err := cmd.StdoutPipe()
		m.check(err)
		m.check(cmd.Start())
		if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "writing\n" {
			t.Errorf("%q, %v", line, err)
		}
		<-time.After(rand.N(60 * time.Millisecond)) // the moment at which it dies
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // killed
		elements, err := m.kernel.conn.Elements(writerTable, "endpoints4")
		m.check(err)
		learners, err := m.kernel.conn.Elements(writerTable, "learners4")
		m.check(err)
		found := map[netip.Addr]int{}
		for _, e := range elements {
			ip, _ := netip.AddrFromSlice([]byte(e.Value[:4]))
			found[ip]++
			seen[ip]++
		}
		for _, e := range learners {
			ip, _ := netip.AddrFromSlice([]byte(e.Key[12:16])) // after the frontend
			found[ip]++
		}
		if len(elements) != 300 || len(learners) != 300 || len(found) != 1 {
			t.Errorf("half-written: %d endpoints, %d that are learned: %v", len(elements), len(learners), found)
		}
	}
	m.listable()
	t.Log("endpoints that were seen: ", seen)
	m.check(m.kernel.conn.Remove(writerTable))
	if got := m.in("host", "nft", "-s", "list", "table", "inet", "foreign"); got != foreign {
		t.Errorf("the foreign table is now %s", got)
	}
	tables := strings.Fields(m.in("host", "nft", "list", "tables"))
	slices.Sort(tables)
	if got := strings.Join(tables, " "); got != "foreign inet inet table table wherry-test-proxy" {
		t.Errorf("tables: %s", got)
	}
}
