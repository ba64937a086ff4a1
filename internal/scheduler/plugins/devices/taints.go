package devices

import (
	"sync"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/labels"
	resourcelisters "k8s.io/client-go/listers/resource/v1"
	"k8s.io/client-go/tools/cache"
	fwk "k8s.io/kube-scheduler/framework"

	"wherry.dev/internal/api/devices"
)

// ResourceSlices returns the slices.
func (m *Manager) ResourceSlices() fwk.ResourceSliceLister { return m.slices }

// UseTaintRules applies the DeviceTaintRules of a lister from now on. Without it there are none: an API server need not
// serve them.
func (m *Manager) UseTaintRules(rules resourcelisters.DeviceTaintRuleLister) {
	m.slices.mu.Lock()
	defer m.slices.mu.Unlock()
	m.slices.rules = rules
}

// TaintsOf returns the slices whose devices a rule taints, as they are with one version of the rule and with another. Either
// may be nil.
func (m *Manager) TaintsOf(before, now *resourcev1.DeviceTaintRule) (changed [][2]*resourcev1.ResourceSlice) {
	all, err := m.slices.List(labels.Everything())
	if err != nil {
		return nil // cannot happen: a lister fails only for a selector that does not parse
	}
	for _, s := range all {
		was, is := s, s
		if before != nil {
			was = with(s, []*resourcev1.DeviceTaintRule{before})
		}
		if now != nil {
			is = with(s, []*resourcev1.DeviceTaintRule{now})
		}
		if was != s || is != s {
			changed = append(changed, [2]*resourcev1.ResourceSlice{was, is})
		}
	}
	return changed
}

func poolOf(s *resourcev1.ResourceSlice) []string {
	return []string{s.Spec.Driver + "/" + s.Spec.Pool.Name}
}

// tainted are the slices, with what DeviceTaintRules add to their devices.
type tainted struct {
	resourcelisters.ResourceSliceLister
	indexer cache.Indexer // has byPool

	mu    sync.RWMutex
	rules resourcelisters.DeviceTaintRuleLister // nil: there are none
}

func (t *tainted) all() ([]*resourcev1.DeviceTaintRule, error) {
	t.mu.RLock()
	rules := t.rules
	t.mu.RUnlock()
	if rules == nil {
		return nil, nil
	}
	return rules.List(labels.Everything())
}

// ListWithDeviceTaintRules returns all slices, with the rules applied.
func (t *tainted) ListWithDeviceTaintRules() ([]*resourcev1.ResourceSlice, error) {
	out, err := t.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	rules, err := t.all()
	if err != nil || len(rules) == 0 {
		return out, err
	}
	for i, s := range out { // the list is ours, the slices are not
		out[i] = with(s, rules)
	}
	return out, nil
}

// with returns the slice with the taints that rules give its devices: the same one if there are none.
func with(s *resourcev1.ResourceSlice, rules []*resourcev1.DeviceTaintRule) *resourcev1.ResourceSlice {
	out := s
	for i := range s.Spec.Devices {
		id := devices.Device{Driver: s.Spec.Driver, Pool: s.Spec.Pool.Name, Name: s.Spec.Devices[i].Name}
		for _, r := range rules {
			if !devices.Tainted(r, id) {
				continue
			}
			if out == s {
				out = s.DeepCopy()
			}
			out.Spec.Devices[i].Taints = append(out.Spec.Devices[i].Taints, r.Spec.Taint)
		}
	}
	return out
}

// evicts reports whether those who use the allocated claim have to go by now, so that nobody else may come to use it
// (KEP-5055).
func (t *tainted) evicts(claim *resourcev1.ResourceClaim, now time.Time) (bool, error) {
	rules, err := t.all()
	if err != nil {
		return false, err
	}
	var failed error
	evictions := devices.Evictions(claim, func(d devices.Device) []devices.Taint {
		items, err := t.indexer.ByIndex(byPool, d.Driver+"/"+d.Pool)
		if err != nil {
			failed = err
		}
		var slices []*resourcev1.ResourceSlice
		for _, item := range items {
			if s, ok := item.(*resourcev1.ResourceSlice); ok {
				slices = append(slices, s)
			}
		}
		return append(devices.ByDriver(slices, d.Name), devices.ByRules(rules, d)...)
	})
	return len(evictions) > 0 && !devices.Earliest(evictions).After(now), failed
}
