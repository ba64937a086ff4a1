package admission

import (
	"context"
	"fmt"
	"io"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/admission"

	"wherry.dev/internal/apiserver/registry"
)

const (
	// nodeSelectorAnnotation is a namespace's node selector.
	nodeSelectorAnnotation = "scheduler.alpha.kubernetes.io/node-selector"
	// clusterDefaultNodeSelector is the entry of the configuration for namespaces without one. All others
	// are the labels that pods of a namespace may select by.
	clusterDefaultNodeSelector = "clusterDefaultNodeSelector"
)

// podNodeSelector gives pods the node selector of their namespace.
type podNodeSelector struct {
	lookup    *registry.Lookup
	selectors map[string]labels.Set // by namespace
}

var (
	_ admission.MutationInterface   = (*podNodeSelector)(nil)
	_ admission.ValidationInterface = (*podNodeSelector)(nil)
)

func newPodNodeSelector(lookup *registry.Lookup, config io.Reader) (admission.Interface, error) {
	p := &podNodeSelector{lookup, map[string]labels.Set{}}
	if config == nil {
		return p, nil
	}
	var c struct {
		Selectors map[string]string `json:"podNodeSelectorPluginConfig"`
	}
	if err := readStrict("PodNodeSelector", config, &c); err != nil {
		return nil, err
	}
	for namespace, selector := range c.Selectors {
		set, err := labels.ConvertSelectorToLabelsMap(selector)
		if err != nil {
			return nil, fmt.Errorf("configuration of admission plugin PodNodeSelector: podNodeSelectorPluginConfig[%s]: %w", namespace, err)
		}
		p.selectors[namespace] = set
	}
	return p, nil
}

func (*podNodeSelector) Handles(op admission.Operation) bool { return op == admission.Create }

func (p *podNodeSelector) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	pod, ok := podOf(a, admission.Create)
	if !ok {
		return nil
	}
	selector, err := p.selectorFor(ctx, a, pod)
	if err != nil {
		return err
	}
	pod.Spec.NodeSelector = labels.Merge(selector, pod.Spec.NodeSelector)
	return p.Validate(ctx, a, o)
}

func (p *podNodeSelector) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	pod, ok := podOf(a, admission.Create)
	if !ok {
		return nil
	}
	if _, err := p.selectorFor(ctx, a, pod); err != nil {
		return err
	}
	allowed := p.selectors[a.GetNamespace()]
	if len(allowed) == 0 {
		return nil
	}
	for key, value := range pod.Spec.NodeSelector {
		if have, ok := allowed[key]; !ok || have != value {
			return forbid(a, "pod node label selector labels conflict with its namespace whitelist")
		}
	}
	return nil
}

// selectorFor returns the selector of a pod's namespace. It returns an error if the pod's differs.
func (p *podNodeSelector) selectorFor(ctx context.Context, a admission.Attributes, pod *corev1.Pod) (labels.Set, error) {
	ns, err := namespaceOf(ctx, p.lookup, a)
	if err != nil {
		return nil, err
	}
	selector := p.selectors[clusterDefaultNodeSelector]
	if own, ok := ns.Annotations[nodeSelectorAnnotation]; ok {
		if selector, err = labels.ConvertSelectorToLabelsMap(own); err != nil {
			return nil, forbid(a, "annotation %s of namespace %s: %w", nodeSelectorAnnotation, ns.Name, err)
		}
	}
	if labels.Conflicts(selector, pod.Spec.NodeSelector) {
		return nil, forbid(a, "pod node label selector conflicts with its namespace node label selector")
	}
	return selector, nil
}

// namespaceOf returns the namespace of a request.
func namespaceOf(ctx context.Context, lookup *registry.Lookup, a admission.Attributes) (*corev1.Namespace, error) {
	ns, err := registry.Get[*corev1.Namespace](ctx, lookup, namespaceResource, "", a.GetNamespace())
	if err != nil && !apierrors.IsNotFound(err) && later(err) == nil {
		return nil, apierrors.NewInternalError(err)
	}
	return ns, err
}
