package dns

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
)

func meta(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: "shop", Name: name} }

func service(name string, change func(*v1.ServiceSpec)) *v1.Service {
	s := &v1.Service{ObjectMeta: meta(name), Spec: v1.ServiceSpec{
		Type: v1.ServiceTypeClusterIP, ClusterIP: "10.96.0.20", ClusterIPs: []string{"10.96.0.20"},
		Ports: []v1.ServicePort{{Name: "http", Port: 80, Protocol: v1.ProtocolTCP}},
	}}
	if change != nil {
		change(&s.Spec)
	}
	return s
}

func noIP(s *v1.ServiceSpec) {
	s.ClusterIP, s.ClusterIPs = v1.ClusterIPNone, []string{v1.ClusterIPNone}
}

func slice(name, of string, kind discoveryv1.AddressType, ports []discoveryv1.EndpointPort, all ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{ObjectMeta: meta(name), AddressType: kind, Ports: ports, Endpoints: all}
	s.Labels = map[string]string{discoveryv1.LabelServiceName: of}
	return s
}

func ready(is bool, hostname string, addresses ...string) discoveryv1.Endpoint {
	e := discoveryv1.Endpoint{Addresses: addresses, Conditions: discoveryv1.EndpointConditions{Ready: new(is)}}
	if hostname != "" {
		e.Hostname = new(hostname)
	}
	return e
}

func port(name string, n int32) []discoveryv1.EndpointPort {
	return []discoveryv1.EndpointPort{{Name: new(name), Port: new(n), Protocol: new(v1.ProtocolTCP)}}
}

// cluster is what most tests ask about.
func cluster() []runtime.Object {
	return []runtime.Object{
		&v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}},
		service("web", nil),
		service("both", func(s *v1.ServiceSpec) {
			s.ClusterIP, s.ClusterIPs = "10.96.0.30", []string{"10.96.0.30", "fd00:96::30"}
			s.Ports = append(s.Ports, v1.ServicePort{Name: "metrics", Port: 9090, Protocol: v1.ProtocolUDP})
		}),
		service("db", noIP),
		slice("db-4", "db", discoveryv1.AddressTypeIPv4, port("sql", 5432), ready(true, "db-0", "10.244.0.5"), ready(true, "", "10.244.0.6"), ready(false, "db-2", "10.244.0.7")),
		slice("db-6", "db", discoveryv1.AddressTypeIPv6, port("sql", 5432), ready(true, "db-0", "fd00::5")),
		service("empty", noIP),
		slice("empty-1", "empty", discoveryv1.AddressTypeIPv4, port("http", 80), ready(false, "", "10.244.0.9")),
		service("portless", func(s *v1.ServiceSpec) { noIP(s); s.Ports = nil }),
		slice("portless-1", "portless", discoveryv1.AddressTypeIPv4, nil, ready(true, "", "10.244.0.8")),
		service("away", func(s *v1.ServiceSpec) {
			s.Type, s.ClusterIP, s.ClusterIPs, s.ExternalName = v1.ServiceTypeExternalName, "", nil, "Example.com"
		}),
		service("alias", func(s *v1.ServiceSpec) {
			s.Type, s.ClusterIP, s.ClusterIPs, s.ExternalName = v1.ServiceTypeExternalName, "", nil, "web.shop.svc.cluster.local"
		}),
		service("loop", func(s *v1.ServiceSpec) {
			s.Type, s.ClusterIP, s.ClusterIPs, s.ExternalName = v1.ServiceTypeExternalName, "", nil, "loop.shop.svc.cluster.local"
		}),
	}
}

// zoneOf returns the zone of a cluster with the objects.
func zoneOf(t testing.TB, objs ...runtime.Object) *Zone {
	t.Helper()
	f := informers.NewSharedInformerFactory(fake.NewClientset(objs...), 0)
	records, err := NewRecords(f)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	f.Start(ctx.Done())
	f.WaitForCacheSync(ctx.Done())
	t.Cleanup(func() { cancel(); f.Shutdown() })
	return NewZone("cluster.local", []netip.Addr{netip.MustParseAddr("10.96.0.10")}, records)
}

// said writes records in a line, sorted, without what is the same for all.
func said(records []dns.RR) string {
	var out []string
	for _, rr := range records {
		fields := strings.Fields(rr.String())
		out = append(out, strings.Join(append(fields[3:4], fields[4:]...), " "))
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

func TestNamesOfTheCluster(t *testing.T) {
	s := &Server{Zone: zoneOf(t, cluster()...)}
	const nx, none = "NXDOMAIN", "NODATA"
	for _, tt := range []struct {
		qtype      uint16
		name, want string
	}{
		{dns.TypeA, "web.shop.svc", "A 10.96.0.20"},
		{dns.TypeAAAA, "web.shop.svc", none},
		{dns.TypeTXT, "web.shop.svc", none},
		{dns.TypeA, "WEB.Shop.Svc", "A 10.96.0.20"},
		{dns.TypeA, "both.shop.svc", "A 10.96.0.30"},
		{dns.TypeAAAA, "both.shop.svc", "AAAA fd00:96::30"},
		{dns.TypeSRV, "_http._tcp.web.shop.svc", "SRV 0 100 80 web.shop.svc.cluster.local."},
		{dns.TypeSRV, "_metrics._udp.both.shop.svc", "SRV 0 100 9090 both.shop.svc.cluster.local."},
		{dns.TypeSRV, "_metrics._tcp.both.shop.svc", nx},
		{dns.TypeSRV, "_other._tcp.web.shop.svc", nx},
		{dns.TypeSRV, "_tcp.web.shop.svc", none},
		{dns.TypeSRV, "_udp.web.shop.svc", nx},
		{dns.TypeSRV, "http._tcp.web.shop.svc", nx},
		{dns.TypeSRV, "a._http._tcp.web.shop.svc", nx},
		{dns.TypeSRV, "web.shop.svc", "SRV 0 100 80 web.shop.svc.cluster.local."},
		{dns.TypeA, "_http._tcp.web.shop.svc", "A 10.96.0.20"},
		{dns.TypeA, "db.shop.svc", "A 10.244.0.5, A 10.244.0.6"},
		{dns.TypeAAAA, "db.shop.svc", "AAAA fd00::5"},
		{dns.TypeA, "db-0.db.shop.svc", "A 10.244.0.5"},
		{dns.TypeAAAA, "db-0.db.shop.svc", "AAAA fd00::5"},
		{dns.TypeA, "10-244-0-6.db.shop.svc", "A 10.244.0.6"},
		{dns.TypeA, "db-2.db.shop.svc", nx},
		{dns.TypeA, "x.db-0.db.shop.svc", nx},
		{dns.TypeSRV, "_sql._tcp.db.shop.svc", "SRV 0 50 5432 10-244-0-6.db.shop.svc.cluster.local., SRV 0 50 5432 db-0.db.shop.svc.cluster.local."},
		{dns.TypeA, "empty.shop.svc", nx},
		{dns.TypeA, "portless.shop.svc", "A 10.244.0.8"},
		{dns.TypeSRV, "portless.shop.svc", none},
		{dns.TypeCNAME, "away.shop.svc", "CNAME example.com."},
		{dns.TypeTXT, "away.shop.svc", none},
		{dns.TypeA, "x.away.shop.svc", nx},
		{dns.TypeA, "alias.shop.svc", "A 10.96.0.20, CNAME web.shop.svc.cluster.local."},
		{dns.TypeCNAME, "alias.shop.svc", "CNAME web.shop.svc.cluster.local."},
		{dns.TypeA, "nobody.shop.svc", nx},
		{dns.TypeA, "web.other.svc", nx},
		{dns.TypeA, "shop.svc", none},
		{dns.TypeA, "other.svc", nx},
		{dns.TypeA, "svc", none},
		{dns.TypeA, "pod", none},
		{dns.TypeA, "", none},
		{dns.TypeSOA, "", "SOA ns.dns.cluster.local. hostmaster.cluster.local. 1 7200 1800 86400 5"},
		{dns.TypeNS, "", "NS ns.dns.cluster.local."},
		{dns.TypeA, "ns.dns", "A 10.96.0.10"},
		{dns.TypeA, "dns", none},
		{dns.TypeA, "x.dns", nx},
		{dns.TypeTXT, "dns-version", `TXT "1.1.0"`},
		{dns.TypeA, "dns-version", none},
		{dns.TypeA, "10-244-0-77.shop.pod", "A 10.244.0.77"},
		{dns.TypeAAAA, "fd00--77.shop.pod", "AAAA fd00::77"},
		{dns.TypeA, "10-244-0-77.other.pod", nx},
		{dns.TypeA, "nobody.shop.pod", nx},
		{dns.TypeA, "a.10-244-0-77.shop.pod", nx},
		{dns.TypeA, "web.shop", nx},
		{dns.TypeA, "web.shop.svc.x", nx},
	} {
		t.Run(dns.TypeToString[tt.qtype]+" "+tt.name, func(t *testing.T) {
			name := "cluster.local."
			if tt.name != "" {
				name = tt.name + "." + name
			}
			m := s.answer(t.Context(), loopback, new(dns.Msg).SetQuestion(name, tt.qtype))
			got := said(m.Answer)
			switch {
			case m.Rcode == dns.RcodeNameError:
				got = nx
			case m.Rcode != dns.RcodeSuccess:
				got = dns.RcodeToString[m.Rcode]
			case got == "":
				got = none
			}
			if got != tt.want {
				t.Errorf("%s, want %s", got, tt.want)
			}
			if negative := got == nx || got == none; negative != (len(m.Ns) == 1) {
				t.Errorf("authority section: %v", m.Ns)
			}
			if !m.Authoritative {
				t.Error("not authoritative")
			}
		})
	}
}

func TestSRVRecordsBringTheAddresses(t *testing.T) {
	s := &Server{Zone: zoneOf(t, cluster()...)}
	m := s.answer(t.Context(), loopback, new(dns.Msg).SetQuestion("_sql._tcp.db.shop.svc.cluster.local.", dns.TypeSRV))
	if got := said(m.Extra); got != "A 10.244.0.5, A 10.244.0.6, AAAA fd00::5" {
		t.Error(got)
	}
}

func TestACircleOfAliasesEnds(t *testing.T) {
	s := &Server{Zone: zoneOf(t, cluster()...)}
	m := s.answer(t.Context(), loopback, new(dns.Msg).SetQuestion("loop.shop.svc.cluster.local.", dns.TypeA))
	if len(m.Answer) == 0 || len(m.Answer) > maxCNAMEs+1 {
		t.Errorf("%d records", len(m.Answer))
	}
}

func TestNamesOfAddresses(t *testing.T) {
	s := &Server{Zone: zoneOf(t, cluster()...)}
	for address, want := range map[string]string{
		"10.96.0.20":  "PTR web.shop.svc.cluster.local.",
		"fd00:96::30": "PTR both.shop.svc.cluster.local.",
		"10.244.0.5":  "PTR db-0.db.shop.svc.cluster.local.",
		"10.244.0.6":  "PTR 10-244-0-6.db.shop.svc.cluster.local.",
		"fd00::5":     "PTR db-0.db.shop.svc.cluster.local.",
		"192.0.2.1":   "REFUSED", // nobody to forward it to
	} {
		name, err := dns.ReverseAddr(address)
		if err != nil {
			t.Fatal(err)
		}
		m := s.answer(t.Context(), loopback, new(dns.Msg).SetQuestion(name, dns.TypePTR))
		got := said(m.Answer)
		if m.Rcode != dns.RcodeSuccess {
			got = dns.RcodeToString[m.Rcode]
		}
		if got != want {
			t.Errorf("%s: %s, want %s", address, got, want)
		}
	}
}

// A client that is told NXDOMAIN while the server starts believes it.
func TestNothingIsDeniedBeforeTheRecordsAreComplete(t *testing.T) {
	f := informers.NewSharedInformerFactory(fake.NewClientset(cluster()...), 0)
	records, err := NewRecords(f)
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{Zone: NewZone("cluster.local.", nil, records)}
	for name, qtype := range map[string]uint16{"web.shop.svc.cluster.local.": dns.TypeA, "20.0.96.10.in-addr.arpa.": dns.TypePTR} {
		if m := s.answer(t.Context(), loopback, new(dns.Msg).SetQuestion(name, qtype)); m.Rcode != dns.RcodeServerFailure {
			t.Errorf("%s: %s", name, dns.RcodeToString[m.Rcode])
		}
	}
}

func TestDashedAddresses(t *testing.T) {
	for _, s := range []string{"10.0.0.1", "fd00::1", "::1", "fe80::", "::", "2001:db8::8:800:200c:417a"} {
		a := netip.MustParseAddr(s)
		label := dashed(a)
		if strings.HasPrefix(label, "-") || strings.HasSuffix(label, "-") {
			t.Errorf("%s: %q", s, label)
		}
		if got, ok := undashed(label); !ok || got != a {
			t.Errorf("%s: %q is %v", s, label, got)
		}
	}
}

func FuzzAnswer(f *testing.F) {
	zone := zoneOf(f, cluster()...)
	s := &Server{Zone: zone}
	for _, name := range []string{"web.shop.svc.cluster.local.", "5.0.244.10.in-addr.arpa.", ".", "_a._b.c.d.svc.cluster.local."} {
		wire, err := new(dns.Msg).SetQuestion(name, dns.TypeSRV).Pack()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(wire)
	}
	f.Fuzz(func(t *testing.T, wire []byte) {
		var q dns.Msg
		if q.Unpack(wire) != nil || len(q.Question) != 1 {
			return // the library answers those
		}
		m := s.answer(t.Context(), loopback, &q)
		fit(m, &q, true)
		if m.Len() > maxUDP {
			t.Errorf("%d bytes", m.Len())
		}
		if _, err := m.Pack(); err != nil && q.Rcode <= 0xF {
			t.Errorf("%v: %v", err, fmt.Sprint(&q))
		}
	})
}

func BenchmarkAnswer(b *testing.B) {
	s := &Server{Zone: zoneOf(b, cluster()...)}
	q := new(dns.Msg).SetQuestion("web.shop.svc.cluster.local.", dns.TypeA)
	b.ReportAllocs()
	for b.Loop() {
		s.answer(b.Context(), loopback, q)
	}
}
