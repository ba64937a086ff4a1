package registry

import (
	"context"
	"errors"
	"maps"
	"testing"
	"testing/synctest"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

// events is a store whose events the test sends.
type events struct{ *watch.FakeWatcher }

func (e events) List(context.Context, *internalversion.ListOptions) (runtime.Object, error) {
	return nil, errors.ErrUnsupported
}

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
		go func() { ended <- f.Run(ctx, store, fields.Everything()) }()
		role := func(name, version string) *rbacv1.Role {
			return &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: version}}
		}
		store.Add(role("a", "5"))
		end := role("", "5")
		end.Annotations = map[string]string{metav1.InitialEventsAnnotationKey: "true"}
		store.Action(watch.Bookmark, end)
		<-f.Synced()
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

// A Follower used to know nothing if its store could not stream initial events, as with an etcd that
// does not report progress.
func TestFollowerListsIfItCannotStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		have := map[string]bool{}
		f := NewFollower(func(r *rbacv1.Role) { have[r.Name] = true }, func(key types.NamespacedName) { delete(have, key.Name) })
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		store := &listed{names: []string{"a", "b"}}
		go func() { ended <- f.Run(ctx, store, fields.Everything()) }()
		<-f.Synced()
		synctest.Wait()
		if !maps.Equal(have, map[string]bool{"a": true, "b": true}) {
			t.Errorf("knows %v", have)
		}
		store.names = []string{"b", "c"}
		store.watch.Error(&apierrors.NewResourceExpired("too old").ErrStatus)
		time.Sleep(time.Second)
		synctest.Wait()
		if !maps.Equal(have, map[string]bool{"b": true, "c": true}) {
			t.Errorf("after a gap, knows %v", have)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// listed is a store that cannot stream its initial state.
type listed struct {
	names []string
	watch *watch.FakeWatcher
}

func (l *listed) List(context.Context, *internalversion.ListOptions) (runtime.Object, error) {
	list := &rbacv1.RoleList{ListMeta: metav1.ListMeta{ResourceVersion: "9"}}
	for _, name := range l.names {
		list.Items = append(list.Items, rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: "5"}})
	}
	return list, nil
}

func (l *listed) Watch(_ context.Context, o *internalversion.ListOptions) (watch.Interface, error) {
	if o.SendInitialEvents != nil {
		return nil, errors.ErrUnsupported
	}
	l.watch = watch.NewFake()
	return l.watch, nil
}
