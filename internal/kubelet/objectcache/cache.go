// Package objectcache keeps the configMaps, secrets and other single objects that the node's pods
// refer to. Each has a watch of its own, because a node may not watch more than what its pods name.
// A change wakes the pods that refer to the object.
package objectcache

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
)

// Kind of an object.
type Kind string

// The kinds that pods refer to.
const (
	ConfigMap Kind = "configmaps"
	Secret    Kind = "secrets"
	// TrustBundles are all of the cluster's bundles: pods select them by signer and labels.
	TrustBundles Kind = "clustertrustbundles"
)

// Ref names an object.
type Ref struct {
	Kind      Kind
	Namespace string
	Name      string
}

func (r Ref) String() string { return fmt.Sprintf("%s %s/%s", r.Kind, r.Namespace, r.Name) }

// linger is how long an object stays watched after the last pod that referred to it, so that the
// next pod of the same kind finds it at once.
const linger = 2 * time.Minute

// forbiddenGrace is how long a refusal is attributed to the authorizer's delay.
const forbiddenGrace = 5 * time.Second

// Cache watches objects while pods refer to them.
type Cache struct {
	client  kubernetes.Interface
	changed func(types.UID)

	mu sync.Mutex
	// spawn runs a watch under Run's context; nil unless Run is running.
	spawn   func(func(context.Context)) context.CancelFunc
	entries map[Ref]*entry
	pods    map[types.UID][]Ref
	loops   sync.WaitGroup
}

// entry is one watched object. Its loop is the only writer of obj and err.
type entry struct {
	ref    Ref
	users  map[types.UID]bool
	cancel context.CancelFunc
	expiry *time.Timer
	known  chan struct{} // closed once obj or err is set
	born   time.Time
	obj    runtime.Object
	err    error
}

// New returns a cache that calls changed for each pod that refers to a changed object.
func New(client kubernetes.Interface, changed func(types.UID)) *Cache {
	return &Cache{client: client, changed: changed, entries: map[Ref]*entry{}, pods: map[types.UID][]Ref{}}
}

// Run keeps the watches running until the context ends.
func (c *Cache) Run(ctx context.Context) error {
	c.mu.Lock()
	c.spawn = func(f func(context.Context)) context.CancelFunc {
		loopCtx, cancel := context.WithCancel(ctx)
		c.loops.Go(func() { f(loopCtx) })
		return cancel
	}
	for _, e := range c.entries {
		c.startLocked(e)
	}
	c.mu.Unlock()
	<-ctx.Done()
	c.mu.Lock()
	c.spawn = nil
	for _, e := range c.entries {
		if e.expiry != nil {
			e.expiry.Stop()
		}
	}
	c.mu.Unlock()
	c.loops.Wait()
	return nil
}

// Use sets which objects a pod refers to from now on.
func (c *Cache) Use(uid types.UID, refs []Ref) {
	if c.client == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	old := c.pods[uid]
	if len(refs) == 0 {
		delete(c.pods, uid)
	} else {
		c.pods[uid] = refs
	}
	for _, ref := range refs {
		e := c.entries[ref]
		if e == nil {
			e = &entry{ref: ref, users: map[types.UID]bool{}, known: make(chan struct{}), born: time.Now()}
			c.entries[ref] = e
			c.startLocked(e)
		}
		e.users[uid] = true
		if e.expiry != nil {
			e.expiry.Stop()
			e.expiry = nil
		}
	}
	for _, ref := range old {
		if !slices.Contains(refs, ref) {
			c.releaseLocked(uid, ref)
		}
	}
}

func (c *Cache) releaseLocked(uid types.UID, ref Ref) {
	e := c.entries[ref]
	if e == nil {
		return
	}
	delete(e.users, uid)
	if len(e.users) > 0 || e.expiry != nil {
		return
	}
	e.expiry = time.AfterFunc(linger, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if len(e.users) == 0 && c.entries[ref] == e {
			delete(c.entries, ref)
			if e.cancel != nil {
				e.cancel()
			}
		}
	})
}

func (c *Cache) startLocked(e *entry) {
	if c.spawn == nil || e.cancel != nil {
		return
	}
	e.cancel = c.spawn(func(ctx context.Context) { c.loop(ctx, e) })
}

// ErrNoClient is returned to a pod that refers to an object when there is no API server.
var ErrNoClient = errors.New("no API server is configured")

// Get returns an object that the pod uses. It waits for the first answer.
func (c *Cache) Get(ctx context.Context, ref Ref) (runtime.Object, error) {
	if c.client == nil {
		return nil, fmt.Errorf("%s: %w", ref, ErrNoClient)
	}
	c.mu.Lock()
	e := c.entries[ref]
	c.mu.Unlock()
	if e == nil {
		return nil, fmt.Errorf("%s is not used by any pod of this node", ref)
	}
	select {
	case <-e.known:
	case <-ctx.Done():
		return nil, fmt.Errorf("%s: %w", ref, context.Cause(ctx))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return e.obj, e.err
}

// For returns a view of the cache whose look-ups end with the context.
func (c *Cache) For(ctx context.Context) View { return View{ctx, c} }

// View looks up objects under one context.
type View struct {
	ctx   context.Context
	cache *Cache
}

// ConfigMap returns a configMap.
func (v View) ConfigMap(namespace, name string) (*v1.ConfigMap, error) {
	obj, err := v.cache.Get(v.ctx, Ref{ConfigMap, namespace, name})
	if err != nil {
		return nil, err
	}
	return obj.(*v1.ConfigMap), nil
}

// Secret returns a secret.
func (v View) Secret(namespace, name string) (*v1.Secret, error) {
	obj, err := v.cache.Get(v.ctx, Ref{Secret, namespace, name})
	if err != nil {
		return nil, err
	}
	return obj.(*v1.Secret), nil
}

// TrustBundles returns the cluster's trust bundles.
func (v View) TrustBundles() ([]certificatesv1.ClusterTrustBundle, error) {
	obj, err := v.cache.Get(v.ctx, Ref{Kind: TrustBundles})
	if err != nil {
		return nil, err
	}
	return obj.(*certificatesv1.ClusterTrustBundleList).Items, nil
}

// loop lists and watches one object until it is no longer wanted.
func (c *Cache) loop(ctx context.Context, e *entry) {
	const first, most = 10 * time.Millisecond, 5 * time.Second
	wait := first
	for ctx.Err() == nil {
		version, err := c.list(ctx, e)
		if err == nil {
			began := time.Now()
			err = c.watch(ctx, e, version)
			if time.Since(began) > most {
				wait = first
			}
		}
		if err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).V(3).Info("Watch of an object ended", "object", e.ref.String(), "err", err)
		}
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-ctx.Done():
		}
		t.Stop()
		wait = min(wait*2, most)
	}
}

func (c *Cache) list(ctx context.Context, e *entry) (string, error) {
	opts := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", e.ref.Name).String()}
	var items []runtime.Object
	var version string
	switch e.ref.Kind {
	case TrustBundles:
		return c.listBundles(ctx, e)
	case ConfigMap:
		l, err := c.client.CoreV1().ConfigMaps(e.ref.Namespace).List(ctx, opts)
		if err != nil {
			return "", c.failed(e, err)
		}
		version = l.ResourceVersion
		for i := range l.Items {
			items = append(items, &l.Items[i])
		}
	default:
		l, err := c.client.CoreV1().Secrets(e.ref.Namespace).List(ctx, opts)
		if err != nil {
			return "", c.failed(e, err)
		}
		version = l.ResourceVersion
		for i := range l.Items {
			items = append(items, &l.Items[i])
		}
	}
	for _, o := range items {
		if named(o, e.ref.Name) {
			c.put(e, o, nil)
			return version, nil
		}
	}
	c.put(e, nil, notFound(e.ref))
	return version, nil
}

func (c *Cache) listBundles(ctx context.Context, e *entry) (string, error) {
	l, err := c.client.CertificatesV1().ClusterTrustBundles().List(ctx, metav1.ListOptions{})
	if err != nil {
		if apierrors.IsNotFound(err) { // the API server does not serve them
			c.put(e, nil, fmt.Errorf("while getting ClusterTrustBundle: %w", err))
		}
		return "", c.failed(e, err)
	}
	c.put(e, l, nil)
	return l.ResourceVersion, nil
}

// failed turns a lasting refusal into the answer. At first the authorizer may not know yet that the
// pod is ours.
func (c *Cache) failed(e *entry, err error) error {
	if apierrors.IsForbidden(err) && time.Since(e.born) > forbiddenGrace {
		c.put(e, nil, err)
	}
	return err
}

func (c *Cache) unknown(e *entry) bool {
	select {
	case <-e.known:
		return false
	default:
		return true
	}
}

func notFound(ref Ref) error {
	return apierrors.NewNotFound(schema.GroupResource{Resource: strings.TrimSuffix(string(ref.Kind), "s")}, ref.Name)
}

func named(o runtime.Object, name string) bool {
	m, ok := o.(metav1.Object)
	return ok && m.GetName() == name
}

func (c *Cache) watch(ctx context.Context, e *entry, version string) error {
	opts := metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("metadata.name", e.ref.Name).String(), ResourceVersion: version,
		AllowWatchBookmarks: true,
	}
	var w watch.Interface
	var err error
	switch e.ref.Kind {
	case TrustBundles:
		opts.FieldSelector = ""
		w, err = c.client.CertificatesV1().ClusterTrustBundles().Watch(ctx, opts)
	case ConfigMap:
		w, err = c.client.CoreV1().ConfigMaps(e.ref.Namespace).Watch(ctx, opts)
	default:
		w, err = c.client.CoreV1().Secrets(e.ref.Namespace).Watch(ctx, opts)
	}
	if err != nil {
		return err
	}
	defer w.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case ev, ok := <-w.ResultChan():
			if !ok {
				return nil
			}
			if ev.Type == watch.Error {
				return apierrors.FromObject(ev.Object)
			}
			if ev.Type != watch.Bookmark && e.ref.Kind == TrustBundles {
				return nil // there are few: list them again
			}
			if ev.Type == watch.Bookmark || !named(ev.Object, e.ref.Name) {
				continue
			}
			if ev.Type == watch.Deleted {
				c.put(e, nil, notFound(e.ref))
			} else {
				c.put(e, ev.Object, nil)
			}
		}
	}
}

// put stores the newest state, and notifies the pods if it differs.
func (c *Cache) put(e *entry, obj runtime.Object, err error) {
	c.mu.Lock()
	first := c.unknown(e)
	same := !first && sameVersion(e.obj, obj) && (e.err == nil) == (err == nil)
	e.obj, e.err = obj, err
	if first {
		close(e.known)
	}
	users := make([]types.UID, 0, len(e.users))
	for uid := range e.users {
		users = append(users, uid)
	}
	c.mu.Unlock()
	if first || same {
		return
	}
	for _, uid := range users {
		c.changed(uid)
	}
}

func sameVersion(a, b runtime.Object) bool {
	if al, ok := a.(*certificatesv1.ClusterTrustBundleList); ok {
		bl, ok := b.(*certificatesv1.ClusterTrustBundleList)
		return ok && equality.Semantic.DeepEqual(al.Items, bl.Items)
	}
	am, aok := a.(metav1.Object)
	bm, bok := b.(metav1.Object)
	if !aok || !bok {
		return aok == bok
	}
	return am.GetUID() == bm.GetUID() && am.GetResourceVersion() == bm.GetResourceVersion()
}
