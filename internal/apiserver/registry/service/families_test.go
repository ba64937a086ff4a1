package service

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

const (
	four, six       = corev1.IPv4Protocol, corev1.IPv6Protocol
	single          = corev1.IPFamilyPolicySingleStack
	prefer, require = corev1.IPFamilyPolicyPreferDualStack, corev1.IPFamilyPolicyRequireDualStack
)

// svc makes a service with a selector from its policy, which may be "", its families and its addresses.
func svc(policy corev1.IPFamilyPolicy, families []corev1.IPFamily, ips ...string) *corev1.Service {
	s := &corev1.Service{Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, Selector: map[string]string{"a": "b"}}}
	s.Spec.IPFamilies, s.Spec.ClusterIPs = families, ips
	if policy != "" {
		s.Spec.IPFamilyPolicy = &policy
	}
	if len(ips) > 0 {
		s.Spec.ClusterIP = ips[0]
	}
	return s
}

func noSelector(s *corev1.Service) *corev1.Service {
	s.Spec.Selector = nil
	return s
}

// The cases are those of https://kubernetes.io/docs/concepts/services-networking/dual-stack/ and KEP-563.
func TestFamiliesOfAService(t *testing.T) {
	both, one := []corev1.IPFamily{four, six}, []corev1.IPFamily{four}
	v4, v6, turned := []corev1.IPFamily{four}, []corev1.IPFamily{six}, []corev1.IPFamily{six, four}
	external := &corev1.Service{Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName}}
	for _, tc := range []struct {
		name       string
		configured []corev1.IPFamily
		s, old     *corev1.Service
		want       string // policy, families and the number of addresses, or the error
	}{
		{"nothing asked for", both, svc("", nil), nil, "SingleStack [IPv4] 0"},
		{"the default family is the first", turned, svc("", nil), nil, "SingleStack [IPv6] 0"},
		{"a family", both, svc("", v6), nil, "SingleStack [IPv6] 0"},
		{"an address", both, svc("", nil, "fd00::9"), nil, "SingleStack [IPv6] 1"},
		{"prefer", both, svc(prefer, nil), nil, "PreferDualStack [IPv4 IPv6] 0"},
		{"prefer, the other way round", both, svc(prefer, v6), nil, "PreferDualStack [IPv6 IPv4] 0"},
		{"prefer on one family", one, svc(prefer, nil), nil, "PreferDualStack [IPv4] 0"},
		{"require", both, svc(require, nil, "fd00::9"), nil, "RequireDualStack [IPv6 IPv4] 1"},
		{"require on one family", one, svc(require, nil), nil, `spec.ipFamilyPolicy: Invalid value: "RequireDualStack": this cluster is not configured for dual-stack services`},
		{"a family that is not there", one, svc("", v6), nil, `spec.ipFamilies[0]: Invalid value: "IPv6": not configured on this cluster`},
		{"an address of such", one, svc("", nil, "fd00::9"), nil, `spec.clusterIPs[0]: Invalid value: ["fd00::9"]: IPv6 is not configured on this cluster`},
		{"two families with one address", both, svc(single, both), nil, "spec.ipFamilyPolicy: Invalid value: \"SingleStack\": must be 'RequireDualStack' or 'PreferDualStack' when multiple IP families are specified"},
		{"two addresses without a policy", both, svc("", nil, "10.0.0.9", "fd00::9"), nil, "must be 'RequireDualStack' or 'PreferDualStack' when multiple cluster IPs are specified"},
		{"two addresses of one family", both, svc(require, nil, "10.0.0.9", "10.0.0.8"), nil, `spec.clusterIPs: Invalid value: ["10.0.0.9","10.0.0.8"]: may specify no more than one IP for each IP family`},
		{"an address of another family than said", both, svc("", v4, "fd00::9"), nil, `spec.clusterIPs[0]: Invalid value: "fd00::9": expected an IPv4 value as indicated by ` + "`ipFamilies[0]`"},
		{"a family twice", both, svc(require, []corev1.IPFamily{four, four}), nil, `spec.ipFamilies[1]: Duplicate value: "IPv4"`},
		{"an unknown policy", both, svc("Dual", nil), nil, `spec.ipFamilyPolicy: Unsupported value: "Dual": supported values: "PreferDualStack", "RequireDualStack", "SingleStack"`},
		{"an unknown family", both, svc("", []corev1.IPFamily{"IPv5"}), nil, `spec.ipFamilies[0]: Unsupported value: "IPv5": supported values: "IPv4", "IPv6"`},

		{"headless", both, svc("", nil, "None"), nil, "SingleStack [IPv4] 1"},
		{"headless, prefer", both, svc(prefer, nil, "None"), nil, "PreferDualStack [IPv4 IPv6] 1"},
		{"headless without selector", one, noSelector(svc("", nil, "None")), nil, "RequireDualStack [IPv4 IPv6] 1"},
		{"headless without selector, of the other family", one, noSelector(svc(single, v6, "None")), nil, "SingleStack [IPv6] 1"},

		{"an update that leaves all out", both, svc("", nil, "10.0.0.9", "fd00::9"), svc(require, both, "10.0.0.9", "fd00::9"), "RequireDualStack [IPv4 IPv6] 2"},
		{"a second family", both, svc(require, v4, "10.0.0.9"), svc(single, v4, "10.0.0.9"), "RequireDualStack [IPv4 IPv6] 1"},
		{"one family less", both, svc(single, both, "10.0.0.9", "fd00::9"), svc(require, both, "10.0.0.9", "fd00::9"), "SingleStack [IPv4] 1"},
		{"one family less without the policy", both, svc(require, v4, "10.0.0.9", "fd00::9"), svc(require, both, "10.0.0.9", "fd00::9"), "must be 'SingleStack' to release the secondary IP family"},
		{"one address less without the policy", both, svc("", nil, "10.0.0.9"), svc(prefer, both, "10.0.0.9", "fd00::9"), "must be 'SingleStack' to release the secondary cluster IP"},
		{"the cluster got a family", both, svc(prefer, v4, "10.0.0.9"), svc(prefer, v4, "10.0.0.9"), "PreferDualStack [IPv4] 1"},
		{"the cluster lost a family", one, svc(prefer, both, "10.0.0.9", "fd00::9"), svc(prefer, both, "10.0.0.9", "fd00::9"), "PreferDualStack [IPv4 IPv6] 2"},
		{"no external name any more", both, svc(prefer, nil), external, "PreferDualStack [IPv4 IPv6] 0"},
	} {
		errs := setFamilies(tc.s, tc.old, tc.configured)
		got := fmt.Sprint(errs.ToAggregate())
		if len(errs) == 0 {
			got = fmt.Sprint(*tc.s.Spec.IPFamilyPolicy, " ", tc.s.Spec.IPFamilies, " ", len(tc.s.Spec.ClusterIPs))
		}
		if !strings.Contains(got, tc.want) || len(errs) == 0 && got != tc.want {
			t.Errorf("%s:\n got %s\nwant %s", tc.name, got, tc.want)
		}
	}
}
