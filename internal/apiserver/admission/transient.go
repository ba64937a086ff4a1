package admission

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/admission"
)

// later returns the status in err that tells the client to retry, or nil if there is none. Storage
// returns one while its caches fill after a start. Whatever a plugin wraps around it, the client
// must see that status: clients retry by themselves.
func later(err error) error {
	status, ok := errors.AsType[*apierrors.StatusError](err)
	if ok && (apierrors.IsTooManyRequests(status) || apierrors.IsServiceUnavailable(status) || apierrors.IsServerTimeout(status)) {
		return status
	}
	return nil
}

// honest is a chain of plugins that does not turn a transient error into a refusal.
type honest struct{ admission.Interface }

var (
	_ admission.MutationInterface   = honest{}
	_ admission.ValidationInterface = honest{}
)

// Admit implements admission.MutationInterface.
func (h honest) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	m, ok := h.Interface.(admission.MutationInterface)
	if !ok {
		return nil
	}
	return orLater(m.Admit(ctx, a, o))
}

// Validate implements admission.ValidationInterface.
func (h honest) Validate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	v, ok := h.Interface.(admission.ValidationInterface)
	if !ok {
		return nil
	}
	return orLater(v.Validate(ctx, a, o))
}

func orLater(err error) error {
	if status := later(err); status != nil {
		return status
	}
	return err
}
