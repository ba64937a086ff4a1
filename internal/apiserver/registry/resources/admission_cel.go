package resources

import (
	"errors"
	"sync"

	"k8s.io/apimachinery/pkg/util/validation/field"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating/patch"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions"
	"k8s.io/apiserver/pkg/cel"
	"k8s.io/apiserver/pkg/cel/environment"

	"wherry.dev/internal/api/validation"
)

// plainCompiler compiles expressions without variables. It is made for the first of them: it holds
// some megabytes.
var plainCompiler = sync.OnceValue(func() plugincel.Compiler {
	return plugincel.NewCompiler(environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()))
})

// conditionExpression compiles the match condition of a webhook.
func conditionExpression(at *field.Path, source validation.AdmissionSource) *field.Error {
	return compile(plainCompiler(), at, source)
}

// policyExpressions returns what compiles the expressions of one policy. Match conditions are checked
// without the policy's variables, as upstream does.
func policyExpressions() validation.AdmissionExpression {
	var composed *plugincel.CompositedCompiler
	return func(at *field.Path, source validation.AdmissionSource) *field.Error {
		if source.Role == validation.MatchCondition {
			return compile(plainCompiler(), at, source)
		}
		if composed == nil {
			var err error
			composed, err = plugincel.NewCompositedCompiler(environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()))
			if err != nil {
				return field.InternalError(at, err)
			}
		}
		if source.Role == validation.PolicyVariable {
			return compileVariable(composed, at, source)
		}
		return compile(composed, at, source)
	}
}

func compile(compiler plugincel.Compiler, at *field.Path, source validation.AdmissionSource) *field.Error {
	vars := plugincel.OptionalVariableDeclarations{HasParams: source.Params, HasAuthorizer: source.Role != validation.PolicyMessage}
	vars.HasPatchTypes = source.Role == validation.ApplyConfiguration || source.Role == validation.PolicyJSONPatch
	return expressionError(at, source, compiler.CompileCELExpression(accessor(source), vars, environmentOf(source)).Error)
}

func compileVariable(compiler *plugincel.CompositedCompiler, at *field.Path, source validation.AdmissionSource) *field.Error {
	variable := &validating.Variable{Name: source.Name, Expression: source.Text}
	vars := plugincel.OptionalVariableDeclarations{HasParams: source.Params, HasAuthorizer: true}
	return expressionError(at, source, compiler.CompileAndStoreVariable(variable, vars, environmentOf(source)).Error)
}

func environmentOf(source validation.AdmissionSource) environment.Type {
	if source.Stored {
		return environment.StoredExpressions
	}
	return environment.NewExpressions
}

// accessor says what an expression must return.
func accessor(source validation.AdmissionSource) plugincel.ExpressionAccessor {
	switch source.Role {
	case validation.PolicyValidation:
		return &validating.ValidationCondition{Expression: source.Text}
	case validation.PolicyMessage:
		return &validating.MessageExpressionCondition{MessageExpression: source.Text}
	case validation.PolicyAnnotation:
		return &validating.AuditAnnotationCondition{ValueExpression: source.Text}
	case validation.ApplyConfiguration:
		return &patch.ApplyConfigurationCondition{Expression: source.Text}
	case validation.PolicyJSONPatch:
		return &patch.JSONPatchCondition{Expression: source.Text}
	}
	return &matchconditions.MatchCondition{Expression: source.Text}
}

func expressionError(at *field.Path, source validation.AdmissionSource, result *cel.Error) *field.Error {
	switch {
	case result == nil:
		return nil
	case result.Type == cel.ErrorTypeRequired:
		return field.Required(at, result.Detail)
	case result.Type == cel.ErrorTypeInvalid:
		return field.Invalid(at, source.Text, result.Detail)
	}
	return field.InternalError(at, errors.New(result.Detail))
}
