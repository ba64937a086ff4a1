// Package token issues and checks the tokens of service accounts: signed JSON web tokens, bound to the
// account and usually to a pod, and valid for certain audiences and a limited time (KEP-1205). Those in
// Secrets (legacy.go) are valid while the secret and the account exist.
package token

import (
	"crypto"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
)

// claims is a token's payload, in the form that Kubernetes documents.
type claims struct {
	jwt.RegisteredClaims
	Kubernetes kubernetesClaims `json:"kubernetes.io"`
}

type kubernetesClaims struct {
	Namespace      string           `json:"namespace,omitempty"`
	ServiceAccount ref              `json:"serviceaccount"`
	Pod            *ref             `json:"pod,omitempty"`
	Secret         *ref             `json:"secret,omitempty"`
	Node           *ref             `json:"node,omitempty"`
	WarnAfter      *jwt.NumericDate `json:"warnafter,omitempty"`
}

// ref identifies one object for good: another object with the same name has another UID.
type ref struct {
	Name string    `json:"name,omitempty"`
	UID  types.UID `json:"uid,omitempty"`
}

// Request describes a token to issue.
type Request struct {
	Account   *corev1.ServiceAccount
	Audiences []string
	// Lifetime is when the token expires. WarnAfter, when not zero, is when its holder should have
	// replaced it.
	Lifetime, WarnAfter time.Duration
	// What the token is bound to: a pod (which adds its node for information), a secret, a node, or
	// nothing.
	Pod    *corev1.Pod
	Secret *corev1.Secret
	Node   *corev1.Node
}

// Issuer signs tokens.
type Issuer struct {
	issuer string
	keyID  string
	key    crypto.Signer
	method jwt.SigningMethod
}

// NewIssuer returns an issuer that signs with an ECDSA or RSA key.
func NewIssuer(issuer string, key crypto.Signer) (*Issuer, error) {
	public, err := jwkOf(key.Public())
	if err != nil {
		return nil, err
	}
	method := jwt.GetSigningMethod(public.Algorithm)
	if method == nil {
		return nil, fmt.Errorf("service account signing key is on the curve %s, which is not supported", public.Curve)
	}
	return &Issuer{issuer: issuer, keyID: public.KeyID, key: key, method: method}, nil
}

// Issue returns a signed token.
func (i *Issuer) Issue(req Request, now time.Time) (string, error) {
	c := claims{
		RegisteredClaims: jwt.RegisteredClaims{
			Issuer:    i.issuer,
			Subject:   serviceaccount.MakeUsername(req.Account.Namespace, req.Account.Name),
			Audience:  req.Audiences,
			ExpiresAt: jwt.NewNumericDate(now.Add(req.Lifetime)),
			NotBefore: jwt.NewNumericDate(now),
			IssuedAt:  jwt.NewNumericDate(now),
			ID:        uuid.NewString(),
		},
		Kubernetes: kubernetesClaims{
			Namespace:      req.Account.Namespace,
			ServiceAccount: ref{req.Account.Name, req.Account.UID},
		},
	}
	k := &c.Kubernetes
	switch {
	case req.Pod != nil:
		k.Pod = &ref{req.Pod.Name, req.Pod.UID}
		if req.Node != nil {
			k.Node = &ref{req.Node.Name, req.Node.UID}
		}
	case req.Secret != nil:
		k.Secret = &ref{req.Secret.Name, req.Secret.UID}
	case req.Node != nil:
		k.Node = &ref{req.Node.Name, req.Node.UID}
	}
	if req.WarnAfter > 0 {
		k.WarnAfter = jwt.NewNumericDate(now.Add(req.WarnAfter))
	}
	return i.sign(req.Account, &c)
}

func (i *Issuer) sign(account *corev1.ServiceAccount, c jwt.Claims) (string, error) {
	t := jwt.NewWithClaims(i.method, c)
	t.Header["kid"] = i.keyID
	signed, err := t.SignedString(i.key)
	if err != nil {
		return "", fmt.Errorf("sign token of service account %s/%s: %w", account.Namespace, account.Name, err)
	}
	return signed, nil
}

// keyID derives a key's ID from its public half, as upstream does.
func keyID(key crypto.PublicKey) (string, error) {
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		return "", fmt.Errorf("service account key: %w", err)
	}
	sum := sha256.Sum256(der)
	return base64.RawURLEncoding.EncodeToString(sum[:]), nil
}
