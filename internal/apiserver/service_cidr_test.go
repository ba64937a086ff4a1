package apiserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"wherry.dev/internal/apiserver/bootstrap"
	"wherry.dev/internal/apiserver/registry/service"
)

// Two servers on one etcd, and many services at once, of each name on both: every service has an address
// of its own, and there is an IPAddress for each service and no other.
func TestTwoServersGiveEachServiceAnAddressOfItsOwn(t *testing.T) {
	etcd := externalEtcd(t, 64<<20)
	var servers []*Server
	for range 2 {
		s, stop := run(t, t.TempDir(), func(c *Config) { c.EtcdServers = []string{etcd} })
		defer stop()
		servers = append(servers, s)
	}
	ctx := context.WithoutCancel(t.Context())
	var running sync.WaitGroup
	for i := range 200 {
		api := admin(t, servers[i%2]).CoreV1().Services("default")
		running.Go(func() {
			// Every tenth name is asked for twice; one of the two is refused, and must leave nothing.
			name := fmt.Sprint("s", i)
			if i%10 == 1 {
				name = fmt.Sprint("s", i-1)
			}
			_, err := api.Create(ctx, testService(name, corev1.ServiceTypeClusterIP), metav1.CreateOptions{})
			if err != nil && i%10 > 1 {
				t.Error(err)
			}
		})
	}
	running.Wait()
	services, err := admin(t, servers[0]).CoreV1().Services("").List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	objects, err := admin(t, servers[1]).NetworkingV1().IPAddresses().List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	holder := map[string]string{}
	for _, o := range objects.Items {
		holder[o.Name] = o.Spec.ParentRef.Name
	}
	if len(services.Items) != 181 || len(holder) != len(services.Items) {
		t.Errorf("%d services, %d addresses; want 181 of each", len(services.Items), len(holder))
	}
	for _, s := range services.Items {
		if holder[s.Spec.ClusterIP] != s.Name {
			t.Errorf("%s of %s is %q's", s.Spec.ClusterIP, s.Name, holder[s.Spec.ClusterIP])
		}
	}
}

// What a crash between the two writes leaves, and an address that somebody else holds.
func TestAddressesAreRepairedAndRespected(t *testing.T) {
	s := start(t)
	ctx, c := t.Context(), admin(t, s)
	services, addresses := c.CoreV1().Services("default"), c.NetworkingV1().IPAddresses()
	svc, err := services.Create(ctx, testService("s", corev1.ServiceTypeClusterIP), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := addresses.Delete(ctx, svc.Spec.ClusterIP, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for ip, labels := range map[string]map[string]string{
		"10.96.0.77": {networkingv1.LabelManagedBy: "ipallocator.k8s.io"}, "10.96.0.78": nil,
	} {
		o := &networkingv1.IPAddress{ObjectMeta: metav1.ObjectMeta{Name: ip, Labels: labels}}
		o.Spec.ParentRef = &networkingv1.ParentReference{Resource: "services", Namespace: "default", Name: "never-made"}
		if _, err := addresses.Create(ctx, o, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		other := testService("other", corev1.ServiceTypeClusterIP)
		other.Spec.ClusterIP = ip
		_, err := services.Create(ctx, other, metav1.CreateOptions{})
		refused(t, err, "provided IP is already allocated")
		_, err = services.Create(ctx, other, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		refused(t, err, "provided IP is already allocated")
	}
	told := map[string]int{}
	report := func(_ runtime.Object, reason, _ string) { told[reason]++ }
	for t.Context().Err() == nil && told["IPAddressNotAllocated"] == 0 {
		if err := s.services.RepairAddresses(ctx, time.Now().Add(time.Hour), report); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, func() error {
		o, err := addresses.Get(ctx, svc.Spec.ClusterIP, metav1.GetOptions{})
		if err != nil || o.Spec.ParentRef.Name != "s" {
			return fmt.Errorf("the address of a service: %v, %w", o, err)
		}
		return nil
	})
	if _, err := addresses.Get(ctx, "10.96.0.77", metav1.GetOptions{}); err == nil {
		t.Error("the address of no service is still taken")
	}
	if _, err := addresses.Get(ctx, "10.96.0.78", metav1.GetOptions{}); err != nil {
		t.Errorf("an object that is not ours: %v", err)
	}
	dry, err := services.Create(ctx, testService("dry", corev1.ServiceTypeClusterIP), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := addresses.Get(ctx, dry.Spec.ClusterIP, metav1.GetOptions{}); err == nil {
		t.Error("a dry run took an address")
	}
}

// An address was made again up to half a minute later, and the default range at the next start.
func TestDeletedAddressesAndTheDefaultRangeAreMadeAgain(t *testing.T) {
	s := start(t)
	ctx, c := t.Context(), admin(t, s)
	addresses, cidrs := c.NetworkingV1().IPAddresses(), c.NetworkingV1().ServiceCIDRs()
	svc, err := c.CoreV1().Services("default").Create(ctx, testService("s", corev1.ServiceTypeClusterIP), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	uids := map[string]types.UID{}
	for range 2 { // two addresses at a time, and both again
		for _, ip := range []string{svc.Spec.ClusterIP, "10.96.0.1"} {
			old, err := addresses.Get(ctx, ip, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			uids[ip] = old.UID
			if err := addresses.Delete(ctx, ip, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		within(t, func(ctx context.Context) error {
			for ip, holder := range map[string]string{svc.Spec.ClusterIP: "s", "10.96.0.1": "kubernetes"} {
				o, err := addresses.Get(ctx, ip, metav1.GetOptions{})
				if err != nil || o.UID == uids[ip] || o.Spec.ParentRef.Name != holder {
					return fmt.Errorf("address %s: %+v, %w", ip, o, err)
				}
			}
			return nil
		})
	}
	for range 2 {
		old, err := cidrs.Get(ctx, service.DefaultCIDR, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if err := cidrs.Delete(ctx, service.DefaultCIDR, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		within(t, func(ctx context.Context) error {
			o, err := cidrs.Get(ctx, service.DefaultCIDR, metav1.GetOptions{})
			if err == nil && (o.UID == old.UID || !meta.IsStatusConditionTrue(o.Status.Conditions, networkingv1.ServiceCIDRConditionReady)) {
				err = fmt.Errorf("%+v", o)
			}
			return err
		})
	}
	within(t, func(ctx context.Context) error {
		events, err := c.CoreV1().Events("default").List(ctx, metav1.ListOptions{FieldSelector: "reason=ClusterIPNotAllocated,involvedObject.name=s"})
		if err == nil && len(events.Items) == 0 {
			err = errors.New("nobody was told")
		}
		return err
	})
	// The address of a service that is deleted goes with it, and stays away.
	if err := c.CoreV1().Services("default").Delete(ctx, "s", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := addresses.Get(ctx, svc.Spec.ClusterIP, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the address of a deleted service: %v", err)
	}
}

// A service default/kubernetes that somebody deleted came back at the next start only.
func TestTheServiceKubernetesComesBack(t *testing.T) {
	s := start(t)
	services := admin(t, s).CoreV1().Services("default")
	old, err := services.Get(t.Context(), bootstrap.ServiceName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := services.Delete(t.Context(), bootstrap.ServiceName, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	within(t, func(ctx context.Context) error {
		now, err := services.Get(ctx, bootstrap.ServiceName, metav1.GetOptions{})
		if err == nil && (now.UID == old.UID || now.Spec.ClusterIP != old.Spec.ClusterIP) {
			err = fmt.Errorf("%+v", now)
		}
		return err
	})
}

// elsewhere gives services another range than the default one, so that 10.96.0.1 is free.
func elsewhere(c *Config) {
	c.ServiceCIDRs = []*net.IPNet{{IP: net.IPv4(10, 97, 0, 0).To4(), Mask: net.CIDRMask(16, 32)}}
}

// holdFirstAddress makes the object of 10.96.0.1 as a server leaves it that is killed before it has written
// the service.
func holdFirstAddress(t *testing.T, s *Server, holder string) {
	t.Helper()
	a := &networkingv1.IPAddress{ObjectMeta: metav1.ObjectMeta{
		Name:        "10.96.0.1",
		Labels:      map[string]string{networkingv1.LabelIPAddressFamily: "IPv4", networkingv1.LabelManagedBy: "ipallocator.k8s.io"},
		Annotations: map[string]string{"wherry.dev/service-uid": "of-another-server"},
	}}
	a.Spec.ParentRef = &networkingv1.ParentReference{Resource: "services", Namespace: "default", Name: holder}
	if _, err := admin(t, s).NetworkingV1().IPAddresses().Create(t.Context(), a, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// A server that was killed between the claim of 10.96.0.1 and the service kubernetes could not start again for
// two minutes, nor could one that was started at the same moment.
func TestTheAddressOfAServiceThatWasNotMadeIsTakenOver(t *testing.T) {
	dir := t.TempDir()
	s, stop := run(t, dir, elsewhere)
	holdFirstAddress(t, s, bootstrap.ServiceName)
	stop()
	s, stop = run(t, dir)
	defer stop()
	now, err := admin(t, s).CoreV1().Services("default").Get(t.Context(), bootstrap.ServiceName, metav1.GetOptions{})
	if err != nil || now.Spec.ClusterIP != "10.96.0.1" {
		t.Errorf("%+v, %v", now, err)
	}
}

// Of two servers that were started at once, one ended: the address of the service kubernetes was taken. Of
// servers that stopped at once, one left its address in the endpoints.
func TestServersStartAndStopAtOnce(t *testing.T) {
	etcd := externalEtcd(t, 64<<20)
	share := func(c *Config) { c.EtcdServers = []string{etcd} }
	var busy sync.WaitGroup
	for i := range 4 {
		busy.Go(func() {
			_, stop := run(t, t.TempDir(), share, func(c *Config) { c.AdvertiseAddress = net.IPv4(192, 0, 2, byte(i)) })
			stop()
		})
	}
	busy.Wait()
	s := start(t, share)
	slice, err := admin(t, s).DiscoveryV1().EndpointSlices("default").Get(t.Context(), bootstrap.ServiceName, metav1.GetOptions{})
	if err != nil || len(slice.Endpoints) != 1 {
		t.Errorf("%+v, %v", slice, err)
	}
	endpoints, err := admin(t, s).CoreV1().Endpoints("default").Get(t.Context(), bootstrap.ServiceName, metav1.GetOptions{})
	if err != nil || len(endpoints.Subsets) != 1 || len(endpoints.Subsets[0].Addresses) != 1 {
		t.Errorf("%+v, %v", endpoints, err)
	}
}
