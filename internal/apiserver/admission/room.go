package admission

import (
	"context"
	"encoding/json"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
)

// roomForGrowth refuses what would make the cluster's data grow while there is no room. Requests
// that make room or that make nothing grow are still admitted, and so is what nodes report. It
// cannot be disabled.
type roomForGrowth struct {
	// room returns the error to refuse with, or nil while there is room. growth is by how many
	// bytes an object may still grow through requests that need no power over the node.
	room func() (growth int64, refusal error)
}

var _ admission.ValidationInterface = roomForGrowth{}

func (roomForGrowth) Handles(op admission.Operation) bool {
	return op == admission.Create || op == admission.Update
}

// statusGrowth is by how much an object may grow through what the node and the control plane
// report: with its managed fields, the first status of a pod with fifty containers is about as
// large.
const statusGrowth = 64 << 10

// modest are the subresources that change little of what is stored, or make room.
var modest = []string{"status", "finalize", "scale", "binding", "eviction", "token", "approval"}

// unstored are the groups whose objects are answered and never stored.
var unstored = []string{"authentication.k8s.io", "authorization.k8s.io"}

func (p roomForGrowth) Validate(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	growth, refusal := p.room() // called for every request: it also keeps room for what is admitted
	if refusal == nil || a.IsDryRun() || slices.Contains(unstored, a.GetResource().Group) || grows(a) <= mayGrow(a, growth) {
		return nil
	}
	return refusal
}

// mayGrow returns by how many bytes a request may make the stored data grow. least is for what
// everybody may do with objects of their own.
func mayGrow(a admission.Attributes, least int64) int64 {
	resource := a.GetResource().GroupResource()
	switch {
	case slices.Contains(modest, a.GetSubresource()), resource == nodesResource, resource == leasesResource && ofSystem(a):
		return statusGrowth
	case resource == leasesResource, a.GetOperation() == admission.Update && deleting(a):
		return least
	}
	return 0
}

func ofSystem(a admission.Attributes) bool {
	return a.GetNamespace() == metav1.NamespaceSystem || a.GetNamespace() == "kube-node-lease"
}

// grows returns by how many bytes the request makes its object grow.
func grows(a admission.Attributes) int64 {
	before := int64(0)
	if a.GetOperation() == admission.Update {
		before = sizeOf(a.GetOldObject())
	}
	return sizeOf(a.GetObject()) - before
}

// sizeOf returns the size of an object as it is stored, in protobuf. For an object without protobuf
// it is an estimate: the size in JSON.
func sizeOf(obj runtime.Object) int64 {
	if sized, ok := obj.(interface{ Size() int }); ok {
		return int64(sized.Size())
	}
	doc, err := json.Marshal(obj)
	if err != nil {
		return statusGrowth + 1 // could not be stored either
	}
	return int64(len(doc))
}
