package resources

import (
	"context"

	networkingv1 "k8s.io/api/networking/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wherry.dev/internal/api/validation"
	"wherry.dev/internal/apiserver/registry"
	"wherry.dev/internal/apiserver/registry/printers"
	"wherry.dev/internal/apiserver/registry/warnings"
)

func ingresses() registry.Row[*networkingv1.Ingress] {
	type ingress = *networkingv1.Ingress
	return registry.Row[ingress]{
		Resource:   gvr(networkingv1.SchemeGroupVersion, "ingresses"),
		Kind:       "Ingress",
		Singular:   "ingress",
		ShortNames: []string{"ing"},
		Namespaced: true,
		New:        func() ingress { return &networkingv1.Ingress{} },
		NewList:    list[networkingv1.IngressList](),
		Table:      printers.Ingresses,
		CheckName:  apivalidation.NameIsDNSSubdomain,
		Strategy: registry.Strategy[ingress]{
			Create: func(_ context.Context, i ingress) { i.Status, i.Generation = networkingv1.IngressStatus{}, 1 },
			Update: func(_ context.Context, i, old ingress) {
				i.Status = old.Status
				bump(i, old, !apiequality.Semantic.DeepEqual(i.Spec, old.Spec))
			},
			Validate:       onCreate(validation.Ingress),
			ValidateUpdate: onUpdate(validation.IngressUpdate),
			WarnNew:        warnings.Ingress,
			Reset:          []string{"status"},
		},
		Status: &registry.Strategy[ingress]{
			Update:         func(_ context.Context, i, old ingress) { i.Spec = old.Spec },
			ValidateUpdate: onUpdate(validation.IngressStatusUpdate),
			Warn:           warnings.IngressStatus,
			Reset:          []string{"spec"},
		},
	}
}

func ingressClasses() registry.Row[*networkingv1.IngressClass] {
	type class = *networkingv1.IngressClass
	return registry.Row[class]{
		Resource:  gvr(networkingv1.SchemeGroupVersion, "ingressclasses"),
		Kind:      "IngressClass",
		Singular:  "ingressclass",
		New:       func() class { return &networkingv1.IngressClass{} },
		NewList:   list[networkingv1.IngressClassList](),
		Table:     printers.IngressClasses,
		CheckName: apivalidation.NameIsDNSSubdomain,
		Strategy: registry.Strategy[class]{
			Create:         func(_ context.Context, c class) { c.Generation = 1 },
			Update:         func(_ context.Context, c, old class) { bump(c, old, !apiequality.Semantic.DeepEqual(c.Spec, old.Spec)) },
			Validate:       onCreate(validation.IngressClass),
			ValidateUpdate: onUpdate(validation.IngressClassUpdate),
		},
	}
}

func networkPolicies() registry.Row[*networkingv1.NetworkPolicy] {
	type policy = *networkingv1.NetworkPolicy
	return registry.Row[policy]{
		Resource:   gvr(networkingv1.SchemeGroupVersion, "networkpolicies"),
		Kind:       "NetworkPolicy",
		Singular:   "networkpolicy",
		ShortNames: []string{"netpol"},
		Namespaced: true,
		New:        func() policy { return &networkingv1.NetworkPolicy{} },
		NewList:    list[networkingv1.NetworkPolicyList](),
		Table:      printers.NetworkPolicies,
		CheckName:  apivalidation.NameIsDNSSubdomain,
		Strategy: registry.Strategy[policy]{
			Create: func(_ context.Context, n policy) { n.Generation = 1 },
			Update: func(_ context.Context, n, old policy) {
				bump(n, old, !apiequality.Semantic.DeepEqual(n.Spec, old.Spec))
			},
			Validate:       onCreate(validation.NetworkPolicy),
			ValidateUpdate: onUpdate(validation.NetworkPolicyUpdate),
			Warn:           warnings.NetworkPolicy,
		},
	}
}

func serviceCIDRs() registry.Row[*networkingv1.ServiceCIDR] {
	type cidr = *networkingv1.ServiceCIDR
	return registry.Row[cidr]{
		Resource:  gvr(networkingv1.SchemeGroupVersion, "servicecidrs"),
		Kind:      "ServiceCIDR",
		Singular:  "servicecidr",
		New:       func() cidr { return &networkingv1.ServiceCIDR{} },
		NewList:   list[networkingv1.ServiceCIDRList](),
		Table:     printers.ServiceCIDRs,
		CheckName: apivalidation.NameIsDNSSubdomain,
		Strategy: registry.Strategy[cidr]{
			Create:         func(_ context.Context, c cidr) { c.Status = networkingv1.ServiceCIDRStatus{} },
			Update:         func(_ context.Context, c, old cidr) { c.Status = old.Status },
			Validate:       onCreate(validation.ServiceCIDR),
			ValidateUpdate: onUpdate(validation.ServiceCIDRUpdate),
			Reset:          []string{"status"},
		},
		Status: &registry.Strategy[cidr]{
			Update: func(_ context.Context, c, old cidr) {
				c.Spec = old.Spec
				metav1.ResetObjectMetaForStatus(&c.ObjectMeta, &old.ObjectMeta)
			},
			Reset: []string{"metadata", "spec"},
		},
	}
}

func ipAddresses() registry.Row[*networkingv1.IPAddress] {
	type address = *networkingv1.IPAddress
	return registry.Row[address]{
		Resource:   gvr(networkingv1.SchemeGroupVersion, "ipaddresses"),
		Kind:       "IPAddress",
		Singular:   "ipaddress",
		ShortNames: []string{"ip"},
		New:        func() address { return &networkingv1.IPAddress{} },
		NewList:    list[networkingv1.IPAddressList](),
		Table:      printers.IPAddresses,
		CheckName:  validation.IPAddressName,
		Strategy: registry.Strategy[address]{
			Validate:       onCreate(validation.IPAddress),
			ValidateUpdate: onUpdate(validation.IPAddressUpdate),
		},
	}
}
