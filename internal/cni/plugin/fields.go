package plugin

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
)

// refuseUnknown returns an error that names the first field of doc that the struct behind conf
// does not have. Reserved names ("cni.dev/…") belong to the runtime. A field that asks for
// nothing (false, 0, "", null, an empty list or object) is accepted, whatever its name.
func refuseUnknown(doc []byte, path string, conf any) error {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(doc, &fields); err != nil {
		return types.NewError(types.ErrDecodingFailure, "cannot read the network configuration: "+err.Error(), "")
	}
	known := map[string]bool{}
	addKeys(reflect.TypeOf(conf), known)
	var bad []string
	for key, value := range fields {
		if known[strings.ToLower(key)] || strings.HasPrefix(key, "cni.dev/") || asksNothing(value) {
			continue
		}
		bad = append(bad, fmt.Sprintf("%s%s: %s", path, key, bytes.TrimSpace(value)))
	}
	if len(bad) == 0 {
		return nil
	}
	// The message must contain key and value (CNI spec 1.1, error code 2).
	return types.NewError(types.ErrUnsupportedField, "unsupported field "+slices.Min(bad), "")
}

// addKeys collects a struct's JSON keys, in lower case as encoding/json compares them.
func addKeys(t reflect.Type, keys map[string]bool) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "-":
		case f.Anonymous && name == "":
			addKeys(f.Type, keys)
		case name == "":
			keys[strings.ToLower(f.Name)] = true
		default:
			keys[strings.ToLower(name)] = true
		}
	}
}

func asksNothing(value json.RawMessage) bool {
	switch string(bytes.Join(bytes.Fields(value), nil)) {
	case "false", "0", `""`, "null", "[]", "{}":
		return true
	}
	return false
}
