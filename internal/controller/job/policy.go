package job

import (
	"fmt"
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
)

// judgement is what a policy says about a failed pod.
type judgement struct {
	action  batchv1.PodFailurePolicyAction // "" if no rule matches
	message string                         // for FailJob: why
}

// counts reports whether the failure counts towards the limits.
func (g judgement) counts() bool { return g.action != batchv1.PodFailurePolicyActionIgnore }

// judge finds the first rule of the policy, which may be nil, that matches a failed pod.
func judge(policy *batchv1.PodFailurePolicy, p *v1.Pod) judgement {
	if policy == nil {
		return judgement{}
	}
	for i, rule := range policy.Rules {
		what := ""
		switch {
		case rule.OnExitCodes != nil:
			if c := matchingContainer(&p.Status, rule.OnExitCodes); c != nil {
				what = fmt.Sprintf("Container %s for pod %s/%s failed with exit code %d",
					c.Name, p.Namespace, p.Name, c.State.Terminated.ExitCode)
			}
		case rule.OnPodConditions != nil:
			if c := matchingCondition(&p.Status, rule.OnPodConditions); c != nil {
				what = fmt.Sprintf("Pod %s/%s has condition %v", p.Namespace, p.Name, c.Type)
			}
		}
		if what != "" {
			return judgement{rule.Action, fmt.Sprintf("%s matching %v rule at index %d", what, rule.Action, i)}
		}
	}
	return judgement{}
}

// matchingContainer returns the first container, init containers last, that ended with a code which
// the rule names. Success is never matched.
func matchingContainer(st *v1.PodStatus, rule *batchv1.PodFailurePolicyOnExitCodesRequirement) *v1.ContainerStatus {
	for _, list := range [][]v1.ContainerStatus{st.ContainerStatuses, st.InitContainerStatuses} {
		for i := range list {
			c := &list[i]
			end := c.State.Terminated
			if end == nil || end.ExitCode == 0 || rule.ContainerName != nil && *rule.ContainerName != c.Name {
				continue
			}
			wanted := rule.Operator == batchv1.PodFailurePolicyOnExitCodesOpIn // the other one is NotIn
			if slices.Contains(rule.Values, end.ExitCode) == wanted {
				return c
			}
		}
	}
	return nil
}

func matchingCondition(st *v1.PodStatus, patterns []batchv1.PodFailurePolicyOnPodConditionsPattern) *v1.PodCondition {
	for i := range st.Conditions {
		c := &st.Conditions[i]
		if slices.ContainsFunc(patterns, func(p batchv1.PodFailurePolicyOnPodConditionsPattern) bool {
			return p.Type == c.Type && p.Status == c.Status
		}) {
			return c
		}
	}
	return nil
}

// succeeds returns the message of the first rule that the completed indexes satisfy.
func succeeds(policy *batchv1.SuccessPolicy, completed indexes, limit int) (message string, ok bool) {
	if policy == nil || len(completed) == 0 {
		return "", false
	}
	for i, rule := range policy.Rules {
		if satisfied(rule, completed, limit) {
			return fmt.Sprintf("Matched rules at index %d", i), true
		}
	}
	return "", false
}

func satisfied(rule batchv1.SuccessPolicyRule, completed indexes, limit int) bool {
	done, all := completed.len(), false
	if rule.SucceededIndexes != nil {
		wanted := parseIndexes(*rule.SucceededIndexes, limit)
		if len(wanted) == 0 {
			return false
		}
		done = wanted.common(completed)
		all = done == wanted.len()
	}
	return all || rule.SucceededCount != nil && done >= int(*rule.SucceededCount)
}
