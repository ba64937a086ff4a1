package devices

import (
	"fmt"
	"maps"
	"sync"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/cache"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/utils/ptr"

	"wherry.dev/internal/scheduler/framework"
)

// claims shows the informer's ResourceClaims together with what the scheduler is about to change, or has changed.
//
//	           promise                   noted                    the informer has that version, or a newer one
//	open ───────────────────▶ promised ───────────▶ written ─────────────────────▶ as the informer has it
//	 ▲                           │ withdrawn by the last holder
//	 └───────────────────────────┘
//
// The assumed objects of package volumes end with the next version that the informer has. A promise does not: it
// takes two writes to keep it, between which the device must not seem to be free.
type claims struct {
	store cache.Store

	mu       sync.RWMutex
	promises map[types.UID]*promise
	written  map[types.UID]*resourcev1.ResourceClaim
	uses     map[types.UID]*use
	round    uint64 // how often taken was called
}

// promise is an allocation that is not written yet.
type promise struct {
	claim *resourcev1.ResourceClaim // with the allocation
	// holders are the pods to which it was made. They are several only if they belong to one pod group and are
	// scheduled in one cycle: then each knows that the others get their nodes, too.
	holders sets.Set[types.UID]
	cycle   *framework.GroupCycle // nil outside of a pod group's cycle
}

func newClaims(store cache.Store) *claims {
	return &claims{
		store: store, promises: map[types.UID]*promise{},
		written: map[types.UID]*resourcev1.ResourceClaim{}, uses: map[types.UID]*use{},
	}
}

// get returns the claim as the API server has it, as far as is known. Promises are not part of that.
func (c *claims) get(namespace, name string) (*resourcev1.ResourceClaim, error) {
	obj, ok, err := c.store.GetByKey(namespace + "/" + name)
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, fmt.Errorf("could not find ResourceClaim %q", namespace+"/"+name)
	}
	claim, ok := obj.(*resourcev1.ResourceClaim)
	if !ok {
		return nil, fmt.Errorf("the informer of ResourceClaims has a %T", obj)
	}
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.latestLocked(claim), nil
}

// latestLocked returns the newer one of what the informer has and what was written.
func (c *claims) latestLocked(claim *resourcev1.ResourceClaim) *resourcev1.ResourceClaim {
	if w, ok := c.written[claim.UID]; ok && older(claim, w) {
		return w
	}
	return claim
}

// older reports whether a is an older version than b. Versions that cannot be compared are not.
func older(a, b *resourcev1.ResourceClaim) bool {
	order, err := resourceversion.CompareResourceVersion(a.ResourceVersion, b.ResourceVersion)
	return err == nil && order < 0
}

// promised returns what was promised to the claim, or nil.
func (c *claims) promised(uid types.UID) *promise {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.promises[uid]
}

// promise promises devices to a claim, for a pod. If they were promised to another pod in the same cycle of a pod
// group, that promise is theirs together.
func (c *claims) promise(claim *resourcev1.ResourceClaim, pod types.UID, cycle *framework.GroupCycle) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.promises[claim.UID]
	if p == nil {
		c.pruneLocked()
		p = &promise{claim: claim, holders: sets.New[types.UID](), cycle: cycle}
		c.promises[claim.UID] = p
	}
	p.holders.Insert(pod)
}

// pruneLocked forgets what the informer has seen. Claims that it does not have were deleted: it had them before they
// were written.
func (c *claims) pruneLocked() {
	for uid, w := range c.written {
		obj, ok, err := c.store.GetByKey(cache.MetaObjectToName(w).String())
		claim, isClaim := obj.(*resourcev1.ResourceClaim)
		if err != nil || !ok || !isClaim || claim.UID != uid || !older(claim, w) {
			delete(c.written, uid)
		}
	}
}

// withdraw takes back what was promised to the claim, once no pod holds it.
func (c *claims) withdraw(claim, pod types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.promises[claim]
	if p == nil {
		return
	}
	p.holders.Delete(pod)
	if p.holders.Len() == 0 {
		delete(c.promises, claim)
	}
}

// note notes the claim as the API server has it after a write. A promise ends with that.
func (c *claims) note(answer *resourcev1.ResourceClaim) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if w, ok := c.written[answer.UID]; !ok || older(w, answer) {
		c.written[answer.UID] = answer
	}
	if answer.Status.Allocation != nil {
		delete(c.promises, answer.UID)
	}
}

// taken returns all devices that are allocated or promised, and how much of those that are shared.
func (c *claims) taken() structured.AllocatedState {
	t := structured.AllocatedState{
		AllocatedDevices: sets.New[structured.DeviceID](), AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity: structured.NewConsumedCapacityCollection(),
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.round++
	for _, obj := range c.store.List() {
		if claim, ok := obj.(*resourcev1.ResourceClaim); ok {
			c.useLocked(c.latestLocked(claim)).addTo(&t)
		}
	}
	for _, p := range c.promises {
		useOf(p.claim).addTo(&t)
	}
	maps.DeleteFunc(c.uses, func(_ types.UID, u *use) bool { return u.round != c.round })
	return t
}

// use is what a claim takes.
type use struct {
	claim    *resourcev1.ResourceClaim
	round    uint64 // in which it was last asked for
	devices  []structured.DeviceID
	shares   []structured.SharedDeviceID
	capacity []structured.DeviceConsumedCapacity
}

// useLocked returns what a claim takes, or nil. It is remembered while the claim does not change: the IDs are made
// from strings, and that takes longer than everything else.
func (c *claims) useLocked(claim *resourcev1.ResourceClaim) *use {
	if claim.Status.Allocation == nil {
		return nil
	}
	u := c.uses[claim.UID]
	if u == nil || u.claim != claim {
		u = useOf(claim)
		c.uses[claim.UID] = u
	}
	u.round = c.round
	return u
}

// useOf returns what a claim takes. Devices to which it has administrative access are still free.
func useOf(claim *resourcev1.ResourceClaim) *use {
	u := &use{claim: claim}
	for i := range claim.Status.Allocation.Devices.Results {
		r := &claim.Status.Allocation.Devices.Results[i]
		if ptr.Deref(r.AdminAccess, false) {
			continue
		}
		id := structured.MakeDeviceID(r.Driver, r.Pool, r.Device)
		if r.ShareID == nil {
			u.devices = append(u.devices, id)
			continue
		}
		u.shares = append(u.shares, structured.MakeSharedDeviceID(id, r.ShareID))
		if r.ConsumedCapacity != nil {
			u.capacity = append(u.capacity, structured.NewDeviceConsumedCapacity(id, r.ConsumedCapacity))
		}
	}
	return u
}

// addTo adds it to what is taken. u may be nil.
func (u *use) addTo(t *structured.AllocatedState) {
	if u == nil {
		return
	}
	t.AllocatedDevices.Insert(u.devices...)
	t.AllocatedSharedDeviceIDs.Insert(u.shares...)
	for _, c := range u.capacity {
		t.AggregatedCapacity.Insert(c)
	}
}
