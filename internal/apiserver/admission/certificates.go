package admission

import (
	"bytes"
	"context"
	"slices"

	certificatesv1 "k8s.io/api/certificates/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"wherry.dev/internal/api/validation"
	"wherry.dev/internal/apiserver/auth/signer"
)

// certificateApproval lets a user approve a certificate only if RBAC allows them to approve for its
// signer.
type certificateApproval struct{ may authorizer.Authorizer }

// certificateSigning lets a user sign only if they may sign for the signer.
type certificateSigning struct{ may authorizer.Authorizer }

// certificateSubjectRestriction keeps users from requesting a certificate that makes them an
// administrator.
type certificateSubjectRestriction struct{}

var (
	_ admission.ValidationInterface = (*certificateApproval)(nil)
	_ admission.ValidationInterface = (*certificateSigning)(nil)
	_ admission.ValidationInterface = certificateSubjectRestriction{}
)

func (*certificateApproval) Handles(op admission.Operation) bool { return op == admission.Update }
func (*certificateSigning) Handles(op admission.Operation) bool  { return op == admission.Update }
func (certificateSubjectRestriction) Handles(op admission.Operation) bool {
	return op == admission.Create
}

func (p *certificateApproval) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetResource().GroupResource() != requestsResource || a.GetSubresource() != "approval" {
		return nil
	}
	old, ok := a.GetOldObject().(*certificatesv1.CertificateSigningRequest)
	if !ok {
		return forbid(a, "expected type CertificateSigningRequest, got: %T", a.GetOldObject())
	}
	if !signer.Allows(ctx, p.may, a.GetUserInfo(), "approve", old.Spec.SignerName) {
		return forbid(a, "user not permitted to approve requests with signerName %q", old.Spec.SignerName)
	}
	return nil
}

func (p *certificateSigning) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetResource().GroupResource() != requestsResource || a.GetSubresource() != "status" {
		return nil
	}
	old, ok := a.GetOldObject().(*certificatesv1.CertificateSigningRequest)
	if !ok {
		return forbid(a, "expected type CertificateSigningRequest, got: %T", a.GetOldObject())
	}
	obj, ok := a.GetObject().(*certificatesv1.CertificateSigningRequest)
	if !ok {
		return forbid(a, "expected type CertificateSigningRequest, got: %T", a.GetObject())
	}
	if bytes.Equal(old.Status.Certificate, obj.Status.Certificate) && apiequality.Semantic.DeepEqual(old.Status.Conditions, obj.Status.Conditions) {
		return nil
	}
	if !signer.Allows(ctx, p.may, a.GetUserInfo(), "sign", old.Spec.SignerName) {
		return forbid(a, "user not permitted to sign requests with signerName %q", old.Spec.SignerName)
	}
	return nil
}

// clusterTrustBundleAttest lets a user publish a signer's certificates only if they may attest for
// the signer.
type clusterTrustBundleAttest struct{ may authorizer.Authorizer }

var _ admission.ValidationInterface = (*clusterTrustBundleAttest)(nil)

func (*clusterTrustBundleAttest) Handles(op admission.Operation) bool {
	return op == admission.Create || op == admission.Update
}

func (p *clusterTrustBundleAttest) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetResource().GroupResource() != bundlesResource {
		return nil
	}
	obj, ok := a.GetObject().(*certificatesv1.ClusterTrustBundle)
	if !ok {
		return forbid(a, "expected type ClusterTrustBundle, got: %T", a.GetObject())
	}
	if obj.Spec.SignerName == "" { // it cannot be changed
		return nil
	}
	if old, ok := a.GetOldObject().(*certificatesv1.ClusterTrustBundle); ok && a.GetOperation() == admission.Update && sameButForDeletion(obj, old) {
		return nil
	}
	if !signer.Allows(ctx, p.may, a.GetUserInfo(), "attest", obj.Spec.SignerName) {
		return forbid(a, "user not permitted to attest for signerName %q", obj.Spec.SignerName)
	}
	return nil
}

// sameButForDeletion reports whether the objects differ only in what garbage collection and a
// rewrite of the storage change.
func sameButForDeletion(obj, old *certificatesv1.ClusterTrustBundle) bool {
	was := obj.DeepCopy()
	was.OwnerReferences, was.Finalizers, was.ManagedFields = old.OwnerReferences, old.Finalizers, old.ManagedFields
	return apiequality.Semantic.DeepEqual(was, old)
}

func (certificateSubjectRestriction) Validate(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetResource().GroupResource() != requestsResource || a.GetSubresource() != "" {
		return nil
	}
	obj, ok := a.GetObject().(*certificatesv1.CertificateSigningRequest)
	if !ok {
		return forbid(a, "expected type CertificateSigningRequest, got: %T", a.GetObject())
	}
	if obj.Spec.SignerName != certificatesv1.KubeAPIServerClientSignerName {
		return nil
	}
	req, err := validation.ParseCSR(obj.Spec.Request)
	if err != nil {
		return forbid(a, "failed to parse CSR: %v", err)
	}
	if slices.Contains(req.Subject.Organization, user.SystemPrivilegedGroup) {
		return forbid(a, "use of %s signer with %s group is not allowed", obj.Spec.SignerName, user.SystemPrivilegedGroup)
	}
	return nil
}
