// Package certificates approves, signs and cleans up certificate signing requests for Kubernetes'
// own signers: client certificates of kubelets, which it also approves if the requester may have
// one, serving certificates of kubelets, and client certificates for anything else. The latter two
// somebody approves with `kubectl certificate approve`.
//
// It does what upstream's controllers csrapproving, csrsigning and csrcleaner do.
package certificates

import (
	"context"
	"crypto"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	clientset "k8s.io/client-go/kubernetes"
	listers "k8s.io/client-go/listers/certificates/v1"
	"k8s.io/klog/v2"

	"wherry.dev/internal/api/nodes"
	"wherry.dev/internal/controller"
)

// Authority signs certificates, such as *pki.CA.
type Authority interface {
	Sign(template *x509.Certificate, public crypto.PublicKey) ([]byte, error)
}

// Controller processes requests, one at a time.
type Controller struct {
	client   clientset.Interface
	requests listers.CertificateSigningRequestLister
	ca       Authority
	longest  time.Duration
	kubelets *Kubelets // nil: as upstream
	loop     *controller.Loop

	mu      sync.Mutex
	waiting map[string]bool // requests that wait for a node to be, or to have, what they are for
}

// New returns the controller. A certificate is valid for the time given, unless a shorter one is requested. Without kubelets
// it approves what upstream's does.
func New(client clientset.Interface, f informers.SharedInformerFactory, ca Authority, longest time.Duration, kubelets *Kubelets) (*Controller, error) {
	requests := f.Certificates().V1().CertificateSigningRequests()
	c := &Controller{client: client, requests: requests.Lister(), ca: ca, longest: longest, kubelets: kubelets, waiting: map[string]bool{}}
	c.loop = controller.NewLoop("certificate", c.reconcile)
	if kubelets != nil {
		if err := c.loop.Watch(f.Core().V1().Nodes().Informer(), c.nodeChanged); err != nil {
			return nil, err
		}
	}
	return c, c.loop.Watch(requests.Informer(), func(_, obj any) {
		if r, ok := obj.(*certificatesv1.CertificateSigningRequest); ok {
			c.loop.Add(r.Name)
		}
	})
}

// await looks at a request again when a node changes, or after a while.
func (c *Controller) await(name string) {
	c.mu.Lock()
	c.waiting[name] = true
	c.mu.Unlock()
	c.loop.AddAfter(name, askAgain)
}

// nodeChanged looks at what waits again, unless nothing of the node has changed on which it depends.
func (c *Controller) nodeChanged(old, obj any) {
	a, _ := old.(*corev1.Node)
	b, _ := obj.(*corev1.Node)
	if a != nil && b != nil && nodes.IsReady(a) == nodes.IsReady(b) && slices.Equal(a.Status.Addresses, b.Status.Addresses) {
		return
	}
	c.mu.Lock()
	waiting := c.waiting
	c.waiting = map[string]bool{}
	c.mu.Unlock()
	for name := range waiting {
		c.loop.Add(name)
	}
}

// Run processes requests until ctx ends.
func (c *Controller) Run(ctx context.Context) error { return c.loop.Run(ctx) }

func (c *Controller) reconcile(ctx context.Context, name string) error {
	r, err := c.requests.Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	now := time.Now()
	if left := expires(r, now).Sub(now); left > 0 {
		c.loop.AddAfter(name, left)
	} else {
		return ignoreGone(c.client.CertificatesV1().CertificateSigningRequests().Delete(ctx, name, metav1.DeleteOptions{
			Preconditions: &metav1.Preconditions{UID: &r.UID},
		}))
	}
	switch {
	case len(r.Status.Certificate) > 0 || has(r, certificatesv1.CertificateDenied) || has(r, certificatesv1.CertificateFailed):
		return nil
	case has(r, certificatesv1.CertificateApproved):
		return c.sign(ctx, r.DeepCopy(), now)
	default:
		return c.approve(ctx, r.DeepCopy())
	}
}

// Ages at which requests are deleted, by their state.
const (
	approvedAge = time.Hour
	deniedAge   = time.Hour
	pendingAge  = 24 * time.Hour
)

// askAgain is how long a request waits before it is checked again whether its user may have a
// certificate.
const askAgain = time.Minute

// expires returns when a request is deleted. The age counts from the time of the last condition,
// because a request may have waited for long before. A request with an expired certificate is
// deleted at once: it is of no use to anybody.
func expires(r *certificatesv1.CertificateSigningRequest, now time.Time) time.Time {
	end := r.CreationTimestamp.Add(pendingAge)
	for _, cond := range r.Status.Conditions {
		if cond.LastUpdateTime.IsZero() {
			continue
		}
		switch cond.Type {
		case certificatesv1.CertificateApproved:
			if len(r.Status.Certificate) == 0 {
				continue // not signed yet
			}
			end = cond.LastUpdateTime.Add(approvedAge)
		case certificatesv1.CertificateDenied, certificatesv1.CertificateFailed:
			end = cond.LastUpdateTime.Add(deniedAge)
		}
	}
	if cert, err := parseCertificate(r.Status.Certificate); err == nil && now.After(cert.NotAfter) {
		return now
	}
	return end
}

func parseCertificate(data []byte) (*x509.Certificate, error) {
	block, _ := pem.Decode(data)
	if block == nil {
		return nil, errors.New("no PEM block in certificate")
	}
	return x509.ParseCertificate(block.Bytes)
}

func has(r *certificatesv1.CertificateSigningRequest, t certificatesv1.RequestConditionType) bool {
	return slices.ContainsFunc(r.Status.Conditions, func(c certificatesv1.CertificateSigningRequestCondition) bool {
		return c.Type == t && c.Status == corev1.ConditionTrue
	})
}

// approve approves a kubelet's request for a client certificate if the requester may request one
// for itself (selfnodeclient), or for any node (nodeclient).
func (c *Controller) approve(ctx context.Context, r *certificatesv1.CertificateSigningRequest) error {
	switch {
	case r.Spec.SignerName == certificatesv1.KubeletServingSignerName && c.kubelets != nil:
		return c.approveServing(ctx, r)
	case r.Spec.SignerName != certificatesv1.KubeAPIServerClientKubeletSignerName:
		return nil
	}
	req, err := parseRequest(r.Spec.Request)
	if err != nil {
		return fmt.Errorf("certificate signing request %s: %w", r.Name, err)
	}
	if checkKubeletClient(req, r.Spec.Usages) != nil {
		return nil //nolint:nilerr // a request that is not a kubelet's is for somebody else to judge
	}
	tries := []struct{ subresource, message string }{
		{"selfnodeclient", "Auto approving self kubelet client certificate after SubjectAccessReview."},
		{"nodeclient", "Auto approving kubelet client certificate after SubjectAccessReview."},
	}
	for _, try := range tries {
		if try.subresource == "selfnodeclient" && r.Spec.Username != req.Subject.CommonName {
			continue
		}
		ok, err := c.may(ctx, r, try.subresource)
		if err != nil {
			return fmt.Errorf("certificate signing request %s: %w", r.Name, err)
		}
		if !ok {
			continue
		}
		if try.subresource == "nodeclient" && c.kubelets != nil {
			// Whoever has a token could be any node.
			node := strings.TrimPrefix(req.Subject.CommonName, "system:node:")
			if alive, err := c.kubelets.alive(node); alive || err != nil {
				klog.FromContext(ctx).Info("A request for a node's client certificate waits: there is a node of that name, and it is Ready", "csr", r.Name, "user", r.Spec.Username, "node", node)
				c.await(r.Name)
				return err
			}
		}
		return c.markApproved(ctx, r, try.message)
	}
	klog.FromContext(ctx).Info("A kubelet's certificate signing request needs manual approval: its user lacks the permission for automatic approval", "csr", r.Name, "user", r.Spec.Username)
	c.loop.AddAfter(r.Name, askAgain) // nothing reports when somebody's rights change
	return nil
}

// markApproved approves a request.
func (c *Controller) markApproved(ctx context.Context, r *certificatesv1.CertificateSigningRequest, message string) error {
	r.Status.Conditions = append(r.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
		Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "AutoApproved", Message: message,
	})
	if _, err := c.client.CertificatesV1().CertificateSigningRequests().UpdateApproval(ctx, r.Name, r, metav1.UpdateOptions{}); ignoreGone(err) != nil {
		return fmt.Errorf("approve certificate signing request %s: %w", r.Name, err)
	}
	return nil
}

func (c *Controller) may(ctx context.Context, r *certificatesv1.CertificateSigningRequest, subresource string) (bool, error) {
	spec := authorizationv1.SubjectAccessReviewSpec{
		User: r.Spec.Username, UID: r.Spec.UID, Groups: r.Spec.Groups, Extra: map[string]authorizationv1.ExtraValue{},
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Group: certificatesv1.GroupName, Resource: "certificatesigningrequests", Subresource: subresource, Verb: "create", Version: "*",
		},
	}
	for k, v := range r.Spec.Extra {
		spec.Extra[k] = authorizationv1.ExtraValue(v)
	}
	review, err := c.client.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{Spec: spec}, metav1.CreateOptions{})
	if err != nil {
		return false, err
	}
	return review.Status.Allowed, nil
}

func ignoreGone(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
