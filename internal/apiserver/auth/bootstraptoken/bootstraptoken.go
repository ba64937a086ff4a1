// Package bootstraptoken recognizes the tokens with which new nodes introduce themselves: ID.SECRET, kept in secrets
// of the type bootstrap.kubernetes.io/token, as `kubeadm token create` makes them.
// https://kubernetes.io/docs/reference/access-authn-authz/bootstrap-tokens/
package bootstraptoken

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/cluster-bootstrap/token/api"
	"k8s.io/cluster-bootstrap/util/secrets"
	"k8s.io/cluster-bootstrap/util/tokens"
	"k8s.io/klog/v2"
)

// Secrets looks up secrets.
type Secrets interface {
	Secret(ctx context.Context, namespace, name string) (*corev1.Secret, error)
}

// New returns an authenticator of bootstrap tokens. A token that it does not accept is left to others: the reason is
// logged, at level 3, and not told to the client.
func New(stored Secrets) authenticator.Token {
	return authenticator.TokenFunc(func(ctx context.Context, token string) (*authenticator.Response, bool, error) {
		id, secret, err := tokens.ParseToken(token)
		if err != nil {
			return nil, false, nil //nolint:nilerr // a token of another kind
		}
		found, err := stored.Secret(ctx, metav1.NamespaceSystem, api.BootstrapTokenSecretPrefix+id)
		if apierrors.IsNotFound(err) {
			return nil, false, nil
		}
		if err != nil {
			return nil, false, err
		}
		groups, err := accept(found, id, secret, time.Now())
		if err != nil {
			klog.FromContext(ctx).V(3).Info("Bootstrap token is not accepted", "secret", klog.KObj(found), "reason", err.Error())
			return nil, false, nil
		}
		return &authenticator.Response{User: &user.DefaultInfo{Name: api.BootstrapUserPrefix + id, Groups: groups}}, true, nil
	})
}

// accept returns the groups of a token's user, or why the secret does not back the token.
func accept(s *corev1.Secret, id, secret string, now time.Time) ([]string, error) {
	is := func(key, value string) bool {
		return subtle.ConstantTimeCompare([]byte(secrets.GetData(s, key)), []byte(value)) == 1
	}
	switch {
	case s.DeletionTimestamp != nil:
		return nil, errors.New("the secret is being deleted")
	case s.Type != api.SecretTypeBootstrapToken:
		return nil, fmt.Errorf("the secret's type is not %s", api.SecretTypeBootstrapToken)
	case !is(api.BootstrapTokenSecretKey, secret):
		return nil, fmt.Errorf("%s is another one", api.BootstrapTokenSecretKey)
	case !is(api.BootstrapTokenIDKey, id):
		return nil, fmt.Errorf("%s is another one", api.BootstrapTokenIDKey)
	case secrets.HasExpired(s, now):
		return nil, fmt.Errorf("%s is over, or not a time as of RFC 3339", api.BootstrapTokenExpirationKey)
	case !is(api.BootstrapTokenUsageAuthentication, "true"):
		return nil, fmt.Errorf("%s is not true", api.BootstrapTokenUsageAuthentication)
	}
	groups, err := secrets.GetGroups(s)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", api.BootstrapTokenExtraGroupsKey, err)
	}
	return groups, nil
}
