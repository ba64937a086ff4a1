package policy

import (
	"net/netip"

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

var families = []family{
	{"4", unix.NFPROTO_IPV4, nft.IPv4, 12, 16, 1},
	{"6", unix.NFPROTO_IPV6, nft.IPv6, 8, 24, 4},
}

func familyOf(a netip.Addr) family {
	if a.Is4() {
		return families[0]
	}
	return families[1]
}

// Names of sets; the family's suffix follows.
const (
	classes = "-class" // map: address of an isolated pod → class
	opened  = "-open"  // set: class, addresses: everything is allowed
	ported  = "-ports" // set: class, addresses, protocol, ports
	selves  = "self"   // set: address of an isolated pod, twice
)

// side is what differs between the two directions.
type side struct {
	name string
	link uint32 // meta key of the link on which the pod is
	pod  func(family) uint32
	peer func(family) uint32
}

var sides = map[Direction]side{
	networkingv1.PolicyTypeEgress: {"egress", unix.NFT_META_IIFNAME,
		func(f family) uint32 { return f.source }, func(f family) uint32 { return f.destination }},
	networkingv1.PolicyTypeIngress: {"ingress", unix.NFT_META_OIFNAME,
		func(f family) uint32 { return f.destination }, func(f family) uint32 { return f.source }},
}

// Registers: the key of a look-up begins with the class, the address of a pod has its own place.
const (
	classAt = 0
	peerAt  = 1
	podAt   = 8
)

// writeLayout writes the table's sets, chains and rules, of which there are as many whatever the
// policies are: these are in elements of the sets.
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
			b.AddSet(nft.Set{Name: s.name + classes + f.suffix, Key: f.address, Value: nft.Mark})
			b.AddSet(nft.Set{Name: s.name + opened + f.suffix, Key: nft.Concat(nft.Mark, f.address), Ranges: true})
			b.AddSet(nft.Set{Name: s.name + ported + f.suffix, Key: nft.Concat(nft.Mark, f.address, nft.Proto, nft.Port), Ranges: true})
			b.AddChain(s.judge(f), nil)
			s.writeJudge(b, f)
		}
		b.AddChain(s.name, &nft.Hook{Type: "filter", Number: unix.NF_INET_FORWARD, Priority: int32(i)})
		s.writeBase(b, bridge)
	}
}

func (s side) judge(f family) string { return "judge-" + s.name + f.suffix }

// writeBase sends what is new, and to or from an isolated pod, to be judged.
func (s side) writeBase(b *nft.Batch, bridge string) {
	const establishedOrRelated = 2 | 4
	link := make([]byte, unix.IFNAMSIZ)
	copy(link, bridge)
	b.AddRule(s.name, nft.Meta(s.link, nft.R(0)), nft.Differs(nft.R(0), link), nft.Leave())
	b.AddRule(s.name, nft.Ct(unix.NFT_CT_STATE, nft.R(0)), nft.And(nft.R(0), []byte(number(establishedOrRelated))),
		nft.Differs(nft.R(0), []byte(number(0))), nft.Accept())
	for _, f := range families {
		b.AddRule(s.name, append(append(f.is(), s.class(f)...), nft.Jump(s.judge(f)))...)
	}
}

func (f family) is() []nft.Expression {
	return []nft.Expression{nft.Meta(unix.NFT_META_NFPROTO, nft.R(0)), nft.Equal(nft.R(0), []byte{f.number})}
}

func (f family) load(offset uint32, at int) nft.Expression {
	return nft.Payload(nft.Network, offset, f.address.Length, nft.R(at))
}

// class loads the pod's class; the rule ends if it is not isolated.
func (s side) class(f family) []nft.Expression {
	return []nft.Expression{f.load(s.pod(f), podAt), nft.Get(s.name+classes+f.suffix, nft.R(podAt), nft.R(classAt))}
}

func (s side) writeJudge(b *nft.Batch, f family) {
	rule := func(e ...nft.Expression) { b.AddRule(s.judge(f), e...) }
	peer := append(s.class(f), f.load(s.peer(f), peerAt))
	rule(append(peer[:len(peer):len(peer)], nft.In(s.name+opened+f.suffix, nft.R(classAt)), nft.Accept())...)
	rule(append(peer[:len(peer):len(peer)],
		nft.Meta(unix.NFT_META_L4PROTO, nft.R(peerAt+f.words)), nft.Payload(nft.Transport, 2, 2, nft.R(peerAt+f.words+1)),
		nft.In(s.name+ported+f.suffix, nft.R(classAt)), nft.Accept())...)
	rule(f.load(f.source, podAt), f.load(f.destination, podAt+f.words), nft.In(selves+f.suffix, nft.R(podAt)), nft.Accept())
	if f.number == unix.NFPROTO_IPV6 {
		// Without neighbor discovery (RFC 4861) there are no connections that could be allowed.
		for _, solicitationOrAdvertisement := range []byte{135, 136} {
			rule(nft.Meta(unix.NFT_META_L4PROTO, nft.R(0)), nft.Equal(nft.R(0), []byte{unix.IPPROTO_ICMPV6}),
				nft.Payload(nft.Transport, 0, 1, nft.R(0)), nft.Equal(nft.R(0), []byte{solicitationOrAdvertisement}), nft.Accept())
		}
	}
	rule(nft.Drop())
}
