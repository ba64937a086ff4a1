package written_test

import (
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"wherry.dev/internal/controller/written"
)

// store is an informer's store, as far as the test lets it know what happened.
type store struct {
	cache.Store
	version string
}

func (s *store) LastStoreSyncResourceVersion() string { return s.version }

func pod(name, uid, version string) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name, UID: types.UID(uid), ResourceVersion: version}}
}

func dying(p *v1.Pod) *v1.Pod {
	p.DeletionTimestamp = new(metav1.Now())
	return p
}

func bound(p *v1.Pod) *v1.Pod {
	p.Finalizers = []string{"other", "mine"}
	return p
}

func TestCaught(t *testing.T) {
	for name, tt := range map[string]struct {
		wrote, deleted []*v1.Pod
		freed          []*v1.Pod
		has            []*v1.Pod
		version        string
		want           bool
	}{
		"nothing was written":                  {version: "5", want: true},
		"a creation that the store has":        {wrote: []*v1.Pod{pod("p", "1", "7")}, version: "7", want: true},
		"a store that is ahead":                {wrote: []*v1.Pod{pod("p", "1", "7")}, version: "10", want: true},
		"a creation that it does not have":     {wrote: []*v1.Pod{pod("p", "1", "10")}, version: "9"},
		"the newest of several counts":         {wrote: []*v1.Pod{pod("p", "1", "8"), pod("q", "2", "10"), pod("r", "3", "9")}, version: "9"},
		"a store without a version":            {wrote: []*v1.Pod{pod("p", "1", "7")}, version: "", want: true},
		"a version that is no number":          {wrote: []*v1.Pod{pod("p", "1", "x")}, version: "9", want: true},
		"no version":                           {wrote: []*v1.Pod{pod("p", "1", "")}, version: "9", want: true},
		"a deletion that the store lacks":      {deleted: []*v1.Pod{pod("p", "1", "3")}, has: []*v1.Pod{pod("p", "1", "3")}, version: "9"},
		"a deleted one that is gone":           {deleted: []*v1.Pod{pod("p", "1", "3")}, version: "9", want: true},
		"a deleted one that is ending":         {deleted: []*v1.Pod{pod("p", "1", "3")}, has: []*v1.Pod{dying(pod("p", "1", "8"))}, version: "9", want: true},
		"another of the same name":             {deleted: []*v1.Pod{pod("p", "1", "3")}, has: []*v1.Pod{pod("p", "2", "8")}, version: "9", want: true},
		"one deletion of two is seen":          {deleted: []*v1.Pod{pod("p", "1", "3"), pod("q", "2", "3")}, has: []*v1.Pod{pod("q", "2", "3")}, version: "9"},
		"a deletion is seen, a creation not":   {wrote: []*v1.Pod{pod("n", "9", "10")}, deleted: []*v1.Pod{pod("p", "1", "3")}, version: "9"},
		"a creation is seen, a deletion not":   {wrote: []*v1.Pod{pod("n", "9", "8")}, deleted: []*v1.Pod{pod("p", "1", "3")}, has: []*v1.Pod{pod("p", "1", "3")}, version: "9"},
		"a finalizer that the store still has": {freed: []*v1.Pod{pod("p", "1", "3")}, has: []*v1.Pod{dying(bound(pod("p", "1", "3")))}, version: "9"},
		"a finalizer that is gone":             {freed: []*v1.Pod{pod("p", "1", "3")}, has: []*v1.Pod{pod("p", "1", "4")}, version: "9", want: true},
		"a finalizer that was the last one":    {freed: []*v1.Pod{pod("p", "1", "3")}, version: "9", want: true},
		"the finalizer of another":             {freed: []*v1.Pod{pod("p", "1", "3")}, has: []*v1.Pod{bound(pod("p", "2", "8"))}, version: "9", want: true},
		"a deletion is seen, a finalizer not":  {deleted: []*v1.Pod{pod("p", "1", "3")}, freed: []*v1.Pod{pod("p", "1", "3")}, has: []*v1.Pod{dying(bound(pod("p", "1", "8")))}, version: "9"},
		"a creation and a deletion were seen":  {wrote: []*v1.Pod{pod("n", "9", "8")}, deleted: []*v1.Pod{pod("p", "1", "3")}, version: "9", want: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := &store{Store: cache.NewStore(cache.MetaNamespaceKeyFunc), version: tt.version}
			for _, p := range tt.has {
				if err := s.Add(p); err != nil {
					t.Fatal(err)
				}
			}
			l := written.New(s)
			for _, p := range tt.wrote {
				l.Wrote("a/owner", p)
			}
			for _, p := range tt.deleted {
				l.Deleted("a/owner", p)
			}
			for _, p := range tt.freed {
				l.Freed("a/owner", p, "mine")
			}
			if got := l.Caught("a/owner"); got != tt.want {
				t.Errorf("caught: %v", got)
			}
			if !l.Caught("a/other") {
				t.Error("another owner waits too")
			}
		})
	}
}

// A controller that looks at its store again and again while the store is behind must not create
// more than is wanted.
func TestAStaleStoreLeadsToNoSecondCreation(t *testing.T) {
	s := &store{Store: cache.NewStore(cache.MetaNamespaceKeyFunc), version: "1"}
	l := written.New(s)
	var api []*v1.Pod // what the API server has, oldest first
	reconcile := func(want int) {
		if !l.Caught("a/owner") {
			return
		}
		for range want - len(s.List()) {
			version := fmt.Sprint(len(api) + 2)
			api = append(api, pod("p"+version, version, version))
			l.Wrote("a/owner", api[len(api)-1])
		}
	}
	seen := 0
	for range 3 {
		for want := range 12 {
			for range 3 {
				reconcile(want)
			}
			if seen < len(api) { // one event reaches the store
				if err := s.Add(api[seen]); err != nil {
					t.Fatal(err)
				}
				s.version = api[seen].ResourceVersion
				seen++
			}
			reconcile(want)
			if len(api) > 11 {
				t.Fatalf("%d objects exist", len(api))
			}
		}
	}
	if len(api) != 11 {
		t.Errorf("%d objects exist, want 11", len(api))
	}
}
