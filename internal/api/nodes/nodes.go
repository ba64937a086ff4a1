// Package nodes is the vocabulary of nodes: what their objects say of them (pure).
package nodes

import (
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"
)

// IsReady reports whether a node's condition Ready is true.
func IsReady(n *v1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c v1.NodeCondition) bool {
		return c.Type == v1.NodeReady && c.Status == v1.ConditionTrue
	})
}

// Ranges returns the networks from which a node's pods get their addresses. What is no network is left out: the API lets
// none in.
func Ranges(n *v1.Node) (out []netip.Prefix) {
	for _, text := range n.Spec.PodCIDRs {
		if p, err := netip.ParsePrefix(text); err == nil {
			out = append(out, p.Masked())
		}
	}
	return out
}
