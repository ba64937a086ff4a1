package dns

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
)

const webName = "web.shop.svc.cluster.local."

// asksFrom asks for addresses from an address of its own: all of 127/8 is this machine.
func asksFrom(ctx context.Context, ip, network, at, name string) (*dns.Msg, error) {
	d := &net.Dialer{LocalAddr: &net.UDPAddr{IP: net.ParseIP(ip)}}
	if network == "tcp" {
		d.LocalAddr = &net.TCPAddr{IP: net.ParseIP(ip)}
	}
	c := dns.Client{Net: network, Timeout: time.Second, Dialer: d}
	var m *dns.Msg
	var err error
	for range 5 { // as resolvers do: any datagram may be lost
		if m, _, err = c.ExchangeContext(ctx, new(dns.Msg).SetQuestion(name, dns.TypeA), at); err == nil {
			break
		}
	}
	return m, err
}

// packet builds a datagram with a header that counts n questions, and what follows it.
func packet(n uint16, rest string) string {
	b := binary.BigEndian.AppendUint16([]byte{0, 7, 1, 0}, n)
	return string(b) + "\x00\x00\x00\x00\x00\x00" + rest
}

// hostile are datagrams that no client sends.
func hostile() map[string]string {
	const aIN = "\x00\x01\x00\x01"
	q := packet(1, "\x03web\x04shop\x03svc\x07cluster\x05local\x00"+aIN)
	giant := new(dns.Msg).SetQuestion(webName, dns.TypeA).SetEdns0(65535, true)
	giant.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_LOCAL{Code: 65001, Data: make([]byte, 60_000)}}
	wire, err := giant.Pack()
	if err != nil {
		panic(err)
	}
	return map[string]string{
		"nothing":                    "",
		"half a header":              "\x00\x07\x01\x00\x00",
		"a header alone":             packet(0, ""),
		"a question that is missing": packet(1, ""),
		"65,535 questions":           packet(65535, "\x00"+aIN),
		"a name that is itself":      packet(1, "\xc0\x0c"+aIN),
		"names that are each other":  packet(1, "\xc0\x0e\xc0\x0c"+aIN),
		"a name ahead":               packet(1, "\x01a\xc0\xff"+aIN),
		"labels without end":         packet(1, strings.Repeat("\x3f"+strings.Repeat("a", 63), 60)),
		"a label that is too long":   packet(1, "\x7f"+strings.Repeat("a", 127)+"\x00"+aIN),
		"an answer":                  "\x00\x07\x81" + q[3:],
		"a status question":          "\x00\x07\x11" + q[3:],
		"giant EDNS":                 string(wire),
		"two OPT records":            q[:10] + "\x00\x02" + q[12:] + strings.Repeat("\x00\x00\x29\x10\x00\x00\x00\x00\x00\x00\x00", 2),
		"an OPT that lies":           q[:10] + "\x00\x01" + q[12:] + "\x00\x00\x29\x10\x00\x00\x00\x00\x00\xff\xff\x00\x0a",
		"noise":                      strings.Repeat("\xa5\x5a\xff\x00\x80", 200),
	}
}

// What no client sends gets a short answer or none, never one that is larger than the question could have
// asked for, and never one to an answer: two servers would talk to each other for ever.
func TestHostileDatagrams(t *testing.T) {
	at := serve(t, &Server{Zone: zoneOf(t, cluster()...)}, loopback)
	c, err := new(net.Dialer).DialContext(t.Context(), "udp", at)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	buf := make([]byte, 1<<16)
	sent, id := map[uint16]string{}, uint16(0) // what was sent under an ID; answers may overtake each other
	for what, text := range hostile() {
		wire := []byte(text)
		if id++; len(wire) > 1 {
			binary.BigEndian.PutUint16(wire, id)
			sent[id] = what
		}
		if _, err := c.Write(wire); err != nil {
			t.Fatal(what, err)
		}
		// The answer to this one comes after the other's, or instead of it.
		probe := new(dns.Msg).SetQuestion(webName, dns.TypeA)
		probe.Id = 0xbeef
		asked, err := probe.Pack()
		if err != nil {
			t.Fatal(err)
		}
		for {
			if _, err := c.Write(asked); err != nil {
				t.Fatal(what, err)
			}
			_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
			n, err := c.Read(buf)
			if err != nil {
				t.Fatalf("after %s the server is silent: %v", what, err)
			}
			to := binary.BigEndian.Uint16(buf)
			if to == 0xbeef {
				break
			}
			if sent[to] == "an answer" || n > dns.MinMsgSize {
				t.Errorf("%s: %d bytes in answer", sent[to], n)
			}
		}
	}
}

// FuzzQuestions: whatever a datagram asks, the answer fits into what the client takes, and can be sent.
func FuzzQuestions(f *testing.F) {
	for _, wire := range hostile() {
		f.Add([]byte(wire))
	}
	for _, name := range []string{webName, "_http._tcp." + webName, "20.0.96.10.in-addr.arpa.", "10-244-1-1.shop.pod.cluster.local.", "cluster.local.", "."} {
		for _, qtype := range []uint16{dns.TypeA, dns.TypeANY, dns.TypeSRV, dns.TypePTR, dns.TypeSOA, dns.TypeNS, dns.TypeTXT} {
			wire, err := new(dns.Msg).SetQuestion(name, qtype).SetEdns0(4096, true).Pack()
			if err != nil {
				f.Fatal(err)
			}
			f.Add(wire)
		}
	}
	s := &Server{Zone: zoneOf(f, cluster()...)}
	f.Fuzz(func(t *testing.T, wire []byte) {
		q := new(dns.Msg)
		if q.Unpack(wire) != nil {
			return // the library answers it
		}
		m := s.answer(t.Context(), loopback, q)
		fit(m, q, true)
		out, err := m.Pack()
		if err != nil {
			t.Fatalf("%v\nanswer %v", err, m)
		}
		if len(out) > maxUDP {
			t.Errorf("%d bytes", len(out))
		}
	})
}

// silent is a resolver that takes questions and never answers.
func silent(t *testing.T) (at netip.AddrPort, asked *atomic.Int32) {
	t.Helper()
	c, err := new(net.ListenConfig).ListenPacket(t.Context(), "udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	asked = new(atomic.Int32)
	go func() {
		for buf := make([]byte, 512); ; {
			if _, _, err := c.ReadFrom(buf); err != nil {
				return
			}
			asked.Add(1)
		}
	}()
	return resolver(t, c.LocalAddr().String()), asked
}

// A client that asks for names whose resolvers are silent, as often as it can, takes neither all places
// among those who wait nor memory without end; others are answered meanwhile.
func TestOneClientDoesNotTakeAllPlaces(t *testing.T) {
	slow, asked := silent(t)
	good := &others{answer: says("www.good.example. 20 IN A 192.0.2.1")}
	at := serve(t, &Server{Zone: zoneOf(t, cluster()...), Forwarder: NewForwarder(ForwarderConfig{
		Resolvers: []netip.AddrPort{slow}, Stubs: map[string][]netip.AddrPort{"good.example": {resolver(t, good.run(t, loopback))}},
	})}, loopback)
	d := net.Dialer{LocalAddr: &net.UDPAddr{IP: net.IPv4(127, 0, 0, 66)}}
	attacker, err := d.DialContext(t.Context(), "udp", at)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = attacker.Close() }()
	before, start := runtime.NumGoroutine(), time.Now()
	asks := func(n int) {
		for i := range n {
			name := "same.bad.example." // all wait for one answer
			if i%2 == 0 {
				name = fmt.Sprintf("%d.bad.example.", i)
			}
			wire, err := new(dns.Msg).SetQuestion(name, dns.TypeA).Pack()
			if err != nil {
				t.Fatal(err)
			}
			if _, err := attacker.Write(wire); err != nil {
				t.Fatal(err)
			}
		}
	}
	asks(20_000)
	for _, name := range []string{webName, "www.good.example."} {
		for _, network := range []string{"udp", "tcp"} {
			if m, err := asksFrom(t.Context(), "127.0.0.67", network, at, name); err != nil || len(m.Answer) == 0 {
				t.Errorf("%s over %s: %v, %v", name, network, m, err)
			}
		}
	}
	// Each place that the client has stands for one question to the resolver every tryFor.
	if n, most := int(asked.Load()), clientWaits*int(1+time.Since(start)/tryFor); n > most {
		t.Errorf("the resolver was asked %d times, want at most %d", n, most)
	}
	// A question that waits has a goroutine, and may have one that asks, with a socket. The others end as soon
	// as the machine gets to them.
	more := runtime.NumGoroutine() - before
	for range 100 {
		if more <= 4*clientWaits {
			break
		}
		time.Sleep(100 * time.Millisecond)
		more = runtime.NumGoroutine() - before
	}
	if more > 4*clientWaits {
		t.Errorf("%d goroutines more", more)
	}
	asks(10 * clientWaits) // the first ones may have ended meanwhile
	if m, err := asksFrom(t.Context(), "127.0.0.66", "udp", at, "more.bad.example."); err != nil || m.Rcode != dns.RcodeServerFailure {
		t.Errorf("the attacker's next question: %v, %v", m, err)
	}
}

// A client has a number of TCP connections, also if it says nothing on them; others get theirs.
func TestOneClientDoesNotTakeAllConnections(t *testing.T) {
	at := serve(t, &Server{Zone: zoneOf(t, cluster()...)}, loopback)
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 66)}}
	var closed atomic.Int32
	var conns []net.Conn
	for range 3 * clientConns {
		c, err := d.DialContext(t.Context(), "tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Write([]byte{0}); err != nil { // half a length: the kernel hands it over
			closed.Add(1)
		}
		conns = append(conns, c)
	}
	if m, err := asksFrom(t.Context(), "127.0.0.67", "tcp", at, webName); err != nil || len(m.Answer) == 0 {
		t.Errorf("another client: %v, %v", m, err)
	}
	for _, c := range conns {
		_ = c.SetReadDeadline(time.Now().Add(time.Second / 2))
		if _, err := c.Read(make([]byte, 1)); !isTimeout(err) {
			closed.Add(1)
		}
		if closed.Load() == 2*clientConns {
			break
		}
	}
	if n := closed.Load(); n < 2*clientConns {
		t.Errorf("%d of %d connections were closed, want %d", n, len(conns), 2*clientConns)
	}
	for _, c := range conns {
		_ = c.Close()
	}
	for range 100 { // the server has to notice that they are closed
		if m, err := asksFrom(t.Context(), "127.0.0.66", "tcp", at, webName); err == nil && len(m.Answer) == 1 {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Error("the client gets no connection although it has closed all")
}

func isTimeout(err error) bool {
	timeout, ok := errors.AsType[net.Error](err)
	return ok && timeout.Timeout()
}

// Large answers to names of a client's own push each other out, and do not fill the memory.
func TestLargeAnswersMakeRoomForEachOther(t *testing.T) {
	c, large := newAnswers(), new(dns.Msg).SetQuestion("a.example.", dns.TypeTXT)
	for len(large.Answer) < 200 {
		large.Answer = append(large.Answer, &dns.TXT{Hdr: dns.RR_Header{Name: "a.example.", Rrtype: dns.TypeTXT, Class: dns.ClassINET, Ttl: 30}, Txt: []string{strings.Repeat("x", 250)}})
	}
	now := time.Now()
	for i := range 1000 {
		c.put(cacheKey{name: fmt.Sprintf("%d.example.", i)}, large, now)
	}
	if most := cacheBytes / large.Len(); len(c.items) > most || len(c.items) < most-1 || c.bytes > cacheBytes {
		t.Errorf("%d answers of %d bytes are kept, %d bytes in all", len(c.items), large.Len(), c.bytes)
	}
	if c.get(cacheKey{name: "999.example."}, now) == nil {
		t.Error("the last one is not kept")
	}
}
