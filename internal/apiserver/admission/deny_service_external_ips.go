package admission

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/admission"
)

// denyServiceExternalIPs refuses new external addresses of services, with which one could take the
// traffic of others (CVE-2020-8554). Those that a service has may stay.
type denyServiceExternalIPs struct{}

var _ admission.ValidationInterface = denyServiceExternalIPs{}

func (denyServiceExternalIPs) Handles(op admission.Operation) bool {
	return op == admission.Create || op == admission.Update
}

func (denyServiceExternalIPs) Validate(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetResource().GroupResource() != servicesResource || a.GetSubresource() != "" {
		return nil
	}
	service, ok := a.GetObject().(*corev1.Service)
	if !ok {
		return apierrors.NewInternalError(forbid(a, "expected Service resource, got: %T", a.GetObject()))
	}
	var had []string
	if old, ok := a.GetOldObject().(*corev1.Service); ok {
		had = old.Spec.ExternalIPs
	}
	for _, ip := range service.Spec.ExternalIPs {
		if !slices.Contains(had, ip) {
			return forbid(a, "Use of external IPs is denied by admission control")
		}
	}
	return nil
}
