package validation

import (
	"encoding/pem"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func TestSignerNames(t *testing.T) {
	label := strings.Repeat("a", 63)
	domain := label + "." + label + "." + label + "." + strings.Repeat("a", 61) // 253
	for name, want := range map[string]string{
		"example.com/s": "", "kubernetes.io/kube-apiserver-client": "", "a.b/ns.name": "",
		domain + "/" + domain + "." + label: "",
		"":                                  "Required value",
		"nodomain":                          "must be a fully qualified domain and path of the form 'example.com/signer-name'",
		"example.com/a/b":                   "must be a fully qualified domain and path of the form 'example.com/signer-name'",
		"example/s":                         "should be a domain with at least two segments separated by dots",
		"Example.com/s":                     `validating label "Example"`,
		label + "a.com/s":                   "must be no more than 63",
		"example.com/":                      `validating label ""`,
		"example.com/a..b":                  `validating label ""`,
		domain + "a/s":                      "may not be more than 253",
		domain + "/" + domain + "." + label + ".a": "may not be more than 571",
	} {
		p := &problems{}
		p.signer(field.NewPath("spec", "signerName"), name)
		if got := errorsOf(p.list); want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("%q: %q, want %q", name, got, want)
		}
	}
}

func errorsOf(list field.ErrorList) string {
	if err := list.ToAggregate(); err != nil {
		return err.Error()
	}
	return ""
}

func TestNamesOfBundlesInVolumes(t *testing.T) {
	for name, fine := range map[string]bool{"plain": true, "example.com:s:v1": true, "Plain": false, "example.com:s:": false, "": false} {
		if got := referredBundle(name); fine != (len(got) == 0) {
			t.Errorf("%q: %v", name, got)
		}
	}
}

func FuzzTrustAnchors(f *testing.F) {
	f.Add("")
	f.Add(string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte{0x30, 0}})))
	f.Add("-----BEGIN CERTIFICATE-----\nK: v\n\nMAA=\n-----END CERTIFICATE-----\n")
	f.Fuzz(func(t *testing.T, bundle string) {
		p := &problems{}
		p.trustAnchors(field.NewPath("spec", "trustBundle"), bundle)
		if block, _ := pem.Decode([]byte(bundle)); block == nil && len(p.list) == 0 {
			t.Errorf("nothing is trusted in %q, and that is fine", bundle)
		}
	})
}

func FuzzPodCertificateRequest(f *testing.F) {
	f.Add([]byte{0x30, 0}, "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n")
	f.Add([]byte{}, "")
	f.Fuzz(func(t *testing.T, stub []byte, chain string) {
		old := &certificatesv1.PodCertificateRequest{Spec: certificatesv1.PodCertificateRequestSpec{MaxExpirationSeconds: new(int32(86400)), StubPKCS10Request: stub}}
		PodCertificateRequest(old)
		r := old.DeepCopy()
		r.Status.CertificateChain = chain
		r.Status.Conditions = []metav1.Condition{{
			Type: certificatesv1.PodCertificateRequestConditionTypeIssued, Status: metav1.ConditionTrue, Reason: "R", LastTransitionTime: metav1.Now(),
		}}
		if len(PodCertificateRequestStatus(r, old, time.Now())) == 0 {
			t.Error("a certificate without its times is fine")
		}
	})
}
