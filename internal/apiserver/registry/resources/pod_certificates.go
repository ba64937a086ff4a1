package resources

import (
	"context"
	"errors"
	"fmt"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/endpoints/request"

	"wherry.dev/internal/api/validation"
	"wherry.dev/internal/apiserver/auth/signer"
	"wherry.dev/internal/apiserver/registry"
	"wherry.dev/internal/apiserver/registry/printers"
)

// clusterTrustBundles are trust anchors that pods mount. Those of a signer are named after it.
func clusterTrustBundles() registry.Row[*certificatesv1.ClusterTrustBundle] {
	type bundle = *certificatesv1.ClusterTrustBundle
	return registry.Row[bundle]{
		Resource:  gvr(certificatesv1.SchemeGroupVersion, "clustertrustbundles"),
		Kind:      "ClusterTrustBundle",
		Singular:  "clustertrustbundle",
		New:       func() bundle { return &certificatesv1.ClusterTrustBundle{} },
		NewList:   list[certificatesv1.ClusterTrustBundleList](),
		Table:     printers.ClusterTrustBundles,
		CheckName: func(string, bool) []string { return nil }, // validation checks it, because it depends on the signer
		Strategy: registry.Strategy[bundle]{
			Validate:              onCreate(validation.ClusterTrustBundle),
			ValidateUpdate:        onUpdate(validation.ClusterTrustBundleUpdate),
			NoUnconditionalUpdate: true,
		},
		Fields:      func(b bundle) fields.Set { return fields.Set{"spec.signerName": b.Spec.SignerName} },
		FieldLabels: []string{"spec.signerName"},
	}
}

// podCertificateRequests are created by kubelets for their pods and answered at /status by the
// signer; none is built in.
func podCertificateRequests(deps Deps) registry.Row[*certificatesv1.PodCertificateRequest] {
	type pcr = *certificatesv1.PodCertificateRequest
	return registry.Row[pcr]{
		Resource:   gvr(certificatesv1.SchemeGroupVersion, "podcertificaterequests"),
		Kind:       "PodCertificateRequest",
		Singular:   "podcertificaterequest",
		Namespaced: true,
		New:        func() pcr { return &certificatesv1.PodCertificateRequest{} },
		NewList:    list[certificatesv1.PodCertificateRequestList](),
		Table:      printers.PodCertificateRequests,
		CheckName:  apivalidation.NameIsDNSSubdomain,
		Strategy: registry.Strategy[pcr]{
			Create:                func(_ context.Context, r pcr) { r.Status = certificatesv1.PodCertificateRequestStatus{} },
			Update:                func(_ context.Context, r, old pcr) { r.Status = old.Status },
			Validate:              onCreate(validation.PodCertificateRequest),
			ValidateUpdate:        onUpdate(validation.PodCertificateRequestUpdate),
			Reset:                 []string{"status"},
			NoUnconditionalUpdate: true,
		},
		Status: &registry.Strategy[pcr]{
			Update: func(_ context.Context, r, old pcr) {
				r.Spec = old.Spec
				metav1.ResetObjectMetaForStatus(r, old)
			},
			ValidateUpdate:        deps.answered,
			Reset:                 []string{"spec"},
			NoUnconditionalUpdate: true,
		},
		Fields: func(r pcr) fields.Set {
			return fields.Set{"spec.signerName": r.Spec.SignerName, "spec.podName": r.Spec.PodName, "spec.nodeName": string(r.Spec.NodeName)}
		},
		FieldLabels: []string{"spec.signerName", "spec.podName", "spec.nodeName"},
	}
}

// answered validates the answer to a request, and then checks that it comes from the signer.
func (d Deps) answered(ctx context.Context, r, old *certificatesv1.PodCertificateRequest) field.ErrorList {
	errs := validation.PodCertificateRequestStatus(r, old, time.Now())
	if len(errs) > 0 || apiequality.Semantic.DeepEqual(r.Status, old.Status) {
		return errs
	}
	at := field.NewPath("spec", "signerName")
	who, ok := request.UserFrom(ctx)
	if !ok {
		return field.ErrorList{field.InternalError(at, errors.New(`cannot determine calling user to perform "sign" check`))}
	}
	if !signer.Allows(ctx, d.Auth.Authorizer, who, "sign", old.Spec.SignerName) {
		return field.ErrorList{field.Forbidden(at, fmt.Sprintf(`User %q is not permitted to "sign" for signer %q`, who.GetName(), old.Spec.SignerName))}
	}
	return nil
}
