// Package identity has what pods prove who they are with: tokens of their service accounts, and certificates. It requests
// them from the API server, and keeps them in memory until they have to be renewed.
package identity

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

const (
	// tokenRefresh is the fraction of its lifetime after which a token is renewed.
	tokenRefresh = 0.8
	// tokenMaxAge is the age at which even a token with a longer lifetime is renewed.
	tokenMaxAge = 24 * time.Hour
	tokenJitter = 10 * time.Second
)

// TokenSource requests tokens from the API server and keeps them until they have to be renewed.
type TokenSource struct {
	client kubernetes.Interface

	mu     sync.Mutex
	tokens map[tokenKey]issued
}

type tokenKey struct {
	uid      types.UID // the pod's
	account  types.UID // empty: any account of that name
	audience string
	seconds  int64
}

type issued struct {
	token     string
	expires   metav1.Time
	refreshAt time.Time
}

// NewTokenSource returns a source; without a client it refuses every request.
func NewTokenSource(client kubernetes.Interface) *TokenSource {
	return &TokenSource{client: client, tokens: map[tokenKey]issued{}}
}

// Token returns a token bound to the pod.
func (t *TokenSource) Token(ctx context.Context, pod *v1.Pod, src *v1.ServiceAccountTokenProjection) (string, time.Time, error) {
	seconds := int64(3600)
	if src.ExpirationSeconds != nil {
		seconds = *src.ExpirationSeconds
	}
	got, err := t.get(ctx, pod, tokenKey{uid: pod.UID, audience: src.Audience, seconds: seconds})
	return got.token, got.refreshAt, err
}

// Issue is Token for whoever needs to know when the token expires.
func (t *TokenSource) Issue(ctx context.Context, pod *v1.Pod, src *v1.ServiceAccountTokenProjection) (authenticationv1.TokenRequestStatus, error) {
	seconds := int64(3600)
	if src.ExpirationSeconds != nil {
		seconds = *src.ExpirationSeconds
	}
	got, err := t.get(ctx, pod, tokenKey{uid: pod.UID, audience: src.Audience, seconds: seconds})
	return authenticationv1.TokenRequestStatus{Token: got.token, ExpirationTimestamp: got.expires}, err
}

// AccountToken returns a token for the pod's service account, for one audience, if the account
// still has this UID.
func (t *TokenSource) AccountToken(ctx context.Context, pod *v1.Pod, account types.UID, audience string) (string, error) {
	got, err := t.get(ctx, pod, tokenKey{uid: pod.UID, account: account, audience: audience, seconds: 3600})
	return got.token, err
}

func (t *TokenSource) get(ctx context.Context, pod *v1.Pod, key tokenKey) (issued, error) {
	if t.client == nil {
		return issued{}, errors.New("no API server is configured to issue service account tokens")
	}
	now := time.Now()
	t.mu.Lock()
	have, ok := t.tokens[key]
	t.mu.Unlock()
	if ok && now.Before(have.refreshAt) {
		return have, nil
	}
	got, err := t.request(ctx, pod, key, now)
	if err != nil {
		return issued{}, fmt.Errorf("failed to fetch token: %w", err)
	}
	t.mu.Lock()
	t.tokens[key] = got
	t.mu.Unlock()
	return got, nil
}

func (t *TokenSource) request(ctx context.Context, pod *v1.Pod, key tokenKey, now time.Time) (issued, error) {
	req := &authenticationv1.TokenRequest{ObjectMeta: metav1.ObjectMeta{UID: key.account}, Spec: authenticationv1.TokenRequestSpec{
		ExpirationSeconds: &key.seconds,
		BoundObjectRef:    &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID},
	}}
	if key.audience != "" {
		req.Spec.Audiences = []string{key.audience}
	}
	account := pod.Spec.ServiceAccountName
	if account == "" {
		account = "default"
	}
	resp, err := t.client.CoreV1().ServiceAccounts(pod.Namespace).CreateToken(ctx, account, req, metav1.CreateOptions{})
	if err != nil {
		return issued{}, err
	}
	life := time.Duration(key.seconds) * time.Second
	if end := resp.Status.ExpirationTimestamp; !end.IsZero() && end.After(now) {
		life = end.Sub(now)
	}
	wait := min(time.Duration(float64(life)*tokenRefresh), tokenMaxAge)
	wait -= spread(pod.UID, min(tokenJitter, wait/10+1))
	return issued{resp.Status.Token, resp.Status.ExpirationTimestamp, now.Add(wait)}, nil
}

// spread returns the pod's own fraction of most, so that pods that arrived together do not renew
// together.
func spread(uid types.UID, most time.Duration) time.Duration {
	h := fnv.New64a()
	_, _ = h.Write([]byte(uid))
	return time.Duration(h.Sum64() % uint64(most))
}

// Forget drops the tokens of a pod that is gone.
func (t *TokenSource) Forget(uid types.UID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for k := range t.tokens {
		if k.uid == uid {
			delete(t.tokens, k)
		}
	}
}
