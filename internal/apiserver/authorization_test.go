package apiserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// jury is a webhook of authorization.
type jury struct {
	*httptest.Server

	mu    sync.Mutex
	broke bool
	asked []authorizationv1.SubjectAccessReviewSpec
}

// newJury lets friend do everything, and denies foe everything. It has no opinion of others.
func newJury(t *testing.T) *jury {
	t.Helper()
	j := &jury{}
	j.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		review := &authorizationv1.SubjectAccessReview{}
		if err := json.NewDecoder(r.Body).Decode(review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if j.record(review.Spec) {
			http.Error(w, "broken", http.StatusBadRequest)
			return
		}
		review.Status = authorizationv1.SubjectAccessReviewStatus{
			Allowed: review.Spec.User == "friend", Denied: review.Spec.User == "foe", Reason: "the judge knows " + review.Spec.User,
		}
		if err := json.NewEncoder(w).Encode(review); err != nil {
			panic(http.ErrAbortHandler)
		}
	}))
	t.Cleanup(j.Close)
	return j
}

// record notes a question, and returns whether it is to fail.
func (j *jury) record(spec authorizationv1.SubjectAccessReviewSpec) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.asked = append(j.asked, spec)
	return j.broke
}

func (j *jury) breakDown() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.broke = true
}

// about returns the questions about a user.
func (j *jury) about(user string) (specs []authorizationv1.SubjectAccessReviewSpec) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, spec := range j.asked {
		if spec.User == user {
			specs = append(specs, spec)
		}
	}
	return specs
}

func as(t *testing.T, s *Server, user string) kubernetes.Interface {
	t.Helper()
	return clientFor(t, s.ClientConfig(user))
}

// listPods returns what becomes of a user's request.
func listPods(t *testing.T, s *Server, user string) error {
	t.Helper()
	_, err := as(t, s, user).CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{})
	return err
}

func TestAuthorizationModes(t *testing.T) {
	t.Run("AlwaysAllow", func(t *testing.T) {
		s := start(t, func(c *Config) { c.Authorization.Modes = []string{"AlwaysAllow"} })
		if err := listPods(t, s, "jane"); err != nil {
			t.Error(err)
		}
		if _, err := whoIs(t, withToken(s, "")); !apierrors.IsUnauthorized(err) {
			t.Errorf("without credentials, where everything is allowed: %v", err)
		}
	})
	t.Run("AlwaysDeny", func(t *testing.T) {
		s := start(t, func(c *Config) { c.Authorization.Modes = []string{"AlwaysDeny"} })
		if err := listPods(t, s, "jane"); !apierrors.IsForbidden(err) {
			t.Error(err)
		}
		if err := clientFor(t, s.ClientConfig("boss", "system:masters")).CoreV1().Pods("default").Delete(t.Context(), "x", metav1.DeleteOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("system:masters: %v", err)
		}
	})
}

func TestAuthorizationByWebhook(t *testing.T) {
	j := newJury(t)
	file := kubeconfigOf(t, j.Server)
	s := start(t, func(c *Config) {
		c.Authorization.Modes = []string{"Webhook", "Node", "RBAC"}
		c.Authorization.Webhook.ConfigFile, c.Authorization.Webhook.Version = file, "v1"
	})
	grant(t, s, "jane", "list", "pods")
	grant(t, s, "foe2", "list", "pods")
	for user, allowed := range map[string]bool{"friend": true, "foe": false, "jane": true, "joe": false} {
		if err := listPods(t, s, user); allowed && err != nil || !allowed && !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v", user, err)
		}
	}
	if err := listPods(t, s, "foe"); err == nil || !strings.Contains(err.Error(), "the judge knows foe") {
		t.Errorf("the reason is not told: %v", err)
	}
	// SubjectAccessReview asks the same authorizers, and tells a refusal from no opinion.
	for user, want := range map[string][2]bool{"friend": {true, false}, "foe": {false, true}, "jane": {true, false}, "joe": {false, false}} {
		review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User: user, ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: "default", Verb: "list", Resource: "pods"},
		}}
		got, err := admin(t, s).AuthorizationV1().SubjectAccessReviews().Create(t.Context(), review, metav1.CreateOptions{})
		if err != nil || [2]bool{got.Status.Allowed, got.Status.Denied} != want {
			t.Errorf("review of %s: %+v, %v", user, got.Status, err)
		}
	}
	rules := &authorizationv1.SelfSubjectRulesReview{Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: "default"}}
	rules, err := as(t, s, "friend").AuthorizationV1().SelfSubjectRulesReviews().Create(t.Context(), rules, metav1.CreateOptions{})
	if err != nil || !rules.Status.Incomplete || rules.Status.EvaluationError == "" {
		t.Errorf("rules that a webhook has a part in are not incomplete: %+v, %v", rules, err)
	}
}

func TestSelectorsReachAuthorizationWebhooks(t *testing.T) {
	j := newJury(t)
	file := kubeconfigOf(t, j.Server)
	s := start(t, func(c *Config) {
		c.Authorization.Modes = []string{"Webhook"}
		c.Authorization.Webhook.ConfigFile, c.Authorization.Webhook.Version = file, "v1"
	})
	opts := metav1.ListOptions{FieldSelector: "spec.nodeName=n1", LabelSelector: "app in (a,b)"}
	if _, err := as(t, s, "friend").CoreV1().Pods("default").List(t.Context(), opts); err != nil {
		t.Fatal(err)
	}
	questions := j.about("friend")
	if len(questions) != 1 {
		t.Fatalf("asked %d times", len(questions))
	}
	r := questions[0].ResourceAttributes
	if r.FieldSelector == nil || len(r.FieldSelector.Requirements) != 1 || r.FieldSelector.Requirements[0].Key != "spec.nodeName" {
		t.Errorf("field selector: %+v", r.FieldSelector)
	}
	if r.LabelSelector == nil || len(r.LabelSelector.Requirements) != 1 || len(r.LabelSelector.Requirements[0].Values) != 2 {
		t.Errorf("label selector: %+v", r.LabelSelector)
	}
	review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Namespace: "default", Verb: "watch", Resource: "pods",
			FieldSelector: &authorizationv1.FieldSelectorAttributes{RawSelector: "spec.nodeName=n2"},
		},
	}}
	if _, err := as(t, s, "friend").AuthorizationV1().SelfSubjectAccessReviews().Create(t.Context(), review, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	questions = j.about("friend")
	if r := questions[len(questions)-1].ResourceAttributes; r.Verb != "watch" || r.FieldSelector == nil || r.FieldSelector.Requirements[0].Values[0] != "n2" {
		t.Errorf("selector of a review: %+v", r)
	}
}

// judgedBy is a configuration with a webhook that is asked about the namespace default only.
func judgedBy(kubeconfig, policy string) string {
	return fmt.Sprintf(`
apiVersion: apiserver.config.k8s.io/v1
kind: AuthorizationConfiguration
authorizers:
- type: Webhook
  name: judge.example.com
  webhook:
    authorizedTTL: 1ms
    unauthorizedTTL: 1ms
    timeout: 3s
    subjectAccessReviewVersion: v1
    matchConditionSubjectAccessReviewVersion: v1
    failurePolicy: %s
    connectionInfo: {type: KubeConfigFile, kubeConfigFile: %q}
    matchConditions:
    - expression: has(request.resourceAttributes)
    - expression: request.resourceAttributes.namespace == 'default'
- {type: Node, name: node}
- {type: RBAC, name: rbac}
`, policy, kubeconfig)
}

func TestAuthorizationConfiguration(t *testing.T) {
	j := newJury(t)
	file := written(t, "authorization.yaml", judgedBy(kubeconfigOf(t, j.Server), "Deny"))
	s := start(t, func(c *Config) { c.Authorization.ConfigFile = file })
	if err := listPods(t, s, "friend"); err != nil {
		t.Errorf("friend: %v", err)
	}
	if _, err := as(t, s, "friend").CoreV1().Pods("kube-system").List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("friend, in a namespace that the webhook is not asked about: %v", err)
	}
	if n := len(j.about("friend")); n != 1 {
		t.Errorf("asked %d times about friend", n)
	}
	grant(t, s, "jane", "list", "pods")
	j.breakDown()
	if err := listPods(t, s, "jane"); !apierrors.IsForbidden(err) && !apierrors.IsInternalError(err) {
		t.Errorf("with a webhook that fails, and failure policy Deny: %v", err)
	}
	for _, metric := range []string{
		"apiserver_authorization_decisions_total", "apiserver_authorization_webhook_evaluations_total",
	} {
		if metricOf(t, s, metric, `name="judge.example.com"`) == 0 {
			t.Errorf("%s has not counted the webhook", metric)
		}
	}
}

func TestAuthorizationConfigurationIsReloaded(t *testing.T) {
	j := newJury(t)
	kubeconfig := kubeconfigOf(t, j.Server)
	config := judgedBy(kubeconfig, "NoOpinion")
	file := written(t, "authorization.yaml", config)
	s := start(t, func(c *Config) { c.Authorization.ConfigFile = file })
	if err := listPods(t, s, "friend"); err != nil {
		t.Fatal(err)
	}
	const reloads = "apiserver_authorization_config_controller_automatic_reloads_total"
	failed := metricOf(t, s, reloads, `status="failure"`)
	for wrong, changed := range map[string]string{
		"without RBAC":  strings.Replace(config, "- {type: RBAC, name: rbac}\n", "", 1),
		"unknown type":  config + "- {type: ABAC, name: abac}\n",
		"bad CEL":       strings.Replace(config, "== 'default'", "==", 1),
		"no kubeconfig": judgedBy("/nowhere", "NoOpinion"),
	} {
		replace(t, file, changed)
		eventually(t, func() error {
			if n := metricOf(t, s, reloads, `status="failure"`); n <= failed {
				return fmt.Errorf("%s: %v failures, there were %v", wrong, n, failed)
			}
			return nil
		})
		failed = metricOf(t, s, reloads, `status="failure"`)
		if err := listPods(t, s, "friend"); err != nil {
			t.Errorf("%s: what was in use is not any more: %v", wrong, err)
		}
	}
	replace(t, file, strings.Replace(config, "== 'default'", "== 'kube-system'", 1))
	eventually(t, func() error {
		if err := listPods(t, s, "friend"); !apierrors.IsForbidden(err) {
			return fmt.Errorf("after the change: %w", err)
		}
		return nil
	})
	if _, err := as(t, s, "friend").CoreV1().Pods("kube-system").List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Errorf("in the other namespace: %v", err)
	}
	eventually(t, func() error { // it is counted once it is in use
		if metricOf(t, s, reloads, `status="success"`) == 0 {
			return errors.New("the reload was not counted")
		}
		return nil
	})
}

func TestAuthorizationFlagsThatExcludeEachOther(t *testing.T) {
	j := newJury(t)
	kubeconfig := kubeconfigOf(t, j.Server)
	config := written(t, "authorization.yaml", judgedBy(kubeconfig, "Deny"))
	misnamed := written(t, "authorization.yaml", `{"apiVersion": "apiserver.config.k8s.io/v1",
"kind": "AuthorizationConfiguration", "authorizers": [{"type": "RBAC", "name": "roles"}]}`)
	inCluster := written(t, "authorization.yaml", strings.Replace(judgedBy("x", "Deny"),
		`{type: KubeConfigFile, kubeConfigFile: "x"}`, "{type: InClusterConfig}", 1))
	for want, flags := range map[string][]string{
		"authorizer judge.example.com: unable to load in-cluster configuration":                   {"--authorization-config", inCluster},
		"--authorization-config can not be specified when --authorization-mode":                   {"--authorization-config", config, "--authorization-mode=RBAC"},
		`--authorization-mode "ABAC" is not a valid mode`:                                         {"--authorization-mode=ABAC"},
		"has mode RBAC specified more than once":                                                  {"--authorization-mode=RBAC,Node,RBAC"},
		"--authorization-mode Webhook needs --authorization-webhook-config-file":                  {"--authorization-mode=RBAC,Webhook"},
		"cannot specify --authorization-webhook-config-file without --authorization-mode Webhook": {"--authorization-webhook-config-file", kubeconfig},
		"at least one authorization mode must be passed":                                          {"--authorization-mode="},
		`--authorization-webhook-version "v2" must be one of`:                                     {"--authorization-webhook-version=v2"},
		"expected name rbac for authorizer RBAC instead of roles":                                 {"--authorization-config", misnamed},
		"--authorization-config: read /dev/zero":                                                  {"--authorization-config=/dev/zero"},
		"--authorization-config /nowhere":                                                         {"--authorization-config=/nowhere"},
	} {
		if err := startError(t, flags...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", flags, err, want)
		}
	}
}

// A server that starts answers requests as soon as it can, but refuses none of somebody who may do what he asks for, because
// it has not read yet that he may. Another server that wanted to join was refused once.
func TestStartingServerRefusesNobodyWithRights(t *testing.T) {
	dir := t.TempDir()
	s, stop := run(t, dir)
	for i := range 500 { // they take a moment to read
		role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("r", i), Namespace: "default"}}
		if _, err := admin(t, s).RbacV1().Roles("default").Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	stop()
	var first atomic.Pointer[string]
	var asked atomic.Int64
	ctx, end := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	s, stop = run(t, dir, func(cfg *Config) {
		cfg.SecurePort = s.Addr().Port
		token := filepath.Join(dir, "tokens")
		if err := os.WriteFile(token, []byte("secret,system:kube-scheduler,1\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		cfg.Authentication.TokenFile = token
		client := clientFor(t, &rest.Config{
			Host: fmt.Sprintf("https://127.0.0.1:%d", cfg.SecurePort), BearerToken: "secret", TLSClientConfig: rest.TLSClientConfig{Insecure: true}, QPS: -1,
		})
		for range 4 {
			clients.Go(func() {
				for ctx.Err() == nil {
					_, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
					if apierrors.IsForbidden(err) {
						text := err.Error()
						first.CompareAndSwap(nil, &text)
					}
					if err == nil {
						asked.Add(1)
					}
				}
			})
		}
	})
	defer stop()
	end()
	clients.Wait()
	if text := first.Load(); text != nil {
		t.Errorf("the scheduler is refused while the server starts: %s", *text)
	}
	t.Log(asked.Load(), "requests were answered before the server was ready")
}
