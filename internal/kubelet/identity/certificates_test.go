package identity

import (
	"context"
	"crypto"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// signing is an API server with an account, and a signer that answers when the test says so.
type signing struct {
	*fake.Clientset
	t        *testing.T
	requests int
}

func newSigning(t *testing.T) *signing {
	s := &signing{Clientset: fake.NewClientset(&v1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "default", UID: "account"}}), t: t}
	s.PrependReactor("create", "podcertificaterequests", func(a clienttesting.Action) (bool, runtime.Object, error) {
		s.requests++
		req := a.(clienttesting.CreateAction).GetObject().(*certificatesv1.PodCertificateRequest)
		req.Name, req.ResourceVersion = fmt.Sprintf("req-%d", s.requests), fmt.Sprint(s.requests)
		return false, nil, nil
	})
	// As the node authorizer does.
	s.PrependWatchReactor("podcertificaterequests", func(a clienttesting.Action) (bool, watch.Interface, error) {
		if of, _ := a.(clienttesting.WatchAction).GetWatchRestrictions().Fields.RequiresExactMatch("spec.nodeName"); of != "n" {
			return true, nil, errors.New("can only list/watch podcertificaterequests with nodeName field selector")
		}
		return false, nil, nil
	})
	return s
}

func somePod() *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "u"}}
}

func certificates(texts ...string) string {
	out := "not a certificate\n"
	for _, s := range texts {
		out += string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Headers: map[string]string{"From": "x"}, Bytes: []byte(s)}))
	}
	return out
}

func (s *signing) request(n int) *certificatesv1.PodCertificateRequest {
	s.t.Helper()
	req, err := s.CertificatesV1().PodCertificateRequests("ns").Get(s.t.Context(), fmt.Sprintf("req-%d", n), metav1.GetOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	return req
}

func (s *signing) answer(n int, cond, chain string) {
	s.t.Helper()
	req := s.request(n)
	at := metav1.NewTime(time.Now().Add(time.Hour))
	req.Status = certificatesv1.PodCertificateRequestStatus{
		Conditions: []metav1.Condition{{Type: cond, Status: metav1.ConditionTrue, Reason: "Because", Message: "of it"}}, CertificateChain: chain, BeginRefreshAt: &at,
	}
	if _, err := s.CertificatesV1().PodCertificateRequests("ns").UpdateStatus(s.t.Context(), req, metav1.UpdateOptions{}); err != nil {
		s.t.Fatal(err)
	}
}

func (s *signing) source() *CertificateSource {
	return NewCertificateSource(s, func() *v1.Node { return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "node"}} })
}

// TestCertificateIsAskedForOnceAndRenewed with the key that its request was signed with.
func TestCertificateIsAskedForOnceAndRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSigning(t)
		src := &v1.PodCertificateProjection{SignerName: "example.com/s", KeyType: "ECDSAP256", UserAnnotations: map[string]string{"example.com/a": "b"}}
		certs, pod := s.source(), somePod()
		get := func() (string, string, time.Time, error) {
			key, chain, at, err := certs.Bundle(t.Context(), pod, "v", 0, src)
			return string(key), string(chain), at, err
		}
		began := time.Now()
		if _, _, _, err := get(); err == nil || err.Error() != "credential bundle is not issued yet" || time.Since(began) != firstWait {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		go func() { time.Sleep(time.Minute); s.answer(1, "Issued", certificates("leaf", "middle")) }()
		key, chain, at, err := get()
		if err != nil || chain != strings.ReplaceAll(strings.TrimPrefix(certificates("leaf", "middle"), "not a certificate\n"), "From: x\n\n", "") {
			t.Fatalf("%q, %v", chain, err)
		}
		if in := time.Until(at); in < time.Hour || in > time.Hour+renewJitter || s.requests != 1 {
			t.Errorf("renewed in %v, %d requests", in, s.requests)
		}
		spec := s.request(1).Spec
		if spec.PodUID != "u" || spec.ServiceAccountUID != "account" || spec.NodeUID != "node" || spec.SignerName != src.SignerName || spec.UnverifiedUserAnnotations["example.com/a"] != "b" {
			t.Errorf("request %+v", spec)
		}
		signedBy(t, key, spec.StubPKCS10Request)
		if again, _, _, err := get(); again != key || err != nil || s.requests != 1 {
			t.Errorf("asked again: %d requests, %v", s.requests, err)
		}
		time.Sleep(time.Until(at))
		if old, _, soon, err := get(); old != key || err != nil || time.Until(soon) > renewAgain {
			t.Errorf("while the signer is away: the key changed %v, again in %v, %v", old != key, time.Until(soon), err)
		}
		s.answer(2, "Issued", certificates("new"))
		time.Sleep(renewAgain)
		fresh, chain, _, err := get()
		if err != nil || fresh == key || !strings.Contains(chain, "CERTIFICATE") || s.requests != 2 {
			t.Errorf("renewed: %v, %d requests, %v", fresh != key, s.requests, err)
		}
		signedBy(t, fresh, s.request(2).Spec.StubPKCS10Request)
		certs.Forget(pod.UID)
		if len(certs.certs) != 0 {
			t.Error("the key of a pod that is gone is kept")
		}
	})
}

func signedBy(t *testing.T, keyPEM string, der []byte) {
	t.Helper()
	b, _ := pem.Decode([]byte(keyPEM))
	key, err := x509.ParsePKCS8PrivateKey(b.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	csr, err := x509.ParseCertificateRequest(der)
	if err != nil || csr.CheckSignature() != nil {
		t.Fatal(err, csr.CheckSignature())
	}
	if public := key.(crypto.Signer).Public().(interface{ Equal(crypto.PublicKey) bool }); !public.Equal(csr.PublicKey) {
		t.Error("the request is for another key")
	}
}

// TestRefusedCertificate is not requested again; a deleted request is created again.
func TestRefusedCertificate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSigning(t)
		certs, pod := s.source(), somePod()
		src := &v1.PodCertificateProjection{SignerName: "example.com/s", KeyType: "ED25519"}
		go func() {
			time.Sleep(time.Second)
			if err := s.CertificatesV1().PodCertificateRequests("ns").Delete(t.Context(), "req-1", metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
		}()
		if _, _, _, err := certs.Bundle(t.Context(), pod, "v", 0, src); err == nil || !strings.Contains(err.Error(), "not found") {
			t.Errorf("deleted: %v", err)
		}
		go func() { time.Sleep(time.Second); s.answer(2, "Denied", "") }()
		for range 2 {
			if _, _, _, err := certs.Bundle(t.Context(), pod, "v", 0, src); err == nil || err.Error() != `PodCertificateRequest was permanently denied: reason="Because" message="of it"` || s.requests != 2 {
				t.Errorf("%v, %d requests", err, s.requests)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		began := time.Now()
		if _, _, _, err := certs.Bundle(ctx, pod, "v", 1, src); err == nil || time.Since(began) != time.Second {
			t.Errorf("a pod that goes waits for its certificate: %v, %v", time.Since(began), err)
		}
		src.KeyType = "DSA"
		if _, _, _, err := certs.Bundle(t.Context(), pod, "v", 2, src); err == nil || !strings.Contains(err.Error(), `unknown key type "DSA"`) {
			t.Errorf("%v", err)
		}
	})
}

func TestKeyTypes(t *testing.T) {
	for _, kind := range []string{"RSA3072", "ECDSAP256", "ECDSAP384", "ECDSAP521", "ED25519"} {
		key, csr, err := newKey(kind)
		if err != nil {
			t.Fatal(err)
		}
		signedBy(t, string(key), csr)
	}
}
