package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"wherry.dev/test/bench/servers"
)

// server is one of the two.
type server struct {
	host   string
	client *http.Client
	etcd   string
}

func newServer(s *servers.Server) (*server, error) {
	client, err := rest.HTTPClientFor(s.Config)
	return &server{s.Config.Host, client, s.Etcd}, err
}

// request is what both are asked.
type request struct {
	method, path, contentType string
	accept                    string
	body                      any
}

// answer is what one of them says.
type answer struct {
	code     int
	body     any // of JSON, or text
	warnings []string
}

func (s *server) ask(ctx context.Context, r request) (_ answer, err error) {
	var body []byte
	if text, ok := r.body.(raw); ok {
		body = []byte(text)
	} else if r.body != nil {
		if body, err = json.Marshal(r.body); err != nil {
			return answer{}, err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, r.method, s.host+r.path, bytes.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	req.Header.Set("Content-Type", r.contentType)
	req.Header.Set("Accept", "application/json")
	if r.accept != "" {
		req.Header.Set("Accept", r.accept)
	}
	res, err := s.client.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer func() { err = errors.Join(err, res.Body.Close()) }()
	data, err := io.ReadAll(res.Body)
	if strings.HasPrefix(res.Header.Get("Content-Type"), "application/yaml") && err == nil {
		data, err = yaml.YAMLToJSON(data)
	}
	return answer{code: res.StatusCode, body: decoded(data), warnings: res.Header.Values("Warning")}, err
}

// decoded returns a body of JSON: a value, or all of several, as watches have them. Any other body is text.
func decoded(data []byte) any {
	var all []any
	for d := json.NewDecoder(bytes.NewReader(data)); ; {
		var v any
		if err := d.Decode(&v); err != nil {
			switch {
			case !errors.Is(err, io.EOF) || len(all) == 0:
				return string(data)
			case len(all) == 1:
				return all[0]
			}
			return all
		}
		all = append(all, v)
	}
}

// endpoint is a resource that is served.
type endpoint struct {
	group, version, resource, kind string
	namespaced                     bool
	verbs                          []string
}

func (e endpoint) path(name string) string {
	p := "/api/" + e.version
	if e.group != "" {
		p = "/apis/" + e.group + "/" + e.version
	}
	if e.namespaced {
		p += "/namespaces/default"
	}
	resource, sub, _ := strings.Cut(e.resource, "/")
	p += "/" + resource
	if name != "" {
		p += "/" + name
	}
	if sub != "" {
		p += "/" + sub
	}
	return p
}

// endpoints returns what a server serves, by discovery.
func (s *server) endpoints(ctx context.Context) ([]endpoint, error) {
	var out []endpoint
	groups, err := s.ask(ctx, request{method: http.MethodGet, path: "/apis"})
	if err != nil {
		return nil, err
	}
	paths := []string{"/api/v1"}
	for _, g := range items(groups.body, "groups") {
		for _, v := range items(g, "versions") {
			paths = append(paths, "/apis/"+text(v, "groupVersion"))
		}
	}
	for _, path := range paths {
		list, err := s.ask(ctx, request{method: http.MethodGet, path: path})
		if err != nil {
			return nil, err
		}
		group, version, found := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(path, "/apis/"), "/api/"), "/")
		if !found {
			group, version = "", group
		}
		for _, r := range items(list.body, "resources") {
			e := endpoint{group: group, version: version, resource: text(r, "name"), kind: text(r, "kind")}
			e.namespaced, _, _ = unstructured.NestedBool(r, "namespaced")
			e.verbs, _, _ = unstructured.NestedStringSlice(r, "verbs")
			out = append(out, e)
		}
	}
	return out, nil
}

func items(of any, field string) (out []map[string]any) {
	m, _ := of.(map[string]any)
	list, _ := m[field].([]any)
	for _, v := range list {
		if v, ok := v.(map[string]any); ok {
			out = append(out, v)
		}
	}
	return out
}

func text(of map[string]any, field string) string {
	s, _ := of[field].(string)
	return s
}

// both asks both and notes what differs. It returns our answer.
func (m *match) both(ctx context.Context, about string, r request) (answer, error) {
	return m.each(ctx, about, r, r)
}

// each asks each server its own, where the same request cannot go to both.
func (m *match) each(ctx context.Context, about string, toUs, toThem request) (answer, error) {
	m.asked.Add(1)
	ours, err := m.ours.ask(ctx, toUs)
	if err != nil {
		ours = answer{body: err.Error()}
	}
	theirs, err := m.theirs.ask(ctx, toThem)
	if err != nil {
		theirs = answer{body: err.Error()}
	}
	if ctx.Err() != nil {
		return answer{}, context.Cause(ctx)
	}
	for _, d := range compare(ours, theirs, m.words) {
		m.note(about, toUs, d)
	}
	return ours, nil
}

// compareAll asks everything.
func (m *match) compareAll(ctx context.Context) error {
	served, err := m.ours.endpoints(ctx)
	if err != nil {
		return err
	}
	objects, err := readSeeds()
	if err != nil {
		return err
	}
	examples, err := m.readExamples()
	if err != nil {
		return err
	}
	if len(m.kinds) == 0 {
		if err := m.discovery(ctx); err != nil {
			return err
		}
	}
	var bases []base
	for _, obj := range objects {
		e, found := endpointOf(served, obj)
		if !found && isCustom(obj) {
			if served, err = m.rediscover(ctx, obj); err != nil {
				return err
			}
			e, found = endpointOf(served, obj)
		}
		if !found {
			continue // its feature is off by default
		}
		b := base{endpoint: e, object: obj, example: examples[text(obj, "apiVersion")+"/"+e.kind]}
		if slices.Contains(e.verbs, "get") {
			if err := m.create(ctx, &b); err != nil {
				return err
			}
		}
		bases = append(bases, b)
	}
	if len(m.kinds) == 0 && (len(m.parts) == 0 || slices.Contains(m.parts, "keys")) {
		if err := m.keys(ctx); err != nil {
			return err
		}
	}
	if len(m.kinds) == 0 && (len(m.parts) == 0 || slices.Contains(m.parts, "calls")) {
		if err := m.calls(ctx); err != nil {
			return err
		}
	}
	bases = slices.DeleteFunc(bases, func(b base) bool { return len(m.kinds) > 0 && !slices.Contains(m.kinds, b.kind) })
	err = servers.Each(ctx, atOnce, len(bases), func(ctx context.Context, i int) error {
		start, b := time.Now(), bases[i]
		defer func() { fmt.Fprintln(os.Stderr, b.kind, time.Since(start).Round(time.Second)) }()
		for _, p := range parts {
			if len(m.parts) > 0 && !slices.Contains(m.parts, p.name) || b.ours == nil && p.name != "variants" {
				continue
			}
			if err := p.play(m, ctx, b, served); err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil && (len(m.parts) == 0 || slices.Contains(m.parts, "data")) {
		err = errors.Join(
			m.data(ctx, "upstream's server reads ours", bases, m.ours, servers.UpstreamAt(m.upstream, m.ours.etcd, "--allow-privileged")),
			m.data(ctx, "ours reads upstream's", bases, m.theirs, servers.Wherry(m.wherry, "--etcd-servers", m.theirs.etcd)))
	}
	return err
}

// parts are the sorts of requests. Only the first sends objects that are not stored.
var parts = []struct {
	name string
	play func(*match, context.Context, base, []endpoint) error
}{{"variants", (*match).vary}, {"reads", (*match).reads}, {"patches", (*match).patches}}

// isCustom reports whether an object is of a kind that the seeds define.
func isCustom(obj map[string]any) bool {
	return strings.HasPrefix(text(obj, "apiVersion"), "example.com/")
}

// rediscover waits until both servers serve the kind of an object, and returns what ours serves.
func (m *match) rediscover(ctx context.Context, obj map[string]any) (ours []endpoint, err error) {
	err = soon(ctx, func(ctx context.Context) (_ bool, err error) {
		if ours, err = m.ours.endpoints(ctx); err != nil {
			return false, err
		}
		theirs, err := m.theirs.endpoints(ctx)
		_, here := endpointOf(ours, obj)
		_, there := endpointOf(theirs, obj)
		return here && there, err
	})
	if err != nil {
		return nil, fmt.Errorf("%s is not served by both: %w", text(obj, "kind"), err)
	}
	return ours, nil
}

// soon asks again and again until it is done, for half a minute: servers tell nobody when a kind begins to be served.
func soon(ctx context.Context, done func(context.Context) (bool, error)) error {
	return wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, 30*time.Second, true, done)
}

// atOnce is how many kinds are looked at, at once.
const atOnce = 4

func endpointOf(served []endpoint, obj map[string]any) (endpoint, bool) {
	for _, e := range served {
		gv := e.version
		if e.group != "" {
			gv = e.group + "/" + e.version
		}
		if gv == obj["apiVersion"] && e.kind == obj["kind"] && !strings.Contains(e.resource, "/") {
			return e, true
		}
	}
	return endpoint{}, false
}

// base is a valid object, and what each server has stored of it.
type base struct {
	endpoint
	object, example map[string]any
	ours, theirs    map[string]any // nil if it is not stored
}

// create stores an object. What its kind lacks at first, until it is served everywhere, is waited for.
func (m *match) create(ctx context.Context, b *base) error {
	r := request{method: http.MethodPost, path: b.path(""), contentType: "application/json", body: b.object}
	var ours, theirs answer
	err := soon(ctx, func(ctx context.Context) (_ bool, err error) {
		if ours, err = m.ours.ask(ctx, r); err != nil {
			return false, err
		}
		theirs, err = m.theirs.ask(ctx, r)
		return ours.code != http.StatusNotFound && theirs.code != http.StatusNotFound, err
	})
	if err != nil {
		return fmt.Errorf("%s is not served by both (%d, %d): %w", b.kind, ours.code, theirs.code, err)
	}
	m.asked.Add(1)
	for _, d := range compare(ours, theirs, m.words) {
		m.note("create "+b.kind, r, d)
	}
	if ours.code == http.StatusCreated && theirs.code == http.StatusCreated {
		b.ours, _ = ours.body.(map[string]any)
		b.theirs, _ = theirs.body.(map[string]any)
	} else {
		fmt.Printf("%s %v is not valid: ours %d %s\n    upstream's %d %s\n", b.kind, b.object["metadata"], ours.code, said(ours), theirs.code, said(theirs))
	}
	return nil
}

// vary sends an object with one change at a time: new ones, updates and statuses.
func (m *match) vary(ctx context.Context, b base, served []endpoint) error {
	const dry = "?dryRun=All"
	fresh := unstructured.Unstructured{Object: b.object}
	fresh = *fresh.DeepCopy()
	if b.ours != nil && b.kind != "Event" {
		fresh.SetName(fresh.GetName() + "x")
	}
	for v := range variants(fresh.Object, b.example, b.kind == "ConfigMap") {
		if _, err := m.both(ctx, "create "+b.kind+" "+v.about, request{http.MethodPost, b.path("") + dry, "application/json", "", v.object}); err != nil {
			return err
		}
	}
	if b.ours == nil {
		return nil
	}
	for _, sub := range []string{"", "/status"} {
		e := b.endpoint
		e.resource += sub
		if !slices.ContainsFunc(served, func(s endpoint) bool {
			return s.resource == e.resource && s.group == e.group && s.version == e.version && slices.Contains(s.verbs, "update")
		}) {
			continue
		}
		name := text(b.ours["metadata"].(map[string]any), "name")
		// Each is asked to change its own object. Both have the same fields, unless that was told already.
		next, stop := iter.Pull(variants(without(b.theirs, sub == ""), b.example, b.kind == "ConfigMap"))
		defer stop()
		for v := range variants(without(b.ours, sub == ""), b.example, b.kind == "ConfigMap") {
			same, ok := next()
			if !ok || v.about != same.about {
				break
			}
			path := e.path(name) + dry
			if _, err := m.each(ctx, "update "+b.kind+sub+" "+v.about,
				request{http.MethodPut, path, "application/json", "", withIdentity(v.object, b.ours)},
				request{http.MethodPut, path, "application/json", "", withIdentity(same.object, b.theirs)}); err != nil {
				return err
			}
		}
	}
	return nil
}

// without returns what can be changed of an object: its status, or all else.
func without(stored map[string]any, status bool) map[string]any {
	u := unstructured.Unstructured{Object: stored}
	u = *u.DeepCopy()
	u.SetManagedFields(nil)
	u.SetResourceVersion("")
	u.SetUID("")
	unstructured.RemoveNestedField(u.Object, "metadata", "creationTimestamp")
	if status {
		delete(u.Object, "status")
	} else if u.Object["status"] == nil {
		u.Object["status"] = map[string]any{}
	}
	return u.Object
}

// withIdentity returns a variant as that object which a server has stored.
func withIdentity(variant, stored map[string]any) map[string]any {
	u, s := unstructured.Unstructured{Object: variant}, unstructured.Unstructured{Object: stored}
	u = *u.DeepCopy()
	if _, ok := u.Object["metadata"].(map[string]any); !ok {
		return u.Object
	}
	u.SetResourceVersion(s.GetResourceVersion())
	u.SetUID(s.GetUID())
	return u.Object
}
