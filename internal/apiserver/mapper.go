package apiserver

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
)

// mapper knows the resources of all kinds that this server answers for, also those of others. It reads
// discovery when somebody first asks, and again when it does not know a kind.
type mapper struct {
	meta.ResettableRESTMapper

	mu   sync.Mutex
	read time.Time // when discovery was last read for a kind that was not known
}

// rereadAfter is how often discovery is read for kinds that nobody knows.
const rereadAfter = time.Second

func newMapper(cfg *rest.Config) (*mapper, error) {
	client, err := discovery.NewDiscoveryClientForConfig(cfg)
	if err != nil {
		return nil, err
	}
	return &mapper{ResettableRESTMapper: restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(client))}, nil
}

// RESTMapping implements meta.RESTMapper.
func (m *mapper) RESTMapping(kind schema.GroupKind, versions ...string) (*meta.RESTMapping, error) {
	return reread(m, func() (*meta.RESTMapping, error) { return m.ResettableRESTMapper.RESTMapping(kind, versions...) })
}

// KindFor implements meta.RESTMapper.
func (m *mapper) KindFor(resource schema.GroupVersionResource) (schema.GroupVersionKind, error) {
	return reread(m, func() (schema.GroupVersionKind, error) { return m.ResettableRESTMapper.KindFor(resource) })
}

// ResourceFor implements meta.RESTMapper.
func (m *mapper) ResourceFor(resource schema.GroupVersionResource) (schema.GroupVersionResource, error) {
	return reread(m, func() (schema.GroupVersionResource, error) { return m.ResettableRESTMapper.ResourceFor(resource) })
}

func reread[T any](m *mapper, ask func() (T, error)) (T, error) {
	out, err := ask()
	if !meta.IsNoMatchError(err) || !m.due(time.Now()) {
		return out, err
	}
	m.Reset()
	return ask()
}

func (m *mapper) due(now time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if now.Sub(m.read) < rereadAfter {
		return false
	}
	m.read = now
	return true
}
