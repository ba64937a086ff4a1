// Package rbac authorizes by the cluster's roles and bindings. It keeps them in an index by subject
// that follows storage, so that a decision looks only at bindings of the user and of the user's
// groups.
package rbac

import (
	"slices"
	"sync"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
)

// binding is a RoleBinding, or a ClusterRoleBinding, whose key has no namespace.
type binding struct {
	key      types.NamespacedName
	ref      rbacv1.RoleRef
	subjects []rbacv1.Subject
}

// subject is a user or a group; service accounts are users.
type subject struct {
	group bool
	name  string
}

// scoped is a subject in the namespace of a binding ("" for the whole cluster).
type scoped struct {
	namespace string
	subject   subject
}

// Index holds the roles and bindings by which the authorizer decides. Followers of storage write
// it.
type Index struct {
	mu           sync.RWMutex
	roles        map[types.NamespacedName][]rbacv1.PolicyRule
	clusterRoles map[string][]rbacv1.PolicyRule
	bindings     map[types.NamespacedName]*binding
	bySubject    map[scoped][]*binding
}

// NewIndex returns an empty index.
func NewIndex() *Index {
	return &Index{
		roles:        map[types.NamespacedName][]rbacv1.PolicyRule{},
		clusterRoles: map[string][]rbacv1.PolicyRule{},
		bindings:     map[types.NamespacedName]*binding{},
		bySubject:    map[scoped][]*binding{},
	}
}

// SetRole records a role.
func (x *Index) SetRole(r *rbacv1.Role) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.roles[types.NamespacedName{Namespace: r.Namespace, Name: r.Name}] = r.Rules
}

// DeleteRole forgets a role.
func (x *Index) DeleteRole(key types.NamespacedName) {
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.roles, key)
}

// SetClusterRole records a cluster role. Its rules count, also if it aggregates others: a controller
// writes what it aggregates there.
func (x *Index) SetClusterRole(r *rbacv1.ClusterRole) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.clusterRoles[r.Name] = r.Rules
}

// DeleteClusterRole forgets a cluster role.
func (x *Index) DeleteClusterRole(key types.NamespacedName) {
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.clusterRoles, key.Name)
}

// SetRoleBinding records a role binding.
func (x *Index) SetRoleBinding(b *rbacv1.RoleBinding) {
	x.set(&binding{types.NamespacedName{Namespace: b.Namespace, Name: b.Name}, b.RoleRef, b.Subjects})
}

// SetClusterRoleBinding records a cluster role binding.
func (x *Index) SetClusterRoleBinding(b *rbacv1.ClusterRoleBinding) {
	x.set(&binding{types.NamespacedName{Name: b.Name}, b.RoleRef, b.Subjects})
}

// DeleteBinding forgets a binding of either kind.
func (x *Index) DeleteBinding(key types.NamespacedName) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.removeLocked(key)
}

func (x *Index) set(b *binding) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.removeLocked(b.key)
	x.bindings[b.key] = b
	for _, s := range b.scopes() {
		x.bySubject[s] = append(x.bySubject[s], b)
	}
}

func (x *Index) removeLocked(key types.NamespacedName) {
	old := x.bindings[key]
	if old == nil {
		return
	}
	delete(x.bindings, key)
	for _, s := range old.scopes() {
		// A copy: readers may hold the old slice.
		left := slices.DeleteFunc(slices.Clone(x.bySubject[s]), func(b *binding) bool { return b == old })
		if len(left) == 0 {
			delete(x.bySubject, s)
			continue
		}
		x.bySubject[s] = left
	}
}

// scopes returns the keys under which the binding is found, without duplicates.
func (b *binding) scopes() []scoped {
	var out []scoped
	for _, s := range b.subjects {
		key := scoped{namespace: b.key.Namespace, subject: subjectOf(s, b.key.Namespace)}
		if !slices.Contains(out, key) {
			out = append(out, key)
		}
	}
	return out
}

func subjectOf(s rbacv1.Subject, namespace string) subject {
	switch s.Kind {
	case rbacv1.GroupKind:
		return subject{group: true, name: s.Name}
	case rbacv1.ServiceAccountKind:
		if s.Namespace != "" {
			namespace = s.Namespace
		}
		return subject{name: serviceaccount.MakeUsername(namespace, s.Name)}
	default:
		return subject{name: s.Name}
	}
}

// grant is a rule that somebody has, and where it comes from.
type grant struct {
	binding *binding
	subject subject
	rule    *rbacv1.PolicyRule
}

// visit calls f with the rules that u has in the cluster and in the namespace, until f returns
// false.
func (x *Index) visit(u user.Info, namespace string, f func(grant) bool) {
	subjects := make([]subject, 0, 1+len(u.GetGroups()))
	subjects = append(subjects, subject{name: u.GetName()})
	for _, g := range u.GetGroups() {
		subjects = append(subjects, subject{group: true, name: g})
	}
	x.mu.RLock()
	defer x.mu.RUnlock()
	scopes := []string{""}
	if namespace != "" {
		scopes = append(scopes, namespace)
	}
	for _, ns := range scopes {
		for _, s := range subjects {
			for _, b := range x.bySubject[scoped{ns, s}] {
				if !x.visitRoleLocked(b, func(r *rbacv1.PolicyRule) bool { return f(grant{b, s, r}) }) {
					return
				}
			}
		}
	}
}

func (x *Index) visitRoleLocked(b *binding, f func(*rbacv1.PolicyRule) bool) bool {
	if b.ref.Kind == "Role" {
		return each(x.roles[types.NamespacedName{Namespace: b.key.Namespace, Name: b.ref.Name}], f)
	}
	return each(x.clusterRoles[b.ref.Name], f)
}

func each(rules []rbacv1.PolicyRule, f func(*rbacv1.PolicyRule) bool) bool {
	for i := range rules {
		if !f(&rules[i]) {
			return false
		}
	}
	return true
}

// Role returns the rules that a role reference stands for, and whether the role exists.
func (x *Index) Role(ref rbacv1.RoleRef, namespace string) ([]rbacv1.PolicyRule, bool) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	if ref.Kind == "Role" {
		rules, ok := x.roles[types.NamespacedName{Namespace: namespace, Name: ref.Name}]
		return rules, ok
	}
	rules, ok := x.clusterRoles[ref.Name]
	return rules, ok
}
