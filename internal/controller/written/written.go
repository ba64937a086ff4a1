// Package written remembers what a controller wrote until its informer has seen it. Informers are
// behind the API server: a controller that decides from a store without its own last writes repeats
// them, and makes too many pods. With a Log it waits instead. This is what upstream's expectations
// are for, but nothing is counted, so a lost or a doubled event cannot make the count wrong, and no
// time-out has to repair it.
package written

import (
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
	version string               // the newest one that a creation or an update returned
	deleted map[string]types.UID // the key of each deleted object → its UID
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
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ofLocked(owner).deleted[cache.MetaObjectToName(obj).String()] = obj.GetUID()
}

func (l *Log) ofLocked(owner string) *writes {
	w := l.owners[owner]
	if w == nil {
		w = &writes{deleted: map[string]types.UID{}}
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
	for key, uid := range w.deleted {
		if l.lives(key, uid) {
			return false
		}
		delete(w.deleted, key)
	}
	delete(l.owners, owner)
	return true
}

// lives reports whether the store has this very object, and does not know of its deletion.
func (l *Log) lives(key string, uid types.UID) bool {
	item, exists, err := l.store.GetByKey(key)
	if err != nil || !exists {
		return false
	}
	obj, ok := item.(metav1.Object)
	return ok && obj.GetUID() == uid && obj.GetDeletionTimestamp() == nil
}

// Forget drops what was written for an owner that is gone.
func (l *Log) Forget(owner string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.owners, owner)
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
