package pods

import (
	"slices"

	v1 "k8s.io/api/core/v1"
)

// Restarts reports whether a container that exited is restarted while the pod lives.
func Restarts(pod *v1.Pod, c *v1.Container, exitCode int32) bool {
	if action, ok := exitRule(c, exitCode); ok && c.RestartPolicy != nil &&
		(action == v1.ContainerRestartRuleActionRestart || action == v1.ContainerRestartRuleActionRestartAllContainers) {
		return true
	}
	policy := pod.Spec.RestartPolicy
	if c.RestartPolicy != nil {
		policy = v1.RestartPolicy(*c.RestartPolicy)
	} else if IsInit(pod, c.Name) && policy == v1.RestartPolicyAlways {
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

// RestartsWhenKilled is like Restarts, for a running container that is about to be killed: nobody
// can know its exit code yet.
func RestartsWhenKilled(pod *v1.Pod, c *v1.Container) bool {
	if c.RestartPolicy != nil {
		return *c.RestartPolicy != v1.ContainerRestartPolicyNever
	}
	return pod.Spec.RestartPolicy != v1.RestartPolicyNever
}

// MayRunAgain reports whether a status may say that a container runs after an earlier one said that
// it ended. An init container of a pod that is always restarted may run again, although Restarts
// returns false for it, because it runs again in a new sandbox.
func MayRunAgain(pod *v1.Pod, c *v1.Container, exitCode int32) bool {
	if IsEphemeral(pod, c.Name) {
		return false
	}
	return CanRestartAll(pod) || Restarts(pod, c, exitCode) ||
		c.RestartPolicy == nil && pod.Spec.RestartPolicy == v1.RestartPolicyAlways
}

// CanRestartAll reports whether the exit of some container can ask for a restart of all containers
// (KEP-5532).
func CanRestartAll(pod *v1.Pod) bool {
	for c := range Containers(&pod.Spec) {
		for i := range c.RestartPolicyRules {
			if c.RestartPolicyRules[i].Action == v1.ContainerRestartRuleActionRestartAllContainers {
				return true
			}
		}
	}
	return false
}

// RestartsAll reports whether this exit of a container, which may be nil, asks for a restart of all
// containers.
func RestartsAll(c *v1.Container, exitCode int32) bool {
	if c == nil {
		return false
	}
	action, ok := exitRule(c, exitCode)
	return ok && action == v1.ContainerRestartRuleActionRestartAllContainers
}

// exitRule returns the action of a container's first rule that matches the exit code, and whether
// there is one.
func exitRule(c *v1.Container, exitCode int32) (v1.ContainerRestartRuleAction, bool) {
	for _, rule := range c.RestartPolicyRules {
		if rule.ExitCodes == nil {
			continue
		}
		in := slices.Contains(rule.ExitCodes.Values, exitCode)
		switch rule.ExitCodes.Operator {
		case v1.ContainerRestartRuleOnExitCodesOpIn:
			if in {
				return rule.Action, true
			}
		case v1.ContainerRestartRuleOnExitCodesOpNotIn:
			if !in {
				return rule.Action, true
			}
		}
	}
	return "", false
}
