package apiserver

import (
	"slices"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestDefaultRolesComeBackAtAStart: a rule removed from a default role, or a subject removed from
// its binding, used to be gone for good, and no new version of ours could add any.
func TestDefaultRolesComeBackAtAStart(t *testing.T) {
	dir := t.TempDir()
	s, stop := run(t, dir)
	ctx, api := t.Context(), admin(t, s).RbacV1()
	extra := rbacv1.PolicyRule{Verbs: []string{"get"}, APIGroups: []string{"example.com"}, Resources: []string{"things"}}
	changeRole := func(name string, change func(*rbacv1.ClusterRole)) {
		t.Helper()
		r, err := api.ClusterRoles().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		change(r)
		if _, err := api.ClusterRoles().Update(ctx, r, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	changeRole("system:kube-dns", func(r *rbacv1.ClusterRole) { r.Rules, r.Labels = []rbacv1.PolicyRule{extra}, nil })
	changeRole("system:discovery", func(r *rbacv1.ClusterRole) {
		r.Rules, r.Annotations[rbacv1.AutoUpdateAnnotationKey] = []rbacv1.PolicyRule{extra}, "false"
	})
	changeRole("edit", func(r *rbacv1.ClusterRole) { r.AggregationRule = nil })
	binding, err := api.ClusterRoleBindings().Get(ctx, "system:kube-scheduler", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	joe := rbacv1.Subject{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: "joe"}
	binding.Subjects = []rbacv1.Subject{joe}
	if _, err := api.ClusterRoleBindings().Update(ctx, binding, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := api.ClusterRoleBindings().Delete(ctx, "system:basic-user", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	other := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "system:basic-user"}, RoleRef: binding.RoleRef}
	if _, err := api.ClusterRoleBindings().Create(ctx, other, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := api.Roles("kube-system").Delete(ctx, "extension-apiserver-authentication-reader", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	stop()

	s = startIn(t, dir)
	api = admin(t, s).RbacV1()
	role := func(name string) *rbacv1.ClusterRole {
		t.Helper()
		r, err := api.ClusterRoles().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	if r := role("system:kube-dns"); len(r.Rules) < 2 || r.Rules[0].Resources[0] != "things" || r.Labels["kubernetes.io/bootstrapping"] == "" {
		t.Errorf("what was taken is back beside what was added: %+v", r)
	}
	if r := role("system:discovery"); len(r.Rules) != 1 {
		t.Errorf("a role that is not to be updated has %+v", r.Rules)
	}
	if r := role("edit"); r.AggregationRule == nil || len(r.AggregationRule.ClusterRoleSelectors) != 1 {
		t.Errorf("edit collects %+v", r.AggregationRule)
	}
	binding, err = api.ClusterRoleBindings().Get(ctx, "system:kube-scheduler", metav1.GetOptions{})
	if err != nil || len(binding.Subjects) != 2 || !slices.Contains(binding.Subjects, joe) {
		t.Errorf("subjects %+v, %v", binding, err)
	}
	binding, err = api.ClusterRoleBindings().Get(ctx, "system:basic-user", metav1.GetOptions{})
	if err != nil || binding.RoleRef.Name != "system:basic-user" || len(binding.Subjects) != 1 {
		t.Errorf("binding to its own role: %+v, %v", binding, err)
	}
	if _, err := api.Roles("kube-system").Get(ctx, "extension-apiserver-authentication-reader", metav1.GetOptions{}); apierrors.IsNotFound(err) {
		t.Error("a deleted role is not made again")
	}
}
