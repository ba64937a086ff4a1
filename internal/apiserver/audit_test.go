package apiserver

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	"wherry.dev/test/disks"
)

// auditPolicy records all of what is asked of config maps in one namespace, that secrets were asked
// for, and nothing else.
const auditPolicy = policyHead + `
omitStages: [RequestReceived]
rules:
- {level: RequestResponse, namespaces: [default], resources: [{group: "", resources: [configmaps]}]}
- {level: Metadata, resources: [{group: "", resources: [secrets]}]}
- {level: None}
`

// policyHead begins every policy.
const policyHead = "apiVersion: audit.k8s.io/v1\nkind: Policy\n"

func written(t *testing.T, name, text string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// audited reads the events of a log.
func audited(t *testing.T, path string) []auditv1.Event {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	var out []auditv1.Event
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var e auditv1.Event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			t.Fatalf("%v: %s", err, lines.Text())
		}
		out = append(out, e)
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestAuditLogSaysWhoDidWhat(t *testing.T) {
	path := filepath.Join(t.TempDir(), "logs", "audit.log")
	s := start(t, func(c *Config) {
		c.Audit.PolicyFile, c.Audit.LogOptions.Path = written(t, "policy.yaml", auditPolicy), path
	})
	ctx, c := t.Context(), admin(t, s)
	m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "m"}, Data: map[string]string{"a": "b"}}
	if _, err := c.CoreV1().ConfigMaps("default").Create(ctx, m, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err := clientFor(t, overTCP(s.ClientConfig("mallory"))).CoreV1().Secrets("default").Get(ctx, "s", metav1.GetOptions{})
	if !apierrors.IsForbidden(err) {
		t.Fatal(err)
	}
	if _, err := c.CoreV1().Pods("default").List(ctx, metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	events := audited(t, path)
	events = slices.DeleteFunc(events, func(e auditv1.Event) bool { return e.User.Username != "admin" && e.User.Username != "mallory" })
	if len(events) != 2 {
		t.Fatalf("%d events: %v", len(events), events)
	}
	made, refused := events[0], events[1]
	if made.Verb != "create" || made.ObjectRef.Resource != "configmaps" || made.ResponseStatus.Code != http.StatusCreated ||
		made.RequestObject == nil || !strings.Contains(string(made.ResponseObject.Raw), `"a":"b"`) || made.Annotations["authorization.k8s.io/decision"] != "allow" {
		t.Errorf("creation: %+v", made)
	}
	if refused.User.Username != "mallory" || refused.Verb != "get" || refused.ResponseStatus.Code != http.StatusForbidden ||
		refused.ResponseObject != nil || refused.Annotations["authorization.k8s.io/decision"] != "forbid" {
		t.Errorf("refusal: %+v", refused)
	}
}

func TestAuditWebhookGetsEvents(t *testing.T) {
	var mu sync.Mutex
	var verbs []string
	hook := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var list auditv1.EventList
		if err := json.NewDecoder(r.Body).Decode(&list); err != nil {
			t.Error(err)
		}
		mu.Lock()
		defer mu.Unlock()
		for _, e := range list.Items {
			verbs = append(verbs, e.User.Username+" "+e.Verb+" "+e.ObjectRef.Name)
		}
	}))
	t.Cleanup(hook.Close)
	s := start(t, func(c *Config) {
		c.Audit.PolicyFile = written(t, "policy.yaml", auditPolicy)
		c.Audit.WebhookOptions.ConfigFile = written(t, "hook.yaml", "apiVersion: v1\nkind: Config\ncurrent-context: c\n"+
			`clusters: [{name: c, cluster: {server: "`+hook.URL+`"}}]`+"\ncontexts: [{name: c, context: {cluster: c}}]\n")
		c.Audit.WebhookOptions.BatchOptions.BatchConfig.MaxBatchWait = 10 * time.Millisecond
	})
	if _, err := admin(t, s).CoreV1().Secrets("default").Get(t.Context(), "absent", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	eventually(t, func() error {
		mu.Lock()
		defer mu.Unlock()
		if !slices.Contains(verbs, "admin get absent") {
			return fmt.Errorf("the webhook was told of %q", verbs)
		}
		return nil
	})
}

// A log that cannot be written holds up nobody, unless that was asked for.
func TestAuditLogOnAFullDisk(t *testing.T) {
	for mode, want := range map[string]bool{"blocking": true, "batch": true, "blocking-strict": false} {
		t.Run(mode, func(t *testing.T) {
			dir := t.TempDir()
			disks.Tmpfs(t, dir, "size=1m")
			// The request is recorded when it comes in, where strict mode refuses it.
			policy := policyHead + `rules: [{level: Metadata, users: [admin]}]`
			path := filepath.Join(dir, "audit.log")
			s := start(t, func(c *Config) {
				c.Audit.PolicyFile, c.Audit.LogOptions.Path = written(t, "policy.yaml", policy), path
				c.Audit.LogOptions.BatchOptions.Mode = mode
				c.Audit.LogOptions.BatchOptions.BatchConfig.MaxBatchWait = 10 * time.Millisecond
			})
			maps := admin(t, s).CoreV1().ConfigMaps("default")
			hog := fill(t, dir)
			var failed error
			for range 100 { // until the last block is full too
				if _, err := maps.List(t.Context(), metav1.ListOptions{}); err != nil {
					failed = err
				}
			}
			if (failed == nil) != want {
				t.Errorf("a request while the log cannot be written: %v", failed)
			}
			if err := os.Remove(hog); err != nil {
				t.Fatal(err)
			}
			eventually(t, func() error {
				_, err := maps.Get(t.Context(), "after", metav1.GetOptions{})
				if !apierrors.IsNotFound(err) {
					return fmt.Errorf("after there is room again: %w", err)
				}
				log, err := os.ReadFile(path)
				if err == nil && !strings.Contains(string(log), "configmaps/after") {
					err = errors.New("the log does not go on")
				}
				return err
			})
		})
	}
}

func TestAuditPolicyThatCannotBeRead(t *testing.T) {
	for text, want := range map[string]string{
		"":                                    "--audit-policy-file",
		policyHead + "rules: [{level: Loud}]": "rules[0].level",
	} {
		cfg := DefaultConfig()
		cfg.DataDir, cfg.SecurePort, cfg.BindAddress = t.TempDir(), 0, net.IPv4(127, 0, 0, 1)
		cfg.Audit.PolicyFile = written(t, "policy.yaml", text)
		if _, err := New(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
}
