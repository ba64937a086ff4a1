package validation

import (
	"fmt"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/util/webhook"
)

// ReviewVersions are the versions of AdmissionReview that webhooks may speak.
var ReviewVersions = []string{"v1", "v1beta1"}

// The longest time that a webhook may take, in seconds.
const maxWebhookTimeout = 30

// MutatingWebhookConfiguration checks new webhooks that change objects.
func MutatingWebhookConfiguration(c *admissionv1.MutatingWebhookConfiguration, check AdmissionExpression) field.ErrorList {
	errs := webhooks(c.Webhooks, webhookOptions{}, check)
	return append(errs, staticName(c.Name)...)
}

// MutatingWebhookConfigurationUpdate checks webhooks that replace old.
func MutatingWebhookConfigurationUpdate(c, old *admissionv1.MutatingWebhookConfiguration, check AdmissionExpression) field.ErrorList {
	return webhooks(c.Webhooks, leniency(c.Webhooks, old.Webhooks), check)
}

// ValidatingWebhookConfiguration checks new webhooks that judge objects.
func ValidatingWebhookConfiguration(c *admissionv1.ValidatingWebhookConfiguration, check AdmissionExpression) field.ErrorList {
	errs := webhooks(asMutating(c.Webhooks), webhookOptions{}, check)
	return append(errs, staticName(c.Name)...)
}

// ValidatingWebhookConfigurationUpdate checks webhooks that replace old.
func ValidatingWebhookConfigurationUpdate(c, old *admissionv1.ValidatingWebhookConfiguration, check AdmissionExpression) field.ErrorList {
	hooks := asMutating(c.Webhooks)
	return webhooks(hooks, leniency(hooks, asMutating(old.Webhooks)), check)
}

// asMutating returns the same webhooks as the type that has all their fields and one more.
func asMutating(hooks []admissionv1.ValidatingWebhook) []admissionv1.MutatingWebhook {
	var out []admissionv1.MutatingWebhook
	for _, h := range hooks {
		out = append(out, admissionv1.MutatingWebhook{
			Name: h.Name, ClientConfig: h.ClientConfig, Rules: h.Rules, FailurePolicy: h.FailurePolicy,
			MatchPolicy: h.MatchPolicy, NamespaceSelector: h.NamespaceSelector, ObjectSelector: h.ObjectSelector,
			SideEffects: h.SideEffects, TimeoutSeconds: h.TimeoutSeconds,
			AdmissionReviewVersions: h.AdmissionReviewVersions, MatchConditions: h.MatchConditions,
		})
	}
	return out
}

// webhookOptions say what is not checked, because the stored webhooks have it wrong already.
type webhookOptions struct {
	sideEffects, versions, names, conditions bool

	labels metavalidation.LabelSelectorValidationOptions
	stored map[string]bool // conditions that were accepted before
}

var quietSideEffects = []admissionv1.SideEffectClass{admissionv1.SideEffectClassNone, admissionv1.SideEffectClassNoneOnDryRun}

// leniency returns what may stay as wrong as it is in old.
func leniency(hooks, old []admissionv1.MutatingWebhook) webhookOptions {
	o := webhookOptions{stored: map[string]bool{}, conditions: len(hooks) == len(old)}
	names := map[string]bool{}
	for i, h := range old {
		o.sideEffects = o.sideEffects || h.SideEffects == nil || !slices.Contains(quietSideEffects, *h.SideEffects)
		o.versions = o.versions || len(h.AdmissionReviewVersions) > 0 && !reviewable(h.AdmissionReviewVersions)
		o.names = o.names || names[h.Name]
		names[h.Name] = true
		o.conditions = o.conditions && apiequality.Semantic.DeepEqual(hooks[i].MatchConditions, h.MatchConditions)
		for _, s := range []*metav1.LabelSelector{h.NamespaceSelector, h.ObjectSelector} {
			if len(metavalidation.ValidateLabelSelector(s, metavalidation.LabelSelectorValidationOptions{}, nil)) > 0 {
				o.labels.AllowInvalidLabelValueInSelector = true
			}
		}
		for _, c := range h.MatchConditions {
			o.stored[c.Expression] = true
		}
	}
	return o
}

func reviewable(versions []string) bool {
	return slices.ContainsFunc(versions, func(v string) bool { return slices.Contains(ReviewVersions, v) })
}

func webhooks(hooks []admissionv1.MutatingWebhook, o webhookOptions, check AdmissionExpression) field.ErrorList {
	p, names := &problems{}, map[string]bool{}
	for i := range hooks {
		at, h := field.NewPath("webhooks").Index(i), &hooks[i]
		p.webhook(at, h, o)
		if !o.conditions {
			p.matchConditions(at.Child("matchConditions"), h.MatchConditions, conditionOptions{stored: o.stored}, check)
		}
		p.reviewVersions(at.Child("admissionReviewVersions"), h.AdmissionReviewVersions, o)
		if names[h.Name] && h.Name != "" && !o.names {
			p.add(field.Duplicate(at.Child("name"), h.Name))
		}
		names[h.Name] = true
	}
	return p.list
}

func (p *problems) webhook(at path, h *admissionv1.MutatingWebhook, o webhookOptions) {
	p.addAll(utilvalidation.IsFullyQualifiedName(at.Child("name"), h.Name))
	for i := range h.Rules {
		p.ruleWithOperations(at.Child("rules").Index(i), &h.Rules[i])
	}
	p.admissionFailure(at.Child("failurePolicy"), h.FailurePolicy)
	p.matchPolicy(at.Child("matchPolicy"), h.MatchPolicy)
	p.sideEffects(at.Child("sideEffects"), h.SideEffects, o)
	if t := h.TimeoutSeconds; t != nil && (*t < 1 || *t > maxWebhookTimeout) {
		p.invalid(at.Child("timeoutSeconds"), *t, "the timeout value must be between 1 and 30 seconds")
	}
	p.addAll(metavalidation.ValidateLabelSelector(h.NamespaceSelector, o.labels, at.Child("namespaceSelector")))
	p.addAll(metavalidation.ValidateLabelSelector(h.ObjectSelector, o.labels, at.Child("objectSelector")))
	if h.ReinvocationPolicy != nil {
		p.reinvocation(at.Child("reinvocationPolicy"), *h.ReinvocationPolicy)
	}
	p.webhookClient(at.Child("clientConfig"), &h.ClientConfig)
}

func (p *problems) admissionFailure(at path, policy *admissionv1.FailurePolicyType) {
	if policy != nil {
		oneOf(p, at, *policy, admissionv1.Ignore, admissionv1.Fail)
	}
}

func (p *problems) matchPolicy(at path, policy *admissionv1.MatchPolicyType) {
	if policy != nil {
		oneOf(p, at, *policy, admissionv1.Exact, admissionv1.Equivalent)
	}
}

func (p *problems) reinvocation(at path, policy admissionv1.ReinvocationPolicyType) {
	oneOf(p, at, policy, admissionv1.NeverReinvocationPolicy, admissionv1.IfNeededReinvocationPolicy)
}

func (p *problems) sideEffects(at path, class *admissionv1.SideEffectClass, o webhookOptions) {
	allowed := quietSideEffects
	if o.sideEffects {
		allowed = []admissionv1.SideEffectClass{
			admissionv1.SideEffectClassNone, admissionv1.SideEffectClassNoneOnDryRun,
			admissionv1.SideEffectClassSome, admissionv1.SideEffectClassUnknown,
		}
	}
	if class == nil {
		p.required(at, fmt.Sprintf("must specify one of %s", joined(allowed)))
		return
	}
	oneOf(p, at, *class, allowed...)
}

func joined[T ~string](values []T) string {
	var out []string
	for _, v := range values {
		out = append(out, string(v))
	}
	return strings.Join(out, ", ")
}

func (p *problems) webhookClient(at path, c *admissionv1.WebhookClientConfig) {
	switch {
	case (c.URL == nil) == (c.Service == nil):
		p.required(at, "exactly one of url or service is required")
	case c.URL != nil:
		p.addAll(webhook.ValidateWebhookURL(at.Child("url"), *c.URL, true))
	default:
		port := int32(0) // defaulting has set it
		if c.Service.Port != nil {
			port = *c.Service.Port
		}
		p.addAll(webhook.ValidateWebhookService(at.Child("service"), c.Service.Namespace, c.Service.Name, c.Service.Path, port))
	}
}

func (p *problems) reviewVersions(at path, versions []string, o webhookOptions) {
	if len(versions) == 0 {
		p.required(at, fmt.Sprintf("must specify one of %s", strings.Join(ReviewVersions, ", ")))
		return
	}
	for i, v := range versions {
		if slices.Contains(versions[:i], v) {
			p.invalid(at.Index(i), v, "duplicate version")
			continue
		}
		matches(p, at.Index(i), v, utilvalidation.IsDNS1035Label(v))
	}
	if !o.versions && !reviewable(versions) {
		p.invalid(at, versions, "must include at least one of %s", strings.Join(ReviewVersions, ", "))
	}
}

// StaticSuffix ends the names of webhooks and policies that servers read from files.
const StaticSuffix = ".static.k8s.io"

const reservedName = "names ending with %q are reserved for static manifest-based configurations and cannot be managed via the API"

func staticName(name string) field.ErrorList {
	p := &problems{}
	if strings.HasSuffix(name, StaticSuffix) {
		p.invalid(field.NewPath("metadata", "name"), name, reservedName, StaticSuffix)
	}
	return p.list
}

// StaticNameWarnings returns what to say about an object that got such a name when it was allowed.
func StaticNameWarnings(name string) []string {
	if !strings.HasSuffix(name, StaticSuffix) {
		return nil
	}
	return []string{"metadata.name: " + fmt.Sprintf(reservedName, StaticSuffix)}
}
