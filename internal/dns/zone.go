package dns

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/miekg/dns"
	v1 "k8s.io/api/core/v1"
)

const (
	// ttl is how long a client may keep an answer about the cluster, or that there is none, in seconds
	// (CoreDNS's default): endpoints come and go.
	ttl = 5
	// version is that of the specification, which dns-version.DOMAIN tells.
	version = "1.1.0"
)

// Zone answers for the cluster's domain and for the addresses of services and endpoints.
type Zone struct {
	domain  string // cluster.local.
	own     []netip.Addr
	records *Records
}

// NewZone returns the zone of a domain such as cluster.local. own are the addresses of the DNS service
// itself, the zone's name server.
func NewZone(domain string, own []netip.Addr, records *Records) *Zone {
	return &Zone{domain: dns.CanonicalName(domain), own: own, records: records}
}

// answer is what is known about a name.
type answer struct {
	records []dns.RR // of the type that was asked for
	extra   []dns.RR // addresses of what the records name
	exists  bool     // whether the name has records of any type, or names below it
	target  string   // of a CNAME, which the server has to look up
}

// has reports whether the zone speaks for a name.
func (z *Zone) has(name string) bool { return dns.IsSubDomain(z.domain, name) }

// answer looks up a name, in lower case and fully qualified, below the domain.
func (z *Zone) answer(name string, qtype uint16) answer {
	labels := dns.SplitDomainName(strings.TrimSuffix(name, z.domain))
	slices.Reverse(labels)
	switch {
	case len(labels) == 0:
		return z.apex(qtype)
	case labels[0] == "dns-version" && len(labels) == 1:
		return ifAsked(qtype, dns.TypeTXT, &dns.TXT{Hdr: header(name, dns.TypeTXT), Txt: []string{version}})
	case labels[0] == "dns":
		return z.nameServer(name, labels, qtype)
	case labels[0] == "svc" && len(labels) >= 3:
		return z.service(name, labels[1:], qtype)
	case labels[0] == "pod" && len(labels) == 3:
		return z.pod(name, labels[1], labels[2], qtype)
	case (labels[0] == "svc" || labels[0] == "pod") && len(labels) <= 2:
		return answer{exists: len(labels) == 1 || z.records.namespaceExists(labels[1])}
	}
	return answer{}
}

func (z *Zone) apex(qtype uint16) answer {
	out := answer{exists: true}
	switch qtype {
	case dns.TypeSOA:
		out.records = []dns.RR{z.soa()}
	case dns.TypeNS:
		ns := "ns.dns." + z.domain
		out.records = []dns.RR{&dns.NS{Hdr: header(z.domain, dns.TypeNS), Ns: ns}}
		out.extra = addressRecords(ns, z.own, dns.TypeANY)
	}
	return out
}

// soa is the record that goes with every answer that has no other: it says how long that holds.
func (z *Zone) soa() dns.RR {
	return &dns.SOA{
		Hdr: header(z.domain, dns.TypeSOA), Ns: "ns.dns." + z.domain, Mbox: "hostmaster." + z.domain,
		Serial: 1, Refresh: 7200, Retry: 1800, Expire: 86400, Minttl: ttl,
	}
}

// nameServer answers for ns.dns, the host of the zone's NS record.
func (z *Zone) nameServer(name string, labels []string, qtype uint16) answer {
	switch {
	case len(labels) == 1:
		return answer{exists: true}
	case len(labels) == 2 && labels[1] == "ns":
		return answer{exists: true, records: addressRecords(name, z.own, qtype)}
	}
	return answer{}
}

// pod answers for A-B-C-D.NAMESPACE.pod, which exists for every address, as CoreDNS's "pods insecure"
// has it.
func (z *Zone) pod(name, namespace, label string, qtype uint16) answer {
	a, ok := undashed(label)
	if !ok || !z.records.namespaceExists(namespace) {
		return answer{}
	}
	return answer{exists: true, records: addressRecords(name, []netip.Addr{a}, qtype)}
}

// service answers for what is below svc; labels are NAMESPACE, SERVICE and possibly _PROTOCOL, _PORT
// or the hostname of an endpoint.
func (z *Zone) service(name string, labels []string, qtype uint16) answer {
	s := z.records.service(labels[0], labels[1])
	if s == nil {
		return answer{}
	}
	rest := labels[2:]
	switch {
	case s.Spec.Type == v1.ServiceTypeExternalName:
		if len(rest) > 0 || s.Spec.ExternalName == "" {
			return answer{}
		}
		return external(name, s.Spec.ExternalName, qtype)
	case len(rest) == 0:
		return z.members(name, z.backends(s), qtype)
	case strings.HasPrefix(rest[0], "_") && len(rest) <= 2:
		return z.ports(name, s, rest, qtype)
	case len(rest) == 1:
		named := keep(z.endpoints(s), func(e endpoint) bool { return e.hostname == rest[0] })
		return z.members(name, targetsOf(named, z.nameOf(s)), qtype)
	}
	return answer{}
}

// ports answers for _PORT._PROTOCOL.SERVICE, and for _PROTOCOL.SERVICE, which has only names below it.
func (z *Zone) ports(name string, s *v1.Service, rest []string, qtype uint16) answer {
	protocol := strings.TrimPrefix(rest[0], "_")
	all := keep(z.backends(s), func(t target) bool { return t.port > 0 && t.protocol == protocol })
	if len(rest) == 1 {
		return answer{exists: len(all) > 0}
	}
	port, ok := strings.CutPrefix(rest[1], "_")
	if !ok {
		return answer{}
	}
	return z.members(name, keep(all, func(t target) bool { return t.portName == port }), qtype)
}

// target is what a service's records lead to: one of its own addresses, or an endpoint.
type target struct {
	endpoint
	name string
}

func (z *Zone) nameOf(s *v1.Service) string { return s.Name + "." + s.Namespace + ".svc." + z.domain }

// backends returns a service's own addresses or, if it has none, its endpoints; once for each port.
func (z *Zone) backends(s *v1.Service) []target {
	if headless(s) {
		return targetsOf(z.endpoints(s), z.nameOf(s))
	}
	var out []target
	for _, text := range s.Spec.ClusterIPs {
		a, err := netip.ParseAddr(text)
		if err != nil {
			continue
		}
		t := target{name: z.nameOf(s), endpoint: endpoint{addr: a.Unmap()}}
		if len(s.Spec.Ports) == 0 {
			out = append(out, t)
		}
		for _, p := range s.Spec.Ports {
			t.port, t.portName, t.protocol = p.Port, p.Name, strings.ToLower(string(p.Protocol))
			out = append(out, t)
		}
	}
	return out
}

func (z *Zone) endpoints(s *v1.Service) []endpoint {
	return endpointsOf(z.records.slicesOf(s.Namespace, s.Name))
}

func targetsOf(all []endpoint, service string) []target {
	out := make([]target, 0, len(all))
	for _, e := range all {
		out = append(out, target{endpoint: e, name: e.hostname + "." + service})
	}
	return out
}

func keep[T any](all []T, want func(T) bool) []T {
	return slices.DeleteFunc(slices.Clone(all), func(t T) bool { return !want(t) })
}

// members answers with the addresses or the SRV records of the targets. Without any the name does not
// exist: a headless service whose pods are not ready is not found.
func (z *Zone) members(name string, all []target, qtype uint16) answer {
	out := answer{exists: len(all) > 0}
	switch qtype {
	case dns.TypeA, dns.TypeAAAA:
		out.records = addressRecords(name, addressesOf(all), qtype)
	case dns.TypeSRV:
		out.records, out.extra = serviceRecords(name, all)
	}
	return out
}

func addressesOf(all []target) []netip.Addr {
	var out []netip.Addr
	seen := make(map[netip.Addr]bool, len(all))
	for _, t := range all {
		if !seen[t.addr] {
			seen[t.addr] = true
			out = append(out, t.addr)
		}
	}
	return out
}

// serviceRecords returns an SRV record for each port of each name, and the addresses of the names.
func serviceRecords(name string, all []target) (records, extra []dns.RR) {
	type key struct {
		name string
		port int32
	}
	seen, shown := map[key]bool{}, map[string]bool{}
	for _, t := range all {
		if t.port == 0 {
			continue
		}
		if k := (key{t.name, t.port}); !seen[k] {
			seen[k] = true
			records = append(records, &dns.SRV{Hdr: header(name, dns.TypeSRV), Port: uint16(t.port), Target: t.name})
		}
		if at := t.name + t.addr.String(); !shown[at] {
			shown[at] = true
			extra = append(extra, addressRecords(t.name, []netip.Addr{t.addr}, dns.TypeANY)...)
		}
	}
	for _, r := range records {
		r.(*dns.SRV).Weight = uint16(max(1, 100/len(records)))
	}
	return records, extra
}

func external(name, to string, qtype uint16) answer {
	to = dns.CanonicalName(to)
	out := answer{exists: true}
	switch qtype {
	case dns.TypeA, dns.TypeAAAA, dns.TypeCNAME:
		out.records = []dns.RR{&dns.CNAME{Hdr: header(name, dns.TypeCNAME), Target: to}}
	}
	if qtype != dns.TypeCNAME && len(out.records) > 0 {
		out.target = to
	}
	return out
}

// reverse returns the names that an address of the cluster has; ok is whether it has any.
func (z *Zone) reverse(name string) (records []dns.RR, ok bool) {
	a, ok := reverseAddr(name)
	if !ok {
		return nil, false
	}
	seen := map[string]bool{}
	add := func(to string) {
		if !seen[to] {
			seen[to] = true
			records = append(records, &dns.PTR{Hdr: header(name, dns.TypePTR), Ptr: to})
		}
	}
	for _, s := range z.records.servicesAt(a) {
		add(z.nameOf(s))
	}
	if len(records) > 0 {
		return records, true
	}
	for _, s := range z.records.slicesAt(a) {
		for key, i := "", 0; i < len(s.Endpoints); i++ {
			if key == "" {
				names, err := serviceOfSlice(s)
				if err != nil || len(names) == 0 {
					break
				}
				namespace, service, _ := strings.Cut(names[0], "/")
				key = service + "." + namespace + ".svc." + z.domain
			}
			e := &s.Endpoints[i]
			if slices.Contains(canonical(e.Addresses), a.String()) {
				add(hostnameOf(e, a) + "." + key)
			}
		}
	}
	slices.SortFunc(records, func(x, y dns.RR) int { return strings.Compare(x.(*dns.PTR).Ptr, y.(*dns.PTR).Ptr) })
	return records, len(records) > 0
}

// reverseAddr returns the address that a name below in-addr.arpa or ip6.arpa stands for.
func reverseAddr(name string) (netip.Addr, bool) {
	if rest, ok := strings.CutSuffix(name, ".in-addr.arpa."); ok {
		labels := strings.Split(rest, ".")
		slices.Reverse(labels)
		a, err := netip.ParseAddr(strings.Join(labels, "."))
		return a, err == nil && a.Is4()
	}
	rest, ok := strings.CutSuffix(name, ".ip6.arpa.")
	nibbles := strings.Split(rest, ".")
	if !ok || len(nibbles) != 32 {
		return netip.Addr{}, false
	}
	slices.Reverse(nibbles)
	var b strings.Builder
	for i, n := range nibbles {
		if len(n) != 1 {
			return netip.Addr{}, false
		}
		if i > 0 && i%4 == 0 {
			b.WriteByte(':')
		}
		b.WriteString(n)
	}
	a, err := netip.ParseAddr(b.String())
	return a.Unmap(), err == nil
}

func header(name string, rrtype uint16) dns.RR_Header {
	return dns.RR_Header{Name: name, Rrtype: rrtype, Class: dns.ClassINET, Ttl: ttl}
}

func ifAsked(asked, has uint16, rr dns.RR) answer {
	if asked != has {
		return answer{exists: true}
	}
	return answer{exists: true, records: []dns.RR{rr}}
}

// addressRecords returns A and AAAA records; qtype is the type that is wanted, ANY for both.
func addressRecords(name string, all []netip.Addr, qtype uint16) []dns.RR {
	var out []dns.RR
	for _, a := range all {
		switch {
		case a.Is4() && (qtype == dns.TypeA || qtype == dns.TypeANY):
			out = append(out, &dns.A{Hdr: header(name, dns.TypeA), A: a.AsSlice()})
		case a.Is6() && (qtype == dns.TypeAAAA || qtype == dns.TypeANY):
			out = append(out, &dns.AAAA{Hdr: header(name, dns.TypeAAAA), AAAA: a.AsSlice()})
		}
	}
	return out
}

// String names the zone in logs.
func (z *Zone) String() string { return fmt.Sprintf("zone %s", z.domain) }
