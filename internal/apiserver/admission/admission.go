// Package admission holds the admission plugins that every cluster runs: they complete and check
// what authorized users write. Each plugin has a file, named as in upstream.
//
// Plugins read other objects directly from storage (registry.Lookup), mostly from the watch cache.
package admission

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
)

// groupResource is short for the key of lookups.
type groupResource = schema.GroupResource

var (
	podsResource      = schema.GroupResource{Resource: "pods"}
	nodesResource     = schema.GroupResource{Resource: "nodes"}
	namespaceResource = schema.GroupResource{Resource: "namespaces"}
	accountsResource  = schema.GroupResource{Resource: "serviceaccounts"}
	limitsResource    = schema.GroupResource{Resource: "limitranges"}
	quotasResource    = schema.GroupResource{Resource: "resourcequotas"}
	servicesResource  = schema.GroupResource{Resource: "services"}
	volumesResource   = schema.GroupResource{Resource: "persistentvolumes"}
	claimsResource    = schema.GroupResource{Resource: "persistentvolumeclaims"}
	priorityResource  = schema.GroupResource{Group: "scheduling.k8s.io", Resource: "priorityclasses"}
	groupsResource    = schema.GroupResource{Group: "scheduling.k8s.io", Resource: "podgroups"}
	runtimeResource   = schema.GroupResource{Group: "node.k8s.io", Resource: "runtimeclasses"}
	classesResource   = schema.GroupResource{Group: "storage.k8s.io", Resource: "storageclasses"}
	volumeAttributes  = schema.GroupResource{Group: "storage.k8s.io", Resource: "volumeattributesclasses"}
	csiNodesResource  = schema.GroupResource{Group: "storage.k8s.io", Resource: "csinodes"}
	requestsResource  = schema.GroupResource{Group: "certificates.k8s.io", Resource: "certificatesigningrequests"}
	bundlesResource   = schema.GroupResource{Group: "certificates.k8s.io", Resource: "clustertrustbundles"}
	podCertsResource  = schema.GroupResource{Group: "certificates.k8s.io", Resource: "podcertificaterequests"}
	leasesResource    = schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}
	ingressesResource = schema.GroupResource{Group: "networking.k8s.io", Resource: "ingresses"}

	ingressClassResource = schema.GroupResource{Group: "networking.k8s.io", Resource: "ingressclasses"}
)

// podOf returns the pod of a request, if the request is for pods themselves, with one of ops.
func podOf(a admission.Attributes, ops ...admission.Operation) (*corev1.Pod, bool) {
	if a.GetResource().GroupResource() != podsResource || a.GetSubresource() != "" || !slices.Contains(ops, a.GetOperation()) {
		return nil, false
	}
	pod, ok := a.GetObject().(*corev1.Pod)
	return pod, ok
}

func forbid(a admission.Attributes, format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	if status := later(err); status != nil {
		return status
	}
	return admission.NewForbidden(a, err)
}

// deleting reports whether the object of a request already has a deletion timestamp.
func deleting(a admission.Attributes) bool {
	old := a.GetOldObject()
	if old == nil {
		return false
	}
	m, err := meta.Accessor(old)
	return err == nil && m.GetDeletionTimestamp() != nil
}
