package policy

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"net"
	"os"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"wherry.dev/internal/netns"
)

// sctpInit returns the packet that opens an association (RFC 9260).
func sctpInit(from, to uint16) []byte {
	p := binary.BigEndian.AppendUint16(nil, from)
	p = binary.BigEndian.AppendUint16(p, to)
	p = append(p, 0, 0, 0, 0, 0, 0, 0, 0)              // no tag yet; checksum
	p = append(p, 1, 0, 0, 20, 1, 2, 3, 4, 0, 1, 0, 0) // INIT: tag, window
	p = append(p, 0, 1, 0, 1, 0, 0, 0, 1)              // streams, first number
	binary.LittleEndian.PutUint32(p[8:], crc32.Checksum(p, crc32.MakeTable(crc32.Castagnoli)))
	return p
}

// raw opens a socket for the packets of SCTP themselves, which kernels know more often than its sockets.
func (m *machine) raw(name string) *net.IPConn {
	m.t.Helper()
	var c *net.IPConn
	m.check(netns.Do(func() (err error) {
		c, err = net.ListenIP("ip4:sctp", &net.IPAddr{IP: net.IPv4zero})
		return err
	}, m.spaces[name]))
	m.t.Cleanup(func() { _ = c.Close() })
	return c
}

// Policies judge the packets that open an association, by their ports: those of TCP open none of SCTP.
func TestSCTPPolicies(t *testing.T) {
	m := newMachine(t)
	server := m.raw("a")
	clients := map[string]*net.IPConn{"b": m.raw("b"), "c": m.raw("c")}
	var source uint16 = 5000
	arrives := func(from string, port uint16) bool {
		source++ // an association of its own
		_, err := clients[from].WriteTo(sctpInit(source, port), &net.IPAddr{IP: net.ParseIP(podIP("a"))})
		m.check(err)
		m.check(server.SetReadDeadline(time.Now().Add(150 * time.Millisecond)))
		for buf := make([]byte, 128); ; {
			n, _, err := server.ReadFrom(buf)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				return false
			}
			m.check(err)
			if n >= 4 && binary.BigEndian.Uint16(buf) == source {
				return true
			}
		}
	}
	sctp := func(port any, end int32) []access { return []access{access1(v1.ProtocolSCTP, port, end)} }
	for _, tt := range []struct {
		name string
		spec func(*spec)
		want map[string]map[uint16]bool
	}{
		{"nothing", isolates(ingress), map[string]map[uint16]bool{"b": {80: false}, "c": {80: false}}},
		{"TCP", fromOn(port80(v1.ProtocolTCP)), map[string]map[uint16]bool{"b": {80: false}}},
		{"one port of one pod", fromOn(sctp(80, 0), pods0("b")), map[string]map[uint16]bool{"b": {80: true, 81: false}, "c": {80: false}}},
		{"a range", fromOn(sctp(81, 90)), map[string]map[uint16]bool{"b": {80: false, 81: true, 90: true, 91: false}}},
		{"all ports", fromOn(sctp(nil, 0), pods0("c")), map[string]map[uint16]bool{"b": {80: false}, "c": {80: true, 65535: true}}},
		{"all protocols", from(pods0("c")), map[string]map[uint16]bool{"b": {80: false}, "c": {80: true}}},
	} {
		m.apply(policy("x", on("a"), tt.spec))
		for who, ports := range tt.want {
			for port, want := range ports {
				if got := arrives(who, port); got != want {
					t.Errorf("%s: %s to port %d: arrives %v", tt.name, who, port, got)
				}
			}
		}
	}
	m.apply(policy("x", on("b"), toOn(sctp(80, 0), pods0("a"))))
	if !arrives("b", 80) || arrives("b", 81) || !arrives("c", 81) {
		t.Error("what b may send, or c, is not what its policy says")
	}
}
