package apiserver

import (
	"crypto/rand"
	"crypto/tls"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	reviewv1 "k8s.io/api/admission/v1"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"wherry.dev/internal/pki"
)

// hook is a webhook in the test.
type hook struct {
	*httptest.Server

	mu     sync.Mutex
	answer func(path string, r *reviewv1.AdmissionRequest) *reviewv1.AdmissionResponse
	seen   []*reviewv1.AdmissionRequest
}

// serveHook serves answer over TLS, for any name that leads to the loopback address.
func serveHook(t *testing.T, answer func(path string, r *reviewv1.AdmissionRequest) *reviewv1.AdmissionResponse) *hook {
	t.Helper()
	h := &hook{answer: answer}
	h.Server = httptest.NewTLSServer(http.HandlerFunc(h.serve))
	t.Cleanup(h.Close)
	return h
}

func (h *hook) serve(w http.ResponseWriter, r *http.Request) {
	review := &reviewv1.AdmissionReview{}
	if err := json.NewDecoder(r.Body).Decode(review); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	h.mu.Lock()
	h.seen = append(h.seen, review.Request)
	answer := h.answer
	h.mu.Unlock()
	out := &reviewv1.AdmissionReview{TypeMeta: review.TypeMeta, Response: answer(r.URL.Path, review.Request)}
	out.Response.UID = review.Request.UID
	if err := json.NewEncoder(w).Encode(out); err != nil {
		panic(http.ErrAbortHandler)
	}
}

// requests returns what the webhook was asked about objects of a name.
func (h *hook) requests(name string) []*reviewv1.AdmissionRequest {
	h.mu.Lock()
	defer h.mu.Unlock()
	var out []*reviewv1.AdmissionRequest
	for _, r := range h.seen {
		if r.Name == name {
			out = append(out, r)
		}
	}
	return out
}

func (h *hook) ca() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: h.Certificate().Raw})
}

func (h *hook) at(path string) admissionv1.WebhookClientConfig {
	return admissionv1.WebhookClientConfig{URL: new(h.URL + path), CABundle: h.ca()}
}

func allow() *reviewv1.AdmissionResponse { return &reviewv1.AdmissionResponse{Allowed: true} }

func deny(message string) *reviewv1.AdmissionResponse {
	return &reviewv1.AdmissionResponse{Result: &metav1.Status{Message: message, Code: http.StatusTeapot}}
}

func patching(patch string) *reviewv1.AdmissionResponse {
	return &reviewv1.AdmissionResponse{Allowed: true, Patch: []byte(patch), PatchType: new(reviewv1.PatchTypeJSONPatch)}
}

// onConfigMaps are the rules of nearly all webhooks here.
func onConfigMaps(operations ...admissionv1.OperationType) []admissionv1.RuleWithOperations {
	if len(operations) == 0 {
		operations = []admissionv1.OperationType{admissionv1.Create, admissionv1.Update}
	}
	return []admissionv1.RuleWithOperations{{
		Operations: operations,
		Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}},
	}}
}

func judge(name string, client admissionv1.WebhookClientConfig) admissionv1.ValidatingWebhook {
	return admissionv1.ValidatingWebhook{
		Name: name, ClientConfig: client, Rules: onConfigMaps(), SideEffects: new(admissionv1.SideEffectClassNone),
		AdmissionReviewVersions: []string{"v1"}, MatchConditions: marked(),
	}
}

func change(name string, client admissionv1.WebhookClientConfig) admissionv1.MutatingWebhook {
	return admissionv1.MutatingWebhook{
		Name: name, ClientConfig: client, Rules: onConfigMaps(), SideEffects: new(admissionv1.SideEffectClassNone),
		AdmissionReviewVersions: []string{"v1"}, MatchConditions: marked(),
	}
}

// marked lets webhooks out of the way of what the server and other tests write.
func marked() []admissionv1.MatchCondition {
	return []admissionv1.MatchCondition{{Name: "for-a-test", Expression: "object.metadata.name.startsWith('test-')"}}
}

// validate and mutate configure webhooks, and wait until the server calls them.
func validate(t *testing.T, c kubernetes.Interface, hooks ...admissionv1.ValidatingWebhook) {
	t.Helper()
	name, probe, probed := prober(t)
	config := &admissionv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"},
		Webhooks:   append(slices.Clone(hooks), judge("probe.example.com", probe)),
	}
	config.Webhooks[len(hooks)].MatchConditions[0].Expression = "object.metadata.name == '" + name + "'"
	if _, err := c.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(t.Context(), config, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	probed(c)
}

func mutate(t *testing.T, c kubernetes.Interface, hooks ...admissionv1.MutatingWebhook) {
	t.Helper()
	name, probe, probed := prober(t)
	config := &admissionv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"},
		Webhooks:   append(slices.Clone(hooks), change("probe.example.com", probe)),
	}
	config.Webhooks[len(hooks)].MatchConditions[0].Expression = "object.metadata.name == '" + name + "'"
	if _, err := c.AdmissionregistrationV1().MutatingWebhookConfigurations().Create(t.Context(), config, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	probed(c)
}

// prober returns a name, a webhook that refuses objects of it, and a function that waits for a refusal.
func prober(t *testing.T) (string, admissionv1.WebhookClientConfig, func(kubernetes.Interface)) {
	t.Helper()
	name := "probe-" + strings.ToLower(rand.Text())
	h := serveHook(t, func(string, *reviewv1.AdmissionRequest) *reviewv1.AdmissionResponse { return deny("probed") })
	return name, h.at("/"), func(c kubernetes.Interface) {
		t.Helper()
		for {
			_, err := putMap(t, c, name, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			if err == nil {
				continue
			}
			refused(t, err, "probed")
			return
		}
	}
}

func putMap(t *testing.T, c kubernetes.Interface, name string, opts metav1.CreateOptions, labels ...string) (*corev1.ConfigMap, error) {
	t.Helper()
	m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}}, Data: map[string]string{}}
	for _, l := range labels {
		m.Labels[l] = "true"
	}
	return c.CoreV1().ConfigMaps("default").Create(t.Context(), m, opts)
}

func mustPutMap(t *testing.T, c kubernetes.Interface, name string, labels ...string) *corev1.ConfigMap {
	t.Helper()
	m, err := putMap(t, c, name, metav1.CreateOptions{}, labels...)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestWebhooksByURL(t *testing.T) {
	s := start(t)
	c := admin(t, s)
	h := serveHook(t, func(path string, r *reviewv1.AdmissionRequest) *reviewv1.AdmissionResponse {
		switch {
		case path == "/mutate":
			return patching(`[{"op":"add","path":"/data","value":{"by":"webhook"}}]`)
		case r.Name == "test-refused":
			return deny("not this one")
		}
		return allow()
	})
	mutate(t, c, change("m.example.com", h.at("/mutate")))
	validate(t, c, judge("v.example.com", h.at("/validate")))

	if m := mustPutMap(t, c, "test-fine"); m.Data["by"] != "webhook" {
		t.Errorf("data %v", m.Data)
	}
	r := h.requests("test-fine")[1]
	judged := &corev1.ConfigMap{}
	if err := json.Unmarshal(r.Object.Raw, judged); err != nil {
		t.Fatal(err)
	}
	if judged.Kind != "ConfigMap" || judged.APIVersion != "v1" || judged.Data["by"] != "webhook" || r.UserInfo.Username != "admin" {
		t.Errorf("the validating webhook was asked %s", r.Object.Raw)
	}
	_, err := putMap(t, c, "test-refused", metav1.CreateOptions{})
	refused(t, err, `admission webhook "v.example.com" denied the request: not this one`)
	status, ok := err.(apierrors.APIStatus)
	if !ok || status.Status().Code != http.StatusTeapot {
		t.Errorf("status %v", err)
	}
	if _, err := c.CoreV1().ConfigMaps("default").Get(t.Context(), "test-refused", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("it was created: %v", err)
	}
}

// behindService gives a webhook of the test a service, and a certificate for its name.
func behindService(t *testing.T, s *Server, name string, h *hook) admissionv1.WebhookClientConfig {
	t.Helper()
	dir := t.TempDir()
	ca, err := pki.LoadOrCreateCA(dir, "ca", "hooks", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	cert, key, err := ca.Issue(dir, "hook", pki.Leaf{CommonName: "hook", DNSNames: []string{name + ".default.svc"}, Server: true}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(h.serve))
	server.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	server.StartTLS()
	t.Cleanup(server.Close)
	addr := server.Listener.Addr().(*net.TCPAddr)

	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "https", Port: 443}}}}
	if _, err := admin(t, s).CoreV1().Services("default").Create(t.Context(), svc, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: name}},
		AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{addr.IP.String()}}},
		Ports: []discoveryv1.EndpointPort{{Name: new("https"), Port: new(int32(addr.Port))}},
	}
	own, err := s.ownClient() // others may not name loopback addresses
	if err != nil {
		t.Fatal(err)
	}
	if _, err := own.DiscoveryV1().EndpointSlices("default").Create(t.Context(), slice, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	pem, err := ca.Cert()
	if err != nil {
		t.Fatal(err)
	}
	return admissionv1.WebhookClientConfig{CABundle: pem, Service: &admissionv1.ServiceReference{Namespace: "default", Name: name, Path: new("/in/cluster")}}
}

func TestWebhooksByService(t *testing.T) {
	s := start(t, func(c *Config) { c.AggregatorRouting = true })
	c := admin(t, s)
	h := serveHook(t, func(path string, _ *reviewv1.AdmissionRequest) *reviewv1.AdmissionResponse {
		return patching(fmt.Sprintf(`[{"op":"add","path":"/data","value":{"path":%q}}]`, path))
	})
	mutate(t, c, change("m.example.com", behindService(t, s, "hook", h)))
	if m := mustPutMap(t, c, "test-a"); m.Data["path"] != "/in/cluster" {
		t.Errorf("data %v", m.Data)
	}
	nobody := admissionv1.WebhookClientConfig{Service: &admissionv1.ServiceReference{Namespace: "default", Name: "absent"}}
	validate(t, c, judge("v.example.com", nobody))
	_, err := putMap(t, c, "test-b", metav1.CreateOptions{})
	refused(t, err, `failed calling webhook "v.example.com": failed to call webhook: Post "https://absent.default.svc:443/?timeout=10s": services "absent" not found`)
}

func TestWhereServicesAreReached(t *testing.T) {
	s := start(t)
	c := admin(t, s)
	for name, spec := range map[string]corev1.ServiceSpec{
		"plain":    {ClusterIP: "10.96.0.77", Ports: []corev1.ServicePort{{Port: 443}}},
		"headless": {ClusterIP: corev1.ClusterIPNone, Ports: []corev1.ServicePort{{Port: 443}}},
		"external": {Type: corev1.ServiceTypeExternalName, ExternalName: "hooks.example.com"},
	} {
		svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}
		if _, err := c.CoreV1().Services("default").Create(t.Context(), svc, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, tc := range []struct {
		name string
		port int32
		want string
	}{
		{"plain", 443, "https://10.96.0.77:443"},
		{"plain", 444, `no service port 444 found for service "plain"`},
		{"headless", 443, `cannot route to service with ClusterIP "None"`},
		{"external", 8443, "https://hooks.example.com:8443"},
		{"kubernetes", 443, "https://" + s.loopbackAddr()},
		{"absent", 443, `services "absent" not found`},
	} {
		u, err := s.urls.ResolveEndpoint("default", tc.name, tc.port)
		if got := fmt.Sprint(u, err); !strings.Contains(got, tc.want) {
			t.Errorf("%s:%d leads to %s, not %s", tc.name, tc.port, got, tc.want)
		}
	}
	routed := *s.urls
	routed.ByEndpoint = true
	_, err := routed.ResolveEndpoint("default", "plain", 443)
	refused(t, err, `no endpoints available for service "plain"`)
}

func TestMutatingWebhooksRunInOrderAndAgain(t *testing.T) {
	s := start(t)
	c := admin(t, s)
	// Each adds its letter once; the first wants to see what the others did.
	h := serveHook(t, func(path string, r *reviewv1.AdmissionRequest) *reviewv1.AdmissionResponse {
		m := &corev1.ConfigMap{}
		if err := json.Unmarshal(r.Object.Raw, m); err != nil {
			return deny(err.Error())
		}
		return patching(fmt.Sprintf(`[{"op":"add","path":"/data","value":{"order":%q}}]`, m.Data["order"]+path))
	})
	first, second := change("z.example.com", h.at("/1")), change("a.example.com", h.at("/2"))
	first.ReinvocationPolicy = new(admissionv1.IfNeededReinvocationPolicy)
	mutate(t, c, first, second)
	if m := mustPutMap(t, c, "test-a"); m.Data["order"] != "/1/2/1" {
		t.Errorf("order %v", m.Data)
	}
}

// TestWebhooksThatComeBack: a plugin that nothing configures is left out, and only as long as nothing does.
func TestWebhooksThatComeBack(t *testing.T) {
	s := start(t)
	c := admin(t, s)
	h := serveHook(t, func(string, *reviewv1.AdmissionRequest) *reviewv1.AdmissionResponse {
		return patching(`[{"op":"add","path":"/data","value":{"hooked":"true"}}]`)
	})
	configurations := c.AdmissionregistrationV1().MutatingWebhookConfigurations()
	for round := range 3 {
		mutate(t, c, change("a.example.com", h.at("/")))
		if m := mustPutMap(t, c, fmt.Sprint("test-", round)); m.Data["hooked"] != "true" {
			t.Errorf("round %d: the webhook was not called", round)
		}
		if err := configurations.DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
			t.Fatal(err)
		}
		for i := 0; ; i++ { // until the server knows
			m, err := putMap(t, c, fmt.Sprintf("test-%d-%d", round, i), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			if err != nil {
				t.Fatal(err)
			}
			if m.Data["hooked"] != "true" {
				break
			}
		}
	}
}

// TestTheFirstRequestAfterARestartMeetsTheWebhooks: a webhook that was there before the server must not be missed,
// however early a request comes.
func TestTheFirstRequestAfterARestartMeetsTheWebhooks(t *testing.T) {
	dir := t.TempDir()
	h := serveHook(t, func(string, *reviewv1.AdmissionRequest) *reviewv1.AdmissionResponse { return deny("never") })
	s, stop := run(t, dir)
	validate(t, admin(t, s), judge("a.example.com", h.at("/")))
	for round := range 5 {
		stop()
		s, stop = run(t, dir)
		_, err := putMap(t, admin(t, s), fmt.Sprint("test-", round), metav1.CreateOptions{})
		refused(t, err, "never")
	}
	stop()
}

// A plugin of ours that completes pods must bear a second round.
func TestPodsBearASecondRoundOfAdmission(t *testing.T) {
	s := start(t)
	c := admin(t, s)
	h := serveHook(t, func(path string, r *reviewv1.AdmissionRequest) *reviewv1.AdmissionResponse {
		pod := &corev1.Pod{}
		if err := json.Unmarshal(r.Object.Raw, pod); err != nil {
			return deny(err.Error())
		}
		if path == "/add" && len(pod.Spec.Containers) == 1 {
			return patching(`[{"op":"add","path":"/spec/containers/-","value":{"name":"sidecar","image":"busybox"}}]`)
		}
		return allow()
	})
	onPods := func(w admissionv1.MutatingWebhook) admissionv1.MutatingWebhook {
		w.Rules[0].Resources, w.ReinvocationPolicy = []string{"pods"}, new(admissionv1.IfNeededReinvocationPolicy)
		return w
	}
	mutate(t, c, onPods(change("look.example.com", h.at("/look"))), onPods(change("add.example.com", h.at("/add"))))
	p := mustPod(t, c, testPod("test-p"))
	if len(p.Spec.Containers) != 2 || len(p.Spec.Volumes) != 1 || len(p.Spec.Tolerations) != 2 {
		t.Fatalf("spec %+v", p.Spec)
	}
	for _, container := range p.Spec.Containers { // the sidecar came after the first round
		if len(container.VolumeMounts) != 1 || container.ImagePullPolicy != corev1.PullAlways || container.TerminationMessagePath == "" {
			t.Errorf("container %+v", container)
		}
	}
	if n := len(h.requests("test-p")); n != 4 { // the second round has changed what the second webhook left
		t.Errorf("%d calls, want look and add, twice", n)
	}
}

func TestWebhooksThatFail(t *testing.T) {
	s := start(t)
	c := admin(t, s)
	hang := make(chan struct{})
	wrongs := map[string]http.HandlerFunc{
		"/hang": func(_ http.ResponseWriter, r *http.Request) {
			select {
			case <-hang:
			case <-r.Context().Done():
			}
		},
		"/close":   func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"/garbage": func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "\x00not a review") },
		"/error": func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "out of order", http.StatusInternalServerError)
		},
		"/silent": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}`)
		},
	}
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { wrongs[r.URL.Path](w, r) }))
	t.Cleanup(server.Close)
	t.Cleanup(func() { close(hang) }) // before the server is closed, which waits for its handlers
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	var hooks []admissionv1.ValidatingWebhook
	for path := range wrongs {
		for _, policy := range []admissionv1.FailurePolicyType{admissionv1.Fail, admissionv1.Ignore} {
			w := judge(strings.ToLower(string(policy))+"."+path[1:]+".example.com", admissionv1.WebhookClientConfig{URL: new(server.URL + path), CABundle: ca})
			w.FailurePolicy, w.TimeoutSeconds = new(policy), new(int32(1))
			w.MatchConditions[0].Expression = fmt.Sprintf("object.metadata.name == 'test-%s-%s'", strings.ToLower(string(policy)), path[1:])
			hooks = append(hooks, w)
		}
	}
	validate(t, c, hooks...)
	for path := range wrongs {
		mustPutMap(t, c, "test-ignore-"+path[1:])
		_, err := putMap(t, c, "test-fail-"+path[1:], metav1.CreateOptions{})
		refused(t, err, "failed calling webhook \"fail."+path[1:]+".example.com\"")
		if !apierrors.IsInternalError(err) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// A webhook may name a new object, here as upstream; nothing else of what identifies it.
func TestAWebhookCannotChangeWhatAnObjectIs(t *testing.T) {
	s := start(t)
	c := admin(t, s)
	patches := map[string]string{
		"test-kind":      `[{"op":"replace","path":"/kind","value":"Secret"}]`,
		"test-namespace": `[{"op":"replace","path":"/metadata/namespace","value":"kube-system"}]`,
		"test-garbage":   `[{"op":"add","path":"/data","value":{"a":[1]}}]`,
		"test-nowhere":   `[{"op":"replace","path":"/no/where","value":1}]`,
		"test-uid":       `[{"op":"add","path":"/metadata/uid","value":"mine"}]`,
	}
	h := serveHook(t, func(_ string, r *reviewv1.AdmissionRequest) *reviewv1.AdmissionResponse {
		return patching(patches[r.Name])
	})
	mutate(t, c, change("m.example.com", h.at("/")))
	for name := range patches {
		m, err := putMap(t, c, name, metav1.CreateOptions{})
		if err == nil && (m.Name != name || m.Namespace != "default" || m.Kind == "Secret") {
			t.Errorf("%s became %s/%s", name, m.Namespace, m.Name)
		}
		if err == nil && name != "test-uid" { // new objects get their UID afterwards
			t.Errorf("%s was admitted", name)
		}
		if apierrors.IsTooManyRequests(err) || apierrors.IsServiceUnavailable(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	m, err := c.CoreV1().ConfigMaps("default").Get(t.Context(), "test-uid", metav1.GetOptions{})
	if err != nil || m.UID == "mine" {
		t.Fatal(m.UID, err)
	}
	h.mu.Lock()
	h.answer = func(string, *reviewv1.AdmissionRequest) *reviewv1.AdmissionResponse {
		return patching(`[{"op":"replace","path":"/metadata/uid","value":"theirs"}]`)
	}
	h.mu.Unlock()
	m.Data = map[string]string{"a": "b"}
	_, err = c.CoreV1().ConfigMaps("default").Update(t.Context(), m, metav1.UpdateOptions{})
	if err == nil {
		t.Error("the UID of an object was changed")
	}
}

func TestWhatWebhooksAreNotAskedAbout(t *testing.T) {
	s := start(t)
	c := admin(t, s)
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "quiet", Labels: map[string]string{"quiet": "true"}}}
	if _, err := c.CoreV1().Namespaces().Create(t.Context(), ns, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	h := serveHook(t, func(string, *reviewv1.AdmissionRequest) *reviewv1.AdmissionResponse { return deny("asked") })
	w := judge("v.example.com", h.at("/"))
	w.NamespaceSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "quiet", Operator: metav1.LabelSelectorOpDoesNotExist}}}
	w.ObjectSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "small", Operator: metav1.LabelSelectorOpDoesNotExist}}}
	w.MatchConditions = append(w.MatchConditions, admissionv1.MatchCondition{Name: "not-mine", Expression: "request.userInfo.username != 'me'"})
	validate(t, c, w)

	mustPutMap(t, c, "other-name")
	mustPutMap(t, c, "test-small", "small")
	mustPutMap(t, clientFor(t, s.ClientConfig("me", "system:masters")), "test-mine")
	quiet := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "test-quiet"}}
	if _, err := c.CoreV1().ConfigMaps("quiet").Create(t.Context(), quiet, metav1.CreateOptions{}); err != nil {
		t.Error(err)
	}
	_, err := putMap(t, c, "test-asked", metav1.CreateOptions{})
	refused(t, err, "asked")
}

func TestDryRunCallsOnlyWebhooksWithoutSideEffects(t *testing.T) {
	s := start(t)
	c := admin(t, s)
	h := serveHook(t, func(string, *reviewv1.AdmissionRequest) *reviewv1.AdmissionResponse { return allow() })
	quiet := judge("quiet.example.com", h.at("/"))
	quiet.SideEffects = new(admissionv1.SideEffectClassNoneOnDryRun)
	validate(t, c, quiet)
	if _, err := putMap(t, c, "test-dry", metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
		t.Fatal(err)
	}
	if r := h.requests("test-dry"); len(r) != 1 || r[0].DryRun == nil || !*r[0].DryRun {
		t.Errorf("asked %v", r)
	}
	loud := &admissionv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "loud"}, Webhooks: []admissionv1.ValidatingWebhook{judge("loud.example.com", h.at("/"))}}
	loud.Webhooks[0].SideEffects = new(admissionv1.SideEffectClassSome)
	_, err := c.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(t.Context(), loud, metav1.CreateOptions{})
	refused(t, err, `webhooks[0].sideEffects: Unsupported value: "Some": supported values: "None", "NoneOnDryRun"`)
}

// told collects warnings.
type told struct {
	mu  sync.Mutex
	all []string
}

func (w *told) HandleWarningHeader(_ int, _ string, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all = append(w.all, text)
}

func (w *told) take() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := w.all
	w.all = nil
	return all
}

// warned returns a client that collects its warnings.
func warned(t *testing.T, s *Server) (kubernetes.Interface, *told) {
	t.Helper()
	w := &told{}
	cfg := s.ClientConfig("admin", "system:masters")
	cfg.WarningHandler = w
	return clientFor(t, cfg), w
}

func TestWarningsOfWebhooksReachTheClient(t *testing.T) {
	s := start(t)
	c, heard := warned(t, s)
	h := serveHook(t, func(string, *reviewv1.AdmissionRequest) *reviewv1.AdmissionResponse {
		r := allow()
		r.Warnings = []string{"mind the gap"}
		return r
	})
	validate(t, c, judge("v.example.com", h.at("/")))
	heard.take()
	mustPutMap(t, c, "test-a")
	if all := heard.take(); !slices.Equal(all, []string{"mind the gap"}) {
		t.Errorf("warnings %q", all)
	}
}

// A webhook that cannot be reached, and that fails closed, must not keep the server from starting: what
// serves the webhook runs on this cluster.
func TestADeadWebhookDoesNotKeepTheServerFromStarting(t *testing.T) {
	dir := t.TempDir()
	s, stop := run(t, dir)
	c := admin(t, s)
	h := serveHook(t, func(string, *reviewv1.AdmissionRequest) *reviewv1.AdmissionResponse { return allow() })
	w := judge("all.example.com", h.at("/"))
	w.MatchConditions = nil
	w.Rules[0].Operations, w.Rules[0].APIGroups, w.Rules[0].APIVersions, w.Rules[0].Resources = []admissionv1.OperationType{"*"}, []string{"*"}, []string{"*"}, []string{"*/*"}
	validate(t, c, w)
	h.Close()
	if err := c.CoreV1().Services("default").Delete(t.Context(), "kubernetes", metav1.DeleteOptions{}); err == nil {
		t.Error("the webhook, which is dead, has let a request pass")
	}
	stop()

	s = startIn(t, dir, func(c *Config) { c.AdvertiseAddress = net.IPv4(192, 0, 2, 7) }) // so that the server has to write
	_, err := putMap(t, admin(t, s), "test-a", metav1.CreateOptions{})
	refused(t, err, `failed calling webhook "all.example.com"`)
}

func TestOddWebhookConfigurationsAreRefused(t *testing.T) {
	s := start(t)
	c := admin(t, s)
	w := change("short", admissionv1.WebhookClientConfig{URL: new("http://user@example.com/?q#f")})
	w.Rules[0].Resources = []string{"pods/*", "pods/status"}
	w.Rules[0].Operations = []admissionv1.OperationType{"*", "CREATE"}
	w.TimeoutSeconds, w.AdmissionReviewVersions = new(int32(31)), []string{"v9"}
	w.MatchConditions = []admissionv1.MatchCondition{{Name: "bad name", Expression: "object."}, {Name: "n", Expression: "1"}}
	config := &admissionv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "x.static.k8s.io"}, Webhooks: []admissionv1.MutatingWebhook{w}}
	_, err := c.AdmissionregistrationV1().MutatingWebhookConfigurations().Create(t.Context(), config, metav1.CreateOptions{})
	for _, want := range []string{
		"metadata.name: Invalid value: \"x.static.k8s.io\": names ending with \".static.k8s.io\" are reserved",
		"webhooks[0].name: Invalid value: \"short\": should be a domain with at least three segments separated by dots",
		"webhooks[0].rules[0].operations: Invalid value: [\"*\",\"CREATE\"]: if '*' is present, must not specify other operations",
		"webhooks[0].rules[0].resources[1]: Invalid value: \"pods/status\": if 'pods/*' is present, must not specify pods/status",
		"webhooks[0].timeoutSeconds: Invalid value: 31: the timeout value must be between 1 and 30 seconds",
		"webhooks[0].clientConfig.url: Invalid value: \"http\": 'https' is the only allowed URL scheme",
		"webhooks[0].admissionReviewVersions: Invalid value: [\"v9\"]: must include at least one of v1, v1beta1",
		"webhooks[0].matchConditions[0].name: Invalid value: \"bad name\": name part must consist of",
		"webhooks[0].matchConditions[0].expression: Invalid value: \"object.\": compilation failed",
		"webhooks[0].matchConditions[1].expression: Invalid value: \"1\": must evaluate to bool",
	} {
		refused(t, err, want)
	}
}
