package proxy

import (
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	nft "wherry.dev/internal/proxy/nftables"
)

// Priorities of chains that translate (linux/netfilter_ipv4.h).
const (
	destinationPriority = -100
	sourcePriority      = 100
)

// rejectChain answers that nobody is there.
const rejectChain = "reject"

// family has what the rules need to know about an IP family.
type family struct {
	suffix      string
	number      byte // NFPROTO_…
	address     nft.Type
	source      uint32 // offsets in the header
	destination uint32
	// Keys of connection tracking.
	original, originalSource uint32
	words                    int
}

var families = []family{
	{"4", unix.NFPROTO_IPV4, nft.IPv4, 12, 16, unix.NFT_CT_DST_IP, unix.NFT_CT_SRC_IP, 1},
	{"6", unix.NFPROTO_IPV6, nft.IPv6, 8, 24, unix.NFT_CT_DST_IP6, unix.NFT_CT_SRC_IP6, 4},
}

func (f family) is() []nft.Expression {
	return []nft.Expression{nft.Meta(unix.NFT_META_NFPROTO, nft.R(0)), nft.Equal(nft.R(0), []byte{f.number})}
}

// sets returns the family's sets and maps.
func (f family) sets() []nft.Set {
	fields, target := []nft.Type{f.address, nft.Proto, nft.Port}, nft.Concat(f.address, nft.Port)
	frontend, client := nft.Concat(fields...), nft.Concat(append(fields, f.address)...)
	all := []nft.Set{
		{Name: "guarded", Key: frontend},
		{Name: "allowed", Key: client, Ranges: true},
		{Name: "masquerade", Key: frontend},
		{Name: "masquerade-node", Key: frontend},
		{Name: "cluster-ips", Key: f.address},
		{Name: "hairpins", Key: nft.Concat(f.address, f.address)},
	}
	for _, prefix := range sides {
		all = append(all,
			nft.Set{Name: prefix + "check", Key: frontend, Value: nft.Verdict},
			nft.Set{Name: prefix + "services", Key: frontend, Value: nft.Verdict},
			nft.Set{Name: prefix + "endpoints", Key: nft.Concat(append(fields, nft.Mark)...), Value: target},
			nft.Set{Name: prefix + affinities, Key: client, Value: target, Learning: true, Size: 1 << 20},
			nft.Set{Name: prefix + learners, Key: nft.Concat(append(fields, f.address, nft.Port)...), Value: nft.Verdict})
	}
	for i := range all {
		all[i].Name += f.suffix
	}
	return all
}

// frontend loads the frontend that a packet is for into the registers from 0 on.
func (f family) frontend() []nft.Expression {
	return []nft.Expression{
		nft.Payload(nft.Network, f.destination, f.address.Length, nft.R(0)),
		nft.Meta(unix.NFT_META_L4PROTO, nft.R(f.words)),
		nft.Payload(nft.Transport, 2, 2, nft.R(f.words+1)),
	}
}

// originalFrontend loads the one that the connection was for before it was translated.
func (f family) originalFrontend() []nft.Expression {
	return []nft.Expression{
		nft.CtOriginal(f.original, nft.R(0)),
		nft.Meta(unix.NFT_META_L4PROTO, nft.R(f.words)),
		nft.CtOriginal(unix.NFT_CT_PROTO_DST, nft.R(f.words+1)),
	}
}

func (f family) from(r int) nft.Expression {
	return nft.Payload(nft.Network, f.source, f.address.Length, nft.R(r))
}

// within goes on if an address that load brings to register 0 is in the network.
func within(load nft.Expression, p netip.Prefix) []nft.Expression {
	return []nft.Expression{load, nft.And(nft.R(0), maskOf(p)), nft.Equal(nft.R(0), p.Masked().Addr().AsSlice())}
}

// layout says what differs between instances.
type layout struct {
	bridge string // this instance's; "" if there is none
	// others is what names of other instances' bridges begin with: their pods are not ours.
	others string
	pods   []netip.Prefix // the networks of pods, as far as they are known
	ranges []netip.Prefix // the networks that services get their addresses from
	// outsiders says that connections to cluster IPs that are not from pods are masqueraded.
	outsiders bool
	all       bool // all connections to cluster IPs are
}

// writeLayout writes the table's sets, chains and rules. What belongs to single services is in
// elements of the sets, and in pickers and learners.
//
// A packet's way:
//
//	prerouting, output (filter, before translation): nobody serves it → reject; not allowed → drop
//	prerouting, output (nat): services → picker → endpoint
//	postrouting, input (nat), if a service has affinity: learners → the client's endpoint is noted
//	postrouting (nat): masquerade
func writeLayout(b *nft.Batch, l layout) {
	for _, f := range families {
		for _, s := range f.sets() {
			b.AddSet(s)
		}
	}
	chains := []string{rejectChain, "check", "strays", "services", "masquerading"}
	for _, f := range families {
		chains = append(chains, "outside"+f.suffix, "check-outside"+f.suffix, "outsiders"+f.suffix)
	}
	for _, name := range chains {
		b.AddChain(name, nil)
	}
	const before = destinationPriority - 5
	bases := []struct {
		name string
		hook nft.Hook
		jump []string
	}{
		{"check-prerouting", nft.Hook{Type: "filter", Number: unix.NF_INET_PRE_ROUTING, Priority: before}, []string{"check", "strays"}},
		{"check-output", nft.Hook{Type: "filter", Number: unix.NF_INET_LOCAL_OUT, Priority: before}, []string{"check"}},
		{"prerouting", nft.Hook{Type: "nat", Number: unix.NF_INET_PRE_ROUTING, Priority: destinationPriority}, []string{"services"}},
		{"output", nft.Hook{Type: "nat", Number: unix.NF_INET_LOCAL_OUT, Priority: destinationPriority}, []string{"services"}},
		{"postrouting", nft.Hook{Type: "nat", Number: unix.NF_INET_POST_ROUTING, Priority: sourcePriority}, []string{"masquerading"}},
	}
	for _, base := range bases {
		b.AddChain(base.name, &base.hook)
		if base.hook.Number == unix.NF_INET_PRE_ROUTING {
			l.writeScope(b, base.name)
		}
		for _, to := range base.jump {
			b.AddRule(base.name, nft.Jump(to))
		}
	}
	// TCP clients get a reset: of the others' answers the kernel sends one a second to each address,
	// and a client that hears nothing waits a second before it tries again.
	b.AddRule(rejectChain, nft.Meta(unix.NFT_META_L4PROTO, nft.R(0)), nft.Equal(nft.R(0), []byte{unix.IPPROTO_TCP}), nft.Reset())
	b.AddRule(rejectChain, nft.Reject())
	l.writeCheck(b)
	l.writeServices(b)
	l.writeMasquerading(b)
}

func linkName(name string) []byte {
	out := make([]byte, unix.IFNAMSIZ)
	copy(out, name)
	return out
}

// writeScope leaves out what is not ours: packets of the node to itself, which output has seen, and
// those of other instances' pods.
func (l layout) writeScope(b *nft.Batch, chain string) {
	link := nft.Meta(unix.NFT_META_IIFNAME, nft.R(0))
	b.AddRule(chain, link, nft.Equal(nft.R(0), linkName("lo")), nft.Leave())
	if l.others == "" {
		return
	}
	rule := []nft.Expression{link, nft.Equal(nft.R(0), []byte(l.others))}
	if l.bridge != "" {
		rule = append(rule, nft.Differs(nft.R(0), linkName(l.bridge)))
	}
	b.AddRule(chain, append(rule, nft.Leave())...)
}

func (l layout) writeCheck(b *nft.Batch) {
	const establishedOrRelated = 2 | 4
	b.AddRule("check", nft.Ct(unix.NFT_CT_STATE, nft.R(0)), nft.And(nft.R(0), number(establishedOrRelated)),
		nft.Differs(nft.R(0), number(0)), nft.Accept())
	for _, f := range families {
		rule := func(chain string, more ...nft.Expression) { b.AddRule(chain, append(f.is(), more...)...) }
		rule("check", append(f.frontend(), nft.In("guarded"+f.suffix, nft.R(0)), f.from(f.words+2), nft.NotIn("allowed"+f.suffix, nft.R(0)), nft.Drop())...)
		rule("check", nft.Jump("check-outside"+f.suffix))
		rule("check", append(f.frontend(), nft.Dispatch("check"+f.suffix, nft.R(0)))...)
		l.writeInsiders(b, f, "check-outside"+f.suffix)
		rule("check-outside"+f.suffix, append(f.frontend(), nft.Dispatch("outside-check"+f.suffix, nft.R(0)))...)
		// A port that no service has at a cluster IP.
		rule("strays", nft.Payload(nft.Network, f.destination, f.address.Length, nft.R(0)), nft.In("cluster-ips"+f.suffix, nft.R(0)), nft.Jump(rejectChain))
	}
	l.writeUnused(b)
}

// writeUnused drops what pods send to an address of a service range that no service has: it would leave for wherever
// the node's default route leads. It is not refused, as upstream's proxy does not refuse it: the service may be
// new, and its client tries again. Only pods are meant, because another instance's services may be in the same range.
func (l layout) writeUnused(b *nft.Batch) {
	for _, f := range families {
		for _, r := range l.ranges {
			if suffix(r.Addr()) != f.suffix {
				continue
			}
			to := within(nft.Payload(nft.Network, f.destination, f.address.Length, nft.R(0)), r)
			for _, from := range l.podsAsSources(f) {
				b.AddRule("strays", slices.Concat(f.is(), from, to, []nft.Expression{nft.Drop()})...)
			}
		}
	}
}

// podsAsSources returns what goes on for packets of this node's pods, each of a part of them: those from the bridge,
// or else from the networks of pods.
func (l layout) podsAsSources(f family) (out [][]nft.Expression) {
	if l.bridge != "" {
		return [][]nft.Expression{{nft.Meta(unix.NFT_META_IIFNAME, nft.R(0)), nft.Equal(nft.R(0), linkName(l.bridge))}}
	}
	for _, p := range l.pods {
		if suffix(p.Addr()) == f.suffix {
			out = append(out, within(f.from(0), p))
		}
	}
	return out
}

// writeInsiders leaves a chain that is for connections from elsewhere, unless they are.
func (l layout) writeInsiders(b *nft.Batch, f family, chain string) {
	if l.bridge != "" {
		b.AddRule(chain, nft.Meta(unix.NFT_META_IIFNAME, nft.R(0)), nft.Equal(nft.R(0), linkName(l.bridge)), nft.Leave())
	}
	l.writePods(b, f, chain)
	b.AddRule(chain, nft.SourceType(nft.R(0)), nft.Equal(nft.R(0), number(unix.RTN_LOCAL)), nft.Leave())
}

// writePods leaves a chain for connections of pods.
func (l layout) writePods(b *nft.Batch, f family, chain string) {
	for _, p := range l.pods {
		if suffix(p.Addr()) == f.suffix {
			b.AddRule(chain, slices.Concat(f.is(), within(f.from(0), p), []nft.Expression{nft.Leave()})...)
		}
	}
}

func maskOf(p netip.Prefix) []byte {
	out := make([]byte, p.Addr().BitLen()/8)
	for i := range p.Bits() {
		out[i/8] |= 0x80 >> (i % 8)
	}
	return out
}

// number returns a number as registers have it.
func number(n uint32) []byte { return []byte(mark(n)) }

func (l layout) writeServices(b *nft.Batch) {
	for _, f := range families {
		b.AddRule("services", append(f.is(), nft.Jump("outside"+f.suffix))...)
		b.AddRule("services", append(append(f.is(), f.frontend()...), nft.Dispatch("services"+f.suffix, nft.R(0)))...)
		l.writeInsiders(b, f, "outside"+f.suffix)
		b.AddRule("outside"+f.suffix, append(append(f.is(), f.frontend()...), nft.Dispatch("outside-services"+f.suffix, nft.R(0)))...)
	}
}

// leaveUntranslated leaves a chain that is for connections to services.
func leaveUntranslated() []nft.Expression {
	const translated = 1 << 5 // IPS_DST_NAT
	return []nft.Expression{
		nft.Ct(unix.NFT_CT_STATUS, nft.R(0)), nft.And(nft.R(0), number(translated)), nft.Equal(nft.R(0), number(0)), nft.Leave(),
	}
}

func (l layout) writeMasquerading(b *nft.Batch) {
	b.AddRule("masquerading", nft.Meta(unix.NFT_META_OIFNAME, nft.R(0)), nft.Equal(nft.R(0), linkName("lo")), nft.Leave())
	b.AddRule("masquerading", leaveUntranslated()...)
	for _, f := range families {
		rule := func(more ...nft.Expression) { b.AddRule("masquerading", append(f.is(), more...)...) }
		rule(f.from(0), nft.Payload(nft.Network, f.destination, f.address.Length, nft.R(f.words)), nft.In("hairpins"+f.suffix, nft.R(0)), nft.Masquerade())
		rule(append(f.originalFrontend(), nft.In("masquerade"+f.suffix, nft.R(0)), nft.Masquerade())...)
		rule(append(f.originalFrontend(), nft.In("masquerade-node"+f.suffix, nft.R(0)),
			nft.SourceType(nft.R(0)), nft.Equal(nft.R(0), number(unix.RTN_LOCAL)), nft.Masquerade())...)
		rule(nft.Jump("outsiders" + f.suffix))
		if l.outsiders && !l.all {
			l.writePods(b, f, "outsiders"+f.suffix)
		}
		if l.outsiders || l.all {
			b.AddRule("outsiders"+f.suffix, nft.CtOriginal(f.original, nft.R(0)), nft.In("cluster-ips"+f.suffix, nft.R(0)), nft.Masquerade())
		}
	}
}

// write writes the picker's chain. Among the endpoints of the packet's frontend it takes a random one;
// with affinity, the one that the client had before.
func (p picker) write(b *nft.Batch) {
	prefix, f := p.side()
	more := f.words + 2 // the register after the frontend
	to := more + f.words
	begin := func() []nft.Expression { return append(f.is(), f.frontend()...) }
	translate := nft.Translate(uint32(f.number), nft.R(to), nft.R(to+f.words))
	b.AddChain(p.name(), nil)
	if p.affinity > 0 {
		b.AddRule(p.name(), append(begin(), f.from(more), nft.Get(prefix+affinities+f.suffix, nft.R(0), nft.R(to)), translate)...)
	}
	b.AddRule(p.name(), append(begin(), nft.Random(uint32(p.n), nft.R(more)),
		nft.Get(prefix+"endpoints"+f.suffix, nft.R(0), nft.R(to)), translate)...)
}

// writeOnce writes the chains that the picker needs, but for those that were made before.
func (p picker) writeOnce(b *nft.Batch, made map[string]bool) {
	once := func(chain string, write func(*nft.Batch)) {
		if !made[chain] {
			write(b)
			made[chain] = true
		}
	}
	once(p.name(), p.write)
	if p.affinity > 0 {
		once("learn-postrouting", writeLearning)
		once(p.learner(), p.writeLearner)
	}
}
