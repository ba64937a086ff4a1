package hollow

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"wherry.dev/internal/kubelet/podplan"
	"wherry.dev/internal/kubelet/podworker"
)

// records keeps what a node's kubelet remembers of its pods as long as this process lives. The next
// one reads it from the pods' statuses, as far as it is there.
type records struct {
	mu    sync.Mutex
	byPod map[types.UID]podplan.Record
}

var _ podworker.RecordStore = (*records)(nil)

func newRecords() *records { return &records{byPod: map[types.UID]podplan.Record{}} }

// Read implements podworker.RecordStore.
func (r *records) Read(uid types.UID) (podplan.Record, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.byPod[uid], nil
}

// Write implements podworker.RecordStore.
func (r *records) Write(uid types.UID, rec podplan.Record) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.byPod[uid] = rec
	return nil
}

// WriteCached implements podworker.RecordStore.
func (r *records) WriteCached(uid types.UID, rec podplan.Record) error { return r.Write(uid, rec) }

// Remove implements podworker.RecordStore.
func (r *records) Remove(uid types.UID) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.byPod, uid)
	return nil
}

// keepOnly forgets all pods that are not among these.
func (r *records) keepOnly(wanted func(types.UID) bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for uid := range r.byPod {
		if !wanted(uid) {
			delete(r.byPod, uid)
		}
	}
}
