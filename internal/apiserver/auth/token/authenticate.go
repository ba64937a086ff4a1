package token

import (
	"context"
	"crypto"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
)

// Objects looks up what tokens are bound to.
type Objects interface {
	ServiceAccount(ctx context.Context, namespace, name string) (*corev1.ServiceAccount, error)
	Pod(ctx context.Context, namespace, name string) (*corev1.Pod, error)
	Secret(ctx context.Context, namespace, name string) (*corev1.Secret, error)
	Node(ctx context.Context, name string) (*corev1.Node, error)
}

// leeway is by how much the clocks of the issuer and the checker of a token may differ, and how
// long a token stays valid after the object that it is bound to was marked for deletion.
const leeway = time.Minute

// Authenticator checks tokens.
type Authenticator struct {
	issuer    string
	audiences authenticator.Audiences
	keys      map[string]crypto.PublicKey
	objects   Objects
	parser    *jwt.Parser
}

var _ authenticator.Token = (*Authenticator)(nil)

// NewAuthenticator returns an authenticator that accepts tokens of the issuer, signed with one of
// the keys. Tokens without an audience of their own count as meant for audiences.
func NewAuthenticator(issuer string, audiences []string, keys []crypto.PublicKey, objects Objects) (*Authenticator, error) {
	a := &Authenticator{
		issuer:    issuer,
		audiences: audiences,
		keys:      map[string]crypto.PublicKey{},
		objects:   objects,
		parser: jwt.NewParser(jwt.WithValidMethods([]string{"ES256", "ES384", "ES512", "RS256"}),
			jwt.WithExpirationRequired(), jwt.WithIssuedAt(), jwt.WithLeeway(leeway)),
	}
	for _, key := range keys {
		id, err := keyID(key)
		if err != nil {
			return nil, err
		}
		a.keys[id] = key
	}
	return a, nil
}

// AuthenticateToken implements authenticator.Token.
func (a *Authenticator) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	if !a.ours(token) {
		return nil, false, nil
	}
	c := &claims{}
	if _, err := a.parser.ParseWithClaims(token, c, a.key); err != nil {
		return nil, false, explain(err)
	}
	tokenAudiences := authenticator.Audiences(c.Audience)
	if len(tokenAudiences) == 0 {
		tokenAudiences = a.audiences
	}
	requested, ok := authenticator.AudiencesFrom(ctx)
	if !ok {
		requested = a.audiences
	}
	matching := requested.Intersect(tokenAudiences)
	if len(matching) == 0 && len(requested) > 0 {
		return nil, false, fmt.Errorf("token audiences %q is invalid for the target audiences %q", tokenAudiences, requested)
	}
	info, err := a.bound(ctx, &c.Kubernetes)
	if err != nil {
		return nil, false, err
	}
	info.CredentialID = "JTI=" + c.ID
	return &authenticator.Response{User: info.UserInfo(), Audiences: matching}, true, nil
}

// ours reports, without trusting anything, whether the token claims our issuer.
func (a *Authenticator) ours(token string) bool {
	if strings.Count(token, ".") != 2 {
		return false
	}
	c := &claims{}
	if _, _, err := a.parser.ParseUnverified(token, c); err != nil {
		return false
	}
	return c.Issuer == a.issuer
}

// key returns the key that a token claims to be signed with. A token that names none is tried with
// all keys.
func (a *Authenticator) key(t *jwt.Token) (any, error) {
	if id, ok := t.Header["kid"].(string); ok {
		if key, ok := a.keys[id]; ok {
			return key, nil
		}
		return nil, errors.New("signed by an unknown key")
	}
	set := jwt.VerificationKeySet{}
	for _, key := range a.keys {
		set.Keys = append(set.Keys, key)
	}
	return set, nil
}

func explain(err error) error {
	switch {
	case errors.Is(err, jwt.ErrTokenExpired):
		return errors.New("service account token has expired")
	case errors.Is(err, jwt.ErrTokenNotValidYet):
		return errors.New("service account token is not valid yet")
	case errors.Is(err, jwt.ErrTokenUsedBeforeIssued):
		return errors.New("service account token is issued in the future")
	default:
		return errors.New("service account token is not valid")
	}
}

// errInvalidated is what a client sees when its token's object is gone.
var errInvalidated = errors.New("service account token has been invalidated")

// bound returns an error unless everything that the token is bound to still exists.
func (a *Authenticator) bound(ctx context.Context, k *kubernetesClaims) (*serviceaccount.ServiceAccountInfo, error) {
	account, err := a.objects.ServiceAccount(ctx, k.Namespace, k.ServiceAccount.Name)
	if err != nil {
		return nil, err
	}
	switch {
	case ended(account):
		return nil, fmt.Errorf("service account %s/%s has been deleted", k.Namespace, k.ServiceAccount.Name)
	case account.UID != k.ServiceAccount.UID:
		return nil, fmt.Errorf("service account UID (%s) does not match claim (%s)", account.UID, k.ServiceAccount.UID)
	}
	info := &serviceaccount.ServiceAccountInfo{Namespace: k.Namespace, Name: k.ServiceAccount.Name, UID: string(k.ServiceAccount.UID)}
	if k.Secret != nil {
		secret, err := a.objects.Secret(ctx, k.Namespace, k.Secret.Name)
		if err := check("secret", secret, err, k.Secret.UID); err != nil {
			return nil, err
		}
	}
	if k.Pod != nil {
		pod, err := a.objects.Pod(ctx, k.Namespace, k.Pod.Name)
		if err := check("pod", pod, err, k.Pod.UID); err != nil {
			return nil, err
		}
		info.PodName, info.PodUID = k.Pod.Name, string(k.Pod.UID)
	}
	if k.Node != nil {
		if k.Pod == nil {
			node, err := a.objects.Node(ctx, k.Node.Name)
			if err := check("node", node, err, k.Node.UID); err != nil {
				return nil, err
			}
		}
		info.NodeName, info.NodeUID = k.Node.Name, string(k.Node.UID)
	}
	return info, nil
}

func check(kind string, obj metav1.Object, err error, uid types.UID) error {
	if err != nil || ended(obj) {
		return errInvalidated
	}
	if obj.GetUID() != uid {
		return fmt.Errorf("%s UID (%s) does not match service account %s ref claim (%s)", kind, obj.GetUID(), kind, uid)
	}
	return nil
}

// ended reports whether an object should have been gone by now.
func ended(obj metav1.Object) bool {
	d := obj.GetDeletionTimestamp()
	return d != nil && time.Since(d.Time) > leeway
}
