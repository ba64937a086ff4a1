package plugins

import (
	"context"
	"maps"
	"slices"

	fwk "k8s.io/kube-scheduler/framework"
)

// tally is a sum over all nodes that is kept up to date instead of being summed up anew: the pods that
// matter to a pod, by domain. Pods that ask the same (those of a deployment) share it. K is a domain.
//
// It belongs to the scheduling cycle. What sums refers to has to be read within it, unless it is kept.
type tally[K comparable] struct {
	of func(fwk.NodeInfo) []share[K] // what a node adds

	sums  map[K]sum
	parts [][]share[K] // by the node's place
	order uint64       // of the places
	seen  uint64       // the moment up to which changes are in
	kept  bool         // somebody keeps these sums: changes are to be made to a copy
}

// share is what one node adds to a domain.
type share[K comparable] struct {
	domain K
	n      int64
}

// sum is what all nodes add to a domain, and how many of them there are.
type sum struct {
	n     int64
	nodes int
}

// changes is a snapshot that knows what has changed in it. *cache.Snapshot implements it.
type changes interface {
	fwk.NodeInfoLister
	ChangedSince(moment uint64) (names []string, now uint64, ok bool)
	Order() uint64
}

// placed is a node that knows its place in the snapshot's list.
type placed interface{ Place() int }

// update brings the sums up to date.
func (t *tally[K]) update(ctx context.Context, from fwk.NodeInfoLister, parallel fwk.Parallelizer, name string) error {
	c, knows := from.(changes)
	if !knows {
		return t.count(ctx, from, parallel, name)
	}
	names, now, ok := c.ChangedSince(t.seen)
	if !ok || t.order != c.Order() || t.parts == nil || len(names) > len(t.parts) {
		if err := t.count(ctx, from, parallel, name); err != nil {
			return err
		}
		t.order, t.seen = c.Order(), now
		return nil
	}
	if t.kept && len(names) > 0 {
		t.sums, t.kept = maps.Clone(t.sums), false
	}
	for i, changed := range names {
		if i < 64 && slices.Contains(names[:i], changed) {
			continue // most often it is one node, twice: a pod was assumed there, and bound
		}
		n, err := from.Get(changed)
		if err != nil {
			continue // it came and went: the places are as they were
		}
		p, ok := n.(placed)
		if !ok {
			return t.count(ctx, from, parallel, name)
		}
		t.add(t.parts[p.Place()], -1)
		t.parts[p.Place()] = t.of(n)
		t.add(t.parts[p.Place()], 1)
	}
	t.seen = now
	return nil
}

// count sums up anew.
func (t *tally[K]) count(ctx context.Context, from fwk.NodeInfoLister, parallel fwk.Parallelizer, name string) error {
	nodes, err := from.List()
	if err != nil {
		return err
	}
	return t.over(ctx, nodes, parallel, name)
}

// over sums up what some nodes add.
func (t *tally[K]) over(ctx context.Context, nodes []fwk.NodeInfo, parallel fwk.Parallelizer, name string) error {
	t.kept = false
	t.sums, t.parts = map[K]sum{}, make([][]share[K], len(nodes))
	parallel.Until(ctx, len(nodes), func(i int) { t.parts[i] = t.of(nodes[i]) }, name)
	if ctx.Err() != nil {
		t.parts = nil
		return context.Cause(ctx)
	}
	for _, part := range t.parts {
		t.add(part, 1)
	}
	return nil
}

func (t *tally[K]) add(part []share[K], sign int) {
	for _, p := range part {
		s := t.sums[p.domain]
		s.n += int64(sign) * p.n
		if s.nodes += sign; s.nodes == 0 {
			delete(t.sums, p.domain)
		} else {
			t.sums[p.domain] = s
		}
	}
}

// tallies are those that were asked for last.
type tallies[K comparable] struct {
	keys []string // the last one was used last
	kept []*tally[K]
	once []string // what was asked once, of late
}

const (
	// maxTallies bounds what a plugin remembers: about 100 bytes for each of them and each node.
	maxTallies = 16
	maxOnce    = 256
)

// get returns the sums for a question, which the key identifies. of says what a node adds, and few has the nodes
// that add anything. If they are kept, they stay as they are while other pods are looked at, as those of one group.
//
// What is asked for the second time is remembered. Pods often have labels that no other has, and questions in which
// these occur come but once.
func (t *tallies[K]) get(
	ctx context.Context, key string, keep bool, all fwk.NodeInfoLister, few func() ([]fwk.NodeInfo, error), parallel fwk.Parallelizer, name string, of func(fwk.NodeInfo) []share[K],
) (map[K]sum, error) {
	i := slices.Index(t.keys, key)
	if _, ok := all.(changes); !ok || i < 0 && !slices.Contains(t.once, key) {
		if len(t.once) >= maxOnce {
			t.once = slices.Delete(t.once, 0, maxOnce/2)
		}
		t.once = append(t.once, key)
		nodes, err := few()
		if err != nil {
			return nil, err
		}
		now := tally[K]{of: of}
		err = now.over(ctx, nodes, parallel, name)
		return now.sums, err
	}
	found := &tally[K]{}
	switch {
	case i >= 0:
		found = t.kept[i]
		t.keys, t.kept = slices.Delete(t.keys, i, i+1), slices.Delete(t.kept, i, i+1)
	case len(t.keys) >= maxTallies:
		t.keys, t.kept = slices.Delete(t.keys, 0, 1), slices.Delete(t.kept, 0, 1)
	}
	found.of = of // the same question, with this pod's values
	if err := found.update(ctx, all, parallel, name); err != nil {
		return nil, err
	}
	found.kept = found.kept || keep
	t.keys, t.kept = append(t.keys, key), append(t.kept, found)
	return found.sums, nil
}
