package printers

import (
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"wherry.dev/internal/apiserver/registry"
)

// CertificateSigningRequests is the table of certificate signing requests.
var CertificateSigningRequests = registry.Table[*certificatesv1.CertificateSigningRequest]{
	Columns: []metav1.TableColumnDefinition{
		nameColumn, ageColumn,
		column("SignerName", certificatesv1.CertificateSigningRequestSpec{}.SwaggerDoc()["signerName"]),
		column("Requestor", certificatesv1.CertificateSigningRequestSpec{}.SwaggerDoc()["request"]),
		column("RequestedDuration", certificatesv1.CertificateSigningRequestSpec{}.SwaggerDoc()["expirationSeconds"]),
		column("Condition", certificatesv1.CertificateSigningRequestStatus{}.SwaggerDoc()["conditions"]),
	},
	Cells: func(r *certificatesv1.CertificateSigningRequest, now time.Time) []any {
		lifetime := "<none>"
		if s := r.Spec.ExpirationSeconds; s != nil {
			lifetime = duration.HumanDuration(time.Duration(*s) * time.Second)
		}
		return []any{r.Name, age(r, now), r.Spec.SignerName, r.Spec.Username, lifetime, requestState(r)}
	},
}

// ClusterTrustBundles is the table of cluster trust bundles.
var ClusterTrustBundles = registry.Table[*certificatesv1.ClusterTrustBundle]{
	Columns: []metav1.TableColumnDefinition{
		nameColumn,
		column("SignerName", certificatesv1.ClusterTrustBundleSpec{}.SwaggerDoc()["signerName"]),
	},
	Cells: func(b *certificatesv1.ClusterTrustBundle, _ time.Time) []any {
		return []any{b.Name, orNone(b.Spec.SignerName)}
	},
}

// PodCertificateRequests is the table of pod certificate requests.
var PodCertificateRequests = registry.Table[*certificatesv1.PodCertificateRequest]{
	Columns: []metav1.TableColumnDefinition{
		nameColumn,
		column("PodName", certificatesv1.PodCertificateRequestSpec{}.SwaggerDoc()["podName"]),
		column("ServiceAccountName", certificatesv1.PodCertificateRequestSpec{}.SwaggerDoc()["serviceAccountName"]),
		column("NodeName", certificatesv1.PodCertificateRequestSpec{}.SwaggerDoc()["nodeName"]),
		column("SignerName", certificatesv1.PodCertificateRequestSpec{}.SwaggerDoc()["signerName"]),
		column("State", "Is the request Pending, Issued, Denied, or Failed?"),
		column("UnverifiedUserAnnotations", certificatesv1.PodCertificateRequestSpec{}.SwaggerDoc()["unverifiedUserAnnotations"]),
	},
	Cells: func(r *certificatesv1.PodCertificateRequest, _ time.Time) []any {
		state := "Pending"
		for _, c := range r.Status.Conditions {
			state = c.Type // only Issued, Denied and Failed are allowed
		}
		return []any{
			r.Name, r.Spec.PodName, r.Spec.ServiceAccountName, string(r.Spec.NodeName), r.Spec.SignerName, state,
			formatLabels(r.Spec.UnverifiedUserAnnotations),
		}
	},
}

// requestState returns Pending, Approved or Denied, and the outcome.
func requestState(r *certificatesv1.CertificateSigningRequest) string {
	has := map[certificatesv1.RequestConditionType]bool{}
	for _, c := range r.Status.Conditions {
		has[c.Type] = true
	}
	state := "Pending"
	switch {
	case has[certificatesv1.CertificateDenied]:
		state = "Denied"
	case has[certificatesv1.CertificateApproved]:
		state = "Approved"
	}
	if has[certificatesv1.CertificateFailed] {
		state += ",Failed"
	}
	if len(r.Status.Certificate) > 0 {
		state += ",Issued"
	}
	return state
}
