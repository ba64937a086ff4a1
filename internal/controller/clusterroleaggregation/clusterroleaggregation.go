// Package clusterroleaggregation fills cluster roles that have an aggregation rule: their rules are those
// of all roles that its selectors match. Authorization goes by the rules that are written there.
package clusterroleaggregation

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	clientset "k8s.io/client-go/kubernetes"
	rbaclisters "k8s.io/client-go/listers/rbac/v1"

	"wherry.dev/internal/controller"
)

// manager is upstream's name for this writer in managed fields.
const manager = "clusterrole-aggregation-controller"

// all is the one key: any role can be part of any other, so that all are looked at together.
const all = "all"

// Controller fills roles. Create one with New.
type Controller struct {
	client clientset.Interface
	roles  rbaclisters.ClusterRoleLister
	loop   *controller.Loop
}

// New returns the controller, with the informers of f.
func New(client clientset.Interface, f informers.SharedInformerFactory) (*Controller, error) {
	roles := f.Rbac().V1().ClusterRoles()
	c := &Controller{client: client, roles: roles.Lister()}
	c.loop = controller.NewLoop("ClusterRoleAggregator", c.reconcile)
	return c, c.loop.Watch(roles.Informer(), func(_, _ any) { c.loop.Add(all) })
}

// Run fills roles until ctx ends.
func (c *Controller) Run(ctx context.Context) error { return c.loop.Run(ctx) }

func (c *Controller) reconcile(ctx context.Context, _ string) error {
	roles, err := c.roles.List(labels.Everything())
	if err != nil {
		return err
	}
	var conflict error
	var errs []error
	for _, r := range plan(roles) {
		switch err := c.write(ctx, r); {
		case apierrors.IsConflict(err):
			conflict = err
		case err != nil:
			errs = append(errs, err)
		}
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	return conflict // the loop tries again in silence
}

func (c *Controller) write(ctx context.Context, r *rbacv1.ClusterRole) error {
	_, err := c.client.RbacV1().ClusterRoles().Update(ctx, r, metav1.UpdateOptions{FieldManager: manager})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("rules of cluster role %s: %w", r.Name, err)
	}
	return nil
}

// plan returns the roles whose rules are not what they aggregate, with the right ones.
func plan(roles []*rbacv1.ClusterRole) []*rbacv1.ClusterRole {
	sorted := slices.SortedFunc(slices.Values(roles), func(a, b *rbacv1.ClusterRole) int { return cmp.Compare(a.Name, b.Name) })
	var out []*rbacv1.ClusterRole
	for _, r := range sorted {
		if r.AggregationRule == nil {
			continue
		}
		a := aggregation{roles: sorted, visited: map[string]bool{r.Name: true}}
		if !a.visit(r) || equality.Semantic.DeepEqual(a.rules, r.Rules) {
			continue
		}
		r = r.DeepCopy()
		r.Rules = a.rules
		out = append(out, r)
	}
	return out
}

// aggregation collects the rules of one role, in upstream's order: by the order of the selectors, then
// by the names of the roles. It goes down to the roles that have rules of their own. What other
// aggregated roles have is a copy of these, and perhaps an old one: two roles that are part of each other
// would never lose a rule again.
type aggregation struct {
	roles   []*rbacv1.ClusterRole // by name
	visited map[string]bool
	rules   []rbacv1.PolicyRule
}

// visit adds the rules of a role. It returns false if one cannot tell which these are: validation does
// not admit such a selector, and an older version's object is better left alone.
func (a *aggregation) visit(r *rbacv1.ClusterRole) bool {
	if r.AggregationRule == nil {
		for i := range r.Rules {
			a.add(&r.Rules[i])
		}
		return true
	}
	for i := range r.AggregationRule.ClusterRoleSelectors {
		selector, err := metav1.LabelSelectorAsSelector(&r.AggregationRule.ClusterRoleSelectors[i])
		if err != nil {
			return false
		}
		for _, part := range a.roles {
			if a.visited[part.Name] || !selector.Matches(labels.Set(part.Labels)) {
				continue
			}
			a.visited[part.Name] = true
			if !a.visit(part) {
				return false
			}
		}
	}
	return true
}

func (a *aggregation) add(rule *rbacv1.PolicyRule) {
	same := func(r rbacv1.PolicyRule) bool { return equality.Semantic.DeepEqual(r, *rule) }
	if !slices.ContainsFunc(a.rules, same) {
		a.rules = append(a.rules, *rule.DeepCopy())
	}
}
