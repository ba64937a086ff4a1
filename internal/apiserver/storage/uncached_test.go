package storage

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/storage/cacher"
	"k8s.io/client-go/kubernetes/scheme"
)

// TestEventsAreNotCached: the watch cache used to keep every event for an hour, decoded, and as many
// of their changes as came in a minute; a burst of pods left tens of MiB of them.
func TestEventsAreNotCached(t *testing.T) {
	options := coreOptions(openBackend(t))
	for resource, want := range map[string]bool{"events": false, "configmaps": true} {
		opts, err := options.GetRESTOptions(v1.Resource(resource), nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := isCached(t, opts); got != want {
			t.Errorf("%s: cached is %v, want %v", resource, got, want)
		}
	}
}

func isCached(t *testing.T, opts generic.RESTOptions) bool {
	t.Helper()
	s, destroy, err := opts.Decorator(opts.StorageConfig, "/"+opts.ResourcePrefix,
		func(runtime.Object) (string, error) { return "", nil },
		func() runtime.Object { return &v1.ConfigMap{} }, func() runtime.Object { return &v1.ConfigMapList{} }, nil, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer destroy()
	_, cached := s.(refusals).Interface.(*afterFirstRead).Interface.(*cacher.CacheDelegator)
	return cached
}

// openBackend opens an embedded etcd for the test.
func openBackend(t *testing.T) *Backend {
	t.Helper()
	b, err := Open(t.Context(), Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

// coreOptions opens storage for kinds of the core group.
func coreOptions(b *Backend) generic.RESTOptionsGetter {
	codec := func(schema.GroupResource) (runtime.Codec, runtime.GroupVersioner, error) {
		return scheme.Codecs.LegacyCodec(v1.SchemeGroupVersion), v1.SchemeGroupVersion, nil
	}
	return b.Options(codec, func(r schema.GroupResource) string { return r.Resource })
}
