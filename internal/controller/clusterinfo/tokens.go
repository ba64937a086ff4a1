package clusterinfo

import (
	"context"
	"errors"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	coreinformers "k8s.io/client-go/informers/core/v1"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	bootstrap "k8s.io/cluster-bootstrap/token/api"
	"k8s.io/klog/v2"

	"wherry.dev/internal/controller"
)

// token is what a secret says of a bootstrap token.
type token struct {
	id, secret string
	signs      bool
	expires    time.Time // zero: never
}

// parseToken reads a secret. An error says why it is no valid token.
func parseToken(s *v1.Secret) (t token, err error) {
	t = token{id: string(s.Data[bootstrap.BootstrapTokenIDKey]), secret: string(s.Data[bootstrap.BootstrapTokenSecretKey])}
	t.signs = string(s.Data[bootstrap.BootstrapTokenUsageSigningKey]) == "true"
	switch {
	case s.Type != bootstrap.SecretTypeBootstrapToken:
		return t, errors.New("it is not a bootstrap token")
	case t.id == "" || t.secret == "" || s.Name != bootstrap.BootstrapTokenSecretPrefix+t.id:
		return t, fmt.Errorf("its name must be %s and its %s", bootstrap.BootstrapTokenSecretPrefix, bootstrap.BootstrapTokenIDKey)
	}
	if text := string(s.Data[bootstrap.BootstrapTokenExpirationKey]); text != "" {
		if t.expires, err = time.Parse(time.RFC3339, text); err != nil {
			return t, fmt.Errorf("%s: %w", bootstrap.BootstrapTokenExpirationKey, err)
		}
	}
	return t, nil
}

// ended reports whether the token is not valid any more.
func (t token) ended(now time.Time) bool { return !t.expires.IsZero() && !now.Before(t.expires) }

// Cleaner deletes bootstrap tokens whose time is over. Create one with NewCleaner.
type Cleaner struct {
	client  clientset.Interface
	secrets cache.SharedIndexInformer
	loop    *controller.Loop
}

// NewCleaner returns the controller. It writes as client and watches as reader.
func NewCleaner(client, reader clientset.Interface) (*Cleaner, error) {
	c := &Cleaner{client: client, secrets: tokens(reader)}
	c.loop = controller.NewLoop("token_cleaner", c.reconcile)
	return c, c.loop.Watch(c.secrets, func(_, obj any) {
		if s, ok := obj.(*v1.Secret); ok {
			c.loop.Add(s.Name)
		}
	})
}

// tokens returns an informer of the secrets that are bootstrap tokens.
func tokens(reader clientset.Interface) cache.SharedIndexInformer {
	return coreinformers.NewFilteredSecretInformer(reader, metav1.NamespaceSystem, 0, cache.Indexers{}, func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("type", string(bootstrap.SecretTypeBootstrapToken)).String()
	})
}

// Run deletes tokens until ctx ends.
func (c *Cleaner) Run(ctx context.Context) error { return c.loop.RunWith(ctx, c.secrets) }

// longest is how long the controller sleeps at most: somebody may set the clock.
const longest = time.Minute

func (c *Cleaner) reconcile(ctx context.Context, name string) error {
	obj, ok, err := c.secrets.GetStore().GetByKey(metav1.NamespaceSystem + "/" + name)
	if err != nil || !ok {
		return err
	}
	s, ok := obj.(*v1.Secret)
	if !ok {
		return nil
	}
	t, err := parseToken(s)
	if err != nil || t.expires.IsZero() {
		return nil //nolint:nilerr // authentication does not take what is no token
	}
	if left := time.Until(t.expires); left > 0 {
		c.loop.AddAfter(name, min(left, longest))
		return nil
	}
	err = c.client.CoreV1().Secrets(s.Namespace).Delete(ctx, name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &s.UID}})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete expired bootstrap token %s: %w", t.id, err)
	}
	klog.FromContext(ctx).Info("Deleted a bootstrap token whose time is over", "token", t.id)
	return nil
}
