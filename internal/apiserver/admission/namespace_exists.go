package admission

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/admission"

	"wherry.dev/internal/apiserver/registry"
)

// namespaceExists refuses requests in a namespace that does not exist. NamespaceLifecycle does so for
// what is created; this one also for what is changed and deleted.
type namespaceExists struct{ lookup *registry.Lookup }

var _ admission.ValidationInterface = (*namespaceExists)(nil)

func (*namespaceExists) Handles(op admission.Operation) bool { return op != admission.Connect }

func (p *namespaceExists) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetNamespace() == "" || a.GetResource().GroupResource() == namespaceResource {
		return nil
	}
	_, err := registry.Get[*corev1.Namespace](ctx, p.lookup, namespaceResource, "", a.GetNamespace())
	if err != nil && !apierrors.IsNotFound(err) {
		return apierrors.NewInternalError(err)
	}
	return err
}
