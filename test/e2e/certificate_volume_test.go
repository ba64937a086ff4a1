package e2e

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wherry.dev/internal/pki"
)

const testSigner = "example.com/pods"

// The test is the signer: it publishes its root as a ClusterTrustBundle, and answers the
// node's PodCertificateRequest.
func TestTrustBundleAndCertificateReachThePod(t *testing.T) {
	c := startCluster(t)
	ca, root := c.authority("root")
	_, next := c.authority("next")
	bundles := c.client.CertificatesV1().ClusterTrustBundles()
	bundle := &certificatesv1.ClusterTrustBundle{
		ObjectMeta: metav1.ObjectMeta{Name: "example.com:pods:v1", Labels: map[string]string{"live": "yes"}},
		Spec:       certificatesv1.ClusterTrustBundleSpec{SignerName: testSigner, TrustBundle: root},
	}
	bundle, err := bundles.Create(t.Context(), bundle, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	c.create(busybox("p", func(p *v1.Pod) {
		p.Spec.Volumes = []v1.Volume{{Name: "tls", VolumeSource: v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{Sources: []v1.VolumeProjection{
			{ClusterTrustBundle: &v1.ClusterTrustBundleProjection{Name: &bundle.Name, Path: "by-name.pem"}},
			{ClusterTrustBundle: &v1.ClusterTrustBundleProjection{
				SignerName: new(testSigner), LabelSelector: &metav1.LabelSelector{MatchLabels: bundle.Labels}, Path: "by-signer.pem",
			}},
			{PodCertificate: &v1.PodCertificateProjection{SignerName: testSigner, KeyType: "ECDSAP256", CertificateChainPath: "chain.pem", KeyPath: "key.pem"}},
		}}}}}
		p.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "tls", MountPath: "/tls"}}
	}))
	chain := c.answerAsSigner(ca)
	c.await("p", "ready", ready)
	if got, want := c.exec("p", "cat", "/tls/by-name.pem", "/tls/by-signer.pem", "/tls/chain.pem"), root+root+chain; strings.TrimSpace(got) != strings.TrimSpace(want) {
		t.Errorf("the pod has\n%s\nwant\n%s", got, want)
	}
	if key := c.exec("p", "cat", "/tls/key.pem"); !strings.Contains(key, "PRIVATE KEY") {
		t.Errorf("the key: %s", key)
	}
	table := strings.Fields(c.kubectl("get", "podcertificaterequests", "--no-headers"))
	if len(table) != 7 || table[1] != "p" || table[5] != "Issued" {
		t.Errorf("kubectl get podcertificaterequests: %v", table)
	}
	bundle.Spec.TrustBundle = next
	if _, err := bundles.Update(t.Context(), bundle, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	line := strings.Split(next, "\n")[5] // one from the middle of the certificate
	c.exec("p", "sh", "-c", "for i in $(seq 900); do grep -qF '"+line+"' /tls/by-name.pem && grep -qF '"+line+"' /tls/by-signer.pem && exit 0; sleep 0.1; done; exit 1")
	c.delete("p")
}

// authority makes a CA, and its certificate in PEM.
func (c *cluster) authority(name string) (*pki.CA, string) {
	c.t.Helper()
	ca, err := pki.LoadOrCreateCA(c.t.TempDir(), "ca", name, time.Now())
	if err != nil {
		c.t.Fatal(err)
	}
	cert, err := ca.Cert()
	if err != nil {
		c.t.Fatal(err)
	}
	return ca, string(cert)
}

// answerAsSigner waits for a pod certificate request, issues the certificate and returns it.
func (c *cluster) answerAsSigner(ca *pki.CA) string {
	t := c.t
	t.Helper()
	requests := c.client.CertificatesV1().PodCertificateRequests(metav1.NamespaceDefault)
	w, err := requests.Watch(t.Context(), metav1.ListOptions{TimeoutSeconds: new(int64(patience.Seconds()))})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	ev, ok := <-w.ResultChan()
	if !ok {
		t.Fatalf("no pod certificate request within %s:\n%s", patience, c.kubectl("get", "events"))
	}
	r, ok := ev.Object.(*certificatesv1.PodCertificateRequest)
	if !ok {
		t.Fatalf("watch: %v", ev.Object)
	}
	csr, err := x509.ParseCertificateRequest(r.Spec.StubPKCS10Request)
	if err != nil {
		t.Fatal(err)
	}
	begin := time.Now().Truncate(time.Second)
	der, err := ca.Sign(&x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: r.Spec.PodName}, NotBefore: begin, NotAfter: begin.Add(time.Hour),
	}, csr.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	chain := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	r.Status = certificatesv1.PodCertificateRequestStatus{
		Conditions: []metav1.Condition{{
			Type: certificatesv1.PodCertificateRequestConditionTypeIssued, Status: metav1.ConditionTrue, Reason: "Test", LastTransitionTime: metav1.Now(),
		}},
		CertificateChain: chain, NotBefore: &metav1.Time{Time: begin}, NotAfter: &metav1.Time{Time: begin.Add(time.Hour)},
		BeginRefreshAt: &metav1.Time{Time: begin.Add(30 * time.Minute)},
	}
	if _, err := requests.UpdateStatus(t.Context(), r, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	return chain
}
