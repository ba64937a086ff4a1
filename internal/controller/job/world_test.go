package job

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
)

// world is an API server in memory: objects with versions, finalizers and graceful deletion, and
// watches that are late, and break. It refuses and loses requests, and the controller that it serves
// is killed between any two of them. It knows what may never happen.
type world struct {
	t       *testing.T
	rand    *rand.Rand
	mu      sync.Mutex
	version int
	objects map[string]object // "pods/name" → the object
	events  []versioned
	streams map[*stream]bool
	calm    bool // no failures any more
	history []string
	sick    bool // says one thing only
	life    *life
	running sync.WaitGroup // streams

	left      int // writes until the controller is killed; negative is never
	kill      func()
	most      int32 // the highest parallelism that the job has had
	entered   map[types.UID]bool
	settled   map[types.UID]bool
	succeeded map[types.UID]bool // while they had the finalizer
	failures  map[int]int        // of each index, those that count
	unlisted  []string           // pods that ended, and lost their finalizer without being listed
	shrinks   bool               // whether somebody suspends or shrinks the job
}

type object interface {
	metav1.Object
	runtime.Object
}

type versioned struct {
	version  int
	resource string
	watch.Event
}

// life is one incarnation of the controller. What is dead reaches nothing any more.
type life struct{ dead bool }

var errDead = errors.New("killed")

func newWorld(t *testing.T, seed uint64) *world {
	return &world{
		t: t, rand: rand.New(rand.NewPCG(seed, 2)), version: 100, left: -1, objects: map[string]object{}, streams: map[*stream]bool{},
		entered: map[types.UID]bool{}, settled: map[types.UID]bool{}, succeeded: map[types.UID]bool{}, failures: map[int]int{},
	}
}

func (w *world) log(format string, args ...any) {
	w.history = append(w.history, time.Now().Format("15:04:05.000 ")+fmt.Sprintf(format, args...))
}

func (w *world) fail(format string, args ...any) {
	if !w.sick {
		w.sick = true
		w.t.Errorf("%s\nhistory:\n%s", fmt.Sprintf(format, args...), strings.Join(w.history, "\n"))
	}
}

func (w *world) chance(p float64) bool { return !w.calm && w.rand.Float64() < p }

// stored gives an object a new version, keeps it, or drops it if nothing holds it any more.
func (w *world) stored(resource string, o object) {
	w.version++
	o.SetResourceVersion(strconv.Itoa(w.version))
	key := resource + "/" + o.GetName()
	kind := watch.Modified
	grace := o.GetDeletionGracePeriodSeconds()
	switch {
	case o.GetDeletionTimestamp() != nil && len(o.GetFinalizers()) == 0 && (grace == nil || *grace == 0):
		delete(w.objects, key)
		kind = watch.Deleted
	case w.objects[key] == nil:
		kind = watch.Added
		fallthrough
	default:
		w.objects[key] = o
	}
	w.emit(versioned{w.version, resource, watch.Event{Type: kind, Object: o.DeepCopyObject()}})
	w.check()
}

func (w *world) emit(e versioned) {
	w.events = append(w.events, e)
	for s := range w.streams {
		if s.resource == e.resource {
			s.push(e)
		}
	}
}

func (w *world) job() *batchv1.Job {
	j, _ := w.objects["jobs/j"].(*batchv1.Job)
	return j
}

func (w *world) pods() []*v1.Pod {
	var out []*v1.Pod
	for _, o := range w.objects {
		if p, ok := o.(*v1.Pod); ok {
			out = append(out, p)
		}
	}
	slices.SortFunc(out, func(a, b *v1.Pod) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// check holds what must be true at every moment.
func (w *world) check() {
	j := w.job()
	if j == nil {
		return
	}
	w.most = max(w.most, *j.Spec.Parallelism)
	active := int32(0)
	for _, p := range w.pods() {
		if p.DeletionTimestamp == nil && p.Status.Phase != v1.PodSucceeded && p.Status.Phase != v1.PodFailed {
			active++
		}
	}
	if active > w.most {
		w.fail("%d pods are active, of %d", active, w.most)
	}
}

// observeStatus holds what must be true of each new status: nothing is listed twice, and only what is
// free leaves the list, into the counters.
func (w *world) observeStatus(was, is *batchv1.Job) {
	before, after := uncountedOf(&was.Status), uncountedOf(&is.Status)
	for uid := range after {
		if w.settled[uid] {
			w.fail("%s is counted a second time", uid)
		}
		w.entered[uid] = true
	}
	gone := int32(0)
	for uid := range before {
		if !after[uid] {
			gone++
			w.settled[uid] = true
			for _, p := range w.pods() {
				if p.UID == uid && isTracked(p) {
					w.fail("%s is counted, but keeps its finalizer", uid)
				}
			}
		}
	}
	counted := is.Status.Failed - was.Status.Failed
	if !isIndexed(is) {
		counted += is.Status.Succeeded - was.Status.Succeeded
	}
	if counted != gone {
		w.fail("%d pods left the list, and %d were counted", gone, counted)
	}
	if isFinished(was) {
		w.fail("the status of a finished job was written")
	}
	w.log("status: active %d, succeeded %d %s, failed %d, listed %d, %s", is.Status.Active, is.Status.Succeeded, is.Status.CompletedIndexes,
		is.Status.Failed, len(after), lastCondition(is))
}

func lastCondition(j *batchv1.Job) string {
	if n := len(j.Status.Conditions); n > 0 {
		return string(j.Status.Conditions[n-1].Type) + "=" + string(j.Status.Conditions[n-1].Status)
	}
	return ""
}

// observeRelease is told of a pod that loses its finalizer.
func (w *world) observeRelease(p *v1.Pod) {
	j := w.job()
	ended := p.Status.Phase == v1.PodSucceeded || p.Status.Phase == v1.PodFailed
	if j == nil || isFinished(j) || j.DeletionTimestamp != nil || !ended || uncountedOf(&j.Status)[p.UID] {
		return
	}
	if isIndexed(j) && p.Status.Phase == v1.PodSucceeded && parseIndexes(j.Status.CompletedIndexes, completions(j)).has(indexOf(p)) {
		return
	}
	if p.Status.Phase == v1.PodFailed && !judge(j.Spec.PodFailurePolicy, p).counts() {
		return
	}
	verdict := isTrue(&j.Status, batchv1.JobFailureTarget) || isTrue(&j.Status, batchv1.JobSuccessCriteriaMet)
	if !verdict {
		w.fail("%s %s is released, but not listed", p.Name, p.Status.Phase)
	}
	w.unlisted = append(w.unlisted, p.Name)
}

// stream is a watch. Its events come late, and it may break.
type stream struct {
	w        *world
	resource string
	out      chan watch.Event
	wake     chan struct{}
	stop     context.CancelFunc
	pending  []versioned
}

func (s *stream) push(e versioned) {
	s.pending = append(s.pending, e)
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *stream) ResultChan() <-chan watch.Event { return s.out }
func (s *stream) Stop()                          { s.stop() }

func (s *stream) run(ctx context.Context) {
	defer close(s.out)
	for ctx.Err() == nil {
		s.w.mu.Lock()
		batch := s.pending
		s.pending = nil
		delay := time.Duration(0)
		if !s.w.calm {
			delay = time.Duration(s.w.rand.IntN(400)) * time.Millisecond
		}
		broken := s.w.chance(0.1)
		s.w.mu.Unlock()
		time.Sleep(delay)
		if broken {
			batch = nil // whoever watches has to begin anew
		}
		for _, e := range batch {
			select {
			case s.out <- watch.Event{Type: e.Type, Object: e.Object.DeepCopyObject()}:
			case <-ctx.Done():
				return
			}
		}
		if broken {
			return
		}
		select {
		case <-s.wake:
		case <-ctx.Done():
		}
	}
}

func (w *world) watch(l *life, action k8stesting.Action) (bool, watch.Interface, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if l.dead {
		return true, nil, errDead
	}
	from, err := strconv.Atoi(action.(k8stesting.WatchActionImpl).ListOptions.ResourceVersion)
	if err != nil {
		from = w.version
	}
	ctx, cancel := context.WithCancel(w.t.Context())
	s := &stream{w: w, resource: action.GetResource().Resource, out: make(chan watch.Event), wake: make(chan struct{}, 1)}
	s.stop = func() {
		w.mu.Lock()
		delete(w.streams, s)
		w.mu.Unlock()
		cancel()
	}
	for _, e := range w.events {
		if e.resource == s.resource && e.version > from {
			s.push(e)
		}
	}
	w.streams[s] = true
	w.running.Go(func() { s.run(ctx) })
	return true, s, nil
}

func (w *world) list(resource string) runtime.Object {
	meta := metav1.ListMeta{ResourceVersion: strconv.Itoa(w.version)}
	switch resource {
	case "jobs":
		out := &batchv1.JobList{ListMeta: meta}
		if j := w.job(); j != nil {
			out.Items = append(out.Items, *j.DeepCopy())
		}
		return out
	case "pods":
		out := &v1.PodList{ListMeta: meta}
		for _, p := range w.pods() {
			out.Items = append(out.Items, *p.DeepCopy())
		}
		return out
	}
	return nil
}

// react serves a request of one incarnation of the controller.
func (w *world) react(l *life, action k8stesting.Action) (bool, runtime.Object, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	resource := action.GetResource().Resource
	if l.dead {
		return true, nil, errDead
	}
	switch {
	case action.GetVerb() == "list":
		return true, w.list(resource), nil
	case resource == "events":
		return true, &v1.Event{}, nil
	case action.GetVerb() == "get":
		o := w.objects[resource+"/"+action.(k8stesting.GetAction).GetName()]
		if o == nil {
			return true, nil, apierrors.NewNotFound(action.GetResource().GroupResource(), "")
		}
		return true, o.DeepCopyObject(), nil
	}
	if w.left == 0 { // before it
		w.kill()
		return true, nil, errDead
	}
	if w.left > 0 {
		w.left--
	}
	if w.chance(0.05) {
		return true, nil, apierrors.NewServiceUnavailable("no")
	}
	o, err := w.write(action)
	if w.left == 0 && w.chance(0.5) { // after it, before the answer
		w.kill()
		return true, nil, errDead
	}
	if w.chance(0.05) {
		w.log("an answer is lost")
		return true, nil, errors.New("connection lost")
	}
	return true, o, err
}

func (w *world) write(action k8stesting.Action) (runtime.Object, error) {
	gr := action.GetResource().GroupResource()
	switch a := action.(type) {
	case k8stesting.CreateActionImpl:
		p := a.GetObject().DeepCopyObject().(*v1.Pod)
		p.Name = fmt.Sprintf("%s%d", p.GenerateName, w.version)
		p.UID, p.CreationTimestamp, p.Status.Phase = types.UID(p.Name), metav1.Now(), v1.PodPending
		w.log("create %s", p.Name)
		w.stored("pods", p)
		return p.DeepCopy(), nil
	case k8stesting.UpdateActionImpl:
		return w.updateStatus(gr, a.GetObject().DeepCopyObject().(*batchv1.Job))
	case k8stesting.PatchActionImpl:
		return w.patch(gr, a.GetName(), a.GetPatch())
	case k8stesting.DeleteActionImpl:
		p, ok := w.objects["pods/"+a.GetName()].(*v1.Pod)
		if !ok {
			return nil, apierrors.NewNotFound(gr, a.GetName())
		}
		must := a.DeleteOptions.Preconditions
		if *must.UID != p.UID || must.ResourceVersion != nil && *must.ResourceVersion != p.ResourceVersion {
			return nil, apierrors.NewConflict(gr, a.GetName(), errors.New("another, or changed"))
		}
		w.remove(p.DeepCopy(), 30)
		return nil, nil
	}
	w.fail("unexpected %T", action)
	return nil, errors.New("unexpected")
}

func (w *world) updateStatus(gr schema.GroupResource, j *batchv1.Job) (runtime.Object, error) {
	was := w.job()
	if was == nil {
		return nil, apierrors.NewNotFound(gr, j.Name)
	}
	if was.ResourceVersion != j.ResourceVersion || was.UID != j.UID || w.chance(0.05) {
		return nil, apierrors.NewConflict(gr, j.Name, errors.New("old"))
	}
	is := was.DeepCopy()
	is.Status = j.Status
	w.observeStatus(was, is)
	w.stored("jobs", is)
	return is.DeepCopy(), nil
}

func (w *world) patch(gr schema.GroupResource, name string, patch []byte) (runtime.Object, error) {
	was, ok := w.objects["pods/"+name].(*v1.Pod)
	if !ok {
		return nil, apierrors.NewNotFound(gr, name)
	}
	old, err := json.Marshal(was)
	if err != nil {
		return nil, err
	}
	changed, err := strategicpatch.StrategicMergePatch(old, patch, &v1.Pod{})
	if err != nil {
		return nil, err
	}
	is := &v1.Pod{}
	if err := json.Unmarshal(changed, is); err != nil {
		return nil, err
	}
	switch {
	case is.UID != was.UID:
		return nil, apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, name, nil)
	case is.ResourceVersion != was.ResourceVersion:
		return nil, apierrors.NewConflict(gr, name, errors.New("old"))
	case isTracked(is) && !isTracked(was) && was.DeletionTimestamp != nil:
		return nil, apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, name, nil)
	case isTracked(was) && !isTracked(is):
		w.log("release %s %s", name, was.Status.Phase)
		w.observeRelease(was)
	}
	before := is.ResourceVersion
	w.stored("pods", is)
	out := is.DeepCopy()
	if w.objects["pods/"+name] == nil {
		out.ResourceVersion = before // as the API server returns what it has just removed
	}
	return out, nil
}

// remove deletes a pod gracefully.
func (w *world) remove(p *v1.Pod, grace int64) {
	if p.DeletionTimestamp != nil && grace > 0 {
		return
	}
	w.log("delete %s (%ds) %s", p.Name, grace, p.Status.Phase)
	if p.DeletionTimestamp == nil {
		p.DeletionTimestamp = new(metav1.NewTime(time.Now().Add(time.Duration(grace) * time.Second)))
	}
	p.DeletionGracePeriodSeconds = &grace
	w.stored("pods", p)
}

// start starts an incarnation of the controller, and returns a function that waits for its end.
func (w *world) start() (wait func()) {
	l := &life{}
	client := fake.NewClientset()
	client.ReactionChain = nil
	client.WatchReactionChain = nil
	client.AddReactor("*", "*", func(a k8stesting.Action) (bool, runtime.Object, error) { return w.react(l, a) })
	client.AddWatchReactor("*", func(a k8stesting.Action) (bool, watch.Interface, error) { return w.watch(l, a) })
	f := informers.NewSharedInformerFactory(client, 0)
	c, err := New(client, f)
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(w.t.Context())
	w.mu.Lock()
	w.life = l
	w.kill = func() {
		w.log("killed")
		l.dead = true
		w.left = -1
		cancel()
	}
	w.mu.Unlock()
	f.Start(ctx.Done())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	return func() {
		if err := <-done; err != nil {
			w.t.Error(err)
		}
		cancel()
		f.Shutdown()
	}
}
