// Package serviceaccounttoken fills secrets of type kubernetes.io/service-account-token with a token of
// their service account, and deletes them with it. The token is valid while the secret has it.
package serviceaccounttoken

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	coreinformers "k8s.io/client-go/informers/core/v1"
	clientset "k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"wherry.dev/internal/controller"
)

// Signer issues tokens.
type Signer interface {
	IssueLegacy(account *v1.ServiceAccount, secret *v1.Secret) (string, error)
}

// Controller fills secrets. Create one with New.
type Controller struct {
	client   clientset.Interface
	signer   Signer
	ca       []byte
	accounts corelisters.ServiceAccountLister
	secrets  cache.SharedIndexInformer
	loop     *controller.Loop
}

// byAccount is the name of an index of secrets.
const byAccount = "account"

// Informer returns an informer of the secrets that hold tokens, and of no others.
func Informer(client clientset.Interface) cache.SharedIndexInformer {
	return coreinformers.NewFilteredSecretInformer(client, metav1.NamespaceAll, 0, cache.Indexers{}, func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("type", string(v1.SecretTypeServiceAccountToken)).String()
	})
}

// New returns the controller, with the informers of f. ca is the certificate authority of the API
// server, in PEM, or nil.
func New(client clientset.Interface, f informers.SharedInformerFactory, signer Signer, ca []byte) (*Controller, error) {
	accounts := f.Core().V1().ServiceAccounts()
	c := &Controller{client: client, signer: signer, ca: ca, accounts: accounts.Lister(), secrets: Informer(client)}
	c.loop = controller.NewLoop("serviceaccount_tokens_service", c.reconcile)
	err := c.secrets.AddIndexers(cache.Indexers{byAccount: func(item any) ([]string, error) {
		if s, ok := item.(*v1.Secret); ok {
			return []string{s.Namespace + "/" + s.Annotations[v1.ServiceAccountNameKey]}, nil
		}
		return nil, fmt.Errorf("unexpected %T", item)
	}})
	if err != nil {
		return nil, err
	}
	if err := c.secrets.SetTransform(controller.DropManagedFields); err != nil {
		return nil, err
	}
	if err := c.loop.Watch(c.secrets, c.secretChanged); err != nil {
		return nil, err
	}
	return c, c.loop.Watch(accounts.Informer(), c.accountChanged)
}

// Run fills secrets until ctx ends.
func (c *Controller) Run(ctx context.Context) error {
	parts := []func() error{
		func() error { return c.loop.Run(ctx) },
		func() error { c.secrets.RunWithContext(ctx); return nil },
	}
	return controller.Together(len(parts), func(i int) error { return parts[i]() })
}

// pair is a secret and the account that it names or named.
type pair struct{ namespace, secret, account string }

func (p pair) key() string { return p.namespace + "/" + p.secret + "/" + p.account }

func (c *Controller) secretChanged(old, obj any) {
	var keys []string
	for _, o := range []any{old, obj} {
		if s, ok := o.(*v1.Secret); ok {
			keys = append(keys, pair{s.Namespace, s.Name, s.Annotations[v1.ServiceAccountNameKey]}.key())
		}
	}
	for _, key := range slices.Compact(keys) {
		c.loop.Add(key)
	}
}

// accountChanged wakes the secrets of an account that came, went or is another one.
func (c *Controller) accountChanged(old, obj any) {
	was, _ := old.(*v1.ServiceAccount)
	is, _ := obj.(*v1.ServiceAccount)
	if was != nil && is != nil && was.UID == is.UID {
		return
	}
	a := is
	if a == nil {
		a = was
	}
	items, err := c.secrets.GetIndexer().ByIndex(byAccount, a.Namespace+"/"+a.Name)
	if err != nil {
		return // an index in memory does not fail
	}
	for _, item := range items {
		if s, ok := item.(*v1.Secret); ok {
			c.loop.Add(pair{s.Namespace, s.Name, a.Name}.key())
		}
	}
}

func (c *Controller) reconcile(ctx context.Context, key string) error {
	words := strings.Split(key, "/")
	if len(words) != 3 || words[2] == "" {
		return nil // validation does not admit a secret that names no account
	}
	p := pair{words[0], words[1], words[2]}
	item, exists, err := c.secrets.GetStore().GetByKey(p.namespace + "/" + p.secret)
	if err != nil {
		return err
	}
	secret, ok := item.(*v1.Secret)
	if !exists || !ok || secret.Annotations[v1.ServiceAccountNameKey] != p.account {
		return c.dropReference(ctx, p)
	}
	if secret.DeletionTimestamp != nil {
		return nil
	}
	account, err := c.accountOf(ctx, secret)
	if err != nil {
		return fmt.Errorf("service account %s/%s: %w", p.namespace, p.account, err)
	}
	if account == nil {
		return c.remove(ctx, secret)
	}
	return c.fill(ctx, account, secret)
}

// accountOf returns the account that a secret is for, or nil if it is gone.
func (c *Controller) accountOf(ctx context.Context, s *v1.Secret) (*v1.ServiceAccount, error) {
	name := s.Annotations[v1.ServiceAccountNameKey]
	if a, err := c.accounts.ServiceAccounts(s.Namespace).Get(name); err == nil && isFor(s, a.UID) {
		return a, nil
	}
	// The informer may be behind, and a secret that is gone is gone for good.
	a, err := c.client.CoreV1().ServiceAccounts(s.Namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && !isFor(s, a.UID) {
		return nil, nil
	}
	return a, err
}

// isFor reports whether a secret is for the account with the UID, or for any of that name.
func isFor(s *v1.Secret, uid types.UID) bool {
	has := s.Annotations[v1.ServiceAccountUIDKey]
	return has == "" || has == string(uid)
}

// remove deletes a secret, unless it is another one, or says something else, by now.
func (c *Controller) remove(ctx context.Context, s *v1.Secret) error {
	err := c.client.CoreV1().Secrets(s.Namespace).Delete(ctx, s.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &s.UID, ResourceVersion: &s.ResourceVersion},
	})
	if err == nil || apierrors.IsNotFound(err) {
		return nil
	}
	return fmt.Errorf("delete secret %s/%s: %w", s.Namespace, s.Name, err)
}

// needs reports what a secret lacks.
func needs(s *v1.Secret, ca []byte) (token, rest bool) {
	needsCA := len(ca) > 0 && !bytes.Equal(s.Data[v1.ServiceAccountRootCAKey], ca)
	return len(s.Data[v1.ServiceAccountTokenKey]) == 0, needsCA || len(s.Data[v1.ServiceAccountNamespaceKey]) == 0
}

func (c *Controller) fill(ctx context.Context, a *v1.ServiceAccount, s *v1.Secret) error {
	token, rest := needs(s, c.ca)
	if !token && !rest {
		return nil
	}
	s = s.DeepCopy()
	if s.Data == nil {
		s.Data = map[string][]byte{}
	}
	if len(c.ca) > 0 {
		s.Data[v1.ServiceAccountRootCAKey] = c.ca
	}
	if len(s.Data[v1.ServiceAccountNamespaceKey]) == 0 {
		s.Data[v1.ServiceAccountNamespaceKey] = []byte(s.Namespace)
	}
	if token {
		signed, err := c.signer.IssueLegacy(a, s)
		if err != nil {
			return err
		}
		s.Data[v1.ServiceAccountTokenKey] = []byte(signed)
	}
	metav1.SetMetaDataAnnotation(&s.ObjectMeta, v1.ServiceAccountUIDKey, string(a.UID))
	_, err := c.client.CoreV1().Secrets(s.Namespace).Update(ctx, s, metav1.UpdateOptions{})
	if err == nil || apierrors.IsNotFound(err) {
		return nil
	}
	return fmt.Errorf("token of secret %s/%s: %w", s.Namespace, s.Name, err)
}

// dropReference removes a secret that is gone from those that its account names.
func (c *Controller) dropReference(ctx context.Context, p pair) error {
	is := func(r v1.ObjectReference) bool { return r.Name == p.secret }
	if known, err := c.accounts.ServiceAccounts(p.namespace).Get(p.account); err != nil || !slices.ContainsFunc(known.Secrets, is) {
		return nil //nolint:nilerr // there is nothing to remove
	}
	a, err := c.client.CoreV1().ServiceAccounts(p.namespace).Get(ctx, p.account, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && !slices.ContainsFunc(a.Secrets, is) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("service account %s/%s: %w", p.namespace, p.account, err)
	}
	a.Secrets = slices.DeleteFunc(a.Secrets, is)
	_, err = c.client.CoreV1().ServiceAccounts(p.namespace).Update(ctx, a, metav1.UpdateOptions{})
	if err == nil || apierrors.IsNotFound(err) {
		return nil
	}
	return fmt.Errorf("references of service account %s/%s: %w", p.namespace, p.account, err)
}
