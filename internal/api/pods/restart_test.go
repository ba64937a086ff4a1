package pods

import (
	"testing"

	v1 "k8s.io/api/core/v1"
)

func TestRestartRules(t *testing.T) {
	in, notIn := v1.ContainerRestartRuleOnExitCodesOpIn, v1.ContainerRestartRuleOnExitCodesOpNotIn
	never, onFailure := v1.ContainerRestartPolicyNever, v1.ContainerRestartPolicyOnFailure
	for _, tc := range []struct {
		pod    v1.RestartPolicy
		policy *v1.ContainerRestartPolicy
		op     v1.ContainerRestartRuleOnExitCodesOperator
		values []int32
		exit   int32
		want   bool
	}{
		{pod: v1.RestartPolicyAlways, exit: 0, want: true},
		{pod: v1.RestartPolicyAlways, policy: &never, exit: 1},
		{pod: v1.RestartPolicyNever, policy: &onFailure, exit: 1, want: true},
		{pod: v1.RestartPolicyNever, policy: &onFailure, exit: 0},
		{pod: v1.RestartPolicyAlways, policy: &never, op: in, values: []int32{42}, exit: 42, want: true},
		{pod: v1.RestartPolicyAlways, policy: &never, op: in, values: []int32{42}, exit: 1},
		{pod: v1.RestartPolicyNever, policy: &never, op: notIn, values: []int32{0}, exit: 1, want: true},
		{pod: v1.RestartPolicyNever, policy: &never, op: notIn, values: []int32{0}, exit: 0},
	} {
		c := v1.Container{Name: "c", RestartPolicy: tc.policy}
		if tc.op != "" {
			c.RestartPolicyRules = []v1.ContainerRestartRule{{
				Action: v1.ContainerRestartRuleActionRestart, ExitCodes: &v1.ContainerRestartRuleOnExitCodes{Operator: tc.op, Values: tc.values},
			}}
		}
		pod := &v1.Pod{Spec: v1.PodSpec{RestartPolicy: tc.pod, Containers: []v1.Container{c}}}
		if got := Restarts(pod, &c, tc.exit); got != tc.want {
			t.Errorf("%+v: %v", tc, got)
		}
	}
}
