// Package rtnl speaks rtnetlink for the one thing that every pod needs: a veth pair between a
// bridge and a pod's namespace. Requests are sent in batches, and no link is ever moved between
// namespaces (which costs an RCU grace period under the rtnl lock). The in-process bridge and the
// bridge plugin both use it.
package rtnl

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Conn is a routing socket. It belongs to the network namespace of the thread that
// opened it, wherever it is used later (netlink(7)).
type Conn struct {
	mu  sync.Mutex
	fd  int
	seq uint32
}

// Open opens a socket in the namespace of the calling thread.
func Open() (*Conn, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open routing socket: %w", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("bind routing socket: %w", err)
	}
	return &Conn{fd: fd}, nil
}

// Close closes the socket.
func (c *Conn) Close() error { return unix.Close(c.fd) }

// Do sends the requests as one datagram and waits for the answer of each. The
// kernel handles them in order; the first error is returned, the rest still run.
func (c *Conn) Do(reqs ...*nl.NetlinkRequest) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var batch []byte
	first := c.seq + 1
	for _, r := range reqs {
		c.seq++
		r.Seq = c.seq
		batch = append(batch, r.Serialize()...)
		for len(batch)%unix.NLMSG_ALIGNTO != 0 {
			batch = append(batch, 0)
		}
	}
	if err := unix.Sendto(c.fd, batch, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("netlink send: %w", err)
	}
	return c.acks(first, len(reqs))
}

func (c *Conn) acks(first uint32, want int) error {
	buf := make([]byte, 16<<10)
	var failed error
	for want > 0 {
		n, err := recvRetry(c.fd, buf)
		if err != nil {
			return fmt.Errorf("netlink receive: %w", err)
		}
		for msg := buf[:n]; len(msg) >= unix.SizeofNlMsghdr; {
			size := int(binary.NativeEndian.Uint32(msg))
			typ, seq := binary.NativeEndian.Uint16(msg[4:]), binary.NativeEndian.Uint32(msg[8:])
			if size < unix.SizeofNlMsghdr || size > len(msg) {
				return errors.New("netlink receive: truncated message")
			}
			if typ == unix.NLMSG_ERROR && seq >= first && size >= unix.SizeofNlMsghdr+4 {
				want--
				errno := int32(binary.NativeEndian.Uint32(msg[unix.SizeofNlMsghdr:]))
				if errno != 0 && failed == nil {
					failed = unix.Errno(-errno)
				}
			}
			msg = msg[min(len(msg), (size+3)&^3):]
		}
	}
	return failed
}

func recvRetry(fd int, buf []byte) (int, error) {
	for {
		n, _, err := unix.Recvfrom(fd, buf, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		return n, err
	}
}
