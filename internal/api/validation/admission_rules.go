package validation

import (
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const wildcard = "*"

// alone reports a wildcard that has company.
func alone[T ~string](p *problems, at path, values []T, others string) {
	if len(values) > 1 && slices.Contains(values, wildcard) {
		p.invalid(at, values, "if '*' is present, must not specify other %s", others)
	}
}

func (p *problems) ruleWithOperations(at path, r *admissionv1.RuleWithOperations) {
	operations := at.Child("operations")
	if len(r.Operations) == 0 {
		p.required(operations, "")
	}
	alone(p, operations, r.Operations, "operations")
	for i, op := range r.Operations {
		oneOf(p, operations.Index(i), op, admissionv1.OperationAll, admissionv1.Create, admissionv1.Update, admissionv1.Delete, admissionv1.Connect)
	}
	p.rule(at, &r.Rule)
}

func (p *problems) rule(at path, r *admissionv1.Rule) {
	groups, versions := at.Child("apiGroups"), at.Child("apiVersions")
	if len(r.APIGroups) == 0 {
		p.required(groups, "")
	}
	alone(p, groups, r.APIGroups, "API groups")
	if len(r.APIVersions) == 0 {
		p.required(versions, "")
	}
	alone(p, versions, r.APIVersions, "API versions")
	for i, v := range r.APIVersions {
		p.present(versions.Index(i), v)
	}
	p.ruleResources(at.Child("resources"), r.Resources)
	if r.Scope != nil {
		oneOf(p, at.Child("scope"), *r.Scope, admissionv1.ClusterScope, admissionv1.NamespacedScope, admissionv1.AllScopes)
	}
}

// ruleResources checks a list of "resource", "resource/subresource" and wildcards in either place:
// each subresource must be covered once.
func (p *problems) ruleResources(at path, resources []string) {
	if len(resources) == 0 {
		p.required(at, "")
	}
	allSubresources, allResources := map[string]bool{}, map[string]bool{}
	plain := false // upstream goes by the last resource without a subresource
	for i, r := range resources {
		if !p.present(at.Index(i), r) {
			continue
		}
		resource, sub, found := strings.Cut(r, "/")
		if !found {
			plain = r != wildcard
			continue
		}
		if allSubresources[resource] {
			p.invalid(at.Index(i), r, "if '%s/*' is present, must not specify %s", resource, r)
		}
		if allResources[sub] {
			p.invalid(at.Index(i), r, "if '*/%s' is present, must not specify %s", sub, r)
		}
		allSubresources[resource] = allSubresources[resource] || sub == wildcard
		allResources[sub] = allResources[sub] || resource == wildcard
	}
	if len(resources) > 1 && slices.Contains(resources, "*/*") {
		p.invalid(at, resources, "if '*/*' is present, must not specify other resources")
	}
	if plain && slices.Contains(resources, wildcard) {
		p.invalid(at, resources, "if '*' is present, must not specify other resources without subresources")
	}
}

func (p *problems) matchResources(at path, m *admissionv1.MatchResources) {
	if m.MatchPolicy == nil {
		p.required(at.Child("matchPolicy"), "")
	}
	p.matchPolicy(at.Child("matchPolicy"), m.MatchPolicy)
	p.requiredSelector(at.Child("namespaceSelector"), m.NamespaceSelector)
	p.requiredSelector(at.Child("objectSelector"), m.ObjectSelector)
	for i := range m.ResourceRules {
		p.namedRule(at.Child("resourceRules").Index(i), &m.ResourceRules[i])
	}
	for i := range m.ExcludeResourceRules {
		p.namedRule(at.Child("excludeResourceRules").Index(i), &m.ExcludeResourceRules[i])
	}
}

func (p *problems) requiredSelector(at path, s *metav1.LabelSelector) {
	if s == nil {
		p.required(at, "")
		return
	}
	p.addAll(metavalidation.ValidateLabelSelector(s, metavalidation.LabelSelectorValidationOptions{}, at))
}

func (p *problems) namedRule(at path, r *admissionv1.NamedRuleWithOperations) {
	names := at.Child("resourceNames")
	for i, name := range r.ResourceNames {
		matches(p, names.Index(i), name, content.IsPathSegmentName(name))
		if slices.Contains(r.ResourceNames[:i], name) {
			p.add(field.Duplicate(names.Index(i), name))
		}
	}
	p.ruleWithOperations(at, &r.RuleWithOperations)
}

// AdmissionRole is what an expression of admission is for; its variables and its result depend on it.
type AdmissionRole string

// The roles of expressions.
const (
	MatchCondition     AdmissionRole = "matchCondition"
	PolicyVariable     AdmissionRole = "variable"
	PolicyValidation   AdmissionRole = "validation"
	PolicyMessage      AdmissionRole = "messageExpression"
	PolicyAnnotation   AdmissionRole = "auditAnnotation"
	ApplyConfiguration AdmissionRole = "applyConfiguration"
	PolicyJSONPatch    AdmissionRole = "jsonPatch"
)

// AdmissionSource is an expression with what it may refer to.
type AdmissionSource struct {
	Role AdmissionRole
	Text string
	// Name is what expressions after a variable call it.
	Name string
	// Params says that the policy has parameters.
	Params bool
	// Stored expressions were accepted before, perhaps by a newer server.
	Stored bool
}

// AdmissionExpression checks the expressions of one object, in their order, because later ones may use
// variables of earlier ones. Whoever has a compiler brings it.
type AdmissionExpression func(at *field.Path, source AdmissionSource) *field.Error

// maxMatchConditions is how many conditions may narrow a webhook or a policy.
const maxMatchConditions = 64

type conditionOptions struct {
	params bool
	stored map[string]bool
}

func (p *problems) matchConditions(at path, conditions []admissionv1.MatchCondition, o conditionOptions, check AdmissionExpression) {
	if len(conditions) > maxMatchConditions {
		p.add(field.TooMany(at, len(conditions), maxMatchConditions))
	}
	names := map[string]bool{}
	for i, c := range conditions {
		at := at.Index(i)
		if text := strings.TrimSpace(c.Expression); p.present(at.Child("expression"), text) {
			p.add(check(at.Child("expression"), AdmissionSource{
				Role: MatchCondition, Text: text, Params: o.params, Stored: o.stored[text],
			}))
		}
		if !p.present(at.Child("name"), c.Name) {
			continue
		}
		matches(p, at.Child("name"), c.Name, utilvalidation.IsQualifiedName(c.Name))
		if names[c.Name] {
			p.add(field.Duplicate(at.Child("name"), c.Name))
		}
		names[c.Name] = true
	}
}
