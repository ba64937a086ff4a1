// Package rootca puts the certificate authority of the API server into every
// namespace, as the config map kube-root-ca.crt that pods mount beside their token; and into a ClusterTrustBundle.
package rootca

import (
	"context"
	"fmt"
	"maps"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/informers"
	coreinformers "k8s.io/client-go/informers/core/v1"
	clientset "k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"wherry.dev/internal/controller"
)

const (
	name        = "kube-root-ca.crt"
	description = "kubernetes.io/description"
	text        = "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints such as the internal service IP or kubernetes.default.svc. No other usage is guaranteed across distributions of Kubernetes clusters."
)

// Controller maintains the config map in every namespace.
type Controller struct {
	client     clientset.Interface
	ca         string
	namespaces corelisters.NamespaceLister
	maps       cache.SharedIndexInformer
	loop       *controller.Loop
}

// New returns the controller. ca is a certificate bundle in PEM. The controller writes as client,
// and watches as reader, to which the informers of f belong too.
func New(client, reader clientset.Interface, f informers.SharedInformerFactory, ca []byte) (*Controller, error) {
	namespaces := f.Core().V1().Namespaces()
	c := &Controller{client: client, ca: string(ca), namespaces: namespaces.Lister()}
	// Watch only maps with this name: the others of the cluster are not needed.
	c.maps = coreinformers.NewFilteredConfigMapInformer(reader, metav1.NamespaceAll, 0, cache.Indexers{}, func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("metadata.name", name).String()
	})
	c.loop = controller.NewLoop("root_ca_cert_publisher", c.reconcile)
	if err := c.loop.Watch(namespaces.Informer(), func(_, obj any) {
		if ns, ok := obj.(*v1.Namespace); ok {
			c.loop.Add(ns.Name)
		}
	}); err != nil {
		return nil, err
	}
	return c, c.loop.Watch(c.maps, func(old, obj any) {
		for _, o := range []any{old, obj} {
			if cm, ok := o.(*v1.ConfigMap); ok {
				c.loop.Add(cm.Namespace)
				return
			}
		}
	})
}

// Run maintains the config maps until ctx ends.
func (c *Controller) Run(ctx context.Context) error { return c.loop.RunWith(ctx, c.maps) }

func (c *Controller) reconcile(ctx context.Context, namespace string) (err error) {
	defer func(began time.Time) { mapSyncs.count(began, err) }(time.Now())
	ns, err := c.namespaces.Get(namespace)
	if apierrors.IsNotFound(err) || err == nil && ns.DeletionTimestamp != nil {
		return nil
	}
	if err != nil {
		return err
	}
	obj, exists, err := c.maps.GetStore().GetByKey(namespace + "/" + name)
	if err != nil {
		return err
	}
	if !exists {
		return c.create(ctx, namespace)
	}
	cm, ok := obj.(*v1.ConfigMap)
	if !ok || maps.Equal(cm.Data, c.data()) && cm.Annotations[description] != "" {
		return nil
	}
	cm = cm.DeepCopy()
	cm.Data = c.data()
	metav1.SetMetaDataAnnotation(&cm.ObjectMeta, description, text)
	if _, err := c.client.CoreV1().ConfigMaps(namespace).Update(ctx, cm, metav1.UpdateOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("restore config map %s/%s: %w", namespace, name, err)
	}
	return nil
}

func (c *Controller) data() map[string]string { return map[string]string{"ca.crt": c.ca} }

func (c *Controller) create(ctx context.Context, namespace string) error {
	cm := &v1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Annotations: map[string]string{description: text}},
		Data:       c.data(),
	}
	_, err := c.client.CoreV1().ConfigMaps(namespace).Create(ctx, cm, metav1.CreateOptions{})
	if err == nil || apierrors.IsAlreadyExists(err) || apierrors.HasStatusCause(err, v1.NamespaceTerminatingCause) {
		return nil
	}
	return fmt.Errorf("create config map %s/%s: %w", namespace, name, err)
}
