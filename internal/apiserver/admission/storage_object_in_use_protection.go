package admission

import (
	"context"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
)

// protections are the finalizers of storage objects. The controllers in internal/controller/protection
// remove them from a deleted object that nothing uses any more.
var protections = map[schema.GroupResource]string{
	claimsResource:   "kubernetes.io/pvc-protection",
	volumesResource:  "kubernetes.io/pv-protection",
	volumeAttributes: "kubernetes.io/vac-protection",
}

// storageObjectInUseProtection lets claims outlive the pods that use them, volumes their claims, and
// classes of attributes both.
type storageObjectInUseProtection struct{}

var _ admission.MutationInterface = storageObjectInUseProtection{}

func (storageObjectInUseProtection) Handles(op admission.Operation) bool {
	return op == admission.Create
}

func (storageObjectInUseProtection) Admit(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	finalizer, ok := protections[a.GetResource().GroupResource()]
	if !ok || a.GetSubresource() != "" {
		return nil
	}
	obj, err := meta.Accessor(a.GetObject())
	if err != nil {
		return forbid(a, "unexpected type %T", a.GetObject())
	}
	if !slices.Contains(obj.GetFinalizers(), finalizer) {
		obj.SetFinalizers(append(obj.GetFinalizers(), finalizer))
	}
	return nil
}
