package validation

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// projection checks the sources of a projected volume. They share one folder, so no two files may
// have the same path.
type projection struct {
	*podContext
	at    path
	files map[string]bool
}

func (c *podContext) projected(at path, v *corev1.ProjectedVolumeSource) {
	c.mode(at.Child("defaultMode"), v.DefaultMode)
	p := projection{c, at, map[string]bool{}}
	for i := range v.Sources {
		p.source(at.Child("sources").Index(i), &v.Sources[i])
	}
}

func (p *projection) source(at path, s *corev1.VolumeProjection) {
	sources := 0
	if s.Secret != nil {
		sources++
		p.keys(at.Child("secret"), s.Secret.Name, s.Secret.Items)
	}
	if s.ConfigMap != nil {
		sources++
		p.keys(at.Child("configMap"), s.ConfigMap.Name, s.ConfigMap.Items)
	}
	if s.DownwardAPI != nil {
		sources++
		for i := range s.DownwardAPI.Items {
			f := &s.DownwardAPI.Items[i]
			p.downwardFile(at.Child("downwardAPI"), f)
			p.file(f.Path, f.Path)
		}
	}
	if s.ServiceAccountToken != nil {
		sources++
		p.token(at.Child("serviceAccountToken"), s.ServiceAccountToken)
	}
	if s.ClusterTrustBundle != nil {
		sources++
		p.trustBundle(at.Child("clusterTrustBundle"), s.ClusterTrustBundle)
	}
	if s.PodCertificate != nil {
		sources++
		p.certificate(at.Child("podCertificate"), s.PodCertificate)
	}
	if sources > 1 {
		p.forbidden(at, "may not specify more than 1 volume type per source")
	}
}

// file records a path, and reports it if another source has it already.
func (p *projection) file(name string, value any) {
	if name == "" {
		return
	}
	if p.files[name] {
		p.invalid(p.at, value, "conflicting duplicate paths")
	}
	p.files[name] = true
}

func (p *projection) keys(at path, name string, items []corev1.KeyToPath) {
	p.present(at.Child("name"), name)
	for i := range items {
		p.keyPath(at.Child("items").Index(i), &items[i])
		p.file(items[i].Path, name)
	}
}

const minTokenSeconds, maxTokenSeconds = 600, 1 << 32

func (p *projection) token(at path, t *corev1.ServiceAccountTokenProjection) {
	p.tokenLife(at.Child("expirationSeconds"), t.ExpirationSeconds)
	if p.present(p.at.Child("path"), t.Path) {
		p.localFile(p.at.Child("path"), t.Path)
	}
}

func (p *problems) tokenLife(at path, seconds *int64) {
	switch {
	case seconds == nil:
	case *seconds < minTokenSeconds:
		p.invalid(at, *seconds, "may not specify a duration less than 10 minutes")
	case *seconds > maxTokenSeconds:
		p.invalid(at, *seconds, "may not specify a duration larger than 2^32 seconds")
	}
}

func (p *projection) trustBundle(at path, b *corev1.ClusterTrustBundleProjection) {
	switch {
	case b.Name != nil && b.SignerName != nil:
		p.invalid(at, b, "only one of name and signerName may be used")
	case b.Name != nil:
		if *b.Name == "" {
			p.required(at.Child("name"), "must be a valid object name")
		}
		for _, m := range referredBundle(*b.Name) {
			p.invalid(at.Child("name"), *b.Name, "not a valid clustertrustbundlename: %s", m)
		}
		if b.LabelSelector != nil {
			p.invalid(at.Child("labelSelector"), b.LabelSelector, "labelSelector must be unset if name is specified")
		}
	case b.SignerName != nil:
		if *b.SignerName == "" {
			p.required(at.Child("signerName"), "must be a valid signer name")
		}
		p.signer(at.Child("signerName"), *b.SignerName)
		p.addAll(metavalidation.ValidateLabelSelector(b.LabelSelector, metavalidation.LabelSelectorValidationOptions{}, at.Child("labelSelector")))
	default:
		p.required(at, "either name or signerName must be specified")
	}
	p.present(at.Child("path"), b.Path)
	p.localFile(at.Child("path"), b.Path)
	p.file(b.Path, b.Path)
}

var podKeyTypes = []string{"ECDSAP256", "ECDSAP384", "ECDSAP521", "ED25519", "RSA3072", "RSA4096"}

func (p *projection) certificate(at path, c *corev1.PodCertificateProjection) {
	p.signer(at.Child("signerName"), c.SignerName)
	p.userAnnotations(at.Child("userAnnotations"), c.UserAnnotations)
	if !slices.Contains(podKeyTypes, c.KeyType) {
		p.add(field.NotSupported(at.Child("keyType"), c.KeyType, podKeyTypes))
	}
	if s := c.MaxExpirationSeconds; s != nil {
		longest := longestCertificate(c.SignerName)
		switch at := at.Child("maxExpirationSeconds"); {
		case *s < minCertificateSeconds:
			p.invalid(at, *s, "if provided, maxExpirationSeconds must be >= 3600")
		case *s > longest:
			p.invalid(at, *s, "if provided, maxExpirationSeconds must be <= %d", longest)
		}
	}
	files := map[string]string{"credentialBundlePath": c.CredentialBundlePath, "keyPath": c.KeyPath, "certificateChainPath": c.CertificateChainPath}
	any := false
	for name, file := range files {
		if file != "" {
			any = true
			p.localFile(at.Child(name), file)
			p.file(file, file)
		}
	}
	if !any {
		p.required(at, "specify at least one of credentialBundlePath, keyPath, and certificateChainPath")
	}
}
