package admission

import (
	"context"
	"errors"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/admission"
)

// refusing is a plugin that always returns err.
type refusing struct{ err error }

func (refusing) Handles(admission.Operation) bool { return true }

func (r refusing) Admit(context.Context, admission.Attributes, admission.ObjectInterfaces) error {
	return r.err
}

func (r refusing) Validate(context.Context, admission.Attributes, admission.ObjectInterfaces) error {
	return r.err
}

// While the caches of storage filled, a plugin's lookup used to fail because of that: a start ended
// with "list resourcequotas: storage is (re)initializing", and pods could be forbidden for it.
func TestWhatWillPassIsNoRefusal(t *testing.T) {
	soon := apierrors.NewTooManyRequests("storage is (re)initializing", 1)
	a := admission.NewAttributesRecord(&corev1.Pod{}, nil, corev1.SchemeGroupVersion.WithKind("Pod"), "ns", "p", podsResource.WithVersion("v1"), "", admission.Create, nil, false, nil)
	for name, c := range map[string]struct {
		err  error
		want func(error) bool
	}{
		"wrapped":       {fmt.Errorf("list resourcequotas: %w", soon), apierrors.IsTooManyRequests},
		"forbidden":     {forbid(a, "error looking up service account: %w", soon), apierrors.IsTooManyRequests},
		"truly":         {forbid(a, "no"), apierrors.IsForbidden},
		"wrapped truly": {forbid(a, "looking up: %w", apierrors.NewNotFound(podsResource, "p")), apierrors.IsForbidden},
		"none":          {nil, func(err error) bool { return err == nil }},
		"plain":         {errors.New("x"), func(err error) bool { return err != nil && err.Error() == "x" }},
	} {
		chain := honest{admission.NewChainHandler(refusing{c.err})}
		if err := chain.Admit(t.Context(), a, nil); !c.want(err) {
			t.Errorf("%s: admit: %v", name, err)
		}
		if err := chain.Validate(t.Context(), a, nil); !c.want(err) {
			t.Errorf("%s: validate: %v", name, err)
		}
		if seconds, ok := apierrors.SuggestsClientDelay(chain.Validate(t.Context(), a, nil)); c.want(soon) && (!ok || seconds != 1) {
			t.Errorf("%s: the client is told to come back after %d s (%t)", name, seconds, ok)
		}
	}
}
