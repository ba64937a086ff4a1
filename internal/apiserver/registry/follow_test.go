package registry

import (
	"context"
	"testing"
	"testing/synctest"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

// events is a store whose events the test sends.
type events struct{ *watch.FakeWatcher }

func (e events) Watch(context.Context, *internalversion.ListOptions) (watch.Interface, error) {
	return e, nil
}

// When the server was ready, requests made at once used to be refused, although a role had just
// been created for them: the index was some events behind.
func TestReachedWaitsForWhatIsNotSeenYet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		seen := ""
		f := NewFollower(func(r *rbacv1.Role) { seen = r.Name }, func(types.NamespacedName) {})
		ctx, cancel := context.WithCancel(t.Context())
		store, ended, reached := events{watch.NewFake()}, make(chan error, 1), make(chan error, 1)
		go func() { ended <- f.Run(ctx, store) }()
		role := func(name, version string) *rbacv1.Role {
			return &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: version}}
		}
		store.Add(role("a", "5"))
		go func() { reached <- f.Reached(ctx, 7) }()
		synctest.Wait()
		if len(reached) > 0 {
			t.Error("what was not seen is reached")
		}
		store.Modify(role("b", "7"))
		if err := <-reached; err != nil || seen != "b" {
			t.Errorf("%q was seen, %v", seen, err)
		}
		go func() { reached <- f.Reached(ctx, 8) }()
		cancel()
		if err := <-reached; err == nil {
			t.Error("what never comes is reached")
		}
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
