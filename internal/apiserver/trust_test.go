package apiserver

import (
	"crypto/tls"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/watch"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"wherry.dev/internal/apiserver/bootstrap"
	"wherry.dev/internal/pki"
)

// frontProxy returns the configuration of a proxy with a certificate of the front-proxy CA, which
// sends headers with each request.
func frontProxy(t *testing.T, s *Server, dir, name string, headers http.Header) *rest.Config {
	t.Helper()
	ca, err := pki.LoadOrCreateCA(filepath.Join(dir, "pki"), "front-proxy-ca", "", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	cert, key, err := ca.Issue(t.TempDir(), "proxy", pki.Leaf{CommonName: name, Organizations: []string{"system:masters"}, Client: true}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	cfg := withToken(s, "")
	cfg.CertFile, cfg.KeyFile = cert, key
	cfg.WrapTransport = func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			maps.Copy(r.Header, headers)
			return next.RoundTrip(r)
		})
	}
	return cfg
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestProxiesNameTheUserInHeaders(t *testing.T) {
	dir := t.TempDir()
	s := startIn(t, dir)
	headers := http.Header{
		"X-Remote-User": {"alice"}, "X-Remote-Uid": {"u1"}, "X-Remote-Group": {"a", "b"},
		"X-Remote-Extra-Scopes": {"x"},
	}
	who := func(cfg *rest.Config) (authenticationv1.UserInfo, error) {
		review, err := clientFor(t, cfg).AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
		return review.Status.UserInfo, err
	}
	me, err := who(frontProxy(t, s, dir, "front-proxy-client", headers))
	if err != nil || me.Username != "alice" || me.UID != "u1" || !sets.New(me.Groups...).Equal(sets.New("a", "b", "system:authenticated")) || len(me.Extra["scopes"]) != 1 {
		t.Errorf("by headers: %+v, %v", me, err)
	}
	if me, err := who(frontProxy(t, s, dir, "somebody", headers)); !apierrors.IsUnauthorized(err) {
		t.Errorf("a proxy of a name that is not allowed: %+v, %v", me, err)
	}
	// The CA's certificates identify proxies; they say nothing about the users behind them.
	if me, err := who(frontProxy(t, s, dir, "front-proxy-client", nil)); !apierrors.IsUnauthorized(err) && !apierrors.IsForbidden(err) {
		t.Errorf("a proxy for itself: %+v, %v", me, err)
	}
	// Nobody else's headers count.
	plain := withToken(s, "")
	plain.WrapTransport = frontProxy(t, s, dir, "x", headers).WrapTransport
	if me, err := who(plain); err == nil && me.Username == "alice" {
		t.Error("headers were believed without a certificate")
	}
	own, err := pki.LoadOrCreateCA(filepath.Join(dir, "pki"), "ca", "", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	cert, key, err := own.Issue(t.TempDir(), "c", pki.Leaf{CommonName: "front-proxy-client", Client: true}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	plain.CertFile, plain.KeyFile = cert, key
	if me, err := who(plain); err == nil && me.Username == "alice" {
		t.Error("headers were believed with a certificate of the ordinary CA")
	}
	if info, err := os.Stat(filepath.Join(dir, "pki", "front-proxy-ca.key")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("key of the front-proxy CA: %v, %v", info.Mode(), err)
	}
}

func TestServerAsksForCertificatesOfProxies(t *testing.T) {
	dir := t.TempDir()
	s := startIn(t, dir)
	conn, err := tls.Dial("tcp", s.Addr().String(), &tls.Config{
		InsecureSkipVerify: true, //nolint:gosec // only what it asks for is checked
		GetClientCertificate: func(info *tls.CertificateRequestInfo) (*tls.Certificate, error) {
			if len(info.AcceptableCAs) != 2 {
				return nil, fmt.Errorf("asked for certificates of %d CAs", len(info.AcceptableCAs))
			}
			return &tls.Certificate{}, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()
}

// blocks returns the number of certificates in a bundle.
func blocks(bundle string) (n int) {
	for rest := []byte(bundle); ; n++ {
		var b *pem.Block
		if b, rest = pem.Decode(rest); b == nil {
			return n
		}
	}
}

// Keys of the config map.
const clientCAKey, proxyCAKey = "client-ca-file", "requestheader-client-ca-file"

func TestTrustIsPublishedAndKept(t *testing.T) {
	dir := t.TempDir()
	s := startIn(t, dir)
	ctx, api := t.Context(), admin(t, s).CoreV1().ConfigMaps("kube-system")
	have, err := api.Get(ctx, bootstrap.TrustMap, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]string{
		"requestheader-username-headers":     `["X-Remote-User"]`,
		"requestheader-uid-headers":          `["X-Remote-Uid"]`,
		"requestheader-group-headers":        `["X-Remote-Group"]`,
		"requestheader-extra-headers-prefix": `["X-Remote-Extra-"]`,
		"requestheader-allowed-names":        `["front-proxy-client"]`,
	} {
		if have.Data[key] != want {
			t.Errorf("%s: %s", key, have.Data[key])
		}
	}
	proxies, err := os.ReadFile(filepath.Join(dir, "pki", "front-proxy-ca.crt"))
	if err != nil || have.Data[proxyCAKey] != string(proxies) || blocks(have.Data[clientCAKey]) != 1 || have.Data[clientCAKey] == have.Data[proxyCAKey] {
		t.Errorf("CAs: %v, %v", have.Data, err)
	}
	if err := api.Delete(ctx, bootstrap.TrustMap, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitTrust(t, api, func(m *corev1.ConfigMap) bool { return m.UID != have.UID })
	// A second API server's CA and names stay, and broken data is repaired.
	other, err := pki.LoadOrCreateCA(t.TempDir(), "ca", "other", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := other.Cert()
	if err != nil {
		t.Fatal(err)
	}
	patch, err := json.Marshal(map[string]any{"data": map[string]string{
		clientCAKey: string(theirs), proxyCAKey: "nonsense", "requestheader-allowed-names": `["aggregator"]`, "requestheader-group-headers": "{",
	}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := api.Patch(ctx, bootstrap.TrustMap, "application/merge-patch+json", patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitTrust(t, api, func(m *corev1.ConfigMap) bool {
		return strings.Contains(m.Data[clientCAKey], string(theirs)) && blocks(m.Data[clientCAKey]) == 2 && m.Data[proxyCAKey] == string(proxies) &&
			m.Data["requestheader-allowed-names"] == `["aggregator","front-proxy-client"]` && m.Data["requestheader-group-headers"] == `["X-Remote-Group"]`
	})
}

// awaitTrust waits until the config map is as it should be.
func awaitTrust(t *testing.T, api typedcorev1.ConfigMapInterface, ok func(*corev1.ConfigMap) bool) {
	t.Helper()
	w, err := api.Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=" + bootstrap.TrustMap})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	var last runtime.Object
	for deadline := time.After(time.Minute); ; {
		select {
		case e := <-w.ResultChan():
			last = e.Object
			if m, is := e.Object.(*corev1.ConfigMap); is && e.Type != watch.Deleted && ok(m) {
				return
			}
		case <-deadline:
			t.Fatalf("last seen: %+v", last)
		}
	}
}

func TestSchedulerMayReadTrust(t *testing.T) {
	s := start(t)
	for user, allowed := range map[string]bool{"system:kube-scheduler": true, "system:kube-controller-manager": true, "system:anonymous": false, "system:node:n": false} {
		_, err := clientFor(t, s.ClientConfig(user)).CoreV1().ConfigMaps("kube-system").Get(t.Context(), bootstrap.TrustMap, metav1.GetOptions{})
		if allowed && err != nil || !allowed && !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v", user, err)
		}
	}
}
