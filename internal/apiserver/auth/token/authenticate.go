package token

import (
	"context"
	"crypto"
	"errors"
	"fmt"
	"slices"
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
	// Label sets a label of a secret.
	Label(ctx context.Context, secret *corev1.Secret, key, value string) error
}

// leeway is by how much the clocks of the issuer and the checker of a token may differ, and how
// long a token stays valid after the object that it is bound to was marked for deletion.
const leeway = time.Minute

// Authenticator checks tokens.
type Authenticator struct {
	issuers      []string
	audiences    authenticator.Audiences
	keys         map[string]crypto.PublicKey
	objects      Objects
	parser       *jwt.Parser
	legacyParser *jwt.Parser // of tokens that do not expire
}

var _ authenticator.Token = (*Authenticator)(nil)

// NewAuthenticator returns an authenticator that accepts tokens of the issuers, signed with one of
// the keys. Tokens without an audience of their own count as meant for audiences.
func NewAuthenticator(issuers []string, audiences []string, keys []crypto.PublicKey, objects Objects) (*Authenticator, error) {
	a := &Authenticator{
		issuers:   issuers,
		audiences: audiences,
		keys:      map[string]crypto.PublicKey{},
		objects:   objects,
	}
	methods := jwt.WithValidMethods([]string{"ES256", "ES384", "ES512", "RS256"})
	a.parser = jwt.NewParser(methods, jwt.WithExpirationRequired(), jwt.WithIssuedAt(), jwt.WithLeeway(leeway))
	a.legacyParser = jwt.NewParser(methods, jwt.WithLeeway(leeway))
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
	switch issuer := issuerOf(token); {
	case slices.Contains(a.issuers, issuer):
		return a.authenticate(ctx, token)
	case issuer == legacyIssuer:
		audiences, err := a.audiencesFor(ctx, nil)
		if err != nil {
			return nil, false, err
		}
		info, err := a.legacy(ctx, token)
		if err != nil {
			return nil, false, err
		}
		return &authenticator.Response{User: info.UserInfo(), Audiences: audiences}, true, nil
	}
	return nil, false, nil
}

func (a *Authenticator) authenticate(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	c := &claims{}
	if _, err := a.parser.ParseWithClaims(token, c, a.key); err != nil {
		return nil, false, explain(err)
	}
	matching, err := a.audiencesFor(ctx, authenticator.Audiences(c.Audience))
	if err != nil {
		return nil, false, err
	}
	info, err := a.bound(ctx, &c.Kubernetes)
	if err != nil {
		return nil, false, err
	}
	info.CredentialID = "JTI=" + c.ID
	return &authenticator.Response{User: info.UserInfo(), Audiences: matching}, true, nil
}

// audiencesFor returns the audiences that a token is valid for and that are asked for.
func (a *Authenticator) audiencesFor(ctx context.Context, of authenticator.Audiences) (authenticator.Audiences, error) {
	if len(of) == 0 {
		of = a.audiences
	}
	requested, ok := authenticator.AudiencesFrom(ctx)
	if !ok {
		requested = a.audiences
	}
	matching := requested.Intersect(of)
	if len(matching) == 0 && len(requested) > 0 {
		return nil, fmt.Errorf("token audiences %q is invalid for the target audiences %q", of, requested)
	}
	return matching, nil
}

// issuerOf returns, without trusting anything, what the token says is its issuer; "" for no token of ours.
func issuerOf(token string) string {
	if strings.Count(token, ".") != 2 {
		return ""
	}
	c := &jwt.RegisteredClaims{}
	if _, _, err := jwt.NewParser().ParseUnverified(token, c); err != nil {
		return ""
	}
	return c.Issuer
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
