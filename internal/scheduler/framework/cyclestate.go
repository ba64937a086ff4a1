package framework

import (
	"maps"
	"sync"

	"k8s.io/apimachinery/pkg/util/sets"
	fwk "k8s.io/kube-scheduler/framework"
)

// CycleState carries what plugins want to remember during one attempt at one pod.
type CycleState struct {
	mu   sync.RWMutex
	data map[fwk.StateKey]fwk.StateData

	// written by the Profile between extension points, never during one
	skipFilter, skipScore, skipPreBind, parallelPreBind sets.Set[string]
}

var _ fwk.CycleState = (*CycleState)(nil)

// NewCycleState returns an empty state.
func NewCycleState() *CycleState { return &CycleState{data: map[fwk.StateKey]fwk.StateData{}} }

// ShouldRecordPluginMetrics is always true: a histogram costs less than the choice.
func (c *CycleState) ShouldRecordPluginMetrics() bool { return true }

// GetSkipFilterPlugins returns the plugins whose Filter has nothing to say.
func (c *CycleState) GetSkipFilterPlugins() sets.Set[string] { return c.skipFilter }

// SetSkipFilterPlugins is for the Profile.
func (c *CycleState) SetSkipFilterPlugins(p sets.Set[string]) { c.skipFilter = p }

// GetSkipScorePlugins returns the plugins whose Score has nothing to say.
func (c *CycleState) GetSkipScorePlugins() sets.Set[string] { return c.skipScore }

// SetSkipScorePlugins is for the Profile.
func (c *CycleState) SetSkipScorePlugins(p sets.Set[string]) { c.skipScore = p }

// GetSkipPreBindPlugins returns the plugins whose PreBind has nothing to do.
func (c *CycleState) GetSkipPreBindPlugins() sets.Set[string] { return c.skipPreBind }

// SetSkipPreBindPlugins is for the Profile.
func (c *CycleState) SetSkipPreBindPlugins(p sets.Set[string]) { c.skipPreBind = p }

// GetParallelPreBindPlugins returns the plugins whose PreBind may run side by side.
func (c *CycleState) GetParallelPreBindPlugins() sets.Set[string] { return c.parallelPreBind }

// SetParallelPreBindPlugins is for the Profile.
func (c *CycleState) SetParallelPreBindPlugins(p sets.Set[string]) { c.parallelPreBind = p }

// ShouldSkipAllPostFilterPlugins is false: pods are scheduled one by one.
func (c *CycleState) ShouldSkipAllPostFilterPlugins() bool { return false }

// Read returns what was written under the key, or fwk.ErrNotFound.
func (c *CycleState) Read(key fwk.StateKey) (fwk.StateData, error) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if d, ok := c.data[key]; ok {
		return d, nil
	}
	return nil, fwk.ErrNotFound
}

// Write remembers a value.
func (c *CycleState) Write(key fwk.StateKey, val fwk.StateData) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.data[key] = val
}

// Delete forgets a value.
func (c *CycleState) Delete(key fwk.StateKey) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.data, key)
}

// Clone copies the state, its values by their own Clone.
func (c *CycleState) Clone() fwk.CycleState {
	c.mu.RLock()
	defer c.mu.RUnlock()
	n := &CycleState{
		data:       maps.Clone(c.data),
		skipFilter: c.skipFilter.Clone(), skipScore: c.skipScore.Clone(),
		skipPreBind: c.skipPreBind.Clone(), parallelPreBind: c.parallelPreBind.Clone(),
	}
	for k, v := range n.data {
		n.data[k] = v.Clone()
	}
	return n
}

// IsPodGroupSchedulingCycle is false: pods are scheduled one by one.
func (c *CycleState) IsPodGroupSchedulingCycle() bool { return false }

// GetPodGroupSchedulingCycle returns nil outside of a pod group's cycle.
func (c *CycleState) GetPodGroupSchedulingCycle() fwk.PodGroupCycleState { return nil }

// GetPlacementCycleState returns nil outside of a pod group's cycle.
func (c *CycleState) GetPlacementCycleState() fwk.PlacementCycleState { return nil }
