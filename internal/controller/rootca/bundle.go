package rootca

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	certificatesinformers "k8s.io/client-go/informers/certificates/v1"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"wherry.dev/internal/controller"
)

// servingSigner is the signer for whose certificates pods trust the API server (KEP-3257).
const servingSigner = "kubernetes.io/kube-apiserver-serving"

// Publisher keeps the authority of the API server as a ClusterTrustBundle, which pods mount by the signer's name. Its own
// name has a hash of what is in it, so that a new authority is a new bundle; all others of the signer go.
type Publisher struct {
	client  clientset.Interface
	want    *certificatesv1.ClusterTrustBundle
	bundles cache.SharedIndexInformer
	loop    *controller.Loop
}

// NewPublisher returns the controller. ca is a certificate bundle in PEM. The controller writes as client, and watches as
// reader.
func NewPublisher(client, reader clientset.Interface, ca []byte) (*Publisher, error) {
	hash := sha256.Sum256(ca)
	c := &Publisher{client: client, want: &certificatesv1.ClusterTrustBundle{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s:%x", strings.ReplaceAll(servingSigner, "/", ":"), hash[:12])},
		Spec:       certificatesv1.ClusterTrustBundleSpec{SignerName: servingSigner, TrustBundle: string(ca)},
	}}
	c.bundles = certificatesinformers.NewFilteredClusterTrustBundleInformer(reader, 0, cache.Indexers{}, func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("spec.signerName", servingSigner).String()
	})
	c.loop = controller.NewLoop("ca_cert_publisher_cluster_trust_bundles", c.reconcile)
	return c, c.loop.Watch(c.bundles, func(_, _ any) { c.loop.Add(servingSigner) })
}

// Run keeps the bundle until ctx ends.
func (c *Publisher) Run(ctx context.Context) error {
	c.loop.Add(servingSigner)
	return c.loop.RunWith(ctx, c.bundles)
}

func (c *Publisher) reconcile(ctx context.Context, _ string) (err error) {
	defer func(began time.Time) { bundleSyncs.count(began, err) }(time.Now())
	api := c.client.CertificatesV1().ClusterTrustBundles()
	obj, exists, err := c.bundles.GetStore().GetByKey(c.want.Name)
	if err != nil {
		return err
	}
	if have, ok := obj.(*certificatesv1.ClusterTrustBundle); !exists {
		if _, err := api.Create(ctx, c.want, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("create cluster trust bundle %s: %w", c.want.Name, err)
		}
	} else if ok && have.Spec.TrustBundle != c.want.Spec.TrustBundle {
		have = have.DeepCopy()
		have.Spec.TrustBundle = c.want.Spec.TrustBundle
		if _, err := api.Update(ctx, have, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("restore cluster trust bundle %s: %w", c.want.Name, err)
		}
	}
	var errs []error
	for _, name := range c.bundles.GetStore().ListKeys() {
		if name == c.want.Name {
			continue
		}
		if err := api.Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("delete cluster trust bundle %s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}
