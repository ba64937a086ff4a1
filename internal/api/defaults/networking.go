package defaults

import (
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
)

// NetworkPolicy makes a policy one of ingress, and of egress if it has such rules, and its ports TCP.
func NetworkPolicy(n *networkingv1.NetworkPolicy) {
	spec := &n.Spec
	if len(spec.PolicyTypes) == 0 {
		spec.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}
		if len(spec.Egress) > 0 {
			spec.PolicyTypes = append(spec.PolicyTypes, networkingv1.PolicyTypeEgress)
		}
	}
	for i := range spec.Ingress {
		policyPorts(spec.Ingress[i].Ports)
	}
	for i := range spec.Egress {
		policyPorts(spec.Egress[i].Ports)
	}
}

func policyPorts(ports []networkingv1.NetworkPolicyPort) {
	for i := range ports {
		setPtr(&ports[i].Protocol, corev1.ProtocolTCP)
	}
}

// IngressClass looks for the parameters in no namespace.
func IngressClass(c *networkingv1.IngressClass) {
	if p := c.Spec.Parameters; p != nil {
		setPtr(&p.Scope, networkingv1.IngressClassParametersReferenceScopeCluster)
	}
}
