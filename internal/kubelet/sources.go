package kubelet

import (
	"context"

	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/kubelet/objectcache"
	"wherry.dev/internal/kubelet/podplan"
	"wherry.dev/internal/kubelet/podsource"
)

// The sources of pods. The start of all of them counts as one, so that with no source at all
// everything is known once they have started.
const fromStart, fromFile, fromURL, fromAPI = "start", "file", "http", "api"

// awaitSources returns the sources that the configuration names.
func (k *Kubelet) awaitSources() *podsource.Awaited {
	names := []string{fromStart}
	if k.cfg.StaticPodPath != "" {
		names = append(names, fromFile)
	}
	if k.cfg.StaticPodURL != "" {
		names = append(names, fromURL)
	}
	if k.deps.Client != nil {
		names = append(names, fromAPI)
	}
	return podsource.Await(names...)
}

// runSources starts everything that says which pods should run.
func (k *Kubelet) runSources(ctx context.Context, g *errgroup.Group) {
	client := k.deps.Client
	defer k.sources.Delivered(fromStart)
	if path := k.cfg.StaticPodPath; path != "" {
		files := podsource.Manifests{
			Path: path, Node: k.cfg.NodeName, Every: k.cfg.FileCheckFrequency.Duration, Bad: k.badManifest,
			Set: func(pods []*v1.Pod) { k.setStaticPods(fromFile, pods) },
		}
		g.Go(func() error { return files.Follow(ctx) })
	}
	if url := k.cfg.StaticPodURL; url != "" {
		g.Go(func() error {
			return podsource.URL(ctx, url, k.cfg.StaticPodURLHeader, k.cfg.NodeName, k.cfg.HTTPCheckFrequency.Duration,
				func(pods []*v1.Pod) { k.setStaticPods(fromURL, pods) })
		})
	}
	if client == nil {
		k.admission.Listed(nil)
		return
	}
	g.Go(func() error { return k.statics.Run(ctx) })
	g.Go(func() error { return k.services.Run(ctx) })
	g.Go(func() error {
		podsource.Pods(ctx, client, k.cfg.NodeName, podsource.Events{
			Set:    func(obj runtime.Object) { k.setAPIPod(obj.(*v1.Pod)) },
			Gone:   func(obj runtime.Object) { k.removeAPIPod(obj.(*v1.Pod)) },
			Synced: k.listed,
		})
		return nil
	})
	g.Go(func() error {
		podsource.Node(ctx, client, k.cfg.NodeName, podsource.Events{
			Set:  func(obj runtime.Object) { k.nodeSeen(obj.(*v1.Node)) },
			Gone: func(runtime.Object) { k.node.Lost() },
		})
		return nil
	})
}

// listed is called when the API server has delivered the pods that it has at first.
func (k *Kubelet) listed() {
	k.admission.Listed(k.ran)
	k.sources.Delivered(fromAPI)
	k.table.WakeAll()
	k.statics.Poke()
}

// afterSources runs something once all sources have said what they want: until then there may be
// pods that are not known.
func (k *Kubelet) afterSources(run func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		select {
		case <-k.sources.All():
			return run(ctx)
		case <-ctx.Done():
			return nil
		}
	}
}

// setStaticPods takes over what a source of static pods ("file", "http") has now.
func (k *Kubelet) setStaticPods(from string, pods []*v1.Pod) {
	k.statics.Set(from, pods)
	k.sources.Delivered(from)
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
	if !known && !k.sources.Waits(fromAPI) {
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
