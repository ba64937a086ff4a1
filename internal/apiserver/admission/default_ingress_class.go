package admission

import (
	"context"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apiserver/pkg/admission"

	"wherry.dev/internal/api/classes"
	"wherry.dev/internal/api/validation"
	"wherry.dev/internal/apiserver/registry"
)

// defaultIngressClass gives a new ingress that names no class, not by the old annotation either, the
// default one, if there is one.
type defaultIngressClass struct{ lookup *registry.Lookup }

var _ admission.MutationInterface = (*defaultIngressClass)(nil)

func (*defaultIngressClass) Handles(op admission.Operation) bool { return op == admission.Create }

func (p *defaultIngressClass) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	ingress, ok := a.GetObject().(*networkingv1.Ingress)
	if !ok || a.GetResource().GroupResource() != ingressesResource || a.GetSubresource() != "" {
		return nil
	}
	if _, named := ingress.Annotations[validation.IngressClassAnnotation]; named || ingress.Spec.IngressClassName != nil {
		return nil
	}
	list, err := registry.List[*networkingv1.IngressClassList](ctx, p.lookup, ingressClassResource, "", everything)
	if err != nil {
		return admission.NewForbidden(a, err)
	}
	if class, ok := classes.Newest(each(list.Items), classes.IsDefaultIngress); ok {
		ingress.Spec.IngressClassName = new(class.Name)
	}
	return nil
}
