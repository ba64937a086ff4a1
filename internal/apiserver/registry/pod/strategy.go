// Package pod holds what the API server does with pods beyond storing them: the fields that each
// endpoint owns, graceful deletion, binding, and the connections to a pod's node.
package pod

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/kubectl/pkg/util/qos"

	"wherry.dev/internal/api/defaults"
	"wherry.dev/internal/api/pods"
)

// FieldLabels are the selectable fields of a pod besides its name and namespace.
var FieldLabels = []string{
	"spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName",
	"spec.hostNetwork", "status.phase", "status.podIP", "status.podIPs", "status.nominatedNodeName",
}

// Fields returns the fields of a pod that field selectors can select.
func Fields(p *corev1.Pod) fields.Set {
	hostNetwork := "false"
	if p.Spec.HostNetwork {
		hostNetwork = "true"
	}
	ip := p.Status.PodIP
	if ip == "" && len(p.Status.PodIPs) > 0 {
		ip = p.Status.PodIPs[0].IP
	}
	return fields.Set{
		"spec.nodeName":            p.Spec.NodeName,
		"spec.restartPolicy":       string(p.Spec.RestartPolicy),
		"spec.schedulerName":       p.Spec.SchedulerName,
		"spec.serviceAccountName":  p.Spec.ServiceAccountName,
		"spec.hostNetwork":         hostNetwork,
		"status.phase":             string(p.Status.Phase),
		"status.podIP":             ip,
		"status.podIPs":            ip,
		"status.nominatedNodeName": p.Status.NominatedNodeName,
	}
}

// PrepareCreate gives a new pod its first status and generation.
func PrepareCreate(ctx context.Context, p *corev1.Pod) {
	p.Generation = 1
	adoptAppArmor(ctx, p)
	defaults.PodResources(p)
	p.Status = corev1.PodStatus{
		Phase:    corev1.PodPending,
		QOSClass: qos.ComputePodQOS(p),
	}
	mergeLabelKeys(p)
	if len(p.Spec.SchedulingGates) > 0 {
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{
			Type:    corev1.PodScheduled,
			Status:  corev1.ConditionFalse,
			Reason:  corev1.PodReasonSchedulingGated,
			Message: "Scheduling is blocked due to non-empty scheduling gates",

			LastTransitionTime: metav1.Now(),
		})
	}
}

// PrepareUpdate keeps the status, which has its own endpoint.
func PrepareUpdate(_ context.Context, p, old *corev1.Pod) {
	p.Status = old.Status
	if p.Spec.Resources == nil {
		p.Spec.Resources = old.Spec.Resources.DeepCopy() // the client may not know the field
	}
	setGeneration(p, old)
}

// PrepareStatus keeps everything but the status.
func PrepareStatus(_ context.Context, p, old *corev1.Pod) {
	p.Spec = old.Spec
	p.DeletionTimestamp = nil
	p.OwnerReferences = old.OwnerReferences
	p.Generation = old.Generation
	if p.Status.QOSClass == "" {
		p.Status.QOSClass = old.Status.QOSClass
	}
	keepObservedGeneration(p, old)
}

// keepObservedGeneration makes sure that a client that does not know the field does not clear it.
// Conditions of the same type are matched in their order.
func keepObservedGeneration(p, old *corev1.Pod) {
	if p.Status.ObservedGeneration == 0 {
		p.Status.ObservedGeneration = old.Status.ObservedGeneration
	}
	seen := map[corev1.PodConditionType][]int64{}
	for _, c := range old.Status.Conditions {
		seen[c.Type] = append(seen[c.Type], c.ObservedGeneration)
	}
	for i := range p.Status.Conditions {
		c := &p.Status.Conditions[i]
		was := seen[c.Type]
		if len(was) == 0 {
			continue
		}
		seen[c.Type] = was[1:]
		if c.ObservedGeneration == 0 {
			c.ObservedGeneration = was[0]
		}
	}
}

// PrepareEphemeralContainers keeps everything but the ephemeral containers.
func PrepareEphemeralContainers(_ context.Context, p, old *corev1.Pod) {
	containers := p.Spec.EphemeralContainers
	p.Spec, p.Status = old.Spec, old.Status
	metav1.ResetObjectMetaForStatus(&p.ObjectMeta, &old.ObjectMeta)
	p.Spec.EphemeralContainers = containers
	setGeneration(p, old)
}

// PrepareResize keeps everything but the containers' resources and resize policies. It leaves a
// changed list of containers for validation to refuse.
func PrepareResize(_ context.Context, p, old *corev1.Pod) {
	if len(p.Spec.Containers) == len(old.Spec.Containers) && len(p.Spec.InitContainers) == len(old.Spec.InitContainers) {
		containers := onlyResized(p.Spec.Containers, old.Spec.Containers)
		inits := onlyResized(p.Spec.InitContainers, old.Spec.InitContainers)
		resources := p.Spec.Resources
		if resources == nil {
			resources = old.Spec.Resources.DeepCopy() // the client may not know the field
		}
		p.Spec, p.Status = old.Spec, old.Status
		p.Spec.Containers, p.Spec.InitContainers, p.Spec.Resources = containers, inits, resources
		defaults.PodResources(p)
		metav1.ResetObjectMetaForStatus(&p.ObjectMeta, &old.ObjectMeta)
	}
	setGeneration(p, old)
}

// onlyResized returns old with the resources of updated if both name the same containers in the
// same order, else updated itself.
func onlyResized(updated, old []corev1.Container) []corev1.Container {
	out := slices.Clone(old)
	for i := range out {
		if out[i].Name != updated[i].Name {
			return updated
		}
		out[i].Resources = updated[i].Resources
		out[i].ResizePolicy = updated[i].ResizePolicy
	}
	return out
}

func setGeneration(p, old *corev1.Pod) {
	p.Generation = old.Generation
	if !apiequality.Semantic.DeepEqual(&p.Spec, &old.Spec) {
		p.Generation++
	}
}

// Graceful sets how long a pod may take to stop: as long as the request says, else as the pod says,
// or 0 if no node has to stop it.
func Graceful(_ context.Context, p *corev1.Pod, opts *metav1.DeleteOptions) bool {
	if opts == nil {
		return false
	}
	var period int64
	switch {
	case opts.GracePeriodSeconds != nil:
		period = *opts.GracePeriodSeconds
	case p.Spec.TerminationGracePeriodSeconds != nil:
		period = *p.Spec.TerminationGracePeriodSeconds
	}
	if p.Spec.NodeName == "" || pods.IsTerminal(p.Status.Phase) {
		period = 0
	}
	if period < 0 {
		period = 1
	}
	opts.GracePeriodSeconds = &period
	return true
}
