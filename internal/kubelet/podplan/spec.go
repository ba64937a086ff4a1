package podplan

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"slices"

	v1 "k8s.io/api/core/v1"
)

// IsSidecar tells whether an init container is restartable (KEP-753).
func IsSidecar(c *v1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == v1.ContainerRestartPolicyAlways
}

// FindContainer returns the container, init or ephemeral container of that name.
func FindContainer(pod *v1.Pod, name string) *v1.Container {
	for _, list := range [][]v1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	for i := range pod.Spec.EphemeralContainers {
		if pod.Spec.EphemeralContainers[i].Name == name {
			return (*v1.Container)(&pod.Spec.EphemeralContainers[i].EphemeralContainerCommon)
		}
	}
	return nil
}

// Hash identifies the part of a container's spec whose change asks for a new
// instance. All else is immutable or can be changed in place.
func Hash(c *v1.Container) string {
	data, err := json.Marshal([]string{c.Name, c.Image})
	if err != nil {
		return "" // strings always marshal
	}
	h := fnv.New32a()
	_, _ = h.Write(data)
	return fmt.Sprintf("%x", h.Sum32())
}

// Restarts tells whether a container that exited is to be started again while the
// pod lives.
func Restarts(pod *v1.Pod, c *v1.Container, exitCode int32) bool {
	if action, ok := exitRule(c, exitCode); ok && c.RestartPolicy != nil &&
		(action == v1.ContainerRestartRuleActionRestart || action == v1.ContainerRestartRuleActionRestartAllContainers) {
		return true
	}
	policy := pod.Spec.RestartPolicy
	if c.RestartPolicy != nil {
		policy = v1.RestartPolicy(*c.RestartPolicy)
	} else if isInit(pod, c.Name) && policy == v1.RestartPolicyAlways {
		policy = v1.RestartPolicyOnFailure
	}
	switch policy {
	case v1.RestartPolicyNever:
		return false
	case v1.RestartPolicyOnFailure:
		return exitCode != 0
	default:
		return true
	}
}

// restartsWhenKilled is Restarts for a container that runs and is to be killed,
// where no exit code can be foreseen.
func restartsWhenKilled(pod *v1.Pod, c *v1.Container) bool {
	if c.RestartPolicy != nil {
		return *c.RestartPolicy != v1.ContainerRestartPolicyNever
	}
	return pod.Spec.RestartPolicy != v1.RestartPolicyNever
}

func isInit(pod *v1.Pod, name string) bool {
	return slices.ContainsFunc(pod.Spec.InitContainers, func(c v1.Container) bool { return c.Name == name })
}

func isEphemeral(pod *v1.Pod, name string) bool {
	return slices.ContainsFunc(pod.Spec.EphemeralContainers, func(c v1.EphemeralContainer) bool { return c.Name == name })
}

// usesObjects tells whether a volume's content can change while it is mounted.
func usesObjects(v *v1.Volume) bool {
	return v.ConfigMap != nil || v.Secret != nil || v.DownwardAPI != nil || v.Projected != nil
}

// IsTerminal tells whether a phase is final.
func IsTerminal(phase v1.PodPhase) bool {
	return phase == v1.PodSucceeded || phase == v1.PodFailed
}

// grace is the pod's grace period in seconds: the deletion's when it is being
// deleted, its own otherwise; never less than one second.
func grace(pod *v1.Pod) int64 {
	g := int64(v1.DefaultTerminationGracePeriodSeconds)
	if pod.Spec.TerminationGracePeriodSeconds != nil {
		g = *pod.Spec.TerminationGracePeriodSeconds
	}
	if pod.DeletionTimestamp != nil && pod.DeletionGracePeriodSeconds != nil {
		g = *pod.DeletionGracePeriodSeconds
	}
	return max(g, 1)
}
