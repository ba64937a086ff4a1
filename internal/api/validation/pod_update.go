package validation

import (
	"maps"
	"math"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/diff"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"wherry.dev/internal/api/pods"
)

// updatable lists what an update may change, for the error message.
var updatable = []string{
	"`spec.containers[*].image`",
	"`spec.initContainers[*].image`",
	"`spec.activeDeadlineSeconds`",
	"`spec.tolerations` (only additions to existing tolerations)",
	"`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)",
}

// PodUpdate checks a pod that replaces old. Hardly any field of the spec can change.
func PodUpdate(pod, old *corev1.Pod) field.ErrorList {
	p := &problems{}
	p.pod(pod)
	p.podAnnotationUpdate(field.NewPath("metadata", "annotations"), pod, old)
	spec := field.NewPath("spec")
	if !p.sameContainers(spec.Child("containers"), pod.Spec.Containers, old.Spec.Containers) ||
		!p.sameContainers(spec.Child("initContainers"), pod.Spec.InitContainers, old.Spec.InitContainers) {
		return p.list
	}
	if !p.deadlineUpdate(spec.Child("activeDeadlineSeconds"), pod.Spec.ActiveDeadlineSeconds, old.Spec.ActiveDeadlineSeconds) {
		return p.list
	}
	p.tolerationUpdate(spec.Child("tolerations"), pod.Spec.Tolerations, old.Spec.Tolerations)
	p.gateUpdate(spec.Child("schedulingGates"), pod.Spec.SchedulingGates, old.Spec.SchedulingGates)
	if apiequality.Semantic.DeepEqual(pod.Spec, old.Spec) {
		return p.list
	}
	rest := unchangedPart(pod, old)
	if len(old.Spec.SchedulingGates) > 0 {
		p.gatedUpdate(spec, rest, &old.Spec)
	}
	if !apiequality.Semantic.DeepEqual(rest, &old.Spec) {
		p.forbidden(spec, "pod updates may not change fields other than %s\n%v", strings.Join(updatable, ","), diff.Diff(&old.Spec, rest))
	}
	return p.list
}

// sameContainers reports whether the lists have the same length.
func (p *problems) sameContainers(at path, list, old []corev1.Container) bool {
	if len(list) != len(old) {
		p.forbidden(at, "pod updates may not add or remove containers")
		return false
	}
	return true
}

// unchangedPart returns the new spec with the old values of all fields that may change.
func unchangedPart(pod, old *corev1.Pod) *corev1.PodSpec {
	rest := pod.Spec.DeepCopy()
	for i := range rest.Containers {
		rest.Containers[i].Image = old.Spec.Containers[i].Image
	}
	for i := range rest.InitContainers {
		rest.InitContainers[i].Image = old.Spec.InitContainers[i].Image
	}
	rest.ActiveDeadlineSeconds = old.Spec.ActiveDeadlineSeconds
	rest.SchedulingGates = old.Spec.SchedulingGates
	rest.Tolerations = old.Spec.Tolerations
	was, is := old.Spec.TerminationGracePeriodSeconds, rest.TerminationGracePeriodSeconds
	if was != nil && *was < 0 && is != nil && *is == 1 {
		rest.TerminationGracePeriodSeconds = was
	}
	return rest
}

// deadlineUpdate checks that a deadline only becomes shorter. It reports whether to go on.
func (p *problems) deadlineUpdate(at path, deadline, old *int64) bool {
	switch {
	case deadline == nil && old != nil:
		p.invalid(at, deadline, "must not update from a positive integer to nil value")
	case deadline != nil && (*deadline < 0 || *deadline > math.MaxInt32):
		p.invalid(at, *deadline, "%s", utilvalidation.InclusiveRangeError(0, math.MaxInt32))
		return false
	case deadline != nil && old != nil && *old < *deadline:
		p.invalid(at, *deadline, "must be less than or equal to previous value")
		return false
	}
	return true
}

// tolerationUpdate checks that tolerations are only added, or changed in their seconds.
func (p *problems) tolerationUpdate(at path, list, old []corev1.Toleration) {
	for _, was := range old {
		kept := slices.ContainsFunc(list, func(is corev1.Toleration) bool {
			is.TolerationSeconds = was.TolerationSeconds
			return apiequality.Semantic.DeepEqual(is, was)
		})
		if !kept {
			p.forbidden(at, "existing toleration can not be modified except its tolerationSeconds")
			return
		}
	}
}

func (p *problems) gateUpdate(at path, list, old []corev1.PodSchedulingGate) {
	for i, gate := range list {
		if !slices.Contains(old, gate) {
			p.forbidden(at.Index(i).Child("name"), "only deletion is allowed, but found new scheduling gate '%s'", gate.Name)
		}
	}
}

// gatedUpdate checks that an update of a pod with scheduling gates only narrows where the pod can
// run. In rest it resets the fields that may change.
func (p *problems) gatedUpdate(at path, rest, old *corev1.PodSpec) {
	for key, value := range old.NodeSelector {
		if have, ok := rest.NodeSelector[key]; !ok || have != value {
			p.invalid(at.Child("nodeSelector"), rest.NodeSelector, "only additions to spec.nodeSelector are allowed (no mutations or deletions)")
			break
		}
	}
	rest.NodeSelector = maps.Clone(old.NodeSelector)
	var was, is *corev1.NodeAffinity
	if old.Affinity != nil {
		was = old.Affinity.NodeAffinity
	}
	if rest.Affinity != nil {
		is = rest.Affinity.NodeAffinity
	}
	if apiequality.Semantic.DeepEqual(was, is) {
		return
	}
	p.nodeAffinityUpdate(at.Child("affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms"), is, was)
	if rest.Affinity == nil {
		rest.Affinity = &corev1.Affinity{}
	}
	rest.Affinity.NodeAffinity = was
	if *rest.Affinity == (corev1.Affinity{}) && old.Affinity == nil {
		rest.Affinity = nil
	}
}

func (p *problems) nodeAffinityUpdate(at path, is, was *corev1.NodeAffinity) {
	if was == nil || was.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return
	}
	old := was.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	var terms []corev1.NodeSelectorTerm
	if is != nil && is.RequiredDuringSchedulingIgnoredDuringExecution != nil {
		terms = is.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	}
	if len(old) > 0 && len(old) != len(terms) {
		p.invalid(at, terms, "no additions/deletions to non-empty NodeSelectorTerms list are allowed")
		return
	}
	for i := range old {
		if !onlyAdditions(terms[i], old[i]) {
			p.invalid(at.Index(i), terms[i], "only additions are allowed (no mutations or deletions)")
		}
	}
}

// onlyAdditions reports whether term only adds to old. An empty term selects nothing, so adding to
// it would widen it.
func onlyAdditions(term, old corev1.NodeSelectorTerm) bool {
	grown := len(term.MatchExpressions)+len(term.MatchFields) > 0
	if len(old.MatchExpressions) == 0 && len(old.MatchFields) == 0 && grown {
		return false
	}
	begins := func(list, with []corev1.NodeSelectorRequirement) bool {
		return len(list) >= len(with) && apiequality.Semantic.DeepEqual(list[:len(with)], slices.Clip(with))
	}
	return (len(old.MatchExpressions) == 0 || begins(term.MatchExpressions, old.MatchExpressions)) &&
		(len(old.MatchFields) == 0 || begins(term.MatchFields, old.MatchFields))
}

func (p *problems) podAnnotationUpdate(at path, pod, old *corev1.Pod) {
	const mirror, appArmor = corev1.MirrorPodAnnotationKey, "container.apparmor.security.beta.kubernetes.io/"
	for key, was := range old.Annotations {
		if is, ok := pod.Annotations[key]; ok && is == was {
			continue
		}
		if strings.HasPrefix(key, appArmor) {
			p.forbidden(at.Key(key), "may not remove or update AppArmor annotations")
		}
		if key == mirror {
			p.forbidden(at.Key(key), "may not remove or update mirror pod annotation")
		}
	}
	for key := range pod.Annotations {
		if _, ok := old.Annotations[key]; ok {
			continue
		}
		if strings.HasPrefix(key, appArmor) {
			p.forbidden(at.Key(key), "may not add AppArmor annotations")
		}
		if key == mirror {
			p.forbidden(at.Key(key), "may not add mirror pod annotation")
		}
	}
}

// PodEphemeralContainers checks an update of the ephemeral containers, which can be added but never
// changed or removed.
func PodEphemeralContainers(pod, old *corev1.Pod) field.ErrorList {
	if pods.IsMirror(old) {
		return field.ErrorList{field.Forbidden(field.NewPath(""), "static pods do not support ephemeral containers")}
	}
	p := &problems{}
	p.pod(pod)
	p.podAnnotationUpdate(field.NewPath("metadata", "annotations"), pod, old)
	at := field.NewPath("spec", "ephemeralContainers")
	for _, was := range old.Spec.EphemeralContainers {
		i := slices.IndexFunc(pod.Spec.EphemeralContainers, func(c corev1.EphemeralContainer) bool { return c.Name == was.Name })
		switch {
		case i < 0:
			p.forbidden(at, "existing ephemeral containers %q may not be removed\n", was.Name)
		case !apiequality.Semantic.DeepEqual(was, pod.Spec.EphemeralContainers[i]):
			p.forbidden(at, "existing ephemeral containers %q may not be changed\n%v", was.Name, diff.Diff(was, pod.Spec.EphemeralContainers[i]))
		}
	}
	return p.list
}
