package validation

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const maxTrustBundleSize = 1 << 20

// ClusterTrustBundle checks a new bundle, including its name, which contains its signer.
func ClusterTrustBundle(b *certificatesv1.ClusterTrustBundle) field.ErrorList {
	p := &problems{}
	p.bundleItself(b)
	p.trustAnchors(field.NewPath("spec", "trustBundle"), b.Spec.TrustBundle)
	return p.list
}

// ClusterTrustBundleUpdate checks a changed bundle. Anchors that stay are not parsed again: if a
// later version of the parser refuses them, that must not block other changes.
func ClusterTrustBundleUpdate(b, old *certificatesv1.ClusterTrustBundle) field.ErrorList {
	p := &problems{}
	p.bundleItself(b)
	if b.Spec.TrustBundle != old.Spec.TrustBundle {
		p.trustAnchors(field.NewPath("spec", "trustBundle"), b.Spec.TrustBundle)
	}
	immutable(p, field.NewPath("spec", "signerName"), b.Spec.SignerName, old.Spec.SignerName)
	return p.list
}

func (p *problems) bundleItself(b *certificatesv1.ClusterTrustBundle) {
	meta := field.NewPath("metadata")
	if b.GenerateName != "" {
		matches(p, meta.Child("generateName"), b.GenerateName, trustBundleName(b.Spec.SignerName, b.GenerateName, true))
	}
	if b.Name != "" { // an empty name is reported by the check of the metadata
		matches(p, meta.Child("name"), b.Name, trustBundleName(b.Spec.SignerName, b.Name, false))
	}
	if b.Spec.SignerName != "" {
		p.signer(field.NewPath("spec", "signerName"), b.Spec.SignerName)
	}
}

// trustBundleName returns what is wrong with the name of a bundle. signer is "" for a bundle that
// has no signer.
func trustBundleName(signer, name string, prefix bool) []string {
	if signer == "" {
		if strings.Contains(name, ":") {
			return []string{`ClusterTrustBundle without signer name must not have ":" in its name`}
		}
		return apivalidation.NameIsDNSSubdomain(name, prefix)
	}
	begin := strings.ReplaceAll(signer, "/", ":") + ":"
	rest, ok := strings.CutPrefix(name, begin)
	if !ok {
		return []string{fmt.Sprintf("ClusterTrustBundle for signerName %s must be named with prefix %s", signer, begin)}
	}
	return apivalidation.NameIsDNSSubdomain(rest, prefix)
}

// referredBundle returns what is wrong with a bundle's name if only the name is known.
func referredBundle(name string) []string {
	signer := ""
	if i := strings.LastIndex(name, ":"); i >= 0 {
		signer = strings.ReplaceAll(name[:i], ":", "/")
	}
	return trustBundleName(signer, name, false)
}

// trustAnchors reports anything in bundle but certificates of authorities in PEM, and duplicates.
func (p *problems) trustAnchors(at path, bundle string) {
	if len(bundle) > maxTrustBundleSize {
		p.add(field.TooLong(at, "", maxTrustBundleSize))
		return
	}
	before, n := len(p.list), 0
	indices := map[string][]int{}
	var order []string
	for block, rest := pem.Decode([]byte(bundle)); block != nil; block, rest = pem.Decode(rest) {
		if wrong := notAnAnchor(block); wrong != "" {
			p.invalid(at, "<value omitted>", "entry %d %s", n, wrong)
		} else {
			der := string(block.Bytes)
			if len(indices[der]) == 0 {
				order = append(order, der)
			}
			indices[der] = append(indices[der], n)
		}
		n++
	}
	if len(p.list) > before {
		return
	}
	if n == 0 {
		p.invalid(at, "<value omitted>", "at least one trust anchor must be provided")
	}
	for _, der := range order {
		if len(indices[der]) > 1 {
			p.invalid(at, "<value omitted>", "duplicate trust anchor (indices %v)", indices[der])
		}
	}
}

// notAnAnchor returns why a block cannot be trusted, or "".
func notAnAnchor(block *pem.Block) string {
	if block.Type != "CERTIFICATE" {
		return "has bad block type: " + block.Type
	}
	if len(block.Headers) > 0 {
		return "has PEM block headers"
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	switch {
	case err != nil:
		return "does not parse as X.509"
	case !cert.IsCA:
		return "does not have the CA bit set"
	case !cert.BasicConstraintsValid:
		return "has invalid basic constraints"
	}
	return ""
}
