package garbagecollector

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/klog/v2"

	"wherry.dev/internal/controller"
)

// syncErrors has upstream's name.
var syncErrors = metrics.NewCounter(&metrics.CounterOpts{
	Subsystem: "garbagecollector_controller", Name: "resources_sync_error_total",
	Help: "How often the kinds that are served, or the objects of one of them, could not be found out.",
})

func init() { legacyregistry.MustRegister(syncErrors) }

// patienceForKind is how long the informer of a kind may take before somebody is told of it, and how long
// the collector waits at its start for those that are slow (upstream's values).
const patienceForKind, patienceAtStart = 30 * time.Second, time.Minute

// settling is when discovery is read after a change of the kinds that are served: it is behind the object
// that describes them, and an API server is behind another one.
var settling = []time.Duration{100 * time.Millisecond, time.Second, 5 * time.Second, 30 * time.Second}

// describing are the resources whose objects say which kinds are served.
var describing = map[schema.GroupResource]bool{
	{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"}: true,
	{Group: "apiregistration.k8s.io", Resource: "apiservices"}:             true,
}

// kinds follows what the API server serves, and has an informer of the metadata of each kind that can be
// collected. Those that describe kinds are among them, so that nothing is polled: discovery is read again
// when an object of these has changed. A kind whose informer does not come up is in no other's way.
type kinds struct {
	discovery discovery.DiscoveryInterface
	metadata  metadata.Interface
	// shared are informers that run anyway, of whole objects.
	shared  map[schema.GroupVersionResource]cache.SharedIndexInformer
	changed func(kind schema.GroupVersionKind, old, obj any)
	// served is called when kinds are served that were not, vanished when the objects of one are not
	// followed any more.
	served   func(map[schema.GroupVersionKind]bool)
	vanished func(schema.GroupVersionKind)

	wake  chan struct{} // capacity 1: what is served has changed
	first chan struct{} // closed when something is known

	mu       sync.Mutex // guards all below
	mapper   meta.RESTMapper
	all      map[schema.GroupVersionKind]bool
	monitors map[watched]*monitor
}

// monitor is the informer of a kind.
type monitor struct {
	synced cache.DoneChecker
	stop   func() // returns when no event will come any more
}

// RESTMapping returns the mapping of a kind that is served.
func (k *kinds) RESTMapping(kind schema.GroupKind, versions ...string) (*meta.RESTMapping, error) {
	k.mu.Lock()
	mapper := k.mapper
	k.mu.Unlock()
	if mapper == nil {
		return nil, &meta.NoKindMatchError{GroupKind: kind, SearchedVersions: versions}
	}
	return mapper.RESTMapping(kind, versions...)
}

// follow reads discovery until ctx ends, and returns when all informers have ended.
func (k *kinds) follow(ctx context.Context) {
	defer k.stopAll()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for reads, failures := len(settling), 0; ; {
		select {
		case <-ctx.Done():
			return
		case <-k.wake:
			if reads > 0 {
				reads = 0
				timer.Reset(settling[0])
			}
			continue
		case <-timer.C:
		}
		reads++
		if err := k.read(ctx); err != nil && ctx.Err() == nil {
			syncErrors.Inc()
			wait := min(time.Second<<min(failures, 6), time.Minute)
			failures++
			klog.FromContext(ctx).Error(err, "Discovery failed, will retry", "controller", "garbagecollector", "after", wait)
			timer.Reset(wait)
			continue
		}
		if failures = 0; reads < len(settling) {
			timer.Reset(settling[reads])
		}
	}
}

// begun waits until the objects of all kinds are known, but not for ever: what an object's owner is, the
// API server itself is asked before anything is deleted.
func (k *kinds) begun(ctx context.Context) {
	select {
	case <-k.first:
	case <-ctx.Done():
		return
	}
	var synced []cache.DoneChecker
	k.mu.Lock()
	for _, m := range k.monitors {
		synced = append(synced, m.synced)
	}
	k.mu.Unlock()
	limited, cancel := context.WithTimeout(ctx, patienceAtStart)
	defer cancel()
	if !cache.WaitFor(limited, "", synced...) && ctx.Err() == nil {
		klog.FromContext(ctx).Info("Not all kinds could be listed, garbage of the others is collected nevertheless",
			"controller", "garbagecollector")
	}
}

// read reads discovery once, and follows what it tells. An error may be about some groups only: what is
// known of those stays as it is.
func (k *kinds) read(ctx context.Context) error {
	groups, lists, err := k.discovery.ServerGroupsAndResources()
	failed, partly := discovery.GroupDiscoveryFailedErrorGroups(err)
	if err != nil && !partly {
		return err
	}
	now := arrange(groups, lists)
	if len(now.resources) == 0 {
		return errors.Join(errors.New("the API server serves nothing that could be collected"), err)
	}
	k.mu.Lock()
	monitors := maps.Clone(k.monitors)
	k.mu.Unlock()
	for w, m := range monitors {
		if _, unknown := failed[w.kind.GroupVersion()]; unknown || slices.Contains(now.resources, w) {
			continue
		}
		klog.FromContext(ctx).V(2).Info("A kind is not served any more",
			"controller", "garbagecollector", "resource", w.resource)
		m.stop()
		delete(monitors, w)
		k.vanished(w.kind)
	}
	k.learn(now, monitors)
	for _, w := range now.resources {
		if monitors[w] == nil {
			if err := k.start(ctx, w); err != nil {
				return err
			}
		}
	}
	select {
	case <-k.first:
	default:
		close(k.first)
	}
	return err
}

// learn takes in what is served, and which informers are left.
func (k *kinds) learn(now served, monitors map[watched]*monitor) {
	k.mu.Lock()
	fresh := maps.Clone(now.kinds)
	maps.DeleteFunc(fresh, func(kind schema.GroupVersionKind, _ bool) bool { return k.all[kind] })
	k.mapper, k.all, k.monitors = restmapper.NewDiscoveryRESTMapper(now.groups), now.kinds, monitors
	k.mu.Unlock()
	if len(fresh) > 0 {
		k.served(fresh)
	}
}

// start follows a kind, by an informer of its own unless there is one already.
func (k *kinds) start(ctx context.Context, w watched) error {
	informer, shared := k.shared[w.resource]
	if !shared {
		informer = metadatainformer.NewFilteredMetadataInformer(k.metadata, w.resource, metav1.NamespaceAll, 0, cache.Indexers{}, nil).Informer()
		if err := informer.SetTransform(strip); err != nil {
			return fmt.Errorf("watch %s: %w", w.resource, err)
		}
	}
	handler, err := informer.AddEventHandler(controller.Handler(func(old, obj any) {
		k.changed(w.kind, old, obj)
		if describing[w.resource.GroupResource()] {
			k.resourcesChanged()
		}
	}))
	if err != nil {
		return fmt.Errorf("watch %s: %w", w.resource, err)
	}
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { awaitSync(ctx, w, handler.HasSyncedChecker()) })
	end := func() error { return nil }
	if shared {
		end = func() error { return informer.RemoveEventHandler(handler) }
	} else {
		running.Go(func() { informer.RunWithContext(ctx) })
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.monitors[w] = &monitor{synced: handler.HasSyncedChecker(), stop: func() {
		if err := end(); err != nil {
			klog.FromContext(ctx).Error(err, "Cannot leave an informer", "controller", "garbagecollector", "resource", w.resource)
		}
		cancel()
		running.Wait()
	}}
	return nil
}

// awaitSync tells of an informer that does not come up.
func awaitSync(ctx context.Context, w watched, synced cache.DoneChecker) {
	limited, cancel := context.WithTimeout(ctx, patienceForKind)
	defer cancel()
	if !cache.WaitFor(limited, "", synced) && ctx.Err() == nil {
		syncErrors.Inc()
		klog.FromContext(ctx).Info("The objects of a kind cannot be listed, those that depend on others stay",
			"controller", "garbagecollector", "resource", w.resource)
	}
}

func (k *kinds) resourcesChanged() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

func (k *kinds) stopAll() {
	k.mu.Lock()
	monitors := maps.Clone(k.monitors)
	k.mu.Unlock()
	for _, m := range monitors {
		m.stop()
	}
}

// served is what the API server serves.
type served struct {
	groups    []*restmapper.APIGroupResources
	kinds     map[schema.GroupVersionKind]bool // in all versions
	resources []watched
}

// watched is a resource that can be collected, in its group's preferred version.
type watched struct {
	resource schema.GroupVersionResource
	kind     schema.GroupVersionKind
}

// arrange puts what discovery tells in order.
func arrange(groups []*metav1.APIGroup, lists []*metav1.APIResourceList) served {
	byVersion := map[string][]metav1.APIResource{}
	for _, l := range lists {
		byVersion[l.GroupVersion] = l.APIResources
	}
	out := served{kinds: map[schema.GroupVersionKind]bool{}}
	for _, g := range groups {
		group := &restmapper.APIGroupResources{Group: *g, VersionedResources: map[string][]metav1.APIResource{}}
		versions := slices.Clone(g.Versions)
		slices.SortStableFunc(versions, func(a, b metav1.GroupVersionForDiscovery) int {
			return preference(a, g) - preference(b, g)
		})
		seen := map[string]bool{}
		for _, v := range versions {
			group.VersionedResources[v.Version] = byVersion[v.GroupVersion]
			gv := schema.GroupVersion{Group: g.Name, Version: v.Version}
			for _, r := range byVersion[v.GroupVersion] {
				out.kinds[gv.WithKind(r.Kind)] = true
				if collectable(gv, r) && !seen[r.Name] {
					seen[r.Name] = true
					out.resources = append(out.resources, watched{gv.WithResource(r.Name), gv.WithKind(r.Kind)})
				}
			}
		}
		out.groups = append(out.groups, group)
	}
	return out
}

// preference is 0 for the group's preferred version and 1 for all others.
func preference(v metav1.GroupVersionForDiscovery, g *metav1.APIGroup) int {
	if v.Version == g.PreferredVersion.Version {
		return 0
	}
	return 1
}

// collectable reports whether a resource can be watched and deleted. Events have no dependents, and
// are too many.
func collectable(gv schema.GroupVersion, r metav1.APIResource) bool {
	if r.Name == "events" && (gv.Group == "" || gv.Group == "events.k8s.io") {
		return false
	}
	return discovery.SupportsAllVerbs{Verbs: []string{"delete", "list", "watch"}}.Match(gv.String(), &r)
}
