package proxy

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	nft "wherry.dev/internal/proxy/nftables"
)

// affinities is the map of frontends and clients, and the endpoints that these have; it is learned
// from connections.
const affinities = "affinities"

// learners is the map of frontends with affinity and their endpoints, and the chains that learn.
const learners = "learners"

// sides are the prefixes of sets: for all connections, and for those from elsewhere where they differ.
var sides = []string{"", "outside-"}

// side is where the picker's sets and chains belong.
func (p picker) side() (prefix string, f family) {
	prefix, f = sides[0], families[1]
	if p.outside {
		prefix = sides[1]
	}
	if p.four {
		f = families[0]
	}
	return prefix, f
}

// learner is the chain that learns the endpoints of clients. All pickers with the same affinity share
// one.
func (p picker) learner() string {
	prefix, f := p.side()
	return fmt.Sprintf("%slearn%s-for-%ds", prefix, f.suffix, int(p.affinity/time.Second))
}

// writeLearning writes how a connection comes to its learner. Chains of nat see the first packet only.
// These are called before its source changes, when its destination is the endpoint. The picker could not
// learn: there the endpoint comes from a map, and nft(8) 1.0.6 aborts when it lists rules that put
// what comes from a map into another one.
//
// What is learned is an endpoint that the side has at that time. If both sides have it, both learn.
func writeLearning(b *nft.Batch) {
	for _, f := range families {
		for _, prefix := range sides {
			chain := prefix + "learning" + f.suffix
			b.AddChain(chain, nil)
			rule := append(f.is(), f.originalFrontend()...)
			rule = append(rule, f.endpoint(f.words+2)...)
			b.AddRule(chain, append(rule, nft.Dispatch(prefix+learners+f.suffix, nft.R(0)))...)
		}
	}
	for _, base := range []struct {
		name string
		hook uint32
	}{
		{"learn-postrouting", unix.NF_INET_POST_ROUTING},
		{"learn-input", unix.NF_INET_LOCAL_IN}, // endpoints on the node
	} {
		b.AddChain(base.name, &nft.Hook{Type: "nat", Number: base.hook, Priority: sourcePriority - 5})
		b.AddRule(base.name, leaveUntranslated()...)
		for _, f := range families {
			for _, prefix := range sides {
				b.AddRule(base.name, append(f.is(), nft.Jump(prefix+"learning"+f.suffix))...)
			}
		}
	}
}

// writeLearner writes the picker's learner.
func (p picker) writeLearner(b *nft.Batch) {
	prefix, f := p.side()
	client, endpoint := f.words+2, 2*f.words+2
	rule := append(f.is(), f.originalFrontend()...)
	rule = append(rule, nft.CtOriginal(f.originalSource, nft.R(client)))
	rule = append(rule, f.endpoint(endpoint)...)
	milliseconds := uint64(p.affinity / time.Millisecond)
	b.AddChain(p.learner(), nil)
	b.AddRule(p.learner(), append(rule, nft.Learn(prefix+affinities+f.suffix, nft.R(0), nft.R(endpoint), milliseconds))...)
}

// endpoint loads the endpoint that a translated packet goes to.
func (f family) endpoint(r int) []nft.Expression {
	return []nft.Expression{
		nft.Payload(nft.Network, f.destination, f.address.Length, nft.R(r)),
		nft.Payload(nft.Transport, 2, 2, nft.R(r+f.words)),
	}
}
