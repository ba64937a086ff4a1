package reflector

import (
	"context"
	"os"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"wherry.dev/test/leaks"
)

func TestMain(m *testing.M) { os.Exit(leaks.Watch(m).Run()) }

// server is an API server with no objects.
type server struct {
	list, watch error
	lists       []metav1.ListOptions
	tries       []time.Time
}

func (s *server) List(_ context.Context, o metav1.ListOptions) (*v1.SecretList, error) {
	s.lists = append(s.lists, o)
	return &v1.SecretList{ListMeta: metav1.ListMeta{ResourceVersion: "7"}}, s.list
}

func (s *server) Watch(_ context.Context, o metav1.ListOptions) (watch.Interface, error) {
	s.tries = append(s.tries, time.Now())
	if s.watch == nil && o.SendInitialEvents != nil {
		return nil, os.ErrInvalid // it knows no watch-lists
	}
	return watch.NewFake(), s.watch
}

func (s *server) follow(ctx context.Context, refused func(error)) {
	r := New(s, s, fields.OneTermEqualSelector("a", "b"))
	r.Refused = refused
	r.Run(ctx, "secrets", &v1.Secret{}, cache.NewStore(cache.MetaNamespaceKeyFunc))
}

// A kubelet whose API server was away took up to five seconds to stop.
func TestEndsAtOnceWhileConnectionsAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		began, s := time.Now(), &server{watch: syscall.ECONNREFUSED}
		s.follow(ctx, nil)
		if took := time.Since(began); took != time.Minute {
			t.Errorf("ended after %v", took)
		}
		if first, longest := s.tries[1].Sub(s.tries[0]), s.tries[len(s.tries)-1].Sub(s.tries[len(s.tries)-2]); first > 20*time.Millisecond || longest > 5*time.Second {
			t.Errorf("tried again after %v, later every %v", first, longest)
		}
	})
}

// An API server without watch-lists is asked for what it has now, not for what is in its cache.
func TestListIsUpToDate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(10*time.Millisecond, cancel)
		s := &server{}
		s.follow(ctx, func(err error) { t.Error(err) })
		if len(s.lists) != 1 || s.lists[0].ResourceVersion != "" || s.lists[0].FieldSelector != "a=b" {
			t.Errorf("listed with %+v", s.lists)
		}
	})
}

func TestRefusalsAreTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var at []time.Duration
		began := time.Now()
		(&server{list: os.ErrPermission}).follow(ctx, func(error) { at = append(at, time.Since(began)/time.Millisecond) })
		if !slices.Equal(at, []time.Duration{0, 10, 30, 70, 150, 310, 630}) {
			t.Errorf("tried after %d ms", at)
		}
	})
}
