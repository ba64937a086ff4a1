package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// The four sorts of patches.
const (
	jsonPatch = "application/json-patch+json"
	merge     = "application/merge-patch+json"
	strategic = "application/strategic-merge-patch+json"
	apply     = "application/apply-patch+yaml"
)

// raw is a body that is sent as it is.
type raw string

// jsonPatches are right and wrong for every kind.
var jsonPatches = []string{
	``, `null`, `{}`, `[]`, `[`, `"x"`, `[{}]`, `[null]`, `[{"op":"x","path":"/metadata/labels"}]`, `[{"op":"remove","path":"/metadata/none"}]`,
	`[{"op":"remove","path":"metadata"}]`, `[{"op":"remove","path":""}]`, `[{"op":"remove","path":"/metadata/labels/app"}]`, `[{"op":"remove","path":"/metadata"}]`,
	`[{"op":"add","path":"/metadata/labels","value":{"a":"b"}}]`, `[{"op":"add","path":"/metadata/labels","value":{"a":"b"}},{"op":"test","path":"/metadata/labels/a","value":"b"}]`,
	`[{"op":"add","path":"/metadata/labels","value":{"a":"b"}},{"op":"test","path":"/metadata/labels/a","value":"c"}]`,
	`[{"op":"test","path":"/metadata/name","value":"none"}]`, `[{"op":"test","path":"/metadata/none","value":null}]`, `[{"op":"replace","path":"/metadata/none","value":"x"}]`,
	`[{"op":"replace","path":"/metadata/name","value":"other"}]`, `[{"op":"replace","path":"/metadata/namespace","value":"other"}]`, `[{"op":"replace","path":"/metadata/uid","value":"other"}]`,
	`[{"op":"replace","path":"/metadata/resourceVersion","value":"1"}]`, `[{"op":"replace","path":"/metadata/resourceVersion","value":"x"}]`, `[{"op":"remove","path":"/metadata/resourceVersion"}]`,
	`[{"op":"replace","path":"/kind","value":"Other"}]`, `[{"op":"replace","path":"/apiVersion","value":"v9"}]`, `[{"op":"remove","path":"/kind"}]`, `[{"op":"add","path":"/unknown","value":1}]`,
	`[{"op":"add","path":"/metadata/unknown","value":1}]`, `[{"op":"add","path":"/metadata/labels","value":7}]`, `[{"op":"add","path":"/metadata/labels","value":{"a":7}}]`,
	`[{"op":"add","path":"/metadata/labels","value":{"-":"b"}}]`, `[{"op":"copy","from":"/metadata/name","path":"/metadata/generateName"}]`, `[{"op":"move","from":"/metadata/none","path":"/metadata/labels"}]`,
	`[{"op":"move","from":"/metadata/labels","path":"/metadata/annotations"}]`, `[{"op":"add","path":"/metadata/finalizers","value":["a.b/c"]},{"op":"add","path":"/metadata/finalizers/-","value":"d.e/f"}]`,
	`[{"op":"add","path":"/metadata/finalizers","value":["a.b/c"]},{"op":"add","path":"/metadata/finalizers/9","value":"d.e/f"}]`,
	`[{"op":"add","path":"/metadata/finalizers","value":["a.b/c"]},{"op":"remove","path":"/metadata/finalizers/-1"}]`,
	`[{"op":"add","path":"/metadata/annotations","value":{"a~b/c":"d"}}]`, `[{"op":"add","path":"/metadata/annotations","value":{}},{"op":"add","path":"/metadata/annotations/a~1b","value":"d"}]`,
	`[{"op":"replace","path":"","value":{}}]`, `[{"op":"add","path":"/metadata/labels","value":{"a":"b"},"extra":1}]`, `[{"op":"add","path":"/metadata/labels"}]`, `[{"path":"/metadata/labels","value":1}]`,
	`[{"op":"add","path":"/metadata/ownerReferences","value":[{"apiVersion":"v1","kind":"Pod","name":"x","uid":"y"}]}]`, `[{"op":"add","path":"/metadata/ownerReferences","value":[{"kind":"Pod"}]}]`,
	`[{"op":"add","path":"/metadata/deletionTimestamp","value":"2026-01-01T00:00:00Z"}]`, `[{"op":"replace","path":"/metadata/creationTimestamp","value":"2026-01-01T00:00:00Z"}]`,
	`[{"op":"replace","path":"/metadata/creationTimestamp","value":"x"}]`, `[{"op":"add","path":"/metadata/generation","value":7}]`, `[{"op":"remove","path":"/spec"}]`, `[{"op":"remove","path":"/status"}]`,
	`[{"op":"replace","path":"/metadata/managedFields","value":[]}]`, `[{"op":"replace","path":"/metadata/managedFields","value":[{}]}]`,
	`[{"op":"add","path":"/metadata/managedFields","value":[{"manager":"m","operation":"x","apiVersion":"v1","fieldsType":"FieldsV1","fieldsV1":{}}]}]`,
}

// merges are for merge patches and strategic ones.
var merges = []string{
	``, `null`, `{}`, `[]`, `7`, `{`, `{"metadata":null}`, `{"metadata":{"labels":null}}`, `{"metadata":{"labels":{"app":null,"a":"b"}}}`, `{"metadata":{"labels":{"a":7}}}`,
	`{"metadata":{"labels":["a"]}}`, `{"metadata":{"name":"other"}}`, `{"metadata":{"namespace":"other"}}`, `{"metadata":{"uid":"other"}}`, `{"metadata":{"resourceVersion":"1"}}`,
	`{"metadata":{"resourceVersion":"x"}}`, `{"metadata":{"resourceVersion":null}}`, `{"kind":"Other"}`, `{"kind":null}`, `{"apiVersion":"v9"}`, `{"apiVersion":null}`, `{"unknown":{"a":1}}`,
	`{"metadata":{"unknown":1}}`, `{"metadata":{"labels":{"a":"1","a":"2"}}}`, `{"metadata":{"annotations":{"a":"b"}}}`, `{"metadata":{"annotations":{"bad key":"b"}}}`,
	`{"metadata":{"finalizers":["a.b/c"]}}`, `{"metadata":{"finalizers":null}}`, `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Pod","name":"x","uid":"y"}]}}`,
	`{"metadata":{"ownerReferences":[{"$patch":"delete","uid":"y"}]}}`, `{"metadata":{"ownerReferences":[{"$patch":"x","uid":"y"}]}}`, `{"metadata":{"$patch":"replace","name":"x"}}`,
	`{"$patch":"delete"}`, `{"$patch":"replace"}`, `{"$retainKeys":["metadata"]}`, `{"metadata":{"$retainKeys":["name"],"name":"x"}}`, `{"metadata":{"$deleteFromPrimitiveList/finalizers":["a.b/c"]}}`,
	`{"metadata":{"$setElementOrder/finalizers":["a.b/c"],"finalizers":["a.b/c"]}}`, `{"metadata":{"$setElementOrder/finalizers":["x"],"finalizers":["a.b/c"]}}`, `{"spec":null}`, `{"spec":{}}`, `{"spec":7}`,
	`{"spec":{"unknown":1}}`, `{"status":null}`, `{"status":{"unknown":1}}`, `{"metadata":{"deletionTimestamp":"2026-01-01T00:00:00Z"}}`, `{"metadata":{"creationTimestamp":null}}`,
	`{"metadata":{"managedFields":[]}}`, `{"metadata":{"managedFields":[{}]}}`, `{"metadata":{"managedFields":null}}`, `{"metadata":{"generation":7}}`, `{"metadata":{"labels":{"a":null}}}`,
}

// patches sends every sort of patch. None of it stays.
func (m *match) patches(ctx context.Context, b base, served []endpoint) error {
	name := text(b.ours["metadata"].(map[string]any), "name")
	for _, sub := range []string{"", "/status", "/scale"} {
		e := b.endpoint
		e.resource += sub
		if !slices.ContainsFunc(served, func(s endpoint) bool {
			return s.resource == e.resource && s.group == e.group && s.version == e.version && slices.Contains(s.verbs, "patch")
		}) {
			continue
		}
		path := e.path(name) + "?dryRun=All"
		send := func(contentType, query string, body raw) error {
			sort := strings.TrimSuffix(strings.TrimPrefix(contentType, "application/"), "-patch+json")
			_, err := m.both(ctx, fmt.Sprintf("patch %s%s %s %s %s", b.kind, sub, sort, query, body), request{http.MethodPatch, path + query, contentType, "", body})
			return err
		}
		for _, p := range jsonPatches {
			if err := send(jsonPatch, "", raw(p)); err != nil {
				return err
			}
		}
		for _, sort := range []string{merge, strategic} {
			for _, p := range append(slices.Clone(merges), b.lists()...) {
				if err := send(sort, "", raw(p)); err != nil {
					return err
				}
			}
		}
		for _, query := range []string{"&fieldValidation=Strict", "&fieldValidation=Ignore", "&fieldValidation=x", "&force=true", "&fieldManager=m", "&fieldManager=" + strings.Repeat("m", 200)} {
			for _, sort := range []string{jsonPatch, merge, strategic} {
				body := raw(`{"metadata":{"unknown":1,"labels":{"a":"1","a":"2"}}}`)
				if sort == jsonPatch {
					body = `[{"op":"add","path":"/metadata/unknown","value":1}]`
				}
				if err := send(sort, query, body); err != nil {
					return err
				}
			}
		}
		for _, sort := range []string{"", "application/json", "application/x-patch", "text/plain", "application/merge-patch+json; charset=utf-8", "application/apply-patch+cbor", "application/json-patch", "application/yaml"} {
			if err := send(sort, "&fieldManager=m", `{"metadata":{"labels":{"a":"b"}}}`); err != nil {
				return err
			}
		}
		if err := m.applies(ctx, b, e, sub, name); err != nil {
			return err
		}
	}
	return nil
}

// lists returns patches of each list of objects in the spec: by its merge keys, whatever they are, and with directives.
func (b base) lists() (out []string) {
	var visit func(v any, wrap func(string) string)
	visit = func(v any, wrap func(string) string) {
		switch v := v.(type) {
		case map[string]any:
			for key, child := range v {
				visit(child, func(in string) string { return wrap(fmt.Sprintf(`{%q:%s}`, key, in)) })
				l, ok := child.([]any)
				if !ok || len(l) == 0 {
					continue
				}
				first, _ := json.Marshal(l[0])
				for _, in := range []string{`[]`, `null`, `[{}]`, `[null]`, `[7]`, `{}`, `[{"$patch":"replace"}]`, `[{"$patch":"delete"}]`, `[{"name":"none","$patch":"delete"}]`, fmt.Sprintf(`[%s]`, first)} {
					out = append(out, wrap(fmt.Sprintf(`{%q:%s}`, key, in)))
				}
				out = append(out,
					wrap(fmt.Sprintf(`{"$setElementOrder/%s":[%s],%[1]q:[%[2]s]}`, key, first)),
					wrap(fmt.Sprintf(`{"$setElementOrder/%s":[{"name":"none"}]}`, key)),
					wrap(fmt.Sprintf(`{"$deleteFromPrimitiveList/%s":[%s]}`, key, first)))
			}
		case []any:
			if len(v) > 0 {
				if m, ok := v[0].(map[string]any); ok && text(m, "name") != "" && len(out) < 150 {
					visit(m, func(in string) string {
						return wrap(fmt.Sprintf(`[{"name":%q,%s]`, text(m, "name"), strings.TrimPrefix(in, "{")))
					})
				}
			}
		}
	}
	for _, key := range []string{"spec", "webhooks", "rules", "subsets", "endpoints", "subjects", "allowedTopologies"} {
		if v, ok := b.ours[key]; ok {
			visit(map[string]any{key: v}, func(in string) string { return in })
		}
	}
	slices.Sort(out)
	return out
}

// applies sends server-side applies: of nothing, of all, of one field, with conflicts, of what is wrong.
func (m *match) applies(ctx context.Context, b base, e endpoint, sub, name string) error {
	head := fmt.Sprintf(`"apiVersion":%q,"kind":%q`, b.object["apiVersion"], e.kindOf(b))
	meta := fmt.Sprintf(`"metadata":{"name":%q`, name)
	type application struct{ query, body string }
	all := []application{
		{"", ``}, {"", `{}`}, {"", `null`}, {"", `[]`}, {"", `{`}, {"", `{` + head + `}`}, {"", `{` + head + `,` + meta + `}}`}, {"", `{` + meta + `}}`},
		{"", `{"apiVersion":"v9","kind":"` + b.kind + `",` + meta + `}}`}, {"", `{"apiVersion":"` + text(b.object, "apiVersion") + `","kind":"Other",` + meta + `}}`},
		{"", `{` + head + `,"metadata":{"name":"other"}}`}, {"", `{` + head + `,` + meta + `,"namespace":"other"}}`}, {"", `{` + head + `,` + meta + `,"uid":"other"}}`},
		{"", `{` + head + `,` + meta + `,"resourceVersion":"1"}}`}, {"", `{` + head + `,` + meta + `,"labels":{"a":"b"}}}`}, {"", `{` + head + `,` + meta + `,"labels":{"app":"other"}}}`},
		{"&force=true", `{` + head + `,` + meta + `,"labels":{"app":"other"}}}`}, {"", `{` + head + `,` + meta + `,"labels":{"a":7}}}`}, {"", `{` + head + `,` + meta + `,"labels":null}}`},
		{"", `{` + head + `,` + meta + `,"labels":{"a":"1","a":"2"}}}`}, {"", `{` + head + `,` + meta + `,"unknown":1}}`}, {"", `{` + head + `,` + meta + `},"unknown":1}`},
		{"&fieldValidation=Strict", `{` + head + `,` + meta + `},"unknown":1}`}, {"&fieldValidation=Ignore", `{` + head + `,` + meta + `},"unknown":1}`},
		{"", `{` + head + `,` + meta + `,"managedFields":[]}}`}, {"", `{` + head + `,` + meta + `,"managedFields":[{}]}}`}, {"", `{` + head + `,` + meta + `,"finalizers":["a.b/c","a.b/c"]}}`},
		{"", `{` + head + `,` + meta + `,"ownerReferences":[{"uid":"x"},{"uid":"x"}]}}`}, {"", `{` + head + `,` + meta + `},"spec":null}`}, {"", `{` + head + `,` + meta + `},"spec":{}}`},
		{"", `{` + head + `,` + meta + `},"spec":{"unknown":1}}`}, {"", `{` + head + `,` + meta + `},"status":{"unknown":1}}`}, {"", `{` + head + `,` + meta + `},"spec":{"replicas":7}}`},
		{"", "a: b: c"}, {"&force=x", `{` + head + `,` + meta + `}}`},
	}
	fresh := `{` + head + `,"metadata":{"name":"brand-new"}}`
	if sub == "" {
		u := unstructured.Unstructured{Object: b.object}
		u = *u.DeepCopy()
		u.SetName(name)
		whole, err := json.Marshal(u.Object)
		if err != nil {
			return err
		}
		all = append(all, application{"", string(whole)}, application{"&force=true", string(whole)})
		u.SetName("brand-new")
		if whole, err = json.Marshal(u.Object); err != nil {
			return err
		}
		fresh = string(whole)
	}
	for _, a := range all {
		path := e.path(name) + "?dryRun=All&fieldManager=applier" + a.query
		if _, err := m.both(ctx, "apply "+b.kind+sub+" "+a.query+" "+a.body, request{http.MethodPatch, path, apply, "", raw(a.body)}); err != nil {
			return err
		}
	}
	for _, path := range []string{e.path(name) + "?dryRun=All", e.path(name) + "?dryRun=All&fieldManager="} {
		if _, err := m.both(ctx, "apply "+b.kind+sub+" without a manager", request{http.MethodPatch, path, apply, "", raw(`{` + head + `,` + meta + `}}`)}); err != nil {
			return err
		}
	}
	_, err := m.both(ctx, "apply "+b.kind+sub+" brand-new", request{http.MethodPatch, e.path("brand-new") + "?dryRun=All&fieldManager=applier", apply, "", raw(fresh)})
	return err
}

// kindOf returns the kind of an endpoint's objects, which is another one for scale.
func (e endpoint) kindOf(b base) string {
	if strings.HasSuffix(e.resource, "/scale") {
		return "Scale"
	}
	return b.kind
}
