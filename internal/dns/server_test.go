package dns

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"wherry.dev/test/leaks"
	"wherry.dev/test/panics"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var loopback = netip.MustParseAddr("127.0.0.1")

// serve runs a server on a free port of an address, and returns where.
func serve(t testing.TB, s *Server, at netip.Addr) string {
	t.Helper()
	if s.Allowed == nil {
		s.Allowed = func(netip.Addr) bool { return true }
	}
	ctx, cancel := context.WithCancel(t.Context())
	port, err := s.Listen(ctx, at, 0)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return netip.AddrPortFrom(at, port).String()
}

func ask(t testing.TB, network, at string, q *dns.Msg) *dns.Msg {
	t.Helper()
	c := dns.Client{Net: network, Timeout: 10 * time.Second, UDPSize: dns.MaxMsgSize}
	m, _, err := c.ExchangeContext(t.Context(), q, at)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestOverUDPAndTCP(t *testing.T) {
	at := serve(t, &Server{Zone: zoneOf(t, cluster()...)}, loopback)
	for _, network := range []string{"udp", "tcp"} {
		m := ask(t, network, at, new(dns.Msg).SetQuestion("wEb.shop.svc.Cluster.local.", dns.TypeA))
		if got := said(m.Answer); got != "A 10.96.0.20" {
			t.Errorf("%s: %s", network, got)
		}
		if got := m.Answer[0].Header().Name; got != "wEb.shop.svc.Cluster.local." {
			t.Errorf("%s: the name came back as %s", network, got)
		}
	}
}

func TestAnswersThatDoNotFitAreCut(t *testing.T) {
	var all []discoveryv1.Endpoint
	for i := range 200 {
		all = append(all, ready(true, fmt.Sprintf("pod-%d", i), fmt.Sprintf("10.244.1.%d", i+1)))
	}
	objs := append(cluster(), service("many", noIP), slice("many-1", "many", discoveryv1.AddressTypeIPv4, port("http", 80), all...))
	at := serve(t, &Server{Zone: zoneOf(t, objs...)}, loopback)
	for size, most := range map[uint16]int{0: dns.MinMsgSize, 100: dns.MinMsgSize, 1000: 1000, 4096: maxUDP} {
		q := new(dns.Msg).SetQuestion("many.shop.svc.cluster.local.", dns.TypeA)
		if size > 0 {
			q.SetEdns0(size, true)
		}
		m := ask(t, "udp", at, q)
		m.Compress = true
		if !m.Truncated || m.Len() > most || len(m.Answer) == 0 {
			t.Errorf("size %d: truncated %v, %d bytes, %d records", size, m.Truncated, m.Len(), len(m.Answer))
		}
		if opt := m.IsEdns0(); (opt != nil) != (size > 0) || opt != nil && (!opt.Do() || opt.UDPSize() != maxUDP) {
			t.Errorf("size %d: OPT %v", size, opt)
		}
	}
	if m := ask(t, "tcp", at, new(dns.Msg).SetQuestion("many.shop.svc.cluster.local.", dns.TypeA)); m.Truncated || len(m.Answer) != 200 {
		t.Errorf("over TCP: truncated %v, %d records", m.Truncated, len(m.Answer))
	}
}

func TestQuestionsThatAreNone(t *testing.T) {
	at := serve(t, &Server{Zone: zoneOf(t, cluster()...)}, loopback)
	name := "web.shop.svc.cluster.local."
	chaos := new(dns.Msg).SetQuestion("version.bind.", dns.TypeTXT)
	chaos.Question[0].Qclass = dns.ClassCHAOS
	update := new(dns.Msg).SetUpdate(name)
	newer := new(dns.Msg).SetQuestion(name, dns.TypeA).SetEdns0(4096, false)
	newer.IsEdns0().SetVersion(1)
	none := new(dns.Msg).SetQuestion(name, dns.TypeA)
	none.Question = nil
	two := new(dns.Msg).SetQuestion(name, dns.TypeA)
	two.Question = append(two.Question, two.Question[0])
	for what, tt := range map[string]struct {
		q    *dns.Msg
		want int
	}{
		"chaos":       {chaos, dns.RcodeRefused},
		"transfer":    {new(dns.Msg).SetQuestion("cluster.local.", dns.TypeIXFR), dns.RcodeRefused},
		"update":      {update, dns.RcodeNotImplemented},
		"notify":      {new(dns.Msg).SetNotify("cluster.local."), dns.RcodeNotImplemented},
		"EDNS 1":      {newer, dns.RcodeBadVers},
		"no question": {none, dns.RcodeFormatError},
		"two":         {two, dns.RcodeFormatError},
		"somebody's":  {new(dns.Msg).SetQuestion("example.com.", dns.TypeA), dns.RcodeRefused},
		"no recursion": {func() *dns.Msg {
			q := new(dns.Msg).SetQuestion("example.com.", dns.TypeA)
			q.RecursionDesired = false
			return q
		}(), dns.RcodeRefused},
	} {
		if m := ask(t, "udp", at, tt.q); m.Rcode != tt.want {
			t.Errorf("%s: %s", what, dns.RcodeToString[m.Rcode])
		}
	}
	raw(t, at, []byte("\x00\x01\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\xff\xff\xff"), dns.RcodeFormatError)
	if m := ask(t, "udp", at, new(dns.Msg).SetQuestion(name, dns.TypeA)); m.Rcode != dns.RcodeSuccess {
		t.Error("does not answer any more")
	}
}

// raw sends bytes, and wants an answer with a code.
func raw(t *testing.T, at string, wire []byte, rcode int) {
	t.Helper()
	c, err := new(net.Dialer).DialContext(t.Context(), "udp", at)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if _, err := c.Write(wire); err != nil {
		t.Fatal(err)
	}
	_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
	buf := make([]byte, 512)
	n, err := c.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	if n < 4 || int(buf[3]&0xf) != rcode {
		t.Errorf("answer %x", buf[:n])
	}
}

// Strangers get no answer, not even that they may not ask, and take part in nothing.
func TestStrangersHearNothing(t *testing.T) {
	var stranger atomic.Bool
	s := &Server{Zone: zoneOf(t, cluster()...), Allowed: func(netip.Addr) bool { return !stranger.Load() }}
	at := serve(t, s, loopback)
	q := new(dns.Msg).SetQuestion("web.shop.svc.cluster.local.", dns.TypeA)
	stranger.Store(true)
	c := dns.Client{Timeout: 300 * time.Millisecond}
	if m, _, err := c.ExchangeContext(t.Context(), q, at); err == nil {
		t.Errorf("a stranger was told %v", m)
	}
	c.Net = "tcp"
	if m, _, err := c.ExchangeContext(t.Context(), q, at); err == nil {
		t.Errorf("a stranger was told %v", m)
	}
	stranger.Store(false)
	if got := said(ask(t, "udp", at, q).Answer); got != "A 10.96.0.20" {
		t.Error(got)
	}
}

// others is a resolver of the world outside.
type others struct {
	asked  atomic.Int32
	answer func(m *dns.Msg)
}

func (o *others) run(t testing.TB, at netip.Addr) string {
	t.Helper()
	l, pc, err := listen(t.Context(), at, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []*dns.Server{{PacketConn: pc}, {Listener: l}} {
		s.Handler = dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
			o.asked.Add(1)
			m := new(dns.Msg).SetReply(q)
			o.answer(m)
			if _, udp := w.RemoteAddr().(*net.UDPAddr); udp {
				m.Truncate(dns.MinMsgSize)
			}
			_ = w.WriteMsg(m)
		})
		started, done := make(chan struct{}), make(chan error, 1)
		s.NotifyStartedFunc = func() { close(started) }
		go func() { done <- s.ActivateAndServe() }()
		<-started
		t.Cleanup(func() {
			if err := s.Shutdown(); err != nil {
				t.Error(err)
			}
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
	return pc.LocalAddr().String()
}

func says(records ...string) func(*dns.Msg) {
	return func(m *dns.Msg) {
		for _, r := range records {
			rr, err := dns.NewRR(r)
			if err != nil {
				panic(err)
			}
			m.Answer = append(m.Answer, rr)
		}
	}
}

func resolver(t testing.TB, s string) netip.AddrPort {
	t.Helper()
	a, err := netip.ParseAddrPort(s)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestOtherNamesAreForwardedAndKept(t *testing.T) {
	o := &others{answer: says("example.com. 300 IN A 192.0.2.7")}
	f := NewForwarder(ForwarderConfig{Resolvers: []netip.AddrPort{resolver(t, o.run(t, loopback))}})
	at := serve(t, &Server{Zone: zoneOf(t, cluster()...), Forwarder: f}, loopback)
	for range 3 {
		m := ask(t, "udp", at, new(dns.Msg).SetQuestion("Example.com.", dns.TypeA))
		if got := said(m.Answer); got != "A 192.0.2.7" || m.Authoritative || !m.RecursionAvailable {
			t.Errorf("%s: %v", got, m)
		}
		if ttl := m.Answer[0].Header().Ttl; ttl > 30 && o.asked.Load() > 1 {
			t.Errorf("kept for %d s", ttl)
		}
	}
	if n := o.asked.Load(); n != 1 {
		t.Errorf("asked %d times", n)
	}
	// an external name is looked up along with the service's
	m := ask(t, "udp", at, new(dns.Msg).SetQuestion("away.shop.svc.cluster.local.", dns.TypeA))
	if got := said(m.Answer); got != "A 192.0.2.7, CNAME example.com." {
		t.Error(got)
	}
}

func TestALongAnswerIsFetchedOverTCP(t *testing.T) {
	var records []string
	for i := range 100 {
		records = append(records, fmt.Sprintf("big.example. 60 IN A 192.0.2.%d", i+1))
	}
	o := &others{answer: says(records...)}
	f := NewForwarder(ForwarderConfig{Resolvers: []netip.AddrPort{resolver(t, o.run(t, loopback))}})
	at := serve(t, &Server{Zone: zoneOf(t, cluster()...), Forwarder: f}, loopback)
	if m := ask(t, "tcp", at, new(dns.Msg).SetQuestion("big.example.", dns.TypeA)); len(m.Answer) != 100 {
		t.Errorf("%d records", len(m.Answer))
	}
}

func TestStubDomainsHaveTheirOwnResolvers(t *testing.T) {
	node, stub, deep := &others{answer: says("a.example. 60 IN TXT node")}, &others{answer: says("a.corp. 60 IN TXT stub")}, &others{answer: says("a.lab.corp. 60 IN TXT deep")}
	f := NewForwarder(ForwarderConfig{
		Resolvers: []netip.AddrPort{resolver(t, node.run(t, loopback))},
		Stubs:     map[string][]netip.AddrPort{"corp": {resolver(t, stub.run(t, loopback))}, "lab.corp": {resolver(t, deep.run(t, loopback))}},
	})
	at := serve(t, &Server{Zone: zoneOf(t, cluster()...), Forwarder: f}, loopback)
	for name, want := range map[string]string{"a.example.": "node", "a.corp.": "stub", "a.lab.corp.": "deep", "a.xcorp.": "node"} {
		m := ask(t, "udp", at, new(dns.Msg).SetQuestion(name, dns.TypeTXT))
		if got := said(m.Answer); !strings.Contains(got, want) {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}

func TestTheNextResolverAnswersForOneThatFails(t *testing.T) {
	bad := &others{answer: func(m *dns.Msg) { m.Rcode = dns.RcodeServerFailure }}
	good := &others{answer: says("a.example. 60 IN A 192.0.2.1")}
	closed, err := new(net.ListenConfig).ListenPacket(t.Context(), "udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone := closed.LocalAddr().String()
	_ = closed.Close()
	f := NewForwarder(ForwarderConfig{Resolvers: []netip.AddrPort{resolver(t, gone), resolver(t, bad.run(t, loopback)), resolver(t, good.run(t, loopback))}})
	at := serve(t, &Server{Zone: zoneOf(t, cluster()...), Forwarder: f}, loopback)
	if got := said(ask(t, "udp", at, new(dns.Msg).SetQuestion("a.example.", dns.TypeA)).Answer); got != "A 192.0.2.1" {
		t.Error(got)
	}
	to, err := f.resolvers("b.example.")
	if err != nil || to[len(to)-1].String() != gone {
		t.Errorf("%v, %v: one that does not answer comes last", to, err)
	}
	good.answer = func(m *dns.Msg) { m.Rcode = dns.RcodeServerFailure }
	if m := ask(t, "udp", at, new(dns.Msg).SetQuestion("c.example.", dns.TypeA)); m.Rcode != dns.RcodeServerFailure {
		t.Error(dns.RcodeToString[m.Rcode])
	}
}

func TestTheNodesResolversMayChange(t *testing.T) {
	first, second := &others{answer: says("a.example. 0 IN TXT first")}, &others{answer: says("a.example. 0 IN TXT second")}
	one, two := resolver(t, first.run(t, netip.MustParseAddr("127.0.0.2"))), resolver(t, second.run(t, netip.MustParseAddr("127.0.0.3")))
	file := filepath.Join(t.TempDir(), "resolv.conf")
	f := NewForwarder(ForwarderConfig{ResolvConf: file, Self: func(a netip.AddrPort) bool { return a.Addr() == loopback }})
	if _, err := f.ofNode(); err == nil {
		t.Error("no error without a file")
	}
	write := func(lines string) {
		if err := os.WriteFile(file+".new", []byte(lines), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		lines string
		want  netip.Addr
	}{
		{"nameserver 127.0.0.1\nnameserver 127.0.0.2\n", one.Addr()},
		{"nameserver 127.0.0.3\n", two.Addr()},
	} {
		write(tt.lines)
		to, err := f.ofNode()
		if err != nil || len(to) != 1 || to[0] != netip.AddrPortFrom(tt.want, 53) {
			t.Errorf("%v, %v", to, err)
		}
	}
	write("nameserver 127.0.0.1\n") // only ourselves
	if to, err := f.ofNode(); err == nil {
		t.Errorf("asks %v", to)
	}
}

func TestWhatIsKeptGrowsOldAndMakesRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newAnswers()
		key := func(i int) cacheKey { return cacheKey{name: fmt.Sprintf("%d.example.", i), qtype: dns.TypeA} }
		m := new(dns.Msg).SetQuestion("1.example.", dns.TypeA)
		says("1.example. 20 IN A 192.0.2.1")(m)
		c.put(key(1), m, time.Now())
		time.Sleep(15 * time.Second)
		if got := c.get(key(1), time.Now()); got == nil || got.Answer[0].Header().Ttl != 5 {
			t.Errorf("after 15 s: %v", got)
		}
		time.Sleep(5 * time.Second)
		if got := c.get(key(1), time.Now()); got != nil {
			t.Errorf("after 20 s: %v", got)
		}
		for i := range cacheSize + 5 {
			c.put(key(i), m, time.Now())
		}
		if len(c.items) != cacheSize || c.order.Len() != cacheSize {
			t.Errorf("%d items, %d in order", len(c.items), c.order.Len())
		}
		if c.get(key(0), time.Now()) != nil || c.get(key(cacheSize+4), time.Now()) == nil {
			t.Error("not the oldest one went")
		}
	})
}

func TestHowLongAnswersAreKept(t *testing.T) {
	soa := "example. 600 IN SOA ns.example. a.example. 1 2 3 4 11"
	for name, tt := range map[string]struct {
		rcode      int
		answer, ns []string
		truncated  bool
		want       time.Duration
	}{
		"an answer":            {answer: []string{"a.example. 7 IN A 192.0.2.1", "a.example. 9 IN A 192.0.2.2"}, want: 7 * time.Second},
		"a long-lived one":     {answer: []string{"a.example. 7000 IN A 192.0.2.1"}, want: maxTTL},
		"for no time":          {answer: []string{"a.example. 0 IN A 192.0.2.1"}},
		"nothing of the type":  {ns: []string{soa}, want: 11 * time.Second},
		"no such name":         {rcode: dns.RcodeNameError, ns: []string{soa}, want: 11 * time.Second},
		"none, without an SOA": {rcode: dns.RcodeNameError},
		"a failure":            {rcode: dns.RcodeServerFailure, ns: []string{soa}},
		"a part":               {answer: []string{"a.example. 7 IN A 192.0.2.1"}, truncated: true},
	} {
		m := new(dns.Msg)
		says(tt.answer...)(m)
		answer := m.Answer
		m.Answer = nil
		says(tt.ns...)(m)
		m.Ns, m.Answer, m.Rcode, m.Truncated = m.Answer, answer, tt.rcode, tt.truncated
		if got, ok := lifeOf(m); got != tt.want || ok != (tt.want > 0) {
			t.Errorf("%s: %s", name, got)
		}
	}
}

func TestMain(m *testing.M) { os.Exit(leaks.Watch(panics.Watch(m)).Run()) }

func TestRecordsFollowTheCluster(t *testing.T) {
	z := zoneOf(t, &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}})
	s := &Server{Zone: z}
	q := new(dns.Msg).SetQuestion("web.shop.svc.cluster.local.", dns.TypeA)
	if m := s.answer(t.Context(), loopback, q); m.Rcode != dns.RcodeNameError {
		t.Fatal(m)
	}
	if err := z.records.services.Add(service("web", nil)); err != nil {
		t.Fatal(err)
	}
	if got := said(s.answer(t.Context(), loopback, q).Answer); got != "A 10.96.0.20" {
		t.Error(got)
	}
}

func BenchmarkQuestions(b *testing.B) {
	at := serve(b, &Server{Zone: zoneOf(b, cluster()...)}, loopback)
	b.RunParallel(func(pb *testing.PB) {
		c, err := dns.Dial("udp", at)
		if err != nil {
			b.Error(err)
			return
		}
		defer func() { _ = c.Close() }()
		q := new(dns.Msg).SetQuestion("web.shop.svc.cluster.local.", dns.TypeA)
		for pb.Next() {
			if err := c.WriteMsg(q); err != nil {
				b.Error(err)
				return
			}
			if _, err := c.ReadMsg(); err != nil {
				b.Error(err)
				return
			}
		}
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "questions/s")
}
