// Package queue orders the pods that wait for a node.
//
//	           Add                 Pop
//	watch ───────────▶ active ──────────────▶ scheduling cycle
//	   │                 ▲  ▲                     │ Requeue
//	   │ gated           │  │ back-off over       ├──────────▶ backoff    (error, or an event came meanwhile)
//	   ▼                 │  └── or nobody waits ──│──────────────┘
//	unschedulable ───────┘ an event helps (Move)  └──────────▶ unschedulable
//
// A pod is in exactly one place. One timer is armed for the earliest of two: the end of a back-off,
// and the end of five minutes in which nothing has moved a pod. While no other pod waits, one whose attempt did not
// end in an error does not wait for the end of its back-off either (KEP-5142).
package queue

import (
	"container/heap"
	"container/list"
	"context"
	"maps"
	"sync"
	"time"

	"golang.org/x/time/rate"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"wherry.dev/internal/scheduler/framework"
)

// Defaults of KubeSchedulerConfiguration, and upstream's limit for a pod that no event has moved.
const (
	DefaultInitialBackoff = time.Second
	DefaultMaxBackoff     = 10 * time.Second
	maxUnschedulable      = 5 * time.Minute
	// backoffWindow: of pods whose back-offs end in the same second the more important one is first, for which another one
	// may wait until that second is over.
	backoffWindow = time.Second
	// earlyRate is how many pods a second do not wait for the end of their back-off. Upstream has no limit: many pods that fit
	// nowhere, and events that might help, keep its scheduler as busy as it can be.
	earlyRate = 100
)

// maxEvents limits what is kept for pods in flight: one of them may wait in Permit for a quarter of an
// hour, while much happens.
const maxEvents = 10000

// A Hint says what an event means for a pod that plugins rejected.
type Hint int

// What an event can mean for a pod.
const (
	Skip Hint = iota
	// Retry gives the pod another chance when its back-off is over.
	Retry
	// RetryNow does so at once: its last attempt was not in vain, it waited for this event.
	RetryNow
)

// Config is what the queue needs from the profiles.
type Config struct {
	Less       fwk.LessFunc
	PreEnqueue func(context.Context, *v1.Pod) *fwk.Status
	// Listeners returns the plugins that want to hear of such events.
	Listeners func(fwk.ClusterEvent) sets.Set[string]
	// Hints asks the plugins that rejected the pod what an event means for it.
	Hints func(pod *framework.QueuedPodInfo, event fwk.ClusterEvent, oldObj, newObj any) Hint
	// Shape returns what pods have in common for which a plugin's hints say the same; nothing if it is to be asked for
	// each of them. Helps asks one plugin, about one of these.
	Shape          func(plugin string, pod *v1.Pod) string
	Helps          func(plugin string, pod *framework.QueuedPodInfo, event fwk.ClusterEvent, oldObj, newObj any) bool
	InitialBackoff time.Duration
	MaxBackoff     time.Duration
	// Placed reports whether a pod that is in flight has a node by now. Nobody has to keep off a node for it any more,
	// whatever its status still says.
	Placed func(types.UID) bool
}

// place is where a pod is.
type place int

const (
	inActive place = iota
	inBackoff
	inUnschedulable
	inFlight
)

type item struct {
	info  *framework.QueuedPodInfo
	place place
	index int // in its heap
	// flight is the pod's place in the list of events while it is in flight.
	flight *list.Element
	// changed means that the pod itself changed, or was activated, while it was in flight.
	changed bool
	// since is when it became unschedulable.
	since time.Time
	// groups has the shape that it has for each plugin that rejected it, while it is unschedulable.
	groups map[string]string
	// rest is its place among those that are tried again after five minutes; nil if it is not one of them.
	rest *list.Element
}

// event is what happened while some pod was in flight.
type event struct {
	fwk.ClusterEvent
	oldObj, newObj any
}

// madeBy reports whether the event is that a pod gave back the node that it had got in this attempt: it is news to others only.
func (e event) madeBy(it *item) bool {
	pod, ok := e.oldObj.(*v1.Pod)
	return ok && e.Resource == fwk.AssignedPod && e.ActionType == fwk.Delete && pod.UID == it.info.GetPod().UID
}

// Queue is safe for concurrent use, except that Pop must have only one caller.
type Queue struct {
	cfg       Config
	nominator *framework.Nominator

	mu      sync.Mutex
	items   map[types.UID]*item
	active  podHeap
	backoff podHeap // of pods that fitted nowhere
	failed  podHeap // in back-off after an error
	early   *rate.Limiter
	// unschedulable has the pods that wait for an event; rejected has them by the plugins that rejected
	// them and by shape, so that an event costs nothing for those to whom it means nothing.
	unschedulable map[types.UID]*item
	rejected      map[string]map[string]map[types.UID]*item
	// resting has the unschedulable ones (*item) that are not gated, the one that has waited longest first.
	resting *list.List
	// flights has the pods in flight (*item), in the order in which they were popped, and between them
	// what happened since (event). What happened before the first of them is forgotten.
	flights *list.List
	events  int           // in flights
	wake    chan struct{} // capacity 1: a pod may be ready
}

// New returns an empty queue.
func New(cfg Config) *Queue {
	if cfg.InitialBackoff <= 0 {
		cfg.InitialBackoff = DefaultInitialBackoff
	}
	if cfg.MaxBackoff <= 0 {
		cfg.MaxBackoff = DefaultMaxBackoff
	}
	q := &Queue{
		cfg: cfg, items: map[types.UID]*item{}, unschedulable: map[types.UID]*item{},
		rejected: map[string]map[string]map[types.UID]*item{}, resting: list.New(), flights: list.New(), wake: make(chan struct{}, 1),
		early: rate.NewLimiter(earlyRate, earlyRate),
	}
	q.nominator = framework.NewNominator(q.waits)
	q.active.less = func(a, b *item) bool { return cfg.Less(a.info, b.info) }
	q.backoff.less = func(a, b *item) bool {
		x, y := a.info.BackoffExpiration.Truncate(backoffWindow), b.info.BackoffExpiration.Truncate(backoffWindow)
		return x.Before(y) || x.Equal(y) && cfg.Less(a.info, b.info)
	}
	q.failed.less = func(a, b *item) bool { return a.info.BackoffExpiration.Before(b.info.BackoffExpiration) }
	return q
}

// Nominator returns the nominations of the pods that wait.
func (q *Queue) Nominator() *framework.Nominator { return q.nominator }

// waits reports whether the pod waits for a node.
func (q *Queue) waits(uid types.UID) bool {
	q.mu.Lock()
	_, ok := q.items[uid]
	q.mu.Unlock()
	return ok && !q.cfg.Placed(uid)
}

func (q *Queue) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// Add puts a pod that has no node into the queue, or updates it to its new version. A change of its
// spec or labels gives an unschedulable pod another chance.
func (q *Queue) Add(ctx context.Context, pod *v1.Pod) error {
	info, err := framework.NewPodInfo(pod)
	if err != nil {
		return err
	}
	if old := q.put(ctx, info); old != nil {
		q.nominator.UpdateNominatedPod(klog.FromContext(ctx), old, info)
	} else if pod.Status.NominatedNodeName != "" {
		q.nominator.AddNominatedPod(klog.FromContext(ctx), info, nil)
	}
	return nil
}

// put returns the pod's last version.
func (q *Queue) put(ctx context.Context, info *framework.PodInfo) (old *v1.Pod) {
	pod := info.GetPod()
	q.mu.Lock()
	defer q.mu.Unlock()
	it, ok := q.items[pod.UID]
	if !ok {
		it = &item{info: &framework.QueuedPodInfo{PodInfo: info, Timestamp: time.Now()}, index: -1}
		q.items[pod.UID] = it
		q.enterLocked(ctx, it, "UnscheduledPodAdd")
		return nil
	}
	old = it.info.GetPod()
	it.info.PodInfo = info
	if old.Generation == pod.Generation && maps.Equal(old.Labels, pod.Labels) {
		return old // only its status changed, most likely by us
	}
	switch it.place {
	case inUnschedulable:
		q.takeLocked(it)
		q.enterLocked(ctx, it, "UnscheduledPodUpdate")
	case inFlight:
		it.changed = true
	case inActive:
		heap.Fix(&q.active, it.index)
	}
	return old
}

// enterLocked puts a pod that is in no place into active, backoff or, if it is gated, unschedulable. why is for the
// metric.
func (q *Queue) enterLocked(ctx context.Context, it *item, why string) {
	if st := q.cfg.PreEnqueue(ctx, it.info.GetPod()); !st.IsSuccess() {
		it.info.GatingPlugin = st.Plugin()
		it.info.UnschedulablePlugins = sets.New(st.Plugin())
		q.restLocked(it, why)
		return
	}
	it.info.GatingPlugin = ""
	if it.info.BackoffExpiration.After(time.Now()) {
		it.place = inBackoff
		heap.Push(q.backoffOf(it), it)
		incoming.WithLabelValues("backoff", why).Inc()
	} else {
		it.place = inActive
		heap.Push(&q.active, it)
		incoming.WithLabelValues("active", why).Inc()
	}
	q.signal()
}

// backoffOf returns where a pod in back-off is.
func (q *Queue) backoffOf(it *item) *podHeap {
	if it.info.ConsecutiveErrors > 0 {
		return &q.failed
	}
	return &q.backoff
}

// restLocked makes a pod that is in no place wait for an event.
func (q *Queue) restLocked(it *item, why string) {
	into := "unschedulable"
	if it.info.GatingPlugin != "" {
		into = "gated"
	}
	incoming.WithLabelValues(into, why).Inc()
	uid := it.info.GetPod().UID
	it.place, it.since = inUnschedulable, time.Now()
	q.unschedulable[uid] = it
	if it.info.GatingPlugin == "" {
		it.rest = q.resting.PushBack(it)
	}
	it.groups = map[string]string{}
	for plugin := range rejecters(it.info) {
		shape := ""
		if q.cfg.Shape != nil {
			shape = q.cfg.Shape(plugin, it.info.GetPod())
		}
		it.groups[plugin] = shape
		if q.rejected[plugin] == nil {
			q.rejected[plugin] = map[string]map[types.UID]*item{}
		}
		if q.rejected[plugin][shape] == nil {
			q.rejected[plugin][shape] = map[types.UID]*item{}
		}
		q.rejected[plugin][shape][uid] = it
	}
}

func rejecters(info *framework.QueuedPodInfo) sets.Set[string] {
	if info.PendingPlugins.Len() == 0 {
		return info.UnschedulablePlugins
	}
	return info.UnschedulablePlugins.Union(info.PendingPlugins)
}

func (q *Queue) takeLocked(it *item) {
	uid := it.info.GetPod().UID
	switch it.place {
	case inActive:
		heap.Remove(&q.active, it.index)
	case inBackoff:
		heap.Remove(q.backoffOf(it), it.index)
	case inUnschedulable:
		delete(q.unschedulable, uid)
		if it.rest != nil {
			q.resting.Remove(it.rest)
			it.rest = nil
		}
		for plugin, shape := range it.groups {
			if delete(q.rejected[plugin][shape], uid); len(q.rejected[plugin][shape]) == 0 {
				delete(q.rejected[plugin], shape)
			}
		}
		it.groups = nil
	case inFlight:
		q.landLocked(it)
	}
	it.index = -1
}

// landLocked takes a pod out of the flights, and forgets what no flight needs any more. It returns
// what happened during this one.
func (q *Queue) landLocked(it *item) []event {
	if it.flight == nil {
		return nil
	}
	var during []event
	for e := it.flight.Next(); e != nil; e = e.Next() {
		if ev, ok := e.Value.(event); ok {
			during = append(during, ev)
		}
	}
	q.flights.Remove(it.flight)
	it.flight = nil
	for e := q.flights.Front(); e != nil; e = q.flights.Front() {
		if _, ok := e.Value.(event); !ok {
			break
		}
		q.flights.Remove(e)
		q.events--
	}
	return during
}

// Remove forgets a pod that was bound or deleted.
func (q *Queue) Remove(uid types.UID) {
	q.mu.Lock()
	it, ok := q.items[uid]
	if ok {
		q.takeLocked(it)
		delete(q.items, uid)
	}
	q.mu.Unlock()
	if ok {
		q.nominator.DeleteNominatedPodIfExists(it.info.GetPod())
	}
}

// Activate gives pods another chance at once, whatever they wait for and whatever back-off they
// have. Pods that the queue does not know are left out.
func (q *Queue) Activate(log klog.Logger, pods map[string]*v1.Pod) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, pod := range pods {
		it, ok := q.items[pod.UID]
		if !ok {
			continue
		}
		switch it.place {
		case inFlight:
			it.changed = true
		case inUnschedulable, inBackoff:
			q.takeLocked(it)
			it.info.BackoffExpiration = time.Time{}
			q.enterLocked(klog.NewContext(context.Background(), log), it, "ForceActivate") // the framework passes no context
		}
	}
}

// Pop waits for the next pod. It returns ctx's error if ctx ends.
func (q *Queue) Pop(ctx context.Context) (*framework.QueuedPodInfo, error) {
	for {
		info, next := q.tryPop(ctx)
		if info != nil {
			return q.nominated(info), nil
		}
		if err := q.wait(ctx, next); err != nil {
			return nil, err
		}
	}
}

// nominated returns the pod with its nomination as the scheduler knows it, which may not be in the API,
// or not have come back from there, yet.
func (q *Queue) nominated(info *framework.QueuedPodInfo) *framework.QueuedPodInfo {
	if node := q.nominator.NodeOf(info.GetPod().UID); node != info.GetPod().Status.NominatedNodeName {
		info.PodInfo = info.Nominated(node)
	}
	return info
}

// tryPop returns the next pod, or the time at which there may be one. A zero time means that only a
// new pod or an event can bring one.
func (q *Queue) tryPop(ctx context.Context) (*framework.QueuedPodInfo, time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	for _, h := range []*podHeap{&q.backoff, &q.failed} {
		for h.Len() > 0 && !h.items[0].info.BackoffExpiration.After(now) {
			it := h.items[0]
			q.takeLocked(it)
			it.place = inActive
			heap.Push(&q.active, it)
			incoming.WithLabelValues("active", "BackoffComplete").Inc()
		}
	}
	next := q.retryOldLocked(ctx, now)
	switch {
	case q.active.Len() > 0:
		return q.popLocked(q.active.items[0], now), time.Time{}
	case q.backoff.Len() > 0:
		if q.early.AllowN(now, 1) {
			incoming.WithLabelValues("active", "PopFromBackoffQ").Inc()
			return q.popLocked(q.backoff.items[0], now), time.Time{}
		}
		next = earliest(next, now.Add(time.Second/earlyRate))
	}
	if q.failed.Len() > 0 {
		next = earliest(next, q.failed.items[0].info.BackoffExpiration)
	}
	return nil, next
}

// popLocked takes a pod from its place into flight.
func (q *Queue) popLocked(it *item, now time.Time) *framework.QueuedPodInfo {
	q.takeLocked(it)
	it.place, it.changed, it.flight = inFlight, false, q.flights.PushBack(it)
	it.info.Attempts++
	if it.info.InitialAttemptTimestamp == nil {
		it.info.InitialAttemptTimestamp = &now
	}
	// A copy for the cycle: the queue updates its own from the watch meanwhile.
	popped := *it.info
	return &popped
}

// Take pops those of the pods that wait, wherever they do and whatever back-off they have, except those that must
// not enter the queue, in any order. They are the ones that belong together with the pod that was popped last.
func (q *Queue) Take(ctx context.Context, pods map[string]*v1.Pod) []*framework.QueuedPodInfo {
	var out []*framework.QueuedPodInfo
	for _, pod := range pods {
		if info := q.take(ctx, pod.UID); info != nil {
			out = append(out, q.nominated(info))
		}
	}
	return out
}

func (q *Queue) take(ctx context.Context, uid types.UID) *framework.QueuedPodInfo {
	q.mu.Lock()
	defer q.mu.Unlock()
	it, ok := q.items[uid]
	if !ok || it.place == inFlight {
		return nil
	}
	if it.info.GatingPlugin != "" {
		// What opens its gate may be on its way, as the last pod of a gang.
		if !q.cfg.PreEnqueue(ctx, it.info.GetPod()).IsSuccess() {
			return nil
		}
		it.info.GatingPlugin = ""
	}
	return q.popLocked(it, time.Now())
}

// retryOldLocked gives another chance to pods that nothing has moved for long, in case a hint was
// wrong. It returns when the next one is due.
func (q *Queue) retryOldLocked(ctx context.Context, now time.Time) (next time.Time) {
	for e := q.resting.Front(); e != nil; e = q.resting.Front() {
		it, ok := e.Value.(*item)
		if !ok {
			break
		}
		if due := it.since.Add(maxUnschedulable); due.After(now) {
			return due
		}
		q.takeLocked(it)
		it.info.Flushed = true
		q.enterLocked(ctx, it, "UnschedulableTimeout")
	}
	return next
}

func earliest(a, b time.Time) time.Time {
	if a.IsZero() || b.Before(a) {
		return b
	}
	return a
}

func (q *Queue) wait(ctx context.Context, next time.Time) error {
	var due <-chan time.Time
	if !next.IsZero() {
		t := time.NewTimer(time.Until(next))
		defer t.Stop()
		due = t.C
	}
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-q.wake:
	case <-due:
	}
	return nil
}

// Requeue puts a popped pod back. info says which plugins found no node for it, or made it wait
// for something else (UnschedulablePlugins, PendingPlugins); if there are none, the attempt ended in
// an error. It returns false, and does nothing, if the pod was deleted or bound meanwhile.
func (q *Queue) Requeue(ctx context.Context, info *framework.QueuedPodInfo) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	it, ok := q.items[info.GetPod().UID]
	if !ok || it.place != inFlight {
		return false
	}
	now := time.Now()
	it.info.UnschedulablePlugins, it.info.PendingPlugins, it.info.Flushed = info.UnschedulablePlugins, info.PendingPlugins, false
	it.info.Timestamp = now
	failed := rejecters(it.info).Len() == 0
	switch {
	case failed:
		it.info.ConsecutiveErrors++
	default:
		it.info.UnschedulableCount++
		it.info.ConsecutiveErrors = 0
	}
	it.info.BackoffExpiration = now.Add(q.backoffFor(it.info))
	hint := Skip
	for _, e := range q.landLocked(it) {
		if hint == RetryNow || failed {
			break
		}
		if e.madeBy(it) {
			continue
		}
		hint = max(hint, q.cfg.Hints(it.info, e.ClusterEvent, e.oldObj, e.newObj))
	}
	if it.changed || failed {
		hint = max(hint, Retry)
	}
	q.retryLocked(ctx, it, hint, "ScheduleAttemptFailure")
	return true
}

// retryLocked puts a pod that is in no place where the hint says.
func (q *Queue) retryLocked(ctx context.Context, it *item, hint Hint, why string) {
	switch hint {
	case Skip:
		q.restLocked(it, why)
		q.signal() // Pop must update its timer
		return
	case RetryNow:
		it.info.BackoffExpiration = time.Time{}
	}
	q.enterLocked(ctx, it, why)
}

// backoffFor returns a back-off that doubles with every failed attempt. Errors in a row are counted
// separately: if the API server was away for a moment, that is no reason to wait as long as for a
// pod that has fitted nowhere many times.
func (q *Queue) backoffFor(info *framework.QueuedPodInfo) time.Duration {
	failed := info.UnschedulableCount
	if info.ConsecutiveErrors > 0 {
		failed = info.ConsecutiveErrors
	}
	d := q.cfg.InitialBackoff
	for range failed - 1 {
		if d *= 2; d >= q.cfg.MaxBackoff {
			return q.cfg.MaxBackoff
		}
	}
	return d
}

// Move gives another chance to unschedulable pods that the event may help, and keeps the event for
// those that are in flight: their attempt may have looked before it.
func (q *Queue) Move(ctx context.Context, ev fwk.ClusterEvent, oldObj, newObj any) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.keepLocked(event{ev, oldObj, newObj})
	for plugin := range q.cfg.Listeners(ev) {
		for shape, group := range q.rejected[plugin] {
			if shape != "" && !q.helpsLocked(plugin, group, ev, oldObj, newObj) {
				continue
			}
			for _, it := range group {
				if hint := q.cfg.Hints(it.info, ev, oldObj, newObj); hint != Skip {
					q.takeLocked(it)
					q.retryLocked(ctx, it, hint, ev.Label())
				}
			}
		}
	}
}

// helpsLocked asks about one pod of a group, for all of them.
func (q *Queue) helpsLocked(plugin string, group map[types.UID]*item, ev fwk.ClusterEvent, oldObj, newObj any) bool {
	for _, it := range group {
		return q.cfg.Helps(plugin, it.info, ev, oldObj, newObj)
	}
	return false
}

// keepLocked keeps an event for the pods in flight. If there are too many, the oldest one is forgotten, and
// those who would have wanted it are tried again whatever it was.
func (q *Queue) keepLocked(ev event) {
	if q.flights.Len() == 0 {
		return
	}
	q.flights.PushBack(ev)
	if q.events++; q.events <= maxEvents {
		return
	}
	for e := q.flights.Front(); e != nil; e = e.Next() {
		if it, ok := e.Value.(*item); ok {
			it.changed = true
			continue
		}
		q.flights.Remove(e)
		q.events--
		return
	}
}

// Lengths returns how many pods are in each place, by upstream's names for the metric
// scheduler_pending_pods.
func (q *Queue) Lengths() (active, backoff, unschedulable, gated int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, it := range q.unschedulable {
		if it.info.GatingPlugin != "" {
			gated++
		}
	}
	return q.active.Len(), q.backoff.Len() + q.failed.Len(), len(q.unschedulable) - gated, gated
}

// InFlight returns how many events are kept for pods in flight, by their labels, and how many such pods there are.
func (q *Queue) InFlight() (events map[string]int, pods int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	events = map[string]int{}
	for e := q.flights.Front(); e != nil; e = e.Next() {
		if ev, ok := e.Value.(event); ok {
			events[ev.Label()]++
		} else {
			pods++
		}
	}
	return events, pods
}

// Rejecter is a plugin of a profile.
type Rejecter struct{ Plugin, Profile string }

// Rejected returns how many pods that wait were rejected by each plugin.
func (q *Queue) Rejected() map[Rejecter]int {
	q.mu.Lock()
	defer q.mu.Unlock()
	out := map[Rejecter]int{}
	for _, it := range q.unschedulable {
		for plugin := range it.groups {
			out[Rejecter{plugin, it.info.GetPod().Spec.SchedulerName}]++
		}
	}
	return out
}
