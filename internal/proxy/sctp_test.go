package proxy

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

// TestSCTP: a service with ports of all protocols translates each of them.
func TestSCTP(t *testing.T) {
	m := newMachine(t)
	m.listen("a")
	both := service(func(s *v1.Service) {
		s.Spec.Ports = append(s.Spec.Ports, v1.ServicePort{Name: "sctp", Port: 80, Protocol: v1.ProtocolSCTP})
	})
	all := slices4(ready("a"))
	all[0].Ports = append(all[0].Ports, all[0].Ports[0])
	all[0].Ports[1].Name, all[0].Ports[1].Protocol, all[0].Ports[1].Port = new("sctp"), new(v1.ProtocolSCTP), new(int32(9000))
	m.serve(both, all...)
	m.want("b", clusterIP+":80", "a") // TCP, beside it
	server, client := sctp.Listen(t, m.spaces["a"]), sctp.Listen(t, m.spaces["c"])
	_, err := client.WriteTo(sctp.Init(5000, 80), &net.IPAddr{IP: net.ParseIP(clusterIP)})
	m.check(err)
	m.check(server.SetReadDeadline(time.Now().Add(patience)))
	buf := make([]byte, 128)
	n, from, err := server.ReadFrom(buf)
	m.check(err)
	if to := binary.BigEndian.Uint16(buf[2:]); n != 32 || to != 9000 || from.String() != podIP("c") {
		t.Errorf("%d bytes for port %d from %v", n, to, from)
	}

	// Without an endpoint nothing gets through.
	m.serve(both)
	_, err = client.WriteTo(sctp.Init(5001, 80), &net.IPAddr{IP: net.ParseIP(clusterIP)})
	m.check(err)
	m.check(server.SetReadDeadline(time.Now().Add(100 * time.Millisecond)))
	if n, _, err := server.ReadFrom(buf); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%d bytes, %v", n, err)
	}
}

// What a server answers comes back from where the client sent its first packet to: a service's address, or a
// node's port.
func TestSCTPAnswersComeBack(t *testing.T) {
	m := newMachine(t)
	svc := service(func(s *v1.Service) {
		s.Spec.Type = v1.ServiceTypeNodePort
		s.Spec.Ports[0].Protocol, s.Spec.Ports[0].NodePort = v1.ProtocolSCTP, 30080
	})
	all := slices4(ready("a"))
	all[0].Ports[0].Protocol, all[0].Ports[0].Port = new(v1.ProtocolSCTP), new(int32(9000))
	m.serve(svc, all...)
	server := sctp.Listen(t, m.spaces["a"])
	for i, tt := range []struct {
		client, to string
		port       uint16
	}{{"b", clusterIP, 80}, {"b", hostIP, 30080}, {"neighbour", hostIP, 30080}} {
		client, from := sctp.Listen(t, m.spaces[tt.client]), uint16(6000+i)
		_, err := client.WriteTo(sctp.Init(from, tt.port), &net.IPAddr{IP: net.ParseIP(tt.to)})
		m.check(err)
		m.check(server.SetReadDeadline(time.Now().Add(patience)))
		buf := make([]byte, 128)
		_, seen, err := server.ReadFrom(buf)
		m.check(err)
		if to := binary.BigEndian.Uint16(buf[2:]); to != 9000 {
			t.Fatalf("%+v: the server sees port %d", tt, to)
		}
		_, err = server.WriteTo(sctp.InitAck(9000, binary.BigEndian.Uint16(buf)), seen)
		m.check(err)
		m.check(client.SetReadDeadline(time.Now().Add(patience)))
		n, answerer, err := client.ReadFrom(buf)
		m.check(err)
		if answerer.String() != tt.to || n < 12 || binary.BigEndian.Uint16(buf) != tt.port || binary.BigEndian.Uint16(buf[2:]) != from {
			t.Errorf("%+v: %d bytes from %v, port %d", tt, n, answerer, binary.BigEndian.Uint16(buf))
		}
	}
}
