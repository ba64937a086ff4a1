// Package inbound keeps connections from using up the file descriptors that the process itself
// needs: a client that connects has not authenticated yet, and a database that cannot open its
// next file exits. Every listener that strangers can reach goes through Bound; sockets that they must not reach are made by
// ListenRoot.
//
//   - The last descriptors below the process's limit are a reserve that connections cannot use.
//     If a connection arrives and only those are left, others are closed to make room: strangers'
//     to which we have not sent anything, else strangers' that wait, else those that wait for a known
//     client's next request, else strangers' that are being served. If there are none of these,
//     the new one is closed.
//   - A connection on which the client has sent nothing yet stays with the kernel for a while.
//   - A stranger's connection on which nothing is being served is closed after a time.
//   - Errors of accept(2) because files or memory are short are temporary.
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

// patience is how long a stranger's connection may wait for its first request, including TLS, and
// for each further one.
const patience = 10 * time.Second

// process is the pool of all listeners, because the limit on files is per process.
var process = newPool(processLine, patience)

// processLine returns the first descriptor of the reserve, which is a quarter of what the process
// may have, but at least 64 and at most 1024, and never more than half.
func processLine() int {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		return 0 // this cannot fail; if it did, every connection would have to make room
	}
	most := int(min(l.Cur, 1<<30))
	return most - min(max(most/4, 64), 1024, most/2)
}

// Listener accepts connections into a bounded pool. Its server must serve through Handler.
type Listener struct {
	net.Listener
	pool *pool
}

// Bound puts the connections of l into the process's pool.
func Bound(l net.Listener) *Listener {
	afterFirstByte(l)
	return &Listener{l, process}
}

// afterFirstByte makes the kernel hold back connections on which the client has sent nothing, for
// about as long as they would be allowed to wait: there they use none of our descriptors and take
// nobody's place. If the kernel cannot do that, they arrive at once.
func afterFirstByte(l net.Listener) {
	s, ok := l.(syscall.Conn)
	if !ok {
		return
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return // it is closed; Accept will report that
	}
	_ = raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_DEFER_ACCEPT, int(patience/time.Second)) // see above
	})
}

// Accept implements net.Listener. All its errors, except that of a closed listener, are
// temporary: net/http and gRPC continue after a pause.
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

// passing is a temporary error of accept(2): the listener itself is fine.
type passing struct{ error }

func (passing) Timeout() bool   { return false }
func (passing) Temporary() bool { return true }
func (p passing) Unwrap() error { return p.error }

// Handler tells the listener which of its connections are being served.
func (l *Listener) Handler(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		c := l.pool.find(req)
		if c == nil {
			h.ServeHTTP(w, req) // not from a connection, but from within this process
			return
		}
		c.change(func() { c.serving++ })
		defer c.change(func() { c.serving-- })
		h.ServeHTTP(w, req.WithContext(context.WithValue(req.Context(), connKey{}, c)))
	})
}

type connKey struct{}

// Proven records that the sender of the request is authenticated. ctx is the request's context.
func Proven(ctx context.Context) {
	if c, ok := ctx.Value(connKey{}).(*conn); ok {
		c.change(func() { c.proven = true })
	}
}

// The kinds of connections, in the order in which they have to make room. Connections of known
// clients that are being served never have to. During a flood, a legitimate client is a stranger,
// too, until its request arrives. What sets it apart is that it completes its part of the
// handshake, which the many connections that cost their sender nothing never do.
const (
	silent          = iota // strangers' to which we have sent nothing: no complete ClientHello has arrived
	strangers              // nothing is being served
	resting                // of a known client, between requests
	strangersServed        //
	kinds
)

// pool is the set of a process's connections.
type pool struct {
	line     func() int // the first descriptor that no connection gets
	patience time.Duration

	mu    sync.Mutex
	conns map[ends]*conn
	// by kind; each list starts with the connection that has been in it longest
	lists [kinds]*list.List
	// timer runs while strangers are waiting
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

// conn is a connection of a pool. The pool's mutex guards what changes.
type conn struct {
	net.Conn
	pool    *pool
	greeted atomic.Bool // we have written to it; also read without the mutex
	ends    ends
	serving int // requests
	proven  bool
	gone    bool

	in    *list.List // the list of its kind; nil if it has none
	at    *list.Element
	since time.Time // when it became a connection of its kind
}

// kind returns the connection's kind. may is false if it must not be closed.
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

// admit takes a connection, or closes it if there is no room.
func (p *pool) admit(nc net.Conn) (*conn, bool) {
	if descriptor(nc) >= p.line() && !p.makeRoom() {
		_ = nc.Close() // nothing has been sent on it yet
		return nil, false
	}
	c := &conn{Conn: nc, pool: p, ends: ends{nc.LocalAddr().String(), nc.RemoteAddr().String()}}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conns[c.ends] = c
	c.sortLocked()
	return c, true
}

// descriptor returns the connection's descriptor, or -1 if it has none. The kernel assigns the lowest free one.
func descriptor(c net.Conn) int {
	fd := -1
	if s, ok := c.(syscall.Conn); ok {
		if raw, err := s.SyscallConn(); err == nil {
			_ = raw.Control(func(n uintptr) { fd = int(n) }) // fails if it is closed: then it has none
		}
	}
	return fd
}

// makeRoom closes the older half of the connections that are most expendable. Closing one would
// not be enough: its descriptor, a low one, goes to the next connection, and the pool would grow
// into the reserve.
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

// closeAll closes connections that the pool has forgotten; their errors matter to nobody.
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

// change changes the connection's state with f, and sorts it again.
func (c *conn) change(f func()) {
	c.pool.mu.Lock()
	defer c.pool.mu.Unlock()
	f()
	c.sortLocked()
}

// sortLocked moves the connection to the list where it belongs now.
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

// waitLocked makes sure that sweep runs when the first stranger's time is up.
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

// forgetLocked removes the connection from the pool because it is being closed.
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
