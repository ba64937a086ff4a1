package policy

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
	networkingv1 "k8s.io/api/networking/v1"

	nft "wherry.dev/internal/proxy/nftables"
)

// family has what the rules need to know about an IP family.
type family struct {
	suffix              string
	number              byte // NFPROTO_…
	address             nft.Type
	source, destination uint32 // offsets in the header
	words               int
}

var families = []*family{
	{"4", unix.NFPROTO_IPV4, nft.IPv4, 12, 16, 1},
	{"6", unix.NFPROTO_IPV6, nft.IPv6, 8, 24, 4},
}

func familyOf(a netip.Addr) *family {
	if a.Is4() {
		return families[0]
	}
	return families[1]
}

// Names of sets that all classes share; the family's suffix follows.
const (
	classes = "-class" // map: address of an isolated pod → chain of its class
	selves  = "self"   // set: address of an isolated pod, twice
)

// class is one in the kernel: a chain and two sets.
type class struct {
	side   *side
	family *family
	number uint32
}

func (c class) chain() string  { return fmt.Sprintf("%s%s-%d", c.side.name, c.family.suffix, c.number) }
func (c class) opened() string { return c.chain() + "-open" }  // set: addresses with which everything is allowed
func (c class) ported() string { return c.chain() + "-ports" } // set: addresses, protocol, ports

// side is what differs between the two directions.
type side struct {
	name string
	link uint32 // meta key of the link on which the pod is
	pod  func(*family) uint32
	peer func(*family) uint32
}

var sides = map[Direction]*side{
	networkingv1.PolicyTypeEgress: {"egress", unix.NFT_META_IIFNAME,
		func(f *family) uint32 { return f.source }, func(f *family) uint32 { return f.destination }},
	networkingv1.PolicyTypeIngress: {"ingress", unix.NFT_META_OIFNAME,
		func(f *family) uint32 { return f.destination }, func(f *family) uint32 { return f.source }},
}

// writeLayout writes what does not differ from policy to policy. An isolated pod's address leads to the
// chain of its class, others are not looked at any further.
//
// A packet's way, after services are translated and before sources are:
//
//	forward  egress   the sender is isolated: allowed → go on, else drop
//	forward  ingress  so is the receiver: allowed → go on, else drop
//
// Accepting ends only the chain of one direction. What the node sends and receives itself is not
// forwarded, and so never judged.
func writeLayout(b *nft.Batch, bridge string) {
	for _, f := range families {
		b.AddSet(nft.Set{Name: selves + f.suffix, Key: nft.Concat(f.address, f.address)})
	}
	for i, d := range []Direction{networkingv1.PolicyTypeEgress, networkingv1.PolicyTypeIngress} {
		s := sides[d]
		for _, f := range families {
			b.AddSet(nft.Set{Name: s.name + classes + f.suffix, Key: f.address, Value: nft.Verdict})
			b.AddChain(s.rest(f), nil)
			s.writeRest(b, f)
		}
		b.AddChain(s.name, &nft.Hook{Type: "filter", Number: unix.NF_INET_FORWARD, Priority: int32(i)})
		s.writeBase(b, bridge)
	}
}

// rest is the chain of what no policy allows.
func (s *side) rest(f *family) string { return s.name + f.suffix + "-rest" }

// writeBase sends what is new, and to or from an isolated pod, to the chain of its class.
func (s *side) writeBase(b *nft.Batch, bridge string) {
	const establishedOrRelated = 2 | 4
	link := make([]byte, unix.IFNAMSIZ)
	copy(link, bridge)
	b.AddRule(s.name, nft.Meta(s.link, nft.R(0)), nft.Differs(nft.R(0), link), nft.Leave())
	b.AddRule(s.name, nft.Ct(unix.NFT_CT_STATE, nft.R(0)), nft.And(nft.R(0), number(establishedOrRelated)),
		nft.Differs(nft.R(0), number(0)), nft.Accept())
	for _, f := range families {
		b.AddRule(s.name, append(f.is(), f.load(s.pod(f), 0), nft.Dispatch(s.name+classes+f.suffix, nft.R(0)))...)
	}
}

// number returns a number as registers have it.
func number(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }

func (f *family) is() []nft.Expression {
	return []nft.Expression{nft.Meta(unix.NFT_META_NFPROTO, nft.R(0)), nft.Equal(nft.R(0), []byte{f.number})}
}

func (f *family) load(offset uint32, at int) nft.Expression {
	return nft.Payload(nft.Network, offset, f.address.Length, nft.R(at))
}

// writeRest lets pods talk to themselves, and drops.
func (s *side) writeRest(b *nft.Batch, f *family) {
	rule := func(e ...nft.Expression) { b.AddRule(s.rest(f), e...) }
	rule(append(f.is(), f.load(f.source, 0), f.load(f.destination, f.words), nft.In(selves+f.suffix, nft.R(0)), nft.Accept())...)
	if f.number == unix.NFPROTO_IPV6 {
		// Without neighbor discovery (RFC 4861) there are no connections that could be allowed.
		for _, solicitationOrAdvertisement := range []byte{135, 136} {
			rule(nft.Meta(unix.NFT_META_L4PROTO, nft.R(0)), nft.Equal(nft.R(0), []byte{unix.IPPROTO_ICMPV6}),
				nft.Payload(nft.Transport, 0, 1, nft.R(0)), nft.Equal(nft.R(0), []byte{solicitationOrAdvertisement}), nft.Accept())
		}
	}
	rule(nft.Drop())
}

// write makes the class's sets and its chain.
func (c class) write(b *nft.Batch) {
	f, chain := c.family, c.chain()
	b.AddSet(nft.Set{Name: c.opened(), Key: nft.Concat(f.address, nft.Proto), Ranges: true})
	b.AddSet(nft.Set{Name: c.ported(), Key: nft.Concat(f.address, nft.Proto, nft.Port), Ranges: true})
	b.AddChain(chain, nil)
	peer := append(f.is(), f.load(c.side.peer(f), 0), nft.Meta(unix.NFT_META_L4PROTO, nft.R(f.words)))
	b.AddRule(chain, append(slices.Clip(peer), nft.In(c.opened(), nft.R(0)), nft.Accept())...)
	b.AddRule(chain, append(slices.Clip(peer), nft.Payload(nft.Transport, 2, 2, nft.R(f.words+1)), nft.In(c.ported(), nft.R(0)), nft.Accept())...)
	b.AddRule(chain, nft.Jump(c.side.rest(f)))
}

// remove removes what write makes. No address may lead to the chain any more.
func (c class) remove(b *nft.Batch) {
	b.DeleteChain(c.chain())
	b.DeleteSet(c.opened())
	b.DeleteSet(c.ported())
}
