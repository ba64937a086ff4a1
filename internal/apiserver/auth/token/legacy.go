package token

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/golang-jwt/jwt/v5"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/klog/v2"
)

// Labels and the date format of secrets that hold legacy tokens (KEP-2799).
const (
	LastUsedLabel     = "kubernetes.io/legacy-token-last-used"
	InvalidSinceLabel = "kubernetes.io/legacy-token-invalid-since"

	dateFormat   = time.DateOnly
	legacyIssuer = "kubernetes/serviceaccount"
)

// legacyClaims are those of a token in a Secret: it does not expire, and is valid while the secret has it.
type legacyClaims struct {
	jwt.RegisteredClaims
	Namespace  string    `json:"kubernetes.io/serviceaccount/namespace"`
	Secret     string    `json:"kubernetes.io/serviceaccount/secret.name"`
	Account    string    `json:"kubernetes.io/serviceaccount/service-account.name"`
	AccountUID types.UID `json:"kubernetes.io/serviceaccount/service-account.uid"`
}

func legacyUses(name, help string) *metrics.Counter {
	c := metrics.NewCounter(&metrics.CounterOpts{Subsystem: "serviceaccount", Name: name, Help: help, StabilityLevel: metrics.ALPHA})
	legacyregistry.MustRegister(c)
	return c
}

// These have upstream's names.
var (
	legacyTokens  = legacyUses("legacy_tokens_total", "How often tokens from secrets were used.")
	manualTokens  = legacyUses("legacy_manual_token_uses_total", "How often tokens from secrets that somebody made were used.")
	autoTokens    = legacyUses("legacy_auto_token_uses_total", "How often tokens from secrets that their service account names were used.")
	invalidTokens = legacyUses("invalid_legacy_auto_token_uses_total", "How often tokens from secrets that are marked as invalid were used.")
)

// IssueLegacy returns the token for a secret of type kubernetes.io/service-account-token.
func (i *Issuer) IssueLegacy(account *corev1.ServiceAccount, secret *corev1.Secret) (string, error) {
	return i.sign(account, &legacyClaims{
		RegisteredClaims: jwt.RegisteredClaims{
			Issuer: legacyIssuer, Subject: serviceaccount.MakeUsername(account.Namespace, account.Name),
		},
		Namespace: account.Namespace, Secret: secret.Name, Account: account.Name, AccountUID: account.UID,
	})
}

// legacy checks a token whose issuer is that of tokens in secrets.
func (a *Authenticator) legacy(ctx context.Context, token string) (*serviceaccount.ServiceAccountInfo, error) {
	c := &legacyClaims{}
	if _, err := a.legacyParser.ParseWithClaims(token, c, a.key); err != nil {
		return nil, explain(err)
	}
	if err := c.complete(); err != nil {
		return nil, err
	}
	secret, err := a.objects.Secret(ctx, c.Namespace, c.Secret)
	if err != nil || secret.DeletionTimestamp != nil {
		return nil, errors.New("Token has been invalidated") //nolint:staticcheck // upstream's words
	}
	if subtle.ConstantTimeCompare(secret.Data[corev1.ServiceAccountTokenKey], []byte(token)) == 0 {
		return nil, errors.New("Token does not match server's copy") //nolint:staticcheck // upstream's words
	}
	account, err := a.objects.ServiceAccount(ctx, c.Namespace, c.Account)
	switch {
	case err != nil:
		return nil, err
	case account.DeletionTimestamp != nil:
		return nil, fmt.Errorf("ServiceAccount %s/%s has been deleted", c.Namespace, c.Account)
	case account.UID != c.AccountUID:
		return nil, fmt.Errorf("ServiceAccount UID (%s) does not match claim (%s)", account.UID, c.AccountUID)
	}
	a.markUsed(ctx, secret, time.Now())
	if secret.Labels[InvalidSinceLabel] != "" {
		audit.AddAuditAnnotation(ctx, "authentication.k8s.io/legacy-token-invalidated", secret.Name+"/"+secret.Namespace)
		invalidTokens.Inc()
		return nil, fmt.Errorf("the token in secret %s/%s for service account %s/%s has been marked invalid. Use tokens from the TokenRequest API or manually created secret-based tokens, or remove the '%s' label from the secret to temporarily allow use of this token",
			c.Namespace, c.Secret, c.Namespace, c.Account, InvalidSinceLabel)
	}
	tell(ctx, account, secret)
	return &serviceaccount.ServiceAccountInfo{Namespace: c.Namespace, Name: c.Account, UID: string(c.AccountUID)}, nil
}

// complete returns an error unless the claims have all that a check needs.
func (c *legacyClaims) complete() error {
	for _, claim := range []struct{ name, value string }{
		{"sub", c.Subject}, {"namespace", c.Namespace}, {"secretName", c.Secret}, {"serviceAccountName", c.Account}, {"serviceAccountUID", string(c.AccountUID)},
	} {
		if claim.value == "" {
			return fmt.Errorf("%s claim is missing", claim.name)
		}
	}
	if c.Subject != serviceaccount.MakeUsername(c.Namespace, c.Account) {
		return errors.New("sub claim is invalid")
	}
	return nil
}

// tell counts the use of a token, and warns of one that a controller of old has made.
func tell(ctx context.Context, account *corev1.ServiceAccount, secret *corev1.Secret) {
	legacyTokens.Inc()
	if slices.ContainsFunc(account.Secrets, func(r corev1.ObjectReference) bool { return r.Name == secret.Name }) {
		autoTokens.Inc()
		warning.AddWarning(ctx, "", "Use tokens from the TokenRequest API or manually created secret-based tokens instead of auto-generated secret-based tokens.")
		audit.AddAuditAnnotation(ctx, "authentication.k8s.io/legacy-token-autogenerated-secret", secret.Name)
		return
	}
	manualTokens.Inc()
	audit.AddAuditAnnotation(ctx, "authentication.k8s.io/legacy-token-manual-secret", secret.Name)
}

// markUsed writes into the secret on which day its token was last used, once a day. A clock of another
// API server may already be a day ahead. That it cannot be written is no reason to refuse the token.
func (a *Authenticator) markUsed(ctx context.Context, secret *corev1.Secret, now time.Time) {
	today, tomorrow := now.UTC().Format(dateFormat), now.UTC().AddDate(0, 0, 1).Format(dateFormat)
	if last := secret.Labels[LastUsedLabel]; last == today || last == tomorrow {
		return
	}
	if err := a.objects.Label(ctx, secret, LastUsedLabel, today); err != nil {
		klog.FromContext(ctx).Error(err, "Failed to label legacy service account token with last-used date", "secret", klog.KObj(secret))
	}
}
