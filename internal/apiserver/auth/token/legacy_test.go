package token

import (
	"crypto/ecdsa"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
)

func legacyToken(t *testing.T, key *ecdsa.PrivateKey) string {
	t.Helper()
	i, err := NewIssuer(issuer, key)
	if err != nil {
		t.Fatal(err)
	}
	token, err := i.IssueLegacy(&corev1.ServiceAccount{ObjectMeta: named("sa")}, &corev1.Secret{ObjectMeta: named("s")})
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func TestATokenInASecretIsValidWhileTheSecretHasIt(t *testing.T) {
	key := ecKey(t)
	token := legacyToken(t, key)
	now := metav1.Now()
	for name, tc := range map[string]struct {
		change func(stored, *corev1.Secret, *corev1.ServiceAccount)
		want   string // the error
	}{
		"as made":         {func(stored, *corev1.Secret, *corev1.ServiceAccount) {}, ""},
		"no secret":       {func(s stored, _ *corev1.Secret, _ *corev1.ServiceAccount) { delete(s, "secrets/s") }, "Token has been invalidated"},
		"deleted secret":  {func(_ stored, s *corev1.Secret, _ *corev1.ServiceAccount) { s.DeletionTimestamp = &now }, "Token has been invalidated"},
		"another token":   {func(_ stored, s *corev1.Secret, _ *corev1.ServiceAccount) { s.Data["token"] = []byte("x") }, "Token does not match server's copy"},
		"deleted account": {func(_ stored, _ *corev1.Secret, a *corev1.ServiceAccount) { a.DeletionTimestamp = &now }, "ServiceAccount ns/sa has been deleted"},
		"another account": {func(_ stored, _ *corev1.Secret, a *corev1.ServiceAccount) { a.UID = "2" }, "ServiceAccount UID (2) does not match claim (uid-sa)"},
		"marked": {func(_ stored, s *corev1.Secret, _ *corev1.ServiceAccount) {
			s.Labels = map[string]string{InvalidSinceLabel: "2026-01-01"}
		}, "the token in secret ns/s for service account ns/sa has been marked invalid. Use tokens from the TokenRequest API or manually created secret-based tokens, or remove the 'kubernetes.io/legacy-token-invalid-since' label from the secret to temporarily allow use of this token"},
	} {
		t.Run(name, func(t *testing.T) {
			objects := everything()
			secret := objects["secrets/s"].(*corev1.Secret)
			secret.Data = map[string][]byte{"token": []byte(token)}
			tc.change(objects, secret, objects["serviceaccounts/sa"].(*corev1.ServiceAccount))
			got, ok, err := accepting(t, objects, key).AuthenticateToken(t.Context(), token)
			wantError(t, err, tc.want)
			if ok != (tc.want == "") {
				t.Fatalf("authenticated: %t", ok)
			}
			if ok && (got.User.GetName() != "system:serviceaccount:ns:sa" || got.User.GetUID() != "uid-sa") {
				t.Errorf("user %v", got.User)
			}
			if used := secret.Labels[LastUsedLabel]; ok && used != time.Now().UTC().Format(time.DateOnly) {
				t.Errorf("last used %q", used)
			}
		})
	}
}

func TestATokenInASecretIsOnlyForThisServer(t *testing.T) {
	key := ecKey(t)
	token := legacyToken(t, key)
	objects := everything()
	objects["secrets/s"].(*corev1.Secret).Data = map[string][]byte{"token": []byte(token)}
	ctx := authenticator.WithAudiences(t.Context(), authenticator.Audiences{"vault"})
	if _, ok, err := accepting(t, objects, key).AuthenticateToken(ctx, token); ok || err == nil {
		t.Errorf("%t, %v", ok, err)
	}
	if _, ok, err := accepting(t, objects, ecKey(t)).AuthenticateToken(t.Context(), token); ok || err == nil {
		t.Errorf("with the key of somebody else: %t, %v", ok, err)
	}
}

func TestRSAKeysSignToo(t *testing.T) {
	key := rsaKey(t)
	if _, ok, err := accepting(t, everything(), key).AuthenticateToken(t.Context(), issue(t, key, nil)); !ok || err != nil {
		t.Errorf("%t, %v", ok, err)
	}
}
