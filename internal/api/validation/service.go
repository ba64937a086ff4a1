package validation

import (
	"fmt"
	"net"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
	utilnet "k8s.io/utils/net"
)

// Service checks a new service, once its addresses and ports have been allocated.
func Service(s *corev1.Service) field.ErrorList {
	p := &problems{}
	p.service(s)
	return p.list
}

// ServiceUpdate checks a service that replaces old.
func ServiceUpdate(s, old *corev1.Service) field.ErrorList {
	p := &problems{}
	p.clusterIPUpdate(s, old)
	p.ipFamilyUpdate(s, old)
	class, was := s.Spec.LoadBalancerClass, old.Spec.LoadBalancerClass
	if s.Spec.Type == corev1.ServiceTypeLoadBalancer && old.Spec.Type == corev1.ServiceTypeLoadBalancer &&
		(class == nil) != (was == nil) || (class != nil && was != nil && *class != *was) {
		p.invalid(field.NewPath("spec", "loadBalancerClass"), class, "may not change once set")
	}
	p.service(s)
	return p.list
}

func headless(s *corev1.Service) bool {
	return len(s.Spec.ClusterIPs) == 1 && s.Spec.ClusterIPs[0] == corev1.ClusterIPNone
}

func (p *problems) service(s *corev1.Service) {
	at := field.NewPath("spec")
	if len(s.Spec.Ports) == 0 && !headless(s) && s.Spec.Type != corev1.ServiceTypeExternalName {
		p.required(at.Child("ports"), "")
	}
	p.serviceType(at, s)
	p.servicePorts(at.Child("ports"), s)
	if s.Spec.Selector != nil {
		p.addAll(metavalidation.ValidateLabels(s.Spec.Selector, at.Child("selector")))
	}
	p.sessionAffinity(at, s)
	p.addAll(ServiceAddresses(s))
	for i, ip := range s.Spec.ExternalIPs {
		p.ip(at.Child("externalIPs").Index(i), ip)
		p.endpointIP(at.Child("externalIPs").Index(i), ip)
	}
	p.loadBalancer(at, s)
	p.traffic(at, s)
}

func (p *problems) serviceType(at path, s *corev1.Service) {
	oneOfRequired(p, at.Child("type"), s.Spec.Type,
		corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort, corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeExternalName)
	switch s.Spec.Type {
	case corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeNodePort:
		if headless(s) {
			p.invalid(at.Child("clusterIPs").Index(0), corev1.ClusterIPNone, "may not be set to 'None' for %s services", s.Spec.Type)
		}
	case corev1.ServiceTypeExternalName:
		const cannot = "may not be set for ExternalName services"
		for _, f := range []setField{
			{"clusterIPs", len(s.Spec.ClusterIPs) > 0}, {"ipFamilies", len(s.Spec.IPFamilies) > 0}, {"ipFamilyPolicy", s.Spec.IPFamilyPolicy != nil},
		} {
			if f.set {
				p.forbidden(at.Child(f.name), cannot)
			}
		}
		if name := strings.TrimSuffix(s.Spec.ExternalName, "."); p.present(at.Child("externalName"), name) {
			p.subdomain(at.Child("externalName"), name)
		}
	}
}

func (p *problems) servicePorts(at path, s *corev1.Service) {
	type key struct {
		protocol corev1.Protocol
		port     int32
	}
	names, ports, nodePorts := map[string]bool{}, map[key]bool{}, map[key]bool{}
	for i := range s.Spec.Ports {
		port, at := &s.Spec.Ports[i], at.Index(i)
		if port.Name != "" || len(s.Spec.Ports) > 1 {
			if p.present(at.Child("name"), port.Name) {
				p.label(at.Child("name"), port.Name)
			}
			if names[port.Name] && port.Name != "" {
				p.add(field.Duplicate(at.Child("name"), port.Name))
			}
			names[port.Name] = true
		}
		p.portNumber(at.Child("port"), port.Port)
		oneOfRequired(p, at.Child("protocol"), port.Protocol, protocols...)
		p.portOrName(at.Child("targetPort"), port.TargetPort)
		if port.AppProtocol != nil {
			p.qualified(at.Child("appProtocol"), *port.AppProtocol)
		}
		if port.NodePort != 0 && s.Spec.Type == corev1.ServiceTypeClusterIP {
			p.forbidden(at.Child("nodePort"), "may not be used when `type` is 'ClusterIP'")
		}
		if k := (key{port.Protocol, port.NodePort}); port.NodePort != 0 {
			if nodePorts[k] {
				p.add(field.Duplicate(at.Child("nodePort"), port.NodePort))
			}
			nodePorts[k] = true
		}
		if k := (key{port.Protocol, port.Port}); ports[k] {
			p.add(field.Duplicate(at, corev1.ServicePort{Protocol: port.Protocol, Port: port.Port}))
		} else {
			ports[k] = true
		}
	}
}

const maxAffinitySeconds = 86400

func (p *problems) sessionAffinity(at path, s *corev1.Service) {
	oneOfRequired(p, at.Child("sessionAffinity"), s.Spec.SessionAffinity, corev1.ServiceAffinityClientIP, corev1.ServiceAffinityNone)
	cfg, at := s.Spec.SessionAffinityConfig, at.Child("sessionAffinityConfig")
	switch {
	case s.Spec.SessionAffinity == corev1.ServiceAffinityNone && cfg != nil:
		p.forbidden(at, "must not be set when session affinity is None")
	case s.Spec.SessionAffinity != corev1.ServiceAffinityClientIP:
	case cfg == nil || cfg.ClientIP == nil || cfg.ClientIP.TimeoutSeconds == nil:
		p.required(at, "when session affinity type is ClientIP")
	default:
		if t := *cfg.ClientIP.TimeoutSeconds; t <= 0 || t > maxAffinitySeconds {
			p.invalid(at.Child("clientIP", "timeoutSeconds"), t, "must be greater than 0 and less than %d", maxAffinitySeconds)
		}
	}
}

// ServiceAddresses checks the cluster IPs of a service, their families and the policy for them: what must be
// right before addresses are allocated.
func ServiceAddresses(s *corev1.Service) field.ErrorList {
	p, at := &problems{}, field.NewPath("spec")
	if s.Spec.Type == corev1.ServiceTypeExternalName {
		return nil
	}
	p.families(at, s)
	p.clusterIPs(at.Child("clusterIPs"), s)
	return p.list
}

func (p *problems) families(at path, s *corev1.Service) {
	seen := map[corev1.IPFamily]bool{}
	for i, f := range s.Spec.IPFamilies {
		at := at.Child("ipFamilies").Index(i)
		oneOf(p, at, f, corev1.IPv4Protocol, corev1.IPv6Protocol)
		if seen[f] {
			p.add(field.Duplicate(at, f))
		}
		seen[f] = true
	}
	if policy := s.Spec.IPFamilyPolicy; policy != nil {
		oneOf(p, at.Child("ipFamilyPolicy"), *policy,
			corev1.IPFamilyPolicyPreferDualStack, corev1.IPFamilyPolicyRequireDualStack, corev1.IPFamilyPolicySingleStack)
	}
}

func (p *problems) clusterIPs(at path, s *corev1.Service) {
	ips := s.Spec.ClusterIPs
	switch {
	case s.Spec.ClusterIP != "" && len(ips) == 0:
		p.required(at, "")
	case s.Spec.ClusterIP != "" && ips[0] != s.Spec.ClusterIP:
		p.invalid(at, ips, "first value must match `clusterIP`")
	case s.Spec.ClusterIP == "" && len(ips) > 0:
		p.invalid(at, ips, "must be empty when `clusterIP` is not specified")
	}
	valid := true
	for i, ip := range ips {
		if i == 0 && ip == corev1.ClusterIPNone {
			if len(ips) > 1 {
				p.invalid(at, ips, "'None' must be the first and only value")
				valid = false
			}
			continue
		}
		p.ip(at.Index(i), ip)
		if parsed := utilnet.ParseIPSloppy(ip); parsed == nil {
			valid = false
		} else if i < len(s.Spec.IPFamilies) && utilnet.IsIPv6(parsed) != (s.Spec.IPFamilies[i] == corev1.IPv6Protocol) {
			p.invalid(at.Index(i), ip, "expected an %s value as indicated by `ipFamilies[%v]`", s.Spec.IPFamilies[i], i)
		}
	}
	if len(ips) > 2 {
		p.invalid(at, ips, "may only hold up to 2 values")
	}
	if len(ips) == 2 && valid && utilnet.IsIPv6String(ips[0]) == utilnet.IsIPv6String(ips[1]) {
		p.invalid(at, ips, "may specify no more than one IP for each IP family")
	}
}

func hasAddresses(s *corev1.Service) bool { return s.Spec.Type != corev1.ServiceTypeExternalName }

// clusterIPUpdate checks that the addresses stay. A second one may be added, and be removed by the policy
// SingleStack.
func (p *problems) clusterIPUpdate(s, old *corev1.Service) {
	if hasAddresses(s) && hasAddresses(old) && (!headless(s) || !headless(old)) {
		pinned(p, "clusterIPs", "clusterIP", s, s.Spec.ClusterIPs, old.Spec.ClusterIPs)
	}
}

// ipFamilyUpdate checks that the families stay, except those of a headless service.
func (p *problems) ipFamilyUpdate(s, old *corev1.Service) {
	if hasAddresses(s) && hasAddresses(old) && !headless(s) && !headless(old) {
		pinned(p, "ipFamilies", "ipFamily", s, s.Spec.IPFamilies, old.Spec.IPFamilies)
	}
}

// pinned reports what an update changes in a list whose second element alone may come and go. one is the
// word for an element.
func pinned[T comparable](p *problems, name, one string, s *corev1.Service, is, was []T) {
	at := field.NewPath("spec", name)
	if len(was) > 0 && len(is) == 0 {
		p.invalid(at.Index(0), is, "primary %s can not be unset", one)
		return
	}
	for i := range min(len(was), len(is)) {
		if was[i] != is[i] {
			p.invalid(at.Index(i), is, "may not change once set")
		}
	}
	if policy := s.Spec.IPFamilyPolicy; len(was) == 2 && len(is) == 1 && (policy == nil || *policy != corev1.IPFamilyPolicySingleStack) {
		p.invalid(field.NewPath("spec", "ipFamilyPolicy"), policy, "must be set to 'SingleStack' when releasing the secondary %s", one)
	}
}

func (p *problems) loadBalancer(at path, s *corev1.Service) {
	balanced := s.Spec.Type == corev1.ServiceTypeLoadBalancer
	const only = "may only be used when `type` is 'LoadBalancer'"
	if ranges := s.Spec.LoadBalancerSourceRanges; len(ranges) > 0 {
		at := at.Child("LoadBalancerSourceRanges")
		if !balanced {
			p.forbidden(at, only)
		}
		for i, r := range ranges {
			if _, _, err := net.ParseCIDR(strings.TrimSpace(r)); err != nil {
				p.invalid(at.Index(i), r, "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)")
			}
		}
	}
	if s.Spec.AllocateLoadBalancerNodePorts != nil && !balanced {
		p.forbidden(at.Child("allocateLoadBalancerNodePorts"), only)
	}
	if class := s.Spec.LoadBalancerClass; class != nil {
		if !balanced {
			p.forbidden(at.Child("loadBalancerClass"), only)
		}
		p.qualified(at.Child("loadBalancerClass"), *class)
	}
}

func (p *problems) traffic(at path, s *corev1.Service) {
	external := s.Spec.Type == corev1.ServiceTypeLoadBalancer || s.Spec.Type == corev1.ServiceTypeNodePort ||
		(s.Spec.Type == corev1.ServiceTypeClusterIP && len(s.Spec.ExternalIPs) > 0)
	policy := s.Spec.ExternalTrafficPolicy
	if external {
		oneOfRequired(p, at.Child("externalTrafficPolicy"), policy, corev1.ServiceExternalTrafficPolicyCluster, corev1.ServiceExternalTrafficPolicyLocal)
	} else if policy != "" {
		p.invalid(at.Child("externalTrafficPolicy"), policy, "may only be set for externally-accessible services")
	}
	checked := s.Spec.Type == corev1.ServiceTypeLoadBalancer && policy == corev1.ServiceExternalTrafficPolicyLocal
	if port := s.Spec.HealthCheckNodePort; checked && port != 0 {
		p.portNumber(at.Child("healthCheckNodePort"), port)
	} else if port != 0 {
		p.invalid(at.Child("healthCheckNodePort"), port, "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'")
	}
	if i := s.Spec.InternalTrafficPolicy; i != nil {
		oneOf(p, at.Child("internalTrafficPolicy"), *i, corev1.ServiceInternalTrafficPolicyCluster, corev1.ServiceInternalTrafficPolicyLocal)
	}
	if d := s.Spec.TrafficDistribution; d != nil {
		oneOf(p, at.Child("trafficDistribution"), *d,
			corev1.ServiceTrafficDistributionPreferClose, corev1.ServiceTrafficDistributionPreferSameZone, corev1.ServiceTrafficDistributionPreferSameNode)
	}
}

// endpointIP reports addresses to which no traffic can be sent.
func (p *problems) endpointIP(at path, value string) {
	ip := utilnet.ParseIPSloppy(value)
	if ip == nil {
		return
	}
	for what, is := range map[string]bool{
		fmt.Sprintf("unspecified (%v)", value):                        ip.IsUnspecified(),
		"in the loopback range (127.0.0.0/8, ::1/128)":                ip.IsLoopback(),
		"in the link-local range (169.254.0.0/16, fe80::/10)":         ip.IsLinkLocalUnicast(),
		"in the link-local multicast range (224.0.0.0/24, ff02::/10)": ip.IsLinkLocalMulticast(),
	} {
		if is {
			p.invalid(at, value, "%s", "may not be "+what)
		}
	}
}

// ServiceStatusUpdate checks a status that replaces old's: addresses are for load balancers alone.
func ServiceStatusUpdate(s, old *corev1.Service) field.ErrorList {
	p := &problems{}
	at := field.NewPath("status", "loadBalancer", "ingress")
	list := s.Status.LoadBalancer.Ingress
	if len(list) > 0 && s.Spec.Type != corev1.ServiceTypeLoadBalancer {
		p.forbidden(at, "may only be used when `spec.type` is 'LoadBalancer'")
		return p.list
	}
	had := sets.New[string]()
	for _, in := range old.Status.LoadBalancer.Ingress {
		had.Insert(in.IP)
	}
	for i, in := range list {
		at := at.Index(i)
		if in.IP != "" && !had.Has(in.IP) {
			p.ip(at.Child("ip"), in.IP)
		}
		switch mode := at.Child("ipMode"); {
		case in.IPMode == nil && in.IP != "":
			p.required(mode, "must be specified when `ip` is set")
		case in.IPMode != nil && in.IP == "":
			p.forbidden(mode, "may not be specified when `ip` is not set")
		case in.IPMode != nil:
			oneOf(p, mode, *in.IPMode, corev1.LoadBalancerIPModeProxy, corev1.LoadBalancerIPModeVIP)
		}
		if in.Hostname != "" {
			p.subdomain(at.Child("hostname"), in.Hostname)
			if utilnet.ParseIPSloppy(in.Hostname) != nil {
				p.invalid(at.Child("hostname"), in.Hostname, "must be a DNS name, not an IP address")
			}
		}
	}
	return p.list
}
