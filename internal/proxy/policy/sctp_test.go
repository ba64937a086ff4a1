package policy

import (
	"encoding/binary"
	"errors"
	"net"
	"os"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"wherry.dev/test/sctp"
)

// Policies judge the packets that open an association, by their ports: those of TCP open none of SCTP.
func TestSCTPPolicies(t *testing.T) {
	m := newMachine(t)
	server := sctp.Listen(t, m.spaces["a"])
	clients := map[string]*net.IPConn{"b": sctp.Listen(t, m.spaces["b"]), "c": sctp.Listen(t, m.spaces["c"])}
	var source uint16 = 5000
	// arrives waits long for what must arrive, and a moment for what must not.
	arrives := func(from string, port uint16, must bool) bool {
		t.Helper()
		source++ // an association of its own
		_, err := clients[from].WriteTo(sctp.Init(source, port), &net.IPAddr{IP: net.ParseIP(podIP("a"))})
		m.check(err)
		patience := silence
		if must {
			patience = ample
		}
		m.check(server.SetReadDeadline(time.Now().Add(patience)))
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
	ports := func(port any, end int32) []access { return []access{access1(v1.ProtocolSCTP, port, end)} }
	for _, tt := range []struct {
		name string
		spec func(*spec)
		want map[string]map[uint16]bool
	}{
		{"nothing", isolates(ingress), map[string]map[uint16]bool{"b": {80: false}, "c": {80: false}}},
		{"TCP", fromOn(port80(v1.ProtocolTCP)), map[string]map[uint16]bool{"b": {80: false}}},
		{"one port of one pod", fromOn(ports(80, 0), pods0("b")), map[string]map[uint16]bool{"b": {80: true, 81: false}, "c": {80: false}}},
		{"a range", fromOn(ports(81, 90)), map[string]map[uint16]bool{"b": {80: false, 81: true, 90: true, 91: false}}},
		{"all ports", fromOn(ports(nil, 0), pods0("c")), map[string]map[uint16]bool{"b": {80: false}, "c": {80: true, 65535: true}}},
		{"all protocols", from(pods0("c")), map[string]map[uint16]bool{"b": {80: false}, "c": {80: true}}},
	} {
		m.apply(policy("x", on("a"), tt.spec))
		for who, open := range tt.want {
			for port, want := range open {
				if got := arrives(who, port, want); got != want {
					t.Errorf("%s: %s to port %d: arrives %v", tt.name, who, port, got)
				}
			}
		}
	}
	m.apply(policy("x", on("b"), toOn(ports(80, 0), pods0("a"))))
	if !arrives("b", 80, true) || arrives("b", 81, false) || !arrives("c", 81, true) {
		t.Error("what b may send, or c, is not what its policy says")
	}
}
