package apiserver

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"strings"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

func signingRequest(t *testing.T, name, signer string, subject pkix.Name) *certificatesv1.CertificateSigningRequest {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: subject}, key)
	if err != nil {
		t.Fatal(err)
	}
	return &certificatesv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: certificatesv1.CertificateSigningRequestSpec{
		Request: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), SignerName: signer,
		Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth}, Username: "somebody-else",
	}}
}

func TestCertificateSigningRequests(t *testing.T) {
	s := start(t)
	ctx, api := t.Context(), admin(t, s).CertificatesV1().CertificateSigningRequests()
	kubelet := certificatesv1.KubeAPIServerClientKubeletSignerName
	r := signingRequest(t, "r", kubelet, pkix.Name{CommonName: "x"})
	r.Status.Certificate = []byte("forged")
	r, err := api.Create(ctx, r, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if r.Spec.Username == "somebody-else" || r.Spec.Username == "" || len(r.Spec.Groups) == 0 || len(r.Status.Certificate) > 0 {
		t.Errorf("who asks: %q %v, certificate %q", r.Spec.Username, r.Spec.Groups, r.Status.Certificate)
	}
	approved := certificatesv1.CertificateSigningRequestCondition{Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "Test"}
	changed := r.DeepCopy()
	changed.Spec.SignerName = "example.com/other"
	changed.Status.Conditions = append(changed.Status.Conditions, approved)
	if got, err := api.Update(ctx, changed, metav1.UpdateOptions{}); err != nil || got.Spec.SignerName != kubelet || len(got.Status.Conditions) > 0 {
		t.Errorf("an update changed more than metadata: %+v, %v", got, err)
	}
	changed = r.DeepCopy()
	changed.Status.Conditions = append(changed.Status.Conditions, approved)
	if _, err := api.UpdateStatus(ctx, changed, metav1.UpdateOptions{}); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), `updates may not add a condition of type "Approved"`) {
		t.Errorf("approved by /status: %v", err)
	}
	if r, err = api.UpdateApproval(ctx, "r", changed, metav1.UpdateOptions{}); err != nil || len(r.Status.Conditions) != 1 || r.Status.Conditions[0].LastTransitionTime.IsZero() {
		t.Fatalf("approve: %+v, %v", r, err)
	}
	both := r.DeepCopy()
	both.Status.Conditions = append(both.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{Type: certificatesv1.CertificateDenied, Status: corev1.ConditionTrue})
	if _, err := api.UpdateApproval(ctx, "r", both, metav1.UpdateOptions{}); err == nil || !strings.Contains(err.Error(), "mutually exclusive") {
		t.Errorf("approved and denied: %v", err)
	}
	r.Status.Certificate = []byte("nonsense")
	if _, err := api.UpdateStatus(ctx, r, metav1.UpdateOptions{}); err == nil || !strings.Contains(err.Error(), "must contain at least one CERTIFICATE PEM block") {
		t.Errorf("nonsense as a certificate: %v", err)
	}
	ca, err := s.CA().Cert()
	if err != nil {
		t.Fatal(err)
	}
	r.Status.Certificate = ca
	if r, err = api.UpdateStatus(ctx, r, metav1.UpdateOptions{}); err != nil || len(r.Status.Certificate) == 0 {
		t.Fatalf("sign: %v", err)
	}
	r.Status.Certificate = append(r.Status.Certificate, ca...)
	if _, err := api.UpdateStatus(ctx, r, metav1.UpdateOptions{}); err == nil || !strings.Contains(err.Error(), "may not modify existing certificate content") {
		t.Errorf("signed twice: %v", err)
	}
	data, err := admin(t, s).CertificatesV1().RESTClient().Get().Resource("certificatesigningrequests").
		SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").DoRaw(ctx)
	var table metav1.Table
	if err := json.Unmarshal(data, &table); err != nil {
		t.Fatal(err)
	}
	if err != nil || len(table.Rows) != 1 || table.Rows[0].Cells[5] != "Approved,Issued" || table.Rows[0].Cells[2] != kubelet {
		t.Errorf("%v, %s", err, data)
	}
}

func TestWhoMayApproveAndSign(t *testing.T) {
	s := start(t)
	ctx := t.Context()
	user := func(name string, groups ...string) kubernetes.Interface {
		c, err := kubernetes.NewForConfig(s.ClientConfig(name, groups...))
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	controller := user("system:serviceaccount:kube-system:certificate-controller", "system:serviceaccounts", "system:serviceaccounts:kube-system", "system:authenticated")
	node := user("system:node:n1", "system:nodes", "system:authenticated")
	serving := certificatesv1.KubeletServingSignerName
	if _, err := node.CertificatesV1().CertificateSigningRequests().Create(ctx, signingRequest(t, "r", serving, pkix.Name{CommonName: "system:node:n1"}), metav1.CreateOptions{}); err != nil {
		t.Fatalf("a node asks: %v", err)
	}
	api := controller.CertificatesV1().CertificateSigningRequests()
	r, err := api.Get(ctx, "r", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	r.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue}}
	_, err = api.UpdateApproval(ctx, "r", r, metav1.UpdateOptions{})
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), `user not permitted to approve requests with signerName "kubernetes.io/kubelet-serving"`) {
		t.Errorf("the controller approves a serving certificate: %v", err)
	}
	if _, err := node.CertificatesV1().CertificateSigningRequests().UpdateApproval(ctx, "r", r, metav1.UpdateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a node approves its own certificate: %v", err)
	}
	masters := signingRequest(t, "masters", certificatesv1.KubeAPIServerClientSignerName, pkix.Name{CommonName: "x", Organization: []string{"system:masters"}})
	_, err = admin(t, s).CertificatesV1().CertificateSigningRequests().Create(ctx, masters, metav1.CreateOptions{})
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "system:masters group is not allowed") {
		t.Errorf("a certificate of system:masters: %v", err)
	}
	for field, change := range map[string]func(*certificatesv1.CertificateSigningRequest){
		"spec.signerName":        func(r *certificatesv1.CertificateSigningRequest) { r.Spec.SignerName = "nodomain" },
		"spec.usages[0]":         func(r *certificatesv1.CertificateSigningRequest) { r.Spec.Usages[0] = "much" },
		"spec.request":           func(r *certificatesv1.CertificateSigningRequest) { r.Spec.Request = []byte("x") },
		"spec.expirationSeconds": func(r *certificatesv1.CertificateSigningRequest) { r.Spec.ExpirationSeconds = new(int32(1)) },
	} {
		bad := signingRequest(t, "bad", serving, pkix.Name{CommonName: "x"})
		change(bad)
		if _, err := admin(t, s).CertificatesV1().CertificateSigningRequests().Create(ctx, bad, metav1.CreateOptions{}); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
}
