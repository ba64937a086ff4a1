package resources

import (
	"context"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	"wherry.dev/internal/api/validation"
	"wherry.dev/internal/apiserver/registry"
	"wherry.dev/internal/apiserver/registry/printers"
)

// certificateSigningRequests can be approved at /approval and signed at /status, and cannot be
// changed otherwise.
func certificateSigningRequests() registry.Row[*certificatesv1.CertificateSigningRequest] {
	type csr = *certificatesv1.CertificateSigningRequest
	return registry.Row[csr]{
		Resource:   gvr(certificatesv1.SchemeGroupVersion, "certificatesigningrequests"),
		Kind:       "CertificateSigningRequest",
		Singular:   "certificatesigningrequest",
		ShortNames: []string{"csr"},
		New:        func() csr { return &certificatesv1.CertificateSigningRequest{} },
		NewList:    list[certificatesv1.CertificateSigningRequestList](),
		Table:      printers.CertificateSigningRequests,
		CheckName:  func(string, bool) []string { return nil },
		Strategy: registry.Strategy[csr]{
			Create:         requestedBy,
			Update:         func(_ context.Context, obj, old csr) { obj.Spec, obj.Status = old.Spec, old.Status },
			Validate:       onCreate(validation.CertificateSigningRequest),
			ValidateUpdate: onUpdate(validation.CertificateSigningRequestUpdate),
			Reset:          []string{"spec", "status"},
		},
		Status: &registry.Strategy[csr]{
			Update: func(_ context.Context, obj, old csr) {
				obj.Spec = old.Spec
				keepVerdict(obj, old)
				stampConditions(obj, old)
			},
			ValidateUpdate: onUpdate(validation.CertificateSigningRequestStatus),
			Reset:          []string{"spec", "status.conditions"},
		},
		Fields:      func(r csr) fields.Set { return fields.Set{"spec.signerName": r.Spec.SignerName} },
		FieldLabels: []string{"spec.signerName"},
		Endpoints: func(row *registry.Endpoints[csr]) map[string]rest.Storage {
			return map[string]rest.Storage{"approval": row.Update(registry.Strategy[csr]{
				Update: func(_ context.Context, obj, old csr) {
					stampConditions(obj, old)
					conditions := obj.Status.Conditions
					obj.Spec, obj.Status = old.Spec, old.Status
					obj.Status.Conditions = conditions
				},
				ValidateUpdate: onUpdate(validation.CertificateSigningRequestApproval),
				Reset:          []string{"spec", "status.certificate"},
			})}
		},
	}
}

// requestedBy records who makes the request, whatever the request itself says, and clears its
// status.
func requestedBy(ctx context.Context, r *certificatesv1.CertificateSigningRequest) {
	r.Spec.Username, r.Spec.UID, r.Spec.Groups, r.Spec.Extra = "", "", nil, nil
	if u, ok := request.UserFrom(ctx); ok {
		r.Spec.Username, r.Spec.UID, r.Spec.Groups = u.GetName(), u.GetUID(), u.GetGroups()
		for key, values := range u.GetExtra() {
			if r.Spec.Extra == nil {
				r.Spec.Extra = map[string]certificatesv1.ExtraValue{}
			}
			r.Spec.Extra[key] = values
		}
	}
	r.Status = certificatesv1.CertificateSigningRequestStatus{}
}

// keepVerdict replaces the new conditions Approved and Denied with the old ones, so that a client
// that writes them back does not change them. If some were added or removed, it leaves them for
// validation to refuse.
func keepVerdict(obj, old *certificatesv1.CertificateSigningRequest) {
	for _, t := range []certificatesv1.RequestConditionType{certificatesv1.CertificateApproved, certificatesv1.CertificateDenied} {
		before := validation.ConditionsOf(old, t)
		if len(before) != len(validation.ConditionsOf(obj, t)) {
			continue
		}
		for i := range obj.Status.Conditions {
			if obj.Status.Conditions[i].Type == t {
				obj.Status.Conditions[i], before = before[0], before[1:]
			}
		}
	}
}

// stampConditions fills in times that were left out.
func stampConditions(obj, old *certificatesv1.CertificateSigningRequest) {
	now := metav1.NewTime(time.Now())
	for i := range obj.Status.Conditions {
		c := &obj.Status.Conditions[i]
		if c.LastUpdateTime.IsZero() {
			c.LastUpdateTime = now
		}
		if !c.LastTransitionTime.IsZero() {
			continue
		}
		c.LastTransitionTime = now
		for _, o := range validation.ConditionsOf(old, c.Type) {
			if o.Status == c.Status && !o.LastTransitionTime.IsZero() {
				c.LastTransitionTime = o.LastTransitionTime
				break
			}
		}
	}
}
