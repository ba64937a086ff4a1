package dns

import (
	"net"
	"net/netip"
	"sync"
)

// only is a socket that hears nothing but the clients that may ask. What strangers send is not even
// parsed, and they learn nothing.
type only struct {
	net.PacketConn
	allowed func(netip.Addr) bool
}

// ReadFrom returns the next datagram of a client that may ask.
func (o only) ReadFrom(p []byte) (int, net.Addr, error) {
	for {
		n, from, err := o.PacketConn.ReadFrom(p)
		if err != nil || o.allowed(addrOf(from)) {
			return n, from, err
		}
		refusals.Inc()
	}
}

// passing is a listener that closes the connections of others, and of those who have too many.
type passing struct {
	net.Listener
	allowed func(netip.Addr) bool
	shares  *shares
}

// Accept returns the next connection of a client that may ask.
func (p passing) Accept() (net.Conn, error) {
	for {
		c, err := p.Listener.Accept()
		if err != nil {
			return nil, err
		}
		client := addrOf(c.RemoteAddr())
		switch {
		case !p.allowed(client):
			refusals.Inc()
		case !p.shares.take(client):
			overruns.Inc()
		default:
			return &counted{c, sync.OnceFunc(func() { p.shares.give(client) })}, nil
		}
		_ = c.Close() // nothing was written, so nothing is lost
	}
}

func addrOf(a net.Addr) netip.Addr {
	switch a := a.(type) {
	case *net.UDPAddr:
		return a.AddrPort().Addr().Unmap()
	case *net.TCPAddr:
		return a.AddrPort().Addr().Unmap()
	}
	return netip.Addr{}
}
