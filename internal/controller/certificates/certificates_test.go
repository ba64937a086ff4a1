package certificates

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"wherry.dev/internal/pki"
)

// play runs the controller over a fake API server on which the users in may can get client
// certificates through these subresources.
func play(t *testing.T, may map[string]string, test func(t *testing.T, client *fake.Clientset, ca *pki.CA)) {
	t.Helper()
	playWith(t, may, func(informers.SharedInformerFactory) *Kubelets { return nil }, test)
}

func playWith(t *testing.T, may map[string]string, kubelets func(informers.SharedInformerFactory) *Kubelets, test func(t *testing.T, client *fake.Clientset, ca *pki.CA)) {
	t.Helper()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		ca, err := pki.LoadOrCreateCA(dir, "ca", "ca", time.Now())
		if err != nil {
			t.Fatal(err)
		}
		client := fake.NewClientset()
		client.PrependReactor("create", "subjectaccessreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
			r := a.(clienttesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview).DeepCopy()
			r.Status.Allowed = may[r.Spec.User] == r.Spec.ResourceAttributes.Subresource
			return true, r, nil
		})
		f := informers.NewSharedInformerFactory(client, 0)
		c, err := New(client, f, ca, MostTime, kubelets(f))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		f.Start(ctx.Done())
		done := make(chan error, 1)
		go func() { done <- c.Run(ctx) }()
		synctest.Wait()
		test(t, client, ca)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		f.Shutdown()
	})
}

// request creates a certificate signing request of a user for a subject.
func request(t *testing.T, name, user, signer string, tmpl x509.CertificateRequest, usages ...certificatesv1.KeyUsage) *certificatesv1.CertificateSigningRequest {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &tmpl, key)
	if err != nil {
		t.Fatal(err)
	}
	return &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: "uid", CreationTimestamp: metav1.NewTime(time.Now())},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request:    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
			SignerName: signer, Username: user, Usages: append(usages, certificatesv1.UsageDigitalSignature),
		},
	}
}

func node(name string) pkix.Name {
	return pkix.Name{CommonName: "system:node:" + name, Organization: []string{"system:nodes"}}
}

func create(t *testing.T, c *fake.Clientset, r *certificatesv1.CertificateSigningRequest) *certificatesv1.CertificateSigningRequest {
	t.Helper()
	if _, err := c.CertificatesV1().CertificateSigningRequests().Create(t.Context(), r, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
	return get(t, c, r.Name)
}

func get(t *testing.T, c *fake.Clientset, name string) *certificatesv1.CertificateSigningRequest {
	t.Helper()
	r, err := c.CertificatesV1().CertificateSigningRequests().Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// Nobody gets a longer time than --cluster-signing-duration, and nobody one of seconds by his own wish.
func TestLifetimes(t *testing.T) {
	c := &Controller{longest: 6 * time.Hour}
	for seconds, want := range map[int32]time.Duration{600: 10 * time.Minute, 1: leastTime, 3600: time.Hour, 1 << 30: 6 * time.Hour} {
		if got := c.lifetime(&seconds); got != want {
			t.Errorf("%d s: %s, want %s", seconds, got, want)
		}
	}
	if got := c.lifetime(nil); got != 6*time.Hour {
		t.Errorf("without a wish: %s", got)
	}
}

func TestKubeletsClientCertificates(t *testing.T) {
	const signer = certificatesv1.KubeAPIServerClientKubeletSignerName
	may := map[string]string{"bootstrap": "nodeclient", "system:node:n1": "selfnodeclient"}
	play(t, may, func(t *testing.T, c *fake.Clientset, ca *pki.CA) {
		tmpl := x509.CertificateRequest{Subject: node("n1")}
		for _, user := range []string{"bootstrap", "system:node:n1"} {
			r := create(t, c, request(t, "of-"+strings.ReplaceAll(user, ":", "-"), user, signer, tmpl, certificatesv1.UsageClientAuth))
			cert, err := parseCertificate(r.Status.Certificate)
			if err != nil {
				t.Fatalf("%s: %v: %+v", user, err, r.Status.Conditions)
			}
			roots := x509.NewCertPool()
			data, err := ca.Cert()
			if err != nil || !roots.AppendCertsFromPEM(data) {
				t.Fatal(err)
			}
			if _, err := cert.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: time.Now(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
				t.Error(err)
			}
			if cert.Subject.CommonName != "system:node:n1" || time.Until(cert.NotAfter) != MostTime.Truncate(time.Second) || r.Status.Conditions[0].Reason != "AutoApproved" {
				t.Errorf("%v until %v, %+v", cert.Subject, cert.NotAfter, r.Status.Conditions)
			}
		}
		for name, r := range map[string]*certificatesv1.CertificateSigningRequest{
			"stranger":   request(t, "stranger", "stranger", signer, tmpl, certificatesv1.UsageClientAuth),
			"other-node": request(t, "other-node", "system:node:n1", signer, x509.CertificateRequest{Subject: node("n2")}, certificatesv1.UsageClientAuth),
			"person":     request(t, "person", "bootstrap", signer, x509.CertificateRequest{Subject: pkix.Name{CommonName: "admin", Organization: []string{"system:nodes"}}}, certificatesv1.UsageClientAuth),
			"masters":    request(t, "masters", "bootstrap", signer, x509.CertificateRequest{Subject: pkix.Name{CommonName: "system:node:x", Organization: []string{"system:nodes", "system:masters"}}}, certificatesv1.UsageClientAuth),
			"server":     request(t, "server", "bootstrap", signer, tmpl, certificatesv1.UsageServerAuth),
			"names":      request(t, "names", "bootstrap", signer, x509.CertificateRequest{Subject: node("n1"), DNSNames: []string{"x"}}, certificatesv1.UsageClientAuth),
		} {
			if got := create(t, c, r); len(got.Status.Conditions) > 0 || len(got.Status.Certificate) > 0 {
				t.Errorf("%s was approved: %+v", name, got.Status)
			}
		}
		may["stranger"] = "nodeclient"
		time.Sleep(askAgain)
		synctest.Wait()
		if len(get(t, c, "stranger").Status.Certificate) == 0 {
			t.Error("who may have a certificate now does not get it")
		}
	})
}

func TestServingCertificatesWaitForSomebody(t *testing.T) {
	play(t, nil, func(t *testing.T, c *fake.Clientset, _ *pki.CA) {
		approve := func(r *certificatesv1.CertificateSigningRequest, typ certificatesv1.RequestConditionType) *certificatesv1.CertificateSigningRequest {
			r.Status.Conditions = append(r.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
				Type: typ, Status: corev1.ConditionTrue, LastUpdateTime: metav1.NewTime(time.Now()),
			})
			if _, err := c.CertificatesV1().CertificateSigningRequests().UpdateApproval(t.Context(), r.Name, r, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			return get(t, c, r.Name)
		}
		tmpl := x509.CertificateRequest{Subject: node("n1"), DNSNames: []string{"n1"}, IPAddresses: []net.IP{net.IPv4(192, 0, 2, 1)}}
		r := create(t, c, request(t, "serving", "system:node:n1", certificatesv1.KubeletServingSignerName, tmpl, certificatesv1.UsageServerAuth))
		if len(r.Status.Conditions) > 0 {
			t.Errorf("nobody approved it: %+v", r.Status)
		}
		r = approve(r, certificatesv1.CertificateApproved)
		cert, err := parseCertificate(r.Status.Certificate)
		if err != nil || cert.VerifyHostname("n1") != nil || cert.VerifyHostname("192.0.2.1") != nil {
			t.Errorf("%v %v", cert, err)
		}
		bad := create(t, c, request(t, "bad", "system:node:n1", certificatesv1.KubeletServingSignerName, x509.CertificateRequest{Subject: node("n1")}, certificatesv1.UsageServerAuth))
		if bad = approve(bad, certificatesv1.CertificateApproved); !has(bad, certificatesv1.CertificateFailed) || bad.Status.Conditions[1].Message != "DNS or IP subjectAltName is required" {
			t.Errorf("%+v", bad.Status)
		}
		short := request(t, "short", "u", certificatesv1.KubeAPIServerClientSignerName, x509.CertificateRequest{Subject: pkix.Name{CommonName: "u"}}, certificatesv1.UsageClientAuth)
		short.Spec.ExpirationSeconds = new(int32(3600))
		short = approve(create(t, c, short), certificatesv1.CertificateApproved)
		if cert, err = parseCertificate(short.Status.Certificate); err != nil || time.Until(cert.NotAfter) != time.Hour {
			t.Errorf("%v, %v", cert, err)
		}
		denied := approve(create(t, c, request(t, "denied", "u", certificatesv1.KubeAPIServerClientSignerName, x509.CertificateRequest{Subject: pkix.Name{CommonName: "u"}}, certificatesv1.UsageClientAuth)), certificatesv1.CertificateDenied)
		if len(denied.Status.Certificate) > 0 {
			t.Error("a denied request was signed")
		}
		strange := approve(create(t, c, request(t, "strange", "u", "example.com/mine", tmpl, certificatesv1.UsageServerAuth)), certificatesv1.CertificateApproved)
		if len(strange.Status.Certificate) > 0 {
			t.Error("another signer's request was signed")
		}
	})
}

func TestOldRequestsAreClearedAway(t *testing.T) {
	play(t, map[string]string{"system:node:n1": "selfnodeclient"}, func(t *testing.T, c *fake.Clientset, _ *pki.CA) {
		gone := func(name string) bool {
			synctest.Wait()
			_, err := c.CertificatesV1().CertificateSigningRequests().Get(t.Context(), name, metav1.GetOptions{})
			return apierrors.IsNotFound(err)
		}
		create(t, c, request(t, "pending", "u", certificatesv1.KubeletServingSignerName, x509.CertificateRequest{Subject: node("n1")}, certificatesv1.UsageServerAuth))
		time.Sleep(pendingAge - time.Second)
		if gone("pending") {
			t.Error("too early")
		}
		time.Sleep(2 * time.Second)
		if !gone("pending") {
			t.Error("it is still there")
		}
	})
}

func TestWhenRequestsExpire(t *testing.T) {
	now := time.Now()
	at := func(age time.Duration) metav1.Time { return metav1.NewTime(now.Add(-age)) }
	with := func(typ certificatesv1.RequestConditionType, age time.Duration, cert string) *certificatesv1.CertificateSigningRequest {
		return &certificatesv1.CertificateSigningRequest{
			ObjectMeta: metav1.ObjectMeta{CreationTimestamp: at(2 * time.Hour)},
			Status: certificatesv1.CertificateSigningRequestStatus{
				Certificate: []byte(cert), Conditions: []certificatesv1.CertificateSigningRequestCondition{{Type: typ, LastUpdateTime: at(age)}},
			},
		}
	}
	for name, tc := range map[string]struct {
		r    *certificatesv1.CertificateSigningRequest
		left time.Duration
	}{
		"signed":          {with(certificatesv1.CertificateApproved, 10*time.Minute, "x"), 50 * time.Minute},
		"approved only":   {with(certificatesv1.CertificateApproved, 10*time.Minute, ""), 22 * time.Hour},
		"denied":          {with(certificatesv1.CertificateDenied, 61*time.Minute, ""), -time.Minute},
		"failed recently": {with(certificatesv1.CertificateFailed, 0, ""), time.Hour},
	} {
		if left := expires(tc.r, now).Sub(now); left != tc.left {
			t.Errorf("%s: %v, want %v", name, left, tc.left)
		}
	}
}

func FuzzParseRequest(f *testing.F) {
	f.Add([]byte("-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if req, err := parseRequest(data); err == nil {
			_ = checkKubeletServing(req, nil)
		}
	})
}
