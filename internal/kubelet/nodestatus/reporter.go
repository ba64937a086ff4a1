package nodestatus

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
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
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"
)

// Runtime is the part of the CRI that a node's status needs.
type Runtime interface {
	Status(ctx context.Context, verbose bool) (*runtimeapi.StatusResponse, error)
}

// Images lists the images on the node.
type Images interface {
	ListImages(ctx context.Context, filter *runtimeapi.ImageFilter) ([]*runtimeapi.Image, error)
}

// Recorder takes events.
type Recorder interface {
	Eventf(object runtime.Object, eventType, reason, format string, args ...any)
}

// Config describes the node.
type Config struct {
	Name     string
	IPs      []string
	Hostname string
	Labels   map[string]string
	// Annotations that the Node has at any rate.
	Annotations map[string]string
	Taints      []v1.Taint
	PodCIDR     string
	Provider    string
	// Register: create the Node object if it is missing.
	Register      bool
	Unschedulable bool
	// ExternalCloud: a cloud controller initializes the node; GivenIPs is what it is told about the
	// node's addresses.
	ExternalCloud bool
	GivenIPs      string
	// Features that the kubelet has, by their feature gates (KEP-5328).
	Features map[string]bool
	MaxPods  int64
	// Devices returns how many there are of the resources of device plugins.
	Devices func() (capacity, allocatable v1.ResourceList)
	// NoLocalStorage: ephemeral storage is not counted on this node.
	NoLocalStorage bool
	// Reserved is subtracted from the capacity: for the system, for Kubernetes, for eviction.
	Reserved v1.ResourceList
	// RootDir is on the file system that counts as ephemeral storage.
	RootDir        string
	RuntimeVersion string
	KubeletVersion string
	Port           func() int32
	ReportEvery    time.Duration
	LeaseSeconds   int32
	MaxImages      int
	// Machine, if not nil, takes the place of the machine on which this process runs.
	Machine *Machine
	// Jitter, if not nil, changes each interval between two renewals of the lease, so that nodes that
	// were started together do not renew together for ever.
	Jitter func(time.Duration) time.Duration
	// Trouble, if not nil, returns what besides the runtime keeps the node from being ready.
	Trouble func() string
	// Pressure, if not nil, reports whether the node is short of memory, disk space or processes.
	Pressure func(v1.NodeConditionType) bool
	// VolumesInUse, if not nil, returns the attached volumes that the node uses now; before are those reported last.
	VolumesInUse func(before []v1.UniqueVolumeName) []v1.UniqueVolumeName
}

// Reporter writes the Node object.
type Reporter struct {
	cfg     Config
	client  kubernetes.Interface
	runtime Runtime
	images  Images
	events  Recorder
	trigger chan struct{}
	ready   chan struct{}
	// reportedOnce is closed by the first report.
	reportedOnce chan struct{}
	once         sync.Once
	lost         atomic.Bool
	// overwritten says that somebody has changed what only we write. sent is what the server had after our last write.
	overwritten atomic.Bool
	sent        atomic.Pointer[v1.Node]
	// theirs is what others have written to the status, as last seen.
	theirs atomic.Pointer[theirs]
	nodeMu sync.Mutex // held by whoever changes node
	node   atomic.Pointer[v1.Node]
	facts  facts
	// asked counts who waits for a report; writing has those that the last one is for.
	asked   atomic.Uint64
	writing written
	// reported is what the server has, as far as we know. Only Run's goroutine uses it.
	reported *v1.Node
	sentAt   time.Time
	wasReady *bool
	pressed  map[v1.NodeConditionType]bool
}

// New returns a reporter. Without a client nothing is written, but Node works.
func New(cfg Config, client kubernetes.Interface, rt Runtime, images Images, events Recorder) (*Reporter, error) {
	f, err := factsOf(cfg)
	if err != nil {
		return nil, fmt.Errorf("node facts: %w", err)
	}
	r := &Reporter{
		cfg: cfg, client: client, runtime: rt, images: images, events: events, facts: f,
		trigger: make(chan struct{}, 1), ready: make(chan struct{}), reportedOnce: make(chan struct{}), pressed: map[v1.NodeConditionType]bool{},
	}
	r.writing.next = make(chan struct{})
	n := r.object()
	n.Status = r.status(nil, nil, nil, time.Now())
	r.node.Store(n)
	return r, nil
}

// Ready returns a channel that is closed once the node is registered and reported as ready.
func (r *Reporter) Ready() <-chan struct{} { return r.ready }

// Reported is closed when the API server has the node's status for the first time.
func (r *Reporter) Reported() <-chan struct{} { return r.reportedOnce }

// Node returns the node as the server has it, with the status that we last determined.
func (r *Reporter) Node() *v1.Node { return r.node.Load() }

// change replaces the node with what f returns for the current one; nil keeps it.
func (r *Reporter) change(f func(old *v1.Node) *v1.Node) (old, now *v1.Node) {
	r.nodeMu.Lock()
	defer r.nodeMu.Unlock()
	old = r.node.Load()
	if now = f(old); now == nil {
		return old, old
	}
	r.node.Store(now)
	return old, now
}

// Observe takes over the node's object from a watch or a lookup: others write labels and taints,
// too.
func (r *Reporter) Observe(n *v1.Node) {
	old, now := r.change(func(old *v1.Node) *v1.Node {
		if old.UID == n.UID && older(n, old) {
			return nil
		}
		c := n.DeepCopy()
		c.Status = old.Status
		return c
	})
	if old == now {
		return
	}
	if sent := r.sent.Load(); sent != nil && sent.UID == n.UID && !older(n, sent) && !sameConditions(&sent.Status, &n.Status) {
		// While we were cut off, the node's conditions became unknown.
		r.overwritten.Store(true)
		r.Trigger()
	}
	seen := theirsIn(&n.Status)
	if before := r.theirs.Swap(&seen); before == nil || !before.equal(seen) {
		r.Trigger() // so that it takes effect soon
	}
	if old.UID == n.UID && old.Spec.Unschedulable != n.Spec.Unschedulable {
		reason := "NodeSchedulable"
		if n.Spec.Unschedulable {
			reason = "NodeNotSchedulable"
		}
		r.tell(reason)
	}
}

// sameConditions reports whether the conditions that we write are as we wrote them.
func sameConditions(ours, now *v1.NodeStatus) bool {
	for _, c := range ours.Conditions {
		if c.Type != v1.NodeReady && !slices.ContainsFunc(pressures, func(p pressure) bool { return p.kind == c.Type }) {
			continue
		}
		if !slices.ContainsFunc(now.Conditions, func(o v1.NodeCondition) bool { return o.Type == c.Type && o.Status == c.Status }) {
			return false
		}
	}
	return true
}

// older reports whether one version of the node is older than another.
func older(n, than *v1.Node) bool {
	order, err := resourceversion.CompareResourceVersion(n.ResourceVersion, than.ResourceVersion)
	return err == nil && order < 0
}

// Lost says that the node's object was deleted. It is registered again.
func (r *Reporter) Lost() {
	r.lost.Store(true)
	r.Trigger()
}

// Memory returns the node's memory in bytes.
func (r *Reporter) Memory() int64 { return r.facts.memory }

// Trigger makes the reporter look at once.
func (r *Reporter) Trigger() {
	select {
	case r.trigger <- struct{}{}:
	default:
	}
}

// written is what the server has of the node.
type written struct {
	mu      sync.Mutex
	upTo    uint64 // who asked
	version string
	next    chan struct{} // closed, and replaced, by the next report
}

// done says that the server has the status as it was determined after somebody had asked.
func (w *written) done(upTo uint64, version string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.upTo, w.version = upTo, version
	close(w.next)
	w.next = make(chan struct{})
}

func (w *written) look() (upTo uint64, version string, next <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.upTo, w.version, w.next
}

// Written waits until the server has the status as it is determined from now on, and returns the version of the node that
// has it, or the error of the context.
func (r *Reporter) Written(ctx context.Context) (version string, err error) {
	mine := r.asked.Add(1)
	r.Trigger()
	for {
		upTo, version, next := r.writing.look()
		if upTo >= mine {
			return version, nil
		}
		select {
		case <-next:
		case <-ctx.Done():
			return "", context.Cause(ctx)
		}
	}
}

// Ref returns a reference to the node, for events.
func (r *Reporter) Ref() *v1.ObjectReference {
	return &v1.ObjectReference{Kind: "Node", APIVersion: "v1", Name: r.cfg.Name, UID: types.UID(r.cfg.Name)}
}

// Run registers the node and reports until the context ends.
func (r *Reporter) Run(ctx context.Context) error {
	log := klog.FromContext(ctx)
	r.events.Eventf(r.Ref(), v1.EventTypeNormal, "Starting", "Starting kubelet.")
	const first, most = 50 * time.Millisecond, 10 * time.Second
	wait := first
	for ctx.Err() == nil {
		err := r.report(ctx)
		next := r.leaseInterval()
		switch {
		case err != nil:
			if ctx.Err() == nil {
				log.Error(err, "Failed to report the node status, will retry")
			}
			next = wait
			wait = min(wait*2, most)
		case r.wasReady == nil || !*r.wasReady:
			// The runtime or its network is coming up: nothing signals when it is done.
			next = min(wait, time.Second)
			wait = min(wait*2, most)
		default:
			wait = first
		}
		t := time.NewTimer(next)
		select {
		case <-ctx.Done():
		case <-r.trigger:
		case <-t.C:
		}
		t.Stop()
	}
	return nil
}

func (r *Reporter) leaseInterval() time.Duration {
	return time.Duration(r.cfg.LeaseSeconds) * time.Second / 4
}

// report writes the status if it changed, or if the last report is old.
func (r *Reporter) report(ctx context.Context) error {
	asked, now := r.asked.Load(), time.Now()
	st, imgs, rtErr := r.look(ctx)
	if r.client == nil {
		r.note(r.withStatus(r.status(st, imgs, rtErr, now)))
		return nil
	}
	if lost := r.lost.Swap(false); r.overwritten.Swap(false) || lost {
		r.reported = nil // read the server's again
	}
	if r.reported == nil {
		if err := r.register(ctx, r.status(st, imgs, rtErr, now)); err != nil {
			return err
		}
	}
	want := r.reported.DeepCopy()
	want.Status = r.status(st, imgs, rtErr, now)
	r.merge(&want.Status)
	if r.sentAt.IsZero() || now.Sub(r.sentAt) >= r.cfg.ReportEvery || !sameStatus(&r.reported.Status, &want.Status) {
		if err := r.patch(ctx, want); err != nil {
			r.reported = nil // read the server's again
			return err
		}
		r.sentAt = now
	}
	r.writing.done(asked, r.reported.ResourceVersion)
	r.note(r.withStatus(want.Status))
	return nil
}

// withStatus sets the status of the node, and returns the node. Until the server's object was seen
// it takes the one that was registered.
func (r *Reporter) withStatus(st v1.NodeStatus) *v1.Node {
	_, now := r.change(func(old *v1.Node) *v1.Node {
		n := old.DeepCopy()
		if n.UID == "" && r.reported != nil {
			n = r.reported.DeepCopy()
		}
		n.Status = st
		return n
	})
	return now
}

func (r *Reporter) look(ctx context.Context) (*runtimeapi.StatusResponse, []*runtimeapi.Image, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	st, err := r.runtime.Status(ctx, false)
	if err != nil {
		return nil, nil, err
	}
	imgs, err := r.images.ListImages(ctx, nil)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Cannot list images for the node status")
	}
	return st, imgs, nil
}

// register makes sure that the Node object exists and has our labels.
func (r *Reporter) register(ctx context.Context, st v1.NodeStatus) error {
	nodes := r.client.CoreV1().Nodes()
	want := r.object()
	want.Status = st
	// Upstream's order: create first, because at a first start there is none.
	if r.cfg.Register {
		n, err := nodes.Create(ctx, want, metav1.CreateOptions{})
		if err == nil {
			r.reported = n
			return nil
		}
		// A kubelet that may not create nodes may find one that somebody else created.
		if !apierrors.IsAlreadyExists(err) && !apierrors.IsForbidden(err) {
			return fmt.Errorf("register node %s: %w", r.cfg.Name, err)
		}
	}
	n, err := nodes.Get(ctx, r.cfg.Name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("get node %s: %w", r.cfg.Name, err)
	}
	if boot := n.Status.NodeInfo.BootID; boot != "" && boot != r.facts.info.BootID {
		r.events.Eventf(r.Ref(), v1.EventTypeWarning, "Rebooted", "Node %s has been rebooted, boot id: %s", r.cfg.Name, r.facts.info.BootID)
	}
	r.reported, err = r.reconcile(ctx, n, want)
	return err
}

// defaultLabels are those that a kubelet corrects on an existing node. Others from --node-labels
// are set when the node is registered; from then on they belong to the node's owners.
var defaultLabels = []string{
	v1.LabelHostname, v1.LabelTopologyZone, v1.LabelTopologyRegion, v1.LabelFailureDomainBetaZone, v1.LabelFailureDomainBetaRegion,
	v1.LabelInstanceTypeStable, v1.LabelInstanceType, v1.LabelOSStable, v1.LabelArchStable, labelBetaOS, labelBetaArch,
}

// reconcile applies default labels and our annotations to an existing object.
func (r *Reporter) reconcile(ctx context.Context, n, want *v1.Node) (*v1.Node, error) {
	changed := n.DeepCopy()
	if changed.Labels == nil {
		changed.Labels = map[string]string{}
	}
	if changed.Annotations == nil {
		changed.Annotations = map[string]string{}
	}
	for _, name := range defaultLabels {
		if value, ok := want.Labels[name]; ok && value != "" {
			changed.Labels[name] = value
		} else if ok {
			delete(changed.Labels, name)
		}
	}
	maps.Copy(changed.Annotations, want.Annotations)
	if _, ok := want.Annotations[annotationProvidedIP]; !ok {
		delete(changed.Annotations, annotationProvidedIP) // from a cloud controller that is no longer there
	}
	if equality.Semantic.DeepEqual(n, changed) {
		return n, nil
	}
	data, err := twoWay(n, changed)
	if err != nil {
		return nil, err
	}
	got, err := r.client.CoreV1().Nodes().Patch(ctx, r.cfg.Name, types.StrategicMergePatchType, data, metav1.PatchOptions{})
	if err != nil {
		return nil, fmt.Errorf("update labels of node %s: %w", r.cfg.Name, err)
	}
	return got, nil
}

func (r *Reporter) patch(ctx context.Context, want *v1.Node) error {
	data, err := twoWay(&v1.Node{Status: r.reported.Status}, &v1.Node{Status: want.Status})
	if err != nil {
		return err
	}
	got, err := r.client.CoreV1().Nodes().Patch(ctx, r.cfg.Name, types.StrategicMergePatchType, data, metav1.PatchOptions{}, "status")
	if err != nil {
		return fmt.Errorf("patch status of node %s: %w", r.cfg.Name, err)
	}
	r.reported = got
	r.sent.Store(got)
	return nil
}

func twoWay(before, after *v1.Node) ([]byte, error) {
	a, err := json.Marshal(before)
	if err != nil {
		return nil, err
	}
	b, err := json.Marshal(after)
	if err != nil {
		return nil, err
	}
	return strategicpatch.CreateTwoWayMergePatch(a, b, v1.Node{})
}

// merge keeps what others write to the status, and transition times.
func (r *Reporter) merge(st *v1.NodeStatus) {
	old := &r.reported.Status
	others := theirsIn(old)
	if seen := r.theirs.Load(); seen != nil {
		others = *seen
	}
	if r.cfg.ExternalCloud && len(others.addresses) > 0 {
		st.Addresses = others.addresses // the cloud controller knows better
	}
	st.VolumesAttached, st.VolumesInUse, st.Phase, st.Config = old.VolumesAttached, old.VolumesInUse, old.Phase, old.Config
	if r.cfg.VolumesInUse != nil {
		st.VolumesInUse = r.cfg.VolumesInUse(old.VolumesInUse)
	}
	for i := range st.Conditions {
		for _, o := range old.Conditions {
			if o.Type == st.Conditions[i].Type && o.Status == st.Conditions[i].Status {
				st.Conditions[i].LastTransitionTime = o.LastTransitionTime
			}
		}
	}
	for _, o := range old.Conditions {
		if !hasCondition(st.Conditions, o.Type) {
			st.Conditions = append(st.Conditions, o)
		}
	}
	for name, q := range others.capacity {
		if _, ok := st.Capacity[name]; !ok {
			st.Capacity[name], st.Allocatable[name] = q, q
		}
	}
}

// theirs is the part of a status that others write: operators advertise extended resources as
// capacity, and a cloud controller sets addresses.
type theirs struct {
	capacity  v1.ResourceList
	addresses []v1.NodeAddress
}

func (t *theirs) equal(o theirs) bool {
	return equality.Semantic.DeepEqual(t.capacity, o.capacity) && slices.Equal(t.addresses, o.addresses)
}

func theirsIn(st *v1.NodeStatus) theirs {
	t := theirs{capacity: v1.ResourceList{}, addresses: st.Addresses}
	for name, q := range st.Capacity {
		if isExtended(name) {
			t.capacity[name] = q
		}
	}
	return t
}

func hasCondition(list []v1.NodeCondition, t v1.NodeConditionType) bool {
	for i := range list {
		if list[i].Type == t {
			return true
		}
	}
	return false
}

// sameStatus compares two statuses without their heartbeats.
func sameStatus(a, b *v1.NodeStatus) bool {
	x, y := a.DeepCopy(), b.DeepCopy()
	for _, st := range []*v1.NodeStatus{x, y} {
		for i := range st.Conditions {
			st.Conditions[i].LastHeartbeatTime = metav1.Time{}
		}
	}
	return equality.Semantic.DeepEqual(x, y)
}

func (r *Reporter) tell(reason string) {
	r.events.Eventf(r.Ref(), v1.EventTypeNormal, reason, "Node %s status is now: %s", r.cfg.Name, reason)
}

// note reports the node's condition by events and the ready channel.
func (r *Reporter) note(n *v1.Node) {
	ready := false
	for _, c := range n.Status.Conditions {
		if c.Type == v1.NodeReady {
			ready = c.Status == v1.ConditionTrue
		}
	}
	for _, p := range pressures {
		short := slices.ContainsFunc(n.Status.Conditions, func(c v1.NodeCondition) bool { return c.Type == p.kind && c.Status == v1.ConditionTrue })
		if r.wasReady == nil || short != r.pressed[p.kind] {
			reason := p.no
			if short {
				reason = p.yes
			}
			r.tell("NodeHas" + reason)
		}
		r.pressed[p.kind] = short
	}
	if r.wasReady == nil || *r.wasReady != ready {
		reason := "NodeNotReady"
		if ready {
			reason = "NodeReady"
		}
		r.tell(reason)
	}
	if r.wasReady == nil {
		close(r.reportedOnce)
	}
	r.wasReady = &ready
	if ready {
		r.once.Do(func() { close(r.ready) })
	}
}
