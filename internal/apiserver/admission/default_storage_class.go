package admission

import (
	"context"
	"iter"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apiserver/pkg/admission"

	"wherry.dev/internal/api/classes"
	"wherry.dev/internal/apiserver/registry"
)

// defaultStorageClass gives a new claim that names no class the default one, if there is one. ""
// counts as a name: it asks for a volume without a class.
type defaultStorageClass struct{ lookup *registry.Lookup }

var _ admission.MutationInterface = (*defaultStorageClass)(nil)

func (*defaultStorageClass) Handles(op admission.Operation) bool { return op == admission.Create }

func (p *defaultStorageClass) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	claim, ok := a.GetObject().(*corev1.PersistentVolumeClaim)
	if !ok || a.GetResource().GroupResource() != claimsResource || a.GetSubresource() != "" {
		return nil
	}
	if _, named := claim.Annotations[corev1.BetaStorageClassAnnotation]; named || claim.Spec.StorageClassName != nil {
		return nil
	}
	list, err := registry.List[*storagev1.StorageClassList](ctx, p.lookup, classesResource, "", everything)
	if err != nil {
		return admission.NewForbidden(a, err)
	}
	if class, ok := classes.Newest(each(list.Items), classes.IsDefaultStorage); ok {
		claim.Spec.StorageClassName = new(class.Name)
	}
	return nil
}

// each returns pointers to the items.
func each[T any](items []T) iter.Seq[*T] {
	return func(yield func(*T) bool) {
		for i := range items {
			if !yield(&items[i]) {
				return
			}
		}
	}
}
