package apiserver

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/server/options/encryptionconfig/controller"
	kmsplugin "k8s.io/apiserver/pkg/storage/value/encrypt/envelope/testing/v2"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
)

// encryption is a file with an EncryptionConfiguration.
type encryption struct {
	t    *testing.T
	path string
}

func newEncryption(t *testing.T, resources string, providers ...string) encryption {
	t.Helper()
	e := encryption{t, filepath.Join(t.TempDir(), "encryption.yaml")}
	e.write(resources, providers...)
	return e
}

func (e encryption) write(resources string, providers ...string) {
	e.t.Helper()
	text := "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n- resources: [" + resources + "]\n  providers:\n"
	for _, p := range providers {
		text += "  - " + p + "\n"
	}
	tmp := e.path + ".new" // replaced at once: the server may be reading it
	if err := os.WriteFile(tmp, []byte(text), 0o600); err != nil {
		e.t.Fatal(err)
	}
	if err := os.Rename(tmp, e.path); err != nil {
		e.t.Fatal(err)
	}
}

// keys is a provider with keys of those names, the first of which encrypts.
func keys(provider string, names ...string) string {
	var list []string
	for _, n := range names {
		secret := base64.StdEncoding.EncodeToString(bytes.Repeat([]byte(n), 32/len(n)))
		list = append(list, fmt.Sprintf("{name: %s, secret: %s}", n, secret))
	}
	return provider + ": {keys: [" + strings.Join(list, ", ") + "]}"
}

// inEtcd returns what an etcd has under a key.
type inEtcd func(key string) string

func rawOf(t *testing.T, address string) inEtcd {
	t.Helper()
	client := clientOf(t, address)
	return func(key string) string {
		t.Helper()
		got, err := client.Get(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		if len(got.Kvs) != 1 {
			t.Fatalf("%d values of %s", len(got.Kvs), key)
		}
		return string(got.Kvs[0].Value)
	}
}

func clientOf(t *testing.T, address string) *clientv3.Client {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{address}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client
}

const plain = "the plain text"

func makeSecret(t *testing.T, c kubernetes.Interface, name string) {
	t.Helper()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, StringData: map[string]string{"k": plain}}
	if _, err := c.CoreV1().Secrets("default").Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// wantSecret reads a secret from storage.
func wantSecret(t *testing.T, c kubernetes.Interface, name string) {
	t.Helper()
	secret, err := c.CoreV1().Secrets("default").Get(t.Context(), name, metav1.GetOptions{})
	if err != nil || string(secret.Data["k"]) != plain {
		t.Errorf("secret %s: %v, %q", name, err, secret.Data)
	}
}

// encrypted starts a server on an etcd of its own.
func encrypted(t *testing.T, e encryption, change ...func(*Config)) (*Server, inEtcd) {
	t.Helper()
	address := externalEtcd(t, 0)
	s := start(t, append(change, func(c *Config) { c.EtcdServers, c.EncryptionConfig = []string{address}, e.path })...)
	return s, rawOf(t, address)
}

func TestNobodyReadsSecretsInEtcd(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "kms.sock")
	kmsplugin.NewBase64Plugin(t, socket)
	for name, p := range map[string]struct{ provider, prefix string }{
		"aescbc":    {keys("aescbc", "k1"), "k8s:enc:aescbc:v1:k1:"},
		"aesgcm":    {keys("aesgcm", "k1"), "k8s:enc:aesgcm:v1:k1:"},
		"secretbox": {keys("secretbox", "k1"), "k8s:enc:secretbox:v1:k1:"},
		"kms":       {"kms: {apiVersion: v2, name: plugin, endpoint: \"unix://" + socket + "\"}", "k8s:enc:kms:v2:plugin:"},
	} {
		t.Run(name, func(t *testing.T) {
			s, raw := encrypted(t, newEncryption(t, "secrets", p.provider, "identity: {}"))
			c := admin(t, s)
			makeSecret(t, c, "a")
			if v := raw("/registry/secrets/default/a"); !strings.HasPrefix(v, p.prefix) || strings.Contains(v, plain) {
				t.Errorf("in etcd: %q", v)
			}
			wantSecret(t, c, "a")
			if err := makeMap(t, c, "m", 100); err != nil {
				t.Fatal(err)
			}
			if v := raw("/registry/configmaps/default/m"); !strings.HasPrefix(v, "k8s\x00") {
				t.Errorf("a config map, which the configuration does not name: %q", v)
			}
		})
	}
}

// Every kind is covered, whichever server of the chain has it.
func TestObjectsOfAllServersAreEncrypted(t *testing.T) {
	s, raw := encrypted(t, newEncryption(t, "'*.*'", keys("aesgcm", "k1"), "identity: {}"))
	cfg := s.ClientConfig("admin", "system:masters")
	if _, err := clientset.NewForConfigOrDie(cfg).ApiextensionsV1().CustomResourceDefinitions().Create(t.Context(), widgets(), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	api := dynamic.NewForConfigOrDie(cfg).Resource(schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}).Namespace("default")
	eventually(t, func() error {
		_, err := api.Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "example.com/v1", "kind": "Widget", "metadata": map[string]any{"name": "a"},
		}}, metav1.CreateOptions{})
		return err
	})
	for _, key := range []string{
		"/registry/namespaces/default",
		"/registry/clusterroles/cluster-admin",
		"/registry/apiextensions.k8s.io/customresourcedefinitions/widgets.example.com",
		"/registry/example.com/widgets/default/a",
		"/registry/apiregistration.k8s.io/apiservices/v1.apps",
	} {
		if v := raw(key); !strings.HasPrefix(v, "k8s:enc:aesgcm:v1:k1:") {
			t.Errorf("%s in etcd: %q", key, v)
		}
	}
	if _, err := api.Get(t.Context(), "a", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
}

var failedReload = regexp.MustCompile(`encryption_config_controller_automatic_reloads_total\{.*status="failure"`)

// The way of https://kubernetes.io/docs/tasks/administer-cluster/encrypt-data/#rotating-a-decryption-key,
// without a restart.
func TestKeysAreRotatedWithoutARestart(t *testing.T) {
	defer func(d time.Duration) { controller.EncryptionConfigFileChangePollDuration = d }(controller.EncryptionConfigFileChangePollDuration)
	controller.EncryptionConfigFileChangePollDuration = 10 * time.Millisecond
	e := newEncryption(t, "secrets", keys("aescbc", "k1"))
	s, raw := encrypted(t, e, func(c *Config) { c.EncryptionReload = true })
	c := admin(t, s)
	secrets := c.CoreV1().Secrets("default")
	makeSecret(t, c, "moved")
	makeSecret(t, c, "left")
	rewritten := func(key string) error { // as kubectl replace does
		secret, err := secrets.Get(t.Context(), "moved", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if _, err := secrets.Update(t.Context(), secret, metav1.UpdateOptions{}); err != nil {
			return err
		}
		if v := raw("/registry/secrets/default/moved"); !strings.HasPrefix(v, "k8s:enc:aescbc:v1:"+key+":") {
			return fmt.Errorf("in etcd: %q", v)
		}
		return nil
	}
	e.write("secrets", keys("aescbc", "k1", "k2"))
	e.write("secrets", keys("aescbc", "k2", "k1"))
	eventually(t, func() error { return rewritten("k2") })
	wantSecret(t, c, "moved")
	wantSecret(t, c, "left")

	e.write("secrets", "aescbc: {keys: [{name: k3, secret: short}]}") // a mistake changes nothing
	eventually(t, func() error {
		text, err := c.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context())
		if err == nil && !failedReload.Match(text) {
			err = fmt.Errorf("the mistake was not noticed")
		}
		return err
	})
	wantSecret(t, c, "left")

	e.write("secrets", keys("aescbc", "k2"))
	eventually(t, func() error {
		_, err := secrets.Get(t.Context(), "left", metav1.GetOptions{})
		if err == nil {
			return fmt.Errorf("the removed key is still in use")
		}
		for _, want := range []string{"/secrets/default/left", "no matching key was found"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("error: %v, want %q", err, want)
			}
		}
		return nil
	})
	wantSecret(t, c, "moved")
	if err := rewritten("k2"); err != nil {
		t.Error(err)
	}
}

func TestKMSPluginThatIsDownIsToldByReadyz(t *testing.T) {
	for _, reload := range []bool{false, true} {
		t.Run(fmt.Sprint("reload ", reload), func(t *testing.T) {
			socket := filepath.Join(t.TempDir(), "kms.sock")
			plugin := kmsplugin.NewBase64Plugin(t, socket)
			plugin.EnterFailedState()
			e := newEncryption(t, "secrets", "kms: {apiVersion: v2, name: plugin, endpoint: \"unix://"+socket+"\"}")
			s := start(t, func(c *Config) { c.EncryptionConfig, c.EncryptionReload = e.path, reload })
			c := admin(t, s)
			probe := func(path string) (string, error) {
				text, err := c.Discovery().RESTClient().Get().AbsPath(path).DoRaw(t.Context())
				return string(text), err
			}
			if text, err := probe("/readyz"); err == nil || !strings.Contains(text, "[-]kms-providers failed") {
				t.Errorf("readyz: %v, %s", err, text)
			}
			eventually(t, func() error { // a restart would not help; the library's controllers may still be starting
				text, err := probe("/livez")
				if err != nil {
					return fmt.Errorf("livez: %w, %s", err, text)
				}
				return nil
			})
			_, err := c.CoreV1().Secrets("default").Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{})
			if err == nil || !strings.Contains(err.Error(), "cannot encrypt secrets: ") {
				t.Errorf("create without the plugin: %v", err)
			}
			plugin.ExitFailedState()
			eventually(t, func() error { _, err := probe("/readyz"); return err })
			makeSecret(t, c, "a")
		})
	}
}

func TestWrongEncryptionConfigurationsAreRefused(t *testing.T) {
	for name, d := range map[string]struct{ provider, want string }{
		"unknown provider": {"rot13: {}", `unknown field "resources[0].providers[0].rot13"`},
		"kms v1":           {"kms: {name: p, endpoint: 'unix:///nowhere', cachesize: 10}", "KMSv1 is deprecated"},
		"kms v3":           {"kms: {apiVersion: v3, name: p, endpoint: 'unix:///nowhere'}", `kms.apiVersion: Invalid value: "v3"`},
		"short key":        {"aesgcm: {keys: [{name: k, secret: c2hvcnQ=}]}", "resources[0].providers[0].aesgcm.keys[0].secret"},
		"no key":           {"secretbox: {keys: []}", "resources[0].providers[0].secretbox.keys: Required value"},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEncryption(t, "secrets", d.provider)
			err := newFails(t, func(c *Config) { c.EncryptionConfig = e.path })
			if !strings.HasPrefix(err.Error(), "--encryption-provider-config: ") || !strings.Contains(err.Error(), d.want) {
				t.Errorf("error: %v, want %s", err, d.want)
			}
		})
	}
	err := newFails(t, func(c *Config) { c.EncryptionReload = true })
	if !strings.Contains(err.Error(), "must be set with --encryption-provider-config") {
		t.Error(err)
	}
	err = newFails(t, func(c *Config) { c.EncryptionConfig = "/nowhere/at/all" })
	if !strings.Contains(err.Error(), "/nowhere/at/all") {
		t.Error(err)
	}
}
