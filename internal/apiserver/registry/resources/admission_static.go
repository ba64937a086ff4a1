package resources

import (
	"fmt"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"wherry.dev/internal/api/validation"
)

// StaticAdmission checks an object of admissionregistration.k8s.io that is not stored, but in a file of the server: only
// such ones have names that end in .static.k8s.io. Nobody's rights count there.
func StaticAdmission(obj runtime.Object) field.ErrorList {
	switch o := obj.(type) {
	case *admissionv1.ValidatingWebhookConfiguration:
		return validation.ValidatingWebhookConfigurationUpdate(o, o, conditionExpression)
	case *admissionv1.MutatingWebhookConfiguration:
		return validation.MutatingWebhookConfigurationUpdate(o, o, conditionExpression)
	case *admissionv1.ValidatingAdmissionPolicy:
		return validation.ValidatingAdmissionPolicyUpdate(o, o, policyExpressions())
	case *admissionv1.MutatingAdmissionPolicy:
		return validation.MutatingAdmissionPolicyUpdate(o, o, policyExpressions())
	case *admissionv1.ValidatingAdmissionPolicyBinding:
		return validation.ValidatingAdmissionPolicyBindingUpdate(o, o)
	case *admissionv1.MutatingAdmissionPolicyBinding:
		return validation.MutatingAdmissionPolicyBindingUpdate(o, o)
	}
	return field.ErrorList{field.InternalError(nil, fmt.Errorf("unexpected %T", obj))}
}
