package service

import (
	"fmt"
	"net"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func parsed(t *testing.T, cidr string) addressRange {
	t.Helper()
	_, n, err := net.ParseCIDR(cidr)
	if err != nil {
		t.Fatal(err)
	}
	return addressRange{n}
}

func serviceCIDR(name string, age int64, ready metav1.ConditionStatus, cidrs ...string) networkingv1.ServiceCIDR {
	c := networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.Unix(1000-age, 0)}}
	c.Spec.CIDRs = cidrs
	c.Status.Conditions = []metav1.Condition{{Type: "Ready", Status: ready}}
	return c
}

func TestWhichRangesServe(t *testing.T) {
	deleted := serviceCIDR("deleted", 1, metav1.ConditionTrue, "10.3.0.0/24")
	deleted.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
	first := serviceCIDR(DefaultCIDR, 9, metav1.ConditionTrue, "10.0.0.0/16")
	for name, tc := range map[string]struct {
		all  []networkingv1.ServiceCIDR
		want string
	}{
		"the oldest first": {[]networkingv1.ServiceCIDR{serviceCIDR("b", 3, "True", "10.2.0.0/24"), first}, "[10.0.0.0/16 10.2.0.0/24]"},
		"one of two families": {
			[]networkingv1.ServiceCIDR{first, serviceCIDR("b", 3, "True", "fd00::/112", "10.2.0.0/24")}, "[10.0.0.0/16 10.2.0.0/24]",
		},
		"not ready":     {[]networkingv1.ServiceCIDR{first, serviceCIDR("b", 3, "False", "10.2.0.0/24")}, "[10.0.0.0/16]"},
		"being deleted": {[]networkingv1.ServiceCIDR{first, deleted}, "[10.0.0.0/16]"},
		"another is configured": {
			[]networkingv1.ServiceCIDR{serviceCIDR(DefaultCIDR, 9, "True", "10.9.0.0/16")}, "[10.0.0.0/16 10.9.0.0/16]",
		},
		"none": {nil, "[]"},
	} {
		if got := fmt.Sprint(usableRanges(tc.all, parsed(t, "10.0.0.0/16"))); got != tc.want {
			t.Errorf("%s: %s, want %s", name, got, tc.want)
		}
	}
}

func TestWhichAddressesOfARangeAreUsable(t *testing.T) {
	for cidr, tc := range map[string]struct{ yes, no []string }{
		"10.0.0.0/28": {[]string{"10.0.0.1", "10.0.0.14"}, []string{"10.0.0.0", "10.0.0.15", "10.0.0.16", "fd00::1"}},
		"10.0.0.4/32": {nil, []string{"10.0.0.4"}},
		"fd00::/124":  {[]string{"fd00::1", "fd00::f"}, []string{"fd00::", "fd00::10"}},
		"fd00::/40":   {[]string{"fd00::1"}, []string{"fd00::", "fd01::1"}},
		"0.0.0.0/0":   {[]string{"10.0.0.1"}, []string{"255.255.255.255"}},
	} {
		r := parsed(t, cidr)
		for _, ip := range tc.yes {
			if !r.holds(net.ParseIP(ip)) {
				t.Errorf("%s: %s is usable", cidr, ip)
			}
		}
		for _, ip := range tc.no {
			if r.holds(net.ParseIP(ip)) {
				t.Errorf("%s: %s is not usable", cidr, ip)
			}
		}
	}
}

func TestWhatIsRepaired(t *testing.T) {
	now := time.Unix(10000, 0)
	svc := func(name string, ips ...string) corev1.Service {
		return corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: name, UID: "u"}, Spec: corev1.ServiceSpec{ClusterIPs: ips}}
	}
	object := func(ip, service string, age time.Duration) networkingv1.IPAddress {
		a := ipAddress(ip, owner{"n", service, "u"})
		a.CreationTimestamp = metav1.NewTime(now.Add(-age))
		return *a
	}
	foreign := object("10.0.0.1", "s", time.Hour)
	foreign.Labels = nil
	for name, tc := range map[string]struct {
		services []corev1.Service
		objects  []networkingv1.IPAddress
		want     []string
	}{
		"all is well":        {[]corev1.Service{svc("s", "10.0.0.1")}, []networkingv1.IPAddress{object("10.0.0.1", "s", time.Hour)}, nil},
		"headless":           {[]corev1.Service{svc("s", "None")}, nil, nil},
		"missing":            {[]corev1.Service{svc("s", "10.0.0.1")}, nil, []string{"make 10.0.0.1 for s, twice false"}},
		"a foreign object":   {[]corev1.Service{svc("s", "10.0.0.1")}, []networkingv1.IPAddress{foreign}, []string{"make 10.0.0.1 for s, twice false"}},
		"a foreign one":      {nil, []networkingv1.IPAddress{foreign}, nil},
		"leaked":             {nil, []networkingv1.IPAddress{object("10.0.0.1", "s", time.Hour)}, []string{"delete 10.0.0.1"}},
		"perhaps on its way": {nil, []networkingv1.IPAddress{object("10.0.0.1", "s", time.Second)}, nil},
		"another address": {
			[]corev1.Service{svc("s", "10.0.0.2")},
			[]networkingv1.IPAddress{object("10.0.0.1", "s", time.Hour), object("10.0.0.2", "s", time.Hour)}, []string{"delete 10.0.0.1"},
		},
		"two services": {
			[]corev1.Service{svc("s", "10.0.0.1"), svc("t", "10.0.0.1")},
			[]networkingv1.IPAddress{object("10.0.0.1", "s", time.Hour)}, []string{"make 10.0.0.1 for t, twice true"},
		},
	} {
		var got []string
		for _, f := range faults(tc.services, tc.objects, now) {
			if f.service == nil {
				got = append(got, "delete "+f.ip)
			} else {
				got = append(got, fmt.Sprintf("make %s for %s, twice %v", f.ip, f.service.Name, f.twice))
			}
		}
		if fmt.Sprint(got) != fmt.Sprint(tc.want) {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}
