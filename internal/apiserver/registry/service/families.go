package service

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	utilnet "k8s.io/utils/net"
	"k8s.io/utils/ptr"

	"wherry.dev/internal/api/validation"
)

func headless(s *corev1.Service) bool { return s.Spec.ClusterIP == corev1.ClusterIPNone }

// setFamilies fills in ipFamilyPolicy and ipFamilies, by upstream's rules (KEP-563). configured has the
// cluster's families, the first of which is the default. old is nil for a new service. Afterwards there is
// a family for each address that the service is to have; those that it has been given match them.
func setFamilies(s, old *corev1.Service, configured []corev1.IPFamily) field.ErrorList {
	if !needsIP(s) || old != nil && keepsPreference(s, old) {
		return nil
	}
	if s.Spec.IPFamilyPolicy == nil {
		s.Spec.IPFamilyPolicy = new(defaultPolicy(s, old))
	}
	errs := validation.ServiceAddresses(s)
	if len(errs) > 0 {
		return errs
	}
	if old != nil {
		errs = shrink(s, old)
	}
	errs = append(errs, singleStack(s)...)
	errs = append(errs, inferFamilies(s, configured)...)
	if len(errs) > 0 {
		return errs
	}
	// Nobody routes to the addresses of a headless service but those who ask for its name, and without a
	// selector somebody else finds its endpoints: it can have families that the cluster does not.
	free := headless(s) && len(s.Spec.Selector) == 0
	if !free {
		if errs = notConfigured(s, configured); len(errs) > 0 {
			return errs
		}
	}
	if len(s.Spec.IPFamilies) == 0 {
		s.Spec.IPFamilies = []corev1.IPFamily{configured[0]}
	}
	if *s.Spec.IPFamilyPolicy != corev1.IPFamilyPolicySingleStack && len(s.Spec.IPFamilies) == 1 && (free || len(configured) == 2) {
		s.Spec.IPFamilies = append(s.Spec.IPFamilies, otherFamily(s.Spec.IPFamilies[0]))
	}
	return nil
}

// keepsPreference reports whether the service preferred two families and still does, and nothing about its
// addresses changes. Such a service neither gains an address nor loses one only because the cluster's
// families have changed.
func keepsPreference(s, old *corev1.Service) bool {
	prefers := func(s *corev1.Service) bool {
		return ptr.Deref(s.Spec.IPFamilyPolicy, "") == corev1.IPFamilyPolicyPreferDualStack
	}
	return prefers(s) && prefers(old) && slices.Equal(s.Spec.ClusterIPs, old.Spec.ClusterIPs) && slices.Equal(s.Spec.IPFamilies, old.Spec.IPFamilies)
}

func defaultPolicy(s, old *corev1.Service) corev1.IPFamilyPolicy {
	switch {
	case old != nil && old.Spec.IPFamilyPolicy != nil:
		return *old.Spec.IPFamilyPolicy
	case headless(s) && len(s.Spec.Selector) == 0:
		return corev1.IPFamilyPolicyRequireDualStack
	}
	return corev1.IPFamilyPolicySingleStack
}

// shrink takes the second family and its address from a service whose policy has become SingleStack. With
// another policy nobody may take them.
func shrink(s, old *corev1.Service) (errs field.ErrorList) {
	if *s.Spec.IPFamilyPolicy == corev1.IPFamilyPolicySingleStack {
		if ips := s.Spec.ClusterIPs; len(ips) > 1 && slices.Equal(ips, old.Spec.ClusterIPs) {
			s.Spec.ClusterIPs = slices.Clone(ips[:1])
		}
		if families := s.Spec.IPFamilies; len(families) > 1 && slices.Equal(families, old.Spec.IPFamilies) {
			s.Spec.IPFamilies = slices.Clone(families[:1])
		}
		return nil
	}
	at := field.NewPath("spec", "ipFamilyPolicy")
	if n := len(s.Spec.ClusterIPs); n > 0 && n < len(old.Spec.ClusterIPs) {
		errs = append(errs, field.Invalid(at, *s.Spec.IPFamilyPolicy, "must be 'SingleStack' to release the secondary cluster IP"))
	}
	if n := len(s.Spec.IPFamilies); n > 0 && n < len(old.Spec.IPFamilies) {
		errs = append(errs, field.Invalid(at, *s.Spec.IPFamilyPolicy, "must be 'SingleStack' to release the secondary IP family"))
	}
	return errs
}

// singleStack reports two addresses or families with a policy that allows one.
func singleStack(s *corev1.Service) (errs field.ErrorList) {
	if *s.Spec.IPFamilyPolicy != corev1.IPFamilyPolicySingleStack {
		return nil
	}
	for what, n := range map[string]int{"cluster IPs": len(s.Spec.ClusterIPs), "IP families": len(s.Spec.IPFamilies)} {
		if n == 2 {
			errs = append(errs, field.Invalid(field.NewPath("spec", "ipFamilyPolicy"), *s.Spec.IPFamilyPolicy,
				fmt.Sprintf("must be 'RequireDualStack' or 'PreferDualStack' when multiple %s are specified", what)))
		}
	}
	return errs
}

// inferFamilies adds the families of given addresses, as far as none are given.
func inferFamilies(s *corev1.Service, configured []corev1.IPFamily) (errs field.ErrorList) {
	if headless(s) {
		return nil
	}
	for i := len(s.Spec.IPFamilies); i < len(s.Spec.ClusterIPs); i++ {
		family := familyOf(s.Spec.ClusterIPs[i])
		if !slices.Contains(configured, family) {
			errs = append(errs, field.Invalid(field.NewPath("spec", "clusterIPs").Index(i), s.Spec.ClusterIPs,
				fmt.Sprintf("%s is not configured on this cluster", family)))
		}
		s.Spec.IPFamilies = append(s.Spec.IPFamilies, family)
	}
	return errs
}

func notConfigured(s *corev1.Service, configured []corev1.IPFamily) (errs field.ErrorList) {
	spec := field.NewPath("spec")
	if *s.Spec.IPFamilyPolicy == corev1.IPFamilyPolicyRequireDualStack && len(configured) < 2 {
		errs = append(errs, field.Invalid(spec.Child("ipFamilyPolicy"), *s.Spec.IPFamilyPolicy, "this cluster is not configured for dual-stack services"))
	}
	for i, family := range s.Spec.IPFamilies {
		if !slices.Contains(configured, family) {
			errs = append(errs, field.Invalid(spec.Child("ipFamilies").Index(i), family, "not configured on this cluster"))
		}
	}
	return errs
}

func otherFamily(f corev1.IPFamily) corev1.IPFamily {
	if f == corev1.IPv4Protocol {
		return corev1.IPv6Protocol
	}
	return corev1.IPv4Protocol
}

func familyOf(ip string) corev1.IPFamily {
	return corev1.IPFamily("IPv" + string(utilnet.IPFamilyOfString(ip)))
}
