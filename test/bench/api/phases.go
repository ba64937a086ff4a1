package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	reviewv1 "k8s.io/api/admission/v1"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	v1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	extensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"wherry.dev/test/bench/servers"
)

const clients = 16

// kind is a sort of API server.
type kind struct {
	name  string
	start servers.Start
}

// bench measures one server.
type bench struct {
	o       options
	kind    kind
	dir     string
	server  *servers.Server
	client  kubernetes.Interface
	figures []figure
}

// measure starts a server, measures it, and removes all of it.
func (k kind) measure(ctx context.Context, o options) (_ []figure, err error) {
	dir, err := os.MkdirTemp(o.dir, "wherry-bench-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	b := &bench{o: o, kind: k, dir: dir}
	if err := servers.Prepare(dir); err != nil {
		return nil, err
	}
	began := time.Now()
	if err := b.start(ctx); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.server.Stop()) }()
	b.add("first start to ready, ms", "", ms(time.Since(began)))
	for _, p := range phases {
		if !slices.Contains(o.phases, p.name) {
			continue
		}
		if err := p.run(b, ctx); err != nil {
			return nil, fmt.Errorf("%s: %w", p.name, err)
		}
	}
	return b.figures, nil
}

// phases are what can be measured, in this order. Lists are of what throughput has written.
var phases = []struct {
	name string
	run  func(*bench, context.Context) error
}{
	{"idle", (*bench).idle},
	{"latency", (*bench).latency},
	{"watchers", (*bench).watchers},
	{"policy", (*bench).policy},
	{"webhooks", (*bench).webhooks},
	{"throughput", (*bench).throughput},
	{"lists", (*bench).lists},
	{"restart", (*bench).restart},
}

func phaseNames() []string {
	var names []string
	for _, p := range phases {
		names = append(names, p.name)
	}
	return names
}

func (b *bench) start(ctx context.Context) (err error) {
	if b.server, err = b.kind.start(ctx, b.dir); err != nil {
		return err
	}
	b.client, err = kubernetes.NewForConfig(b.server.Config)
	return err
}

func (b *bench) add(name, target string, value float64) {
	b.figures = append(b.figures, figure{name, target, value})
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func pod(name string) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": "bench"}},
		Spec: v1.PodSpec{Containers: []v1.Container{{
			Name: "c", Image: "registry.example/some/image:1", Env: []v1.EnvVar{{Name: "A", Value: "b"}}, Ports: []v1.ContainerPort{{ContainerPort: 80}},
		}}},
	}
}

// idle looks at a server that nobody uses.
func (b *bench) idle(ctx context.Context) error {
	const wait = 10 * time.Second
	time.Sleep(wait / 2) // what a start still does
	before, err := b.server.CPU()
	if err != nil {
		return err
	}
	select {
	case <-time.After(wait):
	case <-ctx.Done():
		return ctx.Err()
	}
	after, err := b.server.CPU()
	if err != nil {
		return err
	}
	memory, err := b.server.Memory()
	b.add("idle, % of a core", "", 100*float64(after-before)/float64(wait))
	b.add("idle, MiB", "", memory)
	return err
}

// latency creates pods one after another, beside a watch.
func (b *bench) latency(ctx context.Context) error {
	arrived, stop, err := b.watch(ctx)
	if err != nil {
		return err
	}
	defer stop()
	var creates, events []float64
	for i := range b.o.samples {
		name, began := fmt.Sprint("one-", i), time.Now()
		if _, err := b.client.CoreV1().Pods("default").Create(ctx, pod(name), metav1.CreateOptions{}); err != nil {
			return err
		}
		creates = append(creates, ms(time.Since(began)))
		select {
		case at := <-arrived:
			events = append(events, ms(at.Sub(began)))
		case <-time.After(time.Minute):
			return errors.New("a watch lacks an event")
		}
	}
	b.add("create a pod, p50 ms", "≤ 2", quantile(creates, .5))
	b.add("create a pod, p99 ms", "", quantile(creates, .99))
	b.add("request → event of a watch, p50 ms", "", quantile(events, .5))
	late := make([]float64, len(events))
	for i := range events {
		late[i] = max(0, events[i]-creates[i])
	}
	b.add("answer → event of a watch, p50 ms", "≤ 1.5", quantile(late, .5))
	return nil
}

// watch returns when new pods were told.
func (b *bench) watch(ctx context.Context) (arrived chan time.Time, stop func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	list, err := b.client.CoreV1().Pods("default").List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		cancel()
		return nil, nil, err
	}
	w, err := b.client.CoreV1().Pods("default").Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err != nil {
		cancel()
		return nil, nil, err
	}
	arrived = make(chan time.Time, b.o.samples+1)
	go func() {
		for range w.ResultChan() {
			arrived <- time.Now()
		}
	}()
	return arrived, func() { w.Stop(); cancel() }, nil
}

// watchers creates pods while many watch.
func (b *bench) watchers(ctx context.Context) error {
	const pods = 100
	var all []chan time.Time
	for range b.o.watchers {
		arrived, stop, err := b.watch(ctx)
		if err != nil {
			return err
		}
		defer stop()
		all = append(all, arrived)
	}
	var late []float64
	for i := range pods {
		if _, err := b.client.CoreV1().Pods("default").Create(ctx, pod(fmt.Sprint("seen-", i)), metav1.CreateOptions{}); err != nil {
			return err
		}
		answered := time.Now()
		for _, arrived := range all {
			select {
			case at := <-arrived:
				late = append(late, max(0, ms(at.Sub(answered))))
			case <-time.After(time.Minute):
				return errors.New("one of many watches lacks an event")
			}
		}
	}
	b.add(fmt.Sprintf("answer → event of %d watches, p99 ms", b.o.watchers), "≤ 25", quantile(late, .99))
	return nil
}

// configMaps returns how long it takes to create one, at the median.
func (b *bench) configMaps(ctx context.Context, prefix string) (float64, error) {
	var took []float64
	for i := range b.o.samples {
		began := time.Now()
		m := &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(prefix, "-", i)}, Data: map[string]string{"a": "b"}}
		if _, err := b.client.CoreV1().ConfigMaps("default").Create(ctx, m, metav1.CreateOptions{}); err != nil {
			return 0, err
		}
		took = append(took, ms(time.Since(began)))
	}
	return quantile(took, .5), nil
}

func (b *bench) policy(ctx context.Context) error {
	before, err := b.configMaps(ctx, "plain")
	if err != nil {
		return err
	}
	rules := &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: onConfigMaps()}}}
	api := b.client.AdmissionregistrationV1()
	_, err = api.ValidatingAdmissionPolicies().Create(ctx, &admissionv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "bench"},
		Spec: admissionv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: rules, Validations: []admissionv1.Validation{{Expression: `!has(object.data) || object.data.all(k, k != "forbidden")`}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	_, err = api.ValidatingAdmissionPolicyBindings().Create(ctx, &admissionv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "bench"},
		Spec:       admissionv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: "bench", ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny}},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	forbidden := &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "forbidden-"}, Data: map[string]string{"forbidden": ""}}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		_, err := b.client.CoreV1().ConfigMaps("default").Create(ctx, forbidden, metav1.CreateOptions{})
		if apierrors.IsInvalid(err) {
			break
		}
		if err != nil || time.Now().After(deadline) {
			return fmt.Errorf("the policy does not hold: %w", err)
		}
	}
	after, err := b.configMaps(ctx, "policy")
	if err != nil {
		return err
	}
	b.add("a CEL policy adds, p50 ms", "≤ 0.2", after-before)
	return errors.Join(
		api.ValidatingAdmissionPolicyBindings().Delete(ctx, "bench", metav1.DeleteOptions{}),
		api.ValidatingAdmissionPolicies().Delete(ctx, "bench", metav1.DeleteOptions{}),
	)
}

func onConfigMaps() admissionv1.RuleWithOperations {
	return admissionv1.RuleWithOperations{
		Operations: []admissionv1.OperationType{admissionv1.Create},
		Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}},
	}
}

// webhooks are one that mutates and one that validates, by URL.
func (b *bench) webhooks(ctx context.Context) error {
	var mutations, judgements atomic.Int64
	hook := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		review := &reviewv1.AdmissionReview{}
		if err := json.NewDecoder(r.Body).Decode(review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		review.Response = &reviewv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
		if r.URL.Path == "/mutate" {
			mutations.Add(1)
			review.Response.Patch = []byte(`[{"op":"add","path":"/metadata/labels","value":{"a":"b"}}]`)
			review.Response.PatchType = new(reviewv1.PatchTypeJSONPatch)
		} else {
			judgements.Add(1)
		}
		review.Request = nil
		if err := json.NewEncoder(w).Encode(review); err != nil {
			panic(http.ErrAbortHandler)
		}
	}))
	hook.TLS = &tls.Config{NextProtos: []string{"h2", "http/1.1"}, MinVersion: tls.VersionTLS12}
	hook.EnableHTTP2 = true
	hook.StartTLS()
	defer hook.Close()
	at := func(path string) admissionv1.WebhookClientConfig {
		return admissionv1.WebhookClientConfig{
			URL: new(hook.URL + path), CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: hook.Certificate().Raw}),
		}
	}
	before, err := b.configMaps(ctx, "unhooked")
	if err != nil {
		return err
	}
	rules, none := []admissionv1.RuleWithOperations{onConfigMaps()}, new(admissionv1.SideEffectClassNone)
	api := b.client.AdmissionregistrationV1()
	_, err = api.MutatingWebhookConfigurations().Create(ctx, &admissionv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "bench"},
		Webhooks: []admissionv1.MutatingWebhook{{
			Name: "m.bench.example", ClientConfig: at("/mutate"), Rules: rules, SideEffects: none, AdmissionReviewVersions: []string{"v1"},
		}},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	_, err = api.ValidatingWebhookConfigurations().Create(ctx, &admissionv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "bench"},
		Webhooks: []admissionv1.ValidatingWebhook{{
			Name: "v.bench.example", ClientConfig: at("/judge"), Rules: rules, SideEffects: none, AdmissionReviewVersions: []string{"v1"},
		}},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	for i := 0; mutations.Load() == 0 || judgements.Load() == 0; i++ {
		m := &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("first-", i)}}
		if _, err := b.client.CoreV1().ConfigMaps("default").Create(ctx, m, metav1.CreateOptions{}); err != nil {
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
	after, err := b.configMaps(ctx, "hooked")
	if err != nil {
		return err
	}
	b.add("a mutating and a validating webhook add, p50 ms", "≤ 3", after-before)
	return errors.Join(
		api.MutatingWebhookConfigurations().Delete(ctx, "bench", metav1.DeleteOptions{}),
		api.ValidatingWebhookConfigurations().Delete(ctx, "bench", metav1.DeleteOptions{}),
	)
}

// each runs f for n objects with several clients, each with a connection of its own, and returns how many a
// second it did.
func (b *bench) each(ctx context.Context, n int, f func(context.Context, kubernetes.Interface, int) error) (float64, error) {
	var next atomic.Int64
	var running sync.WaitGroup
	failed := make([]error, clients)
	began := time.Now()
	for c := range clients {
		cfg := rest.CopyConfig(b.server.Config)
		cfg.Dial = nil
		client, err := kubernetes.NewForConfig(cfg)
		if err != nil {
			return 0, err
		}
		running.Go(func() {
			for i := int(next.Add(1)) - 1; i < n && failed[c] == nil; i = int(next.Add(1)) - 1 {
				failed[c] = f(ctx, client, i)
			}
		})
	}
	running.Wait()
	return float64(n) / time.Since(began).Seconds(), errors.Join(failed...)
}

func (b *bench) throughput(ctx context.Context) error {
	before, err := b.server.CPU()
	if err != nil {
		return err
	}
	rate, err := b.each(ctx, b.o.objects, func(ctx context.Context, c kubernetes.Interface, i int) error {
		_, err := c.CoreV1().Pods("default").Create(ctx, pod(fmt.Sprint("many-", i)), metav1.CreateOptions{})
		return err
	})
	if err != nil {
		return err
	}
	after, err := b.server.CPU()
	if err != nil {
		return err
	}
	b.add("creates a second, 16 clients", "≥ 2,500", rate)
	b.add("CPU of a create, ms", "", ms(after-before)/float64(b.o.objects))
	rate, err = b.each(ctx, b.o.objects, func(ctx context.Context, c kubernetes.Interface, i int) error {
		patch := fmt.Appendf(nil, `{"status":{"phase":"Running","podIP":"10.0.%d.%d","conditions":[{"type":"Ready","status":"True"}]}}`, i/250%250, i%250+1)
		_, err := c.CoreV1().Pods("default").Patch(ctx, fmt.Sprint("many-", i), types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
		return err
	})
	b.add("status patches a second, 16 clients", "≥ 2,000", rate)
	return err
}

func (b *bench) lists(ctx context.Context) error {
	for _, read := range [][2]string{{"consistent", ""}, {"resourceVersion=0", "0"}} {
		name, version := read[0], read[1]
		var took []float64
		for range 5 {
			began := time.Now()
			if _, err := b.client.CoreV1().Pods("default").List(ctx, metav1.ListOptions{ResourceVersion: version}); err != nil {
				return err
			}
			took = append(took, ms(time.Since(began)))
		}
		b.add(fmt.Sprintf("list of %d pods, %s, p50 ms", b.o.objects, name), "≤ 150", quantile(took, .5))
	}
	memory, err := b.server.Memory()
	b.add("afterwards, MiB", "", memory)
	return err
}

// restart stops the server and starts it with many definitions.
func (b *bench) restart(ctx context.Context) error {
	cfg := rest.CopyConfig(b.server.Config)
	cfg.ContentConfig = rest.ContentConfig{} // custom resource definitions have no protobuf at every server
	api, err := extensions.NewForConfig(cfg)
	if err != nil {
		return err
	}
	for i := range b.o.definitions {
		if _, err := api.ApiextensionsV1().CustomResourceDefinitions().Create(ctx, definition(i), metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	if err := b.client.CoreV1().Pods("default").DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}, metav1.ListOptions{}); err != nil {
		return err
	}
	if err := b.server.Stop(); err != nil {
		return err
	}
	began := time.Now()
	if err := b.start(ctx); err != nil {
		return err
	}
	b.add(fmt.Sprintf("restart to ready, %d definitions, ms", b.o.definitions), "≤ 500", ms(time.Since(began)))
	return nil
}

func definition(i int) *apiextensionsv1.CustomResourceDefinition {
	plural := fmt.Sprintf("things%d", i)
	text := apiextensionsv1.JSONSchemaProps{Type: "string", Description: "Some words about what this is for."}
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: plural + ".bench.example"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "bench.example", Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: plural, Singular: fmt.Sprintf("thing%d", i), Kind: fmt.Sprintf("Thing%d", i), ListKind: fmt.Sprintf("Thing%dList", i)},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v1", Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
					Type: "object",
					Properties: map[string]apiextensionsv1.JSONSchemaProps{
						"spec": {Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{"a": text, "b": text, "c": {
							Type: "array", Items: &apiextensionsv1.JSONSchemaPropsOrArray{Schema: &text},
						}}},
						"status": {Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{"phase": text}},
					},
				}},
			}},
		},
	}
}
