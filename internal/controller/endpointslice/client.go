package endpointslice

import (
	"context"
	"sync"

	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientset "k8s.io/client-go/kubernetes"
	typeddiscovery "k8s.io/client-go/kubernetes/typed/discovery/v1"
	"k8s.io/client-go/tools/cache"

	"wherry.dev/internal/controller/backing"
	"wherry.dev/internal/controller/written"
)

// recordingClient notes what the library writes to slices, for the controller to wait for, and which
// writes failed because the informer has an old state: the library's own errors do not tell.
type recordingClient struct {
	clientset.Interface
	log    *written.Log
	slices cache.Indexer
	behind *sync.Map // keys of services
}

func (c recordingClient) failed(key string, err error) {
	if key != "" && (apierrors.IsConflict(err) || apierrors.IsNotFound(err)) {
		c.behind.Store(key, true)
	}
}

// DiscoveryV1 implements clientset.Interface.
func (c recordingClient) DiscoveryV1() typeddiscovery.DiscoveryV1Interface {
	return recordingGroup{c.Interface.DiscoveryV1(), c}
}

type recordingGroup struct {
	typeddiscovery.DiscoveryV1Interface
	client recordingClient
}

// EndpointSlices implements typeddiscovery.DiscoveryV1Interface.
func (g recordingGroup) EndpointSlices(namespace string) typeddiscovery.EndpointSliceInterface {
	return recordingSlices{g.DiscoveryV1Interface.EndpointSlices(namespace), namespace, g.client}
}

type recordingSlices struct {
	typeddiscovery.EndpointSliceInterface
	namespace string
	client    recordingClient
}

// Create implements typeddiscovery.EndpointSliceInterface.
func (r recordingSlices) Create(ctx context.Context, s *discoveryv1.EndpointSlice, opts metav1.CreateOptions) (*discoveryv1.EndpointSlice, error) {
	got, err := r.EndpointSliceInterface.Create(ctx, s, opts)
	if err == nil {
		r.client.log.Wrote(backing.ServiceOf(s), got)
	}
	return got, err
}

// Update implements typeddiscovery.EndpointSliceInterface.
func (r recordingSlices) Update(ctx context.Context, s *discoveryv1.EndpointSlice, opts metav1.UpdateOptions) (*discoveryv1.EndpointSlice, error) {
	got, err := r.EndpointSliceInterface.Update(ctx, s, opts)
	if err != nil {
		r.client.failed(backing.ServiceOf(s), err)
		return nil, err
	}
	r.client.log.Wrote(backing.ServiceOf(s), got)
	return got, nil
}

// Delete implements typeddiscovery.EndpointSliceInterface.
func (r recordingSlices) Delete(ctx context.Context, name string, opts metav1.DeleteOptions) error {
	item, _, err := r.client.slices.GetByKey(r.namespace + "/" + name)
	if err != nil {
		return err
	}
	err = r.EndpointSliceInterface.Delete(ctx, name, opts)
	s, ok := item.(*discoveryv1.EndpointSlice)
	switch {
	case ok && err == nil:
		r.client.log.Deleted(backing.ServiceOf(s), s)
	case ok:
		r.client.failed(backing.ServiceOf(s), err)
	}
	return err
}
