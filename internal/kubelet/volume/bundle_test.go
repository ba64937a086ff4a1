package volume

import (
	"context"
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func certificates(texts ...string) string {
	out := "not a certificate\n"
	for _, s := range texts {
		out += string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Headers: map[string]string{"From": "x"}, Bytes: []byte(s)}))
	}
	return out
}

// TestTrustBundles by name, and by signer and labels; each anchor once, in a stable order.
func TestTrustBundles(t *testing.T) {
	bundle := func(name, signer, env string, anchors ...string) certificatesv1.ClusterTrustBundle {
		return certificatesv1.ClusterTrustBundle{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"env": env}},
			Spec:       certificatesv1.ClusterTrustBundleSpec{SignerName: signer, TrustBundle: certificates(anchors...)},
		}
	}
	all := []certificatesv1.ClusterTrustBundle{
		bundle("plain", "", "", "p"), bundle("s:1", "example.com/s", "prod", "a", "b"), bundle("s:2", "example.com/s", "test", "b", "c"), bundle("o:1", "example.com/o", "prod", "o"),
	}
	m := newMounter(t, objs{})
	signer, labels := new("example.com/s"), &metav1.LabelSelector{MatchLabels: map[string]string{"env": "test"}}
	for name, tc := range map[string]struct {
		src  v1.ClusterTrustBundleProjection
		want string // anchors
		err  string
	}{
		"name":            {src: v1.ClusterTrustBundleProjection{Name: new("plain")}, want: "p"},
		"no such name":    {src: v1.ClusterTrustBundleProjection{Name: new("x")}, err: `clustertrustbundle.certificates.k8s.io "x" not found`},
		"optional name":   {src: v1.ClusterTrustBundleProjection{Name: new("x"), Optional: new(true)}},
		"all of a signer": {src: v1.ClusterTrustBundleProjection{SignerName: signer, LabelSelector: &metav1.LabelSelector{}}, want: "abc"},
		"labels":          {src: v1.ClusterTrustBundleProjection{SignerName: signer, LabelSelector: labels}, want: "bc"},
		"no selector":     {src: v1.ClusterTrustBundleProjection{SignerName: signer}, err: "combination of signerName and labelSelector matched zero ClusterTrustBundles"},
		"optional signer": {src: v1.ClusterTrustBundleProjection{SignerName: new("none"), LabelSelector: labels, Optional: new(true)}},
		"neither":         {err: "requires either name or signerName"},
	} {
		tc.src.Path = "ca.pem"
		pod := podWith(v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{Sources: []v1.VolumeProjection{{ClusterTrustBundle: &tc.src}}}})
		m.Bundles = nil
		if _, err := m.Mount(t.Context(), pod, "v"); err == nil || !strings.Contains(err.Error(), "not supported by this node") {
			t.Errorf("%s without bundles: %v", name, err)
		}
		m.Bundles = func(context.Context) ([]certificatesv1.ClusterTrustBundle, error) { return all, nil }
		_, err := m.Mount(t.Context(), pod, "v")
		if (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
			t.Errorf("%s: %v, want %q", name, err, tc.err)
		}
		if err != nil {
			continue
		}
		read := func() string {
			doc, err := os.ReadFile(filepath.Join(pathOf(t, m, pod), "ca.pem"))
			if err != nil {
				t.Fatal(err)
			}
			return string(doc)
		}
		doc := read()
		found := map[string]bool{}
		for b, rest := pem.Decode([]byte(doc)); b != nil; b, rest = pem.Decode(rest) {
			if len(b.Headers) > 0 || found[string(b.Bytes)] {
				t.Errorf("%s: headers %v, twice: %v", name, b.Headers, found[string(b.Bytes)])
			}
			found[string(b.Bytes)] = true
		}
		for a := range strings.SplitSeq(tc.want, "") {
			if !found[a] || len(found) != len(tc.want) {
				t.Errorf("%s: anchors %v, want %s", name, found, tc.want)
			}
		}
		if _, err := m.Mount(t.Context(), pod, "v"); err != nil || read() != doc {
			t.Errorf("%s: another order at once: %v", name, err)
		}
	}
}
