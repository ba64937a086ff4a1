package proxy

import (
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"wherry.dev/internal/netns"
)

// crowd returns a service's slices with n endpoints, the first of which is a pod that is there.
func crowd(n int) (out []*discoveryv1.EndpointSlice) {
	const perSlice = 100
	for i := range n {
		if i%perSlice == 0 {
			out = append(out, slices4()[0])
		}
		e := ready("a")
		if i > 0 {
			e.Addresses = []string{netip.AddrFrom4([4]byte{10, 200, byte(i >> 8), byte(i)}).String()}
		}
		s := out[len(out)-1]
		s.Endpoints = append(s.Endpoints, e)
	}
	return out
}

// A service has 5,000 endpoints, loses all but one of them, and gets them again, while services come and go
// and somebody else rewrites a table of their own as fast as they can. No transaction is lost, and each
// table is its owner's.
func TestFiveThousandEndpointsAndAForeignTable(t *testing.T) {
	const many, rounds = 5000, 5
	m := newMachine(t)
	m.listen("a")
	stop, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- rewrite(m.spaces["host"], stop) }()
	for round := range rounds {
		m.serve(service(), crowd(many)...)
		if got := m.endpoints(); got != many {
			t.Fatalf("round %d: the kernel has %d endpoints", round, got)
		}
		for i := range 40 {
			other := service(func(s *v1.Service) {
				s.Name, s.Spec.ClusterIP = fmt.Sprint("s", i), fmt.Sprintf("10.96.1.%d", i)
				s.Spec.ClusterIPs = []string{s.Spec.ClusterIP}
			})
			m.serve(other, slices4(ready("a"))...)
			if i == 0 {
				m.want("b", "10.96.1.0:80", "a")
			}
			var c change
			m.state.set("a/"+other.Name, Rules{}, &c)
			m.check(m.kernel.apply(m.state, c))
		}
		m.serve(service(), crowd(1)...)
		m.want("b", clusterIP+":80", "a")
		if got := m.endpoints(); got != 1 {
			t.Fatalf("round %d: the kernel has %d endpoints of one", round, got)
		}
	}
	close(stop)
	m.check(<-ended)
	if got := m.in("host", "nft", "-s", "list", "table", "inet", "foreign"); !strings.Contains(got, "10.9.9.9") {
		t.Errorf("the foreign table is now %s", got)
	}
}

// endpoints returns how many the kernel has, of all services.
func (m *machine) endpoints() int {
	m.t.Helper()
	elements, err := m.kernel.conn.Elements(m.kernel.table, "endpoints4")
	m.check(err)
	return len(elements)
}

// rewrite replaces a table of somebody else until it is stopped.
func rewrite(space string, stop <-chan struct{}) error {
	const table = "table inet foreign\ndelete table inet foreign\n" +
		"table inet foreign { set s { type ipv4_addr; elements = { 10.9.9.9, 10.9.9.8 } }; chain c { type filter hook forward priority 0; ip saddr @s counter; }; }\n"
	for {
		select {
		case <-stop:
			return nil
		default:
		}
		err := netns.Do(func() error {
			cmd := exec.Command("nft", "-f", "-") //nolint:noctx // on a thread of its own namespace
			cmd.Stdin = strings.NewReader(table)
			if out, err := cmd.CombinedOutput(); err != nil {
				return fmt.Errorf("nft: %w: %s", err, out)
			}
			return nil
		}, space)
		if err != nil {
			return err
		}
	}
}
