// Package sctp sends and receives the packets of SCTP themselves, for tests of what the kernel does with them: it
// knows how to translate and to filter them more often than it has sockets of SCTP.
package sctp

import (
	"encoding/binary"
	"hash/crc32"
	"net"
	"testing"

	"wherry.dev/internal/netns"
)

// Listen opens a socket in the network namespace at a path until the test ends.
func Listen(t *testing.T, space string) *net.IPConn {
	t.Helper()
	var c *net.IPConn
	err := netns.Do(func() (err error) {
		c, err = net.ListenIP("ip4:sctp", &net.IPAddr{IP: net.IPv4zero})
		return err
	}, space)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// Init returns the packet that opens an association (RFC 9260).
func Init(from, to uint16) []byte {
	return packet(from, to, 0,
		1, 0, 0, 20, 1, 2, 3, 4, 0, 1, 0, 0, // INIT: tag, window
		0, 1, 0, 1, 0, 0, 0, 1) // streams, first number
}

// InitAck returns the answer to Init, with a cookie.
func InitAck(from, to uint16) []byte {
	const tag = 1<<24 | 2<<16 | 3<<8 | 4 // Init's
	return packet(from, to, tag,
		2, 0, 0, 28, 5, 6, 7, 8, 0, 1, 0, 0, // INIT ACK: tag, window
		0, 1, 0, 1, 0, 0, 0, 1, // streams, first number
		0, 7, 0, 8, 1, 1, 1, 1) // cookie
}

func packet(from, to uint16, tag uint32, chunk ...byte) []byte {
	p := binary.BigEndian.AppendUint16(nil, from)
	p = binary.BigEndian.AppendUint16(p, to)
	p = binary.BigEndian.AppendUint32(p, tag)
	p = append(p, 0, 0, 0, 0) // checksum
	p = append(p, chunk...)
	binary.LittleEndian.PutUint32(p[8:], crc32.Checksum(p, crc32.MakeTable(crc32.Castagnoli)))
	return p
}
