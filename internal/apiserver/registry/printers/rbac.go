package printers

import (
	"strings"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wherry.dev/internal/apiserver/registry"
)

var bindingColumns = []metav1.TableColumnDefinition{
	nameColumn,
	column("Role", rbacv1.RoleBinding{}.SwaggerDoc()["roleRef"]),
	ageColumn,
	wide("Users", "Users in the roleBinding"),
	wide("Groups", "Groups in the roleBinding"),
	wide("ServiceAccounts", "ServiceAccounts in the roleBinding"),
}

// RoleBindings is the table of role bindings.
var RoleBindings = registry.Table[*rbacv1.RoleBinding]{
	Columns: bindingColumns,
	Cells: func(b *rbacv1.RoleBinding, now time.Time) []any {
		return append([]any{b.Name, b.RoleRef.Kind + "/" + b.RoleRef.Name, age(b, now)}, subjects(b.Subjects)...)
	},
}

// ClusterRoleBindings is the table of cluster role bindings.
var ClusterRoleBindings = registry.Table[*rbacv1.ClusterRoleBinding]{
	Columns: bindingColumns,
	Cells: func(b *rbacv1.ClusterRoleBinding, now time.Time) []any {
		return append([]any{b.Name, b.RoleRef.Kind + "/" + b.RoleRef.Name, age(b, now)}, subjects(b.Subjects)...)
	},
}

func subjects(list []rbacv1.Subject) []any {
	var users, groups, accounts []string
	for _, s := range list {
		switch s.Kind {
		case rbacv1.ServiceAccountKind:
			accounts = append(accounts, s.Namespace+"/"+s.Name)
		case rbacv1.UserKind:
			users = append(users, s.Name)
		case rbacv1.GroupKind:
			groups = append(groups, s.Name)
		}
	}
	return []any{strings.Join(users, ", "), strings.Join(groups, ", "), strings.Join(accounts, ", ")}
}
