package rbac

import (
	"context"
	"fmt"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// Authorizer decides with an Index.
type Authorizer struct {
	authorizer.AuthorizerFunc
	index *Index
}

var (
	_ authorizer.Authorizer   = (*Authorizer)(nil)
	_ authorizer.RuleResolver = (*Authorizer)(nil)
)

// NewAuthorizer returns an authorizer over the index.
func NewAuthorizer(index *Index) *Authorizer {
	a := &Authorizer{index: index}
	a.AuthorizerFunc = a.authorize
	return a
}

func (a *Authorizer) authorize(_ context.Context, attrs authorizer.Attributes) (authorizer.Decision, string, error) {
	decision, reason := authorizer.DecisionNoOpinion, ""
	a.index.visit(attrs.GetUser(), attrs.GetNamespace(), func(g grant) bool {
		if !Allows(g.rule, attrs) {
			return true
		}
		decision, reason = authorizer.DecisionAllow, "RBAC: allowed by "+g.String()
		return false
	})
	return decision, reason, nil
}

func (g grant) String() string {
	who := fmt.Sprintf("User %q", g.subject.name)
	if g.subject.group {
		who = fmt.Sprintf("Group %q", g.subject.name)
	}
	for _, s := range g.binding.subjects {
		if s.Kind == rbacv1.ServiceAccountKind && subjectOf(s, g.binding.key.Namespace) == g.subject {
			who = fmt.Sprintf("ServiceAccount %q", s.Name+"/"+s.Namespace)
		}
	}
	ref := g.binding.ref
	if g.binding.key.Namespace == "" {
		return fmt.Sprintf("ClusterRoleBinding %q of %s %q to %s", g.binding.key.Name, ref.Kind, ref.Name, who)
	}
	return fmt.Sprintf("RoleBinding %q of %s %q to %s", g.binding.key.Name+"/"+g.binding.key.Namespace, ref.Kind, ref.Name, who)
}

// Allows reports whether the rule allows the request.
func Allows(rule *rbacv1.PolicyRule, attrs authorizer.Attributes) bool {
	if !has(rule.Verbs, attrs.GetVerb(), rbacv1.VerbAll) {
		return false
	}
	if !attrs.IsResourceRequest() {
		return slices.ContainsFunc(rule.NonResourceURLs, func(url string) bool { return urlMatches(url, attrs.GetPath()) })
	}
	return has(rule.APIGroups, attrs.GetAPIGroup(), rbacv1.APIGroupAll) &&
		resourceMatches(rule.Resources, attrs.GetResource(), attrs.GetSubresource()) &&
		(len(rule.ResourceNames) == 0 || slices.Contains(rule.ResourceNames, attrs.GetName()))
}

func has(list []string, value, all string) bool {
	return slices.Contains(list, all) || slices.Contains(list, value)
}

// resourceMatches reports whether a list has the resource: as "pods", "pods/log", "*/log" or "*".
func resourceMatches(list []string, resource, subresource string) bool {
	want := resource
	if subresource != "" {
		want += "/" + subresource
	}
	for _, r := range list {
		if r == rbacv1.ResourceAll || r == want {
			return true
		}
		if subresource != "" && r == "*/"+subresource {
			return true
		}
	}
	return false
}

// urlMatches reports whether path matches pattern: an exact path, "*", or a prefix that ends in
// "*".
func urlMatches(pattern, path string) bool {
	if pattern == rbacv1.NonResourceAll || pattern == path {
		return true
	}
	prefix, ok := strings.CutSuffix(pattern, "*")
	return ok && strings.HasPrefix(path, strings.TrimRight(prefix, "*"))
}

// Rules returns everything that u may do in the cluster and in the namespace.
func (a *Authorizer) Rules(u user.Info, namespace string) []rbacv1.PolicyRule {
	var rules []rbacv1.PolicyRule
	a.index.visit(u, namespace, func(g grant) bool {
		rules = append(rules, *g.rule)
		return true
	})
	return rules
}

// RulesFor implements authorizer.RuleResolver.
func (a *Authorizer) RulesFor(_ context.Context, u user.Info, namespace string) ([]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool, error) {
	var resources []authorizer.ResourceRuleInfo
	var urls []authorizer.NonResourceRuleInfo
	for _, r := range a.Rules(u, namespace) {
		if len(r.Resources) > 0 {
			resources = append(resources, &authorizer.DefaultResourceRuleInfo{
				Verbs: r.Verbs, APIGroups: r.APIGroups, Resources: r.Resources, ResourceNames: r.ResourceNames,
			})
		}
		if len(r.NonResourceURLs) > 0 {
			urls = append(urls, &authorizer.DefaultNonResourceRuleInfo{Verbs: r.Verbs, NonResourceURLs: r.NonResourceURLs})
		}
	}
	return resources, urls, false, nil
}
