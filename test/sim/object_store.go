package sim

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"wherry.dev/internal/kubelet/objectcache"
)

// version is what an object was from a moment on; data is nil if the object did not exist.
type version struct {
	since time.Time
	data  map[string]string
	rv    int
	uid   types.UID
}

// objectStore holds the API server's config maps and secrets, with everything that they ever held:
// what a kubelet shows of them may be old, but must have been true.
type objectStore struct {
	l *life

	mu       sync.Mutex
	rv       int
	versions map[objectcache.Ref][]version // oldest first
	watchers []*watcher
}

func newObjectStore(l *life) *objectStore {
	return &objectStore{l: l, versions: map[objectcache.Ref][]version{}}
}

// put sets what an object is from now on; nil removes it.
func (s *objectStore) put(ref objectcache.Ref, data map[string]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.versions[ref]
	s.rv++
	v := version{since: time.Now(), data: data, rv: s.rv, uid: types.UID(fmt.Sprintf("%s-%d", ref.Name, s.rv))}
	if n := len(old); n > 0 && old[n-1].data != nil {
		v.uid = old[n-1].uid
	} else if data == nil {
		return // it did not exist
	}
	s.versions[ref] = append(old, v)
	for _, w := range s.watchers {
		if w.ref == ref {
			w.tellLocked(v)
		}
	}
}

// now returns what an object is, and how many versions of it there have been.
func (s *objectStore) now(ref objectcache.Ref) (data map[string]string, versions int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.versions[ref]
	if len(all) == 0 {
		return nil, 0
	}
	return all[len(all)-1].data, len(all)
}

// since returns everything that an object has been since a moment.
func (s *objectStore) since(ref objectcache.Ref, at time.Time) []map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []map[string]string
	all := s.versions[ref]
	if len(all) == 0 || all[0].since.After(at) {
		out = append(out, nil) // it did not exist yet
	}
	for i, v := range all {
		if i+1 == len(all) || all[i+1].since.After(at) {
			out = append(out, v.data)
		}
	}
	return out
}

// objectOf returns the API object of a version.
func objectOf(ref objectcache.Ref, v version) runtime.Object {
	meta := metav1.ObjectMeta{Namespace: ref.Namespace, Name: ref.Name, UID: v.uid, ResourceVersion: strconv.Itoa(v.rv)}
	if ref.Kind == objectcache.ConfigMap {
		return &v1.ConfigMap{ObjectMeta: meta, Data: v.data}
	}
	s := &v1.Secret{ObjectMeta: meta, Data: map[string][]byte{}}
	for k, text := range v.data {
		s.Data[k] = []byte(text)
	}
	if _, pull := v.data[v1.DockerConfigJsonKey]; pull {
		s.Type = v1.SecretTypeDockerConfigJson
	}
	return s
}

// list returns an object, if it exists, and the version of the list.
func (s *objectStore) list(ctx context.Context, n *node, kind objectcache.Kind, namespace, selector string) (runtime.Object, string, error) {
	sel, err := fields.ParseSelector(selector)
	if err != nil {
		return nil, "", err
	}
	name, _ := sel.RequiresExactMatch("metadata.name")
	ref := objectcache.Ref{Kind: kind, Namespace: namespace, Name: name}
	type answer struct {
		obj runtime.Object
		rv  string
	}
	a, err := call(ctx, n, "api list", ref.String(), func(context.Context) (answer, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		a := answer{rv: strconv.Itoa(s.rv)}
		if all := s.versions[ref]; len(all) > 0 && all[len(all)-1].data != nil {
			a.obj = objectOf(ref, all[len(all)-1])
		}
		return a, nil
	})
	return a.obj, a.rv, err
}

// watcher follows one object for one life of the kubelet. Its events come late, in order.
type watcher struct {
	s    *objectStore
	ref  objectcache.Ref
	key  string
	out  chan watch.Event
	last time.Time // when the newest event is delivered
	done bool
}

// watch follows an object from a version on, or from what it is now if initial events are wanted. It
// may end at any time.
func (s *objectStore) watch(ctx context.Context, n *node, kind objectcache.Kind, namespace string, opts metav1.ListOptions) (watch.Interface, error) {
	sel, err := fields.ParseSelector(opts.FieldSelector)
	if err != nil {
		return nil, err
	}
	initial := opts.SendInitialEvents != nil && *opts.SendInitialEvents
	from, err := strconv.Atoi(opts.ResourceVersion)
	if err != nil && !initial {
		return nil, err
	}
	name, _ := sel.RequiresExactMatch("metadata.name")
	ref := objectcache.Ref{Kind: kind, Namespace: namespace, Name: name}
	var w *watcher
	_, err = call(ctx, n, "api watch", ref.String(), func(context.Context) (watch.Interface, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.l.faulty() && s.l.dice.chance(0.05, n.key+"watch too old "+ref.String()) {
			return nil, apierrors.NewResourceExpired("too old resource version")
		}
		w = &watcher{s: s, ref: ref, key: n.key + "watch " + ref.String(), out: make(chan watch.Event, 100)}
		s.watchers = append(s.watchers, w)
		if initial {
			w.beginLocked()
			from = s.rv
		}
		for _, v := range s.versions[ref] {
			if v.rv > from {
				w.tellLocked(v)
			}
		}
		if s.l.faulty() && s.l.dice.chance(0.3, w.key+" ends") {
			time.AfterFunc(s.l.dice.upTo(5*time.Minute, w.key+" ends after"), w.Stop)
		}
		return w, nil
	})
	if err != nil {
		if w != nil {
			w.Stop() // nobody got to know of it
		}
		return nil, err
	}
	return w, nil
}

// beginLocked sends the initial events: the object, if it exists, and the bookmark that ends them.
func (w *watcher) beginLocked() {
	if all := w.s.versions[w.ref]; len(all) > 0 && all[len(all)-1].data != nil {
		w.sendLocked(watch.Added, objectOf(w.ref, all[len(all)-1]))
	}
	end := objectOf(w.ref, version{rv: w.s.rv}).(metav1.Object)
	end.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
	w.sendLocked(watch.Bookmark, end.(runtime.Object))
}

func (w *watcher) tellLocked(v version) {
	kind := watch.Modified // also for one that is new to the watch: readers look at the object
	if v.data == nil {
		kind = watch.Deleted
	}
	w.sendLocked(kind, objectOf(w.ref, v))
}

func (w *watcher) sendLocked(kind watch.EventType, obj runtime.Object) {
	late := 50 * time.Millisecond
	if w.s.l.faulty() && w.s.l.dice.chance(0.1, w.key+" is late") {
		late = time.Minute
	}
	at := time.Now().Add(w.s.l.dice.upTo(late, w.key+" takes"))
	if !at.After(w.last) {
		at = w.last.Add(1)
	}
	w.last = at
	time.AfterFunc(time.Until(at), func() {
		w.s.mu.Lock()
		defer w.s.mu.Unlock()
		if !w.done {
			w.out <- watch.Event{Type: kind, Object: obj} // there is room: lives are short
		}
	})
}

// watched returns how many objects are being followed.
func (s *objectStore) watched() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.watchers)
}

// Stop ends the watch.
func (w *watcher) Stop() {
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	if !w.done {
		w.done = true
		close(w.out)
		w.s.watchers = slices.DeleteFunc(w.s.watchers, func(o *watcher) bool { return o == w })
	}
}

// ResultChan returns the channel of events.
func (w *watcher) ResultChan() <-chan watch.Event { return w.out }

type configMaps struct {
	corev1.ConfigMapInterface
	n         *node
	namespace string
}

func (c configMaps) List(ctx context.Context, opts metav1.ListOptions) (*v1.ConfigMapList, error) {
	obj, rv, err := c.n.life.objects.list(ctx, c.n, objectcache.ConfigMap, c.namespace, opts.FieldSelector)
	out := &v1.ConfigMapList{ListMeta: metav1.ListMeta{ResourceVersion: rv}}
	if cm, ok := obj.(*v1.ConfigMap); ok {
		out.Items = []v1.ConfigMap{*cm}
	}
	return out, err
}

func (c configMaps) Watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
	return c.n.life.objects.watch(ctx, c.n, objectcache.ConfigMap, c.namespace, opts)
}

type secrets struct {
	corev1.SecretInterface
	n         *node
	namespace string
}

func (c secrets) List(ctx context.Context, opts metav1.ListOptions) (*v1.SecretList, error) {
	obj, rv, err := c.n.life.objects.list(ctx, c.n, objectcache.Secret, c.namespace, opts.FieldSelector)
	out := &v1.SecretList{ListMeta: metav1.ListMeta{ResourceVersion: rv}}
	if s, ok := obj.(*v1.Secret); ok {
		out.Items = []v1.Secret{*s}
	}
	return out, err
}

func (c secrets) Watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
	return c.n.life.objects.watch(ctx, c.n, objectcache.Secret, c.namespace, opts)
}

// pullConfig returns the content of a pull secret.
func pullConfig(auths map[string]string) map[string]string {
	type auth struct {
		Auth string `json:"auth"`
	}
	cfg := struct {
		Auths map[string]auth `json:"auths"`
	}{map[string]auth{}}
	for domain, password := range auths {
		cfg.Auths[domain] = auth{base64.StdEncoding.EncodeToString([]byte(pullUser + ":" + password))}
	}
	data, err := json.Marshal(cfg)
	if err != nil {
		panic(err) // strings always marshal
	}
	return map[string]string{v1.DockerConfigJsonKey: string(data), pullPassword: auths[privateRegistry]}
}

var errUnauthorized = errors.New("pull access denied: unauthorized")
