package manager_test

import (
	"slices"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func mayGet(r *rbacv1.ClusterRole, resource string) bool {
	for _, rule := range r.Rules {
		if slices.Contains(rule.Resources, resource) {
			return true
		}
	}
	return false
}

func TestAggregatedRolesShowTheirRulesAndGrantThem(t *testing.T) {
	c := start(t, nil, "clusterrole-aggregation-controller")
	ctx, roles := t.Context(), c.RbacV1().ClusterRoles()
	await(t, roles, "admin", func(r *rbacv1.ClusterRole, _ bool) bool {
		return mayGet(r, "pods") && mayGet(r, "deployments") && mayGet(r, "rolebindings")
	})
	binding := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "jane"}, Subjects: []rbacv1.Subject{{Kind: "User", APIGroup: rbacv1.GroupName, Name: "jane"}},
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "admin"},
	}
	if _, err := c.RbacV1().RoleBindings("default").Create(ctx, binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	part := &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "widgets", Labels: map[string]string{"rbac.authorization.k8s.io/aggregate-to-view": "true"}},
		Rules:      []rbacv1.PolicyRule{{Verbs: []string{"get"}, APIGroups: []string{"example.com"}, Resources: []string{"widgets"}}},
	}
	if _, err := roles.Create(ctx, part, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	await(t, roles, "admin", func(r *rbacv1.ClusterRole, _ bool) bool { return mayGet(r, "widgets") })
	c.janeMay(t, true)
	if err := roles.Delete(ctx, "widgets", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	await(t, roles, "admin", func(r *rbacv1.ClusterRole, _ bool) bool { return !mayGet(r, "widgets") })
	c.janeMay(t, false)
}

// janeMay waits until authorization, which follows storage, knows whether jane may get widgets.
func (c *cluster) janeMay(t *testing.T, want bool) {
	t.Helper()
	for t.Context().Err() == nil {
		review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: "jane",
			ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: "default", Verb: "get", Group: "example.com", Resource: "widgets"}}}
		got, err := c.AuthorizationV1().SubjectAccessReviews().Create(t.Context(), review, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if got.Status.Allowed == want {
			return
		}
	}
}
