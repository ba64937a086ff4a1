package resources

import (
	"context"

	coordinationv1 "k8s.io/api/coordination/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/validation"

	"wherry.dev/internal/apiserver/registry"
)

func others(Deps) []registry.Definition {
	return []registry.Definition{
		leases(), endpointSlices(), roles(), clusterRoles(), roleBindings(), clusterRoleBindings(),
	}
}

func leases() registry.Row[*coordinationv1.Lease] {
	return registry.Row[*coordinationv1.Lease]{
		Resource:   gvr(coordinationv1.SchemeGroupVersion, "leases"),
		Kind:       "Lease",
		Singular:   "lease",
		Namespaced: true,
		New:        func() *coordinationv1.Lease { return &coordinationv1.Lease{} },
		NewList:    list[coordinationv1.LeaseList](),
		CheckName:  validation.NameIsDNSSubdomain,
		Strategy:   registry.Strategy[*coordinationv1.Lease]{CreateOnUpdate: true},
	}
}

func endpointSlices() registry.Row[*discoveryv1.EndpointSlice] {
	return registry.Row[*discoveryv1.EndpointSlice]{
		Resource:   gvr(discoveryv1.SchemeGroupVersion, "endpointslices"),
		Kind:       "EndpointSlice",
		Singular:   "endpointslice",
		Namespaced: true,
		New:        func() *discoveryv1.EndpointSlice { return &discoveryv1.EndpointSlice{} },
		NewList:    list[discoveryv1.EndpointSliceList](),
		CheckName:  validation.NameIsDNSSubdomain,
		Strategy: registry.Strategy[*discoveryv1.EndpointSlice]{
			Create: func(_ context.Context, s *discoveryv1.EndpointSlice) { s.Generation = 1 },
			Update: func(_ context.Context, s, old *discoveryv1.EndpointSlice) {
				a, b := *s, *old
				a.ObjectMeta, b.ObjectMeta = old.ObjectMeta, old.ObjectMeta
				bump(s, old, !apiequality.Semantic.DeepEqual(&a, &b))
			},
		},
	}
}

func roles() registry.Row[*rbacv1.Role] {
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

func clusterRoles() registry.Row[*rbacv1.ClusterRole] {
	return registry.Row[*rbacv1.ClusterRole]{
		Resource: gvr(rbacv1.SchemeGroupVersion, "clusterroles"),
		Kind:     "ClusterRole",
		Singular: "clusterrole",
		New:      func() *rbacv1.ClusterRole { return &rbacv1.ClusterRole{} },
		NewList:  list[rbacv1.ClusterRoleList](),
		Strategy: registry.Strategy[*rbacv1.ClusterRole]{CreateOnUpdate: true},
	}
}

func roleBindings() registry.Row[*rbacv1.RoleBinding] {
	return registry.Row[*rbacv1.RoleBinding]{
		Resource:   gvr(rbacv1.SchemeGroupVersion, "rolebindings"),
		Kind:       "RoleBinding",
		Singular:   "rolebinding",
		Namespaced: true,
		New:        func() *rbacv1.RoleBinding { return &rbacv1.RoleBinding{} },
		NewList:    list[rbacv1.RoleBindingList](),
		Strategy:   registry.Strategy[*rbacv1.RoleBinding]{CreateOnUpdate: true},
	}
}

func clusterRoleBindings() registry.Row[*rbacv1.ClusterRoleBinding] {
	return registry.Row[*rbacv1.ClusterRoleBinding]{
		Resource: gvr(rbacv1.SchemeGroupVersion, "clusterrolebindings"),
		Kind:     "ClusterRoleBinding",
		Singular: "clusterrolebinding",
		New:      func() *rbacv1.ClusterRoleBinding { return &rbacv1.ClusterRoleBinding{} },
		NewList:  list[rbacv1.ClusterRoleBindingList](),
		Strategy: registry.Strategy[*rbacv1.ClusterRoleBinding]{CreateOnUpdate: true},
	}
}
