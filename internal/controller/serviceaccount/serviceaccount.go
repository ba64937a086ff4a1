// Package serviceaccount gives every namespace its service account "default", without which no pod
// is admitted there.
package serviceaccount

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	clientset "k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"

	"wherry.dev/internal/controller"
)

const name = "default"

// Controller creates the account wherever it is missing.
type Controller struct {
	client     clientset.Interface
	namespaces corelisters.NamespaceLister
	accounts   corelisters.ServiceAccountLister
	loop       *controller.Loop
}

// New returns the controller, with the informers of f.
func New(client clientset.Interface, f informers.SharedInformerFactory) (*Controller, error) {
	namespaces, accounts := f.Core().V1().Namespaces(), f.Core().V1().ServiceAccounts()
	c := &Controller{client: client, namespaces: namespaces.Lister(), accounts: accounts.Lister()}
	c.loop = controller.NewLoop("serviceaccount", c.reconcile)
	if err := c.loop.Watch(namespaces.Informer(), func(_, obj any) {
		if ns, ok := obj.(*v1.Namespace); ok {
			c.loop.Add(ns.Name)
		}
	}); err != nil {
		return nil, err
	}
	return c, c.loop.Watch(accounts.Informer(), func(old, obj any) {
		if sa, ok := old.(*v1.ServiceAccount); ok && obj == nil && sa.Name == name {
			c.loop.Add(sa.Namespace)
		}
	})
}

// Run creates accounts until ctx ends.
func (c *Controller) Run(ctx context.Context) error { return c.loop.Run(ctx) }

func (c *Controller) reconcile(ctx context.Context, namespace string) error {
	ns, err := c.namespaces.Get(namespace)
	if apierrors.IsNotFound(err) || err == nil && ns.DeletionTimestamp != nil {
		return nil
	}
	if err != nil {
		return err
	}
	if _, err := c.accounts.ServiceAccounts(namespace).Get(name); err == nil {
		return nil
	}
	sa := &v1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	_, err = c.client.CoreV1().ServiceAccounts(namespace).Create(ctx, sa, metav1.CreateOptions{})
	if err == nil || apierrors.IsAlreadyExists(err) || apierrors.HasStatusCause(err, v1.NamespaceTerminatingCause) {
		return nil
	}
	return fmt.Errorf("create service account %s/%s: %w", namespace, name, err)
}
