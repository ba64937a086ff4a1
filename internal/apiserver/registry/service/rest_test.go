package service

import (
	"errors"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// What attempts took and would give up is released by what became of the last one; of those before it, what
// they took always, and what they would have given up never.
func TestWhatIsReleasedAfterAnUpdate(t *testing.T) {
	stored := svc(single, nil, "10.0.0.1")
	stored.Namespace, stored.Name = "n", "s"
	of := func(ip string) claim { return claim{ipFolder + ip, ownerOf(stored)} }
	for name, tc := range map[string]struct {
		err  error
		want []claim
	}{
		"there is one":             {apierrors.NewAlreadyExists(corev1.Resource("services"), "s"), []claim{of("10.0.0.2"), of("10.0.0.1")}},
		"storage was away":         {apierrors.NewServiceUnavailable("x"), []claim{of("10.0.0.2")}},
		"it may still be stored":   {apierrors.NewTimeoutError("x", 1), []claim{of("10.0.0.2")}},
		"written":                  {nil, []claim{of("10.0.0.2"), of("10.0.0.4")}},
		"another was faster":       {apierrors.NewConflict(corev1.Resource("services"), "s", nil), []claim{of("10.0.0.2"), of("10.0.0.1")}},
		"nobody knows whether not": {errors.New("etcdserver: request timed out"), []claim{of("10.0.0.2")}},
	} {
		a := &attempts{}
		a.taken, a.given = []claim{of("10.0.0.2")}, []claim{of("10.0.0.3")}
		a.next()
		a.taken, a.given = []claim{of("10.0.0.1")}, []claim{of("10.0.0.4")}
		if got := a.over(stored, tc.err); !slices.Equal(got, tc.want) {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}
