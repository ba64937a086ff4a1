package server

import (
	"context"
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
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/group"
	"k8s.io/apiserver/pkg/authentication/request/anonymous"
	"k8s.io/apiserver/pkg/authentication/request/bearertoken"
	"k8s.io/apiserver/pkg/authentication/request/union"
	"k8s.io/apiserver/pkg/authentication/request/websocket"
	authnx509 "k8s.io/apiserver/pkg/authentication/request/x509"
	tokencache "k8s.io/apiserver/pkg/authentication/token/cache"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/cert"
	"k8s.io/klog/v2"

	"wherry.dev/internal/inbound"
)

// AuthConfig says who may ask.
type AuthConfig struct {
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

	// TokenTTL is how long it counts that a token is good, or that it is not.
	TokenTTL, AllowTTL, DenyTTL time.Duration
}

// Auth decides who may ask what.
type Auth struct {
	cfg    AuthConfig
	known  authenticator.Request
	rights *cache.LRUExpireCache // right → bool

	mu   sync.Mutex
	pool *x509.CertPool
	read time.Time // when the CA file was last changed
}

// right is one thing that somebody may be allowed to do.
type right struct {
	user, groups, extra, verb, subresource string
}

// maxRights is how many answers are remembered; the one that was used last stays longest.
const maxRights = 8192

// NewAuth asks, as upstream's kubelet does: a client certificate, a token, one that a
// browser sends as a WebSocket's protocol, in the end nobody.
func NewAuth(cfg AuthConfig) *Auth {
	a := &Auth{cfg: cfg, rights: cache.NewLRUExpireCache(maxRights)}
	var all []authenticator.Request
	if cfg.ClientCAFile != "" {
		all = append(all, authnx509.NewDynamic(a.verifyOptions, authnx509.CommonNameUserConversion))
	}
	if cfg.Tokens && cfg.Client != nil {
		tokens := tokencache.New(authenticator.TokenFunc(a.review), false, cfg.TokenTTL, cfg.TokenTTL)
		all = append(all, bearertoken.New(tokens), websocket.NewProtocolAuthenticator(tokens))
	}
	a.known = group.NewAuthenticatedGroupAdder(union.New(all...))
	if cfg.Anonymous {
		a.known = union.NewFailOnError(a.known, anonymous.NewAuthenticator(nil))
	}
	return a
}

// errUnauthorized is the answer to missing credentials.
var errUnauthorized = errors.New("Unauthorized")

// authenticate tells who asks.
func (a *Auth) authenticate(r *http.Request) (user.Info, error) {
	resp, ok, err := a.known.AuthenticateRequest(r)
	switch {
	case err != nil:
		return nil, err
	case !ok:
		return nil, errUnauthorized
	}
	if resp.User.GetName() != user.Anonymous {
		inbound.Proven(r.Context())
	}
	return resp.User, nil
}

// verifyOptions of client certificates; none, while their CA cannot be read.
func (a *Auth) verifyOptions() (x509.VerifyOptions, bool) {
	opts := authnx509.DefaultVerifyOptions()
	var err error
	if opts.Roots, err = a.roots(); err != nil {
		klog.Background().Error(err, "Client certificates are not taken")
	}
	return opts, err == nil
}

// roots returns the client CA, read anew when its file changed.
func (a *Auth) roots() (*x509.CertPool, error) {
	info, err := os.Stat(a.cfg.ClientCAFile)
	if err != nil {
		return nil, fmt.Errorf("client CA: %w", err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.pool != nil && info.ModTime().Equal(a.read) {
		return a.pool, nil
	}
	pool, err := cert.NewPool(a.cfg.ClientCAFile)
	if err != nil {
		return nil, fmt.Errorf("client CA: %w", err)
	}
	a.pool, a.read = pool, info.ModTime()
	return pool, nil
}

// review asks the API server whose token it is.
func (a *Auth) review(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	review, err := a.cfg.Client.AuthenticationV1().TokenReviews().Create(ctx, &authenticationv1.TokenReview{
		Spec: authenticationv1.TokenReviewSpec{Token: token},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, false, fmt.Errorf("token review: %w", err)
	}
	if !review.Status.Authenticated {
		return nil, false, nil
	}
	u := review.Status.User
	who := &user.DefaultInfo{Name: u.Username, UID: u.UID, Groups: u.Groups, Extra: map[string][]string{}}
	for k, v := range u.Extra {
		who.Extra[k] = v
	}
	return &authenticator.Response{User: who}, true, nil
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
	if a.cfg.AllowAll {
		return true, nil
	}
	if a.cfg.Client == nil {
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
	if allowed, ok := a.rights.Get(key); ok {
		return allowed.(bool), nil
	}
	spec := authorizationv1.SubjectAccessReviewSpec{
		User: who.GetName(), UID: who.GetUID(), Groups: who.GetGroups(), Extra: map[string]authorizationv1.ExtraValue{},
		ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: verb, Version: "v1", Resource: "nodes", Subresource: sub, Name: a.cfg.NodeName},
	}
	for k, v := range who.GetExtra() {
		spec.Extra[k] = v
	}
	review, err := a.cfg.Client.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{Spec: spec}, metav1.CreateOptions{})
	if err != nil {
		return false, fmt.Errorf("access review: %w", err)
	}
	ttl := a.cfg.DenyTTL
	if review.Status.Allowed {
		ttl = a.cfg.AllowTTL
	}
	a.rights.Add(key, review.Status.Allowed, ttl)
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
