package printers

import (
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wherry.dev/internal/apiserver/registry"
)

// shown is how many entries of a list are printed before "+ n more...".
const shown = 3

// Services is the table of services.
var Services = registry.Table[*corev1.Service]{
	Columns: []metav1.TableColumnDefinition{
		nameColumn,
		column("Type", corev1.ServiceSpec{}.SwaggerDoc()["type"]),
		column("Cluster-IP", corev1.ServiceSpec{}.SwaggerDoc()["clusterIP"]),
		column("External-IP", corev1.ServiceSpec{}.SwaggerDoc()["externalIPs"]),
		column("Port(s)", corev1.ServiceSpec{}.SwaggerDoc()["ports"]),
		ageColumn,
		wide("Selector", corev1.ServiceSpec{}.SwaggerDoc()["selector"]),
	},
	Cells: func(s *corev1.Service, now time.Time) []any {
		ip := none
		if len(s.Spec.ClusterIPs) > 0 {
			ip = s.Spec.ClusterIPs[0]
		}
		return []any{
			s.Name, string(s.Spec.Type), ip, externalIP(s), orNone(servicePorts(s.Spec.Ports)), age(s, now), formatLabels(s.Spec.Selector),
		}
	},
}

func externalIP(s *corev1.Service) string {
	switch s.Spec.Type {
	case corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort:
		return orNone(strings.Join(s.Spec.ExternalIPs, ","))
	case corev1.ServiceTypeExternalName:
		return s.Spec.ExternalName
	case corev1.ServiceTypeLoadBalancer:
		var out []string
		for _, in := range s.Status.LoadBalancer.Ingress {
			if in.IP != "" {
				out = append(out, in.IP)
			} else if in.Hostname != "" {
				out = append(out, in.Hostname)
			}
		}
		if out = append(out, s.Spec.ExternalIPs...); len(out) > 0 {
			return strings.Join(out, ",")
		}
		return "<pending>"
	}
	return unknown
}

func servicePorts(ports []corev1.ServicePort) string {
	out := make([]string, len(ports))
	for i, p := range ports {
		if p.NodePort > 0 {
			out[i] = fmt.Sprintf("%d:%d/%s", p.Port, p.NodePort, p.Protocol)
			continue
		}
		out[i] = fmt.Sprintf("%d/%s", p.Port, p.Protocol)
	}
	return strings.Join(out, ",")
}

// Endpoints is the table of endpoints.
var Endpoints = registry.Table[*corev1.Endpoints]{
	Columns: []metav1.TableColumnDefinition{
		nameColumn, column("Endpoints", corev1.Endpoints{}.SwaggerDoc()["subsets"]), ageColumn,
	},
	Cells: func(e *corev1.Endpoints, now time.Time) []any {
		var list []string
		for _, s := range e.Subsets {
			for _, a := range s.Addresses {
				if len(s.Ports) == 0 {
					list = append(list, a.IP)
				}
			}
			for _, p := range s.Ports {
				for _, a := range s.Addresses {
					list = append(list, net.JoinHostPort(a.IP, strconv.Itoa(int(p.Port))))
				}
			}
		}
		return []any{e.Name, shorten(list, none), age(e, now)}
	},
}

// EndpointSlices is the table of endpoint slices.
var EndpointSlices = registry.Table[*discoveryv1.EndpointSlice]{
	Columns: []metav1.TableColumnDefinition{
		nameColumn,
		column("AddressType", discoveryv1.EndpointSlice{}.SwaggerDoc()["addressType"]),
		column("Ports", discoveryv1.EndpointSlice{}.SwaggerDoc()["ports"]),
		column("Endpoints", discoveryv1.EndpointSlice{}.SwaggerDoc()["endpoints"]),
		ageColumn,
	},
	Cells: func(e *discoveryv1.EndpointSlice, now time.Time) []any {
		var ports, addresses []string
		for _, p := range e.Ports {
			switch {
			case p.Port != nil:
				ports = append(ports, strconv.Itoa(int(*p.Port)))
			case p.Name != nil && *p.Name != "":
				ports = append(ports, *p.Name)
			default:
				ports = append(ports, "*")
			}
		}
		for _, p := range e.Endpoints {
			addresses = append(addresses, p.Addresses...)
		}
		return []any{e.Name, string(e.AddressType), shorten(ports, unset), shorten(addresses, unset), age(e, now)}
	},
}

func shorten(list []string, empty string) string {
	if len(list) == 0 {
		return empty
	}
	if len(list) <= shown {
		return strings.Join(list, ",")
	}
	return fmt.Sprintf("%s + %d more...", strings.Join(list[:shown], ","), len(list)-shown)
}
