package queue

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"wherry.dev/internal/scheduler/framework"
)

// Where says where a pod waits.
type Where struct {
	Place string // active, backoff, unschedulable, gated or scheduling
	Since time.Time
	// Retry is when the pod is tried again at the latest; zero if that is now, or cannot be told.
	Retry time.Time
	Info  framework.QueuedPodInfo
}

// Find returns where a pod waits, and false if it does not.
func (q *Queue) Find(uid types.UID) (Where, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if it, ok := q.items[uid]; ok {
		return it.where(), true
	}
	return Where{}, false
}

// All returns where all pods wait, in any order.
func (q *Queue) All() []Where {
	q.mu.Lock()
	defer q.mu.Unlock()
	out := make([]Where, 0, len(q.items))
	for _, it := range q.items {
		out = append(out, it.where())
	}
	return out
}

func (it *item) where() Where {
	w := Where{Info: *it.info, Since: it.info.Timestamp}
	switch it.place {
	case inActive:
		w.Place = "active"
	case inFlight:
		w.Place = "scheduling"
	case inBackoff:
		w.Place, w.Retry = "backoff", it.info.BackoffExpiration
	case inUnschedulable:
		w.Since = it.since
		if w.Place = "gated"; it.rest != nil {
			w.Place, w.Retry = "unschedulable", it.since.Add(maxUnschedulable)
		}
	}
	return w
}
