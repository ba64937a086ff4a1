// Package legacytokencleaner removes tokens in secrets that a controller of old made for service accounts
// and that nobody has used for a year (KEP-2799). A secret is first marked as invalid, and its token is
// refused; after another year it is deleted. Secrets that somebody made, and that pods use, stay.
package legacytokencleaner

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	clientset "k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/controller"
	"wherry.dev/internal/controller/serviceaccounttoken"
)

const (
	// unused is after how long a token that nobody uses goes, and interval how often that is looked at:
	// upstream's --legacy-service-account-token-clean-up-period, and a day, which is what dates are kept in.
	unused   = 365 * 24 * time.Hour
	interval = 24 * time.Hour

	lastUsed     = "kubernetes.io/legacy-token-last-used"
	invalidSince = "kubernetes.io/legacy-token-invalid-since"
	tracking     = "kube-apiserver-legacy-service-account-token-tracking"
)

// Controller removes tokens. Create one with New.
type Controller struct {
	client   clientset.Interface
	accounts corelisters.ServiceAccountLister
	pods     corelisters.PodLister
	secrets  cache.SharedIndexInformer
	loop     *controller.Loop
	clock    controller.Clock
}

// New returns the controller, with the informers of f. It writes as client, and watches as reader.
func New(client, reader clientset.Interface, f informers.SharedInformerFactory, clock controller.Clock) (*Controller, error) {
	core := f.Core().V1()
	c := &Controller{
		client: client, accounts: core.ServiceAccounts().Lister(), pods: core.Pods().Lister(),
		secrets: serviceaccounttoken.Informer(reader), clock: clock,
	}
	c.loop = controller.NewLoop("legacytokencleaner", c.reconcile)
	// Accounts and pods only have to be known: none of their events makes a token old.
	for _, known := range []cache.SharedIndexInformer{core.ServiceAccounts().Informer(), core.Pods().Informer()} {
		if err := c.loop.Watch(known, func(_, _ any) {}); err != nil {
			return nil, err
		}
	}
	return c, c.loop.Watch(c.secrets, func(_, obj any) {
		if s, ok := obj.(*v1.Secret); ok {
			c.loop.AddObject(nil, s)
		}
	})
}

// Run removes tokens until ctx ends.
func (c *Controller) Run(ctx context.Context) error {
	parts := []func() error{
		func() error { return c.loop.RunByClock(ctx, c.clock, c.secrets.GetStore().ListKeys) },
		func() error { c.secrets.RunWithContext(ctx); return nil },
	}
	return controller.Together(len(parts), func(i int) error { return parts[i]() })
}

func (c *Controller) reconcile(ctx context.Context, key string) error {
	item, exists, err := c.secrets.GetStore().GetByKey(key)
	if err != nil || !exists {
		return err
	}
	secret, ok := item.(*v1.Secret)
	if !ok {
		return nil
	}
	step, err := c.decide(ctx, secret, time.Now().UTC())
	if err != nil {
		return fmt.Errorf("secret %s: %w", key, err)
	}
	switch step {
	case mark:
		err = c.mark(ctx, secret)
	case remove:
		err = c.remove(ctx, secret)
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("secret %s: %w", key, err)
	}
	c.loop.AddAfter(key, interval)
	return nil
}

// step is what is done with a secret.
type step int

const (
	keep step = iota
	mark
	remove
)

// decide looks at the rest of the world only if the secret itself is old enough.
func (c *Controller) decide(ctx context.Context, s *v1.Secret, now time.Time) (step, error) {
	next := next(s, now)
	if next == keep {
		return keep, nil
	}
	account, err := c.accounts.ServiceAccounts(s.Namespace).Get(s.Annotations[v1.ServiceAccountNameKey])
	if apierrors.IsNotFound(err) {
		return keep, nil
	}
	if err != nil {
		return keep, err
	}
	if !generated(s, account) {
		return keep, nil
	}
	all, err := c.pods.Pods(s.Namespace).List(labels.Everything())
	if err != nil || slices.ContainsFunc(all, func(p *v1.Pod) bool { return uses(p, s.Name) }) {
		return keep, err
	}
	cm, err := c.client.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, tracking, metav1.GetOptions{})
	if err != nil {
		return keep, fmt.Errorf("config map %s: %w", tracking, err)
	}
	since, err := time.Parse(time.DateOnly, cm.Data["since"])
	if err != nil {
		return keep, fmt.Errorf("config map %s: %w", tracking, err)
	}
	if now.Before(since.AddDate(0, 0, 1).Add(unused)) {
		return keep, nil // uses before that are not known
	}
	return next, nil
}

// next returns what is to be done with a secret, if an account of old has it and no pod uses it.
func next(s *v1.Secret, now time.Time) step {
	limit := now.Add(-unused)
	day := limit.Format(time.DateOnly)
	if s.DeletionTimestamp != nil || !s.CreationTimestamp.Time.Before(limit) {
		return keep
	}
	if used, ok := s.Labels[lastUsed]; ok && (!isDate(used) || used >= day) {
		return keep
	}
	switch since := s.Labels[invalidSince]; {
	case !isDate(since):
		return mark
	case since >= day:
		return keep
	}
	return remove
}

func isDate(s string) bool {
	_, err := time.Parse(time.DateOnly, s)
	return err == nil
}

// generated reports whether a controller of old made the secret for the account: it names it.
func generated(s *v1.Secret, a *v1.ServiceAccount) bool {
	if uid := s.Annotations[v1.ServiceAccountUIDKey]; uid != "" && uid != string(a.UID) {
		return false
	}
	return slices.ContainsFunc(a.Secrets, func(r v1.ObjectReference) bool { return r.Name == s.Name })
}

// uses reports whether a pod refers to the secret of that name.
func uses(p *v1.Pod, secret string) (found bool) {
	pods.References(p, func(r pods.Reference, name string) {
		found = found || r == pods.ReferenceSecret && name == secret
	})
	return found
}

// mark makes the API server refuse the token.
func (c *Controller) mark(ctx context.Context, s *v1.Secret) error {
	today := time.Now().UTC().Format(time.DateOnly)
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": s.UID, "resourceVersion": s.ResourceVersion, "labels": map[string]string{invalidSince: today},
	}})
	if err != nil {
		return err
	}
	klog.FromContext(ctx).Info("Mark the auto-generated service account token as invalid", "invalidSince", today, "secret", klog.KObj(s))
	_, err = c.client.CoreV1().Secrets(s.Namespace).Patch(ctx, s.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// remove deletes the secret, unless somebody has used it in the meantime.
func (c *Controller) remove(ctx context.Context, s *v1.Secret) error {
	klog.FromContext(ctx).Info("Delete auto-generated service account token", "secret", klog.KObj(s), "creationTime", s.CreationTimestamp,
		"lastUsed", s.Labels[lastUsed], "invalidSince", s.Labels[invalidSince])
	return c.client.CoreV1().Secrets(s.Namespace).Delete(ctx, s.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &s.UID, ResourceVersion: &s.ResourceVersion},
	})
}
