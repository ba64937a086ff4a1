package dns

import (
	"net"
	"strings"
	"time"

	"github.com/miekg/dns"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

// Metrics have CoreDNS's names, which dashboards for Kubernetes know.
var (
	requests = counter("dns", "requests_total", "Counter of DNS requests made per protocol, family and type.", "proto", "family", "type")
	replies  = counter("dns", "responses_total", "Counter of response status codes.", "rcode")
	seconds  = metrics.NewHistogram(&metrics.HistogramOpts{
		Namespace: "coredns", Subsystem: "dns", Name: "request_duration_seconds", Help: "Histogram of the time (in seconds) each request took.",
		Buckets: metrics.ExponentialBuckets(0.00025, 2, 16), StabilityLevel: metrics.ALPHA,
	})
	cacheHits   = counter("cache", "hits_total", "The count of cache hits.").WithLabelValues()
	cacheMisses = counter("cache", "misses_total", "The count of cache misses.").WithLabelValues()
	overruns    = counter("acl", "limited_requests_total", "Counter of DNS requests and connections of clients that have too many already.").WithLabelValues()
	refusals    = counter("acl", "dropped_requests_total", "Counter of DNS requests from clients that may not ask.").WithLabelValues()
)

func counter(subsystem, name, help string, labels ...string) *metrics.CounterVec {
	c := metrics.NewCounterVec(&metrics.CounterOpts{
		Namespace: "coredns", Subsystem: subsystem, Name: name, Help: help, StabilityLevel: metrics.ALPHA,
	}, labels)
	legacyregistry.MustRegister(c)
	return c
}

func init() { legacyregistry.MustRegister(seconds) }

// types are the types of questions that metrics tell apart; a client could make up others at will.
var types = map[uint16]string{
	dns.TypeA: "A", dns.TypeAAAA: "AAAA", dns.TypeSRV: "SRV", dns.TypePTR: "PTR", dns.TypeCNAME: "CNAME",
	dns.TypeTXT: "TXT", dns.TypeMX: "MX", dns.TypeNS: "NS", dns.TypeSOA: "SOA", dns.TypeANY: "ANY", dns.TypeHTTPS: "HTTPS",
}

func observe(q, m *dns.Msg, client net.Addr, took time.Duration) {
	proto, family := "tcp", "2"
	if _, udp := client.(*net.UDPAddr); udp {
		proto = "udp"
	}
	if addrOf(client).Is4() {
		family = "1"
	}
	qtype := "other"
	if len(q.Question) == 1 && types[q.Question[0].Qtype] != "" {
		qtype = types[q.Question[0].Qtype]
	}
	requests.WithLabelValues(proto, family, qtype).Inc()
	replies.WithLabelValues(strings.ToUpper(dns.RcodeToString[m.Rcode])).Inc()
	seconds.Observe(took.Seconds())
}
