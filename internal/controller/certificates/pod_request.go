package certificates

import (
	"context"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	clientset "k8s.io/client-go/kubernetes"
	listers "k8s.io/client-go/listers/certificates/v1"
	"k8s.io/client-go/tools/cache"

	"wherry.dev/internal/controller"
)

// podRequestAge is how long a pod's certificate request is kept, whatever its state: the kubelet
// takes an answer at once, and makes another request if its own is gone.
const podRequestAge = 30 * time.Minute

// PodRequestCleaner deletes old pod certificate requests, because a long-lived pod makes many.
type PodRequestCleaner struct {
	client   clientset.Interface
	requests listers.PodCertificateRequestLister
	loop     *controller.Loop
}

// NewPodRequestCleaner returns the controller.
func NewPodRequestCleaner(client clientset.Interface, f informers.SharedInformerFactory) (*PodRequestCleaner, error) {
	requests := f.Certificates().V1().PodCertificateRequests()
	c := &PodRequestCleaner{client: client, requests: requests.Lister()}
	c.loop = controller.NewLoop("podcertificates", c.reconcile)
	return c, c.loop.Watch(requests.Informer(), func(_, obj any) {
		if r, ok := obj.(*certificatesv1.PodCertificateRequest); ok {
			c.loop.Add(cache.MetaObjectToName(r).String())
		}
	})
}

// Run deletes old requests until ctx ends.
func (c *PodRequestCleaner) Run(ctx context.Context) error { return c.loop.Run(ctx) }

func (c *PodRequestCleaner) reconcile(ctx context.Context, key string) error {
	name, err := cache.ParseObjectName(key)
	if err != nil {
		return err
	}
	r, err := c.requests.PodCertificateRequests(name.Namespace).Get(name.Name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if left := time.Until(r.CreationTimestamp.Add(podRequestAge)); left > 0 {
		c.loop.AddAfter(key, left)
		return nil
	}
	return ignoreGone(c.client.CertificatesV1().PodCertificateRequests(r.Namespace).Delete(ctx, r.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &r.UID},
	}))
}
