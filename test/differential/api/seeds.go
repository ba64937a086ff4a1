package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"
)

//go:embed testdata/more.yaml
var more string

// readSeeds returns the valid objects that everything starts from: those of a test of our own, and some more.
func readSeeds() ([]map[string]any, error) {
	dir, err := moduleDir("wherry.dev")
	if err != nil {
		return nil, err
	}
	seeds, err := os.ReadFile(filepath.Join(dir, "internal", "apiserver", "testdata", "objects.yaml"))
	if err != nil {
		return nil, err
	}
	signing, err := signingRequest()
	if err != nil {
		return nil, err
	}
	var out []map[string]any
	for doc := range strings.SplitSeq(string(seeds)+"\n---\n"+more, "\n---\n") {
		var raw map[string]any
		if err := yaml.Unmarshal([]byte(strings.ReplaceAll(doc, "REQUEST", signing)), &raw); err != nil {
			return nil, fmt.Errorf("%w in %s", err, doc)
		}
		out = append(out, whole(raw).(map[string]any))
	}
	return out, nil
}

// signingRequest returns what a CertificateSigningRequest has in it, in base64.
func signingRequest() (string, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return "", err
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "x"}}, key)
	if err != nil {
		return "", err
	}
	return base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})), nil
}

// whole returns a value with its whole numbers as such.
func whole(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for key, child := range v {
			v[key] = whole(child)
		}
	case []any:
		for i := range v {
			v[i] = whole(v[i])
		}
	case float64:
		if n := int64(v); float64(n) == v {
			return n
		}
	}
	return v
}

// readExamples returns upstream's objects that have every field, by version and kind.
func (m *match) readExamples() (map[string]map[string]any, error) {
	dir := m.examples
	if dir == "" {
		module, err := moduleDir("k8s.io/api")
		if err != nil {
			return nil, err
		}
		dir = filepath.Join(module, "testdata", "HEAD")
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil || len(files) == 0 {
		return nil, errors.Join(fmt.Errorf("no example in %s", dir), err)
	}
	examples := map[string]map[string]any{}
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			return nil, err
		}
		var obj map[string]any
		if err := json.Unmarshal(data, &obj); err != nil {
			return nil, fmt.Errorf("%s: %w", f, err)
		}
		obj = runtime.DeepCopyJSON(whole(obj).(map[string]any))
		examples[text(obj, "apiVersion")+"/"+text(obj, "kind")] = obj
	}
	return examples, nil
}

// discovery compares what is served.
func (m *match) discovery(ctx context.Context) error {
	groups, err := m.theirs.ask(ctx, request{method: http.MethodGet, path: "/apis"})
	if err != nil {
		return err
	}
	paths := []string{"/api", "/apis", "/api/v1", "/version", "/.well-known/openid-configuration"}
	for _, g := range items(groups.body, "groups") {
		paths = append(paths, "/apis/"+text(g, "name"))
		for _, v := range items(g, "versions") {
			paths = append(paths, "/apis/"+text(v, "groupVersion"))
		}
	}
	for _, path := range paths {
		if _, err := m.both(ctx, "get "+path, request{method: http.MethodGet, path: path}); err != nil {
			return err
		}
	}
	return nil
}

// moduleDir returns the folder of a module, for a program that runs in a folder of ours.
func moduleDir(module string) (string, error) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	if err != nil {
		return "", fmt.Errorf("finding the module %s: %w", module, err)
	}
	return strings.TrimSpace(string(out)), nil
}
