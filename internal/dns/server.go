package dns

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/klog/v2"

	"wherry.dev/internal/inbound"
)

const (
	// maxUDP is how large an answer over UDP may be, in bytes; larger ones would be fragmented (the
	// value of the DNS flag day 2020).
	maxUDP = 1232
	// deadline is how long a question may take. Most clients ask again after 5 s.
	deadline = 4500 * time.Millisecond
	// idle is after how long a TCP connection is closed on which nothing is asked.
	idle = 8 * time.Second
	// udpBuffer is how many bytes of questions the kernel keeps for us while many come at once.
	udpBuffer = 4 << 20
	// maxCNAMEs is how many CNAMEs are followed for one question.
	maxCNAMEs = 8
)

// Server answers questions over UDP and TCP. Fill in the fields, then call Listen and Run.
type Server struct {
	Zone *Zone
	// Forwarder answers what the zone does not know; nil refuses it.
	Forwarder *Forwarder
	// Allowed reports whether a client may ask. Others get no answer at all.
	Allowed func(netip.Addr) bool

	udp   net.PacketConn
	tcp   net.Listener
	waits *shares
}

// Listen opens the sockets, both on the same port, and returns it. Port 0 stands for any free one.
func (s *Server) Listen(ctx context.Context, ip netip.Addr, port uint16) (uint16, error) {
	tcp, udp, err := listen(ctx, ip, port)
	if err != nil {
		return 0, fmt.Errorf("DNS server: %w", err)
	}
	if u, ok := udp.(*net.UDPConn); ok {
		widen(ctx, u)
	}
	s.waits = newShares(clientWaits, allWaits)
	s.tcp, s.udp = passing{inbound.Bound(tcp), s.Allowed, newShares(clientConns, math.MaxInt)}, only{udp, s.Allowed}
	return tcp.Addr().(*net.TCPAddr).AddrPort().Port(), nil
}

// listen opens one port in both protocols: port, or a free one if port is 0.
func listen(ctx context.Context, ip netip.Addr, port uint16) (net.Listener, net.PacketConn, error) {
	var config net.ListenConfig
	var errs []error
	for range 10 { // a free port of one protocol may be taken in the other
		tcp, err := config.Listen(ctx, "tcp", netip.AddrPortFrom(ip, port).String())
		if err != nil {
			return nil, nil, err
		}
		udp, err := config.ListenPacket(ctx, "udp", tcp.Addr().String())
		if err == nil {
			return tcp, udp, nil
		}
		errs = append(errs, err, tcp.Close())
		if port != 0 {
			break
		}
	}
	return nil, nil, errors.Join(errs...)
}

// widen makes the kernel keep udpBuffer bytes of questions, also where net.core.rmem_max is less, which takes root.
// A smaller buffer does for those who ask in turn.
func widen(ctx context.Context, u *net.UDPConn) {
	raw, err := u.SyscallConn()
	if err == nil {
		var forced error
		err = raw.Control(func(fd uintptr) {
			forced = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, udpBuffer)
		})
		if forced != nil {
			err = u.SetReadBuffer(udpBuffer)
		}
	}
	if err != nil {
		klog.FromContext(ctx).Info("Could not enlarge the buffer of DNS questions", "bytes", udpBuffer, "err", err)
	}
}

// Run answers questions until ctx ends. Listen comes first.
func (s *Server) Run(ctx context.Context) error {
	servers := []*dns.Server{
		{PacketConn: s.udp, UDPSize: dns.DefaultMsgSize},
		{Listener: s.tcp, IdleTimeout: func() time.Duration { return idle }, ReadTimeout: idle, WriteTimeout: idle, MaxTCPQueries: -1},
	}
	g, ctx := errgroup.WithContext(ctx)
	for _, server := range servers {
		server.Handler = dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) { s.serve(ctx, w, q) })
		started := make(chan struct{})
		server.NotifyStartedFunc = func() { close(started) }
		ended := make(chan struct{})
		g.Go(func() error {
			defer close(ended)
			return server.ActivateAndServe()
		})
		g.Go(func() error {
			<-ctx.Done()
			select {
			case <-started: // one that has not started cannot be shut down
				return server.ShutdownContext(context.WithoutCancel(ctx))
			case <-ended:
				return nil
			}
		})
	}
	return g.Wait()
}

// serve answers one message.
func (s *Server) serve(ctx context.Context, w dns.ResponseWriter, q *dns.Msg) {
	defer survive(ctx)
	began := time.Now()
	_, udp := w.RemoteAddr().(*net.UDPAddr)
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	m := s.answer(ctx, addrOf(w.RemoteAddr()), q)
	fit(m, q, udp)
	observe(q, m, w.RemoteAddr(), time.Since(began))
	if err := w.WriteMsg(m); err != nil {
		klog.FromContext(ctx).V(4).Info("Could not send a DNS answer", "client", w.RemoteAddr(), "err", err)
	}
}

// survive keeps a question that makes us panic, which is told as those of other servers are, from ending the
// process: all components of a node are in it.
func survive(ctx context.Context) {
	if r := recover(); r != nil {
		for _, tell := range utilruntime.PanicHandlers {
			tell(ctx, r)
		}
	}
}

// answer returns the answer to a client's message. The library checks what the header counts, which may be
// more than there is.
func (s *Server) answer(ctx context.Context, client netip.Addr, q *dns.Msg) *dns.Msg {
	m := new(dns.Msg)
	m.SetReply(q)
	m.RecursionAvailable = s.Forwarder != nil
	if len(q.Question) != 1 {
		m.Rcode = dns.RcodeFormatError
		return m
	}
	question := q.Question[0]
	if opt := q.IsEdns0(); opt != nil && opt.Version() != 0 {
		m.Rcode = dns.RcodeBadVers
		return m
	}
	switch {
	case q.Opcode != dns.OpcodeQuery:
		m.Rcode = dns.RcodeNotImplemented
		return m
	case question.Qclass != dns.ClassINET, question.Qtype == dns.TypeAXFR, question.Qtype == dns.TypeIXFR:
		m.Rcode = dns.RcodeRefused
		return m
	}
	r := resolution{server: s, client: client, asked: q, reply: m, qtype: question.Qtype}
	r.resolve(ctx, question.Name)
	return m
}

// resolution is the way of one question. A CNAME leads it on.
type resolution struct {
	server *Server
	client netip.Addr
	asked  *dns.Msg
	reply  *dns.Msg
	qtype  uint16
	steps  int
}

// resolve adds to the reply what is known about a name.
func (r *resolution) resolve(ctx context.Context, name string) {
	zone, lower := r.server.Zone, dns.CanonicalName(name)
	switch {
	case zone.has(lower):
		r.fromZone(ctx, name, lower)
	case r.reverse(lower):
	default:
		r.forward(ctx, name)
	}
}

func (r *resolution) fromZone(ctx context.Context, name, lower string) {
	zone := r.server.Zone
	if !zone.records.Synced() {
		r.reply.Rcode = dns.RcodeServerFailure
		return
	}
	a := zone.answer(lower, r.qtype)
	r.reply.Authoritative = r.reply.Authoritative || r.steps == 0
	for _, rr := range a.records {
		if rr.Header().Name == lower {
			rr.Header().Name = name // in the client's own spelling, which some compare
		}
	}
	shuffle(a.records)
	r.reply.Answer = append(r.reply.Answer, a.records...)
	r.reply.Extra = append(r.reply.Extra, a.extra...)
	switch {
	case a.target != "":
		r.follow(ctx, a.target)
		return
	case len(a.records) > 0:
		return
	case !a.exists:
		r.reply.Rcode = dns.RcodeNameError
	}
	r.reply.Ns = append(r.reply.Ns, zone.soa())
}

// follow goes on with the target of a CNAME. A loop ends with the CNAMEs that were found.
func (r *resolution) follow(ctx context.Context, target string) {
	if r.steps++; r.steps <= maxCNAMEs {
		r.resolve(ctx, target)
	}
}

// reverse answers with the names of an address, and reports whether the question is answered: others
// know the names of what is not of the cluster.
func (r *resolution) reverse(name string) bool {
	if !strings.HasSuffix(name, ".arpa.") || r.qtype != dns.TypePTR && r.qtype != dns.TypeANY {
		return false
	}
	if !r.server.Zone.records.Synced() {
		r.reply.Rcode = dns.RcodeServerFailure
		return true
	}
	records, ok := r.server.Zone.reverse(name)
	if ok {
		r.reply.Answer = append(r.reply.Answer, records...)
	}
	return ok
}

func (r *resolution) forward(ctx context.Context, name string) {
	if r.server.Forwarder == nil || !r.asked.RecursionDesired {
		r.reply.Rcode = dns.RcodeRefused
		return
	}
	waits := r.server.waits
	if !waits.take(r.client) {
		overruns.Inc()
		r.reply.Rcode = dns.RcodeServerFailure
		return
	}
	defer waits.give(r.client)
	got, err := r.server.Forwarder.Ask(ctx, question(name, r.qtype, r.asked))
	if err != nil {
		klog.FromContext(ctx).V(3).Info("A DNS question could not be forwarded", "name", name, "type", dns.TypeToString[r.qtype], "err", err)
		r.reply.Rcode = dns.RcodeServerFailure
		return
	}
	r.reply.Rcode = got.Rcode
	r.reply.AuthenticatedData = got.AuthenticatedData && r.steps == 0
	r.reply.Answer = append(r.reply.Answer, got.Answer...)
	r.reply.Ns = append(r.reply.Ns, got.Ns...)
	for _, rr := range got.Extra {
		if rr.Header().Rrtype != dns.TypeOPT {
			r.reply.Extra = append(r.reply.Extra, rr)
		}
	}
}

// question makes a message that asks others what a client asked.
func question(name string, qtype uint16, asked *dns.Msg) *dns.Msg {
	m := new(dns.Msg)
	m.SetQuestion(name, qtype)
	m.CheckingDisabled = asked.CheckingDisabled
	m.AuthenticatedData = asked.AuthenticatedData
	opt := asked.IsEdns0()
	m.SetEdns0(maxUDP, opt != nil && opt.Do())
	return m
}

// fit gives the reply an OPT record if the client sent one, and cuts it to what the client can take.
func fit(m, q *dns.Msg, udp bool) {
	size := dns.MinMsgSize
	if opt := q.IsEdns0(); opt != nil {
		size = min(max(int(opt.UDPSize()), dns.MinMsgSize), maxUDP)
		reply := new(dns.OPT)
		reply.Hdr.Name, reply.Hdr.Rrtype = ".", dns.TypeOPT
		reply.SetUDPSize(maxUDP)
		if opt.Do() {
			reply.SetDo()
		}
		m.Extra = append(m.Extra, reply)
	}
	if !udp {
		size = dns.MaxMsgSize
	}
	m.Compress = true
	m.Truncate(size)
}
