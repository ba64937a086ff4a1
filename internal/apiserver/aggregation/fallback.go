package aggregation

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	apiregistrationclient "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/typed/apiregistration/v1"
	apiregistrationinformers "k8s.io/kube-aggregator/pkg/client/informers/externalversions/apiregistration/v1"
)

// fallback keeps the APIService of a version that this server serves only as long as nobody else
// does: whoever wants to takes it over by pointing the APIService to a service of his own, as the
// manifests of metrics-server do, and it comes back when that APIService is deleted.
type fallback struct {
	want    *apiregistrationv1.APIService // nil: this server does not serve the version
	name    string
	api     apiregistrationclient.APIServicesGetter
	get     func() (*apiregistrationv1.APIService, error)
	synced  cache.DoneChecker
	changed chan struct{}
}

// fallbackRetry is the pause after a failure to write the APIService.
const fallbackRetry = 5 * time.Second

func newFallback(informer apiregistrationinformers.APIServiceInformer, api apiregistrationclient.APIServicesGetter,
	gv schema.GroupVersion, serve bool,
) (*fallback, error) {
	service := local(gv)
	f := &fallback{name: service.Name, api: api, changed: make(chan struct{}, 1)}
	if serve {
		f.want = service
	}
	lister := informer.Lister()
	f.get = func() (*apiregistrationv1.APIService, error) { return lister.Get(f.name) }
	wake := func(o any) {
		if name, err := cache.DeletionHandlingMetaNamespaceKeyFunc(o); err != nil || name != f.name {
			return
		}
		select {
		case f.changed <- struct{}{}:
		default:
		}
	}
	reg, err := informer.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: wake, UpdateFunc: func(_, now any) { wake(now) }, DeleteFunc: wake,
	})
	if err != nil {
		return nil, err
	}
	f.synced = reg.HasSyncedChecker()
	return f, nil
}

// run keeps the APIService until ctx ends.
func (f *fallback) run(ctx context.Context) {
	if !cache.WaitFor(ctx, "", f.synced) {
		return
	}
	for {
		var again <-chan time.Time
		if err := f.sync(ctx); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Cannot register a group that this server serves; trying again", "in", fallbackRetry)
			again = time.After(fallbackRetry)
		}
		select {
		case <-ctx.Done():
			return
		case <-f.changed:
		case <-again:
		}
	}
}

// sync creates the APIService if there is none. If this server does not serve the version, it deletes
// one that leads here.
func (f *fallback) sync(ctx context.Context) error {
	have, err := f.get()
	switch {
	case err == nil && f.want == nil && have.Spec.Service == nil:
		err = f.api.APIServices().Delete(ctx, f.name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(have.UID))})
		if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
			return nil // the watch tells
		}
	case apierrors.IsNotFound(err) && f.want != nil:
		_, err = f.api.APIServices().Create(ctx, f.want, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return nil // the watch tells
		}
	case apierrors.IsNotFound(err):
		return nil
	}
	if err != nil {
		return fmt.Errorf("APIService %s: %w", f.name, err)
	}
	return nil
}
