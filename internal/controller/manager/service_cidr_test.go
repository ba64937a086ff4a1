package manager_test

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestARangeServesAtOnceAndStaysWhileAServiceNeedsIt(t *testing.T) {
	c := start(t, nil, "service-cidr-controller")
	ctx, cidrs, services := t.Context(), c.NetworkingV1().ServiceCIDRs(), c.CoreV1().Services("default")
	service := func(name string) *v1.Service {
		return &v1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1.ServiceSpec{
			ClusterIP: "10.200.0.5", Ports: []v1.ServicePort{{Port: 80}},
		}}
	}
	if s, err := services.Create(ctx, service("early"), metav1.CreateOptions{}); err == nil {
		t.Fatalf("an address of no range: %v", s.Spec)
	}
	second := &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "second"}}
	second.Spec.CIDRs = []string{"10.200.0.0/28"}
	if _, err := cidrs.Create(ctx, second, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	await(t, cidrs, "second", func(r *networkingv1.ServiceCIDR, _ bool) bool {
		return len(r.Finalizers) == 1 && meta.IsStatusConditionTrue(r.Status.Conditions, networkingv1.ServiceCIDRConditionReady)
	})
	if _, err := services.Create(ctx, service("s"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	ip, err := c.NetworkingV1().IPAddresses().Get(ctx, "10.200.0.5", metav1.GetOptions{})
	if err != nil || ip.Spec.ParentRef == nil || ip.Spec.ParentRef.Name != "s" {
		t.Fatalf("%v, %v", ip, err)
	}
	if err := cidrs.Delete(ctx, "second", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	await(t, cidrs, "second", func(r *networkingv1.ServiceCIDR, _ bool) bool {
		ready := meta.FindStatusCondition(r.Status.Conditions, networkingv1.ServiceCIDRConditionReady)
		return ready != nil && ready.Status == metav1.ConditionFalse && ready.Reason == "Terminating"
	})
	if err := services.Delete(ctx, "s", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitGone(t, func() error { _, err := cidrs.Get(ctx, "second", metav1.GetOptions{}); return err })
}
