package validation

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/intstr"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	utilnet "k8s.io/utils/net"
)

// NetworkPolicy checks a network policy.
func NetworkPolicy(n *networkingv1.NetworkPolicy) field.ErrorList {
	return networkPolicy(n, policyOptions{})
}

// NetworkPolicyUpdate checks a network policy that replaces old. What old got away with is let
// through, wherever it stands now.
func NetworkPolicyUpdate(n, old *networkingv1.NetworkPolicy) field.ErrorList {
	o := policyOptions{cidrs: cidrsOf(old)}
	o.labels.AllowInvalidLabelValueInSelector = len(metavalidation.ValidateLabelSelector(&old.Spec.PodSelector, o.labels, nil)) > 0
	return networkPolicy(n, o)
}

// policyOptions say what is let through.
type policyOptions struct {
	labels metavalidation.LabelSelectorValidationOptions
	cidrs  []string
}

func networkPolicy(n *networkingv1.NetworkPolicy, o policyOptions) field.ErrorList {
	p, spec := &problems{}, field.NewPath("spec")
	p.addAll(metavalidation.ValidateLabelSelector(&n.Spec.PodSelector, o.labels, spec.Child("podSelector")))
	for i, rule := range n.Spec.Ingress {
		at := spec.Child("ingress").Index(i)
		p.policyPorts(at.Child("ports"), rule.Ports)
		p.policyPeers(at.Child("from"), rule.From, o)
	}
	for i, rule := range n.Spec.Egress {
		at := spec.Child("egress").Index(i)
		p.policyPorts(at.Child("ports"), rule.Ports)
		p.policyPeers(at.Child("to"), rule.To, o)
	}
	types, at := n.Spec.PolicyTypes, spec.Child("policyTypes")
	if len(types) > 2 {
		p.invalid(at, types, "may not specify more than two policyTypes")
		return p.list
	}
	for i, t := range types {
		oneOf(p, at.Index(i), t, networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress)
	}
	return p.list
}

func (p *problems) policyPorts(at path, ports []networkingv1.NetworkPolicyPort) {
	for i := range ports {
		port, at := &ports[i], at.Index(i)
		if port.Protocol != nil {
			oneOf(p, at.Child("protocol"), *port.Protocol, corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP)
		}
		end := at.Child("endPort")
		switch {
		case port.Port == nil && port.EndPort != nil:
			p.invalid(end, *port.EndPort, "may not be specified when `port` is not specified")
		case port.Port == nil:
			continue
		case port.EndPort == nil:
		case port.Port.Type == intstr.String:
			p.invalid(end, *port.EndPort, "may not be specified when `port` is non-numeric")
		default:
			if *port.EndPort < port.Port.IntVal {
				p.invalid(end, *port.EndPort, "must be greater than or equal to `port`")
			}
			p.portNumber(end, *port.EndPort)
		}
		if port.Port != nil {
			p.portOrName(at.Child("port"), *port.Port)
		}
	}
}

func (p *problems) policyPeers(at path, peers []networkingv1.NetworkPolicyPeer, o policyOptions) {
	for i := range peers {
		peer, at, n := &peers[i], at.Index(i), 0
		for name, s := range map[string]*metav1.LabelSelector{"podSelector": peer.PodSelector, "namespaceSelector": peer.NamespaceSelector} {
			if s != nil {
				n++
				p.addAll(metavalidation.ValidateLabelSelector(s, o.labels, at.Child(name)))
			}
		}
		if peer.IPBlock != nil {
			n++
			p.ipBlock(at.Child("ipBlock"), peer.IPBlock, o)
		}
		switch {
		case n == 0:
			p.required(at, "must specify a peer")
		case n > 1 && peer.IPBlock != nil:
			p.forbidden(at, "may not specify both ipBlock and another peer")
		}
	}
}

func (p *problems) ipBlock(at path, b *networkingv1.IPBlock, o policyOptions) {
	if !p.present(at.Child("cidr"), b.CIDR) {
		return
	}
	p.addAll(utilvalidation.IsValidCIDRForLegacyField(at.Child("cidr"), b.CIDR, true, o.cidrs))
	_, whole, err := utilnet.ParseCIDRSloppy(b.CIDR)
	if err != nil {
		return // told already
	}
	for i, text := range b.Except {
		at := at.Child("except").Index(i)
		p.addAll(utilvalidation.IsValidCIDRForLegacyField(at, text, true, o.cidrs))
		_, part, err := utilnet.ParseCIDRSloppy(text)
		if err != nil {
			continue
		}
		outer, _ := whole.Mask.Size()
		inner, _ := part.Mask.Size()
		if !whole.Contains(part.IP) || outer >= inner {
			p.invalid(at, text, "must be a strict subset of `cidr`")
		}
	}
}

// IPBlocks returns the blocks of addresses of a policy, with their paths.
func IPBlocks(n *networkingv1.NetworkPolicy, each func(at *field.Path, b *networkingv1.IPBlock)) {
	spec := field.NewPath("spec")
	visit := func(at path, peers []networkingv1.NetworkPolicyPeer) {
		for i := range peers {
			if b := peers[i].IPBlock; b != nil {
				each(at.Index(i).Child("ipBlock"), b)
			}
		}
	}
	for i := range n.Spec.Ingress {
		visit(spec.Child("ingress").Index(i).Child("from"), n.Spec.Ingress[i].From)
	}
	for i := range n.Spec.Egress {
		visit(spec.Child("egress").Index(i).Child("to"), n.Spec.Egress[i].To)
	}
}

func cidrsOf(n *networkingv1.NetworkPolicy) []string {
	var out []string
	IPBlocks(n, func(_ *field.Path, b *networkingv1.IPBlock) {
		out = slices.Concat(out, []string{b.CIDR}, b.Except)
	})
	return out
}
