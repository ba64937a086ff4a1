package claim

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// byController is the name of the index: by the UID of an object's controller; for an orphan, by its
// namespace and a slash, which no UID has.
const byController = "wherry/controller"

// AddIndex gives the informer the index that Controlled and Candidates use. Several controllers may
// add it to the same informer.
func AddIndex(informer cache.SharedIndexInformer) error {
	if _, ok := informer.GetIndexer().GetIndexers()[byController]; ok {
		return nil
	}
	return informer.AddIndexers(cache.Indexers{byController: func(item any) ([]string, error) {
		obj, ok := item.(metav1.Object)
		if !ok {
			return nil, fmt.Errorf("%T has no metadata", item)
		}
		if ref := metav1.GetControllerOfNoCopy(obj); ref != nil {
			return []string{string(ref.UID)}, nil
		}
		return []string{orphansOf(obj.GetNamespace())}, nil
	}})
}

func orphansOf(namespace string) string { return namespace + "/" }

// Controlled returns the objects that the owner with the UID controls.
func Controlled[T metav1.Object](indexer cache.Indexer, owner types.UID) ([]T, error) {
	return lookUp[T](indexer, string(owner))
}

// Candidates returns the objects that Sort has to look at for the owner: those that it controls, and
// the orphans of its namespace.
func Candidates[T metav1.Object](indexer cache.Indexer, owner metav1.Object) ([]T, error) {
	out, err := lookUp[T](indexer, string(owner.GetUID()))
	if err != nil {
		return nil, err
	}
	orphans, err := lookUp[T](indexer, orphansOf(owner.GetNamespace()))
	return append(out, orphans...), err
}

func lookUp[T metav1.Object](indexer cache.Indexer, value string) ([]T, error) {
	items, err := indexer.ByIndex(byController, value)
	if err != nil {
		return nil, err
	}
	out := make([]T, 0, len(items))
	for _, item := range items {
		if obj, ok := item.(T); ok {
			out = append(out, obj)
		}
	}
	return out, nil
}
