package apiserver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	cbor "k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/informers"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
)

// TestNobodyChangesWhatIsShared sends valid requests of all sorts to all kinds at once, REQUESTS of them, made from SEED.
// Objects are decoded once and shared by the watch cache, the watches, admission and the answers, in the version in
// which they are stored: the race detector would see anybody who writes into one (make race runs this with a
// million). So would the comparisons at the end: what the cache holds is what a new server reads from etcd, and
// informers of this process have seen the same versions.
func TestNobodyChangesWhatIsShared(t *testing.T) {
	featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.CBORServingAndStorage, true)
	requests := int64(3000)
	if n, err := strconv.ParseInt(os.Getenv("REQUESTS"), 10, 64); err == nil {
		requests = n
	}
	seed := uint64(3)
	if n, err := strconv.ParseUint(os.Getenv("SEED"), 10, 64); err == nil {
		seed = n
	}
	dir := t.TempDir()
	s, stop := run(t, dir, withPodGroups)
	makeAccount(t, s)
	f := newFuzzer(t, s, 1)
	f.endpoints = slices.DeleteFunc(f.endpoints, func(e endpoint) bool {
		return dangerous[e.main()] || !slices.Contains(e.verbs, "update") || !slices.Contains(e.verbs, "get") ||
			e.resource != e.main() && !strings.HasSuffix(e.resource, "/status") && !strings.HasSuffix(e.resource, "/scale")
	})
	applyPolicies(t, s)
	inside := followAll(t, s, f.endpoints)
	var left atomic.Int64
	left.Store(requests)
	began := time.Now()
	clients := make([]*mixer, 16)
	var running sync.WaitGroup
	for i := range clients {
		m := &mixer{fuzzer: f, r: rand.New(rand.NewPCG(uint64(i), seed)), answers: map[int]int{}}
		clients[i] = m
		running.Go(func() {
			for left.Add(-1) >= 0 && !t.Failed() {
				m.step(t.Context())
			}
		})
	}
	running.Wait()
	answers := map[int]int{}
	for _, m := range clients {
		for code, n := range m.answers {
			answers[code] += n
		}
		if m.err != nil {
			t.Error(m.err)
		}
	}
	t.Logf("%d requests in %v: %v", requests, time.Since(began).Round(time.Millisecond), answers)
	if answers[http.StatusOK] == 0 || answers[http.StatusCreated] == 0 || answers[http.StatusNotAcceptable] != 0 {
		t.Errorf("not everything was done: %v", answers)
	}
	cached := f.stored(s)
	inside.have(cached)
	inside.stop()
	stop()
	s, stop = run(t, dir, withPodGroups)
	defer stop()
	read := f.stored(s)
	if len(cached) == 0 {
		t.Error("nothing is left to compare")
	}
	for path, was := range cached {
		if is := read[path]; is != was {
			t.Errorf("%s: the cache has\n%s\nand etcd\n%s", path, was, is)
		}
	}
}

// mixer is one client.
type mixer struct {
	*fuzzer
	r       *rand.Rand
	answers map[int]int
	err     error
}

func (m *mixer) send(ctx context.Context, method, path, contentType, accept string, body []byte) []byte {
	req, err := http.NewRequestWithContext(ctx, method, m.host+path, strings.NewReader(string(body)))
	if err != nil {
		m.err = errors.Join(m.err, err)
		return nil
	}
	req.Header.Set("Content-Type", contentType)
	req.Header.Set("Accept", accept)
	res, err := m.client.Do(req)
	if err != nil {
		m.err = errors.Join(m.err, fmt.Errorf("%s %s: %w", method, path, err))
		return nil
	}
	answer, err := io.ReadAll(res.Body)
	if err = errors.Join(err, res.Body.Close()); err != nil {
		m.err = errors.Join(m.err, fmt.Errorf("%s %s: %w", method, path, err))
	}
	m.answers[res.StatusCode]++
	if res.StatusCode >= http.StatusInternalServerError {
		m.err = errors.Join(m.err, fmt.Errorf("%s %s: %d %s", method, path, res.StatusCode, answer))
	}
	return answer
}

func (m *mixer) accept() string {
	return pick(m.r, []string{
		"application/json", "application/json", "application/json;as=Table;v=v1;g=meta.k8s.io,application/json", "application/vnd.kubernetes.protobuf,application/json",
		"application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io,application/json",
		"application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;v=v1;g=meta.k8s.io,application/json",
		"application/vnd.kubernetes.protobuf;as=Table;v=v1;g=meta.k8s.io,application/json", "application/cbor,application/json",
	})
}

// acceptList is accept for a list: a list of partial objects has a kind of its own.
func (m *mixer) acceptList() string {
	return strings.ReplaceAll(m.accept(), "as=PartialObjectMetadata;", "as=PartialObjectMetadataList;")
}

// encoded returns an object in one of the encodings that clients send.
func (m *mixer) encoded(obj map[string]any) (contentType string, body []byte) {
	switch m.r.IntN(3) {
	case 0:
		whole := map[string]any{} // with integers, where encoding/json has floating-point numbers
		if utiljson.Unmarshal(toJSON(obj), &whole) != nil {
			break
		}
		if data, err := cbor.Marshal(whole); err == nil {
			return "application/cbor", data
		}
	case 1: // not of users' kinds
		gvk := schema.FromAPIVersionAndKind(fmt.Sprint(obj["apiVersion"]), fmt.Sprint(obj["kind"]))
		typed, err := clientgoscheme.Scheme.New(gvk)
		if err == nil && runtime.DefaultUnstructuredConverter.FromUnstructured(obj, typed) == nil {
			var buf bytes.Buffer
			if protobuf.NewSerializer(clientgoscheme.Scheme, clientgoscheme.Scheme).Encode(typed, &buf) == nil {
				return "application/vnd.kubernetes.protobuf", buf.Bytes()
			}
		}
	}
	return "application/json", toJSON(obj)
}

func (m *mixer) step(ctx context.Context) {
	e := pick(m.r, m.endpoints)
	main := e
	main.resource = e.main()
	name := "m-" + strconv.Itoa(m.r.IntN(8))
	dry := pick(m.r, []string{"", "", "", "", "&dryRun=All"})
	label := fmt.Sprintf(`{"metadata":{"labels":{"l%d":"%d"},"annotations":{"a":"%d"}}}`, m.r.IntN(3), m.r.IntN(100), m.r.IntN(100))
	switch m.r.IntN(15) {
	case 0, 1:
		m.send(ctx, http.MethodGet, e.path(name), "", m.accept(), nil)
	case 2, 3:
		from := pick(m.r, []string{"?resourceVersion=0", "?resourceVersion=0&labelSelector=l1", "?limit=3", "?", "?labelSelector=l2%3D7"})
		m.send(ctx, http.MethodGet, main.path("")+from, "", m.acceptList(), nil)
	case 4, 5:
		if obj := m.fresh(e, name); obj != nil && slices.Contains(e.verbs, "create") {
			contentType, body := m.encoded(obj)
			m.send(ctx, http.MethodPost, main.path("")+"?"+dry, contentType, m.accept(), body)
		}
	case 6, 7:
		m.update(ctx, e, name, dry)
	case 8:
		m.send(ctx, http.MethodPatch, e.path(name)+"?"+dry, "application/merge-patch+json", m.accept(), []byte(label))
	case 9:
		m.send(ctx, http.MethodPatch, e.path(name)+"?"+dry, "application/json-patch+json", m.accept(), []byte(`[{"op":"add","path":"/metadata/annotations","value":{"j":"1"}}]`))
	case 10:
		if obj := m.fresh(e, name); obj != nil && slices.Contains(e.verbs, "create") {
			q := "?force=true&fieldManager=" + pick(m.r, []string{"one", "two"}) + dry
			m.send(ctx, http.MethodPatch, e.path(name)+q, "application/apply-patch+yaml", "application/json", toJSON(obj))
		}
	case 11:
		if m.r.IntN(3) == 0 {
			m.send(ctx, http.MethodDelete, main.path(name)+"?"+dry, "application/json", "application/json", []byte(`{"gracePeriodSeconds":0}`))
		}
	case 12: // for a second, beside the other clients' requests
		if m.r.IntN(10) == 0 {
			from := pick(m.r, []string{"&resourceVersion=0", "&labelSelector=l1", "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"})
			m.send(ctx, http.MethodGet, main.path("")+"?watch=1&timeoutSeconds=1"+from, "", m.accept(), nil)
		}
	case 13: // users' kinds have none of these
		m.send(ctx, http.MethodPatch, e.path(name)+"?"+dry, "application/strategic-merge-patch+json", m.accept(), []byte(label))
	case 14:
		if slices.Contains(main.verbs, "deletecollection") && m.r.IntN(20) == 0 {
			m.send(ctx, http.MethodDelete, main.path("")+"?labelSelector=l2%3D7"+dry, "application/json", m.acceptList(), []byte(`{"gracePeriodSeconds":0}`))
		}
	}
}

// fresh returns a valid object of the kind, or nil if the table has none.
func (m *mixer) fresh(e endpoint, name string) map[string]any {
	for _, seed := range m.all {
		if seed["kind"] != e.kind || seed["apiVersion"] != e.gv.String() {
			continue
		}
		obj := runtime.DeepCopyJSON(normal(seed))
		setName(obj, name)
		return obj
	}
	return nil
}

func (m *mixer) update(ctx context.Context, e endpoint, name, dry string) {
	obj := map[string]any{}
	if err := json.Unmarshal(m.send(ctx, http.MethodGet, e.path(name), "", "application/json", nil), &obj); err != nil || obj["kind"] != e.kind {
		return
	}
	meta, ok := obj["metadata"].(map[string]any)
	if !ok {
		return
	}
	meta["annotations"] = map[string]any{"u": strconv.Itoa(m.r.IntN(1000))}
	contentType, body := m.encoded(obj)
	m.send(ctx, http.MethodPut, e.path(name)+"?"+dry, contentType, m.accept(), body)
}

// stored returns the objects that clients made, by path.
func (f *fuzzer) stored(s *Server) map[string]string {
	f.t.Helper()
	cfg := s.ClientConfig("admin", "system:masters")
	client, err := rest.HTTPClientFor(cfg)
	if err != nil {
		f.t.Fatal(err)
	}
	list := func(e endpoint) (items []json.RawMessage) {
		f.t.Helper()
		eventually(f.t, func() error { // kinds of users are served a moment after the start
			req, err := http.NewRequestWithContext(f.t.Context(), http.MethodGet, cfg.Host+e.path(""), nil)
			if err != nil {
				return err
			}
			res, err := client.Do(req)
			if err != nil {
				return err
			}
			defer func() { _ = res.Body.Close() }()
			var list struct{ Items []json.RawMessage }
			if err := json.NewDecoder(res.Body).Decode(&list); err != nil || res.StatusCode != http.StatusOK {
				return fmt.Errorf("%s: %d, %w", e.path(""), res.StatusCode, err)
			}
			items = list.Items
			return nil
		})
		return items
	}
	out := map[string]string{}
	for _, e := range f.endpoints {
		if e.resource != e.main() {
			continue
		}
		for _, item := range list(e) {
			var o struct{ Metadata struct{ Name string } }
			if err := json.Unmarshal(item, &o); err != nil {
				f.t.Fatal(err)
			}
			if strings.HasPrefix(o.Metadata.Name, "m-") {
				out[e.path(o.Metadata.Name)] = string(item)
			}
		}
	}
	return out
}

// applyPolicies has policies see, and change, every object: they get it in the version that they ask for, which
// shares what it points to with the one that is stored.
func applyPolicies(t *testing.T, s *Server) {
	t.Helper()
	api, ignore := admin(t, s).AdmissionregistrationV1(), admissionv1.Ignore
	everything := &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{
		RuleWithOperations: admissionv1.RuleWithOperations{
			Operations: []admissionv1.OperationType{admissionv1.Create, admissionv1.Update},
			Rule:       admissionv1.Rule{APIGroups: []string{"*"}, APIVersions: []string{"*"}, Resources: []string{"*"}},
		},
	}}}
	name := metav1.ObjectMeta{Name: "mixed"}
	mutating := &admissionv1.MutatingAdmissionPolicy{ObjectMeta: name, Spec: admissionv1.MutatingAdmissionPolicySpec{
		MatchConstraints: everything, FailurePolicy: &ignore, ReinvocationPolicy: admissionv1.IfNeededReinvocationPolicy,
		Mutations: []admissionv1.Mutation{{PatchType: admissionv1.PatchTypeJSONPatch, JSONPatch: &admissionv1.JSONPatch{
			Expression: `has(object.metadata.annotations) ? [JSONPatch{op: "add", path: "/metadata/annotations/policy", value: "seen"}] : []`,
		}}},
	}}
	validating := &admissionv1.ValidatingAdmissionPolicy{ObjectMeta: name, Spec: admissionv1.ValidatingAdmissionPolicySpec{
		MatchConstraints: everything, FailurePolicy: &ignore,
		Validations: []admissionv1.Validation{{Expression: "oldObject == null || oldObject.metadata.name == object.metadata.name"}},
	}}
	_, errs := api.MutatingAdmissionPolicies().Create(t.Context(), mutating, metav1.CreateOptions{})
	_, err := api.MutatingAdmissionPolicyBindings().Create(t.Context(), &admissionv1.MutatingAdmissionPolicyBinding{
		ObjectMeta: name, Spec: admissionv1.MutatingAdmissionPolicyBindingSpec{PolicyName: name.Name},
	}, metav1.CreateOptions{})
	errs = errors.Join(errs, err)
	_, err = api.ValidatingAdmissionPolicies().Create(t.Context(), validating, metav1.CreateOptions{})
	errs = errors.Join(errs, err)
	_, err = api.ValidatingAdmissionPolicyBindings().Create(t.Context(), &admissionv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: name, Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: name.Name, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny}},
	}, metav1.CreateOptions{})
	if errs = errors.Join(errs, err); errs != nil {
		t.Fatal(errs)
	}
}

// insiders are informers of this process, as the controllers and the scheduler have, of all kinds that have a type.
type insiders struct {
	t       *testing.T
	factory informers.SharedInformerFactory
	cancel  context.CancelFunc
	by      map[string]cache.SharedIndexInformer // by the path of the list
}

func followAll(t *testing.T, s *Server, endpoints []endpoint) *insiders {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	i := &insiders{t, informers.NewSharedInformerFactory(admin(t, s), 0), cancel, map[string]cache.SharedIndexInformer{}}
	for _, e := range endpoints {
		if e.resource != e.main() {
			continue
		}
		generic, err := i.factory.ForResource(e.gv.WithResource(e.resource))
		if err == nil { // else it is of a user's kind
			i.by[e.path("")] = generic.Informer()
		}
	}
	i.factory.Start(ctx.Done())
	i.factory.WaitForCacheSync(t.Context().Done())
	if len(i.by) < 20 {
		t.Errorf("only %d kinds are followed", len(i.by))
	}
	return i
}

// have waits until the informers have the objects, by path, in the same versions.
func (i *insiders) have(stored map[string]string) {
	i.t.Helper()
	eventually(i.t, func() error {
		for path, text := range stored {
			var o struct {
				Metadata struct{ Name, Namespace, ResourceVersion string }
			}
			if err := json.Unmarshal([]byte(text), &o); err != nil {
				return err
			}
			informer := i.by[strings.TrimSuffix(path, "/"+o.Metadata.Name)]
			if informer == nil {
				continue
			}
			key := cache.NewObjectName(o.Metadata.Namespace, o.Metadata.Name).String()
			got, ok, err := informer.GetStore().GetByKey(key)
			if err != nil || !ok {
				return fmt.Errorf("%s: no informer has it: %w", path, err)
			}
			if have, err := meta.Accessor(got); err != nil || have.GetResourceVersion() != o.Metadata.ResourceVersion {
				return fmt.Errorf("%s: an informer has version %s of %s, %w", path, have.GetResourceVersion(), o.Metadata.ResourceVersion, err)
			}
		}
		return nil
	})
}

func (i *insiders) stop() {
	i.cancel()
	i.factory.Shutdown()
}
