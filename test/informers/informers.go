// Package informers tells tests what was asked for of a factory of informers.
package informers

import (
	"context"
	"reflect"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/scheme"
)

// Asked starts the factory, whose client must be able to list everything, and returns the resources of its
// informers. The factory has ended then.
func Asked(t *testing.T, f informers.SharedInformerFactory) []schema.GroupVersionResource {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	f.Start(ctx.Done())
	kinds := f.WaitForCacheSync(ctx.Done())
	cancel()
	f.Shutdown()
	var out []schema.GroupVersionResource
	for typ := range kinds {
		obj, ok := reflect.TypeAssert[runtime.Object](reflect.New(typ.Elem()))
		if !ok {
			t.Fatalf("informers of %v, which is no kind", typ)
		}
		gvks, _, err := scheme.Scheme.ObjectKinds(obj)
		if err != nil {
			t.Fatal(err)
		}
		resource, _ := meta.UnsafeGuessKindToResource(gvks[0])
		out = append(out, resource)
	}
	return out
}
