package apiserver

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

func testService(name string, kind corev1.ServiceType) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
		Spec:       corev1.ServiceSpec{Type: kind, Ports: []corev1.ServicePort{{Port: 80}}},
	}
}

func TestKubernetesServiceLeadsHere(t *testing.T) {
	s := start(t)
	c := admin(t, s)
	svc, err := c.CoreV1().Services("default").Get(t.Context(), "kubernetes", metav1.GetOptions{})
	if err != nil || svc.Spec.ClusterIP != "10.96.0.1" {
		t.Fatalf("service: %v %+v", err, svc.Spec)
	}
	slice, err := c.DiscoveryV1().EndpointSlices("default").Get(t.Context(), "kubernetes", metav1.GetOptions{})
	if err != nil || slice.Endpoints[0].Addresses[0] != "127.0.0.1" || int(*slice.Ports[0].Port) != s.Addr().Port {
		t.Errorf("slice: %v %+v", err, slice)
	}
}

func TestServiceAddressesAreUniqueAndComeBack(t *testing.T) {
	_, small, err := net.ParseCIDR("10.7.0.0/28")
	if err != nil {
		t.Fatal(err)
	}
	s := start(t, func(c *Config) { c.ServiceCIDRs = []*net.IPNet{small} })
	ctx := t.Context()
	api := admin(t, s).CoreV1().Services("default")
	// 14 addresses, one of which is the API's own.
	var wg sync.WaitGroup
	var mu sync.Mutex
	seen := map[string]string{}
	full := 0
	for i := range 20 {
		wg.Go(func() {
			svc, err := api.Create(context.WithoutCancel(ctx), testService("s"+string(rune('a'+i)), corev1.ServiceTypeClusterIP), metav1.CreateOptions{})
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				full++
				return
			}
			if other, dup := seen[svc.Spec.ClusterIP]; dup {
				t.Errorf("%s has the address of %s", svc.Name, other)
			}
			seen[svc.Spec.ClusterIP] = svc.Name
		})
	}
	wg.Wait()
	if len(seen) != 13 || full != 7 {
		t.Errorf("%d services made, %d refused; want 13 and 7", len(seen), full)
	}
	for ip, name := range seen {
		if err := api.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		again := testService("again", corev1.ServiceTypeClusterIP)
		again.Spec.ClusterIP = ip
		if _, err := api.Create(ctx, again, metav1.CreateOptions{}); err != nil {
			t.Errorf("address of a deleted service: %v", err)
		}
		break
	}
}

// A client that knows only clusterIP, as kubectl apply of a manifest of one, was told of a mismatch with
// clusterIPs that it had never written.
func TestAddressOfAServiceDoesNotChange(t *testing.T) {
	s := start(t)
	ctx, api := t.Context(), admin(t, s).CoreV1().Services("default")
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "a"},
		Spec: corev1.ServiceSpec{
			ClusterIP: corev1.ClusterIPNone, Ports: []corev1.ServicePort{{Port: 80}}, Selector: map[string]string{"a": "b"},
		},
	}
	if _, err := api.Create(ctx, svc, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err := api.Patch(ctx, "a", types.MergePatchType, []byte(`{"spec":{"clusterIP":"10.96.0.77"}}`), metav1.PatchOptions{})
	refused(t, err, `spec.clusterIPs[0]: Invalid value: ["10.96.0.77"]: may not change once set`)
	if got, err := api.Patch(ctx, "a", types.MergePatchType, []byte(`{"spec":{"clusterIP":""}}`), metav1.PatchOptions{}); err != nil ||
		got.Spec.ClusterIP != corev1.ClusterIPNone {
		t.Errorf("left out: %v, %v", got.Spec.ClusterIPs, err)
	}
}

func TestNodePorts(t *testing.T) {
	s := start(t)
	ctx := t.Context()
	api := admin(t, s).CoreV1().Services("default")
	first := testService("a", corev1.ServiceTypeNodePort)
	first.Spec.Ports[0].AppProtocol = new("http") // which kept node ports when the type changed
	a, err := api.Create(ctx, first, metav1.CreateOptions{})
	if err != nil || a.Spec.Ports[0].NodePort < 30000 {
		t.Fatalf("node port: %v %+v", err, a.Spec.Ports)
	}
	b := testService("b", corev1.ServiceTypeNodePort)
	b.Spec.Ports[0].NodePort = a.Spec.Ports[0].NodePort
	_, err = api.Create(ctx, b, metav1.CreateOptions{})
	refused(t, err, "provided port is already allocated")
	// An update that omits the addresses keeps them.
	update := testService("a", corev1.ServiceTypeNodePort)
	update.Labels = map[string]string{"x": "y"}
	update.ResourceVersion = a.ResourceVersion
	after, err := api.Update(ctx, update, metav1.UpdateOptions{})
	if err != nil || after.Spec.ClusterIP != a.Spec.ClusterIP || after.Spec.Ports[0].NodePort != a.Spec.Ports[0].NodePort {
		t.Errorf("update: %v %+v", err, after.Spec)
	}
	after.Spec.Ports[0].Port++ // other things may change with the type
	if after.Spec.Type = corev1.ServiceTypeClusterIP; err == nil {
		after, err = api.Update(ctx, after, metav1.UpdateOptions{})
	}
	if err != nil || after.Spec.Ports[0].NodePort != 0 {
		t.Errorf("back to ClusterIP: %v %+v", err, after.Spec.Ports)
	}
	b.Spec.Ports[0].NodePort = a.Spec.Ports[0].NodePort
	if _, err = api.Create(ctx, b, metav1.CreateOptions{}); err != nil {
		t.Errorf("port that was given back: %v", err)
	}
}

// Names of services are RFC 1123 labels (KEP-5311, stable in 1.37): they may start with a digit.
func TestNamesOfServices(t *testing.T) {
	s := start(t)
	api := admin(t, s).CoreV1().Services("default")
	const wrong = "a lowercase RFC 1123 label must consist of"
	for name, want := range map[string]string{
		"a": "", "1": "", "1a-2": "", strings.Repeat("9", 63): "",
		"-a": wrong, "a-": wrong, "A": wrong, "a.b": "must not contain dots", "1_a": wrong, strings.Repeat("9", 64): "must be no more than 63",
	} {
		_, err := api.Create(t.Context(), testService(name, corev1.ServiceTypeClusterIP), metav1.CreateOptions{})
		if want != "" {
			refused(t, err, want)
		} else if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	generated := testService("", corev1.ServiceTypeClusterIP)
	generated.GenerateName = "2-"
	svc, err := api.Create(t.Context(), generated, metav1.CreateOptions{})
	if err != nil || !strings.HasPrefix(svc.Name, "2-") {
		t.Errorf("generated: %v, %v", svc, err)
	}
}

// TestPortsOfServicesThatAreBeingMade: a server that started took away the port of a service that another server was making, because
// there was no such service yet, and gave it to the next one.
func TestPortsOfServicesThatAreBeingMade(t *testing.T) {
	s := start(t)
	ctx, services := t.Context(), admin(t, s).CoreV1().Services("default")
	made := testService("made", corev1.ServiceTypeNodePort)
	made.Spec.Ports[0].NodePort = 30300
	made, err := services.Create(ctx, made, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	const key = "nodeports/30301"
	if _, _, err := s.backend.Claim(ctx, key, "default/being-made/uid"); err != nil {
		t.Fatal(err)
	}
	report := func(runtime.Object, string, string) {}
	held := func(when string, want bool) {
		t.Helper()
		all, err := s.backend.Claims(ctx, "nodeports/")
		if err != nil || (all[key] != "") != want || all["nodeports/30300"] != "default/made/"+string(made.UID) {
			t.Errorf("%s: %v, %v", when, all, err)
		}
	}
	// The list of a server that starts can be older than both.
	if err := s.services.Repair(ctx, nil, report); err != nil {
		t.Fatal(err)
	}
	held("at the start of another server", true)
	other := testService("other", corev1.ServiceTypeNodePort)
	other.Spec.Ports[0].NodePort = 30301
	_, err = services.Create(ctx, other, metav1.CreateOptions{})
	refused(t, err, "provided port is already allocated")
	if err := s.services.RepairPorts(ctx, nil, time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	held("a minute later", true)
	if err := s.services.RepairPorts(ctx, nil, time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	held("when the service has not come", false)
	if _, err := services.Create(ctx, other, metav1.CreateOptions{}); err != nil {
		t.Error(err)
	}
	// A claim that is missing is made again, and one of a service that is gone is not.
	if err := s.backend.Release(ctx, "nodeports/30300", "default/made/"+string(made.UID)); err != nil {
		t.Fatal(err)
	}
	gone := made.DeepCopy()
	gone.Name, gone.Spec.Ports[0].NodePort = "gone", 30302
	if err := s.services.RepairPorts(ctx, []corev1.Service{*made, *gone}, time.Now()); err != nil {
		t.Fatal(err)
	}
	held("after it was lost", true)
	if all, err := s.backend.Claims(ctx, "nodeports/30302"); err != nil || len(all) > 0 {
		t.Errorf("%v, %v", all, err)
	}
}

// TestPortsOfServicesThatAreRefused: a webhook that fails is an error of the server's, and the service is certainly not written.
func TestPortsOfServicesThatAreRefused(t *testing.T) {
	s := start(t)
	ctx, client := t.Context(), admin(t, s)
	const away = "https://127.0.0.1:1/"
	none := admissionregistrationv1.SideEffectClassNone
	hook := admissionregistrationv1.ValidatingWebhook{
		Name: "away.example.com", ClientConfig: admissionregistrationv1.WebhookClientConfig{URL: new(away)}, SideEffects: &none,
		AdmissionReviewVersions: []string{"v1"}, Rules: []admissionregistrationv1.RuleWithOperations{{
			Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
			Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"services"}},
		}},
	}
	_, err := client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(ctx, &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "away"}, Webhooks: []admissionregistrationv1.ValidatingWebhook{hook},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		_, err := client.CoreV1().Services("default").Create(ctx, testService("refused", corev1.ServiceTypeNodePort), metav1.CreateOptions{})
		if err == nil {
			err = client.CoreV1().Services("default").Delete(ctx, "refused", metav1.DeleteOptions{})
			return errors.Join(errors.New("the webhook is not asked yet"), err)
		}
		if !apierrors.IsInternalError(err) {
			return err
		}
		return nil
	})
	if all, err := s.backend.Claims(ctx, "nodeports/"); err != nil || len(all) > 0 {
		t.Errorf("ports are taken: %v, %v", all, err)
	}
	list, err := client.NetworkingV1().IPAddresses().List(ctx, metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 {
		t.Errorf("addresses besides that of the API server: %v, %v", list.Items, err)
	}
}
