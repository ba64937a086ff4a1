package policy

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"wherry.dev/internal/api/netpol"
)

// lets reports whether a plan lets a connection of two pods pass.
func lets(p *Plan, from, to *v1.Pod, protocol v1.Protocol, port uint16) bool {
	a, b := netip.MustParseAddr(podIP(from.Name)), netip.MustParseAddr(podIP(to.Name))
	opens := func(d Direction, self, other netip.Addr) bool {
		class, isolated := p.Isolated[d][self]
		return !isolated || slices.ContainsFunc(p.Classes[d][class], func(o Opening) bool { return o.Has(other) && o.ports.Has(protocol, port) })
	}
	return opens(egress, a, b) && opens(ingress, b, a)
}

// What explanations say of a connection is what the kernel does.
func TestAVerdictIsWhatTheKernelDoes(t *testing.T) {
	all := []*v1.Pod{pod("a"), pod("b", web(8080)), pod("c", in("other")), pod("d", in("third"), web(443), sidecar(99))}
	tcp, udp := v1.ProtocolTCP, v1.ProtocolUDP
	r := rand.New(rand.NewPCG(1, 2))
	pick := func(list ...string) string { return list[r.IntN(len(list))] }
	peers := func() (out []who) {
		for range r.IntN(3) {
			switch r.IntN(4) {
			case 0:
				out = append(out, pods0(pick("", "a", "b", "c", "d")))
			case 1:
				out = append(out, team(pick("x", "y", "z")))
			case 2:
				out = append(out, both(pods0(pick("", "c", "d")), team(pick("x", "y"))))
			default:
				out = append(out, cidr("10.244.0.0/"+pick("16", "28", "30"), pick("10.244.0.10/32", "10.244.0.12/31", "10.0.0.0/8", "10.9.0.0/16", "bad")))
			}
		}
		return out
	}
	ports := func() (out []access) {
		for range r.IntN(3) {
			out = append(out, [...]access{
				access1(tcp, "web", 0), access1(udp, "dns", 0), access1(tcp, "side", 0), access1(tcp, 80, 0), access1(tcp, 400, 8080), access1(udp, nil, 0),
			}[r.IntN(6)])
		}
		return out
	}
	let, kept := 0, 0
	for range 2000 {
		f := facts(all...)
		for i := range 1 + r.IntN(3) {
			rule := fromOn(ports(), peers()...)
			if r.IntN(2) == 0 {
				rule = toOn(ports(), peers()...)
			}
			np := policy(string(rune('p'+i)), on(pick("", "a", "b", "c", "d")), rule)
			np.Namespace = pick("default", "other", "third")
			f.Policies = append(f.Policies, np)
		}
		p := NewPlan(f)
		for _, from := range all {
			for _, to := range all {
				if from == to {
					continue
				}
				for _, port := range []uint16{53, 80, 99, 443, 8080} {
					c := &netpol.Connection{
						From: netpol.PartyOf(from, f.Namespaces[from.Namespace]), To: netpol.PartyOf(to, f.Namespaces[to.Namespace]), Protocol: tcp, Port: port,
					}
					if port == 53 {
						c.Protocol = udp
					}
					// The kernel compares addresses of the connection's family; so does the judge here.
					c.From.Addresses, c.To.Addresses = c.From.Addresses[:1], c.To.Addresses[:1]
					e, i := netpol.Judge(networkingv1.PolicyTypeEgress, f.Policies, c), netpol.Judge(networkingv1.PolicyTypeIngress, f.Policies, c)
					passes := e.Passes() && i.Passes()
					if passes != lets(&p, from, to, c.Protocol, port) {
						t.Fatalf("%s → %s %s/%d: verdict %v\negress %+v\ningress %+v", from.Name, to.Name, c.Protocol, port, passes, e, i)
					}
					if passes {
						let++
					} else {
						kept++
					}
				}
			}
		}
	}
	if let < 1000 || kept < 1000 {
		t.Errorf("%d pass, %d do not: too few to tell", let, kept)
	}
}
