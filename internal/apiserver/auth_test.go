package apiserver

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// withToken returns a client configuration over TLS that has only a token.
func withToken(s *Server, token string) *rest.Config {
	c := overTCP(s.ClientConfig("nobody"))
	c.BearerToken = token
	return c
}

func TestServiceAccountToken(t *testing.T) {
	s := start(t)
	ctx := t.Context()
	c := admin(t, s)
	if _, err := c.CoreV1().ServiceAccounts("default").Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "sa"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	req, err := c.CoreV1().ServiceAccounts("default").CreateToken(ctx, "sa", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	sa := clientFor(t, withToken(s, req.Status.Token))
	me, err := sa.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if u := me.Status.UserInfo; u.Username != "system:serviceaccount:default:sa" || !slices.Contains(u.Groups, "system:serviceaccounts:default") {
		t.Errorf("token's user: %+v", u)
	}
	_, err = sa.CoreV1().Pods("default").List(ctx, metav1.ListOptions{})
	if !apierrors.IsForbidden(err) {
		t.Errorf("list pods without a role: %v", err)
	}
	review, err := c.AuthenticationV1().TokenReviews().Create(ctx, &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: req.Status.Token}}, metav1.CreateOptions{})
	if err != nil || !review.Status.Authenticated || review.Status.User.Username != "system:serviceaccount:default:sa" {
		t.Errorf("review: %v %+v", err, review)
	}
	other := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: req.Status.Token, Audiences: []string{"vault"}}}
	if review, err = c.AuthenticationV1().TokenReviews().Create(ctx, other, metav1.CreateOptions{}); err != nil || review.Status.Authenticated {
		t.Errorf("review for another audience: %v %+v", err, review)
	}
	if err := c.CoreV1().ServiceAccounts("default").Delete(ctx, "sa", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error { // until the watch cache knows
		_, err := sa.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
		if !apierrors.IsUnauthorized(err) {
			return fmt.Errorf("token of a deleted account: %w", err)
		}
		return nil
	})
}

func TestTokenRequestIsChecked(t *testing.T) {
	s := start(t)
	ctx := t.Context()
	c := admin(t, s)
	accounts := c.CoreV1().ServiceAccounts("default")
	if _, err := accounts.Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "sa"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	short := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: new(int64(60))}}
	if _, err := accounts.CreateToken(ctx, "sa", short, metav1.CreateOptions{}); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "10 minutes") {
		t.Errorf("a minute: %v", err)
	}
	bound := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: "absent"},
	}}
	if _, err := accounts.CreateToken(ctx, "sa", bound, metav1.CreateOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("bound to a pod that is not there: %v", err)
	}
}

func TestAnonymousSeesOnlyHealthAndVersion(t *testing.T) {
	s := start(t)
	cfg := withToken(s, "")
	c := clientFor(t, cfg)
	get := func(path string) error {
		return c.Discovery().RESTClient().Get().AbsPath(path).Do(t.Context()).Error()
	}
	// The library's controllers may still be starting, and health says so until they have.
	for _, path := range []string{"/healthz", "/livez", "/readyz", "/version"} {
		eventually(t, func() error { return get(path) })
	}
	for _, path := range []string{"/api/v1/pods", "/metrics", "/openapi/v2"} {
		if err := get(path); !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func TestAccessReviews(t *testing.T) {
	s := start(t)
	ctx := t.Context()
	c := admin(t, s)
	ask := func(user string, verb, resource string) bool {
		t.Helper()
		q := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User:               user,
			ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: verb, Resource: resource},
		}}
		q, err := c.AuthorizationV1().SubjectAccessReviews().Create(ctx, q, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return q.Status.Allowed
	}
	if !ask("system:kube-scheduler", "list", "nodes") {
		t.Error("the scheduler may not list nodes")
	}
	if ask("system:kube-scheduler", "delete", "nodes") {
		t.Error("the scheduler may delete nodes")
	}
	if !ask("system:serviceaccount:kube-system:namespace-controller", "deletecollection", "configmaps") {
		t.Error("the namespace controller may not empty namespaces")
	}
	rules := &authorizationv1.SelfSubjectRulesReview{Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: "default"}}
	rules, err := clientFor(t, s.ClientConfig("jane")).AuthorizationV1().SelfSubjectRulesReviews().Create(ctx, rules, metav1.CreateOptions{})
	if err != nil || len(rules.Status.ResourceRules) == 0 {
		t.Errorf("rules: %v %+v", err, rules)
	}
}

// grant gives a user the verb on resources of the core group in the namespace default.
func grant(t *testing.T, s *Server, who, verb string, resources ...string) {
	t.Helper()
	ctx, api := t.Context(), admin(t, s).RbacV1()
	role := &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Name: who + "-" + verb, Namespace: "default"},
		Rules:      []rbacv1.PolicyRule{{Verbs: []string{verb}, APIGroups: []string{""}, Resources: resources}},
	}
	if _, err := api.Roles("default").Create(ctx, role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	binding := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: role.Name, Namespace: "default"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role.Name},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: who}},
	}
	if _, err := api.RoleBindings("default").Create(ctx, binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	untilAllowed(t, s, who, verb, resources[0])
}

// untilAllowed waits until the authorizer, which follows storage, has seen the binding.
func untilAllowed(t *testing.T, s *Server, who, verb, resource string) {
	t.Helper()
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: who, ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: "default", Verb: verb, Resource: resource},
	}}
	api := admin(t, s).AuthorizationV1().SubjectAccessReviews()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		got, err := api.Create(t.Context(), review, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if got.Status.Allowed {
			return
		}
	}
	t.Fatalf("%s is not allowed to %s %s", who, verb, resource)
}

// tokenOf issues a token for the service account default/default.
func tokenOf(t *testing.T, s *Server) string {
	t.Helper()
	req, err := admin(t, s).CoreV1().ServiceAccounts("default").CreateToken(t.Context(), "default", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return req.Status.Token
}
