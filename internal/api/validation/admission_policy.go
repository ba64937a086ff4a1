package validation

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/validate/content"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/util/jsonpath"
)

const (
	maxAuditAnnotations = 20
	// maxAnnotationExpression is in bytes; the value may be twice as long.
	maxAnnotationExpression = 5 * 1024
)

// ValidatingAdmissionPolicy checks a new policy that judges objects.
func ValidatingAdmissionPolicy(v *admissionv1.ValidatingAdmissionPolicy, check AdmissionExpression) field.ErrorList {
	return append(validatingPolicy(v, &admissionv1.ValidatingAdmissionPolicy{}, check), staticName(v.Name)...)
}

// ValidatingAdmissionPolicyUpdate checks a policy that replaces old.
func ValidatingAdmissionPolicyUpdate(v, old *admissionv1.ValidatingAdmissionPolicy, check AdmissionExpression) field.ErrorList {
	return validatingPolicy(v, old, check)
}

func validatingPolicy(v, old *admissionv1.ValidatingAdmissionPolicy, check AdmissionExpression) field.ErrorList {
	at, spec := field.NewPath("spec"), &v.Spec
	p := &policyProblems{&problems{}, check, spec.ParamKind != nil, map[string]bool{}}
	p.storedValidating(&old.Spec)
	p.policyHead(at, spec.FailurePolicy, spec.ParamKind, spec.MatchConstraints)
	if !apiequality.Semantic.DeepEqual(spec.ParamKind, old.Spec.ParamKind) || !apiequality.Semantic.DeepEqual(spec.MatchConditions, old.Spec.MatchConditions) {
		p.matchConditions(at.Child("matchConditions"), spec.MatchConditions, conditionOptions{p.params, p.stored}, check)
	}
	p.variables(at.Child("variables"), spec.Variables)
	if len(spec.Validations) == 0 && len(spec.AuditAnnotations) == 0 {
		const detail = "validations or auditAnnotations must contain at least one item"
		p.required(at.Child("validations"), detail)
		p.required(at.Child("auditAnnotations"), detail)
	}
	for i := range spec.Validations {
		p.validation(at.Child("validations").Index(i), &spec.Validations[i])
	}
	p.auditAnnotations(at.Child("auditAnnotations"), v.Name, spec.AuditAnnotations)
	return p.list
}

// policyProblems are the problems of a policy.
type policyProblems struct {
	*problems
	check  AdmissionExpression
	params bool
	stored map[string]bool // expressions that were accepted before
}

func (p *policyProblems) storedValidating(old *admissionv1.ValidatingAdmissionPolicySpec) {
	for _, c := range old.MatchConditions {
		p.stored[c.Expression] = true
	}
	for _, v := range old.Validations {
		p.stored[v.Expression], p.stored[v.MessageExpression] = true, true
	}
	for _, a := range old.AuditAnnotations {
		p.stored[a.ValueExpression] = true
	}
	p.storedVariables(old.Variables)
}

func (p *policyProblems) storedVariables(old []admissionv1.Variable) {
	for _, v := range old {
		p.stored[v.Expression] = true
	}
}

func (p *policyProblems) compile(at path, role AdmissionRole, text string) {
	p.add(p.check(at, AdmissionSource{Role: role, Text: text, Params: p.params, Stored: p.stored[text]}))
}

// policyHead checks what policies of both kinds have.
func (p *policyProblems) policyHead(at path, failure *admissionv1.FailurePolicyType, kind *admissionv1.ParamKind, match *admissionv1.MatchResources) {
	if failure == nil {
		p.required(at.Child("failurePolicy"), "")
	}
	p.admissionFailure(at.Child("failurePolicy"), failure)
	if kind != nil {
		p.paramKind(at.Child("paramKind"), kind)
	}
	if match == nil {
		p.required(at.Child("matchConstraints"), "")
		return
	}
	p.matchResources(at.Child("matchConstraints"), match)
	if len(match.ResourceRules) == 0 { // at least one is needed to know the type of the objects
		p.required(at.Child("matchConstraints", "resourceRules"), "")
	}
}

func (p *problems) paramKind(at path, kind *admissionv1.ParamKind) {
	version := at.Child("apiVersion")
	if p.present(version, kind.APIVersion) {
		gv, err := schema.ParseGroupVersion(kind.APIVersion)
		switch {
		case err != nil:
			p.invalid(version, kind.APIVersion, "%s", err.Error())
		case gv.Version == "":
			p.invalid(version, kind.APIVersion, "version must be specified")
		default:
			if gv.Group != "" {
				p.joined(version, gv.Group, "", utilvalidation.IsDNS1123Subdomain(gv.Group))
			}
			p.joined(version, gv.Version, "", utilvalidation.IsDNS1035Label(gv.Version))
		}
	}
	if p.present(at.Child("kind"), kind.Kind) {
		p.joined(at.Child("kind"), kind.Kind, "may have mixed case, but should otherwise match: ", utilvalidation.IsDNS1035Label(strings.ToLower(kind.Kind)))
	}
}

// joined adds one error with all messages of a check.
func (p *problems) joined(at path, value, intro string, messages []string) {
	if len(messages) > 0 {
		p.invalid(at, value, "%s", intro+strings.Join(messages, ","))
	}
}

// identifier is CEL's, without its reserved words.
var identifier = regexp.MustCompile("^[_a-zA-Z][_a-zA-Z0-9]*$")

var reservedWords = []string{
	"true", "false", "null", "in", "as", "break", "const", "continue", "else", "for", "function", "if",
	"import", "let", "loop", "package", "namespace", "return", "var", "void", "while",
}

func (p *policyProblems) variables(at path, variables []admissionv1.Variable) {
	for i, v := range variables {
		at := at.Index(i)
		if strings.TrimSpace(v.Name) == "" {
			p.required(at.Child("name"), "name is not specified")
		} else if !identifier.MatchString(v.Name) || slices.Contains(reservedWords, v.Name) {
			p.invalid(at.Child("name"), v.Name, "must be a valid CEL identifier")
		}
		if strings.TrimSpace(v.Expression) == "" {
			p.required(at.Child("expression"), "expression is not specified")
			continue
		}
		p.add(p.check(at.Child("expression"), AdmissionSource{
			Role: PolicyVariable, Name: v.Name, Text: v.Expression, Params: p.params, Stored: p.stored[v.Expression],
		}))
	}
}

func (p *policyProblems) validation(at path, v *admissionv1.Validation) {
	if strings.TrimSpace(v.Expression) == "" {
		p.required(at.Child("expression"), "expression is not specified")
	} else {
		p.compile(at.Child("expression"), PolicyValidation, v.Expression)
	}
	const mustSay = "must be non-empty if specified"
	switch {
	case v.MessageExpression == "":
	case strings.TrimSpace(v.MessageExpression) == "":
		p.invalid(at.Child("messageExpression"), v.MessageExpression, mustSay)
	default:
		p.compile(at.Child("messageExpression"), PolicyMessage, v.MessageExpression)
	}
	switch message := strings.TrimSpace(v.Message); {
	case v.Message != "" && message == "":
		p.invalid(at.Child("message"), v.Message, mustSay)
	case strings.ContainsAny(message, "\n\r"):
		p.invalid(at.Child("message"), v.Message, "must not contain line breaks")
	}
	if v.Reason != nil {
		oneOf(p.problems, at.Child("reason"), *v.Reason, metav1.StatusReasonForbidden, metav1.StatusReasonInvalid,
			metav1.StatusReasonRequestEntityTooLarge)
	}
}

func (p *policyProblems) auditAnnotations(at path, policy string, annotations []admissionv1.AuditAnnotation) {
	if len(annotations) > maxAuditAnnotations {
		p.invalid(at, annotations, "must not have more than %d auditAnnotations", maxAuditAnnotations)
	}
	keys := map[string]bool{}
	for i, a := range annotations {
		at := at.Index(i)
		p.annotationKey(at.Child("key"), policy, a.Key)
		if keys[a.Key] {
			p.add(field.Duplicate(at.Child("key"), a.Key))
		}
		keys[a.Key] = true
		value := at.Child("valueExpression")
		switch text := strings.TrimSpace(a.ValueExpression); {
		case text == "":
			p.required(value, "valueExpression is not specified")
		case len(text) > maxAnnotationExpression:
			p.required(value, fmt.Sprintf("must not exceed %d bytes in length", maxAnnotationExpression))
		default:
			p.compile(value, PolicyAnnotation, text)
		}
	}
}

// annotationKey checks a key, which stands behind the policy's name in the audit log.
func (p *problems) annotationKey(at path, policy, key string) {
	if policy == "" {
		p.invalid(at, key, "requires metadata.name be non-empty")
		return
	}
	p.qualified(at, policy+"/"+key)
}

// MutatingAdmissionPolicy checks a new policy that changes objects.
func MutatingAdmissionPolicy(m *admissionv1.MutatingAdmissionPolicy, check AdmissionExpression) field.ErrorList {
	return append(mutatingPolicy(m, &admissionv1.MutatingAdmissionPolicy{}, check), staticName(m.Name)...)
}

// MutatingAdmissionPolicyUpdate checks a policy that replaces old.
func MutatingAdmissionPolicyUpdate(m, old *admissionv1.MutatingAdmissionPolicy, check AdmissionExpression) field.ErrorList {
	return mutatingPolicy(m, old, check)
}

func mutatingPolicy(m, old *admissionv1.MutatingAdmissionPolicy, check AdmissionExpression) field.ErrorList {
	at, spec := field.NewPath("spec"), &m.Spec
	p := &policyProblems{&problems{}, check, spec.ParamKind != nil, map[string]bool{}}
	p.storedMutating(&old.Spec)
	p.policyHead(at, spec.FailurePolicy, spec.ParamKind, spec.MatchConstraints)
	if spec.MatchConstraints != nil {
		p.mutableOperations(at.Child("matchConstraints"), spec.MatchConstraints)
	}
	if !apiequality.Semantic.DeepEqual(spec.ParamKind, old.Spec.ParamKind) || !apiequality.Semantic.DeepEqual(spec.MatchConditions, old.Spec.MatchConditions) {
		p.matchConditions(at.Child("matchConditions"), spec.MatchConditions, conditionOptions{p.params, p.stored}, check)
	}
	p.variables(at.Child("variables"), spec.Variables)
	if len(spec.Mutations) == 0 {
		p.required(at.Child("mutations"), "mutations must contain at least one item")
	}
	for i := range spec.Mutations {
		p.mutation(at.Child("mutations").Index(i), &spec.Mutations[i])
	}
	if p.present(at.Child("reinvocationPolicy"), string(spec.ReinvocationPolicy)) {
		p.reinvocation(at.Child("reinvocationPolicy"), spec.ReinvocationPolicy)
	}
	return p.list
}

func (p *policyProblems) storedMutating(old *admissionv1.MutatingAdmissionPolicySpec) {
	for _, c := range old.MatchConditions {
		p.stored[c.Expression] = true
	}
	for _, m := range old.Mutations {
		if m.ApplyConfiguration != nil {
			p.stored[m.ApplyConfiguration.Expression] = true
		}
		if m.JSONPatch != nil {
			p.stored[m.JSONPatch.Expression] = true
		}
	}
	p.storedVariables(old.Variables)
}

// mutableOperations refuses deletions: there is nothing to change.
func (p *problems) mutableOperations(at path, match *admissionv1.MatchResources) {
	for _, r := range match.ResourceRules {
		for _, op := range r.Operations {
			oneOf(p, at.Child("resourceRules", "operations"), op, admissionv1.OperationAll, admissionv1.Create, admissionv1.Update, admissionv1.Connect)
		}
	}
}

func (p *policyProblems) mutation(at path, m *admissionv1.Mutation) {
	if !p.present(at.Child("patchType"), string(m.PatchType)) {
		return
	}
	oneOf(p.problems, at.Child("patchType"), m.PatchType, admissionv1.PatchTypeApplyConfiguration, admissionv1.PatchTypeJSONPatch)
	var apply, patch *string
	if m.ApplyConfiguration != nil {
		apply = &m.ApplyConfiguration.Expression
	}
	if m.JSONPatch != nil {
		patch = &m.JSONPatch.Expression
	}
	switch m.PatchType {
	case admissionv1.PatchTypeJSONPatch:
		p.patch(at.Child("jsonPatch"), PolicyJSONPatch, m.PatchType, patch)
		p.noPatch(at, "applyConfiguration", m.PatchType, apply)
	case admissionv1.PatchTypeApplyConfiguration:
		p.patch(at.Child("applyConfiguration"), ApplyConfiguration, m.PatchType, apply)
		p.noPatch(at, "jsonPatch", m.PatchType, patch)
	}
}

func (p *policyProblems) patch(at path, role AdmissionRole, kind admissionv1.PatchType, expression *string) {
	if expression == nil {
		p.required(at, fmt.Sprintf("must be specified when patchType is %s", kind))
		return
	}
	if text := strings.TrimSpace(*expression); p.present(at.Child("expression"), text) {
		p.compile(at.Child("expression"), role, text)
	}
}

func (p *policyProblems) noPatch(at path, name string, kind admissionv1.PatchType, expression *string) {
	if expression != nil {
		p.invalid(at.Child(name), "{"+name+"}", "must not be specified when patchType is %s", string(kind))
	}
}

// ValidatingAdmissionPolicyStatusUpdate checks what the controller found in a policy.
func ValidatingAdmissionPolicyStatusUpdate(v, _ *admissionv1.ValidatingAdmissionPolicy) field.ErrorList {
	p, at := &problems{}, field.NewPath("status")
	if c := v.Status.TypeChecking; c != nil {
		for i, w := range c.ExpressionWarnings {
			at := at.Child("typeChecking", "expressionWarnings").Index(i)
			p.present(at.Child("warning"), w.Warning)
			ref := strings.TrimSpace(w.FieldRef)
			if !p.present(at.Child("fieldRef"), ref) {
				continue
			}
			if err := jsonpath.New("spec").Parse("{" + ref + "}"); err != nil {
				p.invalid(at.Child("fieldRef"), ref, "invalid JSONPath: %s", err.Error())
			}
		}
	}
	p.addAll(metavalidation.ValidateConditions(v.Status.Conditions, at.Child("conditions")))
	return p.list
}

// ValidatingAdmissionPolicyBinding checks a new binding.
func ValidatingAdmissionPolicyBinding(b *admissionv1.ValidatingAdmissionPolicyBinding) field.ErrorList {
	return append(ValidatingAdmissionPolicyBindingUpdate(b, nil), staticName(b.Name)...)
}

// ValidatingAdmissionPolicyBindingUpdate checks a binding that replaces another one.
func ValidatingAdmissionPolicyBindingUpdate(b, _ *admissionv1.ValidatingAdmissionPolicyBinding) field.ErrorList {
	p, at := &problems{}, field.NewPath("spec")
	p.binding(at, b.Spec.PolicyName, b.Spec.ParamRef, b.Spec.MatchResources)
	p.validationActions(at.Child("validationActions"), b.Spec.ValidationActions)
	return p.list
}

// MutatingAdmissionPolicyBinding checks a new binding.
func MutatingAdmissionPolicyBinding(b *admissionv1.MutatingAdmissionPolicyBinding) field.ErrorList {
	return append(MutatingAdmissionPolicyBindingUpdate(b, nil), staticName(b.Name)...)
}

// MutatingAdmissionPolicyBindingUpdate checks a binding that replaces another one.
func MutatingAdmissionPolicyBindingUpdate(b, _ *admissionv1.MutatingAdmissionPolicyBinding) field.ErrorList {
	p, at := &problems{}, field.NewPath("spec")
	p.binding(at, b.Spec.PolicyName, b.Spec.ParamRef, b.Spec.MatchResources)
	if b.Spec.MatchResources != nil {
		p.mutableOperations(at.Child("matchResources"), b.Spec.MatchResources)
	}
	return p.list
}

func (p *problems) binding(at path, policy string, ref *admissionv1.ParamRef, match *admissionv1.MatchResources) {
	if p.present(at.Child("policyName"), policy) {
		matches(p, at.Child("policyName"), policy, apivalidation.NameIsDNSSubdomain(policy, false))
	}
	if ref != nil {
		p.paramRef(at.Child("paramRef"), ref)
	}
	if match != nil {
		p.matchResources(at.Child("matchResources"), match)
	}
}

func (p *problems) paramRef(at path, r *admissionv1.ParamRef) {
	const exclusive = "name and selector are mutually exclusive"
	if r.Name != "" {
		matches(p, at.Child("name"), r.Name, content.IsPathSegmentName(r.Name))
	}
	if r.Selector != nil {
		p.addAll(metavalidation.ValidateLabelSelector(r.Selector, metavalidation.LabelSelectorValidationOptions{}, at.Child("selector")))
	}
	switch {
	case r.Name != "" && r.Selector != nil:
		p.forbidden(at.Child("name"), exclusive)
		p.forbidden(at.Child("selector"), exclusive)
	case r.Name == "" && r.Selector == nil:
		p.required(at, "one of name or selector must be specified")
	}
	if r.ParameterNotFoundAction == nil || *r.ParameterNotFoundAction == "" {
		p.required(at.Child("parameterNotFoundAction"), "")
		return
	}
	oneOf(p, at.Child("parameterNotFoundAction"), *r.ParameterNotFoundAction, admissionv1.DenyAction, admissionv1.AllowAction)
}

func (p *problems) validationActions(at path, actions []admissionv1.ValidationAction) {
	if len(actions) == 0 {
		p.required(at, "at least one validation action is required")
	}
	for i, a := range actions {
		oneOf(p, at.Index(i), a, admissionv1.Deny, admissionv1.Warn, admissionv1.Audit)
		if slices.Contains(actions[:i], a) {
			p.add(field.Duplicate(at.Index(i), a))
		}
	}
	if slices.Contains(actions, admissionv1.Deny) && slices.Contains(actions, admissionv1.Warn) {
		p.invalid(at, actions, "must not contain both Deny and Warn (repeating the same validation failure information in the API response and headers serves no purpose)")
	}
}
