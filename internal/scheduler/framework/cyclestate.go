package framework

import (
	"fmt"
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	fwk "k8s.io/kube-scheduler/framework"
)

// CycleState carries what plugins remember during one attempt to schedule one pod.
type CycleState struct {
	mu   sync.RWMutex
	data []entry // a few: looked through from the front

	// Written by the Profile between extension points, never during one.
	skipFilter, skipScore, skipPreBind, parallelPreBind sets.Set[string]
	filters                                             []filterer  // those that are not skipped; nil before PreFilter
	extensions                                          []extension // of those
	sampling                                            sampling
	pod                                                 *PodInfo         // nil for a cycle that is not the scheduler's own
	memo                                                *Memo            // nil if nothing is remembered; clones have none
	rejecters                                           sets.Set[string] // see AddRejecter
	group                                               *GroupCycle      // nil outside of a pod group's cycle
	placement                                           *CycleState      // nil if that has all nodes
}

type entry struct {
	key   fwk.StateKey
	value fwk.StateData
}

// InGroup makes the state that of a pod in a pod group's cycle, until it is called with nil, or that of a placement.
func (c *CycleState) InGroup(g *GroupCycle) { c.group = g }

// InPlacement makes the state that of a pod that is to be on the nodes of a placement only.
func (c *CycleState) InPlacement(p *CycleState) { c.placement = p }

var _ fwk.CycleState = (*CycleState)(nil)

// NewCycleState returns the empty state of an attempt to schedule the pod.
func NewCycleState(pod *PodInfo) *CycleState {
	return &CycleState{pod: pod}
}

// InfoOf returns what is precomputed for the pod that the state is about.
func InfoOf(state fwk.CycleState, pod *v1.Pod) (*PodInfo, error) {
	if c, ok := state.(*CycleState); ok && c.pod != nil && c.pod.pod == pod {
		return c.pod, nil
	}
	return NewPodInfo(pod)
}

// AddRejecter notes that a plugin stands in the way of making room for the pod. What changes its mind may help the
// pod, too, even if other plugins rejected it in the first place. Only PostFilter plugins call it.
func (c *CycleState) AddRejecter(plugin string) {
	if c.rejecters == nil {
		c.rejecters = sets.New[string]()
	}
	c.rejecters.Insert(plugin)
}

// Rejecters returns the plugins that stand in the way of making room.
func (c *CycleState) Rejecters() sets.Set[string] { return c.rejecters }

// OnlyItsNode reports whether pods on other nodes than the one that is filtered do not matter to the pod: no filter that
// is at work wants to hear of them.
func (c *CycleState) OnlyItsNode() bool { return c.filters != nil && len(c.extensions) == 0 }

// Memo returns what is remembered for pods of this one's shape, or nil.
func (c *CycleState) Memo() *Memo { return c.memo }

// ShouldRecordPluginMetrics returns true: a histogram costs less than the decision.
func (c *CycleState) ShouldRecordPluginMetrics() bool { return true }

// GetSkipFilterPlugins returns the plugins whose Filter is skipped.
func (c *CycleState) GetSkipFilterPlugins() sets.Set[string] { return c.skipFilter }

// SetSkipFilterPlugins is called by the Profile.
func (c *CycleState) SetSkipFilterPlugins(p sets.Set[string]) { c.skipFilter = p }

// GetSkipScorePlugins returns the plugins whose Score is skipped.
func (c *CycleState) GetSkipScorePlugins() sets.Set[string] { return c.skipScore }

// SetSkipScorePlugins is called by the Profile.
func (c *CycleState) SetSkipScorePlugins(p sets.Set[string]) { c.skipScore = p }

// GetSkipPreBindPlugins returns the plugins whose PreBind is skipped.
func (c *CycleState) GetSkipPreBindPlugins() sets.Set[string] { return c.skipPreBind }

// SetSkipPreBindPlugins is called by the Profile.
func (c *CycleState) SetSkipPreBindPlugins(p sets.Set[string]) { c.skipPreBind = p }

// GetParallelPreBindPlugins returns the plugins whose PreBind may run concurrently.
func (c *CycleState) GetParallelPreBindPlugins() sets.Set[string] { return c.parallelPreBind }

// SetParallelPreBindPlugins is called by the Profile.
func (c *CycleState) SetParallelPreBindPlugins(p sets.Set[string]) { c.parallelPreBind = p }

// ShouldSkipAllPostFilterPlugins returns false: pods are scheduled one by one.
func (c *CycleState) ShouldSkipAllPostFilterPlugins() bool { return false }

// Read returns what was written under the key, or fwk.ErrNotFound.
func (c *CycleState) Read(key fwk.StateKey) (fwk.StateData, error) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if i := c.find(key); i >= 0 {
		return c.data[i].value, nil
	}
	return nil, fwk.ErrNotFound
}

func (c *CycleState) find(key fwk.StateKey) int {
	return slices.IndexFunc(c.data, func(e entry) bool { return e.key == key })
}

// Write stores a value.
func (c *CycleState) Write(key fwk.StateKey, val fwk.StateData) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if i := c.find(key); i >= 0 {
		c.data[i].value = val
		return
	}
	c.data = append(c.data, entry{key, val})
}

// Delete removes a value.
func (c *CycleState) Delete(key fwk.StateKey) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if i := c.find(key); i >= 0 {
		c.data = slices.Delete(c.data, i, i+1)
	}
}

// Clone copies the state, and clones each value with its own Clone. The sets of plugins are shared: they are replaced,
// and not changed.
func (c *CycleState) Clone() fwk.CycleState {
	c.mu.RLock()
	defer c.mu.RUnlock()
	n := &CycleState{
		data:       make([]entry, len(c.data)),
		skipFilter: c.skipFilter, skipScore: c.skipScore,
		skipPreBind: c.skipPreBind, parallelPreBind: c.parallelPreBind,
		filters: c.filters, extensions: c.extensions, sampling: c.sampling, pod: c.pod, group: c.group, placement: c.placement,
	}
	for i, e := range c.data {
		n.data[i] = entry{e.key, e.value.Clone()}
	}
	return n
}

// IsPodGroupSchedulingCycle reports whether the pod is scheduled together with others of its group.
func (c *CycleState) IsPodGroupSchedulingCycle() bool { return c.group != nil }

// GetPodGroupSchedulingCycle returns what the pods of a group share in its cycle, or nil.
func (c *CycleState) GetPodGroupSchedulingCycle() fwk.PodGroupCycleState {
	if c.group == nil {
		return nil
	}
	return c.group
}

// GetPlacementCycleState returns what the pods of a group share in one placement, or nil if that has all nodes.
func (c *CycleState) GetPlacementCycleState() fwk.PlacementCycleState {
	if c.placement == nil {
		return nil
	}
	return c.placement
}

// ReadState returns what a plugin has written into the state of this cycle.
func ReadState[T any](state fwk.CycleState, key fwk.StateKey) (T, *fwk.Status) {
	var zero T
	data, err := state.Read(key)
	if err != nil {
		return zero, fwk.AsStatus(fmt.Errorf("reading %q from the cycle's state: %w", key, err))
	}
	t, ok := data.(T)
	if !ok {
		return zero, fwk.AsStatus(fmt.Errorf("the cycle's state has a %T under %q", data, key))
	}
	return t, nil
}
