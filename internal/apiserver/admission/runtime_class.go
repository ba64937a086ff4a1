package admission

import (
	"context"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/admission"

	"wherry.dev/internal/apiserver/registry"
)

// runtimeClass adds to a pod what its runtime class specifies: overhead, and where it can run.
type runtimeClass struct{ lookup *registry.Lookup }

var (
	_ admission.MutationInterface   = (*runtimeClass)(nil)
	_ admission.ValidationInterface = (*runtimeClass)(nil)
)

func (*runtimeClass) Handles(op admission.Operation) bool { return op == admission.Create }

func (p *runtimeClass) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	pod, ok := podOf(a, admission.Create)
	if !ok || pod.Spec.RuntimeClassName == nil {
		return nil
	}
	class, err := p.class(ctx, a, pod)
	if err != nil {
		return err
	}
	if class.Overhead != nil {
		if len(pod.Spec.Overhead) > 0 && !apiequality.Semantic.DeepEqual(class.Overhead.PodFixed, pod.Spec.Overhead) {
			return forbid(a, "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead")
		}
		pod.Spec.Overhead = class.Overhead.PodFixed.DeepCopy()
	}
	if class.Scheduling != nil {
		return schedule(a, pod, class.Scheduling)
	}
	return nil
}

func schedule(a admission.Attributes, pod *corev1.Pod, s *nodev1.Scheduling) error {
	selector := maps.Clone(pod.Spec.NodeSelector)
	if selector == nil && len(s.NodeSelector) > 0 {
		selector = map[string]string{}
	}
	for key, want := range s.NodeSelector {
		if have, ok := selector[key]; ok && have != want {
			return forbid(a, "conflict: runtimeClass.scheduling.nodeSelector[%s] = %s; pod.spec.nodeSelector[%s] = %s", key, want, key, have)
		}
		selector[key] = want
	}
	pod.Spec.NodeSelector = selector
	for _, t := range s.Tolerations {
		same := func(have corev1.Toleration) bool { return apiequality.Semantic.DeepEqual(have, t) }
		if !slices.ContainsFunc(pod.Spec.Tolerations, same) {
			pod.Spec.Tolerations = append(pod.Spec.Tolerations, t)
		}
	}
	return nil
}

func (p *runtimeClass) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	pod, ok := podOf(a, admission.Create)
	if !ok {
		return nil
	}
	var overhead *nodev1.Overhead
	if pod.Spec.RuntimeClassName != nil {
		class, err := p.class(ctx, a, pod)
		if err != nil {
			return err
		}
		overhead = class.Overhead
	}
	switch {
	case overhead == nil && pod.Spec.Overhead != nil:
		return forbid(a, "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead")
	case overhead != nil && !apiequality.Semantic.DeepEqual(overhead.PodFixed, pod.Spec.Overhead):
		return forbid(a, "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead")
	}
	return nil
}

func (p *runtimeClass) class(ctx context.Context, a admission.Attributes, pod *corev1.Pod) (*nodev1.RuntimeClass, error) {
	name := *pod.Spec.RuntimeClassName
	class, err := registry.Get[*nodev1.RuntimeClass](ctx, p.lookup, runtimeResource, "", name)
	if apierrors.IsNotFound(err) {
		return nil, forbid(a, "pod rejected: RuntimeClass %q not found", name)
	}
	return class, err
}
