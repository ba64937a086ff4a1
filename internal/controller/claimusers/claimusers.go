// Package claimusers says which pods use a PersistentVolumeClaim, for the controllers that ask: an index of pods that
// they share.
package claimusers

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/controller"
)

// byClaim is the name of the index.
const byClaim = "wherry/persistentvolumeclaim"

// AddIndex gives an informer of pods the index that Of uses. Several controllers may add it to the same informer.
func AddIndex(informer cache.SharedIndexInformer) error {
	if _, ok := informer.GetIndexer().GetIndexers()[byClaim]; ok {
		return nil
	}
	return informer.AddIndexers(cache.Indexers{byClaim: controller.IndexBy(ClaimsOf)})
}

// Of returns the pods that name the claim with the key, or for which one of that name is made.
func Of(indexer cache.Indexer, key string) ([]*v1.Pod, error) {
	return controller.LookUp[*v1.Pod](indexer, byClaim, key)
}

// ClaimsOf returns the keys of the claims that a pod names, or that are made for it.
func ClaimsOf(p *v1.Pod) []string {
	var keys []string
	pods.References(p, func(kind pods.Reference, name string) {
		if kind == pods.ReferenceClaim && name != "" {
			keys = append(keys, p.Namespace+"/"+name)
		}
	})
	return keys
}
