package clusterroleaggregation

import (
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// role reads a role from words: its name, "+LABEL" for a label, "*LABEL" for a selector, and others for
// rules, one for each resource.
func role(words string) *rbacv1.ClusterRole {
	fields := strings.Fields(words)
	r := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: fields[0], Labels: map[string]string{}}}
	for _, w := range fields[1:] {
		if label, ok := strings.CutPrefix(w, "+"); ok {
			r.Labels[label] = "true"
		} else if label, ok := strings.CutPrefix(w, "*"); ok {
			if r.AggregationRule == nil {
				r.AggregationRule = &rbacv1.AggregationRule{}
			}
			selector := metav1.LabelSelector{MatchLabels: map[string]string{label: "true"}}
			r.AggregationRule.ClusterRoleSelectors = append(r.AggregationRule.ClusterRoleSelectors, selector)
		} else {
			r.Rules = append(r.Rules, rbacv1.PolicyRule{Verbs: []string{"get"}, Resources: []string{w}})
		}
	}
	return r
}

func show(r *rbacv1.ClusterRole) string {
	out := []string{r.Name + ":"}
	for _, rule := range r.Rules {
		out = append(out, rule.Resources...)
	}
	return strings.Join(out, " ")
}

func TestWhatAnAggregatedRoleGets(t *testing.T) {
	for name, tc := range map[string]struct{ roles, want []string }{
		"nothing to aggregate":   {[]string{"a pods", "b +x pods"}, nil},
		"of one label":           {[]string{"all *to", "a +to pods", "b +other services"}, []string{"all: pods"}},
		"already there":          {[]string{"all *to pods", "a +to pods"}, nil},
		"in order of the names":  {[]string{"all *to", "b +to pods", "a +to services"}, []string{"all: services pods"}},
		"selectors come first":   {[]string{"all *x *y", "b +x pods", "a +y services"}, []string{"all: pods services"}},
		"a rule only once":       {[]string{"all *x *y", "a +x pods nodes", "b +y nodes"}, []string{"all: pods nodes"}},
		"not its own":            {[]string{"all *x +x secrets", "a +x pods"}, []string{"all: pods"}},
		"not one that is gone":   {[]string{"all *x pods secrets", "a +x pods"}, []string{"all: pods"}},
		"none any more":          {[]string{"all *x pods"}, []string{"all:"}},
		"of aggregated roles":    {[]string{"all *x", "a +x *y", "b +y services"}, []string{"a: services", "all: services"}},
		"old rules of those":     {[]string{"all *x", "a +x *y secrets", "b +y services"}, []string{"a: services", "all: services"}},
		"two that are in either": {[]string{"a +y *x old nodes", "b +x *y old nodes", "c +y nodes"}, []string{"a: nodes", "b: nodes"}},
	} {
		t.Run(name, func(t *testing.T) {
			var roles []*rbacv1.ClusterRole
			for _, words := range tc.roles {
				roles = append(roles, role(words))
			}
			var got []string
			for _, r := range plan(roles) {
				got = append(got, show(r))
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("%q, want %q", got, tc.want)
			}
		})
	}
}

func TestARoleWhoseSelectorNobodyUnderstandsIsLeftAlone(t *testing.T) {
	r := role("all *x pods")
	r.AggregationRule.ClusterRoleSelectors[0].MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "x", Operator: "Odd"}}
	if got := plan([]*rbacv1.ClusterRole{r, role("a +x nodes")}); len(got) > 0 {
		t.Errorf("%v", got)
	}
}
