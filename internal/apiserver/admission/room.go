package admission

import (
	"context"
	"slices"

	"k8s.io/apiserver/pkg/admission"
)

// roomForGrowth refuses what would make the cluster's data grow while its disk is full,
// so that what makes room, and the nodes' heartbeats, still pass: deletions, statuses,
// leases, scaling, changes of nodes and of what is being deleted. It cannot be disabled.
type roomForGrowth struct {
	// room returns the refusal, or nil while there is room.
	room func() error
}

var _ admission.ValidationInterface = roomForGrowth{}

func (roomForGrowth) Handles(op admission.Operation) bool {
	return op == admission.Create || op == admission.Update
}

// modest are the subresources that change little of what is stored, or make room.
var modest = []string{"status", "finalize", "scale", "binding", "eviction", "token", "approval"}

// unstored are the groups whose objects are answered and forgotten.
var unstored = []string{"authentication.k8s.io", "authorization.k8s.io"}

func (p roomForGrowth) Validate(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	resource := a.GetResource().GroupResource()
	refusal := p.room() // asked every time: it also keeps room for what passes
	switch {
	case refusal == nil, a.IsDryRun(), slices.Contains(unstored, resource.Group), slices.Contains(modest, a.GetSubresource()):
		return nil
	case resource == leasesResource, resource == nodesResource:
		return nil
	case a.GetOperation() == admission.Update && deleting(a):
		return nil
	}
	return refusal
}
