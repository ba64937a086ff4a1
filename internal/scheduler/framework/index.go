package framework

import (
	"fmt"

	"k8s.io/client-go/tools/cache"
)

// AddIndex adds an index to an informer that has not been started, unless the plugin of another profile, or another
// scheduler with the same informers, has done so.
func AddIndex[T any](informer cache.SharedIndexInformer, name string, values func(T) []string) error {
	if informer.GetIndexer().GetIndexers()[name] != nil {
		return nil
	}
	return informer.AddIndexers(cache.Indexers{name: func(obj any) ([]string, error) {
		t, ok := obj.(T)
		if !ok {
			return nil, fmt.Errorf("index %s: got a %T", name, obj)
		}
		return values(t), nil
	}})
}
