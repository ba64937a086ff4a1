package storage

import (
	"context"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	apistorage "k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/feature"
)

// A watch cache that had just begun kept all others from the progress that they waited for, until the next write: a
// server that started beside an idle one was never ready.
func TestNewWatchCacheHoldsUpNoOther(t *testing.T) {
	b := openBackend(t)
	older := openMaps(t, b, "configmaps")
	listed(t, older, "configmaps")
	// Its revision is news to the older cache only; nobody writes after it.
	if _, err := b.client.Put(t.Context(), "/elsewhere", ""); err != nil {
		t.Fatal(err)
	}
	listed(t, openMaps(t, b, "secrets"), "secrets")
	listed(t, older, "configmaps")
}

// listed waits until a watch that starts with a consistent list has had all of it, as informers do.
func listed(t *testing.T, s apistorage.Interface, resource string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for s.ReadinessCheck() != nil || !feature.DefaultFeatureSupportChecker.Supports(apistorage.RequestWatchProgress) {
		time.Sleep(time.Millisecond)
	}
	w, err := s.Watch(ctx, "/"+resource+"/", apistorage.ListOptions{
		SendInitialEvents: new(true), Recursive: true,
		Predicate: apistorage.SelectionPredicate{
			Label: labels.Everything(), Field: fields.Everything(), GetAttrs: apistorage.DefaultNamespaceScopedAttr, AllowWatchBookmarks: true,
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	if e := <-w.ResultChan(); e.Type != watch.Bookmark {
		t.Fatalf("%+v", e)
	}
}

// openMaps opens storage that has config maps, whatever it is called.
func openMaps(t *testing.T, b *Backend, resource string) apistorage.Interface {
	t.Helper()
	opts, err := coreOptions(b).GetRESTOptions(v1.Resource(resource), nil)
	if err != nil {
		t.Fatal(err)
	}
	key := func(o runtime.Object) (string, error) {
		m, err := meta.Accessor(o)
		if err != nil {
			return "", err
		}
		return "/" + opts.ResourcePrefix + "/" + m.GetNamespace() + "/" + m.GetName(), nil
	}
	s, destroy, err := opts.Decorator(opts.StorageConfig, "/"+opts.ResourcePrefix, key,
		func() runtime.Object { return &v1.ConfigMap{} }, func() runtime.Object { return &v1.ConfigMapList{} },
		apistorage.DefaultNamespaceScopedAttr, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(destroy)
	return s
}
