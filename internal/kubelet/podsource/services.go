package podsource

import (
	"context"
	"sync"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/reflector"
)

// Services are the cluster's services, for the environment of containers.
type Services struct {
	client kubernetes.Interface

	mu    sync.Mutex
	byUID map[types.UID]*v1.Service
	cache []*v1.Service
	known chan struct{}
	once  sync.Once
}

// NewServices returns the services, which Run follows; without a client there are none.
func NewServices(client kubernetes.Interface) *Services {
	s := &Services{client: client, byUID: map[types.UID]*v1.Service{}, known: make(chan struct{})}
	if client == nil {
		s.synced()
	}
	return s
}

// Run follows the services until ctx ends.
func (s *Services) Run(ctx context.Context) error {
	if s.client == nil {
		return nil
	}
	api := s.client.CoreV1().Services(metav1.NamespaceAll)
	follow(ctx, "services", reflector.New(s.client, api, fields.Everything()), &v1.Service{}, Events{
		Set:    func(obj runtime.Object) { s.set(obj.(*v1.Service)) },
		Gone:   func(obj runtime.Object) { s.remove(obj.(*v1.Service)) },
		Synced: s.synced,
	})
	return nil
}

func (s *Services) set(svc *v1.Service) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.byUID[svc.UID] = svc
	s.cache = nil
}

func (s *Services) remove(svc *v1.Service) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.byUID, svc.UID)
	s.cache = nil
}

func (s *Services) synced() { s.once.Do(func() { close(s.known) }) }

// List returns all services once they are known; a static pod gets those known so far.
func (s *Services) List(ctx context.Context, pod *v1.Pod) ([]*v1.Service, error) {
	if !pods.IsStatic(pod) {
		select {
		case <-s.known:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cache == nil {
		s.cache = make([]*v1.Service, 0, len(s.byUID))
		for _, svc := range s.byUID {
			s.cache = append(s.cache, svc)
		}
	}
	return s.cache, nil
}
