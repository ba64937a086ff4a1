package admission

import (
	"context"
	"encoding/json"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
)

// roomForGrowth refuses what would make the cluster's data grow while there is no room, so
// that what makes room, and what the nodes have to say, still pass. What makes nothing
// grow passes, too. It cannot be disabled.
type roomForGrowth struct {
	// room returns the refusal, or nil while there is room, and by how many bytes an object
	// may grow nevertheless by what somebody without power over the node can write.
	room func() (growth int64, refusal error)
}

var _ admission.ValidationInterface = roomForGrowth{}

func (roomForGrowth) Handles(op admission.Operation) bool {
	return op == admission.Create || op == admission.Update
}

// statusGrowth is by how much what the node and the control plane have to say may grow: with
// its managed fields, the first status of a pod with fifty containers is about as large.
const statusGrowth = 64 << 10

// modest are the subresources that change little of what is stored, or make room.
var modest = []string{"status", "finalize", "scale", "binding", "eviction", "token", "approval"}

// unstored are the groups whose objects are answered and forgotten.
var unstored = []string{"authentication.k8s.io", "authorization.k8s.io"}

func (p roomForGrowth) Validate(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	growth, refusal := p.room() // asked every time: it also keeps room for what passes
	if refusal == nil || a.IsDryRun() || slices.Contains(unstored, a.GetResource().Group) || grows(a) <= mayGrow(a, growth) {
		return nil
	}
	return refusal
}

// mayGrow returns by how many bytes a request may make what is stored grow. least is for
// what everybody may do with objects of their own.
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

// grows returns how many bytes more there are of an object than before.
func grows(a admission.Attributes) int64 {
	before := int64(0)
	if a.GetOperation() == admission.Update {
		before = sizeOf(a.GetOldObject())
	}
	return sizeOf(a.GetObject()) - before
}

// sizeOf is that of an object as it is stored, in protobuf; about that where it has none.
func sizeOf(obj runtime.Object) int64 {
	if sized, ok := obj.(interface{ Size() int }); ok {
		return int64(sized.Size())
	}
	doc, err := json.Marshal(obj)
	if err != nil {
		return statusGrowth + 1 // it could not be stored either
	}
	return int64(len(doc))
}
