package componentstatus

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	"k8s.io/apimachinery/pkg/fields"

	"wherry.dev/internal/apiserver/registry"
)

func TestComponentsAreAsked(t *testing.T) {
	answer := http.StatusOK
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(answer)
		_, _ = w.Write([]byte("ok"))
	}))
	defer server.Close()
	u, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(u.Port())
	if err != nil {
		t.Fatal(err)
	}
	nobody, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	absent := nobody.Addr().(*net.TCPAddr).Port
	if err := nobody.Close(); err != nil {
		t.Fatal(err)
	}
	s := New(map[string]Check{
		"scheduler": Local(port), "controller-manager": Inside, "gone": Local(absent),
		"etcd-0": Try(func(context.Context) error { return errors.New("no quorum") }),
	}, registry.Table[*corev1.ComponentStatus]{})
	check := func(want map[string]string, opts *internalversion.ListOptions) {
		t.Helper()
		out, err := s.List(t.Context(), opts)
		if err != nil {
			t.Fatal(err)
		}
		list := out.(*corev1.ComponentStatusList).Items
		if len(list) != len(want) {
			t.Errorf("%d components, want %d", len(list), len(want))
		}
		for _, c := range list {
			if got := string(c.Conditions[0].Status); got != want[c.Name] {
				t.Errorf("%s: %s, want %s: %+v", c.Name, got, want[c.Name], c.Conditions[0])
			}
		}
	}
	check(map[string]string{"scheduler": "True", "controller-manager": "True", "etcd-0": "False", "gone": "False"}, nil)
	answer = http.StatusInternalServerError
	check(map[string]string{"scheduler": "False"}, &internalversion.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", "scheduler")})
	if _, err := s.Get(t.Context(), "etcd-1", nil); !apierrors.IsNotFound(err) {
		t.Errorf("another etcd: %v", err)
	}
}
