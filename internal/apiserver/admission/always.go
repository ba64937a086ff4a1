package admission

import (
	"context"

	"k8s.io/apiserver/pkg/admission"
)

// alwaysAdmit and alwaysDeny are deprecated, since they say the same to everything.
type (
	alwaysAdmit struct{}
	alwaysDeny  struct{}
)

var (
	_ admission.MutationInterface   = alwaysDeny{}
	_ admission.ValidationInterface = alwaysDeny{}
)

func (alwaysAdmit) Handles(admission.Operation) bool { return true }
func (alwaysDeny) Handles(admission.Operation) bool  { return true }

func (alwaysDeny) Admit(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	return forbid(a, "admission control is denying all modifications")
}

func (alwaysDeny) Validate(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	return forbid(a, "admission control is denying all modifications")
}
