package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"wherry.dev/test/differential/fields"
)

// differences returns what only one of two sorted states has: of objects that both have, only the fields.
func differences(ours, theirs []string) string {
	count := map[string]int{}
	for _, o := range ours {
		count[o]++
	}
	for _, o := range theirs {
		count[o]--
	}
	only := func(has []string, sign int) (out []string) {
		for i, o := range has {
			if count[o]*sign > 0 && (i == 0 || has[i-1] != o) {
				out = append(out, o)
			}
		}
		return out
	}
	mine, others := only(ours, 1), only(theirs, -1)
	var out strings.Builder
	for _, o := range mine {
		i := slices.IndexFunc(others, func(other string) bool { return keyOf(other) == keyOf(o) && keyOf(o) != "" })
		if i < 0 {
			fmt.Fprintf(&out, "only ours (%d): %s\n", count[o], o)
			continue
		}
		fmt.Fprintf(&out, "%s (ours %+d, upstream's %+d):\n%s", keyOf(o), count[o], -count[others[i]], fieldsOf(o, others[i]))
		others = slices.Delete(others, i, i+1)
	}
	for _, o := range others {
		fmt.Fprintf(&out, "only upstream's (%d): %s\n", -count[o], o)
	}
	return out.String()
}

// keyOf returns kind and name of an object, and nothing of an event.
func keyOf(text string) string {
	kind, content, _ := strings.Cut(text, " ")
	var o struct{ Metadata struct{ Name string } }
	if kind == "Event" || json.Unmarshal([]byte(content), &o) != nil {
		return ""
	}
	return kind + " " + o.Metadata.Name
}

// fieldsOf returns the fields in which two objects differ, one to a line.
func fieldsOf(ours, theirs string) string {
	var out strings.Builder
	for _, field := range fields.Differences(contentOf(ours), contentOf(theirs)) {
		fmt.Fprintf(&out, "    %s\n", field)
	}
	return out.String()
}

// contentOf returns an object of a state.
func contentOf(text string) any {
	_, content, _ := strings.Cut(text, " ")
	var o any
	if err := json.Unmarshal([]byte(content), &o); err != nil {
		return text
	}
	return o
}
