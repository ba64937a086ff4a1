package apiserver

import (
	"slices"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// permit gives a user rules everywhere.
func permit(t *testing.T, s *Server, who string, rules ...rbacv1.PolicyRule) {
	t.Helper()
	ctx, api := t.Context(), admin(t, s).RbacV1()
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: who}, Rules: append(rules, rbacv1.PolicyRule{
		Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"endpoints"}, // to see when it is known
	})}
	if _, err := api.ClusterRoles().Create(ctx, role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: who},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: who},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: who}},
	}
	if _, err := api.ClusterRoleBindings().Create(ctx, binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	untilAllowed(t, s, who, "get", "endpoints")
}

// acting returns the configuration of who, acting as another one.
func acting(s *Server, who string, as rest.ImpersonationConfig) *rest.Config {
	cfg := s.ClientConfig(who)
	cfg.Impersonate = as
	return cfg
}

func rule(verb, group, resource string, names ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{Verbs: []string{verb}, APIGroups: []string{group}, Resources: []string{resource}, ResourceNames: names}
}

func TestImpersonation(t *testing.T) {
	s := start(t)
	permit(t, s, "helpdesk", rule("impersonate", "", "users", "jane"), rule("impersonate", "", "groups", "devs"))
	got, err := whoIs(t, acting(s, "helpdesk", rest.ImpersonationConfig{UserName: "jane", Groups: []string{"devs"}}))
	if err != nil || got.Username != "jane" || !slices.Contains(got.Groups, "devs") {
		t.Errorf("as jane: %+v, %v", got, err)
	}
	for what, as := range map[string]rest.ImpersonationConfig{
		"another user":  {UserName: "joe"},
		"another group": {UserName: "jane", Groups: []string{"system:masters"}},
		"a UID":         {UserName: "jane", UID: "1"},
		"extra":         {UserName: "jane", Extra: map[string][]string{"scopes": {"all"}}},
	} {
		if got, err := whoIs(t, acting(s, "helpdesk", as)); !apierrors.IsForbidden(err) {
			t.Errorf("%s: %+v, %v", what, got, err)
		}
	}
	if _, err := whoIs(t, acting(s, "helpdesk", rest.ImpersonationConfig{Groups: []string{"devs"}})); err == nil {
		t.Error("a group without a user was accepted")
	}
}

// Constrained impersonation needs two permissions: to be somebody, and for what (KEP-5284, on since 1.36).
func TestConstrainedImpersonation(t *testing.T) {
	s := start(t)
	grant(t, s, "jane", "list", "pods", "configmaps")
	const group = "authentication.k8s.io"
	permit(t, s, "viewer", rule("impersonate:user-info", group, "users", "jane"), rule("impersonate-on:user-info:list", "", "pods"))
	permit(t, s, "half", rule("impersonate:user-info", group, "users", "jane"))
	permit(t, s, "accounts", rule("impersonate:serviceaccount", group, "serviceaccounts", "default"),
		rule("impersonate-on:serviceaccount:create", group, "selfsubjectreviews"))
	asJane := rest.ImpersonationConfig{UserName: "jane"}
	list := func(who string) error {
		_, err := clientFor(t, acting(s, who, asJane)).CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{})
		return err
	}
	if err := list("viewer"); err != nil {
		t.Errorf("what it may do as jane: %v", err)
	}
	if err := list("half"); !apierrors.IsForbidden(err) {
		t.Errorf("without permission for the request: %v", err)
	}
	viewer := clientFor(t, acting(s, "viewer", asJane))
	if _, err := viewer.CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("what jane may do, and the viewer not as jane: %v", err)
	}
	if _, err := viewer.AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("another verb: %v", err)
	}
	account := rest.ImpersonationConfig{UserName: "system:serviceaccount:default:default"}
	if got, err := whoIs(t, acting(s, "accounts", account)); err != nil || got.Username != account.UserName {
		t.Errorf("as a service account: %+v, %v", got, err)
	}
	if got, err := whoIs(t, acting(s, "accounts", asJane)); !apierrors.IsForbidden(err) {
		t.Errorf("as a user, with permission for service accounts: %+v, %v", got, err)
	}
}
