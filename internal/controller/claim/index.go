package claim

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"wherry.dev/internal/controller"
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
	return informer.AddIndexers(cache.Indexers{byController: controller.IndexBy(func(obj metav1.Object) []string {
		if ref := metav1.GetControllerOfNoCopy(obj); ref != nil {
			return []string{string(ref.UID)}
		}
		return []string{orphansOf(obj.GetNamespace())}
	})})
}

func orphansOf(namespace string) string { return namespace + "/" }

// Controlled returns the objects that the owner with the UID controls.
func Controlled[T metav1.Object](indexer cache.Indexer, owner types.UID) ([]T, error) {
	return controller.LookUp[T](indexer, byController, string(owner))
}

// Candidates returns the objects that Sort has to look at for the owner: those that it controls, and
// the orphans of its namespace.
func Candidates[T metav1.Object](indexer cache.Indexer, owner metav1.Object) ([]T, error) {
	return controller.LookUp[T](indexer, byController, string(owner.GetUID()), orphansOf(owner.GetNamespace()))
}
