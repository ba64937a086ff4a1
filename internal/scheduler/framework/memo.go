package framework

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
)

// Memo has what plugins said about each node for pods of one shape: pods about which every plugin that
// signs them (fwk.SignPlugin) says the same, as long as the node does not change. A hundred pods of a
// deployment are so filtered and scored once on each node, and anew only where one of them has been put.
//
// The first filters that sign the pod are kept, up to one that does not; and all scores of plugins that
// sign it, before they are normalized. Plugins that do not sign a pod are asked each time.
//
// It belongs to the scheduling cycle, within which it may be asked about several nodes at once.
type Memo struct {
	profile *Profile
	born    time.Time
	order   uint64 // of the snapshot's list

	kept   int    // how many of the cycle's filters
	scores []bool // by plugin in Profile.score
	active []int  // the plugins whose scores are in raw; nil before the first
	nodes  []remembered
	rooms  []room  // nil before the first
	raw    []int64 // a row for each node, in the order of Profile.score
	filled atomic.Int64
}

// remembered is what is known of a node. Zero generations mean nothing: those of nodes begin at 1.
type remembered struct {
	filtered, scored int64 // the generation of the node at that time
	nominated        int64 // the version of its nominations when it was filtered
	status           *fwk.Status
}

const (
	// MemoNodes is from how many nodes on a pod's signature costs less than it saves.
	MemoNodes = 32
	// memoShapes is how many shapes of pods a profile remembers.
	memoShapes = 16
	// memoAge bounds what a plugin's answer may depend on besides the pod and the node: on how many
	// nodes have an image, for instance.
	memoAge = time.Second
)

// signer is a plugin that has a say in where pods go.
type signer struct {
	name string
	fwk.SignPlugin
}

// signersOf returns the plugins that filter or score, in order. Those that cannot sign are nil.
func (p *Profile) signersOf() []signer {
	var out []signer
	for _, name := range p.names {
		pl := p.byName[name]
		_, filters := pl.(fwk.FilterPlugin)
		_, prepares := pl.(fwk.PreFilterPlugin)
		_, scores := pl.(fwk.ScorePlugin)
		if filters || prepares || scores {
			s, _ := pl.(fwk.SignPlugin)
			out = append(out, signer{name, s})
		}
	}
	return out
}

// sign returns what identifies the pod's shape, and by plugin whether it signed it. Plugins that did not
// are part of the shape.
func (p *Profile) sign(ctx context.Context, pod *v1.Pod) (string, map[string]bool) {
	var b bytes.Buffer
	var keys []string
	signed := make(map[string]bool, len(p.signers))
	began := time.Now()
	for _, s := range p.signers {
		if s.SignPlugin == nil {
			continue
		}
		fragments, st := s.SignPod(ctx, pod)
		values := make([]string, len(fragments))
		err := st.AsError()
		for i := 0; i < len(fragments) && err == nil; i++ {
			values[i], err = fragment(fragments[i].Value)
		}
		if err != nil {
			if !st.IsRejected() {
				klog.FromContext(ctx).Error(err, "Cannot sign a pod; its nodes are filtered and scored anew", "plugin", s.name)
			}
			continue
		}
		signed[s.name] = true
		b.WriteString(s.name)
		b.WriteByte(0)
		for i, f := range fragments {
			if !slices.Contains(keys, f.Key) {
				keys = append(keys, f.Key)
				put(&b, f.Key)
				put(&b, values[i])
			}
		}
	}
	ObservePoint("Sign", p.Name, fwk.Success, time.Since(began))
	return b.String(), signed
}

// put writes a string so that no two sequences of strings look alike.
func put(b *bytes.Buffer, s string) {
	b.Write(binary.AppendUvarint(b.AvailableBuffer(), uint64(len(s))))
	b.WriteString(s)
}

func fragment(value any) (string, error) {
	switch v := value.(type) {
	case nil:
		return "", nil
	case string:
		return v, nil
	}
	data, err := json.Marshal(value)
	return string(data), err
}

// Recall gives the state, after PreFilter, what is remembered for pods of this shape: nothing if nothing can be,
// or if it is not worth it. nodes and order are those of the snapshot.
func (p *Profile) Recall(ctx context.Context, state *CycleState, pod *v1.Pod, nodes int, order uint64, now time.Time) {
	if nodes >= p.shared.MemoNodes {
		state.memo = p.recall(ctx, state, pod, nodes, order, now)
	}
}

func (p *Profile) recall(ctx context.Context, state *CycleState, pod *v1.Pod, nodes int, order uint64, now time.Time) *Memo {
	shape, signed := p.sign(ctx, pod)
	kept := 0
	for kept < len(state.filters) && signed[state.filters[kept].Name()] {
		kept++
	}
	// Which filters are skipped is for PreFilter to say, and no part of what the plugins sign.
	var key strings.Builder
	// The priority decides which nominated pods count.
	key.WriteString(shape + string(binary.AppendUvarint(binary.AppendVarint(nil, int64(Priority(pod))), uint64(kept))))
	for _, f := range state.filters[:kept] {
		key.WriteString(f.Name() + "\x00")
	}
	if i := slices.IndexFunc(p.memos, func(m shaped) bool { return m.key == key.String() }); i >= 0 {
		found := p.memos[i]
		p.memos = slices.Delete(p.memos, i, i+1)
		if found.order == order && now.Sub(found.born) < memoAge {
			p.memos = append(p.memos, found) // the last one was used last
			return found.Memo
		}
	}
	m := &Memo{
		profile: p, born: now, order: order, kept: kept, scores: make([]bool, len(p.score)),
		nodes: make([]remembered, nodes), raw: make([]int64, nodes*len(p.score)),
	}
	for i := range p.score {
		m.scores[i] = signed[p.score[i].Name()]
	}
	if len(p.memos) >= memoShapes {
		p.memos = slices.Delete(p.memos, 0, 1)
	}
	p.memos = append(p.memos, shaped{key.String(), m})
	return m
}

type shaped struct {
	key string
	*Memo
}

// Cheap reports whether a search is mostly a look at what is known, so that it is faster without help. m may be nil.
func (m *Memo) Cheap(state *CycleState) bool {
	return m != nil && m.kept == len(state.filters) && 2*int(m.filled.Load()) >= len(m.nodes)
}

// Filter is RunFilterPluginsWithNominatedPods on a node of the snapshot. m may be nil.
func (m *Memo) Filter(ctx context.Context, p *Profile, state *CycleState, pod *v1.Pod, node fwk.NodeInfo) *fwk.Status {
	before, version := p.shared.Nominator.before(pod, node.Node())
	n, ok := node.(*NodeInfo)
	// What the other filters say beside nominated pods counts before what the first ones say without them.
	if m == nil || !ok || len(before) > 0 && (version < 0 || m.kept < len(state.filters)) {
		return p.filterBeside(ctx, before, state, pod, node)
	}
	r := &m.nodes[n.place]
	if r.filtered != n.generation || r.nominated != version {
		if r.filtered == 0 {
			m.filled.Add(1)
		}
		var st *fwk.Status
		if len(before) > 0 {
			st = p.filterBeside(ctx, before, state, pod, node)
		} else {
			st = runFilters(ctx, state.filters[:m.kept], state, pod, node)
		}
		if !st.IsSuccess() && !st.IsRejected() {
			return st // an error is not what the plugin has to say about the node
		}
		r.status, r.filtered, r.nominated = st, n.generation, version
	}
	if !r.status.IsSuccess() {
		return r.status
	}
	return runFilters(ctx, state.filters[m.kept:], state, pod, node)
}

// Rooms has what a PostFilter plugin found out about making room on each node for pods of one shape. It is kept as
// long as the node and what is nominated for it do not change. Several nodes may be asked about at once.
type Rooms struct {
	memo      *Memo
	nominator *Nominator
	pod       *v1.Pod
}

type room struct {
	generation, nominated int64
	found                 any
}

// Rooms returns what is kept about making room for pods of this shape. Nothing is ever kept if a filter may say
// different things about them.
func (c *CycleState) Rooms(pod *v1.Pod) Rooms {
	m := c.memo
	if m == nil || m.kept < len(c.filters) {
		return Rooms{}
	}
	if m.rooms == nil {
		m.rooms = make([]room, len(m.nodes))
	}
	return Rooms{m, m.profile.shared.Nominator, pod}
}

// of returns where what was found about the node is kept, or nil, and the versions of the node and its nominations.
func (r Rooms) of(node fwk.NodeInfo) (*room, int64, int64) {
	n, ok := node.(*NodeInfo)
	if r.memo == nil || !ok {
		return nil, 0, 0
	}
	_, version := r.nominator.before(r.pod, n.node)
	if version < 0 {
		return nil, 0, 0
	}
	return &r.memo.rooms[n.place], n.generation, version
}

// Get returns what was found about a node of the snapshot, or nil.
func (r Rooms) Get(node fwk.NodeInfo) any {
	at, generation, nominated := r.of(node)
	if at == nil || at.generation != generation || at.nominated != nominated {
		return nil
	}
	return at.found
}

// Put keeps what was found. Nobody changes it afterwards.
func (r Rooms) Put(node fwk.NodeInfo, found any) {
	if at, generation, nominated := r.of(node); at != nil {
		*at = room{generation, nominated, found}
	}
}

// row returns where the scores of a node are remembered, and whether they are. m may be nil.
func (m *Memo) row(node fwk.NodeInfo) (row []int64, r *remembered, generation int64) {
	n, ok := node.(*NodeInfo)
	if m == nil || !ok {
		return nil, nil, 0
	}
	return m.raw[n.place*len(m.scores):][:len(m.scores)], &m.nodes[n.place], n.generation
}

// forScores returns m, or nil if its scores are of other plugins than those that score now. m may be nil.
func (m *Memo) forScores(active []scorer) *Memo {
	if m == nil {
		return nil
	}
	if m.active == nil {
		m.active = make([]int, len(active))
		for i := range active {
			m.active[i] = active[i].index
		}
	}
	if !slices.EqualFunc(active, m.active, func(s scorer, i int) bool { return s.index == i }) {
		return nil
	}
	return m
}

// knows reports whether most scores are remembered, so that scoring is faster without help. m may be nil.
func (m *Memo) knows(active []scorer, nodes []fwk.NodeInfo) bool {
	if m == nil || slices.ContainsFunc(active, func(s scorer) bool { return !m.scores[s.index] }) {
		return false
	}
	missing := 0
	for _, n := range nodes {
		if _, r, generation := m.row(n); r == nil || r.scored != generation {
			missing++
		}
	}
	return missing < inline
}
