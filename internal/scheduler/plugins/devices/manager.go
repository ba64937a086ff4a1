package devices

import (
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/informers"
	resourcelisters "k8s.io/client-go/listers/resource/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/utils/ptr"

	apiclasses "wherry.dev/internal/api/classes"
	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/scheduler/framework"
)

// Manager knows what there is of devices, and what is promised of them. The plugins of all profiles have one in
// common, so that none gives away what another one has promised. Who gets it from the framework's Handle must ask for
// it in a factory, as for any informer.
type Manager struct {
	claims  *claims
	made    cache.Indexer    // claims, by the pod for which the scheduler has made them
	bells   *framework.Bells // by the key of a claim
	cel     *cel.Cache
	classes classes
	slices  *tainted
}

var _ fwk.SharedDRAManager = (*Manager)(nil)

// expressions is how many compiled selectors are kept.
const expressions = 100

// Indices: of classes by the extended resources that their devices stand for, of claims by the pod for which the
// scheduler has made them, of slices by their pool.
const (
	byResource = "wherry/extendedresource"
	byPod      = "wherry/extendedresourcepod"
	byPool     = "wherry/scheduler/devicepool"
)

// NewManager returns one that watches with the informers of f.
func NewManager(f informers.SharedInformerFactory) (*Manager, error) {
	api := f.Resource().V1()
	claims, classInformer, sliceInformer := api.ResourceClaims().Informer(), api.DeviceClasses().Informer(), api.ResourceSlices().Informer()
	m := &Manager{
		claims: newClaims(claims.GetStore()), made: claims.GetIndexer(), bells: &framework.Bells{},
		cel:     cel.NewCache(expressions, cel.Features{EnableConsumableCapacity: true}),
		classes: classes{api.DeviceClasses().Lister(), classInformer.GetIndexer()},
		slices:  &tainted{ResourceSliceLister: api.ResourceSlices().Lister(), indexer: sliceInformer.GetIndexer()},
	}
	if err := framework.AddIndex(classInformer, byResource, resourcesOf); err != nil {
		return nil, err
	}
	if err := framework.AddIndex(claims, byPod, podOf); err != nil {
		return nil, err
	}
	if err := framework.AddIndex(sliceInformer, byPool, poolOf); err != nil {
		return nil, err
	}
	changed := func(obj any) {
		if claim, ok := obj.(*resourcev1.ResourceClaim); ok {
			m.claims.seen(claim)
			m.bells.Ring(keyOf(claim))
		}
	}
	_, err := claims.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: changed, UpdateFunc: func(_, obj any) { changed(obj) },
		DeleteFunc: func(obj any) {
			if t, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = t.Obj
			}
			if claim, ok := obj.(*resourcev1.ResourceClaim); ok {
				m.claims.gone(claim)
				m.bells.Ring(keyOf(claim))
			}
		},
	})
	return m, err
}

// podOf returns the UID of the pod for which the scheduler has made a claim.
func podOf(claim *resourcev1.ResourceClaim) []string {
	if owner := pods.PodOfClaim(claim); owner != nil {
		return []string{string(owner.UID)}
	}
	return nil
}

// madeFor returns the claims that the scheduler has made for the pod, as far as anybody can tell: who may change claims
// may let one look so.
func (m *Manager) madeFor(pod *v1.Pod) []*resourcev1.ResourceClaim {
	items, err := m.made.ByIndex(byPod, string(pod.UID))
	if err != nil {
		return nil // the index exists
	}
	var out []*resourcev1.ResourceClaim
	for _, item := range items {
		if claim, ok := item.(*resourcev1.ResourceClaim); ok && claim.Namespace == pod.Namespace {
			out = append(out, claim)
		}
	}
	return out
}

// classes are the DeviceClasses as the allocator asks for them, and as extended resources name them.
type classes struct {
	resourcelisters.DeviceClassLister
	indexer cache.Indexer
}

// List returns all of them.
func (c classes) List() ([]*resourcev1.DeviceClass, error) {
	return c.DeviceClassLister.List(labels.Everything())
}

// resourcesOf returns the extended resources that devices of a class stand for (KEP-5004): the one that it names, and
// one that is called after it.
func resourcesOf(c *resourcev1.DeviceClass) []string {
	names := []string{resourcev1.ResourceDeviceClassPrefix + c.Name}
	if name := ptr.Deref(c.Spec.ExtendedResourceName, ""); name != "" {
		names = append(names, name)
	}
	return names
}

// GetDeviceClass returns the class whose devices an extended resource means, or nil. If several have named it, it is
// the one that was made last, so that one class can follow another; of those, the first by name. Upstream forgets a
// class that steps back in favour of another one, also for when that one is gone.
func (c classes) GetDeviceClass(name v1.ResourceName) *resourcev1.DeviceClass {
	items, err := c.indexer.ByIndex(byResource, string(name))
	if err != nil {
		return nil // the index exists
	}
	var all []*resourcev1.DeviceClass
	for _, item := range items {
		if class, ok := item.(*resourcev1.DeviceClass); ok {
			all = append(all, class)
		}
	}
	newest, _ := apiclasses.Newest(slices.Values(all), func(*resourcev1.DeviceClass) bool { return true })
	return newest
}

// DeviceClasses returns the classes.
func (m *Manager) DeviceClasses() fwk.DeviceClassLister { return m.classes }

// DeviceClassResolver returns the classes of extended resources.
func (m *Manager) DeviceClassResolver() fwk.DeviceClassResolver { return m.classes }

// ResourceClaims returns the claims, with what is promised to them.
func (m *Manager) ResourceClaims() fwk.ResourceClaimTracker { return tracker{m.claims} }

// tracker are the claims as the framework asks for them. Whoever signals an allocation has to take that back, as
// upstream's plugin does; DynamicResources itself does not come here.
type tracker struct{ *claims }

// List returns all claims, also those that the informer does not know yet. What is promised counts as allocated.
func (t tracker) List() ([]*resourcev1.ResourceClaim, error) { return t.all(), nil }

// Get returns one claim. What is promised to it counts as allocated.
func (t tracker) Get(namespace, name string) (*resourcev1.ResourceClaim, error) {
	claim, err := t.get(namespace, name)
	if err != nil {
		return nil, err
	}
	if p := t.promised(claim.UID); p != nil {
		return p.claim, nil
	}
	return claim, nil
}

// ListAllAllocatedDevices returns the devices that are allocated or promised, but for those that are shared.
func (t tracker) ListAllAllocatedDevices() (sets.Set[structured.DeviceID], error) {
	return t.taken().AllocatedDevices, nil
}

// GatherAllocatedState returns all that is allocated or promised.
func (t tracker) GatherAllocatedState() (*structured.AllocatedState, error) {
	state := t.taken()
	return &state, nil
}

// SignalClaimPendingAllocation promises devices to a claim.
func (t tracker) SignalClaimPendingAllocation(uid types.UID, allocated *resourcev1.ResourceClaim) error {
	if allocated == nil || allocated.Status.Allocation == nil {
		return fmt.Errorf("claim %s has no allocation that could be promised", uid)
	}
	if allocated.UID != uid {
		return fmt.Errorf("claim %s is not %s", allocated.UID, uid)
	}
	t.share(allocated)
	return nil
}

// GetPendingAllocation returns what is promised to a claim, or nil.
func (t tracker) GetPendingAllocation(uid types.UID) *resourcev1.AllocationResult {
	if p := t.promised(uid); p != nil {
		return p.claim.Status.Allocation
	}
	return nil
}

// MaybeRemoveClaimPendingAllocation takes one of the promises to a claim back, or all of them.
func (t tracker) MaybeRemoveClaimPendingAllocation(uid types.UID, force bool) bool {
	return t.unshare(uid, force)
}

// AssumeClaimAfterAPICall notes a claim as the API server has returned it.
func (t tracker) AssumeClaimAfterAPICall(claim *resourcev1.ResourceClaim) error {
	t.note(claim, claim.UID)
	return nil
}

// AssumedClaimRestore forgets what was noted: the informer has it.
func (t tracker) AssumedClaimRestore(namespace, name string) { t.forget(namespace + "/" + name) }
