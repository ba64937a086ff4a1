package admission

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"

	"wherry.dev/internal/apiserver/registry"
)

// topologyLabels are the labels of a node that its pods get (KEP-4742).
var topologyLabels = []string{corev1.LabelTopologyZone, corev1.LabelTopologyRegion}

// podTopologyLabels tells pods by labels of theirs in which zone and region they run. What a binding
// has goes to its pod.
type podTopologyLabels struct{ lookup *registry.Lookup }

var _ admission.MutationInterface = (*podTopologyLabels)(nil)

func (*podTopologyLabels) Handles(op admission.Operation) bool { return op == admission.Create }

func (p *podTopologyLabels) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetResource().GroupResource() != podsResource {
		return nil
	}
	switch obj := a.GetObject().(type) {
	case *corev1.Pod:
		if a.GetSubresource() == "" && obj.Spec.NodeName != "" {
			return p.label(ctx, &obj.ObjectMeta, obj.Spec.NodeName)
		}
	case *corev1.Binding:
		// Some clients name no kind, and mean a node. Upstream skips these.
		if a.GetSubresource() == "binding" && obj.Target.Kind == "Node" {
			return p.label(ctx, &obj.ObjectMeta, obj.Target.Name)
		}
	}
	return nil
}

// label copies the labels of a node over those of obj. A node that is gone has none.
func (p *podTopologyLabels) label(ctx context.Context, obj *metav1.ObjectMeta, name string) error {
	node, err := registry.Get[*corev1.Node](ctx, p.lookup, nodesResource, "", name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, key := range topologyLabels {
		if value, ok := node.Labels[key]; ok {
			metav1.SetMetaDataLabel(obj, key, value)
		}
	}
	return nil
}
