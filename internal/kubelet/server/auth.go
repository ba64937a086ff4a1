package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/apiserver/plugin/pkg/authorizer/webhook"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"wherry.dev/internal/inbound"
)

// AuthConfig configures an Auth.
type AuthConfig struct {
	// Client for TokenReview and SubjectAccessReview; nil refuses tokens.
	Client kubernetes.Interface
	// NodeName is the node for which permissions are checked.
	NodeName string
	// ClientCAFile is the CA of client certificates; if empty, none are accepted.
	ClientCAFile string
	// Anonymous lets requests without credentials be authorized as system:anonymous.
	Anonymous bool
	// Tokens accepts bearer tokens, checked by TokenReview.
	Tokens bool
	// AllowAll authorizes every authenticated request.
	AllowAll bool

	// TokenTTL is how long the result of a token check is cached, good or bad.
	TokenTTL, AllowTTL, DenyTTL time.Duration
}

// Auth authenticates and authorizes requests by asking the API server, as upstream's kubelet does:
// both use k8s.io/apiserver's delegation, with its caches and its retries.
type Auth struct {
	nodeName string
	known    authenticator.Request
	rights   authorizer.Authorizer
	clientCA *dynamiccertificates.DynamicFileCAContent // nil: none
}

// retries of a request to the API server (upstream's DefaultAuthWebhookRetryBackoff).
var retries = wait.Backoff{Duration: 500 * time.Millisecond, Factor: 1.5, Jitter: 0.2, Steps: 5}

// reviewTimeout limits one TokenReview (as upstream).
const reviewTimeout = 10 * time.Second

// NewAuth returns an Auth. Run keeps its client CA up to date.
func NewAuth(cfg AuthConfig) (*Auth, error) {
	a := &Auth{nodeName: cfg.NodeName}
	delegating := authenticatorfactory.DelegatingAuthenticatorConfig{
		Anonymous: &apiserver.AnonymousAuthConfig{Enabled: cfg.Anonymous}, CacheTTL: cfg.TokenTTL,
		WebhookRetryBackoff: &retries, TokenAccessReviewTimeout: reviewTimeout,
	}
	if cfg.Tokens && cfg.Client != nil {
		delegating.TokenAccessReviewClient = cfg.Client.AuthenticationV1()
	}
	var err error
	if cfg.ClientCAFile != "" {
		if a.clientCA, err = dynamiccertificates.NewDynamicCAContentFromFile("client-ca-bundle", cfg.ClientCAFile); err != nil {
			return nil, fmt.Errorf("client CA: %w", err)
		}
		delegating.ClientCertificateCAContentProvider = a.clientCA
	}
	if delegating.TokenAccessReviewClient == nil && a.clientCA == nil && !cfg.Anonymous {
		a.known = authenticator.RequestFunc(func(*http.Request) (*authenticator.Response, bool, error) { return nil, false, nil })
	} else if a.known, _, err = delegating.New(); err != nil {
		return nil, fmt.Errorf("authentication: %w", err)
	}
	switch {
	case cfg.AllowAll:
		a.rights = authorizerfactory.NewAlwaysAllowAuthorizer()
	case cfg.Client == nil:
		a.rights = authorizerfactory.NewAlwaysDenyAuthorizer()
	default: // without match conditions it needs no compiler, which is large
		a.rights, err = webhook.NewFromInterface(cfg.Client.AuthorizationV1(), cfg.AllowTTL, cfg.DenyTTL, retries,
			authorizer.DecisionNoOpinion, authorizerfactory.NewDelegatingAuthorizerMetrics(), nil)
	}
	if err != nil {
		return nil, fmt.Errorf("authorization: %w", err)
	}
	return a, nil
}

// Run reloads the client CA whenever its file changes, until the context ends.
func (a *Auth) Run(ctx context.Context) {
	if a.clientCA != nil {
		a.clientCA.Run(ctx, 1)
	}
}

// errUnauthorized is the response to missing credentials.
var errUnauthorized = errors.New("Unauthorized")

// authenticate returns the user who makes the request.
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

// subresources returns the subresources of the node that allow a request, the finer one first.
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
		return "" // which nobody is allowed
	}
}

// authorize reports whether a user may make the request.
func (a *Auth) authorize(r *http.Request, who user.Info) (bool, error) {
	for _, sub := range subresources(r.URL.Path) {
		decision, _, err := a.rights.Authorize(r.Context(), authorizer.AttributesRecord{
			User: who, Verb: verb(r.Method), APIVersion: "v1", Resource: "nodes", Subresource: sub, Name: a.nodeName,
			ResourceRequest: true, Path: r.URL.Path,
		})
		if decision == authorizer.DecisionAllow || err != nil {
			return decision == authorizer.DecisionAllow, err
		}
	}
	return false, nil
}

// guard passes on only the requests that are allowed.
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
