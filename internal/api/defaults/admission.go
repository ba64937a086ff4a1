package defaults

import (
	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	webhookPort    = 443
	webhookTimeout = 10 // seconds
)

// MutatingWebhookConfiguration makes webhooks that fail refuse the request, that match equivalent
// kinds and everything else, and that are called once.
func MutatingWebhookConfiguration(c *admissionv1.MutatingWebhookConfiguration) {
	for i := range c.Webhooks {
		h := &c.Webhooks[i]
		setPtr(&h.ReinvocationPolicy, admissionv1.NeverReinvocationPolicy)
		setPtr(&h.FailurePolicy, admissionv1.Fail)
		setPtr(&h.TimeoutSeconds, webhookTimeout)
		match(&h.MatchPolicy, &h.NamespaceSelector, &h.ObjectSelector)
		webhookRules(h.Rules)
		webhookClient(&h.ClientConfig)
	}
}

// ValidatingWebhookConfiguration is like MutatingWebhookConfiguration.
func ValidatingWebhookConfiguration(c *admissionv1.ValidatingWebhookConfiguration) {
	for i := range c.Webhooks {
		h := &c.Webhooks[i]
		setPtr(&h.FailurePolicy, admissionv1.Fail)
		setPtr(&h.TimeoutSeconds, webhookTimeout)
		match(&h.MatchPolicy, &h.NamespaceSelector, &h.ObjectSelector)
		webhookRules(h.Rules)
		webhookClient(&h.ClientConfig)
	}
}

func match(policy **admissionv1.MatchPolicyType, namespaces, objects **metav1.LabelSelector) {
	setPtr(policy, admissionv1.Equivalent)
	setPtr(namespaces, metav1.LabelSelector{})
	setPtr(objects, metav1.LabelSelector{})
}

func webhookRules(rules []admissionv1.RuleWithOperations) {
	for i := range rules {
		setPtr(&rules[i].Scope, admissionv1.AllScopes)
	}
}

func webhookClient(c *admissionv1.WebhookClientConfig) {
	if c.Service != nil {
		setPtr(&c.Service.Port, webhookPort)
	}
}

// ValidatingAdmissionPolicy makes a policy that cannot be evaluated refuse the request.
func ValidatingAdmissionPolicy(p *admissionv1.ValidatingAdmissionPolicy) {
	setPtr(&p.Spec.FailurePolicy, admissionv1.Fail)
	matchResources(p.Spec.MatchConstraints)
}

// ValidatingAdmissionPolicyBinding lets a binding match equivalent kinds.
func ValidatingAdmissionPolicyBinding(b *admissionv1.ValidatingAdmissionPolicyBinding) {
	matchResources(b.Spec.MatchResources)
}

// MutatingAdmissionPolicy makes a policy that cannot be evaluated refuse the request.
func MutatingAdmissionPolicy(p *admissionv1.MutatingAdmissionPolicy) {
	setPtr(&p.Spec.FailurePolicy, admissionv1.Fail)
	matchResources(p.Spec.MatchConstraints)
}

// MutatingAdmissionPolicyBinding lets a binding match equivalent kinds.
func MutatingAdmissionPolicyBinding(b *admissionv1.MutatingAdmissionPolicyBinding) {
	matchResources(b.Spec.MatchResources)
}

func matchResources(m *admissionv1.MatchResources) {
	if m == nil {
		return
	}
	match(&m.MatchPolicy, &m.NamespaceSelector, &m.ObjectSelector)
	for _, rules := range [][]admissionv1.NamedRuleWithOperations{m.ResourceRules, m.ExcludeResourceRules} {
		for i := range rules {
			setPtr(&rules[i].Scope, admissionv1.AllScopes)
		}
	}
}
