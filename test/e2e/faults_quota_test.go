package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// A tenant has so many config maps, one of which is made for every namespace.
const (
	tenantNamespace = "tenant"
	tenantMost      = 8
)

// makeTenant makes a namespace with a quota, and waits until every server knows of it.
func makeTenant(t *testing.T, servers []kubernetes.Interface) {
	t.Helper()
	ctx := t.Context()
	if _, err := servers[0].CoreV1().Namespaces().Create(ctx, &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: tenantNamespace}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	q := &v1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "q"}, Spec: v1.ResourceQuotaSpec{Hard: v1.ResourceList{
		"count/configmaps": *resource.NewQuantity(tenantMost, resource.DecimalSI), "count/secrets": resource.MustParse("0"),
	}}}
	if _, err := servers[0].CoreV1().ResourceQuotas(tenantNamespace).Create(ctx, q, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for i, c := range servers {
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
			secret := &v1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "none"}}
			_, err := c.CoreV1().Secrets(tenantNamespace).Create(ctx, secret, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			if apierrors.IsForbidden(err) {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("server %d knows no quota: %v", i+1, err)
			}
		}
	}
}

// tenant makes config maps by one server for as long as it may, and then deletes one, which others make again at once.
func (h *history) tenant(ctx context.Context, who int) {
	maps := h.clients[who].CoreV1().ConfigMaps(tenantNamespace)
	for n := 0; !h.ended.Load(); n++ {
		if err := h.admitted(ctx, h.clients[who], fmt.Sprintf("t-%d-%d", who, n)); apierrors.IsForbidden(err) {
			asking, cancel := context.WithTimeout(ctx, 5*time.Second)
			list, err := maps.List(asking, metav1.ListOptions{LabelSelector: "tenant"})
			if err == nil && len(list.Items) > 0 { // another one may be faster
				_ = maps.Delete(asking, list.Items[n%len(list.Items)].Name, metav1.DeleteOptions{})
			}
			cancel()
		} else if err != nil {
			time.Sleep(50 * time.Millisecond)
		}
	}
}

func (h *history) admitted(ctx context.Context, c kubernetes.Interface, name string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	cm := &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"tenant": ""}}}
	_, err := c.CoreV1().ConfigMaps(tenantNamespace).Create(ctx, cm, metav1.CreateOptions{})
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case err == nil:
		h.admissions++
	case apierrors.IsForbidden(err):
		h.refusals++
	}
	return err
}

// count sees to it that a tenant never has more than it may.
func (h *history) count(ctx context.Context) {
	for n := 0; !h.ended.Load(); n++ {
		asking, cancel := context.WithTimeout(ctx, 5*time.Second)
		list, err := h.clients[n%len(h.clients)].CoreV1().ConfigMaps(tenantNamespace).List(asking, metav1.ListOptions{})
		cancel()
		if err == nil && len(list.Items) > tenantMost {
			h.mu.Lock()
			h.lost = append(h.lost, fmt.Sprintf("%d config maps, where the quota allows %d", len(list.Items), tenantMost))
			h.mu.Unlock()
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// checkTenant looks whether a tenant has all that it may, once nothing fails any more.
func (h *history) checkTenant(t *testing.T) {
	t.Helper()
	for n := range tenantMost {
		err := h.admitted(t.Context(), h.clients[n%len(h.clients)], fmt.Sprint("last-", n))
		if err != nil && !apierrors.IsForbidden(err) {
			t.Error(err)
		}
	}
	list, err := h.clients[0].CoreV1().ConfigMaps(tenantNamespace).List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != tenantMost {
		t.Errorf("a tenant has %d config maps, and may have %d: %v", len(list.Items), tenantMost, err)
	}
	if h.admissions == 0 || h.refusals == 0 {
		t.Errorf("a tenant was admitted %d times, and refused %d", h.admissions, h.refusals)
	}
}
