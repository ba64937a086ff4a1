// Package role keeps users from granting what they do not have themselves: nobody can write a role
// with more rights than their own, or bind a role that has more. The verbs "escalate" and "bind"
// override that.
package role

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/component-helpers/auth/rbac/validation"

	"wherry.dev/internal/apiserver/auth/rbac"
)

// Guard checks what roles and bindings would grant.
type Guard struct {
	Authorizer authorizer.Authorizer
	ByRole     *rbac.Authorizer
	Roles      *rbac.Index
}

// everything is what a user must have to write an aggregation rule, which can collect any rules.
var everything = []rbacv1.PolicyRule{
	{Verbs: []string{"*"}, APIGroups: []string{"*"}, Resources: []string{"*"}},
	{Verbs: []string{"*"}, NonResourceURLs: []string{"*"}},
}

// Customize makes the store of roles or bindings ask the guard before each write.
func (g *Guard) Customize(store *genericregistry.Store) {
	resource := store.DefaultQualifiedResource
	check := func(ctx context.Context, obj, old runtime.Object) (genericregistry.FinishFunc, error) {
		done := func(context.Context, bool) {}
		if err := g.check(ctx, resource, obj, old); err != nil {
			return nil, err
		}
		return done, nil
	}
	store.BeginCreate = func(ctx context.Context, obj runtime.Object, _ *metav1.CreateOptions) (genericregistry.FinishFunc, error) {
		return check(ctx, obj, nil)
	}
	store.BeginUpdate = func(ctx context.Context, obj, old runtime.Object, _ *metav1.UpdateOptions) (genericregistry.FinishFunc, error) {
		return check(ctx, obj, old)
	}
}

func (g *Guard) check(ctx context.Context, resource schema.GroupResource, obj, old runtime.Object) error {
	u, ok := request.UserFrom(ctx)
	if !ok {
		return apierrors.NewInternalError(errors.New("no user on context"))
	}
	if slices.Contains(u.GetGroups(), user.SystemPrivilegedGroup) {
		return nil
	}
	name := obj.(metav1.Object).GetName()
	if old != nil && onlyMetadataForDeletion(obj, old) {
		return nil
	}
	namespace := request.NamespaceValue(ctx)
	var err error
	switch o := obj.(type) {
	case *rbacv1.Role:
		err = g.rules(ctx, u, namespace, resource, name, o.Rules, false)
	case *rbacv1.ClusterRole:
		was, _ := old.(*rbacv1.ClusterRole)
		err = g.rules(ctx, u, namespace, resource, name, o.Rules, aggregates(o) || aggregates(was))
	case *rbacv1.RoleBinding:
		return g.binding(ctx, u, namespace, resource, name, o.RoleRef)
	case *rbacv1.ClusterRoleBinding:
		return g.binding(ctx, u, "", resource, name, o.RoleRef)
	default:
		err = fmt.Errorf("unexpected %T", obj)
	}
	if err != nil {
		return apierrors.NewForbidden(resource, name, err)
	}
	return nil
}

func aggregates(r *rbacv1.ClusterRole) bool {
	return r != nil && r.AggregationRule != nil && len(r.AggregationRule.ClusterRoleSelectors) > 0
}

// rules returns an error if the user may not write these rules into a role. A user with "escalate"
// on the role may write any.
func (g *Guard) rules(ctx context.Context, u user.Info, namespace string, resource schema.GroupResource, name string, rules []rbacv1.PolicyRule, aggregated bool) error {
	allowed, err := g.may(ctx, u, "escalate", namespace, resource.Resource, name)
	if err != nil || allowed {
		return err
	}
	if err := g.covers(u, namespace, rules); err != nil {
		return err
	}
	if aggregated && g.covers(u, namespace, everything) != nil {
		return errors.New("must have cluster-admin privileges to use the aggregationRule")
	}
	return nil
}

// binding returns an error if the user may not bind the role. A user with "bind" on the role may
// bind it to anybody.
func (g *Guard) binding(ctx context.Context, u user.Info, namespace string, resource schema.GroupResource, name string, ref rbacv1.RoleRef) error {
	kinds := map[string]string{"Role": "roles", "ClusterRole": "clusterroles"}
	allowed, err := g.may(ctx, u, "bind", namespace, kinds[ref.Kind], ref.Name)
	if err != nil {
		return apierrors.NewForbidden(resource, name, err)
	}
	if allowed {
		return nil
	}
	rules, ok := g.Roles.Role(ref, namespace)
	if !ok {
		return apierrors.NewNotFound(schema.GroupResource{Group: rbacv1.GroupName, Resource: kinds[ref.Kind]}, ref.Name)
	}
	if err := g.covers(u, namespace, rules); err != nil {
		return apierrors.NewForbidden(resource, name, err)
	}
	return nil
}

func (g *Guard) may(ctx context.Context, u user.Info, verb, namespace, resource, name string) (bool, error) {
	decision, _, err := g.Authorizer.Authorize(ctx, authorizer.AttributesRecord{
		User: u, Verb: verb, Namespace: namespace, APIGroup: rbacv1.GroupName, APIVersion: "*",
		Resource: resource, Name: name, ResourceRequest: true,
	})
	if err != nil {
		return false, fmt.Errorf("authorize %s of %s %q: %w", verb, resource, name, err)
	}
	return decision == authorizer.DecisionAllow, nil
}

func (g *Guard) covers(u user.Info, namespace string, rules []rbacv1.PolicyRule) error {
	ok, missing := validation.Covers(g.ByRole.Rules(u, namespace), rules)
	if ok {
		return nil
	}
	var lines []string
	for _, r := range compact(missing) {
		lines = append(lines, describe(r))
	}
	slices.Sort(lines)
	return fmt.Errorf("user %q (groups=%q) is attempting to grant RBAC permissions not currently held:\n%s",
		u.GetName(), u.GetGroups(), strings.Join(slices.Compact(lines), "\n"))
}

// compact merges rules that differ only in their one verb.
func compact(rules []rbacv1.PolicyRule) []rbacv1.PolicyRule {
	var out []rbacv1.PolicyRule
	for _, r := range rules {
		same := func(o rbacv1.PolicyRule) bool {
			o.Verbs = r.Verbs
			return apiequality.Semantic.DeepEqual(o, r)
		}
		if i := slices.IndexFunc(out, same); i >= 0 {
			out[i].Verbs = append(out[i].Verbs, r.Verbs...)
			continue
		}
		r.Verbs = slices.Clone(r.Verbs)
		out = append(out, r)
	}
	return out
}

// describe returns a rule in one line: {APIGroups:[""], Resources:["pods"], Verbs:["get"]}.
func describe(r rbacv1.PolicyRule) string {
	var parts []string
	for _, f := range []struct {
		name   string
		values []string
	}{
		{"APIGroups", r.APIGroups},
		{"Resources", r.Resources},
		{"ResourceNames", r.ResourceNames},
		{"NonResourceURLs", r.NonResourceURLs},
		{"Verbs", r.Verbs},
	} {
		if len(f.values) > 0 {
			parts = append(parts, fmt.Sprintf("%s:%q", f.name, f.values))
		}
	}
	return "{" + strings.Join(parts, ", ") + "}"
}

// onlyMetadataForDeletion reports whether the update changes only metadata that matters for
// deletion: the garbage collector must not need the role's rights.
func onlyMetadataForDeletion(obj, old runtime.Object) bool {
	if obj == nil || old == nil {
		return false
	}
	is, was := obj.DeepCopyObject(), old.DeepCopyObject()
	for _, o := range []runtime.Object{is, was} {
		m := o.(metav1.Object)
		m.SetOwnerReferences(nil)
		m.SetFinalizers(nil)
		m.SetManagedFields(nil)
		m.SetResourceVersion("")
	}
	return apiequality.Semantic.DeepEqual(is, was)
}
