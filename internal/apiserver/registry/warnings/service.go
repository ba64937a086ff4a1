package warnings

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Service warns of what has no effect in services, or is deprecated.
func Service(_ context.Context, s *corev1.Service) []string {
	var out []string
	spec, at := &s.Spec, field.NewPath("spec")
	ips := func(at *field.Path, list []string) {
		for i, ip := range list {
			out = append(out, utilvalidation.GetWarningsForIP(at.Index(i), ip)...)
		}
	}
	if _, ok := s.Annotations[corev1.DeprecatedAnnotationTopologyAwareHints]; ok {
		out = append(out, fmt.Sprintf("annotation %s is deprecated, please use %s instead",
			corev1.DeprecatedAnnotationTopologyAwareHints, corev1.AnnotationTopologyMode))
	}
	headless := spec.Type == corev1.ServiceTypeClusterIP && spec.ClusterIP == corev1.ClusterIPNone
	if spec.ClusterIP != "" && spec.ClusterIP != corev1.ClusterIPNone {
		ips(at.Child("clusterIPs"), spec.ClusterIPs)
	}
	external := len(spec.ExternalIPs) > 0
	for _, odd := range []struct {
		is   bool
		text string
	}{
		{headless && spec.LoadBalancerIP != "", "spec.loadBalancerIP is ignored for headless services"},
		{headless && external, "spec.externalIPs is ignored for headless services"},
		{headless && spec.SessionAffinity != corev1.ServiceAffinityNone, "spec.SessionAffinity is ignored for headless services"},
		{external && !headless && spec.Type != corev1.ServiceTypeExternalName, "spec.externalIPs is deprecated and may no longer be implemented in some clusters"},
		{external && spec.Type == corev1.ServiceTypeExternalName, `spec.externalIPs is ignored when spec.type is "ExternalName"`},
		{spec.ExternalName != "" && spec.Type != corev1.ServiceTypeExternalName, `spec.externalName is ignored when spec.type is not "ExternalName"`},
		{spec.TrafficDistribution != nil && *spec.TrafficDistribution == corev1.ServiceTrafficDistributionPreferClose,
			`spec.trafficDistribution: "PreferClose" is deprecated; use "PreferSameZone"`},
	} {
		if odd.is {
			out = append(out, odd.text)
		}
	}
	ips(at.Child("externalIPs"), spec.ExternalIPs)
	if spec.LoadBalancerIP != "" {
		out = append(out, utilvalidation.GetWarningsForIP(at.Child("loadBalancerIP"), spec.LoadBalancerIP)...)
	}
	for i, cidr := range spec.LoadBalancerSourceRanges {
		out = append(out, utilvalidation.GetWarningsForCIDR(at.Child("loadBalancerSourceRanges").Index(i), cidr)...)
	}
	return out
}

// LoadBalancer warns of odd addresses of a load balancer.
func LoadBalancer(_ context.Context, s *corev1.Service) []string {
	var out []string
	for i, in := range s.Status.LoadBalancer.Ingress {
		out = append(out, balancerIP(i, in.IP)...)
	}
	return out
}
