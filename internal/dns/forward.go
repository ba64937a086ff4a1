package dns

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sync/semaphore"
	"golang.org/x/sync/singleflight"
)

const (
	// tryFor is how long one resolver has to answer before the next one is asked.
	tryFor = 2 * time.Second
	// distrust is how long a resolver that did not answer is asked last.
	distrust = 10 * time.Second
	// maxForwards is how many questions may be with others at a time.
	maxForwards = 1000
)

// errNoResolver means that the node has no resolver but ourselves.
var errNoResolver = errors.New("the node has no DNS resolver")

// Forwarder asks other resolvers. Create one with NewForwarder.
type Forwarder struct {
	resolvConf string
	fixed      []netip.AddrPort
	stubs      map[string][]netip.AddrPort
	self       func(netip.AddrPort) bool

	cache   *answers
	running *semaphore.Weighted
	flights singleflight.Group

	mu     sync.Mutex
	read   os.FileInfo // what resolvConf was when it was read
	node   []netip.AddrPort
	failed map[netip.AddrPort]time.Time
}

// ForwarderConfig says whom a Forwarder asks.
type ForwarderConfig struct {
	// ResolvConf is the file that names the node's resolvers. It may change at any time.
	ResolvConf string
	// Resolvers are asked instead of the node's, if there are any.
	Resolvers []netip.AddrPort
	// Stubs are the resolvers of single domains.
	Stubs map[string][]netip.AddrPort
	// Self reports whether a resolver is this server. It is never asked: that would be a loop.
	Self func(netip.AddrPort) bool
}

// NewForwarder returns a Forwarder. Nothing is read or asked yet.
func NewForwarder(c ForwarderConfig) *Forwarder {
	f := &Forwarder{
		resolvConf: c.ResolvConf, fixed: c.Resolvers, stubs: map[string][]netip.AddrPort{}, self: c.Self,
		cache: newAnswers(), running: semaphore.NewWeighted(maxForwards), failed: map[netip.AddrPort]time.Time{},
	}
	for domain, to := range c.Stubs {
		f.stubs[dns.CanonicalName(domain)] = to
	}
	return f
}

// Ask returns the answer to a question: from the cache, or from the first resolver that answers.
// Clients that ask the same at once share one question.
func (f *Forwarder) Ask(ctx context.Context, q *dns.Msg) (*dns.Msg, error) {
	name := dns.CanonicalName(q.Question[0].Name)
	opt := q.IsEdns0()
	key := cacheKey{name: name, qtype: q.Question[0].Qtype, do: opt != nil && opt.Do(), cd: q.CheckingDisabled}
	if m := f.cache.get(key, time.Now()); m != nil {
		cacheHits.Inc()
		return m, nil
	}
	cacheMisses.Inc()
	shared := context.WithoutCancel(ctx) // others may be waiting for it, too
	result := f.flights.DoChan(fmt.Sprint(key), func() (any, error) {
		limited, cancel := context.WithTimeout(shared, deadline)
		defer cancel()
		m, err := f.ask(limited, name, q)
		if err == nil {
			f.cache.put(key, m, time.Now())
		}
		return m, err
	})
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case r := <-result:
		if r.Err != nil {
			return nil, r.Err
		}
		return r.Val.(*dns.Msg).Copy(), nil
	}
}

func (f *Forwarder) ask(ctx context.Context, name string, q *dns.Msg) (*dns.Msg, error) {
	if !f.running.TryAcquire(1) {
		return nil, fmt.Errorf("%d questions are waiting for answers already", maxForwards)
	}
	defer f.running.Release(1)
	to, err := f.resolvers(name)
	if err != nil {
		return nil, err
	}
	errs := []error{}
	var last *dns.Msg
	for _, r := range to {
		m, err := exchange(ctx, r, q)
		f.note(r, err)
		switch {
		case err != nil:
			errs = append(errs, err)
		case m.Rcode == dns.RcodeSuccess || m.Rcode == dns.RcodeNameError:
			return m, nil
		default: // a failure of this one need not be one of the next
			last = m
		}
		if ctx.Err() != nil {
			break
		}
	}
	if last != nil {
		return last, nil
	}
	return nil, errors.Join(errs...)
}

// resolvers returns whom to ask for a name: those of the longest stub domain that it is below, or the
// node's. Those that did not answer lately come last.
func (f *Forwarder) resolvers(name string) ([]netip.AddrPort, error) {
	best, to := "", []netip.AddrPort(nil)
	for domain, resolvers := range f.stubs {
		if dns.IsSubDomain(domain, name) && len(domain) > len(best) {
			best, to = domain, resolvers
		}
	}
	if best == "" {
		var err error
		if to, err = f.ofNode(); err != nil {
			return nil, err
		}
	}
	now := time.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	to = slices.Clone(to)
	slices.SortStableFunc(to, func(a, b netip.AddrPort) int { return f.rankLocked(a, now) - f.rankLocked(b, now) })
	return to, nil
}

func (f *Forwarder) rankLocked(r netip.AddrPort, now time.Time) int {
	if now.Sub(f.failed[r]) < distrust {
		return 1
	}
	return 0
}

func (f *Forwarder) note(r netip.AddrPort, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err == nil {
		delete(f.failed, r)
		return
	}
	f.failed[r] = time.Now()
}

// ofNode returns the node's resolvers, from its file if that has changed.
func (f *Forwarder) ofNode() ([]netip.AddrPort, error) {
	if len(f.fixed) > 0 {
		return f.fixed, nil
	}
	info, err := os.Stat(f.resolvConf)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNoResolver, err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.read == nil || !os.SameFile(f.read, info) || !f.read.ModTime().Equal(info.ModTime()) || f.read.Size() != info.Size() {
		config, err := dns.ClientConfigFromFile(f.resolvConf)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errNoResolver, err)
		}
		f.node, f.read = f.usable(config), info
	}
	if len(f.node) == 0 {
		return nil, fmt.Errorf("%w: %s names none", errNoResolver, f.resolvConf)
	}
	return f.node, nil
}

func (f *Forwarder) usable(config *dns.ClientConfig) []netip.AddrPort {
	var out []netip.AddrPort
	for _, s := range config.Servers {
		a, err := netip.ParseAddrPort(net.JoinHostPort(s, config.Port))
		if err == nil && !slices.Contains(out, a) && (f.self == nil || !f.self(a)) {
			out = append(out, a)
		}
	}
	return out
}

// exchange asks one resolver, over TCP if its answer does not fit into a datagram. Every question has
// a socket and an ID of its own, which makes answers hard to forge (RFC 5452).
func exchange(ctx context.Context, to netip.AddrPort, q *dns.Msg) (*dns.Msg, error) {
	q = q.Copy()
	q.Id = uint16(rand.Uint32())
	ctx, cancel := context.WithTimeout(ctx, tryFor)
	defer cancel()
	m, err := over(ctx, "udp", to, q)
	if err == nil && m.Truncated {
		m, err = over(ctx, "tcp", to, q)
	}
	if err != nil {
		return nil, fmt.Errorf("ask %s: %w", to, err)
	}
	return m, nil
}

func over(ctx context.Context, network string, to netip.AddrPort, q *dns.Msg) (*dns.Msg, error) {
	client := dns.Client{Net: network, Timeout: tryFor, UDPSize: maxUDP}
	m, _, err := client.ExchangeContext(ctx, q, to.String())
	if err != nil {
		return nil, err
	}
	if !sameQuestion(m, q) {
		return nil, errors.New("the answer is to another question")
	}
	return m, nil
}

func sameQuestion(m, q *dns.Msg) bool {
	return len(m.Question) == 1 && m.Question[0].Qtype == q.Question[0].Qtype &&
		m.Question[0].Qclass == q.Question[0].Qclass && strings.EqualFold(m.Question[0].Name, q.Question[0].Name)
}

// shuffle puts records in a random order, so that clients that take the first spread over all.
func shuffle(records []dns.RR) {
	rand.Shuffle(len(records), func(i, j int) { records[i], records[j] = records[j], records[i] })
}
