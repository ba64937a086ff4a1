package manager_test

import (
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func TestExpressionsOfPoliciesAreCheckedAgainstTypes(t *testing.T) {
	c := start(t, nil, "validatingadmissionpolicy-status-controller")
	ctx, policies := t.Context(), c.AdmissionregistrationV1().ValidatingAdmissionPolicies()
	policy := &admissionv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "p"},
		Spec: admissionv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{
				RuleWithOperations: admissionv1.RuleWithOperations{
					Operations: []admissionv1.OperationType{admissionv1.Create},
					Rule:       admissionv1.Rule{APIGroups: []string{"apps"}, APIVersions: []string{"v1"}, Resources: []string{"deployments"}},
				},
			}}},
			Validations: []admissionv1.Validation{{Expression: "object.spec.replicas > 1"}, {Expression: "object.spec.replicas > '1'"}},
		},
	}
	if _, err := policies.Create(ctx, policy, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	warnings := func(p *admissionv1.ValidatingAdmissionPolicy) []admissionv1.ExpressionWarning {
		if p.Status.TypeChecking == nil {
			return nil
		}
		return p.Status.TypeChecking.ExpressionWarnings
	}
	await(t, policies, "p", func(p *admissionv1.ValidatingAdmissionPolicy, _ bool) bool {
		w := warnings(p)
		return p.Status.ObservedGeneration == 1 && len(w) == 1 && w[0].FieldRef == "spec.validations[1].expression" &&
			strings.Contains(w[0].Warning, "apps/v1, Kind=Deployment: ERROR") && strings.Contains(w[0].Warning, "found no matching overload for '_>_'")
	})
	better := []byte(`[{"op":"remove","path":"/spec/validations/1"}]`)
	if _, err := policies.Patch(ctx, "p", types.JSONPatchType, better, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	await(t, policies, "p", func(p *admissionv1.ValidatingAdmissionPolicy, _ bool) bool {
		return p.Status.ObservedGeneration == 2 && len(warnings(p)) == 0
	})
}
