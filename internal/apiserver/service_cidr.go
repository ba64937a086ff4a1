package apiserver

import (
	"context"
	"fmt"
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
)

// defaultServiceCIDR is the object that shows the range that we were configured with.
const defaultServiceCIDR = "kubernetes"

// ensureServiceCIDR publishes the range of services' addresses, and says that it is ready. If the
// object shows another range it is left as it is: only an administrator knows which one is meant.
func (s *Server) ensureServiceCIDR(ctx context.Context, client kubernetes.Interface) error {
	api := client.NetworkingV1().ServiceCIDRs()
	want := []string{s.cfg.ServiceCIDR.String()}
	c, err := api.Get(ctx, defaultServiceCIDR, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		c = &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: defaultServiceCIDR}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: want}}
		if c, err = api.Create(ctx, c, metav1.CreateOptions{}); apierrors.IsAlreadyExists(err) {
			return nil // another server was faster, and says that it is ready
		}
	}
	if err != nil {
		return fmt.Errorf("service CIDR %s: %w", defaultServiceCIDR, err)
	}
	if !slices.Equal(c.Spec.CIDRs, want) {
		klog.FromContext(ctx).Info("The default ServiceCIDR does not match the configured range; services get addresses of the latter",
			"serviceCIDR", c.Spec.CIDRs, "configured", want)
		return nil
	}
	if meta.FindStatusCondition(c.Status.Conditions, networkingv1.ServiceCIDRConditionReady) != nil || c.DeletionTimestamp != nil {
		return nil
	}
	meta.SetStatusCondition(&c.Status.Conditions, metav1.Condition{
		Type: networkingv1.ServiceCIDRConditionReady, Status: metav1.ConditionTrue, Message: "Kubernetes default Service CIDR is ready",
	})
	if _, err := api.UpdateStatus(ctx, c, metav1.UpdateOptions{}); err != nil && !apierrors.IsConflict(err) {
		return fmt.Errorf("status of service CIDR %s: %w", defaultServiceCIDR, err)
	}
	return nil
}
