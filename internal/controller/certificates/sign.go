package certificates

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// MostTime is upstream's default of --cluster-signing-duration.
	MostTime  = 365 * 24 * time.Hour
	leastTime = 10 * time.Minute
	// backdate allows for a clock that is a little behind.
	backdate = 5 * time.Minute
)

// sign signs an approved request, or writes a condition that says why its signer refuses.
func (c *Controller) sign(ctx context.Context, r *certificatesv1.CertificateSigningRequest, now time.Time) error {
	check, ours := signers[r.Spec.SignerName]
	if !ours {
		return nil
	}
	req, err := parseRequest(r.Spec.Request)
	if err != nil {
		return fmt.Errorf("certificate signing request %s: %w", r.Name, err)
	}
	if err := check(req, r.Spec.Usages); err != nil {
		r.Status.Conditions = append(r.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
			Type: certificatesv1.CertificateFailed, Status: corev1.ConditionTrue, Reason: "SignerValidationFailure", Message: err.Error(),
			LastUpdateTime: metav1.NewTime(now),
		})
	} else if r.Status.Certificate, err = c.certificate(req, r, now); err != nil {
		return fmt.Errorf("sign certificate signing request %s: %w", r.Name, err)
	}
	if _, err := c.client.CertificatesV1().CertificateSigningRequests().UpdateStatus(ctx, r, metav1.UpdateOptions{}); ignoreGone(err) != nil {
		return fmt.Errorf("write certificate of request %s: %w", r.Name, err)
	}
	return nil
}

func (c *Controller) certificate(req *x509.CertificateRequest, r *certificatesv1.CertificateSigningRequest, now time.Time) ([]byte, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}
	tmpl := &x509.Certificate{
		SerialNumber: serial, Subject: req.Subject, NotBefore: now.Add(-backdate), NotAfter: now.Add(c.lifetime(r.Spec.ExpirationSeconds)),
		DNSNames: req.DNSNames, IPAddresses: req.IPAddresses, EmailAddresses: req.EmailAddresses, URIs: req.URIs,
		BasicConstraintsValid: true,
	}
	if err := setUsages(tmpl, r.Spec.Usages); err != nil {
		return nil, err
	}
	der, err := c.ca.Sign(tmpl, req.PublicKey)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), nil
}

// lifetime returns the requested lifetime, within limits.
func (c *Controller) lifetime(seconds *int32) time.Duration {
	if seconds == nil {
		return c.longest
	}
	return min(max(time.Duration(*seconds)*time.Second, leastTime), c.longest)
}

func parseRequest(data []byte) (*x509.CertificateRequest, error) {
	block, _ := pem.Decode(data)
	if block == nil || block.Type != "CERTIFICATE REQUEST" {
		return nil, errors.New("PEM block type must be CERTIFICATE REQUEST")
	}
	return x509.ParseCertificateRequest(block.Bytes)
}

// signers maps Kubernetes' own signers to the checks of their requests.
var signers = map[string]func(*x509.CertificateRequest, []certificatesv1.KeyUsage) error{
	certificatesv1.KubeAPIServerClientKubeletSignerName: checkKubeletClient,
	certificatesv1.KubeletServingSignerName:             checkKubeletServing,
	certificatesv1.KubeAPIServerClientSignerName:        checkClient,
}

func checkKubeletClient(req *x509.CertificateRequest, usages []certificatesv1.KeyUsage) error {
	if err := checkNode(req); err != nil {
		return err
	}
	switch {
	case len(req.DNSNames) > 0:
		return errors.New("DNS subjectAltNames are not allowed")
	case len(req.IPAddresses) > 0:
		return errors.New("IP subjectAltNames are not allowed")
	}
	return exactly(usages, certificatesv1.UsageClientAuth)
}

func checkKubeletServing(req *x509.CertificateRequest, usages []certificatesv1.KeyUsage) error {
	if err := checkNode(req); err != nil {
		return err
	}
	if len(req.DNSNames)+len(req.IPAddresses) == 0 {
		return errors.New("DNS or IP subjectAltName is required")
	}
	return exactly(usages, certificatesv1.UsageServerAuth)
}

func checkNode(req *x509.CertificateRequest) error {
	switch {
	case !slices.Equal(req.Subject.Organization, []string{"system:nodes"}):
		return errors.New("subject organization is not system:nodes")
	case len(req.EmailAddresses) > 0:
		return errors.New("Email subjectAltNames are not allowed") //nolint:staticcheck // upstream's words, shown to users
	case len(req.URIs) > 0:
		return errors.New("URI subjectAltNames are not allowed")
	case !strings.HasPrefix(req.Subject.CommonName, "system:node:"):
		return errors.New("subject common name does not begin with system:node:") //nolint:revive,staticcheck // upstream's words
	}
	return nil
}

// exactly requires digital signature and the given usage, and also allows key encipherment, for RSA
// keys. No other usage is allowed.
func exactly(usages []certificatesv1.KeyUsage, usage certificatesv1.KeyUsage) error {
	want := []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageKeyEncipherment, usage}
	for _, u := range want {
		if u != certificatesv1.UsageKeyEncipherment && !slices.Contains(usages, u) {
			return fmt.Errorf("usages did not match %v", want)
		}
	}
	for _, u := range usages {
		if !slices.Contains(want, u) {
			return fmt.Errorf("usages did not match %v", want)
		}
	}
	return nil
}

func checkClient(_ *x509.CertificateRequest, usages []certificatesv1.KeyUsage) error {
	for _, u := range usages {
		if !slices.Contains([]certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageKeyEncipherment, certificatesv1.UsageClientAuth}, u) {
			return fmt.Errorf("invalid usage for client certificate: %s", u)
		}
	}
	if !slices.Contains(usages, certificatesv1.UsageClientAuth) {
		return fmt.Errorf("missing required usage for client certificate: %s", certificatesv1.UsageClientAuth)
	}
	return nil
}

// setUsages writes the usages into a certificate. The signers here allow no others.
func setUsages(tmpl *x509.Certificate, usages []certificatesv1.KeyUsage) error {
	for _, u := range usages {
		switch u {
		case certificatesv1.UsageDigitalSignature:
			tmpl.KeyUsage |= x509.KeyUsageDigitalSignature
		case certificatesv1.UsageKeyEncipherment:
			tmpl.KeyUsage |= x509.KeyUsageKeyEncipherment
		case certificatesv1.UsageClientAuth:
			tmpl.ExtKeyUsage = append(tmpl.ExtKeyUsage, x509.ExtKeyUsageClientAuth)
		case certificatesv1.UsageServerAuth:
			tmpl.ExtKeyUsage = append(tmpl.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
		default:
			return fmt.Errorf("unrecognized usage %q", u)
		}
	}
	return nil
}
