package apiserver

import (
	"slices"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

func policyOn(name string, validations ...admissionv1.Validation) *admissionv1.ValidatingAdmissionPolicy {
	return &admissionv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: admissionv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: constraints(), MatchConditions: marked(), Validations: validations,
		},
	}
}

func constraints() *admissionv1.MatchResources {
	return &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: onConfigMaps()[0]}}}
}

func boundTo(policy string, actions ...admissionv1.ValidationAction) *admissionv1.ValidatingAdmissionPolicyBinding {
	return &admissionv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: policy},
		Spec:       admissionv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: policy, ValidationActions: actions},
	}
}

func mustPolicy(t *testing.T, c kubernetes.Interface, p *admissionv1.ValidatingAdmissionPolicy, b *admissionv1.ValidatingAdmissionPolicyBinding) {
	t.Helper()
	api := c.AdmissionregistrationV1()
	if _, err := api.ValidatingAdmissionPolicies().Create(t.Context(), p, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := api.ValidatingAdmissionPolicyBindings().Create(t.Context(), b, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// untilRefused creates, dry, until that is refused: a policy has its effect a second later at most.
func untilRefused(t *testing.T, c kubernetes.Interface, name, want string) {
	t.Helper()
	for {
		_, err := putMap(t, c, name, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil {
			continue
		}
		refused(t, err, want)
		return
	}
}

func TestPoliciesDenyAndWarn(t *testing.T) {
	s := start(t)
	c, heard := warned(t, s)
	mustPolicy(t, c, policyOn("deny.example.com", admissionv1.Validation{
		Expression: "!object.metadata.name.endsWith('bad')", MessageExpression: "'not ' + object.metadata.name", Reason: new(metav1.StatusReasonForbidden),
	}), boundTo("deny.example.com", admissionv1.Deny, admissionv1.Audit))
	mustPolicy(t, c, policyOn("warn.example.com", admissionv1.Validation{Expression: "!object.metadata.name.endsWith('odd')", Message: "that is odd"}),
		boundTo("warn.example.com", admissionv1.Warn))
	untilRefused(t, c, "test-bad", `ValidatingAdmissionPolicy 'deny.example.com' with binding 'deny.example.com' denied request: not test-bad`)
	_, err := putMap(t, c, "test-bad", metav1.CreateOptions{})
	if !apierrors.IsForbidden(err) {
		t.Errorf("%v", err)
	}
	mustPutMap(t, c, "test-good")
	const want = "Validation failed for ValidatingAdmissionPolicy 'warn.example.com' with binding 'warn.example.com': that is odd"
	for !slices.Contains(heard.take(), want) {
		if _, err := putMap(t, c, "test-odd", metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
			t.Fatal(err)
		}
	}
}

func TestPoliciesHaveParameters(t *testing.T) {
	s := start(t)
	c := admin(t, s)
	limit := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "limit"}, Data: map[string]string{"name": "test-secret"}}
	if _, err := c.CoreV1().ConfigMaps("default").Create(t.Context(), limit, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	p := policyOn("p.example.com", admissionv1.Validation{Expression: "object.metadata.name != variables.forbidden"})
	p.Spec.ParamKind = &admissionv1.ParamKind{APIVersion: "v1", Kind: "ConfigMap"}
	p.Spec.Variables = []admissionv1.Variable{{Name: "forbidden", Expression: "params.data.name"}}
	b := boundTo("p.example.com", admissionv1.Deny)
	b.Spec.ParamRef = &admissionv1.ParamRef{Name: "limit", Namespace: "default", ParameterNotFoundAction: new(admissionv1.DenyAction)}
	mustPolicy(t, c, p, b)
	untilRefused(t, c, "test-secret", "failed expression: object.metadata.name != variables.forbidden")
	mustPutMap(t, c, "test-other")
}

// A policy reads its parameters with the server's rights.
func TestAPolicyNeedsTheRightToReadItsParameters(t *testing.T) {
	s := start(t)
	c := admin(t, s)
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "author"}, Rules: []rbacv1.PolicyRule{
		{Verbs: []string{"*"}, APIGroups: []string{admissionv1.GroupName}, Resources: []string{"*"}},
	}}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "author"}, Subjects: []rbacv1.Subject{{Kind: "User", APIGroup: rbacv1.GroupName, Name: "jane"}},
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "author"},
	}
	if _, err := c.RbacV1().ClusterRoles().Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.RbacV1().ClusterRoleBindings().Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	jane := clientFor(t, s.ClientConfig("jane")).AdmissionregistrationV1()
	p := policyOn("p.example.com", admissionv1.Validation{Expression: "params.data.size() > 0"})
	p.Spec.ParamKind = &admissionv1.ParamKind{APIVersion: "v1", Kind: "Secret"}
	var err error
	for { // until authorization knows the role
		if _, err = jane.ValidatingAdmissionPolicies().Create(t.Context(), p, metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
			break
		}
	}
	refused(t, err, `must have "get" permission on all objects of the referenced paramKind (kind=Secret, apiVersion=v1)`)
	if _, err := c.AdmissionregistrationV1().ValidatingAdmissionPolicies().Create(t.Context(), p, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	b := boundTo("p.example.com", admissionv1.Deny)
	b.Spec.ParamRef = &admissionv1.ParamRef{Name: "s", Namespace: "kube-system", ParameterNotFoundAction: new(admissionv1.DenyAction)}
	_, err = jane.ValidatingAdmissionPolicyBindings().Create(t.Context(), b, metav1.CreateOptions{})
	refused(t, err, `does not have "get" permission on the object referenced by paramRef`)
}

func TestMutatingPolicies(t *testing.T) {
	s := start(t)
	c := admin(t, s)
	api := c.AdmissionregistrationV1()
	p := &admissionv1.MutatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "m.example.com"},
		Spec: admissionv1.MutatingAdmissionPolicySpec{
			MatchConstraints: constraints(), MatchConditions: marked(), ReinvocationPolicy: admissionv1.NeverReinvocationPolicy,
			Mutations: []admissionv1.Mutation{
				{PatchType: admissionv1.PatchTypeApplyConfiguration, ApplyConfiguration: &admissionv1.ApplyConfiguration{
					Expression: `Object{data: {"applied": object.metadata.name}}`,
				}},
				{PatchType: admissionv1.PatchTypeJSONPatch, JSONPatch: &admissionv1.JSONPatch{
					Expression: `[JSONPatch{op: "add", path: "/data/patched", value: "yes"}]`,
				}},
			},
		},
	}
	if _, err := api.MutatingAdmissionPolicies().Create(t.Context(), p, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	b := &admissionv1.MutatingAdmissionPolicyBinding{ObjectMeta: p.ObjectMeta, Spec: admissionv1.MutatingAdmissionPolicyBindingSpec{PolicyName: p.Name}}
	if _, err := api.MutatingAdmissionPolicyBindings().Create(t.Context(), b, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for {
		m, err := putMap(t, c, "test-a", metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err != nil {
			t.Fatal(err)
		}
		if m.Data["patched"] == "" {
			continue // it has no effect yet
		}
		if m.Data["applied"] != "test-a" || m.Data["patched"] != "yes" {
			t.Errorf("data %v", m.Data)
		}
		return
	}
}

func TestOddPoliciesAreRefused(t *testing.T) {
	s := start(t)
	c := admin(t, s)
	p := policyOn("p", admissionv1.Validation{Expression: "variables.missing", Message: "two\nlines"})
	p.Spec.Variables = []admissionv1.Variable{{Name: "for", Expression: "1 +"}}
	p.Spec.AuditAnnotations = []admissionv1.AuditAnnotation{{Key: "bad key", ValueExpression: "1"}}
	p.Spec.ParamKind = &admissionv1.ParamKind{APIVersion: "a/b/c"}
	_, err := c.AdmissionregistrationV1().ValidatingAdmissionPolicies().Create(t.Context(), p, metav1.CreateOptions{})
	for _, want := range []string{
		`spec.paramKind.apiVersion: Invalid value: "a/b/c": unexpected GroupVersion string: a/b/c`,
		"spec.paramKind.kind: Required value",
		`spec.variables[0].name: Invalid value: "for": must be a valid CEL identifier`,
		`spec.variables[0].expression: Invalid value: "1 +": compilation failed`,
		`spec.validations[0].expression: Invalid value: "variables.missing": compilation failed`,
		`spec.validations[0].message: Invalid value: "two\nlines": must not contain line breaks`,
		`spec.auditAnnotations[0].key: Invalid value: "p/bad key"`,
		`spec.auditAnnotations[0].valueExpression: Invalid value: "1": must evaluate to one of [string null_type]`,
	} {
		refused(t, err, want)
	}
	b := boundTo("p", admissionv1.Deny, admissionv1.Warn)
	b.Spec.ParamRef = &admissionv1.ParamRef{}
	_, err = c.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().Create(t.Context(), b, metav1.CreateOptions{})
	for _, want := range []string{
		"spec.paramRef: Required value: one of name or selector must be specified",
		"spec.paramRef.parameterNotFoundAction: Required value",
		"spec.validationActions: Invalid value: [\"Deny\",\"Warn\"]: must not contain both Deny and Warn",
	} {
		refused(t, err, want)
	}
}
