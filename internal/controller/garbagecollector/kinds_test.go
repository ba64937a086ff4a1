package garbagecollector

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	metadatafake "k8s.io/client-go/metadata/fake"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-base/metrics/testutil"
)

// cluster is an API server in memory that can serve kinds later, or not any more.
type cluster struct {
	*metadatafake.FakeMetadataClient
	t      *testing.T
	client *fake.Clientset
	gc     *Controller

	mu   sync.Mutex
	down bool // widgets have an API server of their own, which does not answer
}

var (
	crds    = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	widgets = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}
	configs = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
)

func newCluster(t *testing.T, objs ...runtime.Object) *cluster {
	t.Helper()
	scheme := metadatafake.NewTestScheme()
	if err := metav1.AddMetaToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	c := &cluster{t: t, client: fake.NewClientset(), FakeMetadataClient: metadatafake.NewSimpleMetadataClient(scheme, objs...)}
	c.serve("v1", "configmaps", "ConfigMap")
	c.serve("apiextensions.k8s.io/v1", "customresourcedefinitions", "CustomResourceDefinition")
	c.gc = New(c.client, c.FakeMetadataClient, nil)
	c.gc.kinds.discovery = guarded{c.client.Discovery(), c}
	return c
}

// guarded is the cluster's discovery.
type guarded struct {
	discovery.DiscoveryInterface
	*cluster
}

func (g guarded) ServerGroupsAndResources() ([]*metav1.APIGroup, []*metav1.APIResourceList, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	groups, lists, err := g.DiscoveryInterface.ServerGroupsAndResources()
	if !g.down || err != nil {
		return groups, lists, err
	}
	lists = slices.DeleteFunc(slices.Clone(lists), func(l *metav1.APIResourceList) bool { return l.GroupVersion == "example.com/v1" })
	return groups, lists, &discovery.ErrGroupDiscoveryFailed{Groups: map[schema.GroupVersion]error{widgets.GroupVersion(): errors.New("service unavailable")}}
}

func (c *cluster) setDown(down bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.down = down
}

// watches checks how many kinds are watched.
func (c *cluster) watches(want int) {
	c.t.Helper()
	c.gc.kinds.mu.Lock()
	defer c.gc.kinds.mu.Unlock()
	if n := len(c.gc.kinds.monitors); n != want {
		c.t.Errorf("%d kinds are watched, want %d", n, want)
	}
}

func (c *cluster) serve(version, resource, kind string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.client.Resources = append(c.client.Resources, &metav1.APIResourceList{GroupVersion: version, APIResources: []metav1.APIResource{{
		Name: resource, Kind: kind, Namespaced: version != "apiextensions.k8s.io/v1", Verbs: metav1.Verbs{"delete", "list", "watch"},
	}}})
}

// run runs the collector, and returns what stops it.
func (c *cluster) run() (stop func()) {
	ctx, cancel := context.WithCancel(c.t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		if err := c.gc.Run(ctx); err != nil {
			c.t.Error(err)
		}
	})
	synctest.Wait()
	return func() { cancel(); running.Wait() }
}

func thing(resource schema.GroupVersionResource, kind, name string, owners ...metav1.OwnerReference) *metav1.PartialObjectMetadata {
	o := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), OwnerReferences: owners}}
	o.SetGroupVersionKind(resource.GroupVersion().WithKind(kind))
	if resource != crds {
		o.Namespace = "a"
	}
	return o
}

func ownedBy(version, kind, name string) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: version, Kind: kind, Name: name, UID: types.UID(name)}
}

func (c *cluster) create(resource schema.GroupVersionResource, o *metav1.PartialObjectMetadata) {
	c.t.Helper()
	if err := c.Tracker().Create(resource, o, o.Namespace); err != nil {
		c.t.Fatal(err)
	}
	synctest.Wait()
}

func (c *cluster) exists(resource schema.GroupVersionResource, name string) bool {
	c.t.Helper()
	_, err := c.Tracker().Get(resource, "a", name)
	if err != nil && !apierrors.IsNotFound(err) {
		c.t.Fatal(err)
	}
	return err == nil
}

func (c *cluster) discoveries() (n int) {
	for _, a := range c.client.Actions() {
		if a.GetResource().Resource == "group" || a.GetResource().Resource == "resource" {
			n++
		}
	}
	return n
}

// TestKindsComeAndGo: a kind that is served later is collected from then on, without polling, and one that
// is not served any more is let go.
func TestKindsComeAndGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		stop := c.run()
		defer stop()
		c.create(configs, thing(configs, "ConfigMap", "of-a-widget", ownedBy("example.com/v1", "Widget", "gone")))
		time.Sleep(time.Hour)
		if !c.exists(configs, "of-a-widget") {
			t.Fatal("an owner of a kind that is not served was taken for absent")
		}
		before := c.discoveries()
		time.Sleep(time.Hour)
		if n := c.discoveries(); n != before {
			t.Errorf("discovery was read %d times in an hour in which nothing happened", n-before)
		}

		c.create(crds, thing(crds, "CustomResourceDefinition", "widgets.example.com"))
		time.Sleep(3 * time.Second) // it is established by and by
		c.serve("example.com/v1", "widgets", "Widget")
		c.create(widgets, thing(widgets, "Widget", "orphan", ownedBy("v1", "ConfigMap", "gone")))
		time.Sleep(10 * time.Second)
		if c.exists(widgets, "orphan") {
			t.Error("a widget without its owner is still there")
		}
		if c.exists(configs, "of-a-widget") {
			t.Error("what an absent widget owned is still there")
		}

		c.create(widgets, thing(widgets, "Widget", "owner"))
		c.create(configs, thing(configs, "ConfigMap", "kept", ownedBy("example.com/v1", "Widget", "owner")))
		c.mu.Lock()
		c.client.Resources = c.client.Resources[:2]
		c.mu.Unlock()
		if err := c.Tracker().Delete(crds, "", "widgets.example.com"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		c.watches(2)
		if !c.exists(configs, "kept") {
			t.Error("its owner's kind has vanished, which says nothing of the owner")
		}
	})
}

// TestAKindThatCannotBeListed: one whose list fails for ever kept the collector from all others.
func TestAKindThatCannotBeListed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, thing(configs, "ConfigMap", "lost", ownedBy("v1", "ConfigMap", "gone")))
		c.serve("example.com/v1", "widgets", "Widget")
		c.PrependReactor("list", "widgets", func(k8stesting.Action) (bool, runtime.Object, error) {
			return true, nil, errors.New("the conversion webhook does not answer")
		})
		before, err := testutil.GetCounterMetricValue(syncErrors)
		if err != nil {
			t.Fatal(err)
		}
		defer c.run()()
		time.Sleep(patienceAtStart + time.Second)
		if c.exists(configs, "lost") {
			t.Error("what has no owner is still there")
		}
		if after, err := testutil.GetCounterMetricValue(syncErrors); err != nil || after != before+1 {
			t.Errorf("%v errors were counted, %v", after-before, err)
		}
	})
}

// TestAGroupThatDoesNotAnswer: an aggregated API server that was down kept the collector from starting.
func TestAGroupThatDoesNotAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, thing(configs, "ConfigMap", "lost", ownedBy("v1", "ConfigMap", "gone")))
		c.serve("example.com/v1", "widgets", "Widget")
		c.setDown(true)
		defer c.run()()
		if c.exists(configs, "lost") {
			t.Error("what has no owner is still there")
		}
		c.watches(2)
		c.setDown(false)
		time.Sleep(2 * time.Minute)
		c.watches(3)
		c.setDown(true)
		c.create(crds, thing(crds, "CustomResourceDefinition", "others.example.com"))
		time.Sleep(2 * time.Minute)
		c.watches(3) // nothing says that widgets are served no more
	})
}

// TestWhatVanishedBlocksNothing: an owner whose blocking dependents are of a kind that is not served any
// more waited for them for ever.
func TestWhatVanishedBlocksNothing(t *testing.T) {
	g := newGraph()
	ref := ownedBy("v1", "ConfigMap", "owner")
	ref.BlockOwnerDeletion = new(true)
	owner := facts{identity: identity{"v1", "ConfigMap", "a", "owner", "owner"}, deleting: true, finalizers: []string{metav1.FinalizerDeleteDependents}}
	widget := facts{identity: identity{"example.com/v1", "Widget", "a", "w", "w"}, owners: []metav1.OwnerReference{ref}}
	below := facts{identity: identity{"v1", "ConfigMap", "a", "below", "below"}, owners: []metav1.OwnerReference{ownedBy("example.com/v1", "Widget", "w")}}
	for _, f := range []facts{owner, widget, below} {
		g.observe(f)
	}
	if s := g.next("owner"); s.verb != await {
		t.Fatalf("next is %s", s.verb)
	}
	out := g.vanished(schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Widget"})
	if got := fmt.Sprint(out.check); got != "[owner w]" {
		t.Errorf("looks at %s", got)
	}
	if s := g.next("owner"); s.verb != removeFinalizer {
		t.Errorf("next is %s", s.verb)
	}
	if n := g.nodes["w"]; n == nil || !n.virtual {
		t.Errorf("what has dependents: %+v", n)
	}
	if out := g.served(map[schema.GroupVersionKind]bool{{Group: "example.com", Version: "v1", Kind: "Widget"}: true}); fmt.Sprint(out.check) != "[below w]" {
		t.Errorf("looks at %v when the kind is back", out.check)
	}
}

// A kind of which others read whole objects has one watch, not two.
func TestAKindThatOthersReadIsNotWatchedTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		f := informers.NewSharedInformerFactory(c.client, 0)
		shared := f.Core().V1().ConfigMaps().Informer()
		c.gc.kinds.shared = map[schema.GroupVersionResource]cache.SharedIndexInformer{configs: shared}
		ctx, cancel := context.WithCancel(t.Context())
		f.Start(ctx.Done())
		defer f.Shutdown()
		defer cancel()
		stop := c.run()
		defer stop()
		c.watches(2)
		for _, a := range c.Actions() {
			if a.GetResource() == configs {
				t.Errorf("the collector asks for config maps: %v", a)
			}
		}
		// The dependent is known from the others' informer; it goes when its owner is gone.
		orphan := thing(configs, "ConfigMap", "orphan", ownedBy("v1", "ConfigMap", "gone"))
		c.create(configs, orphan)
		whole := &corev1.ConfigMap{ObjectMeta: orphan.ObjectMeta}
		if _, err := c.client.CoreV1().ConfigMaps("a").Create(t.Context(), whole, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if _, err := c.Tracker().Get(configs, "a", "orphan"); !apierrors.IsNotFound(err) {
			t.Errorf("an object whose owner is gone: %v", err)
		}
	})
}
