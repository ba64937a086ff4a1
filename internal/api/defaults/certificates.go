package defaults

import certificatesv1 "k8s.io/api/certificates/v1"

// PodCertificateRequest sets how long the certificate may live: a day.
func PodCertificateRequest(r *certificatesv1.PodCertificateRequest) {
	setPtr(&r.Spec.MaxExpirationSeconds, 24*60*60)
}
