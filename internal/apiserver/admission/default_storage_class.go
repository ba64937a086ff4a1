package admission

import (
	"cmp"
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apiserver/pkg/admission"

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
	if class := newestDefault(list.Items, registry.IsDefaultClass); class != nil {
		claim.Spec.StorageClassName = new(class.Name)
	}
	return nil
}

// newestDefault returns the default class that was created last, or nil. Among classes created in
// the same second, the first by name wins.
func newestDefault[T any, PT interface {
	*T
	registry.Object
}](classes []T, isDefault func(PT) bool) PT {
	var found PT
	for i := range classes {
		c := PT(&classes[i])
		if !isDefault(c) {
			continue
		}
		if found == nil || cmp.Or(created(c).Compare(created(found)), cmp.Compare(found.GetName(), c.GetName())) > 0 {
			found = c
		}
	}
	return found
}

func created(o registry.Object) time.Time { return o.GetCreationTimestamp().Time }
