package admission

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/client-go/kubernetes"

	"wherry.dev/internal/apiserver/registry"
)

// namespaceAutoProvision creates the namespace that something is created in, if it does not exist.
type namespaceAutoProvision struct {
	lookup *registry.Lookup
	client func() (kubernetes.Interface, error)
}

var _ admission.MutationInterface = (*namespaceAutoProvision)(nil)

func (*namespaceAutoProvision) Handles(op admission.Operation) bool { return op == admission.Create }

func (p *namespaceAutoProvision) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.IsDryRun() || a.GetNamespace() == "" || a.GetResource().GroupResource() == namespaceResource {
		return nil
	}
	_, err := registry.Get[*corev1.Namespace](ctx, p.lookup, namespaceResource, "", a.GetNamespace())
	if !apierrors.IsNotFound(err) {
		return asRefusal(a, err)
	}
	client, err := p.client()
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: a.GetNamespace()}}
	_, err = client.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return asRefusal(a, err)
}

func asRefusal(a admission.Attributes, err error) error {
	if err == nil {
		return nil
	}
	return forbid(a, "%w", err)
}
