package validation

import (
	"maps"
	"slices"
	"strings"

	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const (
	minCertificateSeconds           = 60 * 60
	maxCertificateSeconds           = 91 * 24 * 60 * 60
	maxKubernetesCertificateSeconds = 24 * 60 * 60
)

// longestCertificate returns how many seconds a signer's certificates for pods may live: a day for
// those of Kubernetes' own signers.
func longestCertificate(signer string) int32 {
	domain, _, _ := strings.Cut(signer, "/")
	if domain == "kubernetes.io" || strings.HasSuffix(domain, ".kubernetes.io") {
		return maxKubernetesCertificateSeconds
	}
	return maxCertificateSeconds
}

// signer checks a signer's name: a domain of at least two labels, a slash, and a name below it.
func (p *problems) signer(at path, name string) {
	if !p.present(at, name) {
		return
	}
	domain, rest, ok := strings.Cut(name, "/")
	if !ok || strings.Contains(rest, "/") {
		p.invalid(at, name, "must be a fully qualified domain and path of the form 'example.com/signer-name'")
		return
	}
	if most := utilvalidation.DNS1123SubdomainMaxLength; len(domain) > most {
		p.add(field.TooLong(at, "", most))
	}
	p.signerLabels(at, domain, utilvalidation.IsDNS1123Label)
	if !strings.Contains(domain, ".") {
		p.invalid(at, domain, "should be a domain with at least two segments separated by dots")
	}
	p.signerLabels(at, rest, utilvalidation.IsDNS1123Subdomain)
	// The part after the slash has room for a namespace and a name with a dot between them.
	longest := utilvalidation.DNS1123SubdomainMaxLength + 1 + utilvalidation.DNS1123SubdomainMaxLength + utilvalidation.DNS1123LabelMaxLength + 1
	if len(name) > longest {
		p.add(field.TooLong(at, "", longest))
	}
}

// signerLabels reports the first bad label of a part of a signer's name.
func (p *problems) signerLabels(at path, part string, check func(string) []string) {
	for label := range strings.SplitSeq(part, ".") {
		if messages := check(label); len(messages) > 0 {
			for _, m := range messages {
				p.invalid(at, part, "validating label %q: %s", label, m)
			}
			return
		}
	}
}

// userAnnotations checks what the author of a pod passes to a signer.
func (p *problems) userAnnotations(at path, annotations map[string]string) {
	for _, key := range slices.Sorted(maps.Keys(annotations)) {
		p.addAll(utilvalidation.IsDomainPrefixedKey(at, strings.ToLower(key)))
	}
	if apivalidation.ValidateAnnotationsSize(annotations) != nil {
		p.add(field.TooLong(at, "", apivalidation.TotalAnnotationSizeLimitB))
	}
}
