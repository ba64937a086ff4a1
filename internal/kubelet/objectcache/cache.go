// Package objectcache keeps the configMaps, secrets and other single objects that the node's pods
// refer to. Each has a watch of its own, because a node may not watch more than what its pods name.
// A change wakes the pods that refer to the object.
package objectcache

import (
	"context"
	"errors"
	"fmt"
	"maps"
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
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"wherry.dev/internal/reflector"
)

// Kind of an object.
type Kind string

// The kinds that pods refer to.
const (
	ConfigMap Kind = "configmaps"
	Secret    Kind = "secrets"
	Claim     Kind = "persistentvolumeclaims"
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

// entry is one watched object. Its reflector is the only writer of now.
type entry struct {
	ref    Ref
	users  map[types.UID]bool
	cancel context.CancelFunc
	expiry *time.Timer
	born   time.Time
	known  chan struct{} // closed once now is set
	now    *answer
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
	e.cancel = c.spawn(func(ctx context.Context) { c.follow(ctx, e) })
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
	return e.now.obj, e.now.err
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

// Claim returns a PersistentVolumeClaim.
func (v View) Claim(namespace, name string) (*v1.PersistentVolumeClaim, error) {
	obj, err := v.cache.Get(v.ctx, Ref{Claim, namespace, name})
	if err != nil {
		return nil, err
	}
	return obj.(*v1.PersistentVolumeClaim), nil
}

// TrustBundles returns the cluster's trust bundles.
func (v View) TrustBundles() ([]certificatesv1.ClusterTrustBundle, error) {
	obj, err := v.cache.Get(v.ctx, Ref{Kind: TrustBundles})
	if err != nil {
		return nil, err
	}
	return obj.(*certificatesv1.ClusterTrustBundleList).Items, nil
}

// follow keeps an object up to date until it is no longer wanted.
func (c *Cache) follow(ctx context.Context, e *entry) {
	var r *reflector.Reflector
	var sample runtime.Object
	one := fields.OneTermEqualSelector(metav1.ObjectNameField, e.ref.Name)
	switch e.ref.Kind {
	case TrustBundles:
		r, sample = reflector.New(c.client, c.client.CertificatesV1().ClusterTrustBundles(), fields.Everything()), &certificatesv1.ClusterTrustBundle{}
	case ConfigMap:
		r, sample = reflector.New(c.client, c.client.CoreV1().ConfigMaps(e.ref.Namespace), one), &v1.ConfigMap{}
	case Claim:
		r, sample = reflector.New(c.client, c.client.CoreV1().PersistentVolumeClaims(e.ref.Namespace), one), &v1.PersistentVolumeClaim{}
	default:
		r, sample = reflector.New(c.client, c.client.CoreV1().Secrets(e.ref.Namespace), one), &v1.Secret{}
	}
	r.Refused = func(err error) { c.refused(ctx, e, err) }
	store := cache.NewUndeltaStore(func(items []any) { c.put(e, e.answer(items)) }, cache.MetaNamespaceKeyFunc)
	quiet := klog.NewContext(ctx, klog.FromContext(ctx).V(3))
	r.Run(quiet, e.ref.String(), sample, store)
}

// refused turns a lasting refusal into the answer. At first the authorizer may not know yet that the
// pod is ours.
func (c *Cache) refused(ctx context.Context, e *entry, err error) {
	switch {
	case apierrors.IsForbidden(err) && e.ref.Kind == Claim:
		c.ask(ctx, e)
	case apierrors.IsForbidden(err) && time.Since(e.born) > forbiddenGrace:
		c.put(e, answer{err: err})
	case apierrors.IsNotFound(err) && e.ref.Kind == TrustBundles: // the API server does not serve them
		c.put(e, answer{err: fmt.Errorf("while getting ClusterTrustBundle: %w", err)})
	}
}

// ask gets a claim. Upstream's API server lets a node get the claims of its pods, and not watch them; then it is asked
// whenever the reflector tries again.
func (c *Cache) ask(ctx context.Context, e *entry) {
	claim, err := c.client.CoreV1().PersistentVolumeClaims(e.ref.Namespace).Get(ctx, e.ref.Name, metav1.GetOptions{})
	switch {
	case err == nil:
		c.put(e, answer{obj: claim})
	case apierrors.IsNotFound(err), apierrors.IsForbidden(err) && time.Since(e.born) > forbiddenGrace:
		c.put(e, answer{err: err})
	}
}

// answer is what is known of an object: itself, or why there is none.
type answer struct {
	obj runtime.Object
	err error
}

// answer returns what the items say that a list and its watch have found.
func (e *entry) answer(items []any) answer {
	if e.ref.Kind == TrustBundles {
		list := &certificatesv1.ClusterTrustBundleList{}
		for _, item := range items {
			list.Items = append(list.Items, *item.(*certificatesv1.ClusterTrustBundle))
		}
		slices.SortFunc(list.Items, func(a, b certificatesv1.ClusterTrustBundle) int { return strings.Compare(a.Name, b.Name) })
		return answer{obj: list}
	}
	for _, item := range items {
		// The server applies the selector. If it ignored it, others must not be taken for this one.
		if m, ok := item.(metav1.Object); ok && m.GetName() == e.ref.Name {
			return answer{obj: item.(runtime.Object)}
		}
	}
	return answer{err: apierrors.NewNotFound(schema.GroupResource{Resource: strings.TrimSuffix(string(e.ref.Kind), "s")}, e.ref.Name)}
}

// put stores the newest answer, and wakes the pods if it differs.
func (c *Cache) put(e *entry, now answer) {
	c.mu.Lock()
	first := e.now == nil
	same := !first && equality.Semantic.DeepEqual(e.now.obj, now.obj) && (e.now.err == nil) == (now.err == nil)
	e.now = &now
	if first {
		close(e.known)
	}
	users := slices.Collect(maps.Keys(e.users))
	c.mu.Unlock()
	if first || same {
		return
	}
	for _, uid := range users {
		c.changed(uid)
	}
}
