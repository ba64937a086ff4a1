package dra

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"
)

// TestSlicesOfDriversThatStayAway are removed, of those only, and after a while; also of drivers that were there before
// the kubelet was started, and if the API server does not answer at first.
func TestSlicesOfDriversThatStayAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, err := New(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		client := fake.NewClientset()
		m.Client = client
		var mu sync.Mutex
		var all []string
		failures := 1
		removed := func() string {
			mu.Lock()
			defer mu.Unlock()
			out := strings.Join(all, " ")
			all = nil
			return out
		}
		client.PrependReactor("delete-collection", "resourceslices", func(a ktesting.Action) (bool, runtime.Object, error) {
			mu.Lock()
			defer mu.Unlock()
			if failures--; failures >= 0 {
				return true, nil, errors.New("the API server is busy")
			}
			d, _ := a.(ktesting.DeleteCollectionAction)
			all = append(all, d.GetListRestrictions().Fields.String())
			return true, nil, nil
		})
		there := func(driver string, is bool) {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.byName = map[string][]*instance{driver: {{connected: is}}}
		}
		there("there", true)
		go func() { _ = m.RemoveSlices(t.Context(), "n") }()
		time.Sleep(25 * time.Second)
		wantString(t, "removed too early", removed(), "")
		time.Sleep(20 * time.Second) // with the attempt that failed
		wantString(t, "removed", removed(), "spec.driver!=there,spec.nodeName=n")
		there("there", false)
		m.changed("there", false)
		time.Sleep(20 * time.Second)
		there("there", true)
		m.changed("there", true)
		time.Sleep(time.Minute)
		wantString(t, "removed although it came back", removed(), "")
		there("there", false)
		m.changed("there", false)
		time.Sleep(31 * time.Second)
		wantString(t, "removed", removed(), "spec.driver=there,spec.nodeName=n")
	})
}
