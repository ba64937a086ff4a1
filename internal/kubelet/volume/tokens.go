package volume

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
	// tokenRefresh is the share of its life after which a token is renewed.
	tokenRefresh = 0.8
	// tokenMaxAge renews tokens that live longer than anyone wants to trust one.
	tokenMaxAge = 24 * time.Hour
	tokenJitter = 10 * time.Second
)

// TokenSource asks the API server for tokens and keeps them until they want renewal.
type TokenSource struct {
	client kubernetes.Interface

	mu     sync.Mutex
	tokens map[tokenKey]issued
}

type tokenKey struct {
	uid      types.UID
	audience string
	seconds  int64
}

type issued struct {
	token     string
	refreshAt time.Time
}

// NewTokenSource returns a source; without a client it refuses.
func NewTokenSource(client kubernetes.Interface) *TokenSource {
	return &TokenSource{client: client, tokens: map[tokenKey]issued{}}
}

// Token returns a token bound to the pod.
func (t *TokenSource) Token(ctx context.Context, pod *v1.Pod, src *v1.ServiceAccountTokenProjection) (string, time.Time, error) {
	if t.client == nil {
		return "", time.Time{}, errors.New("no API server is configured to issue service account tokens")
	}
	seconds := int64(3600)
	if src.ExpirationSeconds != nil {
		seconds = *src.ExpirationSeconds
	}
	key := tokenKey{pod.UID, src.Audience, seconds}
	now := time.Now()
	t.mu.Lock()
	have, ok := t.tokens[key]
	t.mu.Unlock()
	if ok && now.Before(have.refreshAt) {
		return have.token, have.refreshAt, nil
	}
	got, err := t.request(ctx, pod, src.Audience, seconds, now)
	if err != nil {
		return "", time.Time{}, fmt.Errorf("failed to fetch token: %w", err)
	}
	t.mu.Lock()
	t.tokens[key] = got
	t.mu.Unlock()
	return got.token, got.refreshAt, nil
}

func (t *TokenSource) request(ctx context.Context, pod *v1.Pod, audience string, seconds int64, now time.Time) (issued, error) {
	req := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		ExpirationSeconds: &seconds,
		BoundObjectRef:    &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID},
	}}
	if audience != "" {
		req.Spec.Audiences = []string{audience}
	}
	account := pod.Spec.ServiceAccountName
	if account == "" {
		account = "default"
	}
	resp, err := t.client.CoreV1().ServiceAccounts(pod.Namespace).CreateToken(ctx, account, req, metav1.CreateOptions{})
	if err != nil {
		return issued{}, err
	}
	life := time.Duration(seconds) * time.Second
	if end := resp.Status.ExpirationTimestamp; !end.IsZero() && end.After(now) {
		life = end.Sub(now)
	}
	wait := min(time.Duration(float64(life)*tokenRefresh), tokenMaxAge)
	wait -= spread(pod.UID, min(tokenJitter, wait/10+1))
	return issued{resp.Status.Token, now.Add(wait)}, nil
}

// spread keeps pods that came together from renewing together, each by its own share of most.
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
