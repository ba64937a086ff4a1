package apiserver

import (
	"bytes"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"
)

// What is stored of these would change the server itself: they are only sent as dry runs.
var dangerous = map[string]bool{
	"validatingwebhookconfigurations": true, "mutatingwebhookconfigurations": true,
	"validatingadmissionpolicies": true, "validatingadmissionpolicybindings": true,
	"mutatingadmissionpolicies": true, "mutatingadmissionpolicybindings": true,
	"apiservices": true, "customresourcedefinitions": true, "flowschemas": true, "prioritylevelconfigurations": true,
	"resourcequotas": true, "limitranges": true, "clusterrolebindings": true,
}

// endpoint is a resource of the API, or a subresource.
type endpoint struct {
	gv         schema.GroupVersion
	resource   string // with the subresource
	kind       string
	namespaced bool
	verbs      []string
}

func (e endpoint) main() string { r, _, _ := strings.Cut(e.resource, "/"); return r }

func (e endpoint) path(name string) string {
	p := "/apis/" + e.gv.String()
	if e.gv.Group == "" {
		p = "/api/v1"
	}
	if e.namespaced {
		p += "/namespaces/default"
	}
	resource, sub, _ := strings.Cut(e.resource, "/")
	p += "/" + resource
	if name != "" {
		p += "/" + url.PathEscape(name)
	}
	if sub != "" {
		p += "/" + sub
	}
	return p
}

// things is what the custom resource definition of the table makes.
var things = endpoint{
	schema.GroupVersion{Group: "example.com", Version: "v1"}, "things", "Thing", true,
	[]string{"create", "get", "list", "update", "patch", "delete", "watch"},
}

// fuzzer sends requests that are nearly right.
type fuzzer struct {
	t         *testing.T
	r         *rand.Rand
	client    *http.Client
	host      string
	endpoints []endpoint
	seeds     map[string][]map[string]any // by kind
	all       []map[string]any
	tokens    []string // continue tokens that the server gave
	answers   map[int]int
}

// TestEndpointsTakeAnything sends requests that are nearly right to every endpoint, the same ones each time,
// or others for FUZZ_TIME (with SEED): none is answered by an internal error, and what was stored is
// accepted when it is put back.
func TestEndpointsTakeAnything(t *testing.T) {
	seed, going := uint64(1), func(sent int) bool { return sent < 1000 }
	if s := os.Getenv("FUZZ_TIME"); s != "" {
		d, err := time.ParseDuration(s)
		if err != nil {
			t.Fatal(err)
		}
		end := time.Now().Add(d)
		seed, going = uint64(time.Now().UnixNano()), func(int) bool { return time.Now().Before(end) }
	}
	if s := os.Getenv("SEED"); s != "" {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		seed = n
	}
	t.Logf("SEED=%d", seed)
	s := start(t, withPodGroups)
	f := newFuzzer(t, s, seed)
	sent := 0
	for ; going(sent); sent++ {
		f.step()
	}
	codes := slices.Sorted(maps.Keys(f.answers))
	for _, code := range codes {
		t.Logf("%d: %d", code, f.answers[code])
	}
	if f.answers[http.StatusOK]+f.answers[http.StatusCreated] == 0 || f.answers[http.StatusUnprocessableEntity]+f.answers[http.StatusBadRequest] == 0 {
		t.Errorf("%d requests were all accepted, or all refused: %v", sent, f.answers)
	}
}

func newFuzzer(t *testing.T, s *Server, seed uint64) *fuzzer {
	t.Helper()
	cfg := s.ClientConfig("admin", "system:masters")
	cfg.QPS = -1
	client, err := rest.HTTPClientFor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	f := &fuzzer{t: t, r: rand.New(rand.NewPCG(seed, 0)), client: client, host: cfg.Host, seeds: map[string][]map[string]any{}, answers: map[int]int{}}
	data, err := os.ReadFile("testdata/objects.yaml")
	if err != nil {
		t.Fatal(err)
	}
	request := base64.StdEncoding.EncodeToString(signingRequest(t, "a", "example.com/s", pkix.Name{CommonName: "x"}).Spec.Request)
	for doc := range strings.SplitSeq(string(data), "\n---\n") {
		obj := map[string]any{}
		if err := yaml.Unmarshal([]byte(strings.ReplaceAll(doc, "REQUEST", request)), &obj); err != nil {
			t.Fatal(err)
		}
		f.add(obj)
	}
	f.discover(s)
	f.createAll()
	for _, sub := range []string{"", "/status", "/scale"} {
		of := things
		of.resource += sub
		if sub != "" {
			of.verbs = []string{"get", "update", "patch"}
		}
		f.endpoints = append(f.endpoints, of)
	}
	return f
}

func (f *fuzzer) add(obj map[string]any) {
	kind, _ := obj["kind"].(string)
	f.seeds[kind] = append(f.seeds[kind], obj)
	f.all = append(f.all, obj)
}

// discover finds the endpoints. Those that connect to something are left out.
func (f *fuzzer) discover(s *Server) {
	f.t.Helper()
	_, lists, err := admin(f.t, s).Discovery().ServerGroupsAndResources()
	if err != nil {
		f.t.Fatal(err)
	}
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			f.t.Fatal(err)
		}
		if gv.Group == "metrics.k8s.io" {
			continue // no kubelet is here to ask
		}
		for _, r := range list.APIResources {
			if _, sub, _ := strings.Cut(r.Name, "/"); slices.Contains([]string{"proxy", "exec", "attach", "portforward", "log"}, sub) {
				continue
			}
			f.endpoints = append(f.endpoints, endpoint{gv, r.Name, r.Kind, r.Namespaced, r.Verbs})
		}
	}
	slices.SortFunc(f.endpoints, func(a, b endpoint) int {
		return strings.Compare(a.gv.String()+"/"+a.resource, b.gv.String()+"/"+b.resource)
	})
}

// createAll stores every object of the table, so that patches have something to work on.
func (f *fuzzer) createAll() {
	f.t.Helper()
	for _, obj := range f.all {
		e, ok := f.endpointOf(obj)
		if obj["kind"] == things.kind { // it appears in discovery a moment after its definition
			e, ok = things, true
		}
		if !ok {
			f.t.Fatalf("no endpoint takes %v %v", obj["apiVersion"], obj["kind"])
		}
		if !slices.Contains(e.verbs, "get") {
			continue // a review
		}
		var code int
		var answer []byte
		for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
			code, answer = f.send(http.MethodPost, e.path(""), "application/json", toJSON(obj))
			if code != http.StatusNotFound && code != http.StatusTooManyRequests && code != http.StatusServiceUnavailable {
				break
			}
		}
		if code != http.StatusCreated {
			f.t.Errorf("%v is not valid: %d %s", obj["kind"], code, answer)
			continue
		}
		if dangerous[e.resource] && e.resource != "customresourcedefinitions" {
			name, _, _ := unstructured.NestedString(obj, "metadata", "name")
			if code, answer := f.send(http.MethodDelete, e.path(name), "", nil); code != http.StatusOK {
				f.t.Fatalf("delete %v: %d %s", obj["kind"], code, answer)
			}
		}
		stored := map[string]any{}
		if err := json.Unmarshal(answer, &stored); err != nil {
			f.t.Fatal(err)
		}
		f.seeds[e.kind] = append(f.seeds[e.kind], stored)
	}
}

func (f *fuzzer) endpointOf(obj map[string]any) (endpoint, bool) {
	for _, e := range f.endpoints {
		if e.gv.String() == obj["apiVersion"] && e.kind == obj["kind"] && e.main() == e.resource {
			return e, true
		}
	}
	return endpoint{}, false
}

func toJSON(v any) []byte {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return data
}

// send returns the code and the answer. It fails the test if the server did not know what to say.
func (f *fuzzer) send(method, path, contentType string, body []byte, headers ...string) (int, []byte) {
	f.t.Helper()
	req, err := http.NewRequestWithContext(f.t.Context(), method, f.host+path, bytes.NewReader(body))
	if err != nil {
		return 0, nil // not a URL
	}
	req.Header.Set("Content-Type", contentType)
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	res, err := f.client.Do(req)
	if err != nil {
		f.t.Errorf("%s %s: %v\n%q", method, path, err, body)
		return 0, nil
	}
	answer, err := io.ReadAll(io.LimitReader(res.Body, 4<<20))
	err = errors.Join(err, res.Body.Close())
	if err != nil {
		f.t.Errorf("%s %s: %v\n%q", method, path, err, body)
	}
	f.answers[res.StatusCode]++
	if res.StatusCode >= 500 && !knownFault(req) && res.StatusCode != http.StatusServiceUnavailable && res.StatusCode != http.StatusGatewayTimeout {
		f.t.Errorf("%s %s (%s, %q): %d %s\n%q", method, path, contentType, headers, res.StatusCode, answer, body)
	}
	return res.StatusCode, answer
}

// knownFault reports whether the library answers a request with an internal error where we cannot reach it:
// custom resources, their definitions, and API services, when a dry run of server-side apply does not fit the
// schema, when a list is asked for where there is one object, and when a JSON patch takes away what a custom
// resource is.
func knownFault(req *http.Request) bool {
	if !slices.ContainsFunc([]string{"example.com", "apiextensions.k8s.io", "apiregistration.k8s.io"}, func(group string) bool {
		return strings.HasPrefix(req.URL.Path, "/apis/"+group+"/")
	}) {
		return false
	}
	apply := strings.HasPrefix(req.Header.Get("Content-Type"), "application/apply-patch") && req.URL.Query().Has("dryRun")
	list := strings.Contains(req.Header.Get("Accept"), "as=PartialObjectMetadataList")
	return apply || list || strings.HasPrefix(req.Header.Get("Content-Type"), "application/json-patch")
}

// step sends one request, and looks at what it left.
func (f *fuzzer) step() {
	e := pick(f.r, f.endpoints)
	verb := pick(f.r, e.verbs)
	name := f.nameFor(e)
	switch verb {
	case "create":
		f.create(e, name)
	case "update":
		obj := f.mutated(e)
		setName(obj, name)
		f.change(e, name, http.MethodPut, "application/json", toJSON(obj), url.Values{})
	case "patch":
		f.patch(e, name)
	case "get":
		f.send(http.MethodGet, e.path(name)+f.readOptions(), "", nil, "Accept", f.accept())
	case "list", "watch":
		f.list(e, verb)
	case "delete":
		if f.r.IntN(20) == 0 {
			f.remove(e, name)
		}
	case "deletecollection":
		f.send(http.MethodDelete, e.path("")+f.readOptions()+"&dryRun=All", "application/json", f.deleteOptions())
	}
}

func (f *fuzzer) create(e endpoint, name string) {
	obj := f.mutated(e)
	q := f.writeOptions(e)
	if _, sub, _ := strings.Cut(e.resource, "/"); sub == "" {
		if f.r.IntN(2) == 0 {
			setName(obj, "f-"+strconv.Itoa(f.r.IntN(50)))
		}
		name = ""
	}
	contentType, body := f.encoded(e, obj)
	code, answer := f.send(http.MethodPost, e.path(name)+"?"+q.Encode(), contentType, body)
	if code == http.StatusCreated && !q.Has("dryRun") && slices.Contains(e.verbs, "update") && e.resource == e.main() {
		f.putBack(e, answer, body)
	}
}

// change sends a write to an object that exists, and puts what it became back.
func (f *fuzzer) change(e endpoint, name, method, contentType string, body []byte, q url.Values) {
	maps.Copy(q, f.writeOptions(e))
	code, answer := f.send(method, e.path(name)+"?"+q.Encode(), contentType, body)
	if (code == http.StatusOK || code == http.StatusCreated) && !q.Has("dryRun") && slices.Contains(e.verbs, "update") {
		f.putBack(e, answer, body)
	}
}

func (f *fuzzer) patch(e endpoint, name string) {
	q := url.Values{}
	obj := f.mutated(e)
	switch f.r.IntN(5) {
	case 0:
		ops := []any{}
		for range 1 + f.r.IntN(3) {
			path, value := f.somewhere(obj)
			op := map[string]any{"op": pick(f.r, []string{"add", "replace", "remove", "test", "move", "copy", "odd"}), "path": path, "value": value}
			if f.r.IntN(3) == 0 {
				op["from"], _ = f.somewhere(obj)
			}
			ops = append(ops, op)
		}
		f.change(e, name, http.MethodPatch, "application/json-patch+json", toJSON(ops), q)
	case 1, 2:
		delete(obj, "metadata")
		contentType := pick(f.r, []string{"application/merge-patch+json", "application/strategic-merge-patch+json"})
		f.change(e, name, http.MethodPatch, contentType, toJSON(obj), q)
	default:
		setName(obj, name)
		if m, ok := obj["metadata"].(map[string]any); ok {
			delete(m, "managedFields")
			delete(m, "resourceVersion")
			delete(m, "uid")
		}
		q.Set("fieldManager", pick(f.r, []string{"a", "b", "c"}))
		q.Set("force", pick(f.r, []string{"true", "true", "false"}))
		f.change(e, name, http.MethodPatch, "application/apply-patch+yaml", toJSON(obj), q)
	}
}

// putBack sends what the server stored: it must accept it, unless somebody was faster.
func (f *fuzzer) putBack(e endpoint, stored, cause []byte) {
	f.t.Helper()
	obj := map[string]any{}
	if err := json.Unmarshal(stored, &obj); err != nil {
		f.t.Errorf("%s: an answer that is not JSON: %v", e.resource, err)
		return
	}
	name, _, _ := unstructured.NestedString(obj, "metadata", "name")
	if name == "" {
		return // a review, or a status
	}
	code, answer := f.send(http.MethodPut, e.path(name)+"?dryRun=All", "application/json", stored)
	switch code {
	case http.StatusOK, http.StatusConflict, http.StatusNotFound, http.StatusCreated:
	default:
		f.t.Errorf("PUT of %s as it was stored: %d %s\n%s\nafter %s", e.path(name), code, answer, stored, cause)
	}
}

func (f *fuzzer) list(e endpoint, verb string) {
	q := f.readOptions()
	if verb == "watch" {
		q += "&watch=1&timeoutSeconds=1&resourceVersion=999999999&limit=1"
		if f.r.IntN(20) != 0 {
			return // each takes a second
		}
	}
	_, answer := f.send(http.MethodGet, e.path("")+q, "", nil, "Accept", f.accept())
	var list metav1.PartialObjectMetadataList
	if json.Unmarshal(answer, &list) == nil && list.Continue != "" {
		f.tokens = append(f.tokens, list.Continue)
	}
}

func (f *fuzzer) remove(e endpoint, name string) {
	f.send(http.MethodDelete, e.path(name)+"?"+f.writeOptions(e).Encode(), "application/json", f.deleteOptions())
}

func (f *fuzzer) deleteOptions() []byte {
	obj := map[string]any{"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0, "propagationPolicy": "Background", "preconditions": map[string]any{"uid": "x"}}
	f.mutate(obj)
	return toJSON(obj)
}

func (f *fuzzer) accept() string {
	return pick(f.r, []string{
		"application/json", "application/json", "application/yaml", "application/vnd.kubernetes.protobuf", "application/cbor", "*/*", "text/html",
		"application/json;as=Table;v=v1;g=meta.k8s.io", "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io",
		"application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io", "application/json;as=Odd;v=v1;g=meta.k8s.io",
	})
}

func (f *fuzzer) writeOptions(e endpoint) url.Values {
	q := url.Values{}
	if dangerous[e.main()] || f.r.IntN(3) == 0 {
		q.Set("dryRun", "All")
	}
	if f.r.IntN(3) == 0 {
		q.Set("fieldValidation", pick(f.r, []string{"Strict", "Warn", "Ignore", "Odd"}))
	}
	if f.r.IntN(8) == 0 {
		q.Set("fieldManager", pick(f.r, []string{"x", "", "\x00", strings.Repeat("x", 200)}))
	}
	return q
}

func (f *fuzzer) readOptions() string {
	odd := []string{"", "0", "1", "-1", "x", "999999999999", "18446744073709551616", "\x00", "a=b", "a in (b,c)", "!a", "metadata.name=a", "metadata.name!=a,", "spec.nodeName=", "=", ",", "a==b==c", "eyJ", "Exact", "NotOlderThan", "true", `\,=\\`}
	odd = append(odd, f.tokens[max(0, len(f.tokens)-3):]...)
	q := url.Values{}
	for _, key := range []string{"limit", "continue", "resourceVersion", "resourceVersionMatch", "labelSelector", "fieldSelector", "sendInitialEvents", "allowWatchBookmarks", "includeObject", "pretty", "shardSelector"} {
		if f.r.IntN(5) == 0 {
			q.Set(key, pick(f.r, odd))
		}
	}
	if f.r.IntN(3) == 0 {
		q.Set("limit", "1")
	}
	return "?" + q.Encode()
}

func (f *fuzzer) nameFor(e endpoint) string {
	if f.r.IntN(4) == 0 {
		return "f-" + strconv.Itoa(f.r.IntN(50))
	}
	for _, obj := range f.all {
		if owner, ok := f.endpointOf(obj); ok && owner.gv.Group == e.gv.Group && owner.resource == e.main() {
			name, _, _ := unstructured.NestedString(obj, "metadata", "name")
			return name
		}
	}
	return "a"
}

func setName(obj map[string]any, name string) {
	if m, ok := obj["metadata"].(map[string]any); ok && name != "" {
		m["name"] = name
	}
}

// mutated returns an object for the endpoint that is nearly right.
func (f *fuzzer) mutated(e endpoint) map[string]any {
	seeds := f.seeds[e.kind]
	if e.resource != e.main() && f.r.IntN(2) == 0 { // a status is sent within its object
		if main, ok := f.mainOf(e); ok && len(f.seeds[main.kind]) > 0 {
			seeds = f.seeds[main.kind]
		}
	}
	obj := map[string]any{"apiVersion": e.gv.String(), "kind": e.kind, "metadata": map[string]any{"name": "a"}, "spec": map[string]any{"replicas": 1.0}}
	if len(seeds) > 0 {
		obj = runtime.DeepCopyJSON(normal(pick(f.r, seeds)))
	}
	if m, ok := obj["metadata"].(map[string]any); ok && f.r.IntN(4) != 0 {
		for _, key := range []string{"resourceVersion", "uid", "managedFields", "creationTimestamp"} {
			delete(m, key)
		}
	}
	for range f.r.IntN(4) {
		f.mutate(obj)
	}
	return obj
}

func (f *fuzzer) mainOf(e endpoint) (endpoint, bool) {
	for _, m := range f.endpoints {
		if m.gv == e.gv && m.resource == e.main() {
			return m, true
		}
	}
	return endpoint{}, false
}

// normal returns a copy with the types of JSON only.
func normal(obj map[string]any) map[string]any {
	out := map[string]any{}
	if err := json.Unmarshal(toJSON(obj), &out); err != nil {
		panic(err)
	}
	return out
}

// mutate changes one place of an object.
func (f *fuzzer) mutate(obj map[string]any) {
	var node any = obj
	for {
		switch v := node.(type) {
		case map[string]any:
			if len(v) == 0 {
				v[f.word()] = f.value()
				return
			}
			key := pick(f.r, slices.Sorted(maps.Keys(v)))
			if composite(v[key]) && f.r.IntN(6) != 0 {
				node = v[key]
				continue
			}
			switch f.r.IntN(5) {
			case 0:
				delete(v, key)
			case 1:
				v[f.word()] = v[key]
			default:
				v[key] = f.valueLike(v[key])
			}
			return
		case []any:
			if len(v) == 0 {
				return
			}
			i := f.r.IntN(len(v))
			if composite(v[i]) && f.r.IntN(6) != 0 {
				node = v[i]
				continue
			}
			v[i] = f.valueLike(v[i])
			return
		}
	}
}

func composite(v any) bool {
	switch v.(type) {
	case map[string]any, []any:
		return true
	}
	return false
}

func (f *fuzzer) word() string {
	return pick(f.r, []string{"a", "", "name", "status", "spec", "metadata", "a/b", "é", "conditions", "kubernetes.io/x", "\x00", "x-y"})
}

func (f *fuzzer) value() any {
	return pick(f.r, []any{
		nil, "", "a", "x/y", "../..", "\x00", "é\u202e", strings.Repeat("x", 300), strings.Repeat("a.", 130), -1.0, 0.0, 1.0, 1.5, 2147483648.0, -9e18, 1e19, 1e300,
		true, false, []any{}, map[string]any{}, []any{nil}, []any{map[string]any{}}, map[string]any{"": nil}, map[string]any{"a": "b"},
		"1Gi", "-1", "1e99", "10m", "0.000000000000001", "100%", "-5%", "*", "2026-01-01T00:00:00Z", "0001-01-01T00:00:00Z", "not a time", "10.0.0.0/8", "::/0", "::ffff:1.2.3.4", "1.2.3.04",
		"https://a:b@c/d?e#f", "object.x", "1 +", "a=b", "Always", "None", "*/0 * * * *", "TZ=UTC * * * * *",
	})
}

// valueLike returns an odd value, of the same type as often as not.
func (f *fuzzer) valueLike(old any) any {
	switch old := old.(type) {
	case []any:
		if len(old) > 0 && f.r.IntN(2) == 0 {
			return append(slices.Clone(old), runtime.DeepCopyJSONValue(old[0]))
		}
	case string, float64, bool:
		if f.r.IntN(2) == 0 {
			for range 20 {
				if v := f.value(); v != nil && fmt.Sprintf("%T", v) == fmt.Sprintf("%T", old) {
					return v
				}
			}
		}
	}
	return f.value()
}

// somewhere returns a JSON pointer into an object, and a value for it.
func (f *fuzzer) somewhere(obj map[string]any) (string, any) {
	path := ""
	var node any = obj
	for {
		switch v := node.(type) {
		case map[string]any:
			if len(v) == 0 || f.r.IntN(8) == 0 {
				return path + "/" + f.word(), f.value()
			}
			key := pick(f.r, slices.Sorted(maps.Keys(v)))
			path += "/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(key)
			node = v[key]
		case []any:
			if len(v) == 0 || f.r.IntN(8) == 0 {
				return path + "/" + pick(f.r, []string{"-", "0", "9", "-1", "x"}), f.value()
			}
			i := f.r.IntN(len(v))
			path += "/" + strconv.Itoa(i)
			node = v[i]
		default:
			return path, f.valueLike(v)
		}
	}
}

// encoded returns an object in one of the encodings, broken at times.
func (f *fuzzer) encoded(e endpoint, obj map[string]any) (string, []byte) {
	data := toJSON(obj)
	contentType := "application/json"
	switch f.r.IntN(6) {
	case 0:
		if y, err := yaml.JSONToYAML(data); err == nil {
			contentType, data = "application/yaml", y
		}
	case 1, 2:
		typed, err := clientgoscheme.Scheme.New(e.gv.WithKind(e.kind))
		if err != nil || json.Unmarshal(data, typed) != nil {
			break
		}
		if _, err := meta.Accessor(typed); err != nil {
			break
		}
		typed.GetObjectKind().SetGroupVersionKind(e.gv.WithKind(e.kind))
		var buf bytes.Buffer
		if protobuf.NewSerializer(clientgoscheme.Scheme, clientgoscheme.Scheme).Encode(typed, &buf) == nil {
			contentType, data = "application/vnd.kubernetes.protobuf", buf.Bytes()
		}
	case 3:
		var buf bytes.Buffer
		if cbor.NewSerializer(clientgoscheme.Scheme, clientgoscheme.Scheme).Encode(&unstructured.Unstructured{Object: obj}, &buf) == nil {
			contentType, data = "application/cbor", buf.Bytes()
		}
	}
	if f.r.IntN(3) == 0 && len(data) > 0 {
		data = slices.Clone(data)
		for range 1 + f.r.IntN(3) {
			i := f.r.IntN(len(data))
			switch f.r.IntN(3) {
			case 0:
				data[i] = byte(f.r.IntN(256))
			case 1:
				data = data[:i+1]
			default:
				data = slices.Insert(data, i, byte(f.r.IntN(256)))
			}
		}
	}
	return contentType, data
}

func pick[T any](r *rand.Rand, from []T) T { return from[r.IntN(len(from))] }
