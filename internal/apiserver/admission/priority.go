package admission

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/utils/ptr"

	"wherry.dev/internal/apiserver/registry"
)

// everything selects all objects of a list.
var everything = storage.SelectionPredicate{Label: labels.Everything(), Field: fields.Everything()}

// priority resolves the priority class of a pod or a pod group to its number and its preemption policy, and allows only
// one default class in a cluster.
type priority struct {
	classes *registry.Kept[*schedulingv1.PriorityClass]
	// groupPolicies says that pod groups have preemption policies, too.
	groupPolicies bool
}

var (
	_ admission.MutationInterface   = (*priority)(nil)
	_ admission.ValidationInterface = (*priority)(nil)
)

func (*priority) Handles(op admission.Operation) bool {
	return op == admission.Create || op == admission.Update
}

func (p *priority) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetResource().GroupResource() == groupsResource && a.GetSubresource() == "" && a.GetOperation() == admission.Create {
		return p.admitGroup(ctx, a)
	}
	pod, ok := podOf(a, admission.Create, admission.Update)
	if !ok {
		return nil
	}
	if a.GetOperation() == admission.Update {
		if old, ok := a.GetOldObject().(*corev1.Pod); ok {
			keepPriority(pod, old)
		}
		return nil
	}
	class, err := p.class(ctx, a, pod.Spec.PriorityClassName)
	if err != nil {
		return err
	}
	if have := pod.Spec.Priority; have != nil && *have != class.Value {
		return forbid(a, "the integer value of priority (%d) must not be provided in pod spec; priority admission controller computed %d from the given PriorityClass name", *have, class.Value)
	}
	if have := pod.Spec.PreemptionPolicy; have != nil && class.PreemptionPolicy != nil && *have != *class.PreemptionPolicy {
		return forbid(a, "the string value of PreemptionPolicy (%s) must not be provided in pod spec; priority admission controller computed %s from the given PriorityClass name", *have, *class.PreemptionPolicy)
	}
	pod.Spec.PriorityClassName = class.Name
	pod.Spec.Priority = new(class.Value)
	if class.PreemptionPolicy != nil {
		pod.Spec.PreemptionPolicy = new(*class.PreemptionPolicy)
	}
	return nil
}

func (p *priority) admitGroup(ctx context.Context, a admission.Attributes) error {
	group, ok := a.GetObject().(*schedulingv1beta1.PodGroup)
	if !ok {
		return forbid(a, "unexpected type %T", a.GetObject())
	}
	class, err := p.class(ctx, a, group.Spec.PriorityClassName)
	if err != nil {
		return err
	}
	if have := group.Spec.Priority; have != nil && *have != class.Value {
		return forbid(a, "priority set in the pod group (%d) must match the priority computed (%d) based on the priority class set in the spec", *have, class.Value)
	}
	group.Spec.PriorityClassName, group.Spec.Priority = class.Name, new(class.Value)
	if !p.groupPolicies {
		return nil
	}
	policy := schedulingv1beta1.PreemptionPolicy(ptr.Deref(class.PreemptionPolicy, corev1.PreemptLowerPriority))
	if have := group.Spec.PreemptionPolicy; have != nil && *have != policy {
		return forbid(a, "preemption policy set in the pod group (%s) must match the preemption policy computed (%s) based on the priority class set in the spec", *have, policy)
	}
	group.Spec.PreemptionPolicy = &policy
	return nil
}

// keepPriority lets an update omit what this plugin once filled in.
func keepPriority(pod, old *corev1.Pod) {
	if pod.Spec.Priority == nil {
		pod.Spec.Priority = old.Spec.Priority
	}
	if pod.Spec.PreemptionPolicy == nil {
		pod.Spec.PreemptionPolicy = old.Spec.PreemptionPolicy
	}
}

// class returns the named class, or the default one if the name is empty.
func (p *priority) class(ctx context.Context, a admission.Attributes, name string) (*schedulingv1.PriorityClass, error) {
	if name != "" {
		class, err := p.classes.Get(ctx, "", name)
		if apierrors.IsNotFound(err) {
			return nil, forbid(a, "no PriorityClass with name %v was found", name)
		}
		if err != nil {
			return nil, fmt.Errorf("failed to resolve PriorityClass with name %s: %w", name, err)
		}
		return class, nil
	}
	class, err := p.defaultClass(ctx)
	if err != nil {
		return nil, fmt.Errorf("error occurred while retrieving default priority class: %w", err)
	}
	if class == nil {
		class = &schedulingv1.PriorityClass{PreemptionPolicy: new(corev1.PreemptLowerPriority)}
	}
	return class, nil
}

// defaultClass returns the default class, or the lowest if a race has left several.
func (p *priority) defaultClass(ctx context.Context) (*schedulingv1.PriorityClass, error) {
	all, err := p.classes.List(ctx, "")
	if err != nil {
		return nil, err
	}
	var found *schedulingv1.PriorityClass
	for _, c := range all {
		if c.GlobalDefault && (found == nil || c.Value < found.Value) {
			found = c
		}
	}
	return found, nil
}

func (p *priority) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	class, ok := a.GetObject().(*schedulingv1.PriorityClass)
	if !ok || a.GetResource().GroupResource() != priorityResource || a.GetSubresource() != "" || !class.GlobalDefault {
		return nil
	}
	other, err := p.defaultClass(ctx)
	if err != nil {
		return fmt.Errorf("failed to get default priority class: %w", err)
	}
	if other != nil && (a.GetOperation() == admission.Create || other.Name != class.Name) {
		return forbid(a, "PriorityClass %v is already marked as default. Only one default can exist", other.Name)
	}
	return nil
}
