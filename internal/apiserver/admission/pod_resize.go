package admission

import (
	"context"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	resourcehelper "k8s.io/component-helpers/resource"

	"wherry.dev/internal/apiserver/registry"
)

// podResize refuses a resize that the pod's node can never grant: it would be Infeasible there.
// Whether there is room for it now is for the kubelet to decide (KEP-1287).
type podResize struct{ lookup *registry.Lookup }

var _ admission.ValidationInterface = (*podResize)(nil)

// Causes of a refusal, by which clients distinguish them.
const (
	causeNodeCapacity metav1.CauseType = "NodeCapacity"
	causePlatform     metav1.CauseType = "UnsupportedPlatform"
)

func (*podResize) Handles(op admission.Operation) bool { return op == admission.Update }

func (p *podResize) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetResource().GroupResource() != podsResource || a.GetSubresource() != "resize" {
		return nil
	}
	pod, ok := a.GetObject().(*corev1.Pod)
	old, okOld := a.GetOldObject().(*corev1.Pod)
	if !ok || !okOld || pod.Spec.NodeName == "" || pod.Generation == old.Generation {
		return nil
	}
	node, err := registry.Get[*corev1.Node](ctx, p.lookup, nodesResource, "", pod.Spec.NodeName)
	if apierrors.IsNotFound(err) {
		return forbid(a, "node %q not found", pod.Spec.NodeName)
	}
	if err != nil {
		return forbid(a, "failed to get node %q: %w", pod.Spec.NodeName, err)
	}
	if os := node.Labels[corev1.LabelOSStable]; os != "" && os != string(corev1.Linux) {
		return because(causePlatform, forbid(a, "pod resize is only supported on linux nodes, node %q is %q", node.Name, os))
	}
	if err := fits(pod, node.Status.Allocatable); err != nil {
		return because(causeNodeCapacity, forbid(a, "%w", err))
	}
	return nil
}

// fits returns an error if a pod requests more than its node has in total.
func fits(pod *corev1.Pod, allocatable corev1.ResourceList) error {
	requests := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
	var over []string
	if want, have := requests.Cpu(), allocatable.Cpu(); want.Cmp(*have) > 0 {
		over = append(over, fmt.Sprintf("cpu, requested: %d, allocatable: %d", want.MilliValue(), have.MilliValue()))
	}
	if want, have := requests.Memory(), allocatable.Memory(); want.Cmp(*have) > 0 {
		over = append(over, fmt.Sprintf("memory, requested: %d, allocatable: %d", want.Value(), have.Value()))
	}
	if len(over) == 0 {
		return nil
	}
	return fmt.Errorf("node didn't have enough allocatable resources: %s", strings.Join(over, "; "))
}

// because adds a cause to a refusal.
func because(cause metav1.CauseType, err error) error {
	if s, ok := errors.AsType[*apierrors.StatusError](err); ok {
		s.ErrStatus.Details.Causes = append(s.ErrStatus.Details.Causes, metav1.StatusCause{Type: cause})
	}
	return err
}
