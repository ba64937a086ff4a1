package validation

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// verdicts are the conditions that can only be True, and are never removed.
var verdicts = []certificatesv1.RequestConditionType{
	certificatesv1.CertificateApproved, certificatesv1.CertificateDenied, certificatesv1.CertificateFailed,
}

var keyUsages = []certificatesv1.KeyUsage{
	certificatesv1.UsageSigning, certificatesv1.UsageDigitalSignature, certificatesv1.UsageContentCommitment,
	certificatesv1.UsageKeyEncipherment, certificatesv1.UsageKeyAgreement, certificatesv1.UsageDataEncipherment,
	certificatesv1.UsageCertSign, certificatesv1.UsageCRLSign, certificatesv1.UsageEncipherOnly, certificatesv1.UsageDecipherOnly,
	certificatesv1.UsageAny, certificatesv1.UsageServerAuth, certificatesv1.UsageClientAuth, certificatesv1.UsageCodeSigning,
	certificatesv1.UsageEmailProtection, certificatesv1.UsageSMIME, certificatesv1.UsageIPsecEndSystem, certificatesv1.UsageIPsecTunnel,
	certificatesv1.UsageIPsecUser, certificatesv1.UsageTimestamping, certificatesv1.UsageOCSPSigning, certificatesv1.UsageMicrosoftSGC,
	certificatesv1.UsageNetscapeSGC,
}

// ParseCSR parses a PKCS #10 request in PEM.
func ParseCSR(data []byte) (*x509.CertificateRequest, error) {
	block, _ := pem.Decode(data)
	if block == nil || block.Type != "CERTIFICATE REQUEST" {
		return nil, errors.New("PEM block type must be CERTIFICATE REQUEST")
	}
	return x509.ParseCertificateRequest(block.Bytes)
}

// ConditionsOf returns a request's conditions of a type.
func ConditionsOf(r *certificatesv1.CertificateSigningRequest, t certificatesv1.RequestConditionType) []certificatesv1.CertificateSigningRequestCondition {
	var out []certificatesv1.CertificateSigningRequestCondition
	for _, c := range r.Status.Conditions {
		if c.Type == t {
			out = append(out, c)
		}
	}
	return out
}

// CertificateSigningRequest checks a request, including its signature.
func CertificateSigningRequest(r *certificatesv1.CertificateSigningRequest) field.ErrorList {
	p, spec := &problems{}, field.NewPath("spec")
	parsed, err := ParseCSR(r.Spec.Request)
	if err == nil {
		err = parsed.CheckSignature()
	}
	if err != nil {
		p.invalid(spec.Child("request"), r.Spec.Request, "%v", err)
	}
	if len(r.Spec.Usages) == 0 {
		p.required(spec.Child("usages"), "")
	}
	for i, u := range r.Spec.Usages {
		at := spec.Child("usages").Index(i)
		oneOf(p, at, u, keyUsages...)
		if slices.Contains(r.Spec.Usages[:i], u) {
			p.add(field.Duplicate(at, u))
		}
	}
	p.signerName(spec.Child("signerName"), r.Spec.SignerName)
	if s := r.Spec.ExpirationSeconds; s != nil && *s < 600 {
		p.invalid(spec.Child("expirationSeconds"), *s, "may not specify a duration less than 600 seconds (10 minutes)")
	}
	p.requestConditions(field.NewPath("status", "conditions"), r.Status.Conditions)
	if err := checkCertificates(r.Status.Certificate); err != nil {
		p.invalid(field.NewPath("status", "certificate"), "<certificate data>", "%v", err)
	}
	return p.list
}

// signerName checks the name of the signer. Any is allowed but the one that older versions filled
// in.
func (p *problems) signerName(at path, name string) {
	if name == "kubernetes.io/legacy-unknown" {
		p.invalid(at, name, "the legacy signerName is not allowed via this API version")
		return
	}
	p.signer(at, name)
}

func (p *problems) requestConditions(at path, conditions []certificatesv1.CertificateSigningRequestCondition) {
	seen := map[certificatesv1.RequestConditionType]bool{}
	for i, c := range conditions {
		at := at.Index(i)
		if c.Type == "" {
			p.required(at.Child("type"), "")
		}
		allowed := []corev1.ConditionStatus{corev1.ConditionTrue, corev1.ConditionFalse, corev1.ConditionUnknown}
		if slices.Contains(verdicts, c.Type) {
			allowed = allowed[:1]
		}
		if c.Status == "" {
			p.required(at.Child("status"), "")
		} else {
			oneOf(p, at.Child("status"), c.Status, allowed...)
		}
		if seen[c.Type] {
			p.add(field.Duplicate(at.Child("type"), c.Type))
		}
		seen[c.Type] = true
		if seen[certificatesv1.CertificateApproved] && seen[certificatesv1.CertificateDenied] && slices.Contains(verdicts[:2], c.Type) {
			p.invalid(field.NewPath("status", "conditions"), c.Type, "Approved and Denied conditions are mutually exclusive")
		}
	}
}

// checkCertificates returns an error unless data is empty or consists of certificates in PEM.
func checkCertificates(data []byte) error {
	if len(data) == 0 {
		return nil
	}
	for n := 0; ; n++ {
		block, rest := pem.Decode(data)
		if block == nil {
			if n == 0 {
				return errors.New("must contain at least one CERTIFICATE PEM block")
			}
			return nil
		}
		if block.Type != "CERTIFICATE" {
			return fmt.Errorf("only CERTIFICATE PEM blocks are allowed, found %q", block.Type)
		}
		if len(block.Headers) > 0 {
			return errors.New("no PEM block headers are permitted")
		}
		certs, err := x509.ParseCertificates(block.Bytes)
		if err != nil {
			return err
		}
		if len(certs) == 0 {
			return errors.New("found CERTIFICATE PEM block containing 0 certificates")
		}
		data = rest
	}
}

// CertificateSigningRequestUpdate checks a change of only the metadata.
func CertificateSigningRequestUpdate(r, old *certificatesv1.CertificateSigningRequest) field.ErrorList {
	return requestUpdate(r, old, false, false)
}

// CertificateSigningRequestStatus checks a change that may add the certificate.
func CertificateSigningRequestStatus(r, old *certificatesv1.CertificateSigningRequest) field.ErrorList {
	return requestUpdate(r, old, false, true)
}

// CertificateSigningRequestApproval checks a change that may approve or deny.
func CertificateSigningRequestApproval(r, old *certificatesv1.CertificateSigningRequest) field.ErrorList {
	return requestUpdate(r, old, true, false)
}

func requestUpdate(r, old *certificatesv1.CertificateSigningRequest, approval, certificate bool) field.ErrorList {
	p := &problems{list: CertificateSigningRequest(r)}
	at := field.NewPath("status", "conditions")
	for _, t := range verdicts {
		before, after := ConditionsOf(old, t), ConditionsOf(r, t)
		settable := approval || t == certificatesv1.CertificateFailed
		switch {
		case len(after) < len(before):
			p.forbidden(at, "updates may not remove a condition of type %q", t)
		case settable:
		case len(after) > len(before):
			p.forbidden(at, "updates may not add a condition of type %q", t)
		case !apiequality.Semantic.DeepEqual(before, after):
			p.forbidden(at, "updates may not modify a condition of type %q", t)
		}
	}
	if at := field.NewPath("status", "certificate"); !bytes.Equal(r.Status.Certificate, old.Status.Certificate) {
		if !certificate {
			p.forbidden(at, "updates may not set certificate content")
		} else if len(old.Status.Certificate) > 0 {
			p.forbidden(at, "updates may not modify existing certificate content")
		}
	}
	return p.list
}
