package validation

import (
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	utilnet "k8s.io/utils/net"
)

// ServiceCIDR checks a range of service addresses: one of a family, or one of each.
func ServiceCIDR(c *networkingv1.ServiceCIDR) field.ErrorList {
	p, at, cidrs := &problems{}, field.NewPath("spec", "cidrs"), c.Spec.CIDRs
	switch {
	case len(cidrs) == 0:
		p.required(at, "at least one CIDR required")
		return p.list
	case len(cidrs) > 2:
		p.invalid(at, c.Spec, "may only hold up to 2 values")
		return p.list
	}
	for i, cidr := range cidrs {
		p.addAll(utilvalidation.IsValidCIDR(at.Index(i), cidr))
	}
	if len(cidrs) == 2 {
		family := utilnet.IPFamilyOfCIDRString(cidrs[0])
		if family == utilnet.IPFamilyOfCIDRString(cidrs[1]) && family != utilnet.IPFamilyUnknown {
			p.invalid(at, cidrs, "may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64")
		}
	}
	return p.list
}

// ServiceCIDRUpdate checks a range that replaces old. It may get a second family, and nothing else.
func ServiceCIDRUpdate(c, old *networkingv1.ServiceCIDR) field.ErrorList {
	p, at := &problems{}, field.NewPath("spec", "cidrs")
	is, was := c.Spec.CIDRs, old.Spec.CIDRs
	switch {
	case len(is) == len(was):
		for i := range is {
			if is[i] != was[i] {
				p.invalid(at.Index(i), is[i], isImmutable)
			}
		}
	case len(was) == 1 && len(is) == 2:
		if is[0] != was[0] {
			p.invalid(at.Index(0), is[0], isImmutable)
		}
		p.addAll(ServiceCIDR(c))
	default:
		p.invalid(at, is, isImmutable)
	}
	return p.list
}

// IPAddressName checks the name of an IPAddress: the address in its canonical form.
func IPAddressName(name string, _ bool) []string {
	var out []string
	for _, err := range utilvalidation.IsValidIP(nil, name) {
		out = append(out, err.Detail)
	}
	return out
}

// IPAddress checks to whom an address belongs.
func IPAddress(a *networkingv1.IPAddress) field.ErrorList {
	p, at, ref := &problems{}, field.NewPath("spec", "parentRef"), a.Spec.ParentRef
	if ref == nil {
		p.required(at, "")
		return p.list
	}
	if ref.Group != "" {
		p.subdomain(at.Child("group"), ref.Group)
	}
	p.segment(at.Child("resource"), ref.Resource)
	p.segment(at.Child("name"), ref.Name)
	if ref.Namespace != "" {
		matches(p, at.Child("namespace"), ref.Namespace, content.IsPathSegmentName(ref.Namespace))
	}
	return p.list
}

// IPAddressUpdate checks an address that replaces old.
func IPAddressUpdate(a, old *networkingv1.IPAddress) field.ErrorList {
	p := &problems{list: IPAddress(a)}
	p.unchanged(field.NewPath("spec", "parentRef"), a.Spec.ParentRef, old.Spec.ParentRef)
	return p.list
}
