package dns

import (
	"container/list"
	"sync"
	"time"

	"github.com/miekg/dns"
)

const (
	// cacheSize is how many answers are kept.
	cacheSize = 10_000
	// cacheBytes is how large all answers together may be on the wire; in memory they take some times that. A
	// client can ask for names of its own, with answers as large as it likes.
	cacheBytes = 8 << 20
	// maxTTL is for how long at most, as in the configuration of CoreDNS that kubeadm installs.
	maxTTL = 30 * time.Second
)

// cacheKey is what makes two questions one.
type cacheKey struct {
	name   string // in lower case
	qtype  uint16
	do, cd bool
}

// answers is a cache of what others answered. The one that was used longest ago goes first.
type answers struct {
	mu    sync.Mutex
	items map[cacheKey]*list.Element // of *cached
	order list.List                  // most recently used first
	bytes int                        // of all, on the wire
}

type cached struct {
	key             cacheKey
	msg             *dns.Msg
	bytes           int // on the wire
	stored, expires time.Time
}

func newAnswers() *answers { return &answers{items: map[cacheKey]*list.Element{}} }

// get returns a copy of a fresh answer, with what is left of its records' lives, or nil.
func (c *answers) get(key cacheKey, now time.Time) *dns.Msg {
	c.mu.Lock()
	e := c.items[key]
	if e == nil {
		c.mu.Unlock()
		return nil
	}
	it := e.Value.(*cached)
	if !now.Before(it.expires) {
		c.removeLocked(e)
		c.mu.Unlock()
		return nil
	}
	c.order.MoveToFront(e)
	c.mu.Unlock()
	m := it.msg.Copy() // it is never changed once it is stored
	age := uint32(now.Sub(it.stored) / time.Second)
	eachRecord(m, func(h *dns.RR_Header) { h.Ttl -= min(age, h.Ttl) })
	return m
}

// put keeps an answer for as long as its records say, and no longer than maxTTL.
func (c *answers) put(key cacheKey, m *dns.Msg, now time.Time) {
	life, ok := lifeOf(m)
	if !ok {
		return
	}
	m = m.Copy()
	size := m.Len() // 64 KiB at most, and more where names were compressed
	if size > cacheBytes/8 {
		return
	}
	eachRecord(m, func(h *dns.RR_Header) { h.Ttl = min(h.Ttl, uint32(maxTTL/time.Second)) })
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.items[key]; e != nil {
		c.removeLocked(e)
	}
	for len(c.items) >= cacheSize || c.bytes+size > cacheBytes {
		c.removeLocked(c.order.Back())
	}
	c.bytes += size
	c.items[key] = c.order.PushFront(&cached{key: key, msg: m, bytes: size, stored: now, expires: now.Add(life)})
}

func (c *answers) removeLocked(e *list.Element) {
	it := e.Value.(*cached)
	c.bytes -= it.bytes
	delete(c.items, it.key)
	c.order.Remove(e)
}

// lifeOf returns how long an answer may be kept. A negative one lives as long as its SOA record says
// (RFC 2308); without it, and for failures, not at all.
func lifeOf(m *dns.Msg) (time.Duration, bool) {
	if m.Truncated || m.Rcode != dns.RcodeSuccess && m.Rcode != dns.RcodeNameError {
		return 0, false
	}
	life := uint32(maxTTL / time.Second)
	if len(m.Answer) == 0 || m.Rcode == dns.RcodeNameError {
		found := false
		for _, rr := range m.Ns {
			if soa, ok := rr.(*dns.SOA); ok {
				life, found = min(life, soa.Minttl, soa.Hdr.Ttl), true
			}
		}
		if !found {
			return 0, false
		}
	}
	for _, rr := range m.Answer {
		life = min(life, rr.Header().Ttl)
	}
	return time.Duration(life) * time.Second, life > 0
}

// eachRecord calls f with the header of every record that has a life.
func eachRecord(m *dns.Msg, f func(*dns.RR_Header)) {
	for _, part := range [][]dns.RR{m.Answer, m.Ns, m.Extra} {
		for _, rr := range part {
			if h := rr.Header(); h.Rrtype != dns.TypeOPT {
				f(h)
			}
		}
	}
}
