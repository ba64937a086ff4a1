package storage

import (
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	apistorage "k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/kubernetes/scheme"
)

// TestWatchThatMeetsAnUnreadableObjectIsNotTakenUpAgain: the watch cache used to watch on after an error that the
// library calls internal. Its next watch could miss the object, and the list told the old one for good.
func TestWatchThatMeetsAnUnreadableObjectIsNotTakenUpAgain(t *testing.T) {
	config := filepath.Join(t.TempDir(), "encryption.yaml")
	secret := base64.StdEncoding.EncodeToString(make([]byte, 32))
	text := "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\n" +
		"resources: [{resources: [events], providers: [{aescbc: {keys: [{name: k, secret: " + secret + "}]}}]}]\n"
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	codec := func(schema.GroupResource) (runtime.Codec, runtime.GroupVersioner, error) {
		return scheme.Codecs.LegacyCodec(v1.SchemeGroupVersion), v1.SchemeGroupVersion, nil
	}
	for message, cfg := range map[string]Config{"illegal wireType": {}, "not transformable": {Encryption: Encryption{File: config}}} {
		t.Run(message, func(t *testing.T) {
			cfg.Dir = t.TempDir()
			b, err := Open(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := b.Close(); err != nil {
					t.Error(err)
				}
			}()
			// Events have no cache: this is the watch that a cache would have.
			opts, err := b.Options(codec, func(r schema.GroupResource) string { return r.Resource }).GetRESTOptions(v1.Resource("events"), nil)
			if err != nil {
				t.Fatal(err)
			}
			s, destroy, err := opts.Decorator(opts.StorageConfig, "/"+opts.ResourcePrefix,
				func(runtime.Object) (string, error) { return "", nil },
				func() runtime.Object { return &v1.Event{} }, func() runtime.Object { return &v1.EventList{} }, nil, nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer destroy()
			w, err := s.Watch(t.Context(), "/events/", apistorage.ListOptions{ResourceVersion: "1", Predicate: apistorage.Everything, Recursive: true})
			if err != nil {
				t.Fatal(err)
			}
			defer w.Stop()
			if _, err := b.client.Put(t.Context(), prefix+"/events/default/e", "k8s\x00garbage"); err != nil {
				t.Fatal(err)
			}
			e := <-w.ResultChan()
			status, ok := e.Object.(*metav1.Status)
			if e.Type != watch.Error || !ok || status.Reason != metav1.StatusReasonStoreReadError || !strings.Contains(status.Message, message) {
				t.Errorf("%s: %+v", e.Type, e.Object)
			}
		})
	}
}
