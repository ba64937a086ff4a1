package dns

import (
	"net"
	"net/netip"
	"sync"
)

const (
	// clientWaits is how many questions of one client may wait for others' answers, and allWaits how many of
	// all clients: each holds memory for as long as a resolver takes.
	clientWaits, allWaits = 200, 2000
	// clientConns is how many TCP connections one client may have.
	clientConns = 100
)

// shares divides what there is among clients, so that none of them can take it all.
type shares struct {
	each, all int

	mu    sync.Mutex
	taken map[netip.Addr]int
	total int
}

func newShares(each, all int) *shares {
	return &shares{each: each, all: all, taken: map[netip.Addr]int{}}
}

// take takes one for a client, and reports whether there is one for it. What was taken has to be given back.
func (s *shares) take(client netip.Addr) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.total >= s.all || s.taken[client] >= s.each {
		return false
	}
	s.total++
	s.taken[client]++
	return true
}

func (s *shares) give(client netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.total--
	if s.taken[client]--; s.taken[client] == 0 {
		delete(s.taken, client)
	}
}

// counted is a connection that gives its share back when it is closed.
type counted struct {
	net.Conn
	give func()
}

// Close implements net.Conn.
func (c *counted) Close() error {
	c.give()
	return c.Conn.Close()
}
