package admission

import (
	"context"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilversion "k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apiserver/pkg/admission"
	baseversion "k8s.io/component-base/version"
	ndf "k8s.io/component-helpers/nodedeclaredfeatures"

	"wherry.dev/internal/apiserver/registry"
)

// nodeDeclaredFeatureValidator refuses changes of a pod that need a feature that its node does not
// declare (KEP-5328).
type nodeDeclaredFeatureValidator struct{ lookup *registry.Lookup }

var _ admission.ValidationInterface = (*nodeDeclaredFeatureValidator)(nil)

// apiVersion is the version of the API, by which the library knows which features every node has.
var apiVersion = utilversion.MustParse(baseversion.DefaultKubeBinaryVersion)

func (*nodeDeclaredFeatureValidator) Handles(op admission.Operation) bool {
	return op == admission.Update
}

func (p *nodeDeclaredFeatureValidator) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetResource().GroupResource() != podsResource || a.GetSubresource() != "" && a.GetSubresource() != "resize" {
		return nil
	}
	pod, ok := a.GetObject().(*corev1.Pod)
	old, okOld := a.GetOldObject().(*corev1.Pod)
	if !ok || !okOld || pod.Spec.NodeName == "" || pod.Generation == old.Generation {
		return nil
	}
	needs, err := ndf.DefaultFramework.InferForPodUpdate(
		&ndf.PodInfo{Spec: &old.Spec, Status: &old.Status}, &ndf.PodInfo{Spec: &pod.Spec, Status: &pod.Status}, apiVersion)
	if err != nil {
		return forbid(a, "failed to infer pod capability requirements: %w", err)
	}
	if needs.IsEmpty() {
		return nil
	}
	node, err := registry.Get[*corev1.Node](ctx, p.lookup, nodesResource, "", pod.Spec.NodeName)
	if apierrors.IsNotFound(err) {
		return forbid(a, "node %q not found", pod.Spec.NodeName)
	}
	if err != nil {
		return forbid(a, "failed to get node %q: %w", pod.Spec.NodeName, err)
	}
	result, err := ndf.DefaultFramework.MatchNode(needs, node)
	if err != nil {
		return forbid(a, "failed to match pod requirements against node %q: %w", node.Name, err)
	}
	if !result.IsMatch {
		return forbid(a, "pod update requires features %s which are not available on node %q",
			strings.Join(result.UnsatisfiedRequirements, ", "), node.Name)
	}
	return nil
}
