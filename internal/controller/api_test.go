package controller_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
)

// hostileAPI is an API server in memory whose watches lag, break and skip versions, and whose calls fail,
// conflict, or fail after they have taken effect. Versions are true, so that a watch that was
// interrupted goes on where it was, or is told to list again.
type hostileAPI struct {
	*fake.Clientset
	// onWrite is called with the old and the new state of each object that a client wrote, under the
	// lock. A new object has no old state, and one that is deleted has no new one.
	onWrite func(resource string, old, obj metav1.Object)
	honest  bool // a call that fails has had no effect
	// refuse, if there is one, returns why a write is refused, or nil. It is called under the lock.
	refuse func(k8stesting.Action) error

	mu      sync.Mutex // guards all below
	rand    *rand.Rand
	calm    bool // no faults any more
	version int
	objects map[string]map[string]runtime.Object // by resource, by namespace and name
	log     map[string][]change                  // what happened to a resource, in order
	more    chan struct{}                        // closed when there is something new in a log
}

type change struct {
	version int
	watch.Event
}

type object interface {
	metav1.Object
	runtime.Object
}

func newHostileAPI(seed uint64) *hostileAPI {
	a := &hostileAPI{
		Clientset: fake.NewClientset(), rand: rand.New(rand.NewPCG(seed, 2)), version: 100,
		objects: map[string]map[string]runtime.Object{}, log: map[string][]change{}, more: make(chan struct{}),
	}
	a.PrependReactor("*", "*", a.react)
	a.PrependWatchReactor("*", a.watch)
	return a
}

var errFault = apierrors.NewServerTimeout(schema.GroupResource{Resource: "things"}, "write", 1)

func (a *hostileAPI) chance(p float64) bool { return !a.calm && a.rand.Float64() < p }

func (a *hostileAPI) react(action k8stesting.Action) (bool, runtime.Object, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	resource := action.GetResource().Resource
	switch act := action.(type) {
	case k8stesting.GetActionImpl:
		obj, err := a.get(resource, act.GetNamespace()+"/"+act.GetName())
		return true, obj, err
	case k8stesting.ListActionImpl:
		return true, a.list(resource), nil
	}
	if resource == "events" {
		return true, &v1.Event{}, nil
	}
	if a.refuse != nil {
		if err := a.refuse(action); err != nil {
			return true, nil, err
		}
	}
	if a.chance(0.05) {
		return true, nil, errFault
	}
	obj, err := a.write(resource, action)
	if err == nil && !a.honest && !generated(action) && a.chance(0.05) {
		err = errFault // it has taken effect
	}
	return true, obj, err
}

// generated reports whether the API server gives a new object its name. Whoever does not hear that this
// has succeeded cannot know the name, and makes another one; what is too many goes later.
func generated(action k8stesting.Action) bool {
	act, ok := action.(k8stesting.CreateActionImpl)
	return ok && act.GetObject().(metav1.Object).GetName() == ""
}

func (a *hostileAPI) write(resource string, action k8stesting.Action) (runtime.Object, error) {
	switch act := action.(type) {
	case k8stesting.CreateActionImpl:
		return a.create(resource, act.GetObject().(object))
	case k8stesting.UpdateActionImpl:
		return a.update(resource, act.GetSubresource(), act.GetObject().(object))
	case k8stesting.PatchActionImpl:
		return a.patch(resource, act)
	case k8stesting.DeleteActionImpl:
		return nil, a.delete(resource, act.GetNamespace()+"/"+act.GetName(), act.GetDeleteOptions())
	}
	return nil, fmt.Errorf("unexpected %T", action)
}

func (a *hostileAPI) get(resource, key string) (object, error) {
	obj, ok := a.objects[resource][key]
	if !ok {
		_, name, _ := strings.Cut(key, "/")
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: resource}, name)
	}
	return obj.DeepCopyObject().(object), nil
}

func (a *hostileAPI) list(resource string) runtime.Object {
	out := map[string]runtime.Object{
		"pods": &v1.PodList{}, "nodes": &v1.NodeList{}, "persistentvolumeclaims": &v1.PersistentVolumeClaimList{},
		"deployments": &appsv1.DeploymentList{}, "replicasets": &appsv1.ReplicaSetList{},
		"statefulsets": &appsv1.StatefulSetList{}, "daemonsets": &appsv1.DaemonSetList{}, "controllerrevisions": &appsv1.ControllerRevisionList{},
		"jobs": &batchv1.JobList{}, "cronjobs": &batchv1.CronJobList{},
		"persistentvolumes": &v1.PersistentVolumeList{}, "storageclasses": &storagev1.StorageClassList{},
		"csidrivers": &storagev1.CSIDriverList{}, "volumeattachments": &storagev1.VolumeAttachmentList{},
	}[resource]
	var items []runtime.Object
	for _, key := range slices.Sorted(maps.Keys(a.objects[resource])) {
		items = append(items, a.objects[resource][key].DeepCopyObject())
	}
	list, err := meta.ListAccessor(out)
	if err := errors.Join(err, meta.SetList(out, items)); err != nil {
		panic(err)
	}
	list.SetResourceVersion(strconv.Itoa(a.version))
	return out
}

// put stores a state and tells the watches.
func (a *hostileAPI) put(resource string, kind watch.EventType, obj object) {
	a.version++
	obj.SetResourceVersion(strconv.Itoa(a.version))
	if a.objects[resource] == nil {
		a.objects[resource] = map[string]runtime.Object{}
	}
	key := obj.GetNamespace() + "/" + obj.GetName()
	if kind == watch.Deleted {
		delete(a.objects[resource], key)
	} else {
		a.objects[resource][key] = obj
	}
	a.log[resource] = append(a.log[resource], change{a.version, watch.Event{Type: kind, Object: obj.DeepCopyObject()}})
	close(a.more)
	a.more = make(chan struct{})
}

func (a *hostileAPI) create(resource string, obj object) (runtime.Object, error) {
	obj = obj.DeepCopyObject().(object)
	if obj.GetName() == "" {
		obj.SetName(obj.GetGenerateName() + strconv.Itoa(a.version))
	}
	if _, err := a.get(resource, obj.GetNamespace()+"/"+obj.GetName()); err == nil {
		return nil, apierrors.NewAlreadyExists(schema.GroupResource{Resource: resource}, obj.GetName())
	}
	obj.SetUID(types.UID(fmt.Sprintf("u%d", a.version)))
	obj.SetGeneration(1)
	obj.SetCreationTimestamp(metav1.Now())
	switch o := obj.(type) {
	case *v1.Pod:
		o.Status.Phase = v1.PodPending
	case *batchv1.Job:
		selectOwnPods(o)
	}
	a.put(resource, watch.Added, obj)
	a.tell(resource, nil, obj)
	return obj.DeepCopyObject(), nil
}

// selectOwnPods gives a job the selector that it does not bring itself.
func selectOwnPods(j *batchv1.Job) {
	if j.Spec.Selector != nil {
		return
	}
	own := map[string]string{batchv1.ControllerUidLabel: string(j.UID)}
	j.Spec.Selector, j.Spec.Template.Labels = &metav1.LabelSelector{MatchLabels: own}, own
}

func (a *hostileAPI) tell(resource string, old, obj metav1.Object) {
	if a.onWrite != nil {
		a.onWrite(resource, old, obj)
	}
}

func (a *hostileAPI) update(resource, sub string, obj object) (runtime.Object, error) {
	obj = obj.DeepCopyObject().(object)
	was, err := a.get(resource, obj.GetNamespace()+"/"+obj.GetName())
	if err != nil {
		return nil, err
	}
	if obj.GetResourceVersion() != was.GetResourceVersion() || a.chance(0.05) {
		return nil, apierrors.NewConflict(schema.GroupResource{Resource: resource}, obj.GetName(), errors.New("it was changed"))
	}
	if sub == "status" {
		obj = withStatus(was, obj)
	}
	if !sameSpecs(was, obj) {
		obj.SetGeneration(was.GetGeneration() + 1)
	}
	a.put(resource, watch.Modified, obj)
	a.tell(resource, was, obj)
	return obj.DeepCopyObject(), nil
}

// patch applies a strategic merge patch. Another UID than the object's is invalid, and so is a second
// controller; another version is a conflict.
func (a *hostileAPI) patch(resource string, act k8stesting.PatchActionImpl) (runtime.Object, error) {
	was, err := a.get(resource, act.GetNamespace()+"/"+act.GetName())
	if err != nil {
		return nil, err
	}
	if a.chance(0.05) {
		return nil, apierrors.NewConflict(schema.GroupResource{Resource: resource}, was.GetName(), errors.New("it was changed"))
	}
	obj, err := patched(was, act.GetPatch())
	if err != nil {
		return nil, err
	}
	if obj.GetResourceVersion() != was.GetResourceVersion() {
		return nil, apierrors.NewConflict(schema.GroupResource{Resource: resource}, was.GetName(), errors.New("it was changed"))
	}
	controllers := 0
	for _, ref := range obj.GetOwnerReferences() {
		if ref.Controller != nil && *ref.Controller {
			controllers++
		}
	}
	if obj.GetUID() != was.GetUID() || controllers > 1 {
		return nil, apierrors.NewInvalid(schema.GroupKind{Kind: resource}, was.GetName(), nil)
	}
	a.put(resource, watch.Modified, obj)
	a.tell(resource, was, obj)
	return obj.DeepCopyObject(), nil
}

func patched(was object, patch []byte) (object, error) {
	data, err := json.Marshal(was)
	if err != nil {
		return nil, err
	}
	out := reflect.New(reflect.TypeOf(was).Elem()).Interface().(object)
	if data, err = strategicpatch.StrategicMergePatch(data, patch, out); err != nil {
		return nil, err
	}
	return out, json.Unmarshal(data, out)
}

// withStatus returns the object with the status of another state of it.
func withStatus(was, obj object) object {
	out := was.DeepCopyObject().(object)
	switch o := out.(type) {
	case *appsv1.Deployment:
		next := obj.(*appsv1.Deployment)
		o.Status, o.Annotations = next.Status, next.Annotations // as the API server takes them
	case *appsv1.ReplicaSet:
		o.Status = obj.(*appsv1.ReplicaSet).Status
	case *appsv1.StatefulSet:
		o.Status = obj.(*appsv1.StatefulSet).Status
	case *appsv1.DaemonSet:
		o.Status = obj.(*appsv1.DaemonSet).Status
	case *batchv1.Job:
		o.Status = obj.(*batchv1.Job).Status
	case *batchv1.CronJob:
		o.Status = obj.(*batchv1.CronJob).Status
	case *v1.Pod:
		o.Status = obj.(*v1.Pod).Status
	case *v1.PersistentVolume:
		o.Status = obj.(*v1.PersistentVolume).Status
	case *v1.PersistentVolumeClaim:
		o.Status = obj.(*v1.PersistentVolumeClaim).Status
	}
	return out
}

func sameSpecs(a, b object) bool {
	switch a := a.(type) {
	case *appsv1.Deployment:
		return equality.Semantic.DeepEqual(a.Spec, b.(*appsv1.Deployment).Spec)
	case *appsv1.ReplicaSet:
		return equality.Semantic.DeepEqual(a.Spec, b.(*appsv1.ReplicaSet).Spec)
	case *appsv1.StatefulSet:
		return equality.Semantic.DeepEqual(a.Spec, b.(*appsv1.StatefulSet).Spec)
	case *appsv1.DaemonSet:
		return equality.Semantic.DeepEqual(a.Spec, b.(*appsv1.DaemonSet).Spec)
	case *batchv1.Job:
		return equality.Semantic.DeepEqual(a.Spec, b.(*batchv1.Job).Spec)
	case *batchv1.CronJob:
		return equality.Semantic.DeepEqual(a.Spec, b.(*batchv1.CronJob).Spec)
	}
	return true
}

// delete removes an object. A pod only gets its deletion timestamp, and is removed by its kubelet; so does an attachment
// that an attacher knows.
func (a *hostileAPI) delete(resource, key string, opts metav1.DeleteOptions) error {
	obj, err := a.get(resource, key)
	if err != nil {
		return err
	}
	if p := opts.Preconditions; p != nil && (p.UID != nil && *p.UID != obj.GetUID() || p.ResourceVersion != nil && *p.ResourceVersion != obj.GetResourceVersion()) {
		return apierrors.NewConflict(schema.GroupResource{Resource: resource}, obj.GetName(), errors.New("it is another one"))
	}
	if obj.GetDeletionTimestamp() != nil {
		return nil
	}
	a.tell(resource, obj, nil)
	if resource != "pods" && (resource != "volumeattachments" || len(obj.GetFinalizers()) == 0) {
		a.put(resource, watch.Deleted, obj)
		return nil
	}
	obj.SetDeletionTimestamp(new(metav1.Now()))
	a.put(resource, watch.Modified, obj)
	return nil
}

// watch hands on changes, late. Now and then it breaks, or has forgotten what happened.
func (a *hostileAPI) watch(action k8stesting.Action) (bool, watch.Interface, error) {
	act := action.(k8stesting.WatchActionImpl)
	from, err := strconv.Atoi(act.ListOptions.ResourceVersion)
	if err != nil {
		return true, nil, fmt.Errorf("watch from version %q", act.ListOptions.ResourceVersion)
	}
	resource := action.GetResource().Resource
	events, done := make(chan watch.Event), make(chan struct{})
	w := &lateWatch{events: events, stop: sync.OnceFunc(func() { close(done) })}
	go func() {
		defer close(events)
		for {
			next, more, fate := a.next(resource, from)
			var event watch.Event
			switch {
			case fate == breaks:
				return
			case fate == forgets:
				status := apierrors.NewResourceExpired("too old").Status()
				event = watch.Event{Type: watch.Error, Object: &status}
			case next == nil:
				select {
				case <-more:
				case <-done:
					return
				}
				continue
			default:
				from, event = next.version, next.Event
				event.Object = event.Object.DeepCopyObject()
			}
			timer := time.NewTimer(a.lag())
			select {
			case <-timer.C:
			case <-done:
				timer.Stop()
				return
			}
			select {
			case events <- event:
			case <-done:
				return
			}
			if fate == forgets {
				return
			}
		}
	}()
	return true, w, nil
}

type fate int

const (
	lives fate = iota
	breaks
	forgets
)

// next returns the first change after a version, or a channel that is closed when there may be one.
func (a *hostileAPI) next(resource string, from int) (*change, chan struct{}, fate) {
	a.mu.Lock()
	defer a.mu.Unlock()
	log := a.log[resource]
	i, _ := slices.BinarySearchFunc(log, from+1, func(c change, version int) int { return c.version - version })
	switch {
	case i == len(log):
		return nil, a.more, lives
	case a.chance(0.02):
		return nil, nil, breaks
	case a.chance(0.05):
		return nil, nil, forgets
	}
	return &log[i], nil, lives
}

func (a *hostileAPI) lag() time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.calm:
		return time.Millisecond
	case a.rand.IntN(10) == 0:
		return time.Duration(a.rand.Int64N(int64(3 * time.Second)))
	}
	return time.Duration(a.rand.Int64N(int64(20 * time.Millisecond)))
}

type lateWatch struct {
	events chan watch.Event
	stop   func()
}

func (w *lateWatch) Stop()                          { w.stop() }
func (w *lateWatch) ResultChan() <-chan watch.Event { return w.events }

// The world around the controllers changes objects directly, without faults.

// change changes an object, or removes it if f returns false.
func (a *hostileAPI) change(resource, key string, f func(object) bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	obj, err := a.get(resource, key)
	if err != nil {
		return
	}
	was := obj.DeepCopyObject().(object)
	if !f(obj) {
		a.put(resource, watch.Deleted, obj)
		return
	}
	if bytes.Equal(stored(was), stored(obj)) {
		return
	}
	if !sameSpecs(was, obj) {
		obj.SetGeneration(obj.GetGeneration() + 1)
	}
	a.put(resource, watch.Modified, obj)
}

// stored returns what etcd would have of an object. Comparing that costs a tenth of a deep comparison.
func stored(obj object) []byte {
	out, err := obj.(interface{ Marshal() ([]byte, error) }).Marshal()
	if err != nil {
		panic(err)
	}
	return out
}

// add creates an object.
func (a *hostileAPI) add(resource string, obj object) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, err := a.create(resource, obj); err != nil {
		panic(err)
	}
}

// all returns the objects of a resource in a stable order.
func (a *hostileAPI) all(resource string) (out []object) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, key := range slices.Sorted(maps.Keys(a.objects[resource])) {
		out = append(out, a.objects[resource][key].DeepCopyObject().(object))
	}
	return out
}

func (a *hostileAPI) setCalm() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.calm = true
}
