package nftables

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Conn is a socket in the network namespace in which it was opened. It is for one goroutine at a
// time.
type Conn struct{ fd int }

// Open opens a socket.
func Open() (*Conn, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, errors.Join(os.NewSyscallError("bind", err), unix.Close(fd))
	}
	return &Conn{fd}, nil
}

// Close closes the socket.
func (c *Conn) Close() error { return unix.Close(c.fd) }

// Commit carries a transaction out. If it fails, nothing has changed. A batch is committed once.
func (c *Conn) Commit(b *Batch) error {
	if b.Empty() {
		return nil
	}
	if !b.end {
		b.control(unix.NFNL_MSG_BATCH_END)
		b.end = true
	}
	// The kernel takes a transaction as one message, which has to fit.
	room := len(b.buf) + 1<<16
	for _, opt := range []int{unix.SO_SNDBUFFORCE, unix.SO_RCVBUFFORCE} {
		if err := unix.SetsockoptInt(c.fd, unix.SOL_SOCKET, opt, room); err != nil {
			return os.NewSyscallError("setsockopt", err)
		}
	}
	to := &unix.SockaddrNetlink{Family: unix.AF_NETLINK}
	if err := ignoringEINTR(func() error { return unix.Sendto(c.fd, b.buf, 0, to) }); err != nil {
		return os.NewSyscallError("send", err)
	}
	return c.answers(b)
}

func ignoringEINTR(f func() error) error {
	for {
		if err := f(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// answers reads the errors of a transaction. The kernel has carried it out when the send returns:
// what has not come by then does not come.
func (c *Conn) answers(b *Batch) error {
	buf := make([]byte, 1<<16)
	var first error
	for {
		n := 0
		err := ignoringEINTR(func() (err error) {
			n, _, err = unix.Recvfrom(c.fd, buf, unix.MSG_DONTWAIT)
			return err
		})
		if errors.Is(err, unix.EAGAIN) {
			return first
		}
		if err != nil {
			return errors.Join(first, os.NewSyscallError("receive", err))
		}
		for m := range messages(buf[:n]) {
			if m.kind != unix.NLMSG_ERROR || len(m.data) < 4 || first != nil {
				continue
			}
			if code := int32(binary.NativeEndian.Uint32(m.data)); code != 0 {
				first = fmt.Errorf("nftables table %s: %s: %w", b.table, b.said(m.seq), unix.Errno(-code))
			}
		}
	}
}

func (b *Batch) said(seq uint32) string {
	if int(seq) < len(b.what) {
		return b.what[seq]
	}
	return "transaction"
}

type message struct {
	kind uint16
	seq  uint32
	data []byte
}

// messages splits what was received.
func messages(buf []byte) func(func(message) bool) {
	return func(yield func(message) bool) {
		for len(buf) >= unix.NLMSG_HDRLEN {
			n := int(binary.NativeEndian.Uint32(buf))
			if n < unix.NLMSG_HDRLEN || n > len(buf) {
				return
			}
			m := message{binary.NativeEndian.Uint16(buf[4:]), binary.NativeEndian.Uint32(buf[8:]), buf[unix.NLMSG_HDRLEN:n]}
			if !yield(m) {
				return
			}
			buf = buf[min(len(buf), (n+3)&^3):]
		}
	}
}

// attributes splits a list of attributes.
func attributes(buf []byte) func(func(uint16, []byte) bool) {
	return func(yield func(uint16, []byte) bool) {
		for len(buf) >= 4 {
			n := int(binary.NativeEndian.Uint16(buf))
			if n < 4 || n > len(buf) {
				return
			}
			if !yield(binary.NativeEndian.Uint16(buf[2:])&^uint16(unix.NLA_F_NESTED|unix.NLA_F_NET_BYTEORDER), buf[4:n]) {
				return
			}
			buf = buf[min(len(buf), (n+3)&^3):]
		}
	}
}

// Elements lists the elements of a set. A set, or a table, that does not exist has none.
func (c *Conn) Elements(table, set string) ([]Element, error) {
	b := &Batch{table: table}
	b.message(unix.NFT_MSG_GETSETELEM, unix.NLM_F_DUMP, "list "+set, func() {
		b.text(unix.NFTA_SET_ELEM_LIST_TABLE, table)
		b.text(unix.NFTA_SET_ELEM_LIST_SET, set)
	})
	to := &unix.SockaddrNetlink{Family: unix.AF_NETLINK}
	if err := ignoringEINTR(func() error { return unix.Sendto(c.fd, b.buf, 0, to) }); err != nil {
		return nil, os.NewSyscallError("send", err)
	}
	var out []Element
	buf := make([]byte, 1<<17)
	for {
		n := 0
		err := ignoringEINTR(func() (err error) {
			n, _, err = unix.Recvfrom(c.fd, buf, 0)
			return err
		})
		if err != nil {
			return nil, os.NewSyscallError("receive", err)
		}
		for m := range messages(buf[:n]) {
			switch m.kind {
			case unix.NLMSG_DONE:
				return out, nil
			case unix.NLMSG_ERROR:
				code := -int32(binary.NativeEndian.Uint32(m.data))
				if code == 0 || unix.Errno(code) == unix.ENOENT {
					return nil, nil
				}
				return nil, fmt.Errorf("nftables table %s: list %s: %w", table, set, unix.Errno(code))
			default:
				out = append(out, parseElements(m.data)...)
			}
		}
	}
}

// parseElements reads a message of a listing, after the header of nfnetlink.
func parseElements(data []byte) (out []Element) {
	if len(data) < 4 {
		return nil
	}
	for kind, list := range attributes(data[4:]) {
		if kind != unix.NFTA_SET_ELEM_LIST_ELEMENTS {
			continue
		}
		for _, item := range attributes(list) {
			out = append(out, parseElement(item))
		}
	}
	return out
}

func parseElement(item []byte) (e Element) {
	for kind, value := range attributes(item) {
		switch kind {
		case unix.NFTA_SET_ELEM_KEY:
			e.Key = dataValue(value)
		case setElemKeyEnd:
			e.End = dataValue(value)
		case unix.NFTA_SET_ELEM_DATA:
			e.Value = dataValue(value)
			parseVerdict(value, &e)
		case unix.NFTA_SET_ELEM_TIMEOUT:
			e.Timeout = longValue(value)
		case unix.NFTA_SET_ELEM_EXPIRATION:
			e.Expires = longValue(value)
		}
	}
	return e
}

func longValue(b []byte) uint64 {
	if len(b) < 8 {
		return 0
	}
	return binary.BigEndian.Uint64(b)
}

func dataValue(b []byte) string {
	for kind, value := range attributes(b) {
		if kind == unix.NFTA_DATA_VALUE {
			return string(value)
		}
	}
	return ""
}

func parseVerdict(b []byte, e *Element) {
	for kind, verdict := range attributes(b) {
		if kind != unix.NFTA_DATA_VERDICT {
			continue
		}
		for kind, value := range attributes(verdict) {
			switch {
			case kind == unix.NFTA_VERDICT_CODE && len(value) == 4:
				e.Drop, e.Pass = binary.BigEndian.Uint32(value) == nfDrop, binary.BigEndian.Uint32(value) == nfAccept
			case kind == unix.NFTA_VERDICT_CHAIN && len(value) > 0:
				e.Go = string(value[:len(value)-1])
			}
		}
	}
}

// Remove deletes a table. It is not an error if there is none.
func (c *Conn) Remove(table string) error {
	b := NewBatch(table)
	b.AddTable() // so that there is one to delete
	b.DeleteTable()
	return c.Commit(b)
}
