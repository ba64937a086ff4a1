package main

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// forms are the forms in which objects are asked for.
var forms = []string{
	"application/json;as=Table;v=v1;g=meta.k8s.io",
	"application/json;as=Table;v=v1beta1;g=meta.k8s.io",
	"application/json;as=Table;v=v2;g=meta.k8s.io,application/json",
	"application/json;as=Table;v=v2;g=meta.k8s.io",
	"application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io",
	"application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io",
	"application/json;as=Other;v=v1;g=meta.k8s.io",
	"application/json;as=Table;v=v1;g=example.com",
	"application/yaml", "text/html", "*/*", "application/*", "application/json;q=0.1, text/plain", "application/json;pretty=1",
	"application/json;stream=watch", "application/vnd.kubernetes.protobuf;as=Table;v=v1;g=meta.k8s.io",
}

// listings are what lists are asked for, beside the selectors.
var listings = []string{
	"limit=1", "limit=-1", "limit=x", "limit=1&continue=x", "continue=x", "continue=eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6MSwic3RhcnQiOiJhIn0",
	"continue=eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6MSwic3RhcnQiOiIuLi8uLi9hIn0", "resourceVersion=0&continue=x", "resourceVersion=0", "resourceVersion=x",
	"resourceVersion=-1", "resourceVersion=1&resourceVersionMatch=Exact", "resourceVersion=0&resourceVersionMatch=Exact",
	"resourceVersion=0&resourceVersionMatch=NotOlderThan", "resourceVersionMatch=Exact", "resourceVersionMatch=NotOlderThan",
	"resourceVersion=0&resourceVersionMatch=Other", "resourceVersion=0&resourceVersionMatch=NotOlderThan&limit=1",
	"sendInitialEvents=true", "sendInitialEvents=false", "sendInitialEvents=x", "allowWatchBookmarks=x", "timeout=x",
	"watch=x", "watch=1&sendInitialEvents=true", "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan",
	"watch=1&sendInitialEvents=true&resourceVersionMatch=Exact&allowWatchBookmarks=true", "watch=1&sendInitialEvents=false",
	"watch=1&resourceVersionMatch=NotOlderThan", "watch=1&limit=1&resourceVersion=x", "watch=1&resourceVersion=1x", "pretty=true", "pretty=x",
	"shardSelector=x", "unknown=1",
}

var labelSelectors = []string{
	"a=b", "app", "!app", "app in (web,x)", "app notin (web)", "app in ()", "app in", "a==b", "a!=b", "a>1", "a>x", "a<1,b>2", "a=b,", ",", "=b", "-a=b", "a=-b",
	"a=b=c", "a/b/c=d", "a b", "(a)", "a in (b", "a=" + strings.Repeat("b", 64), "é=b", "app in (,)", "x/=b", "A.b/c", "a>01", "a=b,a=c",
}

// fieldSelectors are those which every kind, or some, or none has.
var fieldSelectors = []string{
	"metadata.name=NAME", "metadata.name!=NAME", "metadata.name==NAME", "metadata.namespace=default", "metadata.namespace!=default", "metadata.name=",
	"metadata.name", "metadata.name=NAME,metadata.name=x", "metadata.name=a\\,b", "metadata.name=a\\", "metadata.name=a=b", "metadata.name=a,b", "=x", ",",
	"metadata.uid=x", "metadata.labels=x", "spec.nodeName=", "spec.nodeName=n", "spec.nodeName!=n", "spec.restartPolicy=Always", "spec.schedulerName=default-scheduler",
	"spec.serviceAccountName=default", "spec.hostNetwork=true", "spec.hostNetwork=false", "status.phase=Pending", "status.phase!=Pending", "status.podIP=", "status.podIPs=10.0.0.1",
	"status.nominatedNodeName=", "status.replicas=0", "status.replicas=x", "spec.unschedulable=false", "spec.unschedulable=true", "status.successful=0", "status.successful!=0",
	"type=Opaque", "type=ClusterIP", "spec.type=ClusterIP", "spec.clusterIP=None", "spec.signerName=x", "spec.driver=x", "spec.poolName=x", "involvedObject.kind=Pod", "reason=x",
	"regarding.kind=Pod", "source=x", "reportingComponent=x", "name=NAME", "spec.unknown=x", "spec.resourceName=x", "status.conditions=x", "spec.node.name=x",
}

// reads asks for the stored objects: in all forms, by selectors, with options that are right and wrong.
func (m *match) reads(ctx context.Context, b base, served []endpoint) error {
	name := text(b.ours["metadata"].(map[string]any), "name")
	ask := func(what, path, accept string) error {
		_, err := m.both(ctx, "read "+b.kind+" "+what, request{method: http.MethodGet, path: path, accept: accept})
		return err
	}
	one, all := b.path(name), b.path("")
	only := all + "?fieldSelector=" + url.QueryEscape("metadata.name="+name)
	has := func(verb string) bool { return slices.Contains(b.verbs, verb) }
	for _, form := range forms {
		for _, include := range []string{"", "includeObject=None", "includeObject=Object", "includeObject=x"} {
			if include != "" && !strings.Contains(form, "Table") {
				continue
			}
			if err := ask("as "+form+" "+include, one+"?"+include, form); err != nil {
				return err
			}
			if !has("list") {
				continue
			}
			if err := ask("list as "+form+" "+include, only+"&"+include, form); err != nil {
				return err
			}
		}
	}
	for _, query := range []string{"resourceVersion=0", "resourceVersion=x", "pretty=true", "limit=x", "dryRun=x", "export=true"} {
		if err := ask(query, one+"?"+query, ""); err != nil {
			return err
		}
	}
	for _, missing := range []string{"nobody", "Bad_Name", "a%2Fb", "..", "%2e%2e", "a%20b", strings.Repeat("a", 300), "%00", "%25", "a:b"} {
		if err := ask("named "+short(missing), b.path(missing), ""); err != nil {
			return err
		}
	}
	for _, sub := range []string{"status", "scale", "log", "exec", "unknown", "status/x"} {
		for _, form := range forms[:6] {
			if err := ask(sub+" as "+form, one+"/"+sub, form); err != nil {
				return err
			}
		}
	}
	if !has("list") {
		return nil
	}
	for _, query := range listings {
		if strings.Contains(query, "watch=1") && !has("watch") {
			continue
		}
		if err := ask("list "+query, only+"&timeoutSeconds=1&"+query, ""); err != nil {
			return err
		}
	}
	for _, s := range labelSelectors {
		if err := ask("list labelSelector="+s, all+"?labelSelector="+url.QueryEscape(s), forms[4]); err != nil {
			return err
		}
	}
	for _, s := range fieldSelectors {
		s = strings.ReplaceAll(s, "NAME", name)
		if err := ask("list fieldSelector="+s, only+url.QueryEscape(","+s), forms[4]); err != nil {
			return err
		}
		if err := ask("list fieldSelector="+s+" alone", all+"?limit=1&fieldSelector="+url.QueryEscape(s+",metadata.name="+name), forms[4]); err != nil {
			return err
		}
	}
	if has("watch") {
		for _, form := range forms[:6] {
			if err := ask("watch as "+form, only+"&watch=1&timeoutSeconds=1&resourceVersion=0", form); err != nil {
				return err
			}
		}
		if err := ask("watch from the start", only+"&watch=1&timeoutSeconds=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true", ""); err != nil {
			return err
		}
	}
	return m.others(ctx, b, name)
}

// others asks with methods that are not served, and deletes without doing it.
func (m *match) others(ctx context.Context, b base, name string) error {
	one, all := b.path(name), b.path("")
	for _, r := range []request{
		{method: http.MethodPost, path: one}, {method: http.MethodPut, path: all}, {method: http.MethodPatch, path: all, contentType: merge},
		{method: "BREW", path: one}, {method: http.MethodHead, path: one}, {method: http.MethodHead, path: b.path("nobody")}, {method: http.MethodOptions, path: one},
		{method: http.MethodPost, path: all + "?dryRun=x", body: b.object}, {method: http.MethodPost, path: all + "?dryRun=All&dryRun=All", body: b.object},
		{method: http.MethodPost, path: all + "?dryRun=", body: b.object},
		{method: http.MethodPost, path: all + "?dryRun=All&fieldManager=" + strings.Repeat("a", 129), body: b.object},
		{method: http.MethodPost, path: all + "?dryRun=All&fieldManager=%00", body: b.object},
		{method: http.MethodPost, path: all + "?dryRun=All&fieldValidation=x", body: b.object},
		{method: http.MethodPost, path: all + "?dryRun=All", body: b.object}, // there is one
		{method: http.MethodPost, path: all + "?dryRun=All", body: raw("")}, {method: http.MethodPost, path: all + "?dryRun=All", body: raw("null")},
		{method: http.MethodPost, path: all + "?dryRun=All", body: raw("{}")}, {method: http.MethodPost, path: all + "?dryRun=All", body: raw("[]")},
		{method: http.MethodPost, path: all + "?dryRun=All", body: raw("{")}, {method: http.MethodPost, path: all + "?dryRun=All", body: raw(`{"kind":"Other","apiVersion":"v1"}`)},
		{method: http.MethodPost, path: all + "?dryRun=All", body: raw(`{"kind":"` + b.kind + `","apiVersion":"example.com/v1"}`)},
		{method: http.MethodPost, path: all + "?dryRun=All", body: raw(`{"kind":7}`)},
		{method: http.MethodPost, path: all + "?dryRun=All", contentType: "text/plain", body: b.object},
		{method: http.MethodPost, path: all + "?dryRun=All", contentType: "application/vnd.kubernetes.protobuf", body: raw("x")},
		{method: http.MethodPost, path: all + "?dryRun=All", contentType: "application/yaml", body: raw("a: b: c")},
		{method: http.MethodPost, path: all + "?dryRun=All", contentType: "application/cbor", body: raw("x")},
	} {
		if r.contentType == "" {
			r.contentType = "application/json"
		}
		if _, err := m.both(ctx, "ask "+b.kind+" "+r.method+" "+strings.TrimPrefix(r.path, all), r); err != nil {
			return err
		}
	}
	for _, d := range []struct{ query, body string }{
		{"", ""}, {"gracePeriodSeconds=-1", ""}, {"gracePeriodSeconds=x", ""}, {"gracePeriodSeconds=0", ""}, {"gracePeriodSeconds=7", ""},
		{"propagationPolicy=x", ""}, {"propagationPolicy=Foreground", ""}, {"propagationPolicy=Orphan", ""}, {"orphanDependents=true", ""}, {"orphanDependents=x", ""},
		{"orphanDependents=true&propagationPolicy=Background", ""}, {"dryRun=x", ""}, {"", "{"}, {"", "null"}, {"", "{}"}, {"", `{"kind":"DeleteOptions","apiVersion":"v1"}`},
		{"", `{"kind":"DeleteOptions","apiVersion":"apps/v1"}`}, {"", `{"kind":"Other","apiVersion":"v1"}`}, {"", `{"preconditions":{"uid":"x"}}`},
		{"", `{"preconditions":{"resourceVersion":"1"}}`}, {"", `{"gracePeriodSeconds":-5}`}, {"", `{"propagationPolicy":"x"}`}, {"", `{"dryRun":["x"]}`},
		{"", `{"dryRun":["All"]}`}, {"gracePeriodSeconds=3", `{"gracePeriodSeconds":5}`}, {"", `{"ignoreStoreReadErrorWithClusterBreakingPotential":true}`},
		{"", `{"ignoreStoreReadErrorWithClusterBreakingPotential":true,"gracePeriodSeconds":1}`}, {"", `{"unknown":1}`}, {"", `{"orphanDependents":true,"propagationPolicy":"Orphan"}`},
	} {
		for _, path := range []string{one + "?", b.path("nobody") + "?", all + "?fieldSelector=" + url.QueryEscape("metadata.name="+name) + "&"} {
			r := request{method: http.MethodDelete, path: path + d.query, contentType: "application/json"}
			if !strings.Contains(d.query, "dryRun") && !strings.Contains(d.body, "dryRun") {
				r.path += "&dryRun=All"
			}
			if d.body != "" {
				// Options in the body stand for those of the query.
				r.body = raw(d.body)
				if strings.HasPrefix(d.body, "{\"") && !strings.Contains(d.body, "dryRun") {
					r.body = raw(`{"dryRun":["All"],` + d.body[1:])
				}
			}
			if r.body == raw("null") || r.body == raw("{}") {
				continue
			}
			about := "delete"
			if strings.Contains(path, "fieldSelector") {
				about = "deletecollection"
			}
			if _, err := m.both(ctx, about+" "+b.kind+" "+d.query+" "+d.body+strings.TrimPrefix(path, b.path("")), r); err != nil {
				return err
			}
		}
	}
	return nil
}
