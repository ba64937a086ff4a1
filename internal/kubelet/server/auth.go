package server

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/request/websocket"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/cert"
	"k8s.io/klog/v2"
)

// Auth decides who may ask what.
type Auth struct {
	// Client for TokenReview and SubjectAccessReview; nil refuses tokens.
	Client kubernetes.Interface
	// NodeName that permissions are asked for.
	NodeName string
	// ClientCAFile signs the client certificates; empty takes none.
	ClientCAFile string
	// Anonymous lets requests without credentials be authorized as system:anonymous.
	Anonymous bool
	// Tokens by TokenReview.
	Tokens bool
	// AllowAll authorizes everybody.
	AllowAll bool

	TokenTTL, AllowTTL, DenyTTL time.Duration

	mu     sync.Mutex
	tokens map[[sha256.Size]byte]cached[user.Info]
	rights map[right]cached[bool]
	pool   *x509.CertPool
	read   time.Time // when the CA file was last changed
}

type cached[T any] struct {
	value   T
	expires time.Time
}

// right is one thing that somebody may be allowed to do.
type right struct {
	user, groups, extra, verb, subresource string
}

const maxCached = 10000

// errUnauthorized is the answer to missing or wrong credentials.
var errUnauthorized = errors.New("Unauthorized")

// authenticate tells who asks.
func (a *Auth) authenticate(r *http.Request) (user.Info, error) {
	if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 && a.ClientCAFile != "" {
		if who, err := a.byCertificate(r.TLS.PeerCertificates); err == nil {
			return who, nil
		} else if bearer(r) == "" {
			return nil, err
		}
	}
	if token := bearer(r); token != "" {
		return a.byToken(r.Context(), token)
	}
	if resp, ok, err := websocket.NewProtocolAuthenticator(authenticator.TokenFunc(a.byProtocol)).AuthenticateRequest(r); ok || err != nil {
		if err != nil {
			return nil, err
		}
		return resp.User, nil
	}
	if a.Anonymous {
		return &user.DefaultInfo{Name: user.Anonymous, Groups: []string{user.AllUnauthenticated}}, nil
	}
	return nil, errUnauthorized
}

func bearer(r *http.Request) string {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if strings.EqualFold(scheme, "bearer") {
		return strings.TrimSpace(token)
	}
	return ""
}

// roots returns the client CA, read anew when its file changed.
func (a *Auth) roots() (*x509.CertPool, error) {
	info, err := os.Stat(a.ClientCAFile)
	if err != nil {
		return nil, fmt.Errorf("client CA: %w", err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.pool != nil && info.ModTime().Equal(a.read) {
		return a.pool, nil
	}
	pool, err := cert.NewPool(a.ClientCAFile)
	if err != nil {
		return nil, fmt.Errorf("client CA: %w", err)
	}
	a.pool, a.read = pool, info.ModTime()
	return pool, nil
}

func (a *Auth) byCertificate(chain []*x509.Certificate) (user.Info, error) {
	roots, err := a.roots()
	if err != nil {
		return nil, err
	}
	opts := x509.VerifyOptions{Roots: roots, Intermediates: x509.NewCertPool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	for _, c := range chain[1:] {
		opts.Intermediates.AddCert(c)
	}
	if _, err := chain[0].Verify(opts); err != nil {
		return nil, errUnauthorized
	}
	s := chain[0].Subject
	if s.CommonName == "" {
		return nil, errUnauthorized
	}
	return &user.DefaultInfo{Name: s.CommonName, Groups: append(s.Organization, user.AllAuthenticated)}, nil
}

// byProtocol takes the token of a browser, which cannot set headers of a WebSocket.
func (a *Auth) byProtocol(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	who, err := a.byToken(ctx, token)
	if err != nil {
		return nil, false, err
	}
	return &authenticator.Response{User: who}, true, nil
}

func (a *Auth) byToken(ctx context.Context, token string) (user.Info, error) {
	if a.Client == nil || !a.Tokens {
		return nil, errUnauthorized
	}
	key := sha256.Sum256([]byte(token))
	a.mu.Lock()
	c, ok := a.tokens[key]
	a.mu.Unlock()
	if ok && time.Now().Before(c.expires) {
		return c.value, nil
	}
	review, err := a.Client.AuthenticationV1().TokenReviews().Create(ctx, &authenticationv1.TokenReview{
		Spec: authenticationv1.TokenReviewSpec{Token: token},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("token review: %w", err)
	}
	if !review.Status.Authenticated {
		return nil, errUnauthorized
	}
	u := review.Status.User
	who := &user.DefaultInfo{Name: u.Username, UID: u.UID, Groups: u.Groups, Extra: map[string][]string{}}
	for k, v := range u.Extra {
		who.Extra[k] = v
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.tokens == nil || len(a.tokens) >= maxCached {
		a.tokens = map[[sha256.Size]byte]cached[user.Info]{}
	}
	a.tokens[key] = cached[user.Info]{who, time.Now().Add(a.TokenTTL)}
	return who, nil
}

// subresources of the node that grant a request, the finer one first.
func subresources(path string) []string {
	under := func(prefix string) bool { return path == prefix || strings.HasPrefix(path, prefix+"/") }
	switch {
	case under("/pods"), under("/runningpods"):
		return []string{"pods", "proxy"}
	case under("/healthz"):
		return []string{"healthz", "proxy"}
	case under("/configz"):
		return []string{"configz", "proxy"}
	case under("/flagz"):
		return []string{"configz"}
	case under("/statusz"):
		return []string{"statusz"}
	case under("/stats"):
		return []string{"stats"}
	case under("/metrics"):
		return []string{"metrics"}
	case under("/logs"):
		return []string{"log"}
	case under("/checkpoint"):
		return []string{"checkpoint"}
	default:
		return []string{"proxy"}
	}
}

func verb(method string) string {
	switch method {
	case http.MethodPost:
		return "create"
	case http.MethodPut:
		return "update"
	case http.MethodPatch:
		return "patch"
	case http.MethodDelete:
		return "delete"
	case http.MethodGet, http.MethodHead:
		return "get"
	default:
		return "" // that nobody may
	}
}

// authorize tells whether somebody may make the request.
func (a *Auth) authorize(r *http.Request, who user.Info) (bool, error) {
	if a.AllowAll {
		return true, nil
	}
	if a.Client == nil {
		return false, nil
	}
	for _, sub := range subresources(r.URL.Path) {
		ok, err := a.may(r.Context(), who, verb(r.Method), sub)
		if ok || err != nil {
			return ok, err
		}
	}
	return false, nil
}

func (a *Auth) may(ctx context.Context, who user.Info, verb, sub string) (bool, error) {
	key := right{who.GetName(), strings.Join(who.GetGroups(), "\x00"), fmt.Sprint(who.GetUID(), who.GetExtra()), verb, sub}
	a.mu.Lock()
	c, ok := a.rights[key]
	a.mu.Unlock()
	if ok && time.Now().Before(c.expires) {
		return c.value, nil
	}
	spec := authorizationv1.SubjectAccessReviewSpec{
		User: who.GetName(), UID: who.GetUID(), Groups: who.GetGroups(), Extra: map[string]authorizationv1.ExtraValue{},
		ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: verb, Version: "v1", Resource: "nodes", Subresource: sub, Name: a.NodeName},
	}
	for k, v := range who.GetExtra() {
		spec.Extra[k] = v
	}
	review, err := a.Client.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{Spec: spec}, metav1.CreateOptions{})
	if err != nil {
		return false, fmt.Errorf("access review: %w", err)
	}
	ttl := a.DenyTTL
	if review.Status.Allowed {
		ttl = a.AllowTTL
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.rights == nil || len(a.rights) >= maxCached {
		a.rights = map[right]cached[bool]{}
	}
	a.rights[key] = cached[bool]{review.Status.Allowed, time.Now().Add(ttl)}
	return review.Status.Allowed, nil
}

// guard lets only those requests through that may pass.
func (a *Auth) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		who, err := a.authenticate(r)
		if err != nil {
			if !errors.Is(err, errUnauthorized) {
				klog.FromContext(r.Context()).Error(err, "Unable to authenticate the request due to an error")
			}
			http.Error(w, "Unauthorized", http.StatusUnauthorized)
			return
		}
		ok, err := a.authorize(r, who)
		if err != nil {
			klog.FromContext(r.Context()).Error(err, "Authorization error", "user", who.GetName(), "path", r.URL.Path)
			http.Error(w, fmt.Sprintf("Authorization error (user=%s, verb=%s, resource=nodes, subresource=%s)",
				who.GetName(), verb(r.Method), subresources(r.URL.Path)[0]), http.StatusInternalServerError)
			return
		}
		if !ok {
			http.Error(w, fmt.Sprintf("Forbidden (user=%s, verb=%s, resource=nodes, subresource(s)=%v)",
				who.GetName(), verb(r.Method), subresources(r.URL.Path)), http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}
