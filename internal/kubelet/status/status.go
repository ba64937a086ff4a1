// Package status writes pod statuses to the API server. It has one slot per pod: a newer status
// replaces one that has not been sent. Pods are written in parallel, with one request at a time per
// pod, and nothing is sent when nothing changed. An update of the version that is known costs the API
// server half of what a patch costs; if somebody else has written meanwhile, a patch follows.
//
// It is the node's only writer of pod status; the pods' workers feed it.
package status

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/kubelet/podplan"
	"wherry.dev/internal/trace"
)

const (
	// soon is how long a status that is about to change again may wait. Each other one that waits
	// lengthens that by soonEach, up to soonMost: the more pods start at once, the longer each takes.
	soon       = 200 * time.Millisecond
	soonEach   = 100 * time.Millisecond
	soonMost   = 2 * time.Second
	retryFirst = 50 * time.Millisecond
	retryMost  = 10 * time.Second
)

// Manager sends the statuses.
type Manager struct {
	client  kubernetes.Interface
	observe func(time.Duration)

	mu    sync.Mutex
	slots map[types.UID]*slot
	// mirrors are the objects that represent static pods, by the pods' UIDs.
	mirrors map[types.UID]*v1.Pod
	// waiting counts the slots with a status that was put by PutSoon.
	waiting int
	// spawn runs a sender under Run's context; nil unless Run is running.
	spawn   func(func(context.Context))
	senders sync.WaitGroup
}

// slot holds what one pod's status should be, and what the server has.
type slot struct {
	namespace, name string
	// pod as it was last put.
	pod *v1.Pod
	// known is the newest version that was seen of the object that is written: the pod or, for a static
	// pod, its mirror. It has no UID while there is none. It is doubtful after a request with an unknown
	// outcome. Nobody changes it.
	known    *v1.Pod
	doubtful bool
	want     v1.PodStatus
	// taken counts the values that want has had.
	taken uint64
	// wire is want in protobuf. Comparing that is many times cheaper, and at every look workers put
	// what they put before.
	wire  []byte
	since time.Time
	dirty bool
	// sending means that a goroutine writes the slot, again that it has to be written once more.
	sending, again bool
	// dropped while sending: the slot stays until the sender has ended, so that the status of a pod
	// that then comes with the same UID is not overtaken by what was sent before.
	dropped bool
	// later sends a status that was put by PutSoon; nil if none waits.
	later *time.Timer
	idle  []chan struct{} // closed when no longer dirty
}

// see takes over the server's version of an object if it is newer than the known one: others may
// have written to it.
func (s *slot) see(o *v1.Pod) bool {
	if s.known.UID == o.UID && s.known.ResourceVersion != "" && s.known.ResourceVersion == o.ResourceVersion {
		s.known = o // says the same, and whoever put it keeps it anyway
	}
	if s.known.UID != o.UID || !newer(o.ResourceVersion, s.known.ResourceVersion) {
		return false
	}
	s.known = o
	return true
}

// differs reports whether the server has something other than it should.
func (s *slot) differs() bool {
	base, want := s.known.Status, due(s.pod, s.known.Status, s.want)
	return differing(&base, &want)
}

// newer compares the versions of an object.
func newer(version, than string) bool {
	if than == "" {
		return version != ""
	}
	order, err := resourceversion.CompareResourceVersion(version, than)
	return err == nil && order > 0
}

// New returns a manager. observe, if not nil, is called with the time that each status waited until
// it was written. Without a client nothing is sent.
func New(client kubernetes.Interface, observe func(time.Duration)) *Manager {
	return &Manager{client: client, observe: observe, slots: map[types.UID]*slot{}, mirrors: map[types.UID]*v1.Pod{}}
}

// Put sets what a pod's status should be from now on; it is sent at once. Nothing that the status
// points to may be changed afterwards.
func (m *Manager) Put(pod *v1.Pod, st v1.PodStatus) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s := m.takeLocked(pod, st); s != nil {
		m.touchLocked(pod.UID, s)
	}
}

// PutSoon is Put for a status that is expected to change again in a moment, while a pod is being
// started: it is sent a little later, unless a newer one comes first.
func (m *Manager) PutSoon(pod *v1.Pod, st v1.PodStatus) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.takeLocked(pod, st)
	if s == nil || s.later != nil || s.known.UID == "" {
		return
	}
	if !s.dirty {
		s.dirty, s.since = true, time.Now()
	}
	wait := min(soon+time.Duration(m.waiting)*soonEach, soonMost)
	m.waiting++
	s.later = time.AfterFunc(wait, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if s.later != nil && m.slots[pod.UID] == s {
			m.touchLocked(pod.UID, s)
		}
	})
}

// takeLocked notes a status, and returns the pod's slot if it is a new one.
func (m *Manager) takeLocked(pod *v1.Pod, st v1.PodStatus) *slot {
	if m.client == nil {
		return nil
	}
	wire, err := st.Marshal()
	if err != nil {
		wire = nil // then it is sent, and the API server may complain
	}
	s := m.slots[pod.UID]
	if s == nil {
		s = &slot{namespace: pod.Namespace, name: pod.Name, known: &v1.Pod{}}
		if !pods.IsStatic(pod) {
			s.known = pod
		} else if mirror, ok := m.mirrors[pod.UID]; ok {
			s.known = mirror
		}
		m.slots[pod.UID] = s
	} else if s.dropped {
		s.dropped = false
	} else if seen := s.see(pod); wire != nil && bytes.Equal(s.wire, wire) && s.later == nil && (!seen || !s.differs()) {
		return nil
	}
	s.pod, s.want, s.wire = pod, st, wire
	s.taken++
	return s
}

// Mirror returns the status of the object that mirrors a static pod, nil if there is none.
func (m *Manager) Mirror(static types.UID) *v1.PodStatus {
	m.mu.Lock()
	defer m.mu.Unlock()
	if mirror := m.mirrors[static]; mirror != nil {
		return mirror.Status.DeepCopy()
	}
	return nil
}

// SetMirror sets which object mirrors a static pod, with its status; nil if there is none any more.
func (m *Manager) SetMirror(static types.UID, mirror *v1.Pod) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.slots[static]
	if mirror == nil {
		delete(m.mirrors, static)
		if s != nil {
			s.known = &v1.Pod{}
		}
		return
	}
	if old := m.mirrors[static]; old == nil || old.UID != mirror.UID || newer(mirror.ResourceVersion, old.ResourceVersion) {
		m.mirrors[static] = mirror.DeepCopy()
	}
	switch {
	case s == nil:
	case s.known.UID != mirror.UID:
		s.known = m.mirrors[static]
		if !s.dropped {
			m.touchLocked(static, s)
		}
	case s.see(m.mirrors[static]) && !s.dropped && s.differs():
		m.touchLocked(static, s)
	}
}

// hastenLocked ends the wait of a status that was put by PutSoon.
func (m *Manager) hastenLocked(s *slot) {
	if s.later != nil {
		s.later.Stop()
		s.later = nil
		m.waiting--
	}
}

func (m *Manager) touchLocked(uid types.UID, s *slot) {
	m.hastenLocked(s)
	if s.known.UID == "" {
		return
	}
	if !s.dirty {
		s.dirty, s.since = true, time.Now()
	}
	m.sendLocked(uid, s)
}

func (m *Manager) sendLocked(uid types.UID, s *slot) {
	if m.spawn == nil || s.sending || !s.dirty {
		return
	}
	s.sending = true
	m.spawn(func(ctx context.Context) { m.send(trace.WithPod(ctx, string(uid)), uid, s) })
}

// Drop forgets a pod.
func (m *Manager) Drop(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s := m.slots[uid]; s != nil {
		m.hastenLocked(s)
		s.settleLocked()
		s.wire = nil
		if s.dropped = s.sending; !s.dropped {
			delete(m.slots, uid)
		}
	}
}

// Flush waits until the server has the newest status of the pod.
func (m *Manager) Flush(ctx context.Context, uid types.UID) error {
	m.mu.Lock()
	s := m.slots[uid]
	if s == nil || !s.dirty {
		m.mu.Unlock()
		return nil
	}
	m.touchLocked(uid, s) // whoever waits wants it now
	idle := make(chan struct{})
	s.idle = append(s.idle, idle)
	m.mu.Unlock()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Run sends statuses until the context ends.
func (m *Manager) Run(ctx context.Context) error {
	m.mu.Lock()
	m.spawn = func(f func(context.Context)) { m.senders.Go(func() { f(ctx) }) }
	for uid, s := range m.slots {
		m.sendLocked(uid, s)
	}
	m.mu.Unlock()
	<-ctx.Done()
	m.mu.Lock()
	m.spawn = nil
	for _, s := range m.slots {
		if s.later != nil {
			s.later.Stop()
		}
	}
	m.mu.Unlock()
	m.senders.Wait()
	return nil
}

func (s *slot) settleLocked() {
	s.dirty = false
	for _, c := range s.idle {
		close(c)
	}
	s.idle = nil
}

// send writes a slot until it is clean.
func (m *Manager) send(ctx context.Context, uid types.UID, s *slot) {
	wait := retryFirst
	for {
		m.mu.Lock()
		if !s.dirty || s.known.UID == "" || ctx.Err() != nil {
			s.sending = false
			if s.dropped {
				delete(m.slots, uid)
			}
			m.mu.Unlock()
			return
		}
		pod, want, taken, apiUID, looked := s.pod, s.want, s.taken, s.known.UID, s.doubtful
		m.mu.Unlock()
		got, err := m.write(ctx, s, apiUID, pod, want)
		refused := apierrors.IsInvalid(err) && looked // because of what the server has now, not what it had before
		if refused {
			klog.FromContext(ctx).Error(err, "The API server rejected the pod's status; it is sent again once it or the pod changes", "pod", s.namespace+"/"+s.name, "podUID", uid)
		}
		if err == nil || refused || apierrors.IsNotFound(err) {
			m.mu.Lock()
			m.sentLocked(uid, s, apiUID, taken, got)
			m.mu.Unlock()
			wait = retryFirst
			continue
		}
		if ctx.Err() == nil {
			klog.FromContext(ctx).V(2).Info("Failed to write the pod's status, will retry", "pod", s.namespace+"/"+s.name, "podUID", uid, "err", err)
		}
		pause(ctx, wait)
		wait = min(wait*2, retryMost)
	}
}

// sentLocked notes what the server has now, and whether that is the newest status.
func (m *Manager) sentLocked(uid types.UID, s *slot, apiUID types.UID, taken uint64, got *v1.Pod) {
	if mirror, ok := m.mirrors[uid]; ok && got != nil && mirror.UID == apiUID {
		m.mirrors[uid] = got
	}
	if s.known.UID != apiUID {
		return
	}
	if got != nil && !newer(s.known.ResourceVersion, got.ResourceVersion) {
		s.known = got
	}
	if taken == s.taken {
		if s.again = got != nil && !s.again && s.differs(); s.again {
			return // others wrote in between: write once more, based on what is there now
		}
		if m.observe != nil {
			m.observe(time.Since(s.since))
		}
		s.settleLocked()
	}
}

// write makes sure that the server has a status, and returns the updated object, nil if the server
// already had it. After a failure it is in doubt what the server has: only the response may have
// failed.
func (m *Manager) write(ctx context.Context, s *slot, apiUID types.UID, pod *v1.Pod, want v1.PodStatus) (*v1.Pod, error) {
	known, err := m.look(ctx, s, apiUID)
	if err != nil {
		return nil, err
	}
	got, err := m.put(ctx, known, due(pod, known.Status, want))
	if err != nil {
		m.mu.Lock()
		s.doubtful = true
		m.mu.Unlock()
	}
	return got, err
}

// look returns what the server has; an object with another UID does not count.
func (m *Manager) look(ctx context.Context, s *slot, apiUID types.UID) (*v1.Pod, error) {
	m.mu.Lock()
	known, doubtful := s.known, s.doubtful
	m.mu.Unlock()
	if known.UID == apiUID && !doubtful {
		return known, nil
	}
	pod, err := m.client.CoreV1().Pods(s.namespace).Get(ctx, s.name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	if pod.UID != apiUID {
		return nil, apierrors.NewNotFound(v1.Resource("pods"), s.name)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if s.known.UID == apiUID {
		s.known, s.doubtful = pod, false
	}
	return pod, nil
}

// put sends the status if it is another one, and returns what the server has afterwards.
func (m *Manager) put(ctx context.Context, known *v1.Pod, want v1.PodStatus) (*v1.Pod, error) {
	before, after := known.Status, want
	if !differing(&before, &after) {
		return nil, nil
	}
	ctx, span := trace.Start(ctx, "kubelet: write status")
	var pod *v1.Pod
	var err error
	// An update that names no version would overwrite what others wrote.
	versioned := known.ResourceVersion != ""
	if versioned {
		pod, err = m.update(ctx, known, want)
	}
	if !versioned || apierrors.IsConflict(err) {
		pod, err = m.patch(ctx, known, before, after)
	}
	if trace.End(span, err) != nil {
		return nil, err
	}
	return pod, nil
}

// update replaces the status of the version that is known.
func (m *Manager) update(ctx context.Context, known *v1.Pod, want v1.PodStatus) (*v1.Pod, error) {
	next := *known
	next.Status, next.ManagedFields = want, nil // without these the server keeps what it has
	return m.client.CoreV1().Pods(known.Namespace).UpdateStatus(ctx, &next, metav1.UpdateOptions{})
}

// patch sends the difference, whatever version the server has.
func (m *Manager) patch(ctx context.Context, known *v1.Pod, base, want v1.PodStatus) (*v1.Pod, error) {
	data, err := diff(known.UID, base, want)
	if err != nil {
		return nil, fmt.Errorf("status of pod %s/%s: %w", known.Namespace, known.Name, err)
	}
	return m.client.CoreV1().Pods(known.Namespace).Patch(ctx, known.Name, types.StrategicMergePatchType, data, metav1.PatchOptions{}, "status")
}

// due returns what the server should have, given what it has.
func due(pod *v1.Pod, base, want v1.PodStatus) v1.PodStatus {
	return withForeign(podplan.Acceptable(pod, base, want), base)
}

// withForeign keeps what others own as the server has it.
func withForeign(want, base v1.PodStatus) v1.PodStatus {
	var conditions []v1.PodCondition
	for _, c := range base.Conditions {
		if !ours(c, want) {
			conditions = append(conditions, c)
		}
	}
	for _, c := range want.Conditions {
		if ours(c, want) {
			conditions = append(conditions, c)
		}
	}
	want.Conditions = conditions
	want.NominatedNodeName = base.NominatedNodeName
	want.ResourceClaimStatuses, want.ExtendedResourceClaimStatus = base.ResourceClaimStatuses, base.ExtendedResourceClaimStatus
	return want
}

// ours reports whether the node writes a condition. It writes DisruptionTarget only if the node
// itself disrupted the pod.
func ours(c v1.PodCondition, want v1.PodStatus) bool {
	if c.Type != v1.DisruptionTarget {
		return podplan.OwnsCondition(c.Type)
	}
	for _, w := range want.Conditions {
		if w.Type == c.Type && w.Reason == v1.PodReasonTerminationByKubelet {
			return true
		}
	}
	return false
}

// differing reports whether two statuses differ, and clears the fields in which they do not:
// including those would be most of the cost of making a patch.
func differing(base, want *v1.PodStatus) bool {
	b, w := reflect.ValueOf(base).Elem(), reflect.ValueOf(want).Elem()
	differ := false
	for i := range b.NumField() {
		if equality.Semantic.DeepEqual(b.Field(i).Interface(), w.Field(i).Interface()) {
			b.Field(i).SetZero()
			w.Field(i).SetZero()
		} else {
			differ = true
		}
	}
	return differ
}

// meta describes how a pod's lists are merged.
var meta = sync.OnceValues(func() (strategicpatch.PatchMetaFromStruct, error) {
	return strategicpatch.NewPatchMetaFromStruct(v1.Pod{})
})

// diff returns a strategic merge patch that also requires the UID.
func diff(uid types.UID, base, want v1.PodStatus) ([]byte, error) {
	schema, err := meta()
	if err != nil {
		return nil, err
	}
	lists := takeLists(&base, &want)
	before, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&base)
	if err != nil {
		return nil, err
	}
	after, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&want)
	if err != nil {
		return nil, err
	}
	patch, err := strategicpatch.CreateTwoWayMergeMapPatchUsingLookupPatchMeta(
		strategicpatch.JSONMap{"status": before}, strategicpatch.JSONMap{"status": after}, schema)
	if err != nil {
		return nil, err
	}
	patch["metadata"] = map[string]any{"uid": string(uid)}
	if st, ok := patch["status"].(map[string]any); ok {
		maps.Copy(st, lists)
	} else if len(lists) > 0 {
		patch["status"] = lists
	}
	return json.Marshal(patch)
}

// takeLists removes from both statuses the lists that differ and that are replaced as a whole:
// those of containers, the largest part of every patch. They need no schema.
func takeLists(base, want *v1.PodStatus) map[string]any {
	out := map[string]any{}
	b, w := reflect.ValueOf(base).Elem(), reflect.ValueOf(want).Elem()
	for i := range b.NumField() {
		tag := b.Type().Field(i).Tag
		if b.Field(i).Kind() != reflect.Slice || tag.Get("patchStrategy") != "" || equality.Semantic.DeepEqual(b.Field(i).Interface(), w.Field(i).Interface()) {
			continue
		}
		name, _, _ := strings.Cut(tag.Get("json"), ",")
		out[name] = nil
		if w.Field(i).Len() > 0 {
			out[name] = w.Field(i).Interface()
		}
		b.Field(i).SetZero()
		w.Field(i).SetZero()
	}
	return out
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
