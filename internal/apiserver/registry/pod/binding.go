package pod

import (
	"context"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	storeerr "k8s.io/apiserver/pkg/storage/errors"
	"k8s.io/apiserver/pkg/util/dryrun"
)

// Binding assigns a pod to a node: POST pods/NAME/binding.
type Binding struct{ store *genericregistry.Store }

var (
	_ rest.NamedCreater                   = (*Binding)(nil)
	_ rest.SubresourceObjectMetaPreserver = (*Binding)(nil)
)

// NewBinding returns the endpoint over the store of pods.
func NewBinding(store *genericregistry.Store) *Binding { return &Binding{store} }

// New implements rest.Storage.
func (b *Binding) New() runtime.Object { return &corev1.Binding{} }

// Destroy implements rest.Storage.
func (b *Binding) Destroy() {}

// NamespaceScoped implements rest.Scoper.
func (b *Binding) NamespaceScoped() bool { return true }

// PreserveRequestObjectMetaSystemFieldsOnSubresourceCreate keeps the UID and the
// resourceVersion of the request: they are preconditions.
func (b *Binding) PreserveRequestObjectMetaSystemFieldsOnSubresourceCreate() bool { return true }

// Create implements rest.NamedCreater.
func (b *Binding) Create(ctx context.Context, name string, obj runtime.Object, validate rest.ValidateObjectFunc, opts *metav1.CreateOptions) (runtime.Object, error) {
	binding, ok := obj.(*corev1.Binding)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("not a Binding object: %T", obj))
	}
	if binding.Name != name {
		return nil, apierrors.NewBadRequest("name in URL does not match name in Binding object")
	}
	if errs := validateBinding(binding); len(errs) > 0 {
		return nil, apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("Binding").GroupKind(), name, errs)
	}
	if validate != nil {
		if err := validate(ctx, binding.DeepCopyObject()); err != nil {
			return nil, err
		}
	}
	if err := b.assign(ctx, binding, dryrun.IsDryRun(opts.DryRun)); err != nil {
		return nil, err
	}
	return &metav1.Status{Status: metav1.StatusSuccess}, nil
}

// LegacyBinding is the same as a resource of its own: POST bindings, with the pod's name in the
// object.
type LegacyBinding struct{ *Binding }

var (
	_ rest.Creater              = LegacyBinding{}
	_ rest.SingularNameProvider = LegacyBinding{}
)

// GetSingularName implements rest.SingularNameProvider.
func (LegacyBinding) GetSingularName() string { return "binding" }

// Create implements rest.Creater.
func (b LegacyBinding) Create(ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc, opts *metav1.CreateOptions) (runtime.Object, error) {
	binding, ok := obj.(*corev1.Binding)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("not a Binding object: %T", obj))
	}
	return b.Binding.Create(ctx, binding.Name, binding, validate, opts)
}

func validateBinding(b *corev1.Binding) field.ErrorList {
	var errs field.ErrorList
	target := field.NewPath("target")
	if b.Target.Kind != "" && b.Target.Kind != "Node" {
		errs = append(errs, field.NotSupported(target.Child("kind"), b.Target.Kind, []string{"Node", "<empty>"}))
	}
	if b.Target.Name == "" {
		errs = append(errs, field.Required(target.Child("name"), ""))
	}
	return errs
}

func (b *Binding) assign(ctx context.Context, binding *corev1.Binding, dryRun bool) error {
	key, err := b.store.KeyFunc(ctx, binding.Name)
	if err != nil {
		return err
	}
	resource := b.store.DefaultQualifiedResource
	bound := &corev1.Pod{}
	err = b.store.Storage.GuaranteedUpdate(ctx, key, bound, false, preconditions(binding),
		storage.SimpleUpdate(func(obj runtime.Object) (runtime.Object, error) {
			p, ok := obj.(*corev1.Pod)
			if !ok {
				return nil, fmt.Errorf("unexpected object %T", obj)
			}
			return p, bind(p, binding)
		}), dryRun, nil)
	if err == nil {
		record(ctx, bound, "apiserver: bind pod")
		return nil
	}
	err = storeerr.InterpretGetError(err, resource, binding.Name)
	err = storeerr.InterpretUpdateError(err, resource, binding.Name)
	if _, ok := err.(apierrors.APIStatus); !ok {
		resource.Resource += "/binding"
		err = apierrors.NewConflict(resource, binding.Name, err)
	}
	return err
}

func preconditions(b *corev1.Binding) *storage.Preconditions {
	p := &storage.Preconditions{}
	if b.UID != "" {
		p.UID = &b.UID
	}
	if b.ResourceVersion != "" {
		p.ResourceVersion = &b.ResourceVersion
	}
	if p.UID == nil && p.ResourceVersion == nil {
		return nil
	}
	return p
}

// bind assigns p to a node. It returns an error if p is deleted, gated or already assigned.
func bind(p *corev1.Pod, b *corev1.Binding) error {
	switch {
	case p.DeletionTimestamp != nil:
		return fmt.Errorf("pod %s is being deleted, cannot be assigned to a host", p.Name)
	case p.Spec.NodeName != "":
		return fmt.Errorf("pod %v is already assigned to node %q", p.Name, p.Spec.NodeName)
	case len(p.Spec.SchedulingGates) != 0:
		return fmt.Errorf("pod %v has non-empty .spec.schedulingGates", p.Name)
	}
	p.Spec.NodeName = b.Target.Name
	p.Status.NominatedNodeName = ""
	if len(b.Annotations) > 0 && p.Annotations == nil {
		p.Annotations = map[string]string{}
	}
	maps.Copy(p.Annotations, b.Annotations)
	if len(b.Labels) > 0 && p.Labels == nil {
		p.Labels = map[string]string{}
	}
	maps.Copy(p.Labels, b.Labels)
	setCondition(&p.Status, corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionTrue})
	return nil
}

// setCondition replaces the condition of the same type. Its time of transition changes only with
// the status.
func setCondition(status *corev1.PodStatus, c corev1.PodCondition) {
	c.LastTransitionTime = metav1.Now()
	for i := range status.Conditions {
		old := &status.Conditions[i]
		if old.Type != c.Type {
			continue
		}
		if old.Status == c.Status {
			c.LastTransitionTime = old.LastTransitionTime
		}
		*old = c
		return
	}
	status.Conditions = append(status.Conditions, c)
}
