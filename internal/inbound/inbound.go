// Package inbound keeps connections from taking the files that the process itself needs:
// who connects has not shown yet that he may, and a database that cannot open its next file
// ends. Every listener that strangers reach goes through Bound.
//
//   - The last descriptors below the process's limit are a reserve that connections do not
//     get. When one comes and only those are left, others have to go: strangers' to which
//     nothing was said yet, or else strangers' that wait, or else those that wait for a known
//     client's next request, or else strangers' that are being served. Where none of these
//     is left, the new one is closed.
//   - A connection on which nothing was said yet stays with the kernel for a while.
//   - A stranger's connection on which nothing is being served is closed after a time.
//   - What accept(2) fails with, when files or memory are short, passes.
//
// A connection is a stranger's until a request on it is authenticated (Proven).
package inbound

import (
	"container/list"
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// patience is how long a stranger's connection may wait for its first request, TLS and
// all, and for each further one.
const patience = 10 * time.Second

// process is the pool of all listeners: the limit of files is the process's.
var process = newPool(processLine, patience)

// processLine is the first descriptor of the reserve: a quarter of what the process may
// have, but neither less than 64 nor more than 1024, and never more than a half.
func processLine() int {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		return 0 // it cannot fail; were it to, every connection would have to make room
	}
	most := int(min(l.Cur, 1<<30))
	return most - min(max(most/4, 64), 1024, most/2)
}

// Listener hands out connections of a bounded pool. Its server must serve by Handler.
type Listener struct {
	net.Listener
	pool *pool
}

// Bound puts the connections of l into the process's pool.
func Bound(l net.Listener) *Listener {
	afterFirstByte(l)
	return &Listener{l, process}
}

// afterFirstByte has the kernel keep connections on which nothing was said back, for about
// as long as they would have: they take none of our files, and nobody's place. Where it
// cannot, they come at once.
func afterFirstByte(l net.Listener) {
	s, ok := l.(syscall.Conn)
	if !ok {
		return
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return // it is closed, which Accept tells
	}
	_ = raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_DEFER_ACCEPT, int(patience/time.Second)) // see above
	})
}

// Accept implements net.Listener. Its errors but that of a closed listener are temporary,
// by which net/http and gRPC go on after a pause.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			return nil, err
		case err != nil:
			if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) {
				l.pool.makeRoom()
			}
			return nil, passing{err}
		}
		if in, ok := l.pool.admit(c); ok {
			return in, nil
		}
	}
}

// passing is an error of accept(2) that says nothing against the listener.
type passing struct{ error }

func (passing) Timeout() bool   { return false }
func (passing) Temporary() bool { return true }
func (p passing) Unwrap() error { return p.error }

// Handler tells the listener which of its connections are being served.
func (l *Listener) Handler(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		c := l.pool.find(req)
		if c == nil {
			h.ServeHTTP(w, req) // not of a connection, but from this process
			return
		}
		c.change(func() { c.serving++ })
		defer c.change(func() { c.serving-- })
		h.ServeHTTP(w, req.WithContext(context.WithValue(req.Context(), connKey{}, c)))
	})
}

type connKey struct{}

// Proven says that who sent the request is authenticated; the context is the request's.
func Proven(ctx context.Context) {
	if c, ok := ctx.Value(connKey{}).(*conn); ok {
		c.change(func() { c.proven = true })
	}
}

// The kinds of connections, in the order in which they have to make room. Those of clients
// that are known and being served do not. A client that comes in a flood is a stranger
// until its request is there: what keeps it apart is that it completes its part of the
// handshake, which the many that cost their sender nothing never do.
const (
	silent          = iota // strangers' to which nothing was said: no whole ClientHello came
	strangers              // nothing is being served
	resting                // of a known client, between requests
	strangersServed        //
	kinds
)

// pool is what a process has of connections.
type pool struct {
	line     func() int // the first descriptor that no connection gets
	patience time.Duration

	mu    sync.Mutex
	conns map[ends]*conn
	// by kind; each from the one that has been so for longest
	lists [kinds]*list.List
	// timer runs while there are strangers
	timer *time.Timer
}

// ends are the addresses of a connection.
type ends struct{ local, remote string }

func newPool(line func() int, patience time.Duration) *pool {
	p := &pool{line: line, patience: patience, conns: map[ends]*conn{}}
	for i := range p.lists {
		p.lists[i] = list.New()
	}
	return p
}

// conn is a connection of a pool. What changes is the pool's mutex's.
type conn struct {
	net.Conn
	pool    *pool
	greeted atomic.Bool // something was written to it; read without the mutex too
	ends    ends
	serving int // requests
	proven  bool
	gone    bool

	in    *list.List // by its kind; nil where it has none
	at    *list.Element
	since time.Time // when it came to be of its kind
}

// kind is what the connection is, unless it is one that stays.
func (c *conn) kind() (kind int, may bool) {
	switch {
	case c.serving == 0 && !c.proven && !c.greeted.Load():
		return silent, true
	case c.serving == 0 && !c.proven:
		return strangers, true
	case c.serving == 0:
		return resting, true
	case !c.proven:
		return strangersServed, true
	}
	return 0, false
}

// admit takes a connection, or closes it for want of room.
func (p *pool) admit(nc net.Conn) (*conn, bool) {
	if descriptor(nc) >= p.line() && !p.makeRoom() {
		_ = nc.Close() // it has heard nothing yet
		return nil, false
	}
	c := &conn{Conn: nc, pool: p, ends: ends{nc.LocalAddr().String(), nc.RemoteAddr().String()}}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conns[c.ends] = c
	c.sortLocked()
	return c, true
}

// descriptor is the lowest that was free when the connection came; -1 where it has none.
func descriptor(c net.Conn) int {
	fd := -1
	if s, ok := c.(syscall.Conn); ok {
		if raw, err := s.SyscallConn(); err == nil {
			_ = raw.Control(func(n uintptr) { fd = int(n) }) // fails for a closed one: it has none
		}
	}
	return fd
}

// makeRoom closes the older half of the connections that may best go. One would not do:
// who comes next has its descriptor, a low one, and the pool grows into the reserve.
func (p *pool) makeRoom() bool {
	var victims []*conn
	p.mu.Lock()
	for _, l := range p.lists {
		if l.Len() == 0 {
			continue
		}
		for range (l.Len() + 1) / 2 {
			victim := l.Front().Value.(*conn)
			victim.forgetLocked()
			victims = append(victims, victim)
		}
		break
	}
	p.mu.Unlock()
	closeAll(victims)
	return len(victims) > 0
}

// closeAll closes connections that the pool has forgotten: what comes of it concerns nobody.
func closeAll(conns []*conn) {
	for _, c := range conns {
		_ = c.Conn.Close()
	}
}

func (p *pool) find(req *http.Request) *conn {
	local, ok := req.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if !ok {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.conns[ends{local.String(), req.RemoteAddr}]
}

// change changes what the connection is.
func (c *conn) change(f func()) {
	c.pool.mu.Lock()
	defer c.pool.mu.Unlock()
	f()
	c.sortLocked()
}

// sortLocked puts the connection where it belongs now.
func (c *conn) sortLocked() {
	var in *list.List
	if kind, may := c.kind(); may && !c.gone {
		in = c.pool.lists[kind]
	}
	if in == c.in {
		return
	}
	if c.in != nil {
		c.in.Remove(c.at)
	}
	if c.in, c.since = in, time.Now(); in != nil {
		c.at = in.PushBack(c)
	}
	c.pool.waitLocked()
}

// waitLocked sees to it that strangers are looked at when the time of one is up.
func (p *pool) waitLocked() {
	if p.timer != nil {
		return
	}
	var first time.Time
	for _, l := range p.lists[:resting] {
		if l.Len() == 0 {
			continue
		}
		if since := l.Front().Value.(*conn).since; first.IsZero() || since.Before(first) {
			first = since
		}
	}
	if !first.IsZero() {
		p.timer = time.AfterFunc(p.patience-time.Since(first), p.sweep)
	}
}

// sweep closes the strangers whose time is up.
func (p *pool) sweep() {
	var late []*conn
	p.mu.Lock()
	for _, l := range p.lists[:resting] {
		for e := l.Front(); e != nil; e = l.Front() {
			c := e.Value.(*conn)
			if time.Since(c.since) < p.patience {
				break
			}
			c.forgetLocked()
			late = append(late, c)
		}
	}
	p.timer = nil
	p.waitLocked()
	p.mu.Unlock()
	closeAll(late)
}

// forgetLocked takes the connection out of the pool, for it is being closed.
func (c *conn) forgetLocked() {
	if c.pool.conns[c.ends] == c {
		delete(c.pool.conns, c.ends)
	}
	c.gone = true
	c.sortLocked()
}

// Write implements net.Conn.
func (c *conn) Write(b []byte) (int, error) {
	if !c.greeted.Load() {
		c.change(func() { c.greeted.Store(true) })
	}
	return c.Conn.Write(b)
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.pool.mu.Lock()
	c.forgetLocked()
	c.pool.mu.Unlock()
	return c.Conn.Close()
}
