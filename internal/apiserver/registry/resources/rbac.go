package resources

import (
	rbacv1 "k8s.io/api/rbac/v1"

	"wherry.dev/internal/apiserver/registry"
	"wherry.dev/internal/apiserver/registry/printers"
)

func roles(Deps) registry.Row[*rbacv1.Role] {
	return registry.Row[*rbacv1.Role]{
		Resource:   gvr(rbacv1.SchemeGroupVersion, "roles"),
		Kind:       "Role",
		Singular:   "role",
		Namespaced: true,
		New:        func() *rbacv1.Role { return &rbacv1.Role{} },
		NewList:    list[rbacv1.RoleList](),
		Strategy:   registry.Strategy[*rbacv1.Role]{CreateOnUpdate: true},
	}
}

func clusterRoles(Deps) registry.Row[*rbacv1.ClusterRole] {
	return registry.Row[*rbacv1.ClusterRole]{
		Resource: gvr(rbacv1.SchemeGroupVersion, "clusterroles"),
		Kind:     "ClusterRole",
		Singular: "clusterrole",
		New:      func() *rbacv1.ClusterRole { return &rbacv1.ClusterRole{} },
		NewList:  list[rbacv1.ClusterRoleList](),
		Strategy: registry.Strategy[*rbacv1.ClusterRole]{CreateOnUpdate: true},
	}
}

func roleBindings(Deps) registry.Row[*rbacv1.RoleBinding] {
	return registry.Row[*rbacv1.RoleBinding]{
		Resource:   gvr(rbacv1.SchemeGroupVersion, "rolebindings"),
		Kind:       "RoleBinding",
		Singular:   "rolebinding",
		Namespaced: true,
		New:        func() *rbacv1.RoleBinding { return &rbacv1.RoleBinding{} },
		NewList:    list[rbacv1.RoleBindingList](),
		Table:      printers.RoleBindings,
		Strategy:   registry.Strategy[*rbacv1.RoleBinding]{CreateOnUpdate: true},
	}
}

func clusterRoleBindings(Deps) registry.Row[*rbacv1.ClusterRoleBinding] {
	return registry.Row[*rbacv1.ClusterRoleBinding]{
		Resource: gvr(rbacv1.SchemeGroupVersion, "clusterrolebindings"),
		Kind:     "ClusterRoleBinding",
		Singular: "clusterrolebinding",
		New:      func() *rbacv1.ClusterRoleBinding { return &rbacv1.ClusterRoleBinding{} },
		NewList:  list[rbacv1.ClusterRoleBindingList](),
		Table:    printers.ClusterRoleBindings,
		Strategy: registry.Strategy[*rbacv1.ClusterRoleBinding]{CreateOnUpdate: true},
	}
}
