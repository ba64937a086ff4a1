package validation

import (
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Lease checks a lease.
func Lease(l *coordinationv1.Lease) field.ErrorList {
	p := &problems{}
	at := field.NewPath("spec")
	if d := l.Spec.LeaseDurationSeconds; d != nil && *d <= 0 {
		p.invalid(at.Child("leaseDurationSeconds"), *d, "must be greater than 0")
	}
	if n := l.Spec.LeaseTransitions; n != nil && *n < 0 {
		p.invalid(at.Child("leaseTransitions"), *n, mustNotBeNegative)
	}
	if h := l.Spec.PreferredHolder; h != nil && *h != "" && (l.Spec.Strategy == nil || *l.Spec.Strategy == "") {
		p.forbidden(at.Child("preferredHolder"), "may only be specified if `strategy` is defined")
	}
	return p.list
}
