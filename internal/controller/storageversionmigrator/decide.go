package storageversionmigrator

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// failure is why a migration ends in vain: no retry would change it.
type failure struct{ error }

func (f failure) Unwrap() error { return f.error }

// errGone says that the migration itself was deleted.
var errGone = errors.New("the migration is gone")

// next returns the migration of a resource that is to be carried out now: the one that was begun, or else
// the oldest one. It is nil if all have ended.
func next(all []*migration, of string) *migration {
	var out *migration
	for _, m := range all {
		if key(m) == of && !ended(m) && (out == nil || before(m, out)) {
			out = m
		}
	}
	return out
}

func before(a, b *migration) bool {
	if started(a) != started(b) {
		return started(a)
	}
	if !a.CreationTimestamp.Equal(&b.CreationTimestamp) {
		return a.CreationTimestamp.Before(&b.CreationTimestamp)
	}
	return a.Name < b.Name
}

func started(m *migration) bool { return m.Status.ResourceVersion != "" }

func ended(m *migration) bool {
	return is(m, storagemigrationv1.MigrationSucceeded) || is(m, storagemigrationv1.MigrationFailed)
}

func is(m *migration, t storagemigrationv1.MigrationConditionType) bool {
	return meta.IsStatusConditionTrue(m.Status.Conditions, string(t))
}

func set(m *migration, t storagemigrationv1.MigrationConditionType, s metav1.ConditionStatus, reason, message string) {
	meta.SetStatusCondition(&m.Status.Conditions, metav1.Condition{
		Type: string(t), Status: s, Reason: reason, Message: message, ObservedGeneration: m.Generation,
	})
}

// target is how a resource is served.
type target struct {
	resource schema.GroupVersionResource
	kind     string
}

// find looks up a resource in what discovery told, the group's preferred version first. The error, for
// users, says why it cannot be migrated.
func find(groups []*metav1.APIGroup, lists []*metav1.APIResourceList, r metav1.GroupResource) (target, error) {
	of := schema.GroupResource(r)
	lacking := fmt.Errorf("the resource %q is not served", of)
	for _, gv := range versions(groups, r.Group) {
		for _, l := range lists {
			if l.GroupVersion != gv.String() {
				continue
			}
			for _, known := range l.APIResources {
				if known.Name != r.Resource {
					continue
				}
				if verbs := missing(known.Verbs, "list", "patch"); len(verbs) > 0 {
					lacking = fmt.Errorf("the resource %q cannot be migrated, because it does not support %s",
						of, strings.Join(verbs, " and "))
					continue
				}
				return target{gv.WithResource(r.Resource), known.Kind}, nil
			}
		}
	}
	return target{}, lacking
}

// versions returns the versions of a group, the preferred one first.
func versions(groups []*metav1.APIGroup, name string) []schema.GroupVersion {
	var out []schema.GroupVersion
	for _, g := range groups {
		if g.Name != name {
			continue
		}
		for _, v := range append([]metav1.GroupVersionForDiscovery{g.PreferredVersion}, g.Versions...) {
			if gv := (schema.GroupVersion{Group: name, Version: v.Version}); v.Version != "" && !slices.Contains(out, gv) {
				out = append(out, gv)
			}
		}
	}
	return out
}

func missing(have []string, want ...string) []string {
	return slices.DeleteFunc(want, func(verb string) bool { return slices.Contains(have, verb) })
}

// refused is the error of a request: a failure if it would be refused again, because it is not allowed, or
// because a rule or a webhook says so. All else may pass.
func refused(what string, err error) error {
	if err == nil {
		return nil
	}
	out := fmt.Errorf("%s: %w", what, err)
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return out
	}
	switch code := status.Status().Code; code {
	case http.StatusNotFound, http.StatusRequestTimeout, http.StatusConflict, http.StatusGone, http.StatusTooManyRequests:
		return out
	default:
		if code >= 400 && code < 500 {
			return failure{out}
		}
		return out
	}
}

// absent reports whether an object is known not to exist. A 404 that does not come from its storage says
// nothing about it: its version is not served any more, or something is in between.
func absent(err error) bool {
	return apierrors.IsNotFound(err) && !apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
}
