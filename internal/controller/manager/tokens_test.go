package manager_test

import (
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"wherry.dev/internal/apiserver"
	"wherry.dev/internal/controller/manager"
)

func withTokens(s *apiserver.Server, cfg *manager.Config) {
	cfg.Tokens, cfg.RootCA = s.TokenIssuer(), []byte("authority")
}

// who returns the user that a token stands for, or the error.
func (c *cluster) who(t *testing.T, token string) string {
	t.Helper()
	r := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}
	got, err := c.AuthenticationV1().TokenReviews().Create(t.Context(), r, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return got.Status.User.Username + got.Status.Error
}

func (c *cluster) tokenSecret(t *testing.T, name, account string) {
	t.Helper()
	s := &v1.Secret{Type: v1.SecretTypeServiceAccountToken,
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{v1.ServiceAccountNameKey: account}}}
	if _, err := c.CoreV1().Secrets("default").Create(t.Context(), s, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func (c *cluster) token(t *testing.T, name string) (token string) {
	t.Helper()
	await(t, c.CoreV1().Secrets("default"), name, func(s *v1.Secret, _ bool) bool {
		token = string(s.Data["token"])
		return token != "" && string(s.Data["ca.crt"]) == "authority" && string(s.Data["namespace"]) == "default" && s.Annotations[v1.ServiceAccountUIDKey] != ""
	})
	return token
}

func TestASecretGetsATokenThatLivesWithItsAccount(t *testing.T) {
	c := start(t, withTokens, "serviceaccount-token-controller")
	ctx, secrets, accounts := t.Context(), c.CoreV1().Secrets("default"), c.CoreV1().ServiceAccounts("default")
	c.account(t, "robot")
	c.tokenSecret(t, "s", "robot")
	token := c.token(t, "s")
	if who := c.who(t, token); who != "system:serviceaccount:default:robot" {
		t.Errorf("the token is that of %q", who)
	}
	await(t, secrets, "s", func(s *v1.Secret, _ bool) bool {
		return s.Labels["kubernetes.io/legacy-token-last-used"] == time.Now().UTC().Format(time.DateOnly)
	})
	// Taken out of the secret, a token is worth nothing, and there is a new one.
	if _, err := secrets.Patch(ctx, "s", types.MergePatchType, []byte(`{"data":{"token":null,"ca.crt":"eA=="}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	c.token(t, "s")

	if err := accounts.Delete(ctx, "robot", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for t.Context().Err() == nil {
		if _, err := secrets.Get(ctx, "s", metav1.GetOptions{}); apierrors.IsNotFound(err) {
			break
		}
	}
	// The authenticator reads from a cache, which knows a little later.
	who := ""
	for end := time.Now().Add(time.Minute); !strings.Contains(who, "invalidated") && time.Now().Before(end); {
		who = c.who(t, token)
	}
	if !strings.Contains(who, "invalidated") {
		t.Errorf("after the account went: %q", who)
	}
}

func TestASecretOfNoAccountIsDeleted(t *testing.T) {
	c := start(t, withTokens, "serviceaccount-token-controller")
	c.tokenSecret(t, "s", "nobody")
	for t.Context().Err() == nil {
		if _, err := c.CoreV1().Secrets("default").Get(t.Context(), "s", metav1.GetOptions{}); apierrors.IsNotFound(err) {
			return
		}
	}
}

func TestADeletedTokenIsNoLongerNamedByItsAccount(t *testing.T) {
	c := start(t, withTokens, "serviceaccount-token-controller")
	ctx, accounts := t.Context(), c.CoreV1().ServiceAccounts("default")
	c.account(t, "robot")
	c.tokenSecret(t, "s", "robot")
	c.token(t, "s")
	if _, err := accounts.Patch(ctx, "robot", types.MergePatchType, []byte(`{"secrets":[{"name":"s"},{"name":"other"}]}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := c.CoreV1().Secrets("default").Delete(ctx, "s", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	await(t, accounts, "robot", func(a *v1.ServiceAccount, _ bool) bool { return len(a.Secrets) == 1 && a.Secrets[0].Name == "other" })
}
