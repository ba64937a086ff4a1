package validation

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net/mail"
	"slices"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const (
	maxUIDLength            = 128
	maxStubRequestSize      = 10 << 10
	maxCertificateChainSize = 100 << 10

	// A signer's clock may differ from ours by this much.
	maxClockSkew = 5 * time.Minute
	// A refresh must begin at least this long after the certificate becomes valid, and before it
	// expires.
	refreshMargin = 10 * time.Minute
)

// answers are the conditions that end a request. A request has at most one of them, and it is True.
var answers = []string{
	certificatesv1.PodCertificateRequestConditionTypeIssued,
	certificatesv1.PodCertificateRequestConditionTypeDenied,
	certificatesv1.PodCertificateRequestConditionTypeFailed,
}

// PodCertificateRequest checks a new request, and that its author has the private key.
func PodCertificateRequest(r *certificatesv1.PodCertificateRequest) field.ErrorList {
	p, spec := &problems{}, field.NewPath("spec")
	p.signer(spec.Child("signerName"), r.Spec.SignerName)
	p.userAnnotations(spec.Child("unverifiedUserAnnotations"), r.Spec.UnverifiedUserAnnotations)
	p.subject(spec, "pod", r.Spec.PodName, r.Spec.PodUID)
	p.subject(spec, "serviceAccount", r.Spec.ServiceAccountName, r.Spec.ServiceAccountUID)
	p.subject(spec, "node", string(r.Spec.NodeName), r.Spec.NodeUID)
	at := spec.Child("maxExpirationSeconds")
	if r.Spec.MaxExpirationSeconds == nil {
		p.required(at, "must be set")
		return p.list
	}
	if s, most := *r.Spec.MaxExpirationSeconds, longestCertificate(r.Spec.SignerName); s < minCertificateSeconds || s > most {
		p.invalid(at, s, "must be in the range [%d, %d]", minCertificateSeconds, most)
	}
	if len(r.Spec.StubPKCS10Request) == 0 {
		p.required(spec.Child("stubPKCS10Request"), "")
		return p.list
	}
	p.stubRequest(spec.Child("stubPKCS10Request"), r.Spec.StubPKCS10Request)
	return p.list
}

// subject checks the name and the UID of an object that the certificate is for.
func (p *problems) subject(spec path, of, name string, uid types.UID) {
	matches(p, spec.Child(of+"Name"), name, apivalidation.NameIsDNSSubdomain(name, false))
	switch at := spec.Child(of + "UID"); {
	case uid == "":
		p.invalid(at, uid, "must not be empty")
	case len(uid) > maxUIDLength:
		p.add(field.TooLong(at, uid, maxUIDLength))
	}
}

// stubRequest checks the key and the signature made with it. The rest of the request is for the
// signer to judge.
func (p *problems) stubRequest(at path, der []byte) {
	if len(der) > maxStubRequestSize {
		p.add(field.TooLong(at, der, maxStubRequestSize))
		return
	}
	req, err := x509.ParseCertificateRequest(der)
	if err != nil {
		p.invalid(at, field.OmitValueType{}, "must be a valid PKCS#10 CSR")
		return
	}
	if value, wrong := unfitKey(req.PublicKey); wrong != "" {
		p.invalid(at, value, "%s", wrong)
		return
	}
	if req.CheckSignature() != nil {
		p.invalid(at, field.OmitValueType{}, "invalid signature")
	}
}

// unfitKey returns the property of a key that is not accepted, and why; the latter is "" if the key
// is accepted.
func unfitKey(key any) (value any, wrong string) {
	switch k := key.(type) {
	case ed25519.PublicKey:
		return nil, ""
	case *ecdsa.PublicKey:
		if !slices.Contains([]elliptic.Curve{elliptic.P256(), elliptic.P384(), elliptic.P521()}, k.Curve) {
			return "curve " + k.Params().Name, "elliptic public keys must use curve P256, P384, or P521"
		}
		return nil, ""
	case *rsa.PublicKey:
		if bits := k.Size() * 8; bits != 3072 && bits != 4096 {
			return fmt.Sprintf("%d-bit modulus", bits), "RSA keys must have modulus size 3072 or 4096"
		}
		return nil, ""
	}
	return field.OmitValueType{}, "unknown public key type; supported types are Ed25519, ECDSA, and RSA"
}

// PodCertificateRequestUpdate checks a change of only the metadata.
func PodCertificateRequestUpdate(r, old *certificatesv1.PodCertificateRequest) field.ErrorList {
	p := &problems{}
	if !apiequality.Semantic.DeepEqual(r.Spec, old.Spec) {
		p.add(field.Invalid(field.NewPath("spec"), r.Spec, isImmutable).WithOrigin("immutable"))
	}
	return p.list
}

// PodCertificateRequestStatus checks a signer's answer, which is final.
func PodCertificateRequestStatus(r, old *certificatesv1.PodCertificateRequest, now time.Time) field.ErrorList {
	p, at := &problems{}, field.NewPath("status")
	if p.answerConditions(at.Child("conditions"), r.Status.Conditions); len(p.list) > 0 {
		return p.list
	}
	same := func(want certificatesv1.PodCertificateRequestStatus, detail string) {
		if !apiequality.Semantic.DeepEqual(r.Status, want) {
			p.invalid(at, field.OmitValueType{}, "%s", detail)
		}
	}
	switch {
	case answered(old) != "":
		same(old.Status, "immutable after PodCertificateRequest is issued, denied, or failed")
	case answered(r) == "":
		same(old.Status, `status is immutable unless transitioning to "Issued", "Denied", or "Failed"`)
	case answered(r) == certificatesv1.PodCertificateRequestConditionTypeIssued:
		p.issued(at, r, old, now)
	default:
		same(certificatesv1.PodCertificateRequestStatus{Conditions: r.Status.Conditions},
			"non-condition status fields must be empty when denying or failing the PodCertificateRequest")
	}
	return p.list
}

func (p *problems) answerConditions(at path, conditions []metav1.Condition) {
	n := 0
	for i, c := range conditions {
		if !slices.Contains(answers, c.Type) {
			p.add(field.NotSupported(at.Index(i).Child("type"), c.Type, answers))
			continue
		}
		if n++; n > 1 {
			p.invalid(at.Index(i).Child("type"), c.Type, `There may be at most one condition with type "Issued", "Denied", or "Failed"`)
		}
		if c.Status != metav1.ConditionTrue {
			p.add(field.NotSupported(at.Index(i).Child("status"), c.Status, []metav1.ConditionStatus{metav1.ConditionTrue}))
		}
	}
	p.addAll(metavalidation.ValidateConditions(conditions, at))
}

// answered returns the type of the condition that ended a request, or "".
func answered(r *certificatesv1.PodCertificateRequest) string {
	for _, c := range r.Status.Conditions {
		if slices.Contains(answers, c.Type) && c.Status == metav1.ConditionTrue {
			return c.Type
		}
	}
	return ""
}

// issued checks a certificate against the request, and the status' times against the certificate.
func (p *problems) issued(at path, r, old *certificatesv1.PodCertificateRequest, now time.Time) {
	leaf := p.chain(at.Child("certificateChain"), r.Status.CertificateChain)
	if leaf == nil {
		return
	}
	req, err := x509.ParseCertificateRequest(old.Spec.StubPKCS10Request)
	if err != nil {
		p.invalid(field.NewPath("spec", "stubPKCS10Request"), field.OmitValueType{}, "must be a valid PKCS#10 CSR")
		return
	}
	if key, ok := req.PublicKey.(interface{ Equal(crypto.PublicKey) bool }); !ok || !key.Equal(leaf.PublicKey) {
		p.invalid(at.Child("certificateChain"), r.Status.CertificateChain, "leaf certificate was not issued to the requested public key")
		return
	}
	if p.times(at, &r.Status) {
		p.validity(at, r, leaf, now)
	}
}

// chain returns the first certificate if all of them can be parsed and its names make sense, else
// nil. It cannot check that one signed the other without knowing the root.
func (p *problems) chain(at path, chain string) *x509.Certificate {
	if len(chain) > maxCertificateChainSize {
		p.add(field.TooLong(at, chain, maxCertificateChainSize))
		return nil
	}
	var leaf *x509.Certificate
	for block, rest := pem.Decode([]byte(chain)); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			p.invalid(at, chain, "issued certificate chain must consist entirely of CERTIFICATE PEM blocks")
			return nil
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		switch {
		case err != nil && leaf == nil:
			p.invalid(at, chain, "leaf certificate does not parse as valid X.509")
			return nil
		case err != nil:
			p.invalid(at, chain, "intermediate certificate does not parse as valid X.509")
			return nil
		case leaf == nil:
			leaf = cert
		}
	}
	if leaf == nil {
		p.invalid(at, chain, "issued certificate chain must contain at least one certificate")
		return nil
	}
	if !p.leafNames(at, leaf) {
		return nil
	}
	return leaf
}

func (p *problems) leafNames(at path, leaf *x509.Certificate) (fine bool) {
	before := len(p.list)
	for _, name := range leaf.DNSNames {
		if name == "" {
			p.invalid(at, name, "leaf certificate should not contain empty DNSName")
		}
		if strings.Contains(name, "..") {
			p.invalid(at, name, "leaf certificate's DNSName should not contain '..'")
		}
		if strings.HasPrefix(name, ".") || strings.HasSuffix(name, ".") {
			p.invalid(at, name, "leaf certificate's DNSName should not start or end with '.'")
		}
	}
	for _, address := range leaf.EmailAddresses {
		if _, err := mail.ParseAddress(address); err != nil {
			p.invalid(at, address, "leaf certificate should not contain invalid EmailAddress")
		}
	}
	return len(p.list) == before
}

func (p *problems) times(at path, s *certificatesv1.PodCertificateRequestStatus) bool {
	before := len(p.list)
	if s.NotBefore == nil {
		p.required(at.Child("notBefore"), "must be present and consistent with the issued certificate")
	}
	if s.NotAfter == nil {
		p.required(at.Child("notAfter"), "must be present and consistent with the issued certificate")
	}
	if s.BeginRefreshAt == nil {
		p.required(at.Child("beginRefreshAt"), "must be present and in the range [notbefore+10min, notafter-10min]")
	}
	return len(p.list) == before
}

// validity reports the first thing that is wrong with the times.
func (p *problems) validity(at path, r *certificatesv1.PodCertificateRequest, leaf *x509.Certificate, now time.Time) {
	begin, end, refresh := r.Status.NotBefore.Time, r.Status.NotAfter.Time, r.Status.BeginRefreshAt.Time
	life, longest := leaf.NotAfter.Sub(leaf.NotBefore), *r.Spec.MaxExpirationSeconds
	switch {
	case !begin.Equal(leaf.NotBefore):
		p.invalid(at.Child("notBefore"), begin, "must be set to the NotBefore time encoded in the leaf certificate")
	case begin.Sub(now).Abs() >= maxClockSkew:
		p.invalid(at.Child("notBefore"), begin, "must be set to within 5 minutes of kube-apiserver's current time")
	case !end.Equal(leaf.NotAfter):
		p.invalid(at.Child("notAfter"), end, "must be set to the NotAfter time encoded in the leaf certificate")
	case life < time.Hour:
		p.invalid(at.Child("certificateChain"), life, "leaf certificate lifetime must be >= 1 hour")
	case life > time.Duration(longest)*time.Second:
		p.invalid(at.Child("certificateChain"), life, "leaf certificate lifetime must be <= spec.maxExpirationSeconds (%v)", longest)
	case refresh.Before(begin.Add(refreshMargin)):
		p.invalid(at.Child("beginRefreshAt"), refresh, "must be at least 10 minutes after status.notBefore")
	case refresh.After(end.Add(-refreshMargin)):
		p.invalid(at.Child("beginRefreshAt"), refresh, "must be at least 10 minutes before status.notAfter")
	}
}
