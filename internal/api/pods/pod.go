package pods

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
)

// Annotations of static pods, and of the pods that mirror them in the API.
const (
	AnnotationConfigSource = "kubernetes.io/config.source"
	AnnotationConfigHash   = "kubernetes.io/config.hash"
	AnnotationConfigSeen   = "kubernetes.io/config.seen"
	AnnotationConfigMirror = v1.MirrorPodAnnotationKey
)

// Priority classes that every cluster has.
const (
	NodeCritical            = "system-node-critical"
	NodeCriticalPriority    = 2000001000
	ClusterCritical         = "system-cluster-critical"
	ClusterCriticalPriority = 2000000000
)

// Format names a pod in events and messages: name_namespace(uid).
func Format(pod *v1.Pod) string {
	return fmt.Sprintf("%s_%s(%s)", pod.Name, pod.Namespace, pod.UID)
}

// IsMirror reports whether an API pod only mirrors a static pod.
func IsMirror(pod *v1.Pod) bool {
	_, ok := pod.Annotations[AnnotationConfigMirror]
	return ok
}

// IsStatic reports whether a pod comes from the node itself, not from the API server. Only a node can tell of its pods: anybody
// may write the annotation into a pod of the API.
func IsStatic(pod *v1.Pod) bool {
	source := pod.Annotations[AnnotationConfigSource]
	return source != "" && source != "api"
}

// IsCritical reports whether a pod counts as critical for the node: static pods do, and pods of a
// system priority class.
func IsCritical(pod *v1.Pod) bool {
	return IsStatic(pod) || pod.Spec.Priority != nil && *pod.Spec.Priority >= ClusterCriticalPriority
}

// IsNodeCritical reports whether the node cannot do without the pod.
func IsNodeCritical(pod *v1.Pod) bool {
	return IsCritical(pod) && pod.Spec.PriorityClassName == NodeCritical
}

// IsTerminal reports whether a phase is final.
func IsTerminal(phase v1.PodPhase) bool {
	return phase == v1.PodSucceeded || phase == v1.PodFailed
}

// Grace returns the pod's own grace period in seconds.
func Grace(pod *v1.Pod) int64 {
	if g := pod.Spec.TerminationGracePeriodSeconds; g != nil {
		return *g
	}
	return v1.DefaultTerminationGracePeriodSeconds
}

// FindCondition returns the condition of a type, or nil.
func FindCondition(st *v1.PodStatus, kind v1.PodConditionType) *v1.PodCondition {
	for i := range st.Conditions {
		if st.Conditions[i].Type == kind {
			return &st.Conditions[i]
		}
	}
	return nil
}
