package printers

import (
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wherry.dev/internal/apiserver/registry"
)

var webhookColumns = []metav1.TableColumnDefinition{
	nameColumn, integer("Webhooks", "Webhooks indicates the number of webhooks registered in this configuration"), ageColumn,
}

// MutatingWebhookConfigurations is the table of webhooks that change objects.
var MutatingWebhookConfigurations = registry.Table[*admissionv1.MutatingWebhookConfiguration]{
	Columns: webhookColumns,
	Cells: func(c *admissionv1.MutatingWebhookConfiguration, now time.Time) []any {
		return []any{c.Name, int64(len(c.Webhooks)), age(c, now)}
	},
}

// ValidatingWebhookConfigurations is the table of webhooks that judge objects.
var ValidatingWebhookConfigurations = registry.Table[*admissionv1.ValidatingWebhookConfiguration]{
	Columns: webhookColumns,
	Cells: func(c *admissionv1.ValidatingWebhookConfiguration, now time.Time) []any {
		return []any{c.Name, int64(len(c.Webhooks)), age(c, now)}
	},
}

var paramKindColumn = column("ParamKind", "ParamKind specifies the kind of resources used to parameterize this policy")

// ValidatingAdmissionPolicies is the table of policies that judge objects.
var ValidatingAdmissionPolicies = registry.Table[*admissionv1.ValidatingAdmissionPolicy]{
	Columns: []metav1.TableColumnDefinition{
		nameColumn, integer("Validations", "Validations indicates the number of validation rules defined in this configuration"),
		paramKindColumn, ageColumn,
	},
	Cells: func(p *admissionv1.ValidatingAdmissionPolicy, now time.Time) []any {
		return []any{p.Name, int64(len(p.Spec.Validations)), paramKind(p.Spec.ParamKind), age(p, now)}
	},
}

// MutatingAdmissionPolicies is the table of policies that change objects.
var MutatingAdmissionPolicies = registry.Table[*admissionv1.MutatingAdmissionPolicy]{
	Columns: []metav1.TableColumnDefinition{
		nameColumn, integer("Mutations", "Mutation indicates the number of mutations rules defined in this configuration"),
		paramKindColumn, ageColumn,
	},
	Cells: func(p *admissionv1.MutatingAdmissionPolicy, now time.Time) []any {
		return []any{p.Name, int64(len(p.Spec.Mutations)), paramKind(p.Spec.ParamKind), age(p, now)}
	},
}

func paramKind(k *admissionv1.ParamKind) string {
	if k == nil {
		return unset
	}
	return k.APIVersion + "/" + k.Kind
}

var policyBindingColumns = []metav1.TableColumnDefinition{
	nameColumn, column("PolicyName", "PolicyName indicates the policy definition which the policy binding binded to"),
	column("ParamRef", "ParamRef indicates the param resource which sets the configuration param"), ageColumn,
}

// ValidatingAdmissionPolicyBindings is the table of bindings.
var ValidatingAdmissionPolicyBindings = registry.Table[*admissionv1.ValidatingAdmissionPolicyBinding]{
	Columns: policyBindingColumns,
	Cells: func(b *admissionv1.ValidatingAdmissionPolicyBinding, now time.Time) []any {
		return []any{b.Name, b.Spec.PolicyName, paramRef(b.Spec.ParamRef), age(b, now)}
	},
}

// MutatingAdmissionPolicyBindings is the table of bindings.
var MutatingAdmissionPolicyBindings = registry.Table[*admissionv1.MutatingAdmissionPolicyBinding]{
	Columns: policyBindingColumns,
	Cells: func(b *admissionv1.MutatingAdmissionPolicyBinding, now time.Time) []any {
		return []any{b.Name, b.Spec.PolicyName, paramRef(b.Spec.ParamRef), age(b, now)}
	},
}

func paramRef(r *admissionv1.ParamRef) string {
	switch {
	case r == nil, r.Name == "" && r.Selector == nil:
		return unset
	case r.Name == "":
		return r.Selector.String()
	case r.Namespace == "": // the kind may be one without namespaces
		return "*/" + r.Name
	}
	return r.Namespace + "/" + r.Name
}
