package warnings

import (
	"context"
	"crypto/tls"

	corev1 "k8s.io/api/core/v1"
)

// Secret warns of a certificate that cannot be used with its key.
func Secret(_ context.Context, s *corev1.Secret) []string {
	if s.Type != corev1.SecretTypeTLS {
		return nil
	}
	if _, err := tls.X509KeyPair(s.Data[corev1.TLSCertKey], s.Data[corev1.TLSPrivateKeyKey]); err != nil {
		return []string{err.Error()}
	}
	return nil
}
