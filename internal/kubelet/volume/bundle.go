package volume

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"

	certificatesv1 "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// seed makes the order of trust anchors differ from one run of the kubelet to the next, so that no
// program comes to rely on it.
var seed = rand.Text()

// bundle adds the trust anchors of the cluster trust bundles that a source selects.
func (c *content) bundle(src *v1.ClusterTrustBundleProjection, mode *int32) error {
	if c.m.Bundles == nil {
		return errors.New("projected clusterTrustBundle is not supported by this node")
	}
	all, err := c.m.Bundles(c.ctx)
	if err != nil {
		return err
	}
	chosen, err := chooseBundles(src, all)
	if err != nil {
		return err
	}
	return c.private(src.Path, anchors(chosen), mode)
}

// chooseBundles returns the bundle with a name, or a signer's bundles with certain labels.
func chooseBundles(src *v1.ClusterTrustBundleProjection, all []certificatesv1.ClusterTrustBundle) ([]certificatesv1.ClusterTrustBundle, error) {
	var fits func(*certificatesv1.ClusterTrustBundle) bool
	var missing string
	switch {
	case src.Name != nil:
		fits = func(b *certificatesv1.ClusterTrustBundle) bool { return b.Name == *src.Name }
		missing = fmt.Sprintf("while getting ClusterTrustBundle: clustertrustbundle.certificates.k8s.io %q not found", *src.Name)
	case src.SignerName != nil:
		selector, err := metav1.LabelSelectorAsSelector(src.LabelSelector) // nil selects nothing, an empty one everything
		if err != nil {
			return nil, fmt.Errorf("while parsing label selector: %w", err)
		}
		fits = func(b *certificatesv1.ClusterTrustBundle) bool {
			return b.Spec.SignerName == *src.SignerName && selector.Matches(labels.Set(b.Labels))
		}
		missing = "combination of signerName and labelSelector matched zero ClusterTrustBundles"
	default:
		return nil, errors.New("ClusterTrustBundle projection requires either name or signerName to be set")
	}
	var out []certificatesv1.ClusterTrustBundle
	for i := range all {
		if fits(&all[i]) {
			out = append(out, all[i])
		}
	}
	if len(out) == 0 && (src.Optional == nil || !*src.Optional) {
		return nil, errors.New(missing)
	}
	return out, nil
}

// anchors returns the certificates of the bundles, each once.
func anchors(bundles []certificatesv1.ClusterTrustBundle) []byte {
	type anchor struct {
		key [sha256.Size]byte
		der []byte
	}
	var found []anchor
	for i := range bundles {
		for b, rest := pem.Decode([]byte(bundles[i].Spec.TrustBundle)); b != nil; b, rest = pem.Decode(rest) {
			found = append(found, anchor{sha256.Sum256(append([]byte(seed), b.Bytes...)), b.Bytes})
		}
	}
	slices.SortFunc(found, func(a, b anchor) int { return cmp.Or(bytes.Compare(a.key[:], b.key[:]), bytes.Compare(a.der, b.der)) })
	found = slices.CompactFunc(found, func(a, b anchor) bool { return bytes.Equal(a.der, b.der) })
	out := []byte{}
	for _, a := range found {
		out = append(out, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.der})...)
	}
	return out
}
