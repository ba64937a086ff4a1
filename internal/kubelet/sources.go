package kubelet

import (
	"context"
	"sync"

	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/kubelet/objectcache"
	"wherry.dev/internal/kubelet/podplan"
	"wherry.dev/internal/kubelet/podsource"
)

// runSources starts everything that says which pods should run.
func (k *Kubelet) runSources(ctx context.Context, g *errgroup.Group) {
	client := k.deps.Client
	k.expect("none")
	defer k.sourceSynced("none") // with no source at all, everything is known
	if path := k.cfg.StaticPodPath; path != "" {
		k.expect("file")
		files := podsource.Manifests{
			Path: path, Node: k.cfg.NodeName, Every: k.cfg.FileCheckFrequency.Duration, Bad: k.badManifest,
			Set: func(pods []*v1.Pod) { k.setStaticPods("file", pods) },
		}
		g.Go(func() error { return files.Follow(ctx) })
	}
	if url := k.cfg.StaticPodURL; url != "" {
		k.expect("http")
		g.Go(func() error {
			return podsource.URL(ctx, url, k.cfg.StaticPodURLHeader, k.cfg.NodeName, k.cfg.HTTPCheckFrequency.Duration,
				func(pods []*v1.Pod) { k.setStaticPods("http", pods) })
		})
	}
	if client == nil {
		k.admission.Listed(nil)
		return
	}
	g.Go(func() error { return k.statics.Run(ctx) })
	k.expect("api")
	g.Go(func() error {
		podsource.Pods(ctx, client, k.cfg.NodeName, podsource.Events{
			Set:  func(obj runtime.Object) { k.setAPIPod(obj.(*v1.Pod)) },
			Gone: func(obj runtime.Object) { k.removeAPIPod(obj.(*v1.Pod)) },
			Synced: func() {
				k.apiSynced.Store(true)
				k.admission.Listed(k.ran)
				k.table.WakeAll()
				k.statics.Poke()
				k.sourceSynced("api")
			},
		})
		return nil
	})
	g.Go(func() error {
		podsource.Services(ctx, client, podsource.Events{
			Set:    func(obj runtime.Object) { k.services.set(obj.(*v1.Service)) },
			Gone:   func(obj runtime.Object) { k.services.remove(obj.(*v1.Service)) },
			Synced: k.services.synced,
		})
		return nil
	})
	g.Go(func() error {
		podsource.Node(ctx, client, k.cfg.NodeName, podsource.Events{
			Set:  func(obj runtime.Object) { k.node.Observe(obj.(*v1.Node)) },
			Gone: func(runtime.Object) { k.node.Lost() },
		})
		return nil
	})
}

func (k *Kubelet) expect(name string) {
	k.syncMu.Lock()
	defer k.syncMu.Unlock()
	k.unsynced[name] = true
}

// sourceSynced notes that a source has delivered everything it has. After the last one, pods that
// no source has are absent.
func (k *Kubelet) sourceSynced(name string) {
	k.syncMu.Lock()
	was := len(k.unsynced)
	delete(k.unsynced, name)
	all := was > 0 && len(k.unsynced) == 0
	k.syncMu.Unlock()
	if all {
		k.table.Synced()
		k.statics.Poke()
		close(k.synced)
	}
}

// setStaticPods takes over what a source of static pods ("file", "http") has now.
func (k *Kubelet) setStaticPods(from string, pods []*v1.Pod) {
	k.statics.Set(from, pods)
	k.sourceSynced(from)
}

// badManifest reports, where kubectl shows it, that a manifest has no effect: on the pod that keeps
// running as it was, or on the node.
func (k *Kubelet) badManifest(file string, kept *v1.Pod, err error) {
	if kept == nil {
		k.events.Eventf(k.node.Ref(), v1.EventTypeWarning, "FailedValidation", "Static pod manifest %s cannot be used: %v", file, err)
		return
	}
	k.events.Eventf(kept, v1.EventTypeWarning, "FailedValidation",
		"Static pod manifest %s cannot be used: %v. The pod keeps running as it was; fix the file, or remove it to stop the pod", file, err)
}

func (k *Kubelet) setAPIPod(pod *v1.Pod) {
	if pods.IsMirror(pod) {
		k.statics.SetMirror(pod, false)
		return
	}
	k.objects.Use(pod.UID, objectcache.Refs(pod))
	old, known := k.table.Get(pod.UID)
	if known {
		k.checkUpdate(old.Pod, pod)
	}
	k.table.Set(pod, false)
	if !known && k.apiSynced.Load() {
		k.admission.Arrived(pod)
	}
}

// checkUpdate reports an update that the node cannot apply completely.
func (k *Kubelet) checkUpdate(old, pod *v1.Pod) {
	missing, err := podplan.UpdateNeeds(old, pod, k.node.Node())
	if err != nil {
		missing = err.Error()
	}
	if missing != "" {
		k.events.Eventf(pod, v1.EventTypeWarning, "FailedNodeDeclaredFeaturesCheck", "%s", missing)
	}
}

func (k *Kubelet) removeAPIPod(pod *v1.Pod) {
	if pods.IsMirror(pod) {
		k.statics.SetMirror(pod, true)
		return
	}
	k.objects.Use(pod.UID, nil) // after the last update, which may have come when the pod was forgotten
	k.table.Remove(pod.UID, pod)
}

// services are the cluster's services, for the environment of containers.
type services struct {
	mu    sync.Mutex
	byUID map[types.UID]*v1.Service
	cache []*v1.Service
	known chan struct{}
	once  sync.Once
}

// newServices returns the store; without an API server it is known to be empty.
func newServices(follow bool) *services {
	s := &services{byUID: map[types.UID]*v1.Service{}, known: make(chan struct{})}
	if !follow {
		s.synced()
	}
	return s
}

func (s *services) set(svc *v1.Service) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.byUID[svc.UID] = svc
	s.cache = nil
}

func (s *services) remove(svc *v1.Service) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.byUID, svc.UID)
	s.cache = nil
}

func (s *services) synced() { s.once.Do(func() { close(s.known) }) }

// list returns all services once they are known; a static pod gets those known so far.
func (s *services) list(ctx context.Context, pod *v1.Pod) ([]*v1.Service, error) {
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
