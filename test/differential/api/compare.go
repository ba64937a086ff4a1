package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"

	"wherry.dev/test/differential/fields"
)

// difference is one sort of difference, with its first example.
type difference struct {
	about string
	what  string
	times int
	body  string
}

func (d *difference) String() string {
	return fmt.Sprintf("%d× %s\n    %s\n    %s", d.times, d.about, d.what, d.body)
}

var (
	quoted = regexp.MustCompile(`"[^"]*"|\\"[^"]*\\"`)
	index  = regexp.MustCompile(`\[[^\]]*\]`)
	digits = regexp.MustCompile(`\d+`)
)

// note keeps a difference, if there was none like it before: of the same kind, in the same field, of the same sort.
func (m *match) note(about string, r request, what string) {
	words := strings.Fields(about)
	like := words[min(1, len(words)-1)] // the kind
	sort, _, _ := strings.Cut(what, "managedFields")
	if path, values, ok := strings.Cut(sort, ": ours "); ok && strings.HasPrefix(path, ".") {
		sort = path + fmt.Sprint(strings.HasPrefix(values, "<nil>"), strings.HasSuffix(values, "<nil>"))
	}
	key := like + ": " + digits.ReplaceAllString(index.ReplaceAllString(quoted.ReplaceAllString(sort, `""`), "[]"), "0")
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.all && knownTo(about, what) != "" {
		m.excused++
		return
	}
	if d := m.seen[key]; d != nil {
		d.times++
		return
	}
	body, _ := json.Marshal(r.body)
	if len(body) > 600 {
		body = body[:600]
	}
	m.seen[key] = &difference{about, what, 1, string(body)}
	m.order = append(m.order, key)
}

// compare returns in what the answers differ. Where both refuse something for the same fields, their words may differ,
// unless these are asked for, too.
func compare(ours, theirs answer, words bool) []string {
	var out []string
	if ours.code == http.StatusBadRequest && theirs.code == http.StatusInternalServerError && strings.HasSuffix(message(ours.body), message(theirs.body)) {
		return nil // a client's mistake is not the server's
	}
	if ours.code != theirs.code {
		return []string{fmt.Sprintf("ours %d %s\n    upstream's %d %s", ours.code, said(ours), theirs.code, said(theirs))}
	}
	if a, b := strings.Join(sorted(ours.warnings), "; "), strings.Join(sorted(theirs.warnings), "; "); a != b {
		out = append(out, fmt.Sprintf("warnings: ours %s\n    upstream's %s", a, b))
	}
	a, b := normal(copied(ours.body)), normal(copied(theirs.body))
	if ours.code >= 400 {
		return append(out, compareErrors(a, b, words)...)
	}
	return append(out, fields.Differences(a, b)...)
}

func said(a answer) string {
	if a.code >= 200 && a.code < 300 {
		return ""
	}
	return message(a.body)
}

// compareErrors compares two errors. The order of causes does not matter.
func compareErrors(ours, theirs any, words bool) []string {
	if reflect.DeepEqual(ours, theirs) {
		return nil
	}
	a, b := causes(ours, words), causes(theirs, words)
	var only []string
	for _, c := range a {
		if !slices.Contains(b, c) {
			only = append(only, "only ours: "+c)
		}
	}
	for _, c := range b {
		if !slices.Contains(a, c) {
			only = append(only, "only upstream's: "+c)
		}
	}
	if len(only) > 0 {
		return only
	}
	if len(a) > 0 {
		return nil
	}
	if m, n := message(ours), message(theirs); m != n || len(a) == 0 {
		return []string{fmt.Sprintf("ours %s\n    upstream's %s", m, n)}
	}
	return nil
}

func message(of any) string {
	said := fmt.Sprint(of)
	if m, ok := of.(map[string]any); ok {
		said = text(m, "message")
	}
	return own.ReplaceAllString(said, "…")
}

// own is what is a server's own in a message.
var own = regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|in record \(\d+\)|in object meta: [0-9a-f-]+|https://127\.0\.0\.1:\d+|nodePort:\d+|stream ID \d+|Time:[^ ]*`)

// causes returns what is wrong with an object, each once: the fields, and what is said of them.
func causes(of any, words bool) (out []string) {
	m, _ := of.(map[string]any)
	for _, c := range items(m["details"], "causes") {
		cause := text(c, "field")
		if words {
			cause = text(c, "reason") + " " + cause + ": " + plainly(text(c, "message"))
		}
		out = append(out, cause)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

var (
	value     = regexp.MustCompile(`(?s)(Invalid|Duplicate|Unsupported) value: ([{\[].*?[}\]]|(map|core|v1|resource)[^ ]*[}\]]): `)
	supported = regexp.MustCompile(`supported values: (.*)$`)
	diff      = regexp.MustCompile(`(?s)\n.*`)
)

// plainly returns a message without what differs for a reason: upstream prints values and differences as its internal
// types have them, and what is supported in no certain order.
func plainly(message string) string {
	message = value.ReplaceAllString(message, "$1 value: …: ")
	message = diff.ReplaceAllString(message, " …")
	return supported.ReplaceAllStringFunc(message, func(s string) string {
		return "supported values: " + strings.Join(sorted(strings.Split(strings.TrimPrefix(s, "supported values: "), ", ")), ", ")
	})
}

func sorted(s []string) []string { return slices.Sorted(slices.Values(s)) }

func copied(body any) any {
	if _, ok := body.(map[string]any); ok {
		return runtime.DeepCopyJSONValue(body)
	}
	return body
}

var (
	allocated = regexp.MustCompile(`^10\.0\.\d+\.\d+$`)
	age       = regexp.MustCompile(`^(\d+[smh])+$`)
)

// normal returns an answer without what is each server's own.
func normal(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for key, child := range v {
			switch key {
			case "uid", "creationTimestamp", "resourceVersion", "time", "storageVersionHash", "lastPhaseTransitionTime", "lastTransitionTime", "timeAdded", "deletionTimestamp":
				delete(v, key)
				continue
			case "controller-uid", "batch.kubernetes.io/controller-uid":
				v[key] = "a UID"
				continue
			case "nodePort", "healthCheckNodePort":
				if n, ok := child.(float64); ok && n >= 30000 {
					v[key] = "allocated"
					continue
				}
			}
			v[key] = normal(child)
		}
	case []any:
		for i := range v {
			v[i] = normal(v[i])
		}
	case string:
		switch {
		case allocated.MatchString(v):
			return "allocated"
		case age.MatchString(v):
			return "some time"
		}
		return own.ReplaceAllString(v, "…")
	}
	return v
}
