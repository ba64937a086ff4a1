package warnings

import (
	"context"
	"fmt"

	networkingv1 "k8s.io/api/networking/v1"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"wherry.dev/internal/api/validation"
)

// Ingress warns of the annotation that chose a new ingress' controller before there was a field.
func Ingress(_ context.Context, i *networkingv1.Ingress) []string {
	if _, ok := i.Annotations[validation.IngressClassAnnotation]; !ok || i.Spec.IngressClassName != nil {
		return nil
	}
	return []string{fmt.Sprintf("annotation %q is deprecated, please use 'spec.ingressClassName' instead", validation.IngressClassAnnotation)}
}

// IngressStatus warns of odd addresses of an ingress.
func IngressStatus(_ context.Context, i *networkingv1.Ingress) []string {
	var out []string
	for j, in := range i.Status.LoadBalancer.Ingress {
		out = append(out, balancerIP(j, in.IP)...)
	}
	return out
}

// balancerIP warns of an odd address in the status of a load balancer, or of an ingress.
func balancerIP(i int, ip string) []string {
	if ip == "" {
		return nil
	}
	return utilvalidation.GetWarningsForIP(field.NewPath("status", "loadBalancer", "ingress").Index(i), ip)
}

// NetworkPolicy warns of odd ranges of addresses.
func NetworkPolicy(_ context.Context, n *networkingv1.NetworkPolicy) []string {
	var out []string
	validation.IPBlocks(n, func(at *field.Path, b *networkingv1.IPBlock) {
		out = append(out, utilvalidation.GetWarningsForCIDR(at.Child("cidr"), b.CIDR)...)
		for i, except := range b.Except {
			out = append(out, utilvalidation.GetWarningsForCIDR(at.Child("except").Index(i), except)...)
		}
	})
	return out
}
