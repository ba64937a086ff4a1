// Package resources is the table of everything the API server stores: one row a
// resource, by group in a file each.
package resources

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"wherry.dev/internal/apiserver/registry"
)

// All returns the rows of all stored resources.
func All(deps Deps) []registry.Definition {
	var rows []registry.Definition
	rows = append(rows, core(deps)...)
	rows = append(rows, others(deps)...)
	return rows
}

// Deps is what rows need from the server around them.
type Deps struct{}

// list makes the NewList function of a row.
func list[T any, PT interface {
	*T
	runtime.Object
}]() func() runtime.Object {
	return func() runtime.Object { return PT(new(T)) }
}

func gvr(gv schema.GroupVersion, resource string) schema.GroupVersionResource {
	return gv.WithResource(resource)
}

// bump raises metadata.generation when the spec changed, and keeps it otherwise.
func bump(obj, old metav1.Object, changed bool) {
	obj.SetGeneration(old.GetGeneration())
	if changed {
		obj.SetGeneration(old.GetGeneration() + 1)
	}
}
