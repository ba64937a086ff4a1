package volumes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-helpers/storage/ephemeral"
	"k8s.io/component-helpers/storage/volume"
	configv1 "k8s.io/kube-scheduler/config/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/utils/ptr"

	"wherry.dev/internal/scheduler/framework"
)

// Binding is VolumeBinding: it keeps a pod off nodes on which its claims would not get their volumes, and sees to it
// that they have them before the pod is bound.
type Binding struct {
	*reserved
	client   kubernetes.Interface
	timeout  time.Duration // for claims to be bound
	shape    framework.Shape
	nodes    corelisters.NodeLister
	csiNodes fwk.CSINodeLister
	classes  storagelisters.StorageClassLister
	drivers  storagelisters.CSIDriverLister
	room     cache.Indexer // CSIStorageCapacity, by class
}

var (
	_ fwk.PreFilterPlugin   = (*Binding)(nil)
	_ fwk.FilterPlugin      = (*Binding)(nil)
	_ fwk.PreScorePlugin    = (*Binding)(nil)
	_ fwk.ScorePlugin       = (*Binding)(nil)
	_ fwk.ReservePlugin     = (*Binding)(nil)
	_ fwk.PreBindPlugin     = (*Binding)(nil)
	_ fwk.EnqueueExtensions = (*Binding)(nil)
)

// reserved is what the plugins of all profiles have promised to pods.
type reserved struct {
	volumes *assumed[*v1.PersistentVolume]
	claims  *assumed[*v1.PersistentVolumeClaim]
	bells   *framework.Bells
}

// Indices of the informers.
const (
	byClass = "wherry-class" // volumes that are free for claims of a class, and CSIStorageCapacity
	byClaim = "wherry-claim" // volumes that are kept for a claim
	byNode  = "wherry-node"  // VolumeAttachments
)

// BindingFactory returns what makes a VolumeBinding for each profile. They know of each other's promises.
func BindingFactory() func(context.Context, *configv1.VolumeBindingArgs, fwk.Handle) (fwk.Plugin, error) {
	var all *reserved
	return func(_ context.Context, args *configv1.VolumeBindingArgs, h fwk.Handle) (fwk.Plugin, error) {
		if all == nil {
			var err error
			if all, err = newReserved(h.SharedInformerFactory()); err != nil {
				return nil, err
			}
		}
		return newBinding(args, h, all)
	}
}

func newBinding(args *configv1.VolumeBindingArgs, h fwk.Handle, all *reserved) (*Binding, error) {
	seconds := ptr.Deref(args.BindTimeoutSeconds, 600)
	if seconds < 0 {
		return nil, fmt.Errorf("bindTimeoutSeconds: Invalid value: %d: should not be negative", seconds)
	}
	points := args.Shape
	if len(points) == 0 { // upstream's default (KEP-4049): the more room is left, the better
		points = []configv1.UtilizationShapePoint{{Utilization: 0, Score: 10}, {Utilization: 100}}
	}
	shape, err := framework.NewShape(points)
	if err != nil {
		return nil, err
	}
	f := h.SharedInformerFactory()
	room := f.Storage().V1().CSIStorageCapacities().Informer()
	if err := framework.AddIndex(room, byClass, classOfRoom); err != nil {
		return nil, err
	}
	return &Binding{
		reserved: all, client: h.ClientSet(), timeout: time.Duration(seconds) * time.Second, shape: shape,
		nodes: f.Core().V1().Nodes().Lister(), csiNodes: h.SharedCSIManager().CSINodes(),
		classes: f.Storage().V1().StorageClasses().Lister(), drivers: f.Storage().V1().CSIDrivers().Lister(),
		room: room.GetIndexer(),
	}, nil
}

func newReserved(f informers.SharedInformerFactory) (*reserved, error) {
	volumes, claims := f.Core().V1().PersistentVolumes().Informer(), f.Core().V1().PersistentVolumeClaims().Informer()
	if err := errors.Join(framework.AddIndex(volumes, byClass, freeForClass), framework.AddIndex(volumes, byClaim, keptFor)); err != nil {
		return nil, err
	}
	r := &reserved{
		volumes: newAssumed[*v1.PersistentVolume]("persistentvolumes", volumes.GetIndexer()),
		claims:  newAssumed[*v1.PersistentVolumeClaim]("persistentvolumeclaims", claims.GetIndexer()),
		bells:   &framework.Bells{},
	}
	return r, errors.Join(
		r.ringFor(volumes), r.ringFor(claims),
		r.ringFor(f.Core().V1().Nodes().Informer()), r.ringFor(f.Storage().V1().CSINodes().Informer()),
	)
}

// ringFor has changes of an informer's objects heard by whom they concern.
func (r *reserved) ringFor(informer cache.SharedIndexInformer) error {
	ring := func(obj any) {
		if t, ok := obj.(cache.DeletedFinalStateUnknown); ok {
			obj = t.Obj
		}
		switch o := obj.(type) {
		case *v1.PersistentVolume:
			for _, claim := range keptFor(o) {
				r.bells.Ring(bellOfClaim(claim))
			}
		case *v1.PersistentVolumeClaim:
			r.bells.Ring(bellOfClaim(keyOf(o)))
		case *v1.Node:
			r.bells.Ring(bellOfNode(o.Name))
		case *storagev1.CSINode:
			r.bells.Ring(bellOfNode(o.Name))
		}
	}
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: ring, DeleteFunc: ring, UpdateFunc: func(old, obj any) { ring(old); ring(obj) },
	})
	return err
}

// freeForClass returns the class of a volume that any claim of that class may have.
func freeForClass(pv *v1.PersistentVolume) []string {
	if pv.Spec.ClaimRef != nil || pv.Status.Phase != v1.VolumeAvailable || pv.DeletionTimestamp != nil {
		return nil
	}
	return []string{volume.GetPersistentVolumeClass(pv)}
}

// classOfRoom returns the class for which a driver has room.
func classOfRoom(c *storagev1.CSIStorageCapacity) []string { return []string{c.StorageClassName} }

// Names of bells.
func bellOfClaim(key string) string { return "claim " + key }
func bellOfNode(name string) string { return "node " + name }

// keptFor returns the claim that a volume is bound to, or is to be bound to.
func keptFor(pv *v1.PersistentVolume) []string {
	if pv.Spec.ClaimRef == nil {
		return nil
	}
	return []string{key(pv.Spec.ClaimRef.Namespace, pv.Spec.ClaimRef.Name)}
}

const bindingKey fwk.StateKey = "VolumeBinding"

// bindingState belongs to one attempt to schedule one pod. Filter writes the plans, for many nodes at once; what is
// there does not depend on other pods, so that clones share it.
type bindingState struct {
	needs *needs

	mu    sync.Mutex
	plans map[string]*plan // by node

	promise *promise // since Reserve
}

// Clone returns the state itself.
func (s *bindingState) Clone() fwk.StateData { return s }

func (s *bindingState) plan(node string) *plan {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.plans[node]
}

// stateOf returns nil for a pod without claims.
func stateOf(state fwk.CycleState) *bindingState {
	s, st := framework.ReadState[*bindingState](state, bindingKey)
	if !st.IsSuccess() {
		return nil
	}
	return s
}

// Name returns upstream's name.
func (*Binding) Name() string { return "VolumeBinding" }

// PreFilter finds out what the pod's claims need. A pod must wait for claims that do not exist, or that get their
// volumes whether or not there is a pod.
func (b *Binding) PreFilter(_ context.Context, state fwk.CycleState, pod *v1.Pod,
	_ []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
	used := uses(pod)
	if len(used) == 0 {
		return nil, fwk.NewStatus(fwk.Skip)
	}
	claims, why := b.claimsOf(pod, used)
	if why != "" {
		return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, why)
	}
	n, wait, err := b.needs(claims)
	if err != nil {
		return nil, fwk.AsStatus(err)
	}
	if wait {
		return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "pod has unbound immediate PersistentVolumeClaims")
	}
	state.Write(bindingKey, &bindingState{needs: n, plans: map[string]*plan{}})
	return nil, nil
}

// PreFilterExtensions returns nil: other pods do not matter.
func (*Binding) PreFilterExtensions() fwk.PreFilterExtensions { return nil }

// claimsOf returns the claims of a pod as they will be, or why it cannot use one of them.
func (b *Binding) claimsOf(pod *v1.Pod, used []use) ([]*v1.PersistentVolumeClaim, string) {
	var out []*v1.PersistentVolumeClaim
	for _, u := range used {
		claim, err := b.claims.get(key(pod.Namespace, u.name))
		switch {
		case apierrors.IsNotFound(err) && u.ephemeral:
			return nil, fmt.Sprintf("waiting for ephemeral volume controller to create the persistentvolumeclaim %q", u.name)
		case apierrors.IsNotFound(err):
			return nil, fmt.Sprintf("persistentvolumeclaim %q not found", u.name)
		case err != nil:
			return nil, err.Error()
		case claim.Status.Phase == v1.ClaimLost:
			return nil, fmt.Sprintf("persistentvolumeclaim %q bound to non-existent persistentvolume %q", claim.Name,
				claim.Spec.VolumeName)
		case claim.DeletionTimestamp != nil:
			return nil, fmt.Sprintf("persistentvolumeclaim %q is being deleted", claim.Name)
		}
		if u.ephemeral {
			if err := ephemeral.VolumeIsForPod(pod, claim); err != nil {
				return nil, err.Error()
			}
		}
		if !slices.Contains(out, claim) {
			out = append(out, claim)
		}
	}
	return out, ""
}

// needs sorts claims into those that have their volumes and those that get them with the pod's node. wait says that
// there are others.
func (b *Binding) needs(claims []*v1.PersistentVolumeClaim) (n *needs, wait bool, err error) {
	n = &needs{}
	for _, claim := range claims {
		if bound(claim) {
			pv, err := b.volumes.get(claim.Spec.VolumeName)
			if err != nil && !apierrors.IsNotFound(err) {
				return nil, false, err
			}
			n.bound = append(n.bound, pv)
			continue
		}
		later, err := volume.IsDelayBindingMode(claim, b.classes)
		if err != nil {
			return nil, false, err
		}
		if !later || claim.Spec.VolumeName != "" {
			return nil, true, nil
		}
		open, err := b.open(claim)
		if err != nil {
			return nil, false, err
		}
		n.open = append(n.open, open)
	}
	slices.SortStableFunc(n.open, func(a, b openClaim) int { return cmp.Compare(request(a.claim), request(b.claim)) })
	return n, false, nil
}

// request returns the size that a claim asks for, in bytes.
func request(claim *v1.PersistentVolumeClaim) int64 {
	return claim.Spec.Resources.Requests.Storage().Value()
}

// open looks up how a claim could get its volume.
func (b *Binding) open(claim *v1.PersistentVolumeClaim) (openClaim, error) {
	name := volume.GetPersistentVolumeClaimClass(claim)
	class, err := b.classes.Get(name)
	if err != nil {
		return openClaim{}, fmt.Errorf("failed to find storage class %q", name)
	}
	driver, err := b.drivers.Get(class.Provisioner)
	if err != nil && !apierrors.IsNotFound(err) {
		return openClaim{}, err
	}
	var room []*storagev1.CSIStorageCapacity
	objs, err := b.room.ByIndex(byClass, name)
	if err != nil {
		return openClaim{}, err
	}
	for _, obj := range objs {
		if c, ok := obj.(*storagev1.CSIStorageCapacity); ok {
			room = append(room, c)
		}
	}
	out := openClaim{claim: claim, provision: newProvision(claim, class, driver, room)}
	if volume.IsDelayBindingProvisioning(claim) {
		return out, nil
	}
	out.match, err = b.match(claim, name)
	return out, err
}

// match looks up the volumes that are free, and those that are kept for the claim.
func (b *Binding) match(claim *v1.PersistentVolumeClaim, class string) (*candidates, error) {
	free, err := b.volumes.index(byClass, class)
	if err != nil {
		return nil, err
	}
	kept, err := b.volumes.index(byClaim, keyOf(claim))
	if err != nil {
		return nil, err
	}
	for _, pv := range kept {
		if volume.GetPersistentVolumeClass(pv) == class {
			free = append(free, pv)
		}
	}
	return newCandidates(claim, free)
}

// Filter plans how the claims get their volumes on the node.
func (b *Binding) Filter(_ context.Context, state fwk.CycleState, _ *v1.Pod, info fwk.NodeInfo) *fwk.Status {
	s := stateOf(state)
	if s == nil {
		return nil
	}
	node := info.Node()
	p, reasons, err := s.needs.on(node, b.csiNode(node.Name))
	if err != nil {
		return fwk.AsStatus(err)
	}
	if len(reasons) > 0 {
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, reasons...)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.plans[node.Name] = p
	return nil
}

// csiNode returns nil for a node that has none: it may not have CSI drivers at all.
func (b *Binding) csiNode(name string) *storagev1.CSINode {
	n, err := b.csiNodes.Get(name)
	if err != nil {
		return nil
	}
	return n
}
