package proxy

import (
	"net/netip"
	"testing"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"wherry.dev/internal/netns"
	nft "wherry.dev/internal/proxy/nftables"
)

// affine is a service of both families, with a node port, whose clients stay for so many seconds.
func affine(seconds int32, more ...func(*v1.Service)) *v1.Service {
	return service(append([]func(*v1.Service){func(s *v1.Service) {
		s.Spec.Type, s.Spec.Ports[0].NodePort = v1.ServiceTypeNodePort, 30080
		s.Spec.ClusterIPs = []string{clusterIP, clusterIP6}
		s.Spec.SessionAffinity = v1.ServiceAffinityClientIP
		s.Spec.SessionAffinityConfig = &v1.SessionAffinityConfig{ClientIP: &v1.ClientIPConfig{TimeoutSeconds: &seconds}}
	}}, more...)...)
}

// learned returns the elements of a map of affinities.
func (m *machine) learned(name string) (out []nft.Element) {
	m.t.Helper()
	m.check(netns.Do(func() error {
		all, err := m.kernel.learned()
		out = all[name]
		return err
	}, m.spaces["host"]))
	return out
}

// client returns what is learned of a frontend's client, which must be something.
func (m *machine) client(name, frontend, client string) nft.Element {
	m.t.Helper()
	at, ip := netip.MustParseAddrPort(frontend), netip.MustParseAddr(client)
	f := Frontend{Address: at.Addr(), Port: at.Port(), Protocol: v1.ProtocolTCP}
	for _, e := range m.learned(name) {
		if e.Key == f.key()+string(ip.AsSlice()) {
			return e
		}
	}
	m.t.Fatalf("%s: nothing of %s at %s", name, client, frontend)
	return nft.Element{}
}

// stays asks often, and returns the one that answers each time.
func (m *machine) stays(from, to string) string {
	m.t.Helper()
	first, _ := m.ask(from, to)
	for range 20 {
		m.want(from, to, first)
	}
	return first
}

// both6 returns the slice of pods a and b at IPv6.
func both6() *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		AddressType: discoveryv1.AddressTypeIPv6, Ports: slices4()[0].Ports,
		Endpoints: []discoveryv1.Endpoint{ready6("a"), ready6("b")},
	}
}

// TestAffinityOnEveryWay: connections through the node, from it, to it, and of a pod to itself are
// learned, before anybody changes their source.
func TestAffinityOnEveryWay(t *testing.T) {
	m := newMachine(t)
	for _, p := range []string{"a", "b", "host"} {
		m.listen(p)
	}
	cluster, cluster6 := clusterIP+":80", "["+clusterIP6+"]:80"
	port, port6 := hostIP+":30080", "["+hostIP6+"]:30080"
	m.serve(affine(600), append(slices4(ready("a"), ready("b")), both6())...)
	for _, way := range []struct{ from, to, set, client string }{
		{"c", cluster, "affinities4", podIP("c")},
		{"a", cluster, "affinities4", podIP("a")}, // sometimes to itself
		{"host", port, "affinities4", hostIP},
		{"neighbour", port, "affinities4", neighbourIP},
		{"c", cluster6, "affinities6", podIP6("c")},
		{"a", cluster6, "affinities6", podIP6("a")},
		{"host", port6, "affinities6", hostIP6},
		{"neighbour", port6, "affinities6", neighbourIP6},
	} {
		server, at := m.stays(way.from, way.to), netip.MustParseAddr(podIP("a"))
		if way.set == "affinities6" {
			at = netip.MustParseAddr(podIP6("a"))
		}
		if server == "b" {
			at = at.Next()
		}
		if e := m.client(way.set, way.to, way.client); e.Value != endpointBytes(netip.AddrPortFrom(at, 8080)) {
			t.Errorf("%s to %s: %x is learned, %s answers", way.from, way.to, e.Value, server)
		}
	}
	// The endpoint is on the node: these packets leave by the hook input.
	m.serve(affine(600), slices4(discoveryv1.Endpoint{Addresses: []string{hostIP}})...)
	for _, from := range []string{"c", "neighbour"} {
		m.want(from, port, "host")
	}
	m.client("affinities4", port, podIP("c"))
	m.client("affinities4", port, neighbourIP)
}

// TestAffinityFromElsewhere: with the local policy, strangers stay with an endpoint of this node, also if
// they had another one under the old policy. Others keep theirs.
func TestAffinityFromElsewhere(t *testing.T) {
	m := newMachine(t)
	for _, p := range []string{"a", "b"} {
		m.listen(p)
	}
	remote, at := ready("a"), hostIP+":30080"
	remote.NodeName = new("other")
	m.serve(affine(600), slices4(remote)...)
	m.want("neighbour", at, "a")
	m.want("c", at, "a")
	local := affine(600, func(s *v1.Service) { s.Spec.ExternalTrafficPolicy = v1.ServiceExternalTrafficPolicyLocal })
	m.serve(local, slices4(remote, ready("b"))...)
	for range 10 {
		m.want("neighbour", at, "b")
		m.want("c", at, "a")
	}
	m.client("outside-affinities4", at, neighbourIP)
}

// TestAffinityLastsFromTheLastConnection: each connection begins the service's time anew, as it is then.
func TestAffinityLastsFromTheLastConnection(t *testing.T) {
	m := newMachine(t)
	m.listen("a")
	at := clusterIP + ":80"
	m.serve(affine(600), slices4(ready("a"))...)
	m.want("c", at, "a")
	e := m.client("affinities4", at, podIP("c"))
	if e.Timeout != 600_000 {
		t.Errorf("lasts %d ms", e.Timeout)
	}
	old := nft.NewBatch(m.kernel.table)
	old.DeleteElements("affinities4", []nft.Element{e})
	e.Expires = 100_000
	old.AddElements("affinities4", []nft.Element{e})
	m.check(m.kernel.conn.Commit(old))
	m.want("c", at, "a")
	if e = m.client("affinities4", at, podIP("c")); e.Expires <= 100_000 {
		t.Errorf("not refreshed: %d ms are left", e.Expires)
	}
	m.serve(affine(60), slices4(ready("a"))...)
	m.want("c", at, "a")
	if e = m.client("affinities4", at, podIP("c")); e.Expires > 60_000 {
		t.Errorf("the service's time is 60 s now: %d ms are left", e.Expires)
	}
}

// TestNoAffinityAnyMore: clients are forgotten, so that they do not come back to old endpoints when the
// service has affinity again.
func TestNoAffinityAnyMore(t *testing.T) {
	m := newMachine(t)
	m.listen("a")
	m.serve(affine(600), slices4(ready("a"))...)
	m.want("c", clusterIP+":80", "a")
	m.serve(service(), slices4(ready("a"))...)
	if got := m.learned("affinities4"); len(got) > 0 {
		t.Errorf("still known: %v", got)
	}
	m.want("c", clusterIP+":80", "a")
	if got := m.learned("affinities4"); len(got) > 0 {
		t.Errorf("learned: %v", got)
	}
}
