package controller

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	"wherry.dev/internal/api/pods"
)

// IndexBy returns an index of objects of one type.
func IndexBy[T any](values func(T) []string) cache.IndexFunc {
	return func(item any) ([]string, error) {
		obj, ok := item.(T)
		if !ok {
			return nil, fmt.Errorf("unexpected %T", item)
		}
		return values(obj), nil
	}
}

// LookUp returns the objects that an index has under the values.
func LookUp[T any](indexer cache.Indexer, index string, values ...string) ([]T, error) {
	var out []T
	for _, value := range values {
		items, err := indexer.ByIndex(index, value)
		if err != nil {
			return nil, err
		}
		for _, item := range items {
			if obj, ok := item.(T); ok {
				out = append(out, obj)
			}
		}
	}
	return out, nil
}

// GroupOf is for an index of pods by the keys of their pod groups.
func GroupOf(pod *v1.Pod) []string {
	if name, ok := pods.Group(pod); ok {
		return []string{name.String()}
	}
	return nil
}
