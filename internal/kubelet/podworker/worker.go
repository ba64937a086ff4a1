package podworker

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/klog/v2"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/kubelet/podplan"
	"wherry.dev/internal/trace"
)

// Executor executes ops. Do blocks until the op has ended, and returns soon after its context is
// canceled.
type Executor interface {
	Do(ctx context.Context, op podplan.Op, in *podplan.Input) podplan.Result
}

// StatusSink takes the statuses of pods; the newest wins.
type StatusSink interface {
	Put(pod *v1.Pod, status v1.PodStatus)
	// PutSoon is Put for a status that will soon change again.
	PutSoon(pod *v1.Pod, status v1.PodStatus)
	Drop(uid types.UID)
}

// Prober runs probes and keeps their newest results.
type Prober interface {
	Sync(ctx context.Context, pod *v1.Pod, ips []string, targets []podplan.ProbeTarget)
	Results(uid types.UID) map[string]podplan.Probe
	Remove(uid types.UID)
}

// Admission decides which resources of the node pods hold, one pod at a time.
type Admission interface {
	// Admit decides whether a pod may run. The zero verdict decides nothing yet: others have to go
	// first, and the pod is woken when they have.
	Admit(ctx context.Context, pod *v1.Pod, static bool) podplan.Verdict
	// Resize decides on a pod that is to be resized.
	Resize(ctx context.Context, in *podplan.Input) podplan.ResizeDecision
	// Freed is called when a pod may hold less of the node than before.
	Freed()
}

// Deps are what workers need. All of it is shared and safe for concurrent use.
type Deps struct {
	Runtime   Runtime
	Executor  Executor
	Status    StatusSink
	Prober    Prober
	Records   RecordStore
	Admission Admission
	// Residue returns what is left of a pod on disk.
	Residue func(pod *v1.Pod) podplan.Residue
	// FinalMessage returns the termination message of a dead instance.
	FinalMessage func(uid types.UID, c *podplan.Container, policy v1.TerminationMessagePolicy, logPath string) string
	// Tell, if not nil, records an event for what the plan decided: that a container is backed off,
	// or (container empty) why the pod ends.
	Tell func(pod *v1.Pod, container, reason, message string)
	// TellPod, if not nil, records an event about the pod.
	TellPod func(pod *v1.Pod, e podplan.Event)
	// Health, if not nil, returns the health of devices that plugins gave to a pod, by resource and ID.
	Health func(podplan.Devices) map[string]map[string]v1.ResourceHealthStatus
	// ClaimHealth, if not nil, returns the health of the devices that a pod's containers have by resource claims.
	ClaimHealth func(*v1.Pod) map[string][]v1.ResourceStatus
	// VolumeHealth, if not nil, returns what is wrong with a pod's volumes, where they were reported to be as they were.
	VolumeHealth func(pod *v1.Pod, reported []v1.PodVolumeHealth) []v1.PodVolumeHealth
	// Stepped, if not nil, is called with the duration of each step.
	Stepped func(time.Duration)
	// Ran, if not nil, is called when a container is seen running that was not running before. The
	// pod's snapshot already shows it.
	Ran func()
	// Left, if not nil, is called when a static pod is gone, or what may have been one.
	Left func()
	// Began, if not nil, is called with the time that a wanted pod waited for its worker.
	Began func(waited time.Duration)
	// Started, if not nil, is called when a pod runs for the first time, with the time it was first
	// seen and how long pulling its images took.
	Started func(pod *v1.Pod, seen time.Time, pulling time.Duration)
	// Ended, if not nil, is called once for each instance that ended, with the type of its
	// container as metrics name it.
	Ended func(containerType string, end *v1.ContainerStateTerminated)
	// Mirror, if not nil, returns the status of the mirror of a static pod, nil if it has none; ok is false until it is known
	// which mirrors there are.
	Mirror func(static types.UID) (status *v1.PodStatus, ok bool)
	// Node returns the facts about the node that plans depend on.
	Node func() podplan.Node
}

// Snapshot is what others see of a pod. It never changes once it is published.
type Snapshot struct {
	Pod    *v1.Pod
	Static bool
	Absent bool
	// Status is the newest status that was put.
	Status v1.PodStatus
	Input  podplan.Input
	Plan   podplan.Plan
	At     time.Time
	// InFlight are the ops in flight after the step.
	InFlight []podplan.Flight
	// Transitions are the newest steps, oldest first.
	Transitions []Transition
	// Superseded is closed when there is a newer snapshot, or when there will be none.
	Superseded <-chan struct{}

	superseded chan struct{}
}

// Wanted reports whether a source has the pod.
func (s *Snapshot) Wanted() bool { return s.Pod != nil && !s.Absent }

// Newest returns the pod with the newest status that the node knows.
func (s *Snapshot) Newest() *v1.Pod {
	pod := *s.Pod
	pod.Status = s.Status
	return &pod
}

// AtRest reports whether the pod is ending and nothing of it runs any more: see podplan.AtRest. It
// is false for a pod at which its worker has not looked yet.
func (s *Snapshot) AtRest() bool { return !s.At.IsZero() && podplan.AtRest(&s.Input) }

// Transition is one thing that a worker did or found out.
type Transition struct {
	At   time.Time
	What string
	Op   *podplan.Op `json:",omitempty"`
	Err  string      `json:",omitempty"`
}

const keptTransitions = 50

// Worker is the actor of one pod.
//
// Its goroutine is the only writer of everything except the fields that mu guards.
type Worker struct {
	uid     types.UID
	deps    Deps
	wakeCh  chan struct{}
	started bool // guarded by the table
	snap    atomic.Pointer[Snapshot]
	changed func() // tells whoever watches pods of a new snapshot; nil before the table has the worker

	mu       sync.Mutex
	pod      *v1.Pod
	orphan   bool // pod was rebuilt from labels or the record
	static   bool
	absent   bool
	removed  bool           // a static pod of which the manifest was removed, if only for a moment: this life of it ends
	since    time.Time      // when the pod was first set
	found    podplan.Record // what was on record when the worker was created
	objects  uint64
	listDue  bool
	eviction *podplan.Ending
	// reclaim: what a pod that has ended left behind is to be removed.
	reclaim  bool
	outcomes []outcome

	// Only the goroutine touches what follows.
	record      podplan.Record
	recorded    bool // the record on disk is known
	unwritten   bool // the record on disk is older than this one
	status      v1.PodStatus
	statusKnown bool
	earlier     *v1.PodStatus // of a static pod that another kubelet had: see podplan.Input
	mirrorKnown bool
	sandboxes   []string
	listed      bool
	messages    map[string]string
	volumes     map[string]podplan.Volume
	images      map[string]podplan.Image
	hooks       map[string]podplan.Hook
	preStops    map[string]podplan.Op
	resized     uint32
	failures    map[podplan.Key]podplan.Failure
	repeated    map[podplan.Key]repeated
	ends        map[string]time.Time // when instances were first seen to have ended in the future, by ID
	clock       time.Time            // when the clock was last compared with the time that has passed
	flights     map[podplan.Key]*flight
	cgroup      bool
	forgotten   bool
	transitions []Transition
	toldEnding  string
	pulling     time.Duration
	troubles    int // failed looks in a row
	flying      sync.WaitGroup
}

type flight struct {
	podplan.Flight
	cancel  context.CancelFunc
	objects uint64 // Input.Objects when it started
}

type outcome struct {
	key podplan.Key
	res podplan.Result
}

func newWorker(uid types.UID, deps Deps) *Worker {
	w := &Worker{
		uid: uid, deps: deps, mirrorKnown: deps.Mirror == nil, wakeCh: make(chan struct{}, 1), listDue: true,
		messages: map[string]string{}, volumes: map[string]podplan.Volume{}, images: map[string]podplan.Image{},
		hooks: map[string]podplan.Hook{}, failures: map[podplan.Key]podplan.Failure{}, flights: map[podplan.Key]*flight{},
		preStops: map[string]podplan.Op{}, repeated: map[podplan.Key]repeated{}, ends: map[string]time.Time{}, clock: time.Now(),
	}
	w.found, _ = deps.Records.Read(uid) // the first look reports what is wrong with it
	w.put(&Snapshot{})
	return w
}

// put publishes a snapshot, and notifies those who hold the previous one.
func (w *Worker) put(s *Snapshot) {
	s.superseded = make(chan struct{})
	s.Superseded = s.superseded
	if old := w.snap.Swap(s); old != nil {
		close(old.superseded)
	}
	if w.changed != nil {
		w.changed()
	}
}

// introduce publishes a pod, and what is recorded of it, before its worker has first looked at it.
func (w *Worker) introduce(s *Snapshot) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.Snapshot().At.IsZero() {
		s.Input.Record = w.found
		w.put(s)
	}
}

// Wake makes the worker look again.
func (w *Worker) Wake() {
	select {
	case w.wakeCh <- struct{}{}:
	default:
	}
}

// Snapshot returns what the worker last saw and decided.
func (w *Worker) Snapshot() Snapshot { return *w.snap.Load() }

func (w *Worker) set(pod *v1.Pod, static bool) {
	w.mu.Lock()
	if w.pod != nil && !w.orphan && (!maps.Equal(w.pod.Labels, pod.Labels) || !maps.Equal(w.pod.Annotations, pod.Annotations)) {
		w.objects++ // what the downward API shows
	}
	if w.pod != nil && !resourceclaim.PodStatusEqual(w.pod.Status.ResourceClaimStatuses, pod.Status.ResourceClaimStatuses) {
		w.objects++ // the claims that were made for it
	}
	if w.since.IsZero() {
		w.since = time.Now()
	}
	w.pod, w.static, w.orphan, w.absent = pod, static, false, false
	w.mu.Unlock()
	w.introduce(&Snapshot{Pod: pod, Static: static, Status: pod.Status})
	w.Wake()
}

func (w *Worker) setAbsent(last *v1.Pod) {
	w.mu.Lock()
	w.absent = true
	w.removed = w.removed || w.static
	if last != nil {
		// The object was gone before the pod: it was deleted by force. What runs has only the
		// shortest grace period left.
		p := *last
		p.DeletionGracePeriodSeconds = new(int64)
		if p.DeletionTimestamp == nil {
			p.DeletionTimestamp = &metav1.Time{Time: time.Now()}
		}
		w.pod = &p
	}
	w.mu.Unlock()
	w.Wake()
}

func (w *Worker) adopt(orphan *v1.Pod) {
	w.mu.Lock()
	w.pod, w.orphan = orphan, true
	w.mu.Unlock()
	w.introduce(&Snapshot{Pod: orphan, Absent: true})
}

func (w *Worker) sourcesSynced() {
	w.mu.Lock()
	w.absent = w.absent || w.orphan
	w.mu.Unlock()
	w.Wake()
}

// wanted returns the pod as a source wants it, nil if none does.
func (w *Worker) wanted() *v1.Pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.absent || w.orphan {
		return nil
	}
	return w.pod
}

// gone reports whether no source has the pod any more.
func (w *Worker) gone() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.absent
}

// leaving reports whether the pod is to end, as far as can be known outside its goroutine.
func (w *Worker) leaving() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.absent || w.eviction != nil || w.pod != nil && (w.pod.DeletionTimestamp != nil || pods.IsTerminal(w.pod.Status.Phase))
}

// precedes reports whether a static pod of the same name has to wait for this one.
func (w *Worker) precedes(pod *v1.Pod) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return (w.static || w.orphan) && w.pod != nil && w.pod.Name == pod.Name && w.pod.Namespace == pod.Namespace
}

// lingers reports whether this is a static pod, or perhaps one, that was removed and is not gone yet.
func (w *Worker) lingers() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return (w.absent || w.removed) && (w.static || w.orphan) && w.pod != nil
}

// decided reports whether it is known that the pod is wanted, or that it is not.
func (w *Worker) decided() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.orphan || w.absent
}

func (w *Worker) relist() {
	w.mu.Lock()
	w.listDue = true
	w.mu.Unlock()
	w.Wake()
}

func (w *Worker) objectChanged() {
	w.mu.Lock()
	w.objects++
	w.mu.Unlock()
	w.Wake()
}

func (w *Worker) evict(e podplan.Ending) {
	w.mu.Lock()
	if w.eviction != nil {
		e = w.eviction.Hasten(w.pod, e)
	}
	w.eviction = &e
	w.mu.Unlock()
	w.Wake()
}

func (w *Worker) giveBack() {
	w.mu.Lock()
	w.reclaim = true
	w.mu.Unlock()
	w.Wake()
}

// run is the actor's loop.
func (w *Worker) run(ctx context.Context) {
	ctx = trace.WithPod(ctx, string(w.uid))
	defer w.flying.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	timer := time.NewTimer(0)
	defer timer.Stop()
	w.mu.Lock()
	since := w.since
	w.mu.Unlock()
	if !since.IsZero() {
		if w.deps.Began != nil {
			w.deps.Began(time.Since(since))
		}
		trace.Record(ctx, string(w.uid), "kubelet: see pod", since, time.Now())
	}
	for ctx.Err() == nil { // a wake may have come together with the end
		next, done := w.step(ctx)
		if done {
			return
		}
		if next > 0 {
			timer.Reset(next)
		} else {
			timer.Stop()
		}
		select {
		case <-ctx.Done():
			return
		case <-w.wakeCh:
		case <-timer.C:
		}
	}
}

// step observes, plans and acts once. It returns how long to wait at most (0: for an event only),
// and whether the pod is gone.
func (w *Worker) step(ctx context.Context) (time.Duration, bool) {
	if w.deps.Stepped != nil {
		began := time.Now()
		defer func() { w.deps.Stepped(time.Since(began)) }()
	}
	w.followClock(ctx)
	w.settle()
	in, err := w.observe(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return 0, false
		}
		return w.trouble(ctx, err), false
	}
	w.admit(ctx, &in)
	w.resize(ctx, &in)
	now := time.Now()
	plan := podplan.Next(in, now)
	if plan.Life == podplan.PodTerminating || plan.Life == podplan.PodTerminated {
		in.Residue = w.deps.Residue(in.Pod) // only now: the disk is read only where it matters
		plan = podplan.Next(in, now)
	}
	again, err := w.keepRecord(ctx, plan.Record)
	if err != nil {
		return again, false
	}
	in.Record = plan.Record
	w.act(ctx, in, plan, now)
	if plan.Done {
		w.close(ctx)
		return 0, true
	}
	if plan.RecheckAt.IsZero() {
		return again, false
	}
	next := max(time.Until(plan.RecheckAt), time.Millisecond)
	if again > 0 {
		next = min(next, again)
	}
	return next, false
}

// keepRecord writes the record if it changed. If the disk is full, the record of an ending pod is
// only kept in memory until there is space: the pod may be what fills the disk, and the next
// kubelet would end it all the same. It returns when to retry, 0 for never; after an error nothing
// may be done.
func (w *Worker) keepRecord(ctx context.Context, r podplan.Record) (again time.Duration, err error) {
	if !w.unwritten && reflect.DeepEqual(r, w.record) {
		w.troubles = 0
		return 0, nil
	}
	err = w.writeRecord(r)
	w.unwritten = errors.Is(err, syscall.ENOSPC) && r.Ending != nil
	switch {
	case w.unwritten:
		w.record = r
		return w.trouble(ctx, err), nil
	case err != nil:
		return w.trouble(ctx, err), err
	}
	w.troubles = 0
	return 0, nil
}

// act carries a plan out. The snapshot comes before the status: whoever learns from the API server
// that the pod holds nothing any more may ask for its room at once. The status comes before the
// ops, because the last op waits until it is written.
func (w *Worker) act(ctx context.Context, in podplan.Input, plan podplan.Plan, now time.Time) {
	reports := !in.Absent && !in.Forgotten // an orphan has nobody to report to
	if reports {
		w.status = podplan.Status(in, now)
	}
	w.cancelDropped(plan)
	if w.deps.Prober != nil {
		w.deps.Prober.Sync(ctx, in.Pod, podIPs(&in), plan.Probes)
	}
	launch := w.takeUp(ctx, plan, &in)
	w.publish(in, plan, now)
	if reports {
		w.report(&in, &plan)
	}
	launch()
}

// trouble logs what kept the worker from planning, and returns the back-off.
func (w *Worker) trouble(ctx context.Context, err error) time.Duration {
	w.troubles++
	klog.FromContext(ctx).Error(err, "Cannot observe the pod or write its record, will retry")
	w.note(Transition{What: "observe", Err: err.Error()})
	return min(100*time.Millisecond<<min(w.troubles, 7), 10*time.Second)
}

// admit asks Admission, once, whether the pod may run here.
func (w *Worker) admit(ctx context.Context, in *podplan.Input) {
	if in.Record.Verdict != nil || in.Absent || in.Pod.DeletionTimestamp != nil || pods.IsTerminal(in.Reported.Phase) {
		return
	}
	var v podplan.Verdict
	if len(in.Sandboxes) > 0 {
		v = podplan.Readmitted(in.Pod, &in.Reported)
	} else {
		_, span := trace.Start(ctx, "kubelet: admit")
		v = w.deps.Admission.Admit(ctx, in.Pod, in.Record.Static)
		span.End()
		if !v.Admitted && v.Reason == "" {
			return // others have to go first; it asks again when they have
		}
	}
	in.Record.Verdict = &v // written with what the plan adds, before any effect
	w.note(Transition{What: "admission: " + verdictText(v)})
}

// resize asks Admission whether a pod that is to be resized can have the resources.
func (w *Worker) resize(ctx context.Context, in *podplan.Input) {
	if !podplan.ResizeDue(in) {
		return
	}
	d := w.deps.Admission.Resize(ctx, in)
	before := in.Record.Resize
	podplan.TakeResize(in, d)
	if resizeMoved(before, in.Record.Resize) { // the downward API shows resources
		w.mu.Lock()
		w.objects++
		in.Objects = w.objects
		w.mu.Unlock()
	}
	if !reflect.DeepEqual(before, in.Record.Resize) {
		w.note(Transition{What: "resize: " + cmp.Or(d.Reason, "allocated")})
	}
}

func verdictText(v podplan.Verdict) string {
	if v.Admitted {
		return "admitted"
	}
	return v.Reason + ": " + v.Message
}

// writeRecord writes the record. What could be decided or observed again after a power cut, which
// ends all containers, need not survive one.
func (w *Worker) writeRecord(r podplan.Record) error {
	write := w.deps.Records.WriteCached
	if r.Ending != nil && r.Ending.Reason != "" || r.Verdict != nil && !r.Verdict.Admitted {
		write = w.deps.Records.Write
	}
	if err := write(w.uid, r); err != nil {
		return err
	}
	w.record = r
	return nil
}

func (w *Worker) cancelDropped(plan podplan.Plan) {
	wanted := make(map[podplan.Key]podplan.Op, len(plan.Ops))
	for _, op := range plan.Ops {
		wanted[op.Key()] = op
	}
	for key, f := range w.flights {
		if op, ok := wanted[key]; (!ok || op != f.Op) && !f.Canceled {
			f.Canceled = true
			f.cancel()
			w.note(Transition{What: "cancel", Op: &f.Op})
		}
	}
}

// takeUp registers the ops that are new, and returns the function that launches them.
func (w *Worker) takeUp(ctx context.Context, plan podplan.Plan, in *podplan.Input) (launch func()) {
	var launches []func()
	for _, op := range plan.Ops {
		key := op.Key()
		if _, ok := w.flights[key]; ok {
			continue
		}
		octx, cancel := context.WithCancel(ctx)
		w.flights[key] = &flight{Flight: podplan.Flight{Op: op, Since: time.Now().Round(0)}, cancel: cancel, objects: in.Objects}
		w.note(Transition{What: "start", Op: &op})
		launches = append(launches, func() {
			defer cancel()
			res := w.deps.Executor.Do(octx, op, in)
			w.mu.Lock()
			w.outcomes = append(w.outcomes, outcome{key, res})
			w.mu.Unlock()
			w.Wake()
		})
	}
	return func() {
		for _, f := range launches {
			w.flying.Go(f)
		}
	}
}

// publish lets others see what this step saw and decided.
func (w *Worker) publish(in podplan.Input, plan podplan.Plan, now time.Time) {
	old := w.Snapshot()
	atRest := podplan.AtRest(&in) && !old.AtRest()
	if atRest || resizeMoved(old.Input.Record.Resize, plan.Record.Resize) {
		defer w.deps.Admission.Freed()
	}
	if w.deps.Ran != nil && ranSince(&old.Input, &in) {
		defer w.deps.Ran()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.put(&Snapshot{
		Pod: in.Pod, Static: in.Record.Static, Absent: in.Absent, Status: w.status, Input: in, Plan: plan, At: now,
		InFlight: w.inFlight(), Transitions: w.transitions,
	})
}

// ranSince reports whether a container runs that did not run before.
func ranSince(old, now *podplan.Input) bool {
	return slices.ContainsFunc(now.Containers, func(c podplan.Container) bool {
		return c.State == podplan.Running && !slices.ContainsFunc(old.Containers, func(o podplan.Container) bool {
			return o.ID == c.ID && o.State == podplan.Running
		})
	})
}

// resizeMoved reports whether an allocation changed, or was applied.
func resizeMoved(old, now *podplan.Resize) bool {
	if now == nil {
		return false
	}
	return old == nil || old.Seq != now.Seq || (old.Active == nil) != (now.Active == nil)
}

// note remembers a transition. The slice is copied when it is cut, so that those in snapshots stay
// as they are.
func (w *Worker) note(t Transition) {
	t.At = time.Now().Round(0)
	if len(w.transitions) >= keptTransitions {
		w.transitions = append(make([]Transition, 0, 2*keptTransitions), w.transitions[len(w.transitions)-keptTransitions+1:]...)
	}
	w.transitions = append(w.transitions, t)
}

// close removes the last traces of a pod that is gone from memory and disk.
func (w *Worker) close(ctx context.Context) {
	if w.deps.Prober != nil {
		w.deps.Prober.Remove(w.uid)
	}
	w.deps.Status.Drop(w.uid)
	if err := w.deps.Records.Remove(w.uid); err != nil {
		klog.FromContext(ctx).Error(err, "Cannot remove the pod's record")
	}
}

func podIPs(in *podplan.Input) []string {
	if in.Pod.Spec.HostNetwork {
		return in.Node.HostIPs
	}
	var newest *podplan.Sandbox
	for i := range in.Sandboxes {
		if s := &in.Sandboxes[i]; s.Ready && (newest == nil || s.Attempt > newest.Attempt) {
			newest = s
		}
	}
	if newest == nil {
		return nil
	}
	return newest.IPs
}
