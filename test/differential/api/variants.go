package main

import (
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
)

// variant is an object with one change.
type variant struct {
	about  string // the field, and what became of it
	object map[string]any
}

// step leads from a value to one in it: a string to a field, an int to an element.
type step any

// variants returns the object as it is, and then with one change at a time. What it lacks is taken from the example.
// The metadata are the same for all kinds, and changed in one of them only, but for the name.
func variants(object, example map[string]any, metadata bool) iter.Seq[variant] {
	return func(yield func(variant) bool) {
		if !yield(variant{"as it is", object}) {
			return
		}
		w := &walk{object: object, yield: yield, metadata: metadata}
		w.value(nil, object, example)
	}
}

type walk struct {
	object   map[string]any
	yield    func(variant) bool
	metadata bool
	done     bool
}

// send yields the object with another value at a path. A nil function takes the value away.
func (w *walk) send(path []step, what string, change func(old any) any) {
	if w.done {
		return
	}
	copied := runtime.DeepCopyJSON(w.object)
	set(copied, path, change)
	w.done = !w.yield(variant{pathOf(path) + " " + what, copied})
}

// inTemplate reports whether a path is in a pod of a template. Pods themselves show what becomes of such fields.
func inTemplate(path []step) bool {
	i := slices.Index(path, step("template"))
	return i >= 0 && len(path) > i+2
}

func set(in any, path []step, change func(any) any) any {
	if len(path) == 0 {
		return change(in)
	}
	switch key := path[0].(type) {
	case string:
		m := in.(map[string]any)
		if len(path) == 1 && change == nil {
			delete(m, key)
		} else {
			m[key] = set(m[key], path[1:], change)
		}
	case int:
		l := in.([]any)
		l[key] = set(l[key], path[1:], change)
	}
	return in
}

func pathOf(path []step) string {
	var b strings.Builder
	for _, s := range path {
		switch s := s.(type) {
		case string:
			if strings.ContainsAny(s, "./ ") {
				s = "[" + s + "]"
			}
			b.WriteString("." + s)
		case int:
			fmt.Fprintf(&b, "[%d]", s)
		}
	}
	return strings.TrimPrefix(b.String(), ".")
}

func to(v any) func(any) any { return func(any) any { return v } }

// words are what strings become.
var words = []string{
	"", "x", "Bad_Value!", "-a", "a.b/c", "/", "../up", " a", "10.1.2.3", "fd00::1", "10.1.2.0/24", "1Gi", "50%", "http", "*", "*.a.example",
	strings.Repeat("a", 64), strings.Repeat("a", 300), "2026-01-01T00:00:00Z", "kubernetes.io/x", "ünï",
}

var numbers = []int64{0, -1, 1, 2, 100, 65536, 2147483647, -2147483648, 4294967296}

func (w *walk) value(path []step, v, example any) {
	if w.done {
		return
	}
	at := func(s step) []step { return append(slices.Clone(path), s) }
	switch v := v.(type) {
	case map[string]any:
		ex, _ := example.(map[string]any)
		for _, key := range slices.Sorted(maps.Keys(v)) {
			if len(path) == 0 && (key == "apiVersion" || key == "kind") {
				continue
			}
			if len(path) == 0 && key == "metadata" && !w.metadata {
				for _, name := range []string{"a.b", "A", "a_b", "a/b", "1a", "-a", "..", "", strings.Repeat("a", 64), strings.Repeat("a", 254)} {
					w.send([]step{"metadata", "name"}, "= "+short(name), to(name))
				}
				continue
			}
			w.send(at(key), "left out", nil)
			w.value(at(key), v[key], ex[key])
		}
		if inTemplate(path) {
			ex = nil
		}
		for _, key := range slices.Sorted(maps.Keys(ex)) {
			if _, has := v[key]; !has && (len(path) > 0 || key != "status") {
				w.send(at(key), "as in the example", to(runtime.DeepCopyJSONValue(ex[key])))
				w.plain(at(key), ex[key])
			}
		}
		for _, key := range []string{"bad key!", "a.example/b", "UPPER", "beta.kubernetes.io/os", ""} {
			w.send(at(key), "added", to("v"))
		}
	case []any:
		w.send(path, "emptied", to([]any{}))
		if len(v) > 0 {
			w.send(path, "with the first one twice", func(old any) any {
				l := old.([]any)
				return append([]any{runtime.DeepCopyJSONValue(l[0])}, l...)
			})
			w.send(path, "with an empty one", func(old any) any {
				return append(old.([]any), empty(v[0]))
			})
		}
		ex, _ := example.([]any)
		for i := range v {
			var e any
			if len(ex) > 0 {
				e = ex[0]
			}
			w.value(at(i), v[i], e)
		}
	default:
		w.plain(path, v)
	}
}

// plain changes a string, a number or a truth.
func (w *walk) plain(path []step, v any) {
	switch v := v.(type) {
	case string:
		few := words
		if inTemplate(path) {
			few = words[:3]
		}
		for _, s := range few {
			if s != v {
				w.send(path, "= "+short(s), to(s))
			}
		}
		w.send(path, "doubled", to(v+v))
		w.send(path, "= 7", to(int64(7)))
	case int64, float64:
		for _, n := range numbers {
			w.send(path, fmt.Sprintf("= %d", n), to(n))
		}
	case bool:
		w.send(path, fmt.Sprintf("= %t", !v), to(!v))
	}
}

func empty(like any) any {
	switch like.(type) {
	case map[string]any:
		return map[string]any{}
	case string:
		return ""
	}
	return int64(0)
}

func short(s string) string {
	if len(s) > 30 {
		return fmt.Sprintf("%q × %d", s[:1], len(s))
	}
	return fmt.Sprintf("%q", s)
}
