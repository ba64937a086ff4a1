package storageversionmigrator

import (
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var epoch = time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)

// of returns a migration of secrets that is so many seconds old.
func of(name string, age int, change ...func(*migration)) *migration {
	m := &migration{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(epoch.Add(-time.Duration(age) * time.Second))}}
	m.Spec.Resource.Resource = "secrets"
	for _, f := range change {
		f(m)
	}
	return m
}

func begun(m *migration) { m.Status.ResourceVersion = "5" }

func ending(t storagemigrationv1.MigrationConditionType) func(*migration) {
	return func(m *migration) { set(m, t, metav1.ConditionTrue, "R", "") }
}

func elsewhere(m *migration) {
	m.Spec.Resource = metav1.GroupResource{Group: "example.com", Resource: "secrets"}
}

func TestWhichMigrationIsNext(t *testing.T) {
	succeeded, failed := ending(storagemigrationv1.MigrationSucceeded), ending(storagemigrationv1.MigrationFailed)
	for name, tc := range map[string]struct {
		all  []*migration
		want string
	}{
		"none":                           {},
		"the oldest":                     {[]*migration{of("a", 1), of("b", 3), of("c", 2)}, "b"},
		"of one age, by name":            {[]*migration{of("b", 1), of("a", 1)}, "a"},
		"the one that was begun":         {[]*migration{of("a", 9), of("b", 1, begun)}, "b"},
		"no one that ended":              {[]*migration{of("a", 9, begun, succeeded), of("b", 8, failed), of("c", 1)}, "c"},
		"all have ended":                 {[]*migration{of("a", 9, succeeded), of("b", 8, failed)}, ""},
		"none of a resource of the name": {[]*migration{of("a", 9, elsewhere)}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := ""
			if m := next(tc.all, "secrets"); m != nil {
				got = m.Name
			}
			if got != tc.want {
				t.Errorf("%q, want %q", got, tc.want)
			}
		})
	}
}

func TestHowAResourceIsServed(t *testing.T) {
	group := func(name, preferred string, versions ...string) *metav1.APIGroup {
		g := &metav1.APIGroup{Name: name}
		for _, v := range versions {
			known := metav1.GroupVersionForDiscovery{GroupVersion: schema.GroupVersion{Group: name, Version: v}.String(), Version: v}
			g.Versions = append(g.Versions, known)
			if v == preferred {
				g.PreferredVersion = known
			}
		}
		return g
	}
	list := func(gv, name, kind string, verbs ...string) *metav1.APIResourceList {
		return &metav1.APIResourceList{GroupVersion: gv, APIResources: []metav1.APIResource{
			{Name: name, Kind: kind, Verbs: verbs}, {Name: name + "/status", Kind: kind, Verbs: []string{"patch"}},
		}}
	}
	groups := []*metav1.APIGroup{group("", "v1", "v1"), group("example.com", "v2", "v1", "v2", "v3"), group("bare.example.com", "", "v1")}
	lists := []*metav1.APIResourceList{
		list("v1", "secrets", "Secret", "get", "list", "patch"),
		list("v1", "looks", "Look", "get"),
		list("v1", "lists", "List", "list"),
		list("example.com/v1", "widgets", "OldWidget", "list", "patch"),
		list("example.com/v2", "widgets", "Widget", "list", "patch"),
		list("example.com/v3", "gadgets", "Gadget", "list", "patch"),
		list("bare.example.com/v1", "things", "Thing", "list", "patch"),
	}
	for _, tc := range []struct{ group, resource, want, refusal string }{
		{"", "secrets", "/v1 secrets Secret", ""},
		{"example.com", "widgets", "example.com/v2 widgets Widget", ""},
		{"example.com", "gadgets", "example.com/v3 gadgets Gadget", ""},
		{"bare.example.com", "things", "bare.example.com/v1 things Thing", ""},
		{"", "widgets", "", `the resource "widgets" is not served`},
		{"other.example.com", "widgets", "", `the resource "widgets.other.example.com" is not served`},
		{"", "looks", "", `the resource "looks" cannot be migrated, because it does not support list and patch`},
		{"", "lists", "", `the resource "lists" cannot be migrated, because it does not support patch`},
	} {
		t.Run(tc.resource+"."+tc.group, func(t *testing.T) {
			got, err := find(groups, lists, metav1.GroupResource{Group: tc.group, Resource: tc.resource})
			if tc.refusal != "" {
				if err == nil || err.Error() != tc.refusal {
					t.Errorf("%v, %v, want %q", got, err, tc.refusal)
				}
				return
			}
			if s := got.resource.Group + "/" + got.resource.Version + " " + got.resource.Resource + " " + got.kind; err != nil || s != tc.want {
				t.Errorf("%q, %v, want %q", s, err, tc.want)
			}
		})
	}
}

func TestWhatIsWorthARetry(t *testing.T) {
	r := schema.GroupResource{Resource: "secrets"}
	for name, tc := range map[string]struct {
		err   error
		final bool
	}{
		"a conflict":       {err: apierrors.NewConflict(r, "a", io.EOF)},
		"not found":        {err: apierrors.NewNotFound(r, "a")},
		"too many":         {err: apierrors.NewTooManyRequests("wait", 1)},
		"expired":          {err: apierrors.NewResourceExpired("old")},
		"a webhook is off": {err: apierrors.NewInternalError(io.EOF)},
		"a full disk":      {err: &apierrors.StatusError{ErrStatus: metav1.Status{Code: 507}}},
		"a lost line":      {err: io.ErrUnexpectedEOF},
		"not allowed":      {err: apierrors.NewForbidden(r, "a", io.EOF), final: true},
		"not valid":        {err: apierrors.NewInvalid(schema.GroupKind{Kind: "Secret"}, "a", nil), final: true},
		"not supported":    {err: apierrors.NewMethodNotSupported(r, "patch"), final: true},
	} {
		t.Run(name, func(t *testing.T) {
			err := refused("write a", tc.err)
			if _, final := errors.AsType[failure](err); final != tc.final {
				t.Errorf("final: %v, want %v", final, tc.final)
			}
			if !strings.HasPrefix(err.Error(), "write a: ") || !errors.Is(err, tc.err) {
				t.Errorf("%v", err)
			}
		})
	}
	if err := refused("write a", nil); err != nil {
		t.Error(err)
	}
}

func TestWhatADefinitionSaysAfterwards(t *testing.T) {
	crd := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Generation: 3}}
	crd.Spec.Versions = []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1"}, {Name: "v2", Storage: true}}
	for name, tc := range map[string]struct {
		began   int64
		success bool
		stored  []string
		reason  string
		message string
	}{
		"all are of one version": {3, true, []string{"v2"}, "MigrationSucceeded", "and the stored versions have been updated"},
		"it was changed":         {2, true, nil, "MigrationSucceeded", "not been updated due to a generation mismatch"},
		"it failed":              {3, false, nil, "MigrationFailed", "The migration has failed"},
	} {
		t.Run(name, func(t *testing.T) {
			stored, how := outcome(crd, tc.began, tc.success)
			if !slices.Equal(stored, tc.stored) || how.Status != apiextensionsv1.ConditionFalse || how.Reason != tc.reason || !strings.Contains(how.Message, tc.message) {
				t.Errorf("%v, %+v", stored, how)
			}
		})
	}
}
