package review

import (
	"context"
	"errors"
	"fmt"
	"slices"

	authorizationv1 "k8s.io/api/authorization/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
)

// Authorization returns the endpoints of authorization.k8s.io.
func Authorization(may authorizer.Authorizer, rules authorizer.RuleResolver) map[string]rest.Storage {
	type (
		sar   = *authorizationv1.SubjectAccessReview
		self  = *authorizationv1.SelfSubjectAccessReview
		local = *authorizationv1.LocalSubjectAccessReview
		list  = *authorizationv1.SelfSubjectRulesReview
	)
	return map[string]rest.Storage{
		"subjectaccessreviews": question[sar]{
			newT: func() sar { return &authorizationv1.SubjectAccessReview{} }, singular: "subjectaccessreview",
			answer: func(ctx context.Context, q sar) (sar, error) {
				if errs := validateSpec(q.ObjectMeta, &q.Spec); len(errs) > 0 {
					return nil, invalid("SubjectAccessReview", errs)
				}
				q.Status = ask(ctx, may, subject(&q.Spec), q.Spec.ResourceAttributes, q.Spec.NonResourceAttributes)
				return q, nil
			},
		},
		"localsubjectaccessreviews": question[local]{
			newT: func() local { return &authorizationv1.LocalSubjectAccessReview{} }, singular: "localsubjectaccessreview", namespaced: true,
			answer: func(ctx context.Context, q local) (local, error) {
				if errs := validateLocal(q); len(errs) > 0 {
					return nil, invalid("LocalSubjectAccessReview", errs)
				}
				if ns := genericapirequest.NamespaceValue(ctx); ns != q.Namespace || ns != q.Spec.ResourceAttributes.Namespace {
					return nil, apierrors.NewBadRequest(fmt.Sprintf("spec.resourceAttributes.namespace must match namespace: %v", ns))
				}
				q.Status = ask(ctx, may, subject(&q.Spec), q.Spec.ResourceAttributes, nil)
				return q, nil
			},
		},
		"selfsubjectaccessreviews": question[self]{
			newT: func() self { return &authorizationv1.SelfSubjectAccessReview{} }, singular: "selfsubjectaccessreview",
			answer: func(ctx context.Context, q self) (self, error) {
				u, ok := genericapirequest.UserFrom(ctx)
				if !ok {
					return nil, apierrors.NewBadRequest("no user present on request")
				}
				if errs := validateAttributes(q.ObjectMeta, "must be empty", q.Spec.ResourceAttributes, q.Spec.NonResourceAttributes); len(errs) > 0 {
					return nil, invalid("SelfSubjectAccessReview", errs)
				}
				q.Status = ask(ctx, may, u, q.Spec.ResourceAttributes, q.Spec.NonResourceAttributes)
				return q, nil
			},
		},
		"selfsubjectrulesreviews": question[list]{
			newT: func() list { return &authorizationv1.SelfSubjectRulesReview{} }, singular: "selfsubjectrulesreview",
			answer: func(ctx context.Context, q list) (list, error) { return listRules(ctx, rules, q) },
		},
	}
}

func invalid(kind string, errs field.ErrorList) error {
	return apierrors.NewInvalid(schema.GroupKind{Group: authorizationv1.GroupName, Kind: kind}, "", errs)
}

func validateSpec(meta metav1.ObjectMeta, spec *authorizationv1.SubjectAccessReviewSpec) field.ErrorList {
	errs := validateAttributes(meta, "must be empty", spec.ResourceAttributes, spec.NonResourceAttributes)
	return append(errs, validateUser(spec)...)
}

func validateUser(spec *authorizationv1.SubjectAccessReviewSpec) field.ErrorList {
	if spec.User == "" && len(spec.Groups) == 0 {
		return field.ErrorList{field.Invalid(field.NewPath("spec", "user"), spec.User, "at least one of user or group must be specified")}
	}
	return nil
}

func validateLocal(q *authorizationv1.LocalSubjectAccessReview) field.ErrorList {
	meta := q.ObjectMeta
	meta.Namespace = ""
	errs := validateAttributes(meta, "must be empty except for namespace", q.Spec.ResourceAttributes, q.Spec.NonResourceAttributes)
	errs = append(errs, validateUser(&q.Spec)...)
	spec := field.NewPath("spec")
	if q.Spec.NonResourceAttributes != nil {
		errs = append(errs, field.Invalid(spec.Child("nonResourceAttributes"), q.Spec.NonResourceAttributes, "disallowed on this kind of request"))
	}
	if r := q.Spec.ResourceAttributes; r != nil && r.Namespace != q.Namespace {
		errs = append(errs, field.Invalid(spec.Child("resourceAttributes", "namespace"), r.Namespace, "must match metadata.namespace"))
	}
	return errs
}

// validateAttributes checks what is asked about: a resource or a path, and no object that has a name.
func validateAttributes(meta metav1.ObjectMeta, mustBe string, r *authorizationv1.ResourceAttributes, n *authorizationv1.NonResourceAttributes) field.ErrorList {
	var errs field.ErrorList
	spec := field.NewPath("spec")
	if (r == nil) == (n == nil) {
		errs = append(errs, field.Invalid(spec, n, "exactly one of nonResourceAttributes or resourceAttributes must be specified"))
	}
	if r != nil {
		at := spec.Child("resourceAttributes")
		if s := r.FieldSelector; s != nil {
			errs = append(errs, validateSelector(at.Child("fieldSelector"), s.RawSelector, len(s.Requirements))...)
			for i, q := range s.Requirements {
				errs = append(errs, metavalidation.ValidateFieldSelectorRequirement(q, metavalidation.FieldSelectorValidationOptions{
					AllowUnknownOperatorInRequirement: true}, at.Child("fieldSelector", "requirements").Index(i))...)
			}
		}
		if s := r.LabelSelector; s != nil {
			errs = append(errs, validateSelector(at.Child("labelSelector"), s.RawSelector, len(s.Requirements))...)
			for i, q := range s.Requirements {
				errs = append(errs, metavalidation.ValidateLabelSelectorRequirement(q, metavalidation.LabelSelectorValidationOptions{
					AllowUnknownOperatorInRequirement: true}, at.Child("labelSelector", "requirements").Index(i))...)
			}
		}
	}
	meta.ManagedFields = nil
	if !apiequality.Semantic.DeepEqual(meta, metav1.ObjectMeta{}) {
		errs = append(errs, field.Invalid(field.NewPath("metadata"), meta, mustBe))
	}
	return errs
}

func validateSelector(at *field.Path, raw string, requirements int) field.ErrorList {
	switch {
	case raw != "" && requirements > 0:
		return field.ErrorList{field.Invalid(at.Child("rawSelector"), raw, "may not specified at the same time as requirements")}
	case raw == "" && requirements == 0:
		return field.ErrorList{field.Required(at.Child("requirements"), fmt.Sprintf("when %s is specified, requirements or rawSelector is required", at))}
	}
	return nil
}

func subject(spec *authorizationv1.SubjectAccessReviewSpec) user.Info {
	u := &user.DefaultInfo{Name: spec.User, Groups: slices.Clone(spec.Groups), UID: spec.UID}
	for k, v := range spec.Extra {
		if u.Extra == nil {
			u.Extra = map[string][]string{}
		}
		u.Extra[k] = v
	}
	return u
}

// ask asks the authorizer.
func ask(ctx context.Context, may authorizer.Authorizer, u user.Info, r *authorizationv1.ResourceAttributes, n *authorizationv1.NonResourceAttributes) authorizationv1.SubjectAccessReviewStatus {
	var attrs authorizer.AttributesRecord
	if r != nil {
		attrs = resourceAttributes(u, r)
	} else {
		attrs = authorizer.AttributesRecord{User: u, Verb: n.Verb, Path: n.Path}
	}
	decision, reason, err := may.Authorize(ctx, attrs)
	status := authorizationv1.SubjectAccessReviewStatus{
		Allowed: decision == authorizer.DecisionAllow,
		Denied:  decision == authorizer.DecisionDeny,
		Reason:  reason,
	}
	if err != nil {
		status.EvaluationError = err.Error()
	}
	for _, selector := range []struct {
		name string
		err  error
		left int
	}{
		{"fieldSelector", attrs.FieldSelectorParsingErr, len(attrs.FieldSelectorRequirements)},
		{"labelSelector", attrs.LabelSelectorParsingErr, len(attrs.LabelSelectorRequirements)},
	} {
		if selector.err == nil {
			continue
		}
		how := "ignored"
		if selector.left > 0 {
			how = "partially ignored"
		}
		said := fmt.Sprintf("spec.resourceAttributes.%s %s due to parse error", selector.name, how)
		if status.EvaluationError != "" {
			said = status.EvaluationError + "; " + said
		}
		status.EvaluationError = said
	}
	return status
}

func resourceAttributes(u user.Info, r *authorizationv1.ResourceAttributes) authorizer.AttributesRecord {
	attrs := authorizer.AttributesRecord{
		User: u, Verb: r.Verb, Namespace: r.Namespace, APIGroup: r.Group, APIVersion: r.Version,
		Resource: r.Resource, Subresource: r.Subresource, Name: r.Name, ResourceRequest: true,
	}
	if attrs.APIVersion == "" {
		attrs.APIVersion = "*"
	}
	if s := r.LabelSelector; s != nil {
		attrs.LabelSelectorRequirements, attrs.LabelSelectorParsingErr = labelRequirements(s)
	}
	if s := r.FieldSelector; s != nil {
		attrs.FieldSelectorRequirements, attrs.FieldSelectorParsingErr = fieldRequirements(s)
	}
	return attrs
}

// labelRequirements drops requirements that it does not understand: without them, the question
// covers more objects, not fewer.
func labelRequirements(s *authorizationv1.LabelSelectorAttributes) (labels.Requirements, error) {
	if s.RawSelector != "" {
		parsed, err := labels.Parse(s.RawSelector)
		if err != nil {
			return nil, err
		}
		reqs, _ := parsed.Requirements()
		return reqs, nil
	}
	operators := map[metav1.LabelSelectorOperator]selection.Operator{
		metav1.LabelSelectorOpIn: selection.In, metav1.LabelSelectorOpNotIn: selection.NotIn,
		metav1.LabelSelectorOpExists: selection.Exists, metav1.LabelSelectorOpDoesNotExist: selection.DoesNotExist,
	}
	var reqs labels.Requirements
	var errs []error
	for _, e := range s.Requirements {
		op, ok := operators[e.Operator]
		if !ok {
			errs = append(errs, fmt.Errorf("%q is not a valid label selector operator", e.Operator))
			continue
		}
		req, err := labels.NewRequirement(e.Key, op, e.Values)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		reqs = append(reqs, *req)
	}
	return reqs, errors.Join(errs...)
}

func fieldRequirements(s *authorizationv1.FieldSelectorAttributes) (fields.Requirements, error) {
	if s.RawSelector != "" {
		parsed, err := fields.ParseSelector(s.RawSelector)
		if err != nil {
			return nil, err
		}
		return parsed.Requirements(), nil
	}
	var reqs fields.Requirements
	var errs []error
	for _, e := range s.Requirements {
		req := fields.Requirement{Field: e.Key}
		switch {
		case len(e.Values) != 1:
			errs = append(errs, fmt.Errorf("fieldSelector %q must have exactly one value", e.Key))
			continue
		case e.Operator == metav1.FieldSelectorOpIn:
			req.Operator = selection.Equals
		case e.Operator == metav1.FieldSelectorOpNotIn:
			req.Operator = selection.NotEquals
		default:
			errs = append(errs, fmt.Errorf("%q is not a valid field selector operator", e.Operator))
			continue
		}
		req.Value = e.Values[0]
		reqs = append(reqs, req)
	}
	return reqs, errors.Join(errs...)
}

func listRules(ctx context.Context, rules authorizer.RuleResolver, q *authorizationv1.SelfSubjectRulesReview) (*authorizationv1.SelfSubjectRulesReview, error) {
	u, ok := genericapirequest.UserFrom(ctx)
	if !ok {
		return nil, apierrors.NewBadRequest("no user present on request")
	}
	if q.Spec.Namespace == "" {
		return nil, apierrors.NewBadRequest("no namespace on request")
	}
	resources, urls, incomplete, err := rules.RulesFor(ctx, u, q.Spec.Namespace)
	q = &authorizationv1.SelfSubjectRulesReview{} // the answer has nothing of the question
	q.Status = authorizationv1.SubjectRulesReviewStatus{
		Incomplete:       incomplete,
		ResourceRules:    []authorizationv1.ResourceRule{},
		NonResourceRules: []authorizationv1.NonResourceRule{},
	}
	for _, r := range resources {
		q.Status.ResourceRules = append(q.Status.ResourceRules, authorizationv1.ResourceRule{
			Verbs: r.GetVerbs(), APIGroups: r.GetAPIGroups(), Resources: r.GetResources(), ResourceNames: r.GetResourceNames(),
		})
	}
	for _, r := range urls {
		q.Status.NonResourceRules = append(q.Status.NonResourceRules, authorizationv1.NonResourceRule{
			Verbs: r.GetVerbs(), NonResourceURLs: r.GetNonResourceURLs(),
		})
	}
	if err != nil {
		q.Status.EvaluationError = err.Error()
	}
	return q, nil
}
