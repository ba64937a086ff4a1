// Package fields compares what our program and upstream's have made of an object, field by field.
package fields

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
)

// Differences returns the fields in which two values, as they are read from JSON, differ, sorted by path. An element of a list
// goes by its name, if it has one.
func Differences(ours, theirs any) []string {
	x, y := map[string]any{}, map[string]any{}
	flatten("", ours, x)
	flatten("", theirs, y)
	all := maps.Clone(x)
	maps.Copy(all, y)
	var out []string
	for _, path := range slices.Sorted(maps.Keys(all)) {
		if !reflect.DeepEqual(x[path], y[path]) {
			out = append(out, fmt.Sprintf("%s: ours %v, upstream's %v", path, x[path], y[path]))
		}
	}
	return out
}

func flatten(path string, v any, to map[string]any) {
	switch v := v.(type) {
	case map[string]any:
		if len(v) == 0 {
			to[path] = "{}"
		}
		for key, child := range v {
			flatten(path+"."+key, child, to)
		}
	case []any:
		if len(v) == 0 {
			to[path] = "[]"
		}
		for i, child := range v {
			at := fmt.Sprint(i)
			if m, ok := child.(map[string]any); ok {
				if name, ok := m["name"].(string); ok && name != "" {
					at = name
				}
			}
			flatten(path+"["+at+"]", child, to)
		}
	default:
		to[path] = v
	}
}
