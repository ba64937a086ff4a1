package validation

import (
	discoveryv1 "k8s.io/api/discovery/v1"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	utilnet "k8s.io/utils/net"
)

const (
	maxSliceEndpoints = 1000
	maxSliceAddresses = 100
	maxSlicePorts     = 20000
	maxSliceHints     = 8 // of either kind
)

// EndpointSlice checks an endpoint slice.
func EndpointSlice(s *discoveryv1.EndpointSlice) field.ErrorList {
	p := &problems{}
	oneOfRequired(p, field.NewPath("addressType"), s.AddressType, discoveryv1.AddressTypeFQDN, discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6)
	if n := len(s.Ports); n > maxSlicePorts {
		p.add(field.TooMany(field.NewPath("ports"), n, maxSlicePorts))
	}
	names := map[string]bool{}
	for i, port := range s.Ports {
		at := field.NewPath("ports").Index(i)
		name := ""
		if port.Name != nil {
			name = *port.Name
		}
		if name != "" {
			p.label(at.Child("name"), name)
		}
		if names[name] {
			p.add(field.Duplicate(at.Child("name"), name))
		}
		names[name] = true
		if port.Port != nil {
			p.portNumber(at.Child("port"), *port.Port)
		}
		if port.Protocol != nil {
			oneOf(p, at.Child("protocol"), *port.Protocol, protocols...)
		}
		if port.AppProtocol != nil {
			p.qualified(at.Child("appProtocol"), *port.AppProtocol)
		}
	}
	if n := len(s.Endpoints); n > maxSliceEndpoints {
		p.add(field.TooMany(field.NewPath("endpoints"), n, maxSliceEndpoints))
		return p.list
	}
	for i := range s.Endpoints {
		p.sliceEndpoint(field.NewPath("endpoints").Index(i), s.AddressType, &s.Endpoints[i])
	}
	return p.list
}

func (p *problems) sliceEndpoint(at path, kind discoveryv1.AddressType, e *discoveryv1.Endpoint) {
	addresses := at.Child("addresses")
	if n := len(e.Addresses); n == 0 {
		p.required(addresses, "must contain at least 1 address")
	} else if n > maxSliceAddresses {
		p.add(field.TooMany(addresses, n, maxSliceAddresses))
	}
	for i, a := range e.Addresses {
		at := addresses.Index(i)
		switch kind {
		case discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6:
			p.ip(at, a)
			if six := utilnet.IsIPv6String(a); utilnet.ParseIPSloppy(a) != nil && six != (kind == discoveryv1.AddressTypeIPv6) {
				p.invalid(addresses, a, "must be an %s address", kind)
			}
			p.endpointIP(at, a)
		case discoveryv1.AddressTypeFQDN:
			p.addAll(utilvalidation.IsFullyQualifiedDomainName(at, a))
		}
	}
	if e.NodeName != nil {
		p.subdomain(at.Child("nodeName"), *e.NodeName)
	}
	if e.Hostname != nil {
		p.label(at.Child("hostname"), *e.Hostname)
	}
	if e.Hints != nil {
		p.sliceHints(at.Child("hints"), e.Hints)
	}
}

func (p *problems) sliceHints(at path, h *discoveryv1.EndpointHints) {
	zones, nodes := at.Child("forZones"), at.Child("forNodes")
	if n := len(h.ForZones); n > maxSliceHints {
		p.add(field.TooMany(zones, n, maxSliceHints))
		return
	}
	seen := map[string]bool{}
	for i, z := range h.ForZones {
		p.once(zones.Index(i).Child("name"), seen, z.Name)
		matches(p, zones.Index(i).Child("name"), z.Name, utilvalidation.IsValidLabelValue(z.Name))
	}
	if n := len(h.ForNodes); n > maxSliceHints {
		p.add(field.TooMany(nodes, n, maxSliceHints))
		return
	}
	seen = map[string]bool{}
	for i, n := range h.ForNodes {
		p.once(nodes.Index(i).Child("name"), seen, n.Name)
		p.subdomain(nodes.Index(i).Child("name"), n.Name)
	}
}

// once refuses a value that was seen before.
func (p *problems) once(at path, seen map[string]bool, value string) {
	if seen[value] {
		p.add(field.Duplicate(at, value))
	}
	seen[value] = true
}

// EndpointSliceUpdate checks an endpoint slice that replaces old.
func EndpointSliceUpdate(s, old *discoveryv1.EndpointSlice) field.ErrorList {
	p := &problems{list: EndpointSlice(s)}
	immutable(p, field.NewPath("addressType"), s.AddressType, old.AddressType)
	return p.list
}
