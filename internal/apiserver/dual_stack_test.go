package apiserver

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	utilnet "k8s.io/utils/net"

	"wherry.dev/internal/apiserver/bootstrap"
)

// ranges makes a change of the configuration: the ranges of services.
func ranges(t *testing.T, cidrs ...string) func(*Config) {
	t.Helper()
	parsed, err := utilnet.ParseCIDRs(cidrs)
	if err != nil {
		t.Fatal(err)
	}
	return func(c *Config) { c.ServiceCIDRs = parsed }
}

func dual(policy corev1.IPFamilyPolicy, families ...corev1.IPFamily) *corev1.Service {
	s := testService("s", corev1.ServiceTypeClusterIP)
	s.Spec.Selector = map[string]string{"a": "b"}
	s.Spec.IPFamilyPolicy, s.Spec.IPFamilies = &policy, families
	return s
}

// addressesOf returns the addresses, in order, of which there are objects for a service.
func addressesOf(t *testing.T, c kubernetes.Interface, service string) (out []string) {
	t.Helper()
	list, err := c.NetworkingV1().IPAddresses().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range list.Items {
		if list.Items[i].Spec.ParentRef.Name == service {
			out = append(out, list.Items[i].Name)
		}
	}
	return out
}

func TestServicesOfTwoFamilies(t *testing.T) {
	s := start(t, ranges(t, "10.7.0.0/24", "fd00:7::/112"))
	ctx, c := t.Context(), admin(t, s)
	api := c.CoreV1().Services("default")
	held := func() []string { return addressesOf(t, c, "s") }
	check := func(what string, got *corev1.Service, err error, families ...corev1.IPFamily) {
		t.Helper()
		switch {
		case err != nil:
			t.Fatalf("%s: %v", what, err)
		case !slices.Equal(got.Spec.IPFamilies, families) || len(got.Spec.ClusterIPs) != len(families) || got.Spec.ClusterIP != got.Spec.ClusterIPs[0]:
			t.Errorf("%s: %+v", what, got.Spec)
		}
		for i, ip := range got.Spec.ClusterIPs {
			if utilnet.IsIPv6String(ip) != (families[i] == corev1.IPv6Protocol) {
				t.Errorf("%s: address %d of %v", what, i, got.Spec.ClusterIPs)
			}
		}
		slices.Sort(got.Spec.ClusterIPs)
		if !slices.Equal(held(), got.Spec.ClusterIPs) {
			t.Errorf("%s: objects of %v, want %v", what, held(), got.Spec.ClusterIPs)
		}
	}
	patch := func(p string) (*corev1.Service, error) {
		return api.Patch(ctx, "s", types.MergePatchType, []byte(p), metav1.PatchOptions{})
	}
	const four, six = corev1.IPv4Protocol, corev1.IPv6Protocol

	kubernetes, err := api.Get(ctx, bootstrap.ServiceName, metav1.GetOptions{})
	if err != nil || fmt.Sprint(kubernetes.Spec.ClusterIPs, " ", *kubernetes.Spec.IPFamilyPolicy) != "[10.7.0.1] SingleStack" {
		t.Errorf("%+v, %v", kubernetes.Spec, err)
	}
	cidr, err := c.NetworkingV1().ServiceCIDRs().Get(ctx, "kubernetes", metav1.GetOptions{})
	if err != nil || !slices.Equal(cidr.Spec.CIDRs, []string{"10.7.0.0/24", "fd00:7::/112"}) {
		t.Errorf("%+v, %v", cidr, err)
	}

	got, err := api.Create(ctx, dual(corev1.IPFamilyPolicySingleStack, six), metav1.CreateOptions{})
	first := got.Spec.ClusterIP
	check("one address", got, err, six)
	got, err = patch(`{"spec":{"ipFamilyPolicy":"RequireDualStack"}}`)
	check("a second address", got, err, six, four)
	got, err = patch(`{"metadata":{"labels":{"x":"y"}}}`)
	check("nothing changed", got, err, six, four)
	_, err = patch(`{"spec":{"ipFamilies":["IPv4","IPv6"]}}`)
	refused(t, err, "expected an IPv4 value as indicated by `ipFamilies[0]`")
	_, err = patch(`{"spec":{"clusterIPs":["` + first + `"],"ipFamilies":["IPv6"]}}`)
	refused(t, err, "must be 'SingleStack' to release the secondary cluster IP")
	got, err = patch(`{"spec":{"ipFamilyPolicy":"SingleStack"}}`)
	check("one address less", got, err, six)
	got, err = patch(`{"spec":{"ipFamilyPolicy":"PreferDualStack","clusterIPs":["` + first + `","10.7.0.77"]}}`)
	check("a second address that is named", got, err, six, four)
	got, err = patch(`{"spec":{"type":"ExternalName","externalName":"example.com"}}`)
	if err != nil || len(got.Spec.ClusterIPs)+len(got.Spec.IPFamilies) > 0 || got.Spec.IPFamilyPolicy != nil || len(held()) > 0 {
		t.Errorf("an external name: %+v, %v; objects of %v", got.Spec, err, held())
	}
	got, err = patch(`{"spec":{"type":"ClusterIP","externalName":"","ipFamilyPolicy":"PreferDualStack"}}`)
	check("no external name any more", got, err, four, six)
	if err := api.Delete(ctx, "s", metav1.DeleteOptions{}); err != nil || len(held()) > 0 {
		t.Errorf("deleted: %v, objects of %v", err, held())
	}

	wrong := dual(corev1.IPFamilyPolicyRequireDualStack)
	wrong.Spec.ClusterIP, wrong.Spec.ClusterIPs = "10.7.0.9", []string{"10.7.0.9", "fd00:8::9"}
	_, err = api.Create(ctx, wrong, metav1.CreateOptions{})
	refused(t, err, "the provided IP (fd00:8::9) is not in the valid range. The range of valid IPs is fd00:7::/112")
	if len(held()) > 0 {
		t.Errorf("a service that was refused holds %v", held())
	}
	dry, err := api.Create(ctx, dual(corev1.IPFamilyPolicyRequireDualStack), metav1.CreateOptions{DryRun: []string{"All"}})
	if err != nil || len(dry.Spec.ClusterIPs) != 2 || len(held()) > 0 {
		t.Errorf("dry run: %v %v, objects of %v", dry.Spec.ClusterIPs, err, held())
	}
	name := testService("name", corev1.ServiceTypeExternalName)
	name.Spec.ExternalName, name.Spec.IPFamilies = "example.com", []corev1.IPFamily{four}
	_, err = api.Create(ctx, name, metav1.CreateOptions{})
	refused(t, err, "spec.ipFamilies: Forbidden: may not be set for ExternalName services")
}

// A cluster gets its second family at a restart: its ServiceCIDR shows it, services stay as they are, and
// those who ask get a second address.
func TestAClusterGetsASecondFamily(t *testing.T) {
	dir := t.TempDir()
	s, stop := run(t, dir, ranges(t, "10.7.0.0/24"))
	api := admin(t, s).CoreV1().Services("default")
	_, err := api.Create(t.Context(), dual(corev1.IPFamilyPolicyRequireDualStack), metav1.CreateOptions{})
	refused(t, err, "this cluster is not configured for dual-stack services")
	old, err := api.Create(t.Context(), dual(corev1.IPFamilyPolicyPreferDualStack), metav1.CreateOptions{})
	if err != nil || len(old.Spec.ClusterIPs) != 1 {
		t.Fatalf("%+v, %v", old.Spec, err)
	}
	stop()
	s, stop = run(t, dir, ranges(t, "10.7.0.0/24", "fd00:7::/112"))
	api = admin(t, s).CoreV1().Services("default")
	cidr, err := admin(t, s).NetworkingV1().ServiceCIDRs().Get(t.Context(), "kubernetes", metav1.GetOptions{})
	if err != nil || len(cidr.Spec.CIDRs) != 2 {
		t.Errorf("%+v, %v", cidr, err)
	}
	now, err := api.Patch(t.Context(), "s", types.MergePatchType, []byte(`{"metadata":{"labels":{"x":"y"}}}`), metav1.PatchOptions{})
	if err != nil || !slices.Equal(now.Spec.ClusterIPs, old.Spec.ClusterIPs) {
		t.Errorf("%v, %v", now.Spec.ClusterIPs, err)
	}
	now, err = api.Patch(t.Context(), "s", types.MergePatchType, []byte(`{"spec":{"ipFamilyPolicy":"RequireDualStack"}}`), metav1.PatchOptions{})
	if err != nil || len(now.Spec.ClusterIPs) != 2 {
		t.Errorf("%v, %v", now.Spec.ClusterIPs, err)
	}
	stop()
	// And loses it again: what has two addresses keeps them, and gives them back when it goes.
	s, stop = run(t, dir, ranges(t, "10.7.0.0/24"))
	defer stop()
	api = admin(t, s).CoreV1().Services("default")
	_, err = api.Patch(t.Context(), "s", types.MergePatchType, []byte(`{"metadata":{"labels":{"x":"z"}}}`), metav1.PatchOptions{})
	refused(t, err, "this cluster is not configured for dual-stack services")
	now, err = api.Patch(t.Context(), "s", types.MergePatchType, []byte(`{"spec":{"ipFamilyPolicy":"SingleStack"}}`), metav1.PatchOptions{})
	if err != nil || !slices.Equal(now.Spec.ClusterIPs, old.Spec.ClusterIPs) {
		t.Errorf("%v, %v", now.Spec.ClusterIPs, err)
	}
	within(t, func(ctx context.Context) error {
		list, err := admin(t, s).NetworkingV1().IPAddresses().List(ctx, metav1.ListOptions{LabelSelector: "ipaddress.kubernetes.io/ip-family=IPv6"})
		if err == nil && len(list.Items) > 0 {
			err = fmt.Errorf("%s is still taken", list.Items[0].Name)
		}
		return err
	})
}

// An address that an update gave up was released before the update was written: when another writer was faster,
// the service still had the address, and so could another service.
func TestUpdatesOfAServiceAtOnceKeepItsAddresses(t *testing.T) {
	s := start(t, ranges(t, "10.7.0.0/24", "fd00:7::/112"))
	ctx, c := t.Context(), admin(t, s)
	api := c.CoreV1().Services("default")
	if _, err := api.Create(ctx, dual(corev1.IPFamilyPolicyRequireDualStack), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	var writers sync.WaitGroup
	for i := range 4 {
		writers.Go(func() {
			for n := range 25 {
				var err error
				policy := []string{"SingleStack", "RequireDualStack"}[(n+i)%2]
				if i == 0 { // by PUT, which fails when another writer was faster
					var got *corev1.Service
					if got, err = api.Get(ctx, "s", metav1.GetOptions{}); err == nil {
						got.Spec.IPFamilyPolicy = new(corev1.IPFamilyPolicy(policy))
						_, err = api.Update(ctx, got, metav1.UpdateOptions{})
					}
				} else {
					patch := fmt.Sprintf(`{"metadata":{"labels":{"w%d":"%d"}},"spec":{"ipFamilyPolicy":%q}}`, i, n, policy)
					_, err = api.Patch(ctx, "s", types.MergePatchType, []byte(patch), metav1.PatchOptions{})
				}
				if err != nil && !apierrors.IsConflict(err) {
					t.Error(err)
				}
			}
		})
	}
	writers.Wait()
	got, err := api.Get(ctx, "s", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	held := addressesOf(t, c, "s")
	slices.Sort(got.Spec.ClusterIPs)
	if !slices.Equal(held, got.Spec.ClusterIPs) {
		t.Errorf("objects of %v, want %v", held, got.Spec.ClusterIPs)
	}
}

func TestRangesOfServicesThatCannotBe(t *testing.T) {
	for want, cidrs := range map[string]string{
		"--service-cluster-ip-range must not contain more than two entries":           "10.7.0.0/24,fd00:7::/112,10.8.0.0/24",
		"two ranges must be one of IPv4 and one of IPv6":                              "10.7.0.0/24,10.8.0.0/24",
		"--service-cluster-ip-range fd00:7::/127 is too small":                        "10.7.0.0/24,fd00:7::/127",
		"fd00:7::/112 must be of the address family of --advertise-address 127.0.0.1": "fd00:7::/112,10.7.0.0/24",
		"--service-cluster-ip-range is required":                                      "",
	} {
		c := DefaultConfig()
		c.AdvertiseAddress = net.IPv4(127, 0, 0, 1)
		c.ServiceCIDRs = nil
		if cidrs != "" {
			ranges(t, strings.Split(cidrs, ",")...)(&c)
		}
		refused(t, fmt.Errorf("%v", c.Validate()), want)
	}
}
