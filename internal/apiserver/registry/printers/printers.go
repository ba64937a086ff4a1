// Package printers defines how `kubectl get` shows resources: the columns and cells are upstream's,
// because people know them and scripts parse them.
package printers

import (
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"wherry.dev/internal/apiserver/registry"
)

const (
	none    = "<none>"
	unset   = "<unset>"
	unknown = "<unknown>"
)

var nameColumn = registry.Column("Name", "string", "name", metav1.ObjectMeta{}.SwaggerDoc()["name"], false)

var ageColumn = column("Age", metav1.ObjectMeta{}.SwaggerDoc()["creationTimestamp"])

func column(name, description string) metav1.TableColumnDefinition {
	return registry.Column(name, "string", "", description, false)
}

func wide(name, description string) metav1.TableColumnDefinition {
	return registry.Column(name, "string", "", description, true)
}

// since returns how long ago t was.
func since(t time.Time, now time.Time) string {
	if t.IsZero() {
		return unknown
	}
	return duration.HumanDuration(now.Sub(t))
}

func age(o metav1.Object, now time.Time) string { return since(o.GetCreationTimestamp().Time, now) }

func orNone(s string) string {
	if s == "" {
		return none
	}
	return s
}

func orUnset[T ~string](p *T) string {
	if p == nil {
		return unset
	}
	return string(*p)
}

func formatLabels(labels map[string]string) string {
	pairs := make([]string, 0, len(labels))
	for k, v := range labels {
		pairs = append(pairs, k+"="+v)
	}
	slices.Sort(pairs)
	return orNone(strings.Join(pairs, ","))
}
