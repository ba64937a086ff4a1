package resources

import (
	rbacv1 "k8s.io/api/rbac/v1"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"

	"wherry.dev/internal/api/validation"
	"wherry.dev/internal/apiserver/registry"
	"wherry.dev/internal/apiserver/registry/printers"
	"wherry.dev/internal/apiserver/registry/role"
)

func roles(deps Deps) registry.Row[*rbacv1.Role] {
	return registry.Row[*rbacv1.Role]{
		Resource:   gvr(rbacv1.SchemeGroupVersion, "roles"),
		Kind:       "Role",
		Singular:   "role",
		Namespaced: true,
		New:        func() *rbacv1.Role { return &rbacv1.Role{} },
		NewList:    list[rbacv1.RoleList](),
		Strategy: registry.Strategy[*rbacv1.Role]{
			Validate:       onCreate(validation.Role),
			ValidateUpdate: always(validation.Role),
			CreateOnUpdate: true,
		},
		Customize: deps.guard,
	}
}

func clusterRoles(deps Deps) registry.Row[*rbacv1.ClusterRole] {
	return registry.Row[*rbacv1.ClusterRole]{
		Resource: gvr(rbacv1.SchemeGroupVersion, "clusterroles"),
		Kind:     "ClusterRole",
		Singular: "clusterrole",
		New:      func() *rbacv1.ClusterRole { return &rbacv1.ClusterRole{} },
		NewList:  list[rbacv1.ClusterRoleList](),
		Strategy: registry.Strategy[*rbacv1.ClusterRole]{
			Validate:       onCreate(validation.ClusterRole),
			ValidateUpdate: always(validation.ClusterRole),
			CreateOnUpdate: true,
		},
		Customize: deps.guard,
	}
}

func roleBindings(deps Deps) registry.Row[*rbacv1.RoleBinding] {
	return registry.Row[*rbacv1.RoleBinding]{
		Resource:   gvr(rbacv1.SchemeGroupVersion, "rolebindings"),
		Kind:       "RoleBinding",
		Singular:   "rolebinding",
		Namespaced: true,
		New:        func() *rbacv1.RoleBinding { return &rbacv1.RoleBinding{} },
		NewList:    list[rbacv1.RoleBindingList](),
		Table:      printers.RoleBindings,
		Strategy: registry.Strategy[*rbacv1.RoleBinding]{
			Validate:       onCreate(validation.RoleBinding),
			ValidateUpdate: onUpdate(validation.RoleBindingUpdate),
			CreateOnUpdate: true,
		},
		Customize: deps.guard,
	}
}

func clusterRoleBindings(deps Deps) registry.Row[*rbacv1.ClusterRoleBinding] {
	return registry.Row[*rbacv1.ClusterRoleBinding]{
		Resource: gvr(rbacv1.SchemeGroupVersion, "clusterrolebindings"),
		Kind:     "ClusterRoleBinding",
		Singular: "clusterrolebinding",
		New:      func() *rbacv1.ClusterRoleBinding { return &rbacv1.ClusterRoleBinding{} },
		NewList:  list[rbacv1.ClusterRoleBindingList](),
		Table:    printers.ClusterRoleBindings,
		Strategy: registry.Strategy[*rbacv1.ClusterRoleBinding]{
			Validate:       onCreate(validation.ClusterRoleBinding),
			ValidateUpdate: onUpdate(validation.ClusterRoleBindingUpdate),
			CreateOnUpdate: true,
		},
		Customize: deps.guard,
	}
}

// guard keeps users from granting rights that they do not have.
func (d Deps) guard(main, _ *genericregistry.Store) {
	(&role.Guard{Authorizer: d.Auth.Authorizer, ByRole: d.Auth.ByRole, Roles: d.Auth.Roles}).Customize(main)
}
