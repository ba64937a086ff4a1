package identity

import (
	"bytes"
	"cmp"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"sync"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
	"k8s.io/klog/v2"
)

const (
	// firstWait is how long to wait for a certificate before reporting that it is missing;
	// laterWait is the same once that has been reported, and renewWait while there is still an
	// older one.
	firstWait, laterWait, renewWait = 15 * time.Second, 10 * time.Minute, 5 * time.Second
	// renewAgain is when to look again for a renewal that was not answered.
	renewAgain = time.Minute
	// renewJitter spreads out the renewals of many pods.
	renewJitter = 5 * time.Minute
)

var errNotIssued = errors.New("credential bundle is not issued yet")

// CertificateSource requests certificates for pods from signers (KEP-4317), and keeps them and
// their keys in memory until they have to be renewed. A kubelet that starts again requests them
// again.
type CertificateSource struct {
	client kubernetes.Interface
	node   func() *v1.Node

	mu    sync.Mutex
	certs map[certKey]*certificate
}

type certKey struct {
	uid    types.UID
	volume string
	source int
}

// certificate is the state of one source of a volume. Its own lock is held while it is being
// requested.
//
//	none ──request──> pending ──issued──> fresh ──refreshAt──> fresh, pending ──issued──> fresh
//	                     └──denied, failed──> refused
type certificate struct {
	mu         sync.Mutex
	key, chain []byte // of the certificate in use
	refreshAt  time.Time
	request    string // pending; its key is next
	next       []byte
	told       bool  // that it is not issued yet was reported
	refused    error // for good
}

// NewCertificateSource returns a source. node returns the node as registered.
func NewCertificateSource(client kubernetes.Interface, node func() *v1.Node) *CertificateSource {
	return &CertificateSource{client: client, node: node, certs: map[certKey]*certificate{}}
}

// Forget drops the keys and certificates of a pod.
func (s *CertificateSource) Forget(uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k := range s.certs {
		if k.uid == uid {
			delete(s.certs, k)
		}
	}
}

// Bundle returns a private key and a certificate chain in PEM, and when to ask again.
func (s *CertificateSource) Bundle(ctx context.Context, pod *v1.Pod, volume string, source int, src *v1.PodCertificateProjection) (key, chain []byte, refreshAt time.Time, err error) {
	if s.client == nil {
		return nil, nil, time.Time{}, errors.New("pod certificates are not supported without an API server")
	}
	k := certKey{pod.UID, volume, source}
	s.mu.Lock()
	c := s.certs[k]
	if c == nil {
		c = &certificate{}
		s.certs[k] = c
	}
	s.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.chain != nil && time.Now().Before(c.refreshAt) || c.refused != nil && c.chain == nil {
		return c.key, c.chain, c.refreshAt, c.refused
	}
	if c.refused == nil {
		err = s.renew(ctx, pod, c, src)
	}
	if c.chain == nil {
		return nil, nil, time.Time{}, err
	}
	if c.refused == nil && !time.Now().Before(c.refreshAt) {
		c.refreshAt = time.Now().Add(renewAgain) // the current certificate serves meanwhile
	}
	return c.key, c.chain, c.refreshAt, nil
}

// renew requests a certificate, unless that was done already, and waits a while for the answer.
func (s *CertificateSource) renew(ctx context.Context, pod *v1.Pod, c *certificate, src *v1.PodCertificateProjection) error {
	if c.request == "" {
		if err := s.ask(ctx, pod, c, src); err != nil {
			return fmt.Errorf("while creating PodCertificateRequest: %w", err)
		}
	}
	patience := firstWait
	switch {
	case c.chain != nil:
		patience = renewWait
	case c.told:
		patience = laterWait
	}
	within, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	req, err := s.await(within, pod.Namespace, c.request)
	if err != nil && within.Err() != nil && ctx.Err() == nil {
		c.told = true
		return errNotIssued
	}
	if err != nil {
		if apierrors.IsNotFound(err) || apierrors.IsGone(err) {
			c.request, c.next = "", nil
		}
		return fmt.Errorf("PodCertificateRequest of signer %s: %w", src.SignerName, err)
	}
	if err := c.take(req); err != nil {
		klog.FromContext(ctx).Error(err, "Failed to get a certificate for a pod", "request", klog.KObj(req), "signer", src.SignerName)
		return err
	}
	return nil
}

// take applies a signer's answer.
func (c *certificate) take(req *certificatesv1.PodCertificateRequest) error {
	cond := answer(req)
	if cond.Type != certificatesv1.PodCertificateRequestConditionTypeIssued {
		c.refused = fmt.Errorf("PodCertificateRequest was permanently %s: reason=%q message=%q", map[string]string{
			certificatesv1.PodCertificateRequestConditionTypeDenied: "denied", certificatesv1.PodCertificateRequestConditionTypeFailed: "failed",
		}[cond.Type], cond.Reason, cond.Message)
		c.request, c.next, c.refreshAt = "", nil, time.Time{}
		return c.refused
	}
	c.key, c.chain, c.refreshAt = c.next, cleanChain([]byte(req.Status.CertificateChain)), time.Now().Add(renewAgain)
	if at := req.Status.BeginRefreshAt; at != nil {
		c.refreshAt = at.Add(mathrand.N(renewJitter))
	}
	c.request, c.next, c.told = "", nil, false
	return nil
}

// answer returns the condition that contains a signer's answer; the zero value if there is none
// yet.
func answer(req *certificatesv1.PodCertificateRequest) metav1.Condition {
	for _, cond := range req.Status.Conditions {
		switch cond.Type {
		case certificatesv1.PodCertificateRequestConditionTypeDenied, certificatesv1.PodCertificateRequestConditionTypeFailed,
			certificatesv1.PodCertificateRequestConditionTypeIssued:
			return cond
		}
	}
	return metav1.Condition{}
}

// ask creates a key, and requests a certificate for it.
func (s *CertificateSource) ask(ctx context.Context, pod *v1.Pod, c *certificate, src *v1.PodCertificateProjection) error {
	account, err := s.client.CoreV1().ServiceAccounts(pod.Namespace).Get(ctx, cmp.Or(pod.Spec.ServiceAccountName, "default"), metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("while fetching service account: %w", err)
	}
	key, csr, err := newKey(src.KeyType)
	if err != nil {
		return fmt.Errorf("while generating keypair: %w", err)
	}
	node := s.node()
	req, err := s.client.CertificatesV1().PodCertificateRequests(pod.Namespace).Create(ctx, &certificatesv1.PodCertificateRequest{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, GenerateName: "req-",
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID}},
		},
		Spec: certificatesv1.PodCertificateRequestSpec{
			SignerName: src.SignerName, PodName: pod.Name, PodUID: pod.UID, ServiceAccountName: account.Name, ServiceAccountUID: account.UID,
			NodeName: types.NodeName(node.Name), NodeUID: node.UID, MaxExpirationSeconds: src.MaxExpirationSeconds,
			StubPKCS10Request: csr, UnverifiedUserAnnotations: src.UserAnnotations,
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	c.request, c.next = req.Name, key
	return nil
}

// await waits until a signer has answered a request.
func (s *CertificateSource) await(ctx context.Context, namespace, name string) (*certificatesv1.PodCertificateRequest, error) {
	requests := s.client.CertificatesV1().PodCertificateRequests(namespace)
	req, err := requests.Get(ctx, name, metav1.GetOptions{})
	if err != nil || answer(req).Type != "" {
		return req, err
	}
	// The node authorizer requires the node's name in the selector of a watch.
	one := fields.Set{"metadata.name": name, "spec.nodeName": string(req.Spec.NodeName)}.String()
	watcher := &cache.ListWatch{WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
		o.FieldSelector = one
		return requests.Watch(ctx, o)
	}}
	_, err = watchtools.Until(ctx, req.ResourceVersion, watcher, func(ev watch.Event) (bool, error) {
		now, is := ev.Object.(*certificatesv1.PodCertificateRequest)
		switch {
		case !is:
			return false, apierrors.FromObject(ev.Object)
		case now.Name != name: // the server applies the selector; if it ignored it, this answer is not ours
			return false, nil
		case ev.Type == watch.Deleted:
			return false, apierrors.NewNotFound(certificatesv1.Resource("podcertificaterequests"), name)
		}
		req = now
		return answer(req).Type != "", nil
	})
	return req, err
}

// newKey returns a new key of the given type, in PEM, and an empty certificate request signed with
// it.
func newKey(kind string) (keyPEM, csr []byte, err error) {
	var key crypto.Signer
	switch kind {
	case "RSA3072":
		key, err = rsa.GenerateKey(rand.Reader, 3072)
	case "RSA4096":
		key, err = rsa.GenerateKey(rand.Reader, 4096)
	case "ECDSAP256":
		key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	case "ECDSAP384":
		key, err = ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	case "ECDSAP521":
		key, err = ecdsa.GenerateKey(elliptic.P521(), rand.Reader)
	case "ED25519":
		_, key, err = ed25519.GenerateKey(rand.Reader)
	default:
		return nil, nil, fmt.Errorf("unknown key type %q", kind)
	}
	if err != nil {
		return nil, nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, nil, err
	}
	csr, err = x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), csr, err
}

// cleanChain keeps the certificates of a chain, without headers and without any text in between.
func cleanChain(chain []byte) []byte {
	var out bytes.Buffer
	for b, rest := pem.Decode(chain); b != nil; b, rest = pem.Decode(rest) {
		out.Write(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: b.Bytes}))
	}
	return out.Bytes()
}
