package admission

import (
	"context"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
)

// protection gives new objects the finalizers of their resources, so that claims and groups outlive the pods that
// use them, volumes their claims, and classes of attributes both. The controllers in internal/controller/protection
// remove a finalizer from a deleted object that nothing uses any more.
type protection map[schema.GroupResource]string

var _ admission.MutationInterface = protection{}

func (protection) Handles(op admission.Operation) bool { return op == admission.Create }

func (p protection) Admit(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	finalizer, ok := p[a.GetResource().GroupResource()]
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
