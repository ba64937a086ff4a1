package resources

import (
	"context"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"wherry.dev/internal/api/validation"
	"wherry.dev/internal/apiserver/registry"
	"wherry.dev/internal/apiserver/registry/printers"
)

var apiExtensions = []string{"api-extensions"}

func mutatingWebhookConfigurations() registry.Row[*admissionv1.MutatingWebhookConfiguration] {
	type webhooks = *admissionv1.MutatingWebhookConfiguration
	return registry.Row[webhooks]{
		Resource:   gvr(admissionv1.SchemeGroupVersion, "mutatingwebhookconfigurations"),
		Kind:       "MutatingWebhookConfiguration",
		Singular:   "mutatingwebhookconfiguration",
		Categories: apiExtensions,
		New:        func() webhooks { return &admissionv1.MutatingWebhookConfiguration{} },
		NewList:    list[admissionv1.MutatingWebhookConfigurationList](),
		Table:      printers.MutatingWebhookConfigurations,
		CheckName:  apivalidation.NameIsDNSSubdomain,
		Strategy: registry.Strategy[webhooks]{
			Create: func(_ context.Context, c webhooks) { c.Generation = 1 },
			Update: func(_ context.Context, c, old webhooks) {
				bump(c, old, !apiequality.Semantic.DeepEqual(c.Webhooks, old.Webhooks))
			},
			Validate: func(_ context.Context, c webhooks) field.ErrorList {
				return validation.MutatingWebhookConfiguration(c, conditionExpression)
			},
			ValidateUpdate: func(_ context.Context, c, old webhooks) field.ErrorList {
				return validation.MutatingWebhookConfigurationUpdate(c, old, conditionExpression)
			},
			WarnUpdate:            staticName[webhooks],
			NoUnconditionalUpdate: true,
		},
	}
}

func validatingWebhookConfigurations() registry.Row[*admissionv1.ValidatingWebhookConfiguration] {
	type webhooks = *admissionv1.ValidatingWebhookConfiguration
	return registry.Row[webhooks]{
		Resource:   gvr(admissionv1.SchemeGroupVersion, "validatingwebhookconfigurations"),
		Kind:       "ValidatingWebhookConfiguration",
		Singular:   "validatingwebhookconfiguration",
		Categories: apiExtensions,
		New:        func() webhooks { return &admissionv1.ValidatingWebhookConfiguration{} },
		NewList:    list[admissionv1.ValidatingWebhookConfigurationList](),
		Table:      printers.ValidatingWebhookConfigurations,
		CheckName:  apivalidation.NameIsDNSSubdomain,
		Strategy: registry.Strategy[webhooks]{
			Create: func(_ context.Context, c webhooks) { c.Generation = 1 },
			Update: func(_ context.Context, c, old webhooks) {
				bump(c, old, !apiequality.Semantic.DeepEqual(c.Webhooks, old.Webhooks))
			},
			Validate: func(_ context.Context, c webhooks) field.ErrorList {
				return validation.ValidatingWebhookConfiguration(c, conditionExpression)
			},
			ValidateUpdate: func(_ context.Context, c, old webhooks) field.ErrorList {
				return validation.ValidatingWebhookConfigurationUpdate(c, old, conditionExpression)
			},
			WarnUpdate:            staticName[webhooks],
			NoUnconditionalUpdate: true,
		},
	}
}

func validatingAdmissionPolicies(deps Deps) registry.Row[*admissionv1.ValidatingAdmissionPolicy] {
	type policy = *admissionv1.ValidatingAdmissionPolicy
	return registry.Row[policy]{
		Resource:   gvr(admissionv1.SchemeGroupVersion, "validatingadmissionpolicies"),
		Kind:       "ValidatingAdmissionPolicy",
		Singular:   "validatingadmissionpolicy",
		Categories: apiExtensions,
		New:        func() policy { return &admissionv1.ValidatingAdmissionPolicy{} },
		NewList:    list[admissionv1.ValidatingAdmissionPolicyList](),
		Table:      printers.ValidatingAdmissionPolicies,
		CheckName:  apivalidation.NameIsDNSSubdomain,
		Strategy: registry.Strategy[policy]{
			Create: func(_ context.Context, p policy) {
				p.Status, p.Generation = admissionv1.ValidatingAdmissionPolicyStatus{}, 1
			},
			Update: func(_ context.Context, p, old policy) {
				p.Status = old.Status
				bump(p, old, !apiequality.Semantic.DeepEqual(p.Spec, old.Spec))
			},
			Validate: func(ctx context.Context, p policy) field.ErrorList {
				errs := validation.ValidatingAdmissionPolicy(p, policyExpressions())
				return orRights(errs, func() *field.Error { return deps.mayReadKind(ctx, p.Spec.ParamKind, nil) })
			},
			ValidateUpdate: func(ctx context.Context, p, old policy) field.ErrorList {
				errs := validation.ValidatingAdmissionPolicyUpdate(p, old, policyExpressions())
				return orRights(errs, func() *field.Error { return deps.mayReadKind(ctx, p.Spec.ParamKind, old.Spec.ParamKind) })
			},
			WarnUpdate:            staticName[policy],
			Reset:                 []string{"status"},
			NoUnconditionalUpdate: true,
		},
		Status: &registry.Strategy[policy]{
			Update: func(_ context.Context, p, old policy) {
				p.Spec = old.Spec
				metav1.ResetObjectMetaForStatus(&p.ObjectMeta, &old.ObjectMeta)
			},
			ValidateUpdate:        onUpdate(validation.ValidatingAdmissionPolicyStatusUpdate),
			Reset:                 []string{"metadata", "spec"},
			NoUnconditionalUpdate: true,
		},
	}
}

func validatingAdmissionPolicyBindings(deps Deps) registry.Row[*admissionv1.ValidatingAdmissionPolicyBinding] {
	type binding = *admissionv1.ValidatingAdmissionPolicyBinding
	kind := func(ctx context.Context, name string) (*admissionv1.ParamKind, error) {
		p, err := registry.Get[*admissionv1.ValidatingAdmissionPolicy](ctx, deps.Lookup, admissionv1.Resource("validatingadmissionpolicies"), "", name)
		if err != nil {
			return nil, err
		}
		return p.Spec.ParamKind, nil
	}
	return registry.Row[binding]{
		Resource:   gvr(admissionv1.SchemeGroupVersion, "validatingadmissionpolicybindings"),
		Kind:       "ValidatingAdmissionPolicyBinding",
		Singular:   "validatingadmissionpolicybinding",
		Categories: apiExtensions,
		New:        func() binding { return &admissionv1.ValidatingAdmissionPolicyBinding{} },
		NewList:    list[admissionv1.ValidatingAdmissionPolicyBindingList](),
		Table:      printers.ValidatingAdmissionPolicyBindings,
		CheckName:  apivalidation.NameIsDNSSubdomain,
		Strategy: registry.Strategy[binding]{
			Create: func(_ context.Context, b binding) { b.Generation = 1 },
			Update: func(_ context.Context, b, old binding) {
				bump(b, old, !apiequality.Semantic.DeepEqual(b.Spec, old.Spec))
			},
			Validate: func(ctx context.Context, b binding) field.ErrorList {
				errs := validation.ValidatingAdmissionPolicyBinding(b)
				return orRights(errs, func() *field.Error {
					return deps.mayReadParams(ctx, kind, params{b.Spec.PolicyName, b.Spec.ParamRef}, params{})
				})
			},
			ValidateUpdate: func(ctx context.Context, b, old binding) field.ErrorList {
				errs := validation.ValidatingAdmissionPolicyBindingUpdate(b, old)
				return orRights(errs, func() *field.Error {
					return deps.mayReadParams(ctx, kind, params{b.Spec.PolicyName, b.Spec.ParamRef}, params{old.Spec.PolicyName, old.Spec.ParamRef})
				})
			},
			WarnUpdate:            staticName[binding],
			NoUnconditionalUpdate: true,
		},
	}
}

func mutatingAdmissionPolicies(deps Deps) registry.Row[*admissionv1.MutatingAdmissionPolicy] {
	type policy = *admissionv1.MutatingAdmissionPolicy
	return registry.Row[policy]{
		Resource:   gvr(admissionv1.SchemeGroupVersion, "mutatingadmissionpolicies"),
		Kind:       "MutatingAdmissionPolicy",
		Singular:   "mutatingadmissionpolicy",
		Categories: apiExtensions,
		New:        func() policy { return &admissionv1.MutatingAdmissionPolicy{} },
		NewList:    list[admissionv1.MutatingAdmissionPolicyList](),
		Table:      printers.MutatingAdmissionPolicies,
		CheckName:  apivalidation.NameIsDNSSubdomain,
		Strategy: registry.Strategy[policy]{
			Create: func(_ context.Context, p policy) { p.Generation = 1 },
			Update: func(_ context.Context, p, old policy) {
				bump(p, old, !apiequality.Semantic.DeepEqual(p.Spec, old.Spec))
			},
			Validate: func(ctx context.Context, p policy) field.ErrorList {
				errs := validation.MutatingAdmissionPolicy(p, policyExpressions())
				return orRights(errs, func() *field.Error { return deps.mayReadKind(ctx, p.Spec.ParamKind, nil) })
			},
			ValidateUpdate: func(ctx context.Context, p, old policy) field.ErrorList {
				errs := validation.MutatingAdmissionPolicyUpdate(p, old, policyExpressions())
				return orRights(errs, func() *field.Error { return deps.mayReadKind(ctx, p.Spec.ParamKind, old.Spec.ParamKind) })
			},
			WarnUpdate:            staticName[policy],
			NoUnconditionalUpdate: true,
		},
	}
}

func mutatingAdmissionPolicyBindings(deps Deps) registry.Row[*admissionv1.MutatingAdmissionPolicyBinding] {
	type binding = *admissionv1.MutatingAdmissionPolicyBinding
	kind := func(ctx context.Context, name string) (*admissionv1.ParamKind, error) {
		p, err := registry.Get[*admissionv1.MutatingAdmissionPolicy](ctx, deps.Lookup, admissionv1.Resource("mutatingadmissionpolicies"), "", name)
		if err != nil {
			return nil, err
		}
		return p.Spec.ParamKind, nil
	}
	return registry.Row[binding]{
		Resource:   gvr(admissionv1.SchemeGroupVersion, "mutatingadmissionpolicybindings"),
		Kind:       "MutatingAdmissionPolicyBinding",
		Singular:   "mutatingadmissionpolicybinding",
		Categories: apiExtensions,
		New:        func() binding { return &admissionv1.MutatingAdmissionPolicyBinding{} },
		NewList:    list[admissionv1.MutatingAdmissionPolicyBindingList](),
		Table:      printers.MutatingAdmissionPolicyBindings,
		CheckName:  apivalidation.NameIsDNSSubdomain,
		Strategy: registry.Strategy[binding]{
			Create: func(_ context.Context, b binding) { b.Generation = 1 },
			Update: func(_ context.Context, b, old binding) {
				bump(b, old, !apiequality.Semantic.DeepEqual(b.Spec, old.Spec))
			},
			Validate: func(ctx context.Context, b binding) field.ErrorList {
				errs := validation.MutatingAdmissionPolicyBinding(b)
				return orRights(errs, func() *field.Error {
					return deps.mayReadParams(ctx, kind, params{b.Spec.PolicyName, b.Spec.ParamRef}, params{})
				})
			},
			ValidateUpdate: func(ctx context.Context, b, old binding) field.ErrorList {
				errs := validation.MutatingAdmissionPolicyBindingUpdate(b, old)
				return orRights(errs, func() *field.Error {
					return deps.mayReadParams(ctx, kind, params{b.Spec.PolicyName, b.Spec.ParamRef}, params{old.Spec.PolicyName, old.Spec.ParamRef})
				})
			},
			WarnUpdate:            staticName[binding],
			NoUnconditionalUpdate: true,
		},
	}
}

func staticName[T metav1.Object](_ context.Context, obj, _ T) []string {
	return validation.StaticNameWarnings(obj.GetName())
}

// orRights asks for the right to read parameters only if an object is well-formed.
func orRights(errs field.ErrorList, refused func() *field.Error) field.ErrorList {
	if len(errs) > 0 {
		return errs
	}
	if err := refused(); err != nil {
		return field.ErrorList{err}
	}
	return nil
}
