package admission

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"

	"wherry.dev/internal/apiserver/registry"
)

// immortal lists the namespaces that cannot be deleted.
var immortal = []string{metav1.NamespaceDefault, metav1.NamespaceSystem, metav1.NamespacePublic}

// liveFor is how long after a namespace's deletion we ask storage itself about it, because the
// watch cache may not show the deletion yet.
const liveFor = 30 * time.Second

// namespaceLifecycle forbids creating anything in a namespace that does not exist or is being
// deleted, and protects the namespaces that every cluster needs.
type namespaceLifecycle struct {
	lookup     *registry.Lookup
	namespaces *registry.Kept[*corev1.Namespace]

	mu      sync.Mutex
	deleted map[string]time.Time // until when to ask storage
}

var _ admission.MutationInterface = (*namespaceLifecycle)(nil)

func newNamespaceLifecycle(lookup *registry.Lookup) *namespaceLifecycle {
	return &namespaceLifecycle{
		lookup: lookup, namespaces: registry.Keep[*corev1.Namespace](lookup, namespaceResource), deleted: map[string]time.Time{},
	}
}

func (*namespaceLifecycle) Handles(op admission.Operation) bool { return op != admission.Connect }

func (p *namespaceLifecycle) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetResource().GroupResource() == namespaceResource {
		return p.admitNamespace(a)
	}
	// Reviews create nothing. What is in a terminating namespace may still be changed and deleted.
	if a.GetNamespace() == "" || a.GetOperation() != admission.Create ||
		a.GetResource().Group == "authorization.k8s.io" {
		return nil
	}
	ns, err := p.get(ctx, a.GetNamespace())
	if apierrors.IsNotFound(err) {
		return err
	}
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	if ns.Status.Phase != corev1.NamespaceTerminating && ns.DeletionTimestamp == nil {
		return nil
	}
	err = forbid(a, "unable to create new content in namespace %s because it is being terminated", a.GetNamespace())
	if status, ok := err.(*apierrors.StatusError); ok { //nolint:errorlint // always the type that forbid has just made
		status.ErrStatus.Details.Causes = append(status.ErrStatus.Details.Causes, metav1.StatusCause{
			Type:    corev1.NamespaceTerminatingCause,
			Message: fmt.Sprintf("namespace %s is being terminated", a.GetNamespace()),
			Field:   "metadata.namespace",
		})
	}
	return err
}

func (p *namespaceLifecycle) admitNamespace(a admission.Attributes) error {
	if a.GetOperation() != admission.Delete {
		return nil
	}
	if slices.Contains(immortal, a.GetName()) {
		return apierrors.NewForbidden(a.GetResource().GroupResource(), a.GetName(), fmt.Errorf("this namespace may not be deleted"))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	for name, until := range p.deleted {
		if now.After(until) {
			delete(p.deleted, name)
		}
	}
	p.deleted[a.GetName()] = now.Add(liveFor)
	return nil
}

func (p *namespaceLifecycle) get(ctx context.Context, name string) (*corev1.Namespace, error) {
	p.mu.Lock()
	live := time.Now().Before(p.deleted[name])
	p.mu.Unlock()
	if live {
		return registry.GetLive[*corev1.Namespace](ctx, p.lookup, namespaceResource, "", name)
	}
	return p.namespaces.Get(ctx, "", name)
}
