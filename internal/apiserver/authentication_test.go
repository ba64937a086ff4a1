package apiserver

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/spf13/pflag"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"wherry.dev/internal/apiserver/auth/token"
)

// whoIs returns whom the server takes a client for.
func whoIs(t *testing.T, cfg *rest.Config) (authenticationv1.UserInfo, error) {
	t.Helper()
	review, err := clientFor(t, cfg).AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		return authenticationv1.UserInfo{}, err
	}
	return review.Status.UserInfo, nil
}

// expectUser checks whom a token stands for; a user "" is nobody.
func expectUser(t *testing.T, s *Server, token, user string, groups ...string) {
	t.Helper()
	if err := isUser(t, s, token, user, groups...); err != nil {
		t.Error(err)
	}
}

func isUser(t *testing.T, s *Server, token, user string, groups ...string) error {
	t.Helper()
	got, err := whoIs(t, withToken(s, token))
	if user == "" {
		if !apierrors.IsUnauthorized(err) {
			return fmt.Errorf("token %s: %+v, %w", token, got, err)
		}
		return nil
	}
	groups = append(groups, "system:authenticated")
	if err != nil || got.Username != user || !slices.Equal(got.Groups, groups) {
		return fmt.Errorf("token %s: %+v, %w; want %s in %q", token, got, err, user, groups)
	}
	return nil
}

func TestStaticTokens(t *testing.T) {
	file := written(t, "tokens.csv", "t0ken,alice,u1,\"devs,ops\"\nother,bob,u2\n")
	s := start(t, func(c *Config) { c.Authentication.TokenFile = file })
	expectUser(t, s, "t0ken", "alice", "devs", "ops")
	expectUser(t, s, "other", "bob")
	expectUser(t, s, "unknown", "")
	got, err := whoIs(t, withToken(s, "t0ken"))
	if err != nil || got.UID != "u1" {
		t.Errorf("UID: %+v, %v", got, err)
	}
	expectUser(t, s, tokenOf(t, s), "system:serviceaccount:default:default", "system:serviceaccounts", "system:serviceaccounts:default")
}

func TestBootstrapTokens(t *testing.T) {
	s := start(t, func(c *Config) { c.Authentication.BootstrapTokens = true })
	ctx, api := t.Context(), admin(t, s).CoreV1().Secrets("kube-system")
	put := func(id string, change func(*corev1.Secret)) {
		t.Helper()
		secret := &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: "bootstrap-token-" + id},
			Type:       "bootstrap.kubernetes.io/token",
			StringData: map[string]string{
				"token-id": id, "token-secret": "0123456789abcdef", "usage-bootstrap-authentication": "true",
				"expiration":        time.Now().Add(time.Hour).Format(time.RFC3339),
				"auth-extra-groups": "system:bootstrappers:kubeadm:default-node-token",
			},
		}
		change(secret)
		if _, err := api.Create(ctx, secret, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	set := func(key, value string) func(*corev1.Secret) {
		return func(s *corev1.Secret) { s.StringData[key] = value }
	}
	put("aaaaaa", func(*corev1.Secret) {})
	put("bbbbbb", set("expiration", time.Now().Add(-time.Second).Format(time.RFC3339)))
	put("cccccc", set("usage-bootstrap-authentication", "false"))
	put("dddddd", set("auth-extra-groups", "system:masters"))
	put("eeeeee", set("token-id", "aaaaaa"))
	put("ffffff", set("expiration", "tomorrow"))
	put("gggggg", func(s *corev1.Secret) { s.Type = corev1.SecretTypeOpaque })
	eventually(t, func() error { // until the watch cache knows
		return isUser(t, s, "aaaaaa.0123456789abcdef", "system:bootstrap:aaaaaa", "system:bootstrappers", "system:bootstrappers:kubeadm:default-node-token")
	})
	for _, id := range []string{"bbbbbb", "cccccc", "dddddd", "eeeeee", "ffffff", "gggggg", "nobody"} {
		expectUser(t, s, id+".0123456789abcdef", "")
	}
	expectUser(t, s, "aaaaaa.0123456789abcdee", "")
	if err := api.Delete(ctx, "bootstrap-token-aaaaaa", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error { return isUser(t, s, "aaaaaa.0123456789abcdef", "") }) // not longer than it is cached
}

// TestSeveralIssuersOfAccountTokens renames the issuer: tokens of the former one are accepted as long
// as a flag names it, in any place but the first.
func TestSeveralIssuersOfAccountTokens(t *testing.T) {
	const before, after, user = "https://before.example", "https://after.example", "system:serviceaccount:default:default"
	groups := []string{"system:serviceaccounts", "system:serviceaccounts:default"}
	dir := t.TempDir()
	with := func(issuers ...string) (*Server, func()) {
		flags := make([]string, len(issuers))
		for i, issuer := range issuers {
			flags[i] = "--service-account-issuer=" + issuer
		}
		return run(t, dir, func(c *Config) { given(t, c, flags...) })
	}
	s, stop := with(before)
	makeAccount(t, s)
	old := accountToken(t, s)
	stop()

	s, stop = with(after, before)
	expectUser(t, s, old, user, groups...)
	fresh := accountToken(t, s)
	expectUser(t, s, fresh, user, groups...)
	claims := &jwt.RegisteredClaims{}
	if _, _, err := jwt.NewParser().ParseUnverified(fresh, claims); err != nil || claims.Issuer != after || !slices.Equal(claims.Audience, []string{after, before}) {
		t.Errorf("a new token has %+v, %v", claims, err)
	}
	if _, body := ask(t, s.ClientConfig("admin", "system:masters"), token.ConfigurationPath); !strings.Contains(body, `"issuer":"`+after+`"`) {
		t.Errorf("discovery: %s", body)
	}
	stop()

	s, stop = with(after)
	defer stop()
	expectUser(t, s, old, "")
	expectUser(t, s, fresh, user, groups...)
}

// accountToken asks for a token of the default account.
func accountToken(t *testing.T, s *Server) string {
	t.Helper()
	req, err := admin(t, s).CoreV1().ServiceAccounts("default").CreateToken(t.Context(), "default", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return req.Status.Token
}

// provider is an issuer of JWTs, as OpenID Connect has them.
type provider struct {
	*httptest.Server
	issuer string
	key    *ecdsa.PrivateKey
}

// newProvider serves an issuer: of the server's own URL, unless issuer names another one.
func newProvider(t *testing.T, issuer string) *provider {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	p := &provider{httptest.NewTLSServer(mux), issuer, key}
	t.Cleanup(p.Close)
	if issuer == "" {
		p.issuer = p.URL
	}
	docs, err := token.Discovery(p.issuer, "https://"+p.Listener.Addr().String()+token.KeysPath, []crypto.PublicKey{key.Public()})
	if err != nil {
		t.Fatal(err)
	}
	for path, handler := range docs {
		mux.Handle(path, handler)
	}
	return p
}

// ca returns the certificate that verifies a server of a test.
func caOf(s *httptest.Server) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}))
}

// token signs claims; iss, aud and exp have defaults.
func (p *provider) token(t *testing.T, claims map[string]any) string {
	t.Helper()
	all := jwt.MapClaims{"iss": p.issuer, "aud": "cluster", "exp": time.Now().Add(time.Hour).Unix()}
	maps.Copy(all, claims)
	signed, err := jwt.NewWithClaims(jwt.SigningMethodES256, all).SignedString(p.key)
	if err != nil {
		t.Fatal(err)
	}
	return signed
}

// indented is a certificate as a block of YAML.
func indented(text string) string {
	return "|\n        " + strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n        ")
}

func TestIssuerByFlags(t *testing.T) {
	p := newProvider(t, "")
	s := start(t, func(c *Config) {
		fs := pflag.NewFlagSet("", pflag.ContinueOnError)
		c.AddFlags(fs)
		if err := fs.Parse([]string{
			"--oidc-issuer-url", p.URL, "--oidc-client-id=cluster", "--oidc-ca-file", written(t, "ca.pem", caOf(p.Server)), "--oidc-signing-algs=ES256",
			"--oidc-groups-claim=groups", "--oidc-groups-prefix=oidc:", "--oidc-required-claim=hd=example.com",
		}); err != nil {
			t.Fatal(err)
		}
	})
	who := map[string]any{"sub": "jane", "groups": []string{"devs"}, "hd": "example.com"}
	eventually(t, func() error { return isUser(t, s, p.token(t, who), p.URL+"#jane", "oidc:devs") }) // until its keys are known
	expectUser(t, s, p.token(t, map[string]any{"sub": "jane", "hd": "example.org"}), "")
	expectUser(t, s, p.token(t, map[string]any{"sub": "jane", "hd": "example.com", "aud": "another"}), "")
	expectUser(t, s, p.token(t, map[string]any{"sub": "jane", "hd": "example.com", "exp": time.Now().Add(-time.Hour).Unix()}), "")
	stranger := newProvider(t, p.issuer)
	expectUser(t, s, stranger.token(t, who), "")
}

// issuersConfig has two issuers: one with prefixes, and one with CEL that is found at another URL.
func issuersConfig(first, second *provider) string {
	return fmt.Sprintf(`
apiVersion: apiserver.config.k8s.io/v1
kind: AuthenticationConfiguration
anonymous:
  enabled: true
  conditions:
  - path: /livez
jwt:
- issuer:
    url: %s
    audiences: [cluster, other]
    audienceMatchPolicy: MatchAny
    certificateAuthority: %s
  claimMappings:
    username: {claim: sub, prefix: "first:"}
- issuer:
    url: %s
    discoveryURL: %s
    audiences: [cluster]
    certificateAuthority: %s
  claimValidationRules:
  - expression: claims.tier > 1
    message: tier must be more than 1
  claimMappings:
    username: {expression: "claims.login.split('@')[0]"}
    groups: {expression: "dyn(claims.roles).map(r, 'team:' + r)"}
    uid: {expression: claims.sub}
    extra:
    - {key: example.com/tier, valueExpression: string(claims.tier)}
  userValidationRules:
  - expression: "!user.username.startsWith('system:')"
    message: reserved
`, first.issuer, indented(caOf(first.Server)), second.issuer, second.URL+token.ConfigurationPath, indented(caOf(second.Server)))
}

func TestIssuersByConfiguration(t *testing.T) {
	first, second := newProvider(t, ""), newProvider(t, "https://second.example.com")
	file := written(t, "authentication.yaml", issuersConfig(first, second))
	s := start(t, func(c *Config) { c.Authentication.ConfigFile = file })
	jane := map[string]any{"sub": "7", "login": "jane@example.com", "roles": []string{"devs", "ops"}, "tier": 2}
	eventually(t, func() error {
		return isUser(t, s, first.token(t, map[string]any{"sub": "joe", "aud": "other"}), "first:joe")
	})
	eventually(t, func() error { return isUser(t, s, second.token(t, jane), "jane", "team:devs", "team:ops") })
	if got, err := whoIs(t, withToken(s, second.token(t, jane))); err != nil || got.UID != "7" || !slices.Equal(got.Extra["example.com/tier"], []string{"2"}) {
		t.Errorf("UID and extra: %+v, %v", got, err)
	}
	poor, reserved := map[string]any{"tier": 1}, map[string]any{"login": "system:admin@example.com"}
	for k, v := range jane {
		for _, m := range []map[string]any{poor, reserved} {
			if _, ok := m[k]; !ok {
				m[k] = v
			}
		}
	}
	expectUser(t, s, second.token(t, poor), "")
	expectUser(t, s, second.token(t, reserved), "")
	// Service accounts come before the issuers.
	expectUser(t, s, tokenOf(t, s), "system:serviceaccount:default:default", "system:serviceaccounts", "system:serviceaccounts:default")
	anybody := clientFor(t, withToken(s, "")).Discovery().RESTClient()
	eventually(t, func() error { return anybody.Get().AbsPath("/livez").Do(t.Context()).Error() }) // until it lives
	if err := anybody.Get().AbsPath("/readyz").Do(t.Context()).Error(); !apierrors.IsUnauthorized(err) {
		t.Errorf("/readyz without credentials: %v", err)
	}
}

// replace writes a file as programs do that replace configurations: all at once.
func replace(t *testing.T, file, content string) {
	t.Helper()
	if err := os.WriteFile(file+".new", []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		t.Fatal(err)
	}
}

// metricOf returns the value of the first metric whose line begins with one of what the server counts, and has all
// parts; 0 if there is none.
func metricOf(t *testing.T, s *Server, name string, parts ...string) (value float64) {
	t.Helper()
	text, err := admin(t, s).Discovery().RESTClient().Get().AbsPath("/metrics").Do(t.Context()).Raw()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, name+"{") && !slices.ContainsFunc(parts, func(p string) bool { return !strings.Contains(line, p) }) {
			if _, err := fmt.Sscan(line[strings.LastIndex(line, " ")+1:], &value); err != nil {
				t.Fatal(err)
			}
			return value
		}
	}
	return 0
}

func TestIssuersAreReloaded(t *testing.T) {
	first, second := newProvider(t, ""), newProvider(t, "https://second.example.com")
	config := issuersConfig(first, second)
	file := written(t, "authentication.yaml", config)
	s := start(t, func(c *Config) { c.Authentication.ConfigFile = file })
	joe := map[string]any{"sub": "joe"}
	eventually(t, func() error { return isUser(t, s, first.token(t, joe), "first:joe") })
	const reloads = "apiserver_authentication_config_controller_automatic_reloads_total"
	failed := metricOf(t, s, reloads, `status="failure"`)
	for wrong, config := range map[string]string{
		"no YAML": "{", "unknown field": config + "unknown: 1\n",
		"changed anonymous": strings.Replace(config, "/livez", "/readyz", 1),
		"bad CEL":           strings.Replace(config, "claims.tier > 1", "claims.tier >", 1),
	} {
		replace(t, file, config)
		eventually(t, func() error {
			if n := metricOf(t, s, reloads, `status="failure"`); n <= failed {
				return fmt.Errorf("%s: %v failures, there were %v", wrong, n, failed)
			}
			return nil
		})
		failed = metricOf(t, s, reloads, `status="failure"`)
		expectUser(t, s, first.token(t, joe), "first:joe")
	}
	replace(t, file, strings.Replace(config, `prefix: "first:"`, `prefix: "changed:"`, 1))
	eventually(t, func() error { // a token that nobody has seen, because those seen are cached
		return isUser(t, s, first.token(t, map[string]any{"sub": "joe", "jti": rand.Text()}), "changed:joe")
	})
	eventually(t, func() error { // it is counted once it is in use
		if metricOf(t, s, reloads, `status="success"`) == 0 {
			return errors.New("the reload was not counted")
		}
		return nil
	})
}

func TestTokenWebhook(t *testing.T) {
	var asked atomic.Int32
	hook := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		review := &authenticationv1.TokenReview{}
		if err := json.NewDecoder(r.Body).Decode(review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if review.Spec.Token == "knock" {
			review.Status = authenticationv1.TokenReviewStatus{Authenticated: true, User: authenticationv1.UserInfo{Username: "remote", Groups: []string{"friends"}}}
		}
		if err := json.NewEncoder(w).Encode(review); err != nil {
			panic(http.ErrAbortHandler)
		}
	}))
	t.Cleanup(hook.Close)
	file := kubeconfigOf(t, hook)
	s := start(t, func(c *Config) { c.Authentication.Webhook.ConfigFile, c.Authentication.Webhook.Version = file, "v1" })
	expectUser(t, s, "knock", "remote", "friends")
	expectUser(t, s, "knock", "remote", "friends")
	if n := asked.Load(); n != 1 {
		t.Errorf("asked %d times about one token", n)
	}
	expectUser(t, s, "shout", "")
	// What is known here never leaves the server.
	before := asked.Load()
	expectUser(t, s, tokenOf(t, s), "system:serviceaccount:default:default", "system:serviceaccounts", "system:serviceaccounts:default")
	if n := asked.Load(); n != before {
		t.Error("a token of a service account was sent to the webhook")
	}
}

// kubeconfigOf writes a kubeconfig of a server of a test.
func kubeconfigOf(t *testing.T, s *httptest.Server) string {
	t.Helper()
	ca := written(t, "ca.pem", caOf(s))
	return written(t, "webhook.kubeconfig", fmt.Sprintf(`{apiVersion: v1, kind: Config, current-context: c,
clusters: [{name: c, cluster: {server: %q, certificate-authority: %q}}], users: [{name: u, user: {}}],
contexts: [{name: c, context: {cluster: c, user: u}}]}`, s.URL, ca))
}

func TestAuthenticationFlagsThatExcludeEachOther(t *testing.T) {
	p := newProvider(t, "")
	config := written(t, "authentication.yaml", issuersConfig(p, newProvider(t, "https://second.example.com")))
	twice := written(t, "authentication.yaml", issuersConfig(p, p))
	tunnel := written(t, "authentication.yaml", strings.Replace(issuersConfig(p, newProvider(t, "https://second.example.com")),
		"audienceMatchPolicy: MatchAny", "audienceMatchPolicy: MatchAny\n    egressSelectorType: cluster", 1))
	ca := written(t, "ca.pem", caOf(p.Server))
	empty := written(t, "empty.yaml", "")
	for want, flags := range map[string][]string{
		"contain overlapping certificates; --requestheader-allowed-names must be specified": {"--client-ca-file", ca, "--requestheader-client-ca-file", ca, "--requestheader-allowed-names="},
		`egress lookup required with egress selector type "cluster"`:                        {"--authentication-config", tunnel},
		"--authentication-config and the --oidc-* flags are mutually exclusive":             {"--authentication-config", config, "--oidc-issuer-url=https://x", "--oidc-client-id=c"},
		"--oidc-issuer-url and --oidc-client-id must be specified together":                 {"--oidc-groups-claim=groups"},
		"--anonymous-auth cannot be set when":                                               {"--authentication-config", config, "--anonymous-auth=true"},
		"jwt[1].issuer.url: Duplicate value":                                                {"--authentication-config", twice},
		"--authentication-config " + empty + ": the file is empty":                          {"--authentication-config", empty},
		"--token-auth-file: open /nowhere":                                                  {"--token-auth-file=/nowhere"},
		"--token-auth-file: read /dev/zero":                                                 {"--token-auth-file=/dev/zero"},
		`--oidc-signing-algs: "HS256" is not one of`:                                        {"--oidc-issuer-url=https://x", "--oidc-client-id=c", "--oidc-signing-algs=HS256"},
		`--authentication-token-webhook-version "v2" must be one of ["v1" "v1beta1"]`:       {"--authentication-token-webhook-version=v2"},
		"--authentication-token-webhook-config-file":                                        {"--authentication-token-webhook-config-file=/nowhere"},
	} {
		if err := startError(t, flags...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", flags, err, want)
		}
	}
}

// startError returns why a server with flags does not start.
func startError(t *testing.T, flags ...string) error {
	t.Helper()
	cfg := DefaultConfig()
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	cfg.AddFlags(fs)
	if err := fs.Parse(append(flags, "--data-dir", t.TempDir(), "--bind-address=127.0.0.1", "--secure-port=0")); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(t.Context())
	s, err := New(ctx, cfg)
	cancel()
	if err == nil {
		err = s.Run(ctx)
	}
	return err
}
