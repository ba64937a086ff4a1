package validation

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	utilnet "k8s.io/utils/net"
)

// IngressClassAnnotation is what named an ingress' class before it had a field.
const IngressClassAnnotation = "kubernetes.io/ingress.class"

const notAnIP = "must be a DNS name, not an IP address"

// Ingress checks a new ingress.
func Ingress(in *networkingv1.Ingress) field.ErrorList {
	p := &problems{list: ingress(in, ingressOptions{})}
	class, ok := in.Annotations[IngressClassAnnotation]
	if ok && in.Spec.IngressClassName != nil && class != *in.Spec.IngressClassName {
		p.invalid(field.NewPath("annotations").Child(IngressClassAnnotation), class, "must match `ingressClassName` when both are specified")
	}
	return p.list
}

// IngressUpdate checks an ingress that replaces old. Old ingresses were allowed more.
func IngressUpdate(in, old *networkingv1.Ingress) field.ErrorList {
	return ingress(in, ingressOptions{secrets: badSecret(old), wildcards: badWildcard(old)})
}

// ingressOptions say what is not checked.
type ingressOptions struct{ secrets, wildcards bool }

func badSecret(in *networkingv1.Ingress) bool {
	for _, t := range in.Spec.TLS {
		if t.SecretName != "" && len(apivalidation.NameIsDNSSubdomain(t.SecretName, false)) > 0 {
			return true
		}
	}
	return false
}

func badWildcard(in *networkingv1.Ingress) bool {
	for i := range in.Spec.Rules {
		p := &problems{}
		p.ingressPaths(nil, in.Spec.Rules[i].HTTP)
		if strings.Contains(in.Spec.Rules[i].Host, "*") && len(p.list) > 0 {
			return true
		}
	}
	return false
}

func ingress(in *networkingv1.Ingress, o ingressOptions) field.ErrorList {
	p, at, spec := &problems{}, field.NewPath("spec"), &in.Spec
	if len(spec.Rules) == 0 && spec.DefaultBackend == nil {
		p.invalid(at, spec.Rules, "either `defaultBackend` or `rules` must be specified")
	}
	if spec.DefaultBackend != nil {
		p.ingressBackend(at.Child("defaultBackend"), spec.DefaultBackend)
	}
	for i := range spec.Rules {
		rule, at := &spec.Rules[i], at.Child("rules").Index(i)
		if rule.Host != "" && utilnet.ParseIPSloppy(rule.Host) != nil {
			p.invalid(at.Child("host"), rule.Host, notAnIP)
		}
		if rule.Host != "" {
			p.ingressHost(at.Child("host"), rule.Host)
		}
		if !strings.Contains(rule.Host, "*") || !o.wildcards {
			p.ingressPaths(at.Child("http"), rule.HTTP)
		}
	}
	for i, t := range spec.TLS {
		at := at.Child("tls").Index(i)
		for j, host := range t.Hosts {
			p.ingressHost(at.Child("hosts").Index(j), host)
		}
		if t.SecretName != "" && !o.secrets {
			p.subdomain(at.Child("secretName"), t.SecretName)
		}
	}
	if spec.IngressClassName != nil {
		p.subdomain(at.Child("ingressClassName"), *spec.IngressClassName)
	}
	return p.list
}

func (p *problems) ingressHost(at path, host string) {
	if strings.Contains(host, "*") {
		matches(p, at, host, utilvalidation.IsWildcardDNS1123Subdomain(host))
		return
	}
	p.subdomain(at, host)
}

func (p *problems) ingressPaths(at path, rule *networkingv1.HTTPIngressRuleValue) {
	if rule == nil {
		return
	}
	if len(rule.Paths) == 0 {
		p.required(at.Child("paths"), "")
	}
	for i := range rule.Paths {
		p.ingressPath(at.Child("paths").Index(i), &rule.Paths[i])
	}
}

func (p *problems) ingressPath(at path, r *networkingv1.HTTPIngressPath) {
	if r.PathType == nil {
		p.required(at.Child("pathType"), "pathType must be specified")
		return
	}
	text, absolute := at.Child("path"), strings.HasPrefix(r.Path, "/")
	switch *r.PathType {
	case networkingv1.PathTypeExact, networkingv1.PathTypePrefix:
		if !absolute {
			p.invalid(text, r.Path, "must be an absolute path")
		}
		for _, s := range []string{"//", "/./", "/../", "%2f", "%2F"} {
			if strings.Contains(r.Path, s) {
				p.invalid(text, r.Path, "%s", "must not contain '"+s+"'")
			}
		}
		for _, s := range []string{"/..", "/."} {
			if strings.HasSuffix(r.Path, s) {
				p.invalid(text, r.Path, "cannot end with '%s'", s)
			}
		}
	case networkingv1.PathTypeImplementationSpecific:
		if r.Path != "" && !absolute {
			p.invalid(text, r.Path, "must be an absolute path")
		}
	default:
		oneOf(p, at.Child("pathType"), *r.PathType,
			networkingv1.PathTypeExact, networkingv1.PathTypePrefix, networkingv1.PathTypeImplementationSpecific)
	}
	p.ingressBackend(at.Child("backend"), &r.Backend)
}

func (p *problems) ingressBackend(at path, b *networkingv1.IngressBackend) {
	switch {
	case b.Resource != nil && b.Service != nil:
		p.invalid(at, "", "cannot set both resource and service backends")
	case b.Resource != nil:
		p.typedReference(at.Child("resource"), b.Resource)
	case b.Service != nil:
		p.serviceBackend(at, b.Service)
	default:
		p.invalid(at, "", "resource or service backend is required")
	}
}

func (p *problems) serviceBackend(at path, s *networkingv1.IngressServiceBackend) {
	if name := at.Child("service", "name"); p.present(name, s.Name) {
		p.label(name, s.Name)
	}
	port := at.Child("service", "port")
	switch {
	case s.Port.Name != "" && s.Port.Number != 0:
		p.invalid(at, "", "cannot set both port name & port number")
	case s.Port.Name != "":
		matches(p, port.Child("name"), s.Port.Name, utilvalidation.IsValidPortName(s.Port.Name))
	case s.Port.Number != 0:
		p.portNumber(port.Child("number"), s.Port.Number)
	default:
		p.required(at, "port name or number is required")
	}
}

// segment checks a required name that becomes part of a path.
func (p *problems) segment(at path, value string) {
	if p.present(at, value) {
		matches(p, at, value, content.IsPathSegmentName(value))
	}
}

func (p *problems) typedReference(at path, r *corev1.TypedLocalObjectReference) {
	if r.APIGroup != nil {
		p.subdomain(at.Child("apiGroup"), *r.APIGroup)
	}
	p.segment(at.Child("kind"), r.Kind)
	p.segment(at.Child("name"), r.Name)
}

// IngressStatusUpdate checks the status of an ingress that replaces old.
func IngressStatusUpdate(in, old *networkingv1.Ingress) field.ErrorList {
	var known []string
	for _, i := range old.Status.LoadBalancer.Ingress {
		known = append(known, i.IP)
	}
	p := &problems{}
	for i, point := range in.Status.LoadBalancer.Ingress {
		at := field.NewPath("status", "loadBalancer", "ingress").Index(i)
		if point.IP != "" {
			p.addAll(utilvalidation.IsValidIPForLegacyField(at.Child("ip"), point.IP, true, known))
		}
		if point.Hostname != "" {
			p.subdomain(at.Child("hostname"), point.Hostname)
			if utilnet.ParseIPSloppy(point.Hostname) != nil {
				p.invalid(at.Child("hostname"), point.Hostname, notAnIP)
			}
		}
	}
	return p.list
}

const maxIngressController = 250

// IngressClass checks a class of ingresses.
func IngressClass(c *networkingv1.IngressClass) field.ErrorList {
	p, at := &problems{}, field.NewPath("spec")
	if len(c.Spec.Controller) > maxIngressController {
		p.add(field.TooLong(at.Child("controller"), "", maxIngressController))
	}
	p.addAll(utilvalidation.IsDomainPrefixedPath(at.Child("controller"), c.Spec.Controller))
	if c.Spec.Parameters != nil {
		p.ingressParameters(at.Child("parameters"), c.Spec.Parameters)
	}
	return p.list
}

// IngressClassUpdate checks a class that replaces old.
func IngressClassUpdate(c, old *networkingv1.IngressClass) field.ErrorList {
	p := &problems{}
	immutable(p, field.NewPath("spec", "controller"), c.Spec.Controller, old.Spec.Controller)
	return append(p.list, IngressClass(c)...)
}

func (p *problems) ingressParameters(at path, r *networkingv1.IngressClassParametersReference) {
	p.typedReference(at, &corev1.TypedLocalObjectReference{APIGroup: r.APIGroup, Kind: r.Kind, Name: r.Name})
	if r.Scope == nil {
		p.required(at.Child("scope"), "")
		return
	}
	namespace := at.Child("namespace")
	switch *r.Scope {
	case networkingv1.IngressClassParametersReferenceScopeNamespace:
		if r.Namespace == nil {
			p.required(namespace, "`parameters.scope` is set to 'Namespace'")
			return
		}
		matches(p, namespace, *r.Namespace, apivalidation.ValidateNamespaceName(*r.Namespace, false))
	case networkingv1.IngressClassParametersReferenceScopeCluster:
		if r.Namespace != nil {
			p.forbidden(namespace, "`parameters.scope` is set to 'Cluster'")
		}
	default:
		oneOf(p, at.Child("scope"), *r.Scope,
			networkingv1.IngressClassParametersReferenceScopeCluster, networkingv1.IngressClassParametersReferenceScopeNamespace)
	}
}
