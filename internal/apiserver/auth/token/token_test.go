package token

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golang-jwt/jwt/v5"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/authenticator"
)

const issuer = "https://kubernetes.default.svc"

// stored holds the objects that tokens are bound to, by kind and name.
type stored map[string]metav1.Object

func find[T metav1.Object](s stored, kind, name string) (T, error) {
	obj, ok := s[kind+"/"+name].(T)
	if !ok {
		return obj, apierrors.NewNotFound(schema.GroupResource{Resource: kind}, name)
	}
	return obj, nil
}

func (s stored) ServiceAccount(_ context.Context, _, name string) (*corev1.ServiceAccount, error) {
	return find[*corev1.ServiceAccount](s, "serviceaccounts", name)
}

func (s stored) Pod(_ context.Context, _, name string) (*corev1.Pod, error) {
	return find[*corev1.Pod](s, "pods", name)
}

func (s stored) Secret(_ context.Context, _, name string) (*corev1.Secret, error) {
	return find[*corev1.Secret](s, "secrets", name)
}

func (s stored) Node(_ context.Context, name string) (*corev1.Node, error) {
	return find[*corev1.Node](s, "nodes", name)
}

func (s stored) Label(_ context.Context, secret *corev1.Secret, key, value string) error {
	metav1.SetMetaDataLabel(&secret.ObjectMeta, key, value)
	return nil
}

func named(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, Namespace: "ns", UID: types.UID("uid-" + name)}
}

// everything returns a namespace with one object of each kind.
func everything() stored {
	return stored{
		"serviceaccounts/sa": &corev1.ServiceAccount{ObjectMeta: named("sa")},
		"pods/p":             &corev1.Pod{ObjectMeta: named("p")},
		"secrets/s":          &corev1.Secret{ObjectMeta: named("s")},
		"nodes/n":            &corev1.Node{ObjectMeta: named("n")},
	}
}

func ecKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func rsaKey(t *testing.T) *rsa.PrivateKey {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func accepting(t *testing.T, objects Objects, keys ...crypto.Signer) *Authenticator {
	t.Helper()
	public := make([]crypto.PublicKey, len(keys))
	for i, k := range keys {
		public[i] = k.Public()
	}
	a, err := NewAuthenticator([]string{issuer, "https://before.example"}, []string{issuer, "api"}, public, objects)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// issue signs a token for the account sa that lasts an hour.
func issue(t *testing.T, key crypto.Signer, change func(*Request)) string {
	t.Helper()
	i, err := NewIssuer(issuer, key)
	if err != nil {
		t.Fatal(err)
	}
	req := Request{Account: &corev1.ServiceAccount{ObjectMeta: named("sa")}, Audiences: []string{"api"}, Lifetime: time.Hour}
	if change != nil {
		change(&req)
	}
	token, err := i.Issue(req, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// wantError compares an error's text; "" means no error.
func wantError(t *testing.T, err error, want string) {
	t.Helper()
	got := ""
	if err != nil {
		got = err.Error()
	}
	if got != want {
		t.Errorf("error %q, want %q", got, want)
	}
}

func boundToPod(r *Request)  { r.Pod = &corev1.Pod{ObjectMeta: named("p")} }
func boundToNode(r *Request) { r.Node = &corev1.Node{ObjectMeta: named("n")} }
func boundToSecret(r *Request) {
	r.Secret = &corev1.Secret{ObjectMeta: named("s")}
}

func boundToPodOnNode(r *Request) {
	boundToPod(r)
	boundToNode(r)
}

func TestTokenIsGoodWhileWhatItIsBoundToExists(t *testing.T) {
	const invalidated = "service account token has been invalidated"
	gone := func(what string) func(stored) { return func(s stored) { delete(s, what) } }
	again := func(what string) func(stored) { return func(s stored) { s[what].SetUID("other") } }
	ending := func(what string, ago time.Duration) func(stored) {
		return func(s stored) { s[what].SetDeletionTimestamp(&metav1.Time{Time: time.Now().Add(-ago)}) }
	}
	for name, tc := range map[string]struct {
		bind   func(*Request)
		change func(stored)
		want   string
	}{
		"account":                      {nil, nil, ""},
		"account gone":                 {nil, gone("serviceaccounts/sa"), `serviceaccounts "sa" not found`},
		"account made again":           {nil, again("serviceaccounts/sa"), "service account UID (other) does not match claim (uid-sa)"},
		"account ending":               {nil, ending("serviceaccounts/sa", 59*time.Second), ""},
		"account ended":                {nil, ending("serviceaccounts/sa", 61*time.Second), "service account ns/sa has been deleted"},
		"pod":                          {boundToPod, nil, ""},
		"pod gone":                     {boundToPod, gone("pods/p"), invalidated},
		"pod made again":               {boundToPod, again("pods/p"), "pod UID (other) does not match service account pod ref claim (uid-p)"},
		"pod ending":                   {boundToPod, ending("pods/p", 59*time.Second), ""},
		"pod ended":                    {boundToPod, ending("pods/p", 61*time.Second), invalidated},
		"secret":                       {boundToSecret, nil, ""},
		"secret gone":                  {boundToSecret, gone("secrets/s"), invalidated},
		"secret made again":            {boundToSecret, again("secrets/s"), "secret UID (other) does not match service account secret ref claim (uid-s)"},
		"node":                         {boundToNode, nil, ""},
		"node gone":                    {boundToNode, gone("nodes/n"), invalidated},
		"node made again":              {boundToNode, again("nodes/n"), "node UID (other) does not match service account node ref claim (uid-n)"},
		"a pod's node is only told":    {boundToPodOnNode, gone("nodes/n"), ""},
		"an unbound token has no pod":  {nil, gone("pods/p"), ""},
		"bound to the pod, not secret": {boundToPod, gone("secrets/s"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				objects, key := everything(), ecKey(t)
				token := issue(t, key, tc.bind)
				if tc.change != nil {
					tc.change(objects)
				}
				_, ok, err := accepting(t, objects, key).AuthenticateToken(t.Context(), token)
				wantError(t, err, tc.want)
				if ok != (tc.want == "") {
					t.Errorf("authenticated: %t", ok)
				}
			})
		})
	}
}

func TestTokenSaysWhoAndWhere(t *testing.T) {
	key := ecKey(t)
	resp, ok, err := accepting(t, everything(), key).AuthenticateToken(t.Context(), issue(t, key, boundToPodOnNode))
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	u := resp.User
	if u.GetName() != "system:serviceaccount:ns:sa" || u.GetUID() != "uid-sa" {
		t.Errorf("user %s %s", u.GetName(), u.GetUID())
	}
	if want := []string{"system:serviceaccounts", "system:serviceaccounts:ns"}; !slices.Equal(u.GetGroups(), want) {
		t.Errorf("groups %q, want %q", u.GetGroups(), want)
	}
	for key, want := range map[string]string{"pod-name": "p", "pod-uid": "uid-p", "node-name": "n", "node-uid": "uid-n", "credential-id": "JTI="} {
		got := u.GetExtra()["authentication.kubernetes.io/"+key]
		if len(got) != 1 || !strings.HasPrefix(got[0], want) {
			t.Errorf("%s is %q, want %q", key, got, want)
		}
	}
}

func TestTokenIsForItsAudiences(t *testing.T) {
	for name, tc := range map[string]struct {
		token, requested []string // nil: none is requested
		want             []string // nil: the token is refused
	}{
		"ours":                    {[]string{"api"}, nil, []string{"api"}},
		"one of ours":             {[]string{"vault", "api"}, nil, []string{"api"}},
		"somebody else's":         {[]string{"vault"}, nil, nil},
		"asked for":               {[]string{"vault"}, []string{"vault"}, []string{"vault"}},
		"asked for another":       {[]string{"api"}, []string{"vault"}, nil},
		"asked for several":       {[]string{"a", "b"}, []string{"b", "c"}, []string{"b"}},
		"none is ours":            {nil, nil, []string{issuer, "api"}},
		"none is nobody else's":   {nil, []string{"vault"}, nil},
		"none, and ours is asked": {nil, []string{"api"}, []string{"api"}},
	} {
		t.Run(name, func(t *testing.T) {
			key, ctx := ecKey(t), t.Context()
			if tc.requested != nil {
				ctx = authenticator.WithAudiences(ctx, tc.requested)
			}
			token := issue(t, key, func(r *Request) { r.Audiences = tc.token })
			resp, ok, err := accepting(t, everything(), key).AuthenticateToken(ctx, token)
			if tc.want == nil {
				if ok || err == nil || !strings.Contains(err.Error(), "is invalid for the target audiences") {
					t.Errorf("%t, %v", ok, err)
				}
				return
			}
			if err != nil || !ok || !slices.Equal(resp.Audiences, tc.want) {
				t.Errorf("%t, %v, %+v, want %q", ok, err, resp, tc.want)
			}
		})
	}
}

// TestClocksMayDifferByAMinute: a server whose clock was a little behind the one that issued a
// token used to refuse it as "not valid yet".
func TestClocksMayDifferByAMinute(t *testing.T) {
	for name, tc := range map[string]struct {
		after time.Duration // when the token is shown, by the clock of the checking server
		want  string
	}{
		"at once":               {0, ""},
		"a clock behind":        {-59 * time.Second, ""},
		"a clock too far":       {-62 * time.Second, "service account token is not valid yet"},
		"before its end":        {time.Hour - time.Second, ""},
		"in its last minute":    {time.Hour + 59*time.Second, ""},
		"after its last minute": {time.Hour + 62*time.Second, "service account token has expired"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				key := ecKey(t)
				i, err := NewIssuer(issuer, key)
				if err != nil {
					t.Fatal(err)
				}
				req := Request{Account: &corev1.ServiceAccount{ObjectMeta: named("sa")}, Lifetime: time.Hour}
				token, err := i.Issue(req, time.Now().Add(-tc.after))
				if err != nil {
					t.Fatal(err)
				}
				_, _, err = accepting(t, everything(), key).AuthenticateToken(t.Context(), token)
				wantError(t, err, tc.want)
			})
		})
	}
}

func TestTokenIsIssuedInTheFuture(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		key, later := ecKey(t), jwt.NewNumericDate(time.Now().Add(2*time.Minute))
		token := sign(t, jwt.SigningMethodES256, key, "", func(c *claims) { c.IssuedAt = later })
		_, _, err := accepting(t, everything(), key).AuthenticateToken(t.Context(), token)
		wantError(t, err, "service account token is issued in the future")
	})
}

// sign makes a token by hand; kid "" names no key.
func sign(t *testing.T, method jwt.SigningMethod, key any, kid string, change func(*claims)) string {
	t.Helper()
	c := &claims{
		RegisteredClaims: jwt.RegisteredClaims{Issuer: issuer, ExpiresAt: jwt.NewNumericDate(time.Now().Add(time.Hour))},
		Kubernetes:       kubernetesClaims{Namespace: "ns", ServiceAccount: ref{"sa", "uid-sa"}},
	}
	if change != nil {
		change(c)
	}
	token := jwt.NewWithClaims(method, c)
	if kid != "" {
		token.Header["kid"] = kid
	}
	signed, err := token.SignedString(key)
	if err != nil {
		t.Fatal(err)
	}
	return signed
}

func TestWhoseSignatureCounts(t *testing.T) {
	ours, other, old := ecKey(t), ecKey(t), rsaKey(t)
	id := func(k crypto.Signer) string {
		s, err := keyID(k.Public())
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	public, err := ours.PublicKey.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	parts := strings.Split(sign(t, jwt.SigningMethodES256, ours, id(ours), nil), ".")
	forged := strings.Replace(string(decode(t, parts[1])), `"sa"`, `"admin"`, 1)
	const invalid, foreign = "service account token is not valid", "-"
	for name, tc := range map[string]struct{ token, want string }{
		"our key":                  {sign(t, jwt.SigningMethodES256, ours, id(ours), nil), ""},
		"our older key, RSA":       {sign(t, jwt.SigningMethodRS256, old, id(old), nil), ""},
		"no name of the key":       {sign(t, jwt.SigningMethodES256, ours, "", nil), ""},
		"no name of the RSA key":   {sign(t, jwt.SigningMethodRS256, old, "", nil), ""},
		"another key":              {sign(t, jwt.SigningMethodES256, other, id(other), nil), invalid},
		"another, called ours":     {sign(t, jwt.SigningMethodES256, other, id(ours), nil), invalid},
		"another without a name":   {sign(t, jwt.SigningMethodES256, other, "", nil), invalid},
		"changed claims":           {parts[0] + "." + base64.RawURLEncoding.EncodeToString([]byte(forged)) + "." + parts[2], invalid},
		"no signature":             {parts[0] + "." + parts[1] + ".", invalid},
		"algorithm none":           {sign(t, jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType, id(ours), nil), invalid},
		"HMAC with the public key": {sign(t, jwt.SigningMethodHS256, public, id(ours), nil), invalid},
		"no end":                   {sign(t, jwt.SigningMethodES256, ours, id(ours), func(c *claims) { c.ExpiresAt = nil }), invalid},
		"a former issuer":          {sign(t, jwt.SigningMethodES256, ours, id(ours), func(c *claims) { c.Issuer = "https://before.example" }), ""},
		// Other authenticators of tokens are asked then.
		"another issuer": {sign(t, jwt.SigningMethodES256, ours, id(ours), func(c *claims) { c.Issuer = "https://elsewhere" }), foreign},
		"no token":       {"secret", foreign},
		"three words":    {"a.b.c", foreign},
		"of a Secret, as before 1.24": {sign(t, jwt.SigningMethodRS256, old, "", func(c *claims) {
			c.Issuer = "kubernetes/serviceaccount"
		}), "sub claim is missing"},
	} {
		t.Run(name, func(t *testing.T) {
			_, ok, err := accepting(t, everything(), ours, old).AuthenticateToken(t.Context(), tc.token)
			if tc.want == foreign {
				if ok || err != nil {
					t.Errorf("%t, %v; it is not ours", ok, err)
				}
				return
			}
			wantError(t, err, tc.want)
			if ok != (tc.want == "") {
				t.Errorf("authenticated: %t", ok)
			}
		})
	}
}

func decode(t *testing.T, part string) []byte {
	t.Helper()
	out, err := base64.RawURLEncoding.DecodeString(part)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestOtherKeysDoNotSign(t *testing.T) {
	if _, err := NewIssuer(issuer, ed25519.NewKeyFromSeed(make([]byte, 32))); err == nil {
		t.Error("an Ed25519 key signs")
	}
}

// TestOthersCanVerifyOurTokens checks that others can verify them with what discovery says (OpenID
// Connect Discovery 1.0, RFC 7517).
func TestOthersCanVerifyOurTokens(t *testing.T) {
	ec, old := ecKey(t), rsaKey(t)
	handlers, err := Discovery(issuer, "https://192.0.2.1:6443"+KeysPath, []crypto.PublicKey{ec.Public(), old.Public()})
	if err != nil {
		t.Fatal(err)
	}
	read := func(path, contentType string, into any) {
		t.Helper()
		w := httptest.NewRecorder()
		handlers[path].ServeHTTP(w, httptest.NewRequest("GET", path, nil))
		if got := w.Header().Get("Content-Type"); got != contentType {
			t.Errorf("%s is %s", path, got)
		}
		if err := json.Unmarshal(w.Body.Bytes(), into); err != nil {
			t.Fatal(err)
		}
	}
	var doc configuration
	read("/.well-known/openid-configuration", "application/json", &doc)
	if doc.Issuer != issuer || doc.KeysURI != "https://192.0.2.1:6443/openid/v1/jwks" || !slices.Equal(doc.Algorithms, []string{"ES256", "RS256"}) {
		t.Errorf("configuration %+v", doc)
	}
	var set struct{ Keys []jwk }
	read("/openid/v1/jwks", "application/jwk-set+json", &set)
	if len(set.Keys) != 2 {
		t.Fatalf("%d keys", len(set.Keys))
	}
	k := set.Keys[0]
	point := slices.Concat([]byte{4}, decode(t, k.X), decode(t, k.Y))
	public, err := ecdsa.ParseUncompressedPublicKey(elliptic.P256(), point)
	if err != nil || k.KeyType != "EC" || k.Curve != "P-256" || !public.Equal(ec.Public()) {
		t.Errorf("key %+v: %v", k, err)
	}
	token, err := jwt.Parse(issue(t, ec, nil), func(*jwt.Token) (any, error) { return public, nil })
	if err != nil || token.Header["kid"] != k.KeyID {
		t.Errorf("token verified by the published key %s: %v, %v", k.KeyID, token.Header, err)
	}
	if k := set.Keys[1]; k.KeyType != "RSA" || k.Algorithm != "RS256" || k.E != "AQAB" || !slices.Equal(decode(t, k.N), old.N.Bytes()) {
		t.Errorf("key %+v", k)
	}
}
