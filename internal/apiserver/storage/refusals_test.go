package storage

import (
	"context"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apistorage "k8s.io/apiserver/pkg/storage"
)

// TestRequestsWhoseTimeIsOverHaveTimedOut: they were internal errors, which a client may take for the server's fault.
func TestRequestsWhoseTimeIsOverHaveTimedOut(t *testing.T) {
	b := openBackend(t)
	ctx, cancel := context.WithDeadline(t.Context(), time.Now())
	defer cancel()
	for _, resource := range []string{"events", "configmaps"} { // without a watch cache, and with one
		s := openMaps(t, b, resource)
		list := apistorage.ListOptions{Predicate: apistorage.Everything, Recursive: true}
		for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) { // until the cache has read for the first time
			err := s.GetList(t.Context(), "/"+resource+"/", list, &v1.ConfigMapList{})
			if err == nil {
				break
			}
			if time.Now().After(end) {
				t.Fatal(err)
			}
		}
		for verb, err := range map[string]error{
			"get":    s.Get(ctx, "/"+resource+"/n/a", apistorage.GetOptions{}, &v1.ConfigMap{}),
			"list":   s.GetList(ctx, "/"+resource+"/", list, &v1.ConfigMapList{}),
			"create": s.Create(ctx, "/"+resource+"/n/a", &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "a"}}, &v1.ConfigMap{}, 0),
		} {
			if !apierrors.IsTimeout(err) {
				t.Errorf("%s %s: %v", verb, resource, err)
			}
		}
	}
}
