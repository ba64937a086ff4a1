package devices

import (
	"fmt"
	"maps"
	"slices"
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
//
// A claim that the scheduler itself makes is promised its devices before it exists. Then the informer may not have what
// was written because it does not know the claim yet, or because it is gone: which of them, known says.
type claims struct {
	store cache.Store

	mu       sync.RWMutex
	promises map[types.UID]*promise
	written  map[types.UID]*write
	uses     map[types.UID]*use
	round    uint64 // how often taken was called
}

// write is a claim as the API server returned it.
type write struct {
	*resourcev1.ResourceClaim
	known bool // to the informer, in whatever version
}

// promise is an allocation that is not written yet.
type promise struct {
	claim *resourcev1.ResourceClaim // with the allocation
	// holders are the pods to which it was made. They are several only if they belong to one pod group and are
	// scheduled in one cycle: then each knows that the others get their nodes, too.
	holders sets.Set[types.UID]
	cycle   *framework.GroupCycle // nil outside of a pod group's cycle
	others  int                   // how often it was made through the framework's interface, and not taken back
}

func newClaims(store cache.Store) *claims {
	return &claims{
		store: store, promises: map[types.UID]*promise{},
		written: map[types.UID]*write{}, uses: map[types.UID]*use{},
	}
}

// get returns the claim as the API server has it, as far as is known. Promises are not part of that.
func (c *claims) get(namespace, name string) (*resourcev1.ResourceClaim, error) {
	key := namespace + "/" + name
	obj, ok, err := c.store.GetByKey(key)
	if err != nil {
		return nil, err
	}
	c.mu.RLock()
	defer c.mu.RUnlock()
	if !ok {
		for _, w := range c.written {
			if keyOf(w.ResourceClaim) == key && c.awaited(w) {
				return w.ResourceClaim, nil
			}
		}
		return nil, fmt.Errorf("could not find ResourceClaim %q", key)
	}
	claim, ok := obj.(*resourcev1.ResourceClaim)
	if !ok {
		return nil, fmt.Errorf("the informer of ResourceClaims has a %T", obj)
	}
	return c.latestLocked(claim), nil
}

// latestLocked returns the newer one of what the informer has and what was written.
func (c *claims) latestLocked(claim *resourcev1.ResourceClaim) *resourcev1.ResourceClaim {
	if w, ok := c.written[claim.UID]; ok && older(claim, w.ResourceClaim) {
		return w.ResourceClaim
	}
	return claim
}

// awaited reports whether the informer, which does not have the claim, is yet to hear of it. Otherwise it is gone.
func (c *claims) awaited(w *write) bool {
	return !w.known && newer(w.ResourceVersion, c.store.LastStoreSyncResourceVersion())
}

// older reports whether a is an older version than b. Versions that cannot be compared are not.
func older(a, b *resourcev1.ResourceClaim) bool { return newer(b.ResourceVersion, a.ResourceVersion) }

func newer(a, b string) bool {
	if b == "" {
		b = "1"
	}
	order, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && order > 0
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
	c.promiseLocked(claim, cycle).holders.Insert(pod)
}

func (c *claims) promiseLocked(claim *resourcev1.ResourceClaim, cycle *framework.GroupCycle) *promise {
	p := c.promises[claim.UID]
	if p == nil {
		c.pruneLocked()
		p = &promise{claim: claim, holders: sets.New[types.UID](), cycle: cycle}
		c.promises[claim.UID] = p
	}
	return p
}

// pruneLocked forgets what the informer has seen, and what is gone.
func (c *claims) pruneLocked() {
	for uid, w := range c.written {
		obj, ok, err := c.store.GetByKey(keyOf(w.ResourceClaim))
		claim, isClaim := obj.(*resourcev1.ResourceClaim)
		switch {
		case err == nil && ok && isClaim && claim.UID == uid:
			w.known = true
			if !older(claim, w.ResourceClaim) {
				delete(c.written, uid)
			}
		case !c.awaited(w):
			delete(c.written, uid)
		}
	}
}

// seen is called after the informer has got a claim, or another version of it.
func (c *claims) seen(claim *resourcev1.ResourceClaim) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if w := c.written[claim.UID]; w != nil {
		w.known = true
	}
}

// gone is called after the informer has lost a claim.
func (c *claims) gone(claim *resourcev1.ResourceClaim) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.written, claim.UID)
}

// withdraw takes back what was promised, under this UID, once no pod holds it.
func (c *claims) withdraw(claim, pod types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.promises[claim]; p != nil {
		p.holders.Delete(pod)
		c.dropLocked(claim, p)
	}
}

func (c *claims) dropLocked(claim types.UID, p *promise) bool {
	if p.holders.Len()+p.others > 0 {
		return false
	}
	delete(c.promises, claim)
	return true
}

// note notes the claim as the API server has it after a write. What was promised to it, under the UID that it had then,
// ends with an allocation.
func (c *claims) note(answer *resourcev1.ResourceClaim, promised types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if w, ok := c.written[answer.UID]; !ok {
		// One that was promised nothing before it existed is the informer's.
		c.written[answer.UID] = &write{answer, promised == answer.UID}
	} else if older(w.ResourceClaim, answer) {
		w.ResourceClaim = answer
	}
	if answer.Status.Allocation != nil {
		delete(c.promises, promised)
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
	for _, claim := range c.allLocked() {
		c.useLocked(claim).addTo(&t)
	}
	for _, p := range c.promises {
		useOf(p.claim).addTo(&t)
	}
	maps.DeleteFunc(c.uses, func(_ types.UID, u *use) bool { return u.round != c.round })
	return t
}

// allLocked returns the newest known version of every claim.
func (c *claims) allLocked() []*resourcev1.ResourceClaim {
	// What the informer gets to know after it was asked which claims there are is in neither list, if it is looked for
	// among those that it does not know only then.
	var out []*resourcev1.ResourceClaim
	awaited := map[types.UID]*resourcev1.ResourceClaim{}
	for uid, w := range c.written {
		if c.awaited(w) {
			awaited[uid] = w.ResourceClaim
		}
	}
	for _, obj := range c.store.List() {
		if claim, ok := obj.(*resourcev1.ResourceClaim); ok {
			delete(awaited, claim.UID)
			out = append(out, c.latestLocked(claim))
		}
	}
	return slices.AppendSeq(out, maps.Values(awaited))
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

// all returns every claim. What is promised to one counts as allocated, also if the claim does not exist yet.
func (c *claims) all() []*resourcev1.ResourceClaim {
	c.mu.Lock()
	defer c.mu.Unlock()
	promised := maps.Clone(c.promises)
	out := c.allLocked()
	for i, claim := range out {
		if p := promised[claim.UID]; p != nil {
			out[i] = p.claim
			delete(promised, claim.UID)
		}
	}
	for _, p := range promised {
		out = append(out, p.claim)
	}
	return out
}

// share promises devices to a claim for somebody who is not known.
func (c *claims) share(claim *resourcev1.ResourceClaim) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.promiseLocked(claim, nil).others++
}

// unshare takes that back, or the whole promise, and reports whether it was there, and is no more.
func (c *claims) unshare(claim types.UID, force bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.promises[claim]
	if p == nil {
		return false
	}
	if force {
		delete(c.promises, claim)
		return true
	}
	p.others = max(0, p.others-1)
	return c.dropLocked(claim, p)
}

// forget forgets what was written to a claim.
func (c *claims) forget(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.written, func(_ types.UID, w *write) bool { return keyOf(w.ResourceClaim) == key })
}
