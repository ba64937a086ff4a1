package podplan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"wherry.dev/internal/api/pods"
)

// owned are the conditions that the node writes; all others are left as they are.
var owned = []v1.PodConditionType{
	v1.PodReadyToStartContainers, v1.PodInitialized, v1.PodReady, v1.ContainersReady, v1.PodScheduled,
	v1.PodResizePending, v1.PodResizeInProgress, v1.AllContainersRestarting,
}

// conditions returns the pod's conditions, the foreign ones first.
func (r *reporter) conditions(st *v1.PodStatus) []v1.PodCondition {
	var out []v1.PodCondition
	for _, c := range r.in.Reported.Conditions {
		if !slices.Contains(owned, c.Type) && (c.Type != v1.DisruptionTarget || !r.disrupted()) {
			out = append(out, c)
		}
	}
	if r.disrupted() {
		out = append(out, r.stamp(v1.PodCondition{
			Type: v1.DisruptionTarget, Status: v1.ConditionTrue, Reason: r.ending.Disruption,
			Message: cmp.Or(r.ending.DisruptionMessage, r.ending.Message),
		}))
	}
	out = append(out, r.resizeConditions()...)
	out = append(out, r.restartingAll(st)...)
	containers := r.containersReady(st)
	ready := containers
	ready.Type = v1.PodReady
	if containers.Status == v1.ConditionTrue {
		ready = r.gates()
	}
	return append(out,
		r.stamp(v1.PodCondition{Type: v1.PodReadyToStartContainers, Status: truth(r.canStart())}),
		r.stamp(r.initialized(st)),
		r.stamp(ready),
		r.stamp(containers),
		r.stamp(v1.PodCondition{Type: v1.PodScheduled, Status: v1.ConditionTrue}),
	)
}

// canStart reports whether containers can start, as far as the sandbox and the volumes go. It stays so once one has: a volume
// that the kubelet is to look at again after a restart is mounted nevertheless.
func (r *reporter) canStart() bool {
	if r.sandbox == nil || r.rest {
		return false
	}
	return r.mounted() || slices.ContainsFunc(r.in.Containers, func(c Container) bool { return c.SandboxID == r.sandbox.ID })
}

func (r *reporter) disrupted() bool { return r.ending != nil && r.ending.Disruption != "" }

func truth(b bool) v1.ConditionStatus {
	if b {
		return v1.ConditionTrue
	}
	return v1.ConditionFalse
}

// stamp sets the transition time and generation of a condition.
func (r *reporter) stamp(c v1.PodCondition) v1.PodCondition {
	c.ObservedGeneration = max(r.in.Pod.Generation, r.in.Reported.ObservedGeneration)
	c.LastTransitionTime = stamp(r.now)
	for _, old := range r.in.Reported.Conditions {
		if old.Type == c.Type && old.Status == c.Status && !old.LastTransitionTime.IsZero() {
			c.LastTransitionTime = old.LastTransitionTime
		}
	}
	return c
}

func (r *reporter) initialized(st *v1.PodStatus) v1.PodCondition {
	c := v1.PodCondition{Type: v1.PodInitialized, Status: v1.ConditionTrue}
	var incomplete []string
	for i := range st.InitContainerStatuses {
		spec, cs := &r.in.Pod.Spec.InitContainers[i], st.InitContainerStatuses[i]
		if pods.IsSidecar(spec) && (cs.Started == nil || !*cs.Started) || !pods.IsSidecar(spec) && !cs.Ready {
			incomplete = append(incomplete, spec.Name)
		}
	}
	switch {
	case st.Phase == v1.PodSucceeded:
		c.Reason = reasonPodCompleted
	case len(incomplete) > 0 && !r.anyAppRan():
		c.Status, c.Reason = v1.ConditionFalse, reasonNotInitialized
		c.Message = fmt.Sprintf("containers with incomplete status: %s", incomplete)
	}
	return c
}

func (r *reporter) containersReady(st *v1.PodStatus) v1.PodCondition {
	c := v1.PodCondition{Type: v1.ContainersReady, Status: v1.ConditionFalse}
	switch st.Phase {
	case v1.PodSucceeded:
		c.Reason = reasonPodCompleted
		return c
	case v1.PodFailed:
		c.Reason = reasonPodFailed
		return c
	}
	var unready []string
	for i := range st.InitContainerStatuses {
		if pods.IsSidecar(&r.in.Pod.Spec.InitContainers[i]) && !st.InitContainerStatuses[i].Ready {
			unready = append(unready, st.InitContainerStatuses[i].Name)
		}
	}
	for i := range st.ContainerStatuses {
		if !st.ContainerStatuses[i].Ready {
			unready = append(unready, st.ContainerStatuses[i].Name)
		}
	}
	if len(unready) > 0 {
		c.Reason = reasonNotReady
		c.Message = fmt.Sprintf("containers with unready status: %s", unready)
		return c
	}
	c.Status = v1.ConditionTrue
	return c
}

// gates returns the Ready condition of a pod whose containers are all ready.
func (r *reporter) gates() v1.PodCondition {
	c := v1.PodCondition{Type: v1.PodReady, Status: v1.ConditionTrue}
	var messages []string
	for _, gate := range r.in.Pod.Spec.ReadinessGates {
		i := slices.IndexFunc(r.in.Reported.Conditions, func(o v1.PodCondition) bool { return o.Type == gate.ConditionType })
		switch {
		case i < 0:
			messages = append(messages, fmt.Sprintf("corresponding condition of pod readiness gate %q does not exist.", gate.ConditionType))
		case r.in.Reported.Conditions[i].Status != v1.ConditionTrue:
			messages = append(messages, fmt.Sprintf("the status of pod readiness gate %q is not \"True\", but %v",
				gate.ConditionType, r.in.Reported.Conditions[i].Status))
		}
	}
	if len(messages) > 0 {
		c.Status, c.Reason, c.Message = v1.ConditionFalse, reasonGatesNotReady, strings.Join(messages, ", ")
	}
	return c
}

// OwnsCondition reports whether the node writes the condition.
func OwnsCondition(t v1.PodConditionType) bool { return slices.Contains(owned, t) }
