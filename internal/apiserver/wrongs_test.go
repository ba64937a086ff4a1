package apiserver

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
)

// A definition is changed so that none of its objects is valid any more: they can be read, what does not touch
// the wrong fields can be changed, and they can be deleted.
func TestADefinitionThatBreaksItsOwnObjects(t *testing.T) {
	s := start(t)
	ctx, cfg := t.Context(), s.ClientConfig("admin", "system:masters")
	gvr := defineWidgets(t, cfg, func(*apiextensionsv1.CustomResourceDefinition) {})
	api := dynamic.NewForConfigOrDie(cfg).Resource(gvr).Namespace("default")
	crds := clientset.NewForConfigOrDie(cfg).ApiextensionsV1().CustomResourceDefinitions()
	if _, err := api.Patch(ctx, "w", types.MergePatchType, []byte(`{"spec":{"replicas":5}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	crd, err := crds.Get(ctx, "widgets.example.com", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	spec := crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"]
	spec.Properties = map[string]apiextensionsv1.JSONSchemaProps{
		"replicas": {Type: "integer", Maximum: new(3.0)}, "size": {Type: "integer", Default: &apiextensionsv1.JSON{Raw: []byte("1")}},
	}
	crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"] = spec
	if _, err := crds.Update(ctx, crd, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error { // until the new schema is in use
		w, err := api.Get(ctx, "w", metav1.GetOptions{})
		if size, _, _ := unstructured.NestedInt64(w.Object, "spec", "size"); err != nil || size != 1 {
			return fmt.Errorf("%v, %w", w, err)
		}
		return nil
	})
	if list, err := api.List(ctx, metav1.ListOptions{}); err != nil || len(list.Items) != 1 {
		t.Errorf("list: %v", err)
	}
	patch := func(body string, sub ...string) error {
		_, err := api.Patch(ctx, "w", types.MergePatchType, []byte(body), metav1.PatchOptions{}, sub...)
		return err
	}
	if err := errors.Join(patch(`{"metadata":{"labels":{"a":"c"}}}`), patch(`{"spec":{"size":2}}`), patch(`{"status":{"replicas":1}}`, "status")); err != nil {
		t.Errorf("what is right of it: %v", err)
	}
	refused(t, patch(`{"spec":{"replicas":6}}`), "spec.replicas in body should be less than or equal to 3")
	if err := patch(`{"spec":{"replicas":2}}`); err != nil {
		t.Errorf("repaired: %v", err)
	}
	if err := api.Delete(ctx, "w", metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
	// What would break all of its objects for good is refused.
	for name, change := range map[string]func(*apiextensionsv1.CustomResourceDefinition){
		"status.storedVersions[0]: Invalid value: \"v1\": missing from spec.versions": func(c *apiextensionsv1.CustomResourceDefinition) {
			c.Spec.Versions[0].Name = "v2"
		},
		"properties[size].default: Invalid value": func(c *apiextensionsv1.CustomResourceDefinition) {
			spec.Properties["size"] = apiextensionsv1.JSONSchemaProps{Type: "integer", Default: &apiextensionsv1.JSON{Raw: []byte(`"x"`)}}
			c.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"] = spec
		},
		"spec.scope: Invalid value": func(c *apiextensionsv1.CustomResourceDefinition) { c.Spec.Scope = apiextensionsv1.ClusterScoped },
	} {
		crd, err := crds.Get(ctx, "widgets.example.com", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		change(crd)
		_, err = crds.Update(ctx, crd, metav1.UpdateOptions{})
		refused(t, err, name)
	}
}

// Nobody learns from a refusal whether an object, a namespace or a kind is there.
func TestAClientWithoutRightsLearnsNothing(t *testing.T) {
	s := start(t)
	cfg := s.ClientConfig("admin", "system:masters")
	defineWidgets(t, cfg, func(*apiextensionsv1.CustomResourceDefinition) {})
	mustPod(t, admin(t, s), testPod("there"))
	jane := overTCP(s.ClientConfig("jane"))
	ask := func(verb, path, body string) (int, string) {
		t.Helper()
		client, err := rest.HTTPClientFor(jane)
		if err != nil {
			t.Fatal(err)
		}
		req, err := http.NewRequestWithContext(t.Context(), verb, jane.Host+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", map[bool]string{true: "application/merge-patch+json", false: "application/json"}[verb == http.MethodPatch])
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		answer, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(answer)
	}
	const pod = `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"there"},"spec":{"containers":[{"name":"c","image":"i"}]}}`
	for _, tt := range []struct{ verb, there, missing, bodyThere, bodyMissing string }{
		{verb: "GET", there: "/api/v1/namespaces/default/pods/there", missing: "/api/v1/namespaces/default/pods/nowhere"},
		{verb: "GET", there: "/api/v1/namespaces/default/pods/there/log", missing: "/api/v1/namespaces/default/pods/nowhere/log"},
		{verb: "GET", there: "/api/v1/namespaces/default", missing: "/api/v1/namespaces/nowhere"},
		{verb: "GET", there: "/api/v1/namespaces/default/secrets?watch=1", missing: "/api/v1/namespaces/nowhere/secrets?watch=1"},
		{verb: "GET", there: "/apis/example.com/v1/namespaces/default/widgets/w", missing: "/apis/example.com/v1/namespaces/default/widgets/nowhere"},
		{verb: "GET", there: "/apis/example.com/v1/namespaces/default/widgets", missing: "/apis/example.com/v1/namespaces/default/nowheres"},
		{verb: "GET", there: "/apis/example.com/v1/namespaces/default/widgets", missing: "/apis/nowhere/v1/namespaces/default/widgets"},
		{verb: "GET", there: "/api/v1/nodes/there/proxy/", missing: "/api/v1/nodes/nowhere/proxy/"},
		{verb: "DELETE", there: "/api/v1/namespaces/default/pods/there", missing: "/api/v1/namespaces/default/pods/nowhere"},
		{verb: "PATCH", there: "/api/v1/namespaces/default/pods/there", missing: "/api/v1/namespaces/default/pods/nowhere", bodyThere: "{}", bodyMissing: "{}"},
		{verb: "POST", there: "/api/v1/namespaces/default/pods", missing: "/api/v1/namespaces/nowhere/pods", bodyThere: pod, bodyMissing: "{not an object"},
		{verb: "POST", there: "/api/v1/namespaces/default/pods/there/eviction", missing: "/api/v1/namespaces/default/pods/nowhere/eviction", bodyThere: "{}"},
		{verb: "GET", there: "/metrics", missing: "/nowhere"},
		{verb: "GET", there: "/debug/pprof/", missing: "/debug/nowhere/"},
	} {
		code, answer := ask(tt.verb, tt.there, tt.bodyThere)
		if code != http.StatusForbidden {
			t.Errorf("%s %s: %d %s", tt.verb, tt.there, code, answer)
		}
		code, other := ask(tt.verb, tt.missing, tt.bodyMissing)
		if code != http.StatusForbidden {
			t.Errorf("%s %s: %d %s", tt.verb, tt.missing, code, other)
		}
		// The answers differ by what the client itself said.
		words := strings.NewReplacer("nowheres", "_", "nowhere", "_", "there", "_", "default", "_", "widgets", "_", "example.com", "_", `\"w\"`, `\"_\"`, `"w"`, `"_"`,
			"/metrics", "/_", "pprof", "_")
		if a, b := words.Replace(answer), words.Replace(other); a != b {
			t.Errorf("%s %s tells %q,\nand %s %q", tt.verb, tt.there, a, tt.missing, b)
		}
	}
}

// An object that is too large is refused in words that say so, whatever the way in which it came.
func TestObjectsThatAreTooLarge(t *testing.T) {
	s := start(t)
	ctx, cfg := t.Context(), overTCP(s.ClientConfig("admin", "system:masters"))
	gvr := defineWidgets(t, cfg, func(c *apiextensionsv1.CustomResourceDefinition) {
		c.Spec.Versions[0].Schema.OpenAPIV3Schema.XPreserveUnknownFields = new(true)
	})
	api := dynamic.NewForConfigOrDie(cfg).Resource(gvr).Namespace("default")
	large := func(n int) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "example.com/v1", "kind": "Widget", "metadata": map[string]any{"name": "large"}, "data": strings.Repeat("x", n),
		}}
	}
	isTooLarge := func(what string, err error) {
		t.Helper()
		if !apierrors.IsRequestEntityTooLargeError(err) {
			t.Errorf("%s: %v", what, err)
		}
	}
	_, err := api.Create(ctx, large(3<<20), metav1.CreateOptions{})
	isTooLarge("a body above the limit", err)
	if _, err := api.Create(ctx, large(1<<20), metav1.CreateOptions{}); err != nil {
		t.Errorf("one that fits: %v", err)
	}
	_, err = api.Patch(ctx, "large", types.MergePatchType, []byte(`{"more":"`+strings.Repeat("y", 5<<19)+`"}`), metav1.PatchOptions{})
	isTooLarge("a patch that makes it too large", err)
	if w, err := api.Get(ctx, "large", metav1.GetOptions{}); err != nil || w.Object["more"] != nil {
		t.Errorf("afterwards: %v", err)
	}
	if err := api.Delete(ctx, "large", metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
}

func TestAnExpiredCertificateIsNobody(t *testing.T) {
	s := start(t)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	with := func(from, to time.Duration) *rest.Config {
		now := time.Now()
		der, err := s.CA().Sign(&x509.Certificate{
			SerialNumber: big.NewInt(7), Subject: pkix.Name{CommonName: "boss", Organization: []string{"system:masters"}},
			NotBefore: now.Add(from), NotAfter: now.Add(to), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		}, key.Public())
		if err != nil {
			t.Fatal(err)
		}
		if block, _ := pem.Decode(der); block == nil {
			der = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
		}
		private, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			t.Fatal(err)
		}
		cfg := withToken(s, "")
		cfg.CertData, cfg.KeyData = der, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})
		return cfg
	}
	if got, err := whoIs(t, with(-time.Hour, time.Hour)); err != nil || got.Username != "boss" {
		t.Errorf("valid: %+v, %v", got, err)
	}
	for _, cfg := range []*rest.Config{with(-2*time.Hour, -time.Hour), with(time.Hour, 2*time.Hour)} {
		if got, err := whoIs(t, cfg); !apierrors.IsUnauthorized(err) {
			t.Errorf("not valid now: %+v, %v", got, err)
		}
	}
}

// watching is a watch by a connection of its own, on which nothing happens by itself.
type watching struct {
	net.Conn
	out *bufio.Reader
}

// openWatch asks for a watch over HTTP/1.1. The client's buffer is small, so that it is full soon.
func openWatch(t *testing.T, cfg *rest.Config, path string) *watching {
	t.Helper()
	secure, err := rest.TLSConfigFor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	secure.NextProtos = []string{"http/1.1"}
	raw, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", strings.TrimPrefix(cfg.Host, "https://"))
	if err != nil {
		t.Fatal(err)
	}
	if err := raw.(*net.TCPConn).SetReadBuffer(64 << 10); err != nil {
		t.Fatal(err)
	}
	if secure.ServerName == "" {
		secure.ServerName = "127.0.0.1"
	}
	conn := tls.Client(raw, secure)
	t.Cleanup(func() { _ = conn.Close() })
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, cfg.Host+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+cfg.BearerToken)
	if err := req.Write(conn); err != nil {
		t.Fatal(err)
	}
	return &watching{conn, bufio.NewReader(conn)}
}

// versions reads events until the stream ends, or n have come, and returns the versions of their objects.
func versionsIn(body io.Reader, n int) (versions []string, err error) {
	for d := json.NewDecoder(body); len(versions) < n; {
		var e struct {
			Type   string
			Object struct {
				Metadata struct{ ResourceVersion string }
			}
		}
		if err := d.Decode(&e); err != nil {
			return versions, err
		}
		versions = append(versions, e.Object.Metadata.ResourceVersion)
	}
	return versions, nil
}

// WATCHES is how many there are; a tenth as many read nothing.
func TestSlowWatchesHoldNobodyUp(t *testing.T) {
	watches := 300
	if n, err := strconv.Atoi(os.Getenv("WATCHES")); err == nil {
		watches = n
	}
	tokens := written(t, "tokens.csv", "t0ken,boss,u1,system:masters\n")
	s := start(t, func(c *Config) { c.Authentication.TokenFile = tokens })
	ctx, c, cfg := t.Context(), admin(t, s), withToken(s, "t0ken")
	client, err := rest.HTTPClientFor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	maps := c.CoreV1().ConfigMaps("default")
	first, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "small"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	since := "&resourceVersion=" + first.ResourceVersion
	var slow []*watching
	for range max(1, watches/100) {
		slow = append(slow, openWatch(t, cfg, "/api/v1/configmaps?watch=1"+since))
	}
	const writes = 40
	type seen struct {
		versions []string
		err      error
	}
	fast := make(chan seen, watches)
	for range watches {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, cfg.Host+"/api/v1/namespaces/default/configmaps?watch=1"+since, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(req) //nolint:bodyclose // closed by the goroutine below
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			defer func() { _ = resp.Body.Close() }()
			versions, err := versionsIn(resp.Body, writes)
			fast <- seen{versions, err}
		}()
	}
	var want []string
	var all []string // those of the large object too
	began := time.Now()
	for i := range writes {
		large := &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("large-", i), Namespace: "kube-system"},
			BinaryData: map[string][]byte{"x": bytes.Repeat([]byte{byte(i)}, 1<<19)},
		}
		l, err := c.CoreV1().ConfigMaps("kube-system").Create(ctx, large, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, l.ResourceVersion)
		small, err := maps.Patch(ctx, "small", types.MergePatchType, fmt.Appendf(nil, `{"data":{"n":"%d"}}`, i), metav1.PatchOptions{})
		if err != nil {
			t.Fatal(err)
		}
		want, all = append(want, small.ResourceVersion), append(all, small.ResourceVersion)
	}
	for range watches {
		select {
		case got := <-fast:
			if got.err != nil || strings.Join(got.versions, " ") != strings.Join(want, " ") {
				t.Fatalf("a watch saw %v, %v;\nwant %v", got.versions, got.err, want)
			}
		case <-time.After(time.Minute):
			t.Fatal("a watch that is read waits for one that is not")
		}
	}
	t.Logf("%d watches saw %d changes in %v", watches, writes, time.Since(began))
	for _, w := range slow { // they are ended, or get all of it; what they get is in order, and lacks nothing
		if err := w.SetDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(w.out, nil)
		if err != nil {
			t.Fatal(err)
		}
		got, err := versionsIn(resp.Body, len(all))
		if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a slow watch neither goes on nor ends after %d events", len(got))
		}
		if strings.Join(got, " ") != strings.Join(all[:len(got)], " ") {
			t.Errorf("a slow watch saw %v,\nwant the beginning of %v", got, all)
		}
		_ = resp.Body.Close()
	}
}
