package printers

import (
	"fmt"
	"slices"
	"strings"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"wherry.dev/internal/api/classes"
	"wherry.dev/internal/apiserver/registry"
)

// Ingresses is the table of ingresses.
var Ingresses = registry.Table[*networkingv1.Ingress]{
	Columns: []metav1.TableColumnDefinition{
		nameColumn,
		column("Class", "The name of the IngressClass resource that should be used for additional configuration"),
		column("Hosts", "Hosts that incoming requests are matched against before the ingress rule"),
		column("Address", "Address is a list containing ingress points for the load-balancer"),
		column("Ports", "Ports of TLS configurations that open"),
		ageColumn,
	},
	Cells: func(i *networkingv1.Ingress, now time.Time) []any {
		ports := "80"
		if len(i.Spec.TLS) > 0 {
			ports = "80, 443"
		}
		return []any{i.Name, or(i.Spec.IngressClassName, none), ingressHosts(i.Spec.Rules), ingressPoints(i), ports, age(i, now)}
	},
}

func ingressHosts(rules []networkingv1.IngressRule) string {
	var hosts []string
	for i, rule := range rules {
		if len(hosts) == shown {
			return fmt.Sprintf("%s + %d more...", strings.Join(hosts, ","), len(rules)-shown)
		}
		if rules[i].Host != "" {
			hosts = append(hosts, rule.Host)
		}
	}
	if len(hosts) == 0 {
		return "*"
	}
	return strings.Join(hosts, ",")
}

// ingressPoints returns where an ingress is reached.
func ingressPoints(i *networkingv1.Ingress) string {
	var points []string
	for _, in := range i.Status.LoadBalancer.Ingress {
		if in.IP != "" {
			points = append(points, in.IP)
		} else if in.Hostname != "" {
			points = append(points, in.Hostname)
		}
	}
	slices.Sort(points)
	return strings.Join(slices.Compact(points), ",")
}

// IngressClasses is the table of ingress classes.
var IngressClasses = registry.Table[*networkingv1.IngressClass]{
	Columns: []metav1.TableColumnDefinition{
		nameColumn,
		column("Controller", "Controller that is responsible for handling this class"),
		column("Parameters", "A reference to a resource with additional parameters"),
		ageColumn,
	},
	Cells: func(c *networkingv1.IngressClass, now time.Time) []any {
		name, parameters := c.Name, none
		if classes.IsDefaultIngress(c) {
			name += " (default)"
		}
		if p := c.Spec.Parameters; p != nil {
			parameters = p.Kind
			if p.APIGroup != nil {
				parameters += "." + *p.APIGroup
			}
			parameters += "/" + p.Name
		}
		return []any{name, c.Spec.Controller, parameters, age(c, now)}
	},
}

// NetworkPolicies is the table of network policies.
var NetworkPolicies = registry.Table[*networkingv1.NetworkPolicy]{
	Columns: []metav1.TableColumnDefinition{
		nameColumn, column("Pod-Selector", networkingv1.NetworkPolicySpec{}.SwaggerDoc()["podSelector"]), ageColumn,
	},
	Cells: func(n *networkingv1.NetworkPolicy, now time.Time) []any {
		return []any{n.Name, metav1.FormatLabelSelector(&n.Spec.PodSelector), age(n, now)}
	},
}

// ServiceCIDRs is the table of ranges of service addresses.
var ServiceCIDRs = registry.Table[*networkingv1.ServiceCIDR]{
	Columns: []metav1.TableColumnDefinition{nameColumn, column("CIDRs", networkingv1.ServiceCIDRSpec{}.SwaggerDoc()["cidrs"]), ageColumn},
	Cells: func(c *networkingv1.ServiceCIDR, now time.Time) []any {
		return []any{c.Name, strings.Join(c.Spec.CIDRs, ","), age(c, now)}
	},
}

// IPAddresses is the table of service addresses.
var IPAddresses = registry.Table[*networkingv1.IPAddress]{
	Columns: []metav1.TableColumnDefinition{nameColumn, column("ParentRef", networkingv1.IPAddressSpec{}.SwaggerDoc()["parentRef"])},
	Cells: func(a *networkingv1.IPAddress, _ time.Time) []any {
		parent := none
		if r := a.Spec.ParentRef; r != nil {
			parent = strings.ToLower(schema.GroupResource{Group: r.Group, Resource: r.Resource}.String())
			if r.Namespace != "" {
				parent += "/" + r.Namespace
			}
			parent += "/" + r.Name
		}
		return []any{a.Name, parent}
	},
}
