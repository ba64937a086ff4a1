// Package written remembers what a controller wrote until its informer has seen it. Informers are
// behind the API server: a controller that decides from a store without its own last writes repeats
// them, and makes too many pods. With a Log it waits instead. This is what upstream's expectations
// are for, but nothing is counted, so a lost or a doubled event cannot make the count wrong, and no
// time-out has to repair it.
package written

import (
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/tools/cache"
)

// Store is the part of an informer's store that a Log compares with.
type Store interface {
	GetByKey(key string) (item any, exists bool, err error)
	// LastStoreSyncResourceVersion is the version up to which the store knows all changes.
	LastStoreSyncResourceVersion() string
}

// Log holds the writes to one resource that its informer's store may not have yet, by the key of the
// object on whose behalf they were made. Its methods may be called concurrently.
type Log struct {
	store Store

	mu     sync.Mutex
	owners map[string]*writes
}

// writes are those made on behalf of one owner.
type writes struct {
	version string   // the newest one that a creation or an update returned
	effects []effect // those that no version tells of
}

// effect is what a write does to an object. It is seen once the store has no object of that UID any
// more, or one that shows it.
type effect struct {
	key   string
	uid   types.UID
	shows func(metav1.Object) bool
}

// New returns an empty Log of writes to the store's resource.
func New(store Store) *Log { return &Log{store: store, owners: map[string]*writes{}} }

// Wrote notes that obj, as the API server returned it, was created or updated for the owner.
func (l *Log) Wrote(owner string, obj metav1.Object) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if w := l.ofLocked(owner); newer(obj.GetResourceVersion(), w.version) {
		w.version = obj.GetResourceVersion()
	}
}

// Deleted notes that obj was deleted for the owner, or was already gone.
func (l *Log) Deleted(owner string, obj metav1.Object) {
	l.until(owner, obj, func(o metav1.Object) bool { return o.GetDeletionTimestamp() != nil })
}

// Freed notes that the finalizer of obj was removed for the owner. If it was the last one of an object
// that is being deleted, the object is gone, and the API server returns the version that it had before.
func (l *Log) Freed(owner string, obj metav1.Object, finalizer string) {
	l.until(owner, obj, func(o metav1.Object) bool { return !slices.Contains(o.GetFinalizers(), finalizer) })
}

func (l *Log) until(owner string, obj metav1.Object, shows func(metav1.Object) bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	w := l.ofLocked(owner)
	w.effects = append(w.effects, effect{cache.MetaObjectToName(obj).String(), obj.GetUID(), shows})
}

func (l *Log) ofLocked(owner string) *writes {
	w := l.owners[owner]
	if w == nil {
		w = &writes{}
		l.owners[owner] = w
	}
	return w
}

// Caught reports whether the store has all that was written for the owner. While it has not, what
// the store says about the owner's objects is out of date.
func (l *Log) Caught(owner string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	w := l.owners[owner]
	if w == nil {
		return true
	}
	// A store that does not tell its version says nothing about creations and updates.
	if has := l.store.LastStoreSyncResourceVersion(); has != "" && newer(w.version, has) {
		return false
	}
	for len(w.effects) > 0 {
		if !l.seen(w.effects[0]) {
			return false
		}
		w.effects = w.effects[1:]
	}
	delete(l.owners, owner)
	return true
}

// Waits reports whether something was written for the owner that has not been found in the store yet.
func (l *Log) Waits(owner string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.owners[owner] != nil
}

// seen reports whether the store knows of an effect.
func (l *Log) seen(e effect) bool {
	item, exists, err := l.store.GetByKey(e.key)
	if err != nil || !exists {
		return true
	}
	obj, ok := item.(metav1.Object)
	return !ok || obj.GetUID() != e.uid || e.shows(obj)
}

// newer reports whether version a is newer than b. One that is no number is never newer; any number
// is newer than none at all.
func newer(a, b string) bool {
	if b == "" {
		b = "1"
	}
	order, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && order > 0
}
