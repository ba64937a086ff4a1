package apiserver

import (
	"encoding/base64"
	"encoding/pem"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	staticPolicy = `apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: no-secrets-in-default.static.k8s.io}
spec:
  matchConstraints:
    resourceRules:
    - {apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [configmaps]}
  validations:
  - {expression: "!object.metadata.name.startsWith('WORD')", message: "not by that name"}
`
	staticBinding = `apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: b.static.k8s.io}
spec: {policyName: no-secrets-in-default.static.k8s.io, validationActions: [Deny]}
`
)

// withStatic is a change of a test's configuration: a plugin reads objects from a folder.
func withStatic(t *testing.T, plugin, kind, dir string) func(*Config) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "admission.yaml")
	writeFile(t, file, `apiVersion: apiserver.config.k8s.io/v1
kind: AdmissionConfiguration
plugins:
- name: `+plugin+`
  configuration: {apiVersion: apiserver.config.k8s.io/v1, kind: `+kind+`, staticManifestsDir: `+dir+`}
`)
	return func(c *Config) { c.AdmissionConfigFile = file }
}

func writeFile(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// Policies in files of the server were taken for granted, and enforced by nobody, until somebody stored one.
func TestPoliciesInFilesAreInForce(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "policy.yaml"), strings.ReplaceAll(staticPolicy, "WORD", "evil")+"---\n"+staticBinding)
	s := start(t, withStatic(t, "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyConfiguration", dir))
	c, ctx := admin(t, s), t.Context()
	create := func(name string) error {
		_, err := c.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		return err
	}
	if err := create("evil-1"); err == nil || !strings.Contains(err.Error(), "not by that name") {
		t.Errorf("a policy in a file is not in force: %v", err)
	}
	if err := create("good-1"); err != nil {
		t.Error(err)
	}
	all, err := c.AdmissionregistrationV1().ValidatingAdmissionPolicies().List(ctx, metav1.ListOptions{})
	if err != nil || len(all.Items) != 0 {
		t.Errorf("it is stored: %v, %v", err, all)
	}
	// Nobody takes its place.
	fake := &admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: "b.static.k8s.io"}}
	fake.Spec = admissionv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: "x", ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny}}
	if _, err := c.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().Create(ctx, fake, metav1.CreateOptions{}); err == nil {
		t.Error("an object with a name of the files' was stored")
	}
}

func TestWebhooksInFilesAreAsked(t *testing.T) {
	asked := make(chan struct{}, 10)
	hook := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked <- struct{}{}
		w.WriteHeader(http.StatusTeapot)
	}))
	t.Cleanup(hook.Close)
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "hook.yaml"), `apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: w.static.k8s.io}
webhooks:
- name: w.example.com
  clientConfig: {url: "`+hook.URL+`", caBundle: "`+base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: hook.Certificate().Raw}))+`"}
  rules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [configmaps]}]
  sideEffects: None
  admissionReviewVersions: [v1]
`)
	s := start(t, withStatic(t, "ValidatingAdmissionWebhook", "WebhookAdmissionConfiguration", dir))
	_, err := admin(t, s).CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "m"}}, metav1.CreateOptions{})
	if err == nil || !strings.Contains(err.Error(), "w.example.com") {
		t.Errorf("a webhook in a file that fails: %v", err)
	}
	select {
	case <-asked:
	case <-time.After(time.Second):
		t.Error("nobody asked it")
	}
}

// What is wrong in such a file ends the start: a server without what it was told to enforce must not serve.
func TestWrongFilesOfPolicies(t *testing.T) {
	for want, text := range map[string]string{
		`must have a name ending with ".static.k8s.io"`: strings.ReplaceAll(staticPolicy, ".static.k8s.io", ""),
		"b.static.k8s.io":                         staticBinding,
		`unknown field "spec.matchConstraint"`:    strings.ReplaceAll(staticPolicy, "matchConstraints", "matchConstraint"),
		"undeclared reference":                    strings.ReplaceAll(staticPolicy, "!object.", "!subject."),
		"unsupported resource type *v1.ConfigMap": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x.static.k8s.io}\n",
		"no kind \"Policy\" is registered":        "apiVersion: v1\nkind: Policy\n",
	} {
		dir := t.TempDir()
		writeFile(t, filepath.Join(dir, "policy.yaml"), text)
		_, err := New(t.Context(), configWith(t, dir))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	if _, err := New(t.Context(), configWith(t, "policies")); err == nil || !strings.Contains(err.Error(), "must be an absolute file path") {
		t.Errorf("a relative path: %v", err)
	}
}

// configWith returns the configuration of a server that has policies in a folder.
func configWith(t *testing.T, dir string) Config {
	t.Helper()
	cfg := DefaultConfig()
	cfg.DataDir, cfg.SecurePort, cfg.BindAddress = t.TempDir(), 0, net.IPv4(127, 0, 0, 1)
	withStatic(t, "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyConfiguration", dir)(&cfg)
	return cfg
}

// If a folder breaks between the check and the start, the server ends. It hung, because the plugins before it were waited for.
func TestAPluginThatCannotStartEndsTheServer(t *testing.T) {
	dir := t.TempDir()
	s, err := New(t.Context(), configWith(t, dir))
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(dir, "policy.yaml"), "kind: Broken\n")
	done := make(chan error, 1)
	go func() { done <- s.Run(t.Context()) }()
	select {
	case err := <-done:
		if err == nil || !strings.Contains(err.Error(), "failed to load static policy manifests") {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Fatal("it goes on")
	}
}
