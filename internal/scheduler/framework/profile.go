package framework

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	configv1 "k8s.io/kube-scheduler/config/v1"
	fwk "k8s.io/kube-scheduler/framework"
)

// Factory makes a plugin from its arguments (nil if the configuration has none).
type Factory func(ctx context.Context, args runtime.Object, h fwk.Handle) (fwk.Plugin, error)

// Registry has the factories of all plugins that there are, by name.
type Registry map[string]Factory

// Profile is the plugins behind one schedulerName, sorted into their extension points. To them it
// is the framework's Handle.
type Profile struct {
	Name string
	// PercentageOfNodesToScore is this profile's own, or nil.
	PercentageOfNodesToScore *int32

	shared *Shared
	byName map[string]fwk.Plugin
	names  []string // of all plugins, in order
	// scratch and memos belong to the scheduling cycle (Totals, Recall).
	scratch scores
	memos   []shaped
	signers []signer
	cycles  atomic.Uint32 // how many there were

	queueSort  []fwk.QueueSortPlugin // exactly one
	preEnqueue []fwk.PreEnqueuePlugin
	preFilter  []fwk.PreFilterPlugin
	filter     []filterer
	postFilter []fwk.PostFilterPlugin
	preScore   []fwk.PreScorePlugin
	score      []scorer
	reserve    []fwk.ReservePlugin
	permit     []fwk.PermitPlugin
	preBind    []fwk.PreBindPlugin
	bind       []fwk.BindPlugin
	postBind   []fwk.PostBindPlugin

	podGroupPostFilter []fwk.PodGroupPostFilterPlugin
	placementGenerate  []fwk.PlacementGeneratePlugin // one at most
	placementScore     []placementScorer
}

type filterer struct {
	fwk.FilterPlugin
	*meter
}

type scorer struct {
	fwk.ScorePlugin
	weight int64
	index  int // in Profile.score
	*meter
}

// measured is Score.
func (s *scorer) measured(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node fwk.NodeInfo) (int64, *fwk.Status) {
	if !timed(state, node) {
		return s.Score(ctx, state, pod, node)
	}
	began := time.Now()
	score, st := s.Score(ctx, state, pod, node)
	s.observe(began, st)
	return score, st
}

// NewProfile makes the plugins that a configuration enables, defaults included, and sorts them into
// their extension points. Exactly one must sort the queue, and at least one must bind. args has the
// arguments of plugins by name.
func NewProfile(ctx context.Context, name string, r Registry, c *configv1.Plugins, args map[string]runtime.Object, shared *Shared) (*Profile, error) {
	p := &Profile{Name: name, shared: shared, byName: map[string]fwk.Plugin{}, names: enabled(c)}
	var errs []error
	for _, pl := range p.names {
		build, ok := r[pl]
		if !ok {
			errs = append(errs, fmt.Errorf("unknown plugin %q", pl))
			continue
		}
		made, err := build(ctx, args[pl], p)
		if err != nil {
			errs = append(errs, fmt.Errorf("plugin %q: %w", pl, err))
			continue
		}
		p.byName[pl] = made
	}
	errs = append(errs, unknown(r, c)...)
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("scheduler profile %s: %w", name, err)
	}
	for _, pt := range points() {
		if err := p.register(pt, c, weights(c, pt)); err != nil {
			return nil, fmt.Errorf("scheduler profile %s: %w", name, err)
		}
	}
	if len(p.queueSort) != 1 {
		return nil, fmt.Errorf("scheduler profile %s: %d plugins sort the queue, but exactly one must; enable PrioritySort", name, len(p.queueSort))
	}
	if len(p.bind) == 0 {
		return nil, fmt.Errorf("scheduler profile %s: no plugin binds pods; enable DefaultBinder", name)
	}
	if len(p.placementGenerate) > 1 {
		return nil, fmt.Errorf("scheduler profile %s: %d plugins generate placements, but at most one can", name, len(p.placementGenerate))
	}
	p.signers = p.signersOf()
	return p, nil
}

// unknown returns an error for each plugin that is disabled and does not exist: most likely its name
// is misspelt, and the one that was meant stays on.
func unknown(r Registry, c *configv1.Plugins) []error {
	var errs []error
	for point, set := range Sets(c) {
		for _, d := range set.Disabled {
			if _, ok := r[d.Name]; !ok && d.Name != "*" {
				errs = append(errs, fmt.Errorf("%s disables the unknown plugin %q", point, d.Name))
			}
		}
	}
	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return errs
}

// QueueSort returns the plugin that orders the queue.
func (p *Profile) QueueSort() fwk.QueueSortPlugin { return p.queueSort[0] }

// Less reports whether a comes before b in the queue.
func (p *Profile) Less(a, b fwk.QueuedEntityInfo) bool { return p.queueSort[0].Less(a, b) }

// Rejecters returns the plugins that can keep a pod off nodes.
func (p *Profile) Rejecters() sets.Set[string] {
	out := sets.New[string]()
	for _, pl := range p.preFilter {
		out.Insert(pl.Name())
	}
	for _, pl := range p.filter {
		out.Insert(pl.Name())
	}
	return out
}

// Events returns, by plugin, the cluster events that may make a pod schedulable that the plugin
// rejected. If a plugin does not say, all events count.
func (p *Profile) Events(ctx context.Context) (map[string][]fwk.ClusterEventWithHint, error) {
	out := map[string][]fwk.ClusterEventWithHint{}
	for _, name := range p.names {
		ext, ok := p.byName[name].(fwk.EnqueueExtensions)
		if !ok {
			out[name] = []fwk.ClusterEventWithHint{{Event: fwk.ClusterEvent{Resource: fwk.WildCard, ActionType: fwk.All}}}
			continue
		}
		events, err := ext.EventsToRegister(ctx)
		if err != nil {
			return nil, fmt.Errorf("plugin %s: %w", name, err)
		}
		out[name] = events
	}
	return out, nil
}

// PreEnqueue returns a status that says whether a pod may enter the queue at all.
func (p *Profile) PreEnqueue(ctx context.Context, pod *v1.Pod) (st *fwk.Status) {
	began := time.Now()
	defer func() { ObservePoint("PreEnqueue", p.Name, st.Code(), time.Since(began)) }()
	for _, pl := range p.preEnqueue {
		if st := pl.PreEnqueue(ctx, pod); !st.IsSuccess() {
			return named(st, pl)
		}
	}
	return nil
}

// Narrowed is what PreFilter plugins leave of the nodes.
type Narrowed struct {
	Names sets.Set[string] // nil: all nodes
	By    sets.Set[string] // the plugins that excluded some
}

// PreFilter lets plugins prepare, and narrow down the nodes.
//
// A plugin that finds the pod unschedulable does not end the run, because preemption may help, and
// wants the state of the others; one that says that nothing can help, or fails, does.
func (p *Profile) PreFilter(ctx context.Context, state fwk.CycleState, pod *v1.Pod, nodes []fwk.NodeInfo) (Narrowed, *fwk.Status) {
	var result *fwk.PreFilterResult
	var rejected *fwk.Status
	by := sets.New[string]()
	skip := sets.New[string]()
	for _, pl := range p.preFilter {
		r, st := pl.PreFilter(ctx, state, pod, nodes)
		switch {
		case st.IsSkip():
			skip.Insert(pl.Name())
			continue
		case st.Code() == fwk.Unschedulable || st.Code() == fwk.Pending:
			rejected = named(st, pl)
			continue
		case st.IsRejected():
			return Narrowed{}, named(st, pl)
		case !st.IsSuccess():
			return Narrowed{}, fwk.AsStatus(fmt.Errorf("running PreFilter plugin %q: %w", pl.Name(), st.AsError()))
		}
		if r.AllNodes() {
			continue
		}
		by.Insert(pl.Name())
		if result = result.Merge(r); len(result.NodeNames) == 0 {
			msg := fmt.Sprintf("node(s) didn't satisfy plugin(s) %v", sets.List(by))
			if by.Len() > 1 {
				msg += " simultaneously"
			}
			return Narrowed{By: by}, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, msg).WithPlugin(pl.Name())
		}
	}
	p.skipFilters(state, skip, len(nodes))
	out := Narrowed{By: by}
	if !result.AllNodes() {
		out.Names = result.NodeNames
	}
	return out, rejected
}

// skipFilters notes whose Filter has nothing to do, so that the many calls to come need not ask.
func (p *Profile) skipFilters(state fwk.CycleState, skip sets.Set[string], nodes int) {
	state.SetSkipFilterPlugins(skip)
	c, ok := state.(*CycleState)
	if !ok {
		return
	}
	c.sampling = sampling{cycle: int(p.cycles.Add(1) - 1), every: max(timedCalls, nodes/timedNodes)}
	c.filters = make([]filterer, 0, len(p.filter))
	for _, pl := range p.filter {
		if !skip.Has(pl.Name()) {
			c.filters = append(c.filters, pl)
		}
	}
	c.extensions = p.active(skip)
}

func (p *Profile) filters(state fwk.CycleState) []filterer {
	if c, ok := state.(*CycleState); ok && c.filters != nil {
		return c.filters
	}
	skip := state.GetSkipFilterPlugins()
	return slices.DeleteFunc(slices.Clone(p.filter), func(pl filterer) bool { return skip.Has(pl.Name()) })
}

// RunFilterPlugins returns a status that says whether the pod can run on the node. The first plugin
// that rejects it decides.
func (p *Profile) RunFilterPlugins(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node fwk.NodeInfo) *fwk.Status {
	return runFilters(ctx, p.filters(state), state, pod, node)
}

func runFilters(ctx context.Context, filters []filterer, state fwk.CycleState, pod *v1.Pod, node fwk.NodeInfo) *fwk.Status {
	if len(filters) == 0 {
		return nil
	}
	timed := timed(state, node)
	for i := range filters {
		pl := &filters[i]
		var began time.Time
		if timed {
			began = time.Now()
		}
		st := pl.Filter(ctx, state, pod, node)
		if timed {
			pl.observe(began, st)
		}
		if !st.IsSuccess() {
			if !st.IsRejected() {
				st = fwk.AsStatus(fmt.Errorf("running %q filter plugin: %w", pl.Name(), st.AsError()))
			}
			return named(st, pl)
		}
	}
	return nil
}

// RunFilterPluginsWithNominatedPods is RunFilterPlugins on a node for which other pods are nominated.
// The pod must fit beside those of them that have its priority or a higher one, and also without
// them: they may end up elsewhere, and it may need what they bring (affinity).
func (p *Profile) RunFilterPluginsWithNominatedPods(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node fwk.NodeInfo) *fwk.Status {
	before, _ := p.shared.Nominator.before(pod, node.Node())
	return p.filterBeside(ctx, before, state, pod, node)
}

func (p *Profile) filterBeside(ctx context.Context, nominated []fwk.PodInfo, state fwk.CycleState, pod *v1.Pod, node fwk.NodeInfo) *fwk.Status {
	if len(nominated) > 0 {
		with, there := state.Clone(), node.Snapshot()
		for _, n := range nominated {
			there.AddPodInfo(n)
			if st := p.RunPreFilterExtensionAddPod(ctx, with, pod, n, there); !st.IsSuccess() {
				return st
			}
		}
		if st := p.RunFilterPlugins(ctx, with, pod, there); !st.IsSuccess() {
			return st
		}
	}
	return p.RunFilterPlugins(ctx, state, pod, node)
}

// RunPreFilterExtensionAddPod tells the plugins' state that a pod is on the node, too.
func (p *Profile) RunPreFilterExtensionAddPod(ctx context.Context, state fwk.CycleState, pod *v1.Pod, add fwk.PodInfo, node fwk.NodeInfo) *fwk.Status {
	return p.extensions(state, func(e fwk.PreFilterExtensions) *fwk.Status { return e.AddPod(ctx, state, pod, add, node) })
}

// RunPreFilterExtensionRemovePod tells the plugins' state that a pod is on the node no more.
func (p *Profile) RunPreFilterExtensionRemovePod(ctx context.Context, state fwk.CycleState, pod *v1.Pod, remove fwk.PodInfo, node fwk.NodeInfo) *fwk.Status {
	return p.extensions(state, func(e fwk.PreFilterExtensions) *fwk.Status { return e.RemovePod(ctx, state, pod, remove, node) })
}

func (p *Profile) extensions(state fwk.CycleState, do func(fwk.PreFilterExtensions) *fwk.Status) *fwk.Status {
	var active []extension
	if c, ok := state.(*CycleState); ok && c.filters != nil {
		active = c.extensions
	} else {
		active = p.active(state.GetSkipFilterPlugins())
	}
	for _, e := range active {
		if st := do(e); !st.IsSuccess() {
			return named(fwk.AsStatus(fmt.Errorf("running PreFilter extensions of plugin %q: %w", e.of.Name(), st.AsError())), e.of)
		}
	}
	return nil
}

// extension is the part of a PreFilter plugin that hears of pods that are added to a node, or removed.
type extension struct {
	fwk.PreFilterExtensions
	of fwk.Plugin
}

// active returns the extensions of the plugins that have any, without those of which Filter is skipped.
func (p *Profile) active(skip sets.Set[string]) (out []extension) {
	for _, pl := range p.preFilter {
		if ext := pl.PreFilterExtensions(); ext != nil && !skip.Has(pl.Name()) {
			out = append(out, extension{ext, pl})
		}
	}
	return out
}

// Plugin returns the plugin of a name, or nil.
func (p *Profile) Plugin(name string) fwk.Plugin { return p.byName[name] }

// PostFilter asks the plugins for a node that could be made to fit, after none has fitted. The first
// one that knows a way decides.
func (p *Profile) PostFilter(ctx context.Context, state fwk.CycleState, pod *v1.Pod, m fwk.NodeToStatusReader) (*fwk.PostFilterResult, *fwk.Status) {
	var reasons []string
	var result *fwk.PostFilterResult
	for _, pl := range p.postFilter {
		r, st := pl.PostFilter(ctx, state, pod, m)
		switch {
		case st.IsSuccess(), st.Code() == fwk.UnschedulableAndUnresolvable:
			return r, named(st, pl)
		case !st.IsRejected():
			return nil, named(st, pl)
		}
		if r != nil && r.Mode() != fwk.ModeNoop {
			result = r
		}
		reasons = append(reasons, st.Reasons()...)
	}
	return result, fwk.NewStatus(fwk.Unschedulable, reasons...)
}

// RunPreScorePlugins lets plugins prepare for scoring.
func (p *Profile) RunPreScorePlugins(ctx context.Context, state fwk.CycleState, pod *v1.Pod, nodes []fwk.NodeInfo) *fwk.Status {
	skip := sets.New[string]()
	for _, pl := range p.preScore {
		switch st := pl.PreScore(ctx, state, pod, nodes); {
		case st.IsSkip():
			skip.Insert(pl.Name())
		case !st.IsSuccess():
			return named(fwk.AsStatus(fmt.Errorf("running PreScore plugin %q: %w", pl.Name(), st.AsError())), pl)
		}
	}
	state.SetSkipScorePlugins(skip)
	return nil
}

// RunScorePlugins returns the scores of every node, in the nodes' order: raw, normalized and weighted,
// and their sum.
func (p *Profile) RunScorePlugins(ctx context.Context, state fwk.CycleState, pod *v1.Pod, nodes []fwk.NodeInfo) ([]fwk.NodePluginScores, *fwk.Status) {
	var s scores
	active := p.activeScores(state)
	if st := s.run(ctx, p.shared.Parallel, active, state, pod, nodes, nil); !st.IsSuccess() {
		return nil, st
	}
	out := make([]fwk.NodePluginScores, len(nodes))
	each := make([]fwk.PluginScore, 2*len(active)*len(nodes))
	for n := range out {
		out[n].Name = nodes[n].Node().Name
		out[n].RawScores, each = each[:len(active):len(active)], each[len(active):]
		out[n].Scores, each = each[:len(active):len(active)], each[len(active):]
	}
	for i, pl := range active {
		for n, score := range s.lists[i] {
			out[n].RawScores[i] = fwk.PluginScore{Name: pl.Name(), Score: score.Score}
		}
		if st := s.normalize(ctx, i, pl, state, pod); !st.IsSuccess() {
			return nil, st
		}
		for n, score := range s.lists[i] {
			out[n].Scores[i] = fwk.PluginScore{Name: pl.Name(), Score: score.Score * pl.weight}
			out[n].TotalScore += score.Score * pl.weight
		}
	}
	return out, nil
}

// Totals returns the sums of RunScorePlugins. They are valid until the next call, of which there must be only
// one at a time. m is what is remembered for pods of this shape, or nil.
func (p *Profile) Totals(ctx context.Context, state fwk.CycleState, pod *v1.Pod, nodes []fwk.NodeInfo, m *Memo) ([]int64, *fwk.Status) {
	s := &p.scratch
	active := p.activeScores(state)
	if st := s.run(ctx, p.shared.Parallel, active, state, pod, nodes, m); !st.IsSuccess() {
		return nil, st
	}
	s.totals = resize(s.totals, len(nodes))
	clear(s.totals)
	for i, pl := range active {
		if st := s.normalize(ctx, i, pl, state, pod); !st.IsSuccess() {
			return nil, st
		}
		for n, score := range s.lists[i] {
			s.totals[n] += score.Score * pl.weight
		}
	}
	return s.totals, nil
}

// Scored is what a plugin added to a node's total.
type Scored struct {
	Plugin        string
	Score, Weight int64 // normalized, times the weight; and the weight
}

// LastScores appends of what the i-th total of the last call of Totals is made up.
func (p *Profile) LastScores(state fwk.CycleState, i int, to []Scored) []Scored {
	for k, pl := range p.activeScores(state) {
		to = append(to, Scored{pl.Name(), p.scratch.lists[k][i].Score * pl.weight, pl.weight})
	}
	return to
}

func (p *Profile) activeScores(state fwk.CycleState) []scorer {
	skip := state.GetSkipScorePlugins()
	if skip.Len() == 0 {
		return p.score
	}
	return slices.DeleteFunc(slices.Clone(p.score), func(s scorer) bool { return skip.Has(s.Name()) })
}

// scores has the room for the scores of all nodes.
type scores struct {
	lists  []fwk.NodeScoreList // by plugin
	failed []*fwk.Status       // by node
	totals []int64             // by node
}

func resize[T any](list []T, n int) []T {
	if cap(list) < n {
		return make([]T, n)
	}
	return list[:n]
}

// run asks every plugin about every node, except for what is remembered.
func (s *scores) run(ctx context.Context, parallel Parallelizer, active []scorer, state fwk.CycleState, pod *v1.Pod, nodes []fwk.NodeInfo, m *Memo) *fwk.Status {
	s.lists = resize(s.lists, len(active))
	for i := range s.lists {
		s.lists[i] = resize(s.lists[i], len(nodes))
	}
	s.failed = resize(s.failed, len(nodes))
	clear(s.failed)
	m = m.forScores(active)
	one := func(n int) {
		row, r, generation := m.row(nodes[n])
		known := row != nil && r.scored == generation
		name := nodes[n].Node().Name
		for i := range active {
			pl := &active[i]
			keep := row != nil && m.scores[pl.index]
			var score int64
			if known && keep {
				score = row[pl.index]
			} else {
				var st *fwk.Status
				if score, st = pl.measured(ctx, state, pod, nodes[n]); !st.IsSuccess() {
					s.failed[n] = fwk.AsStatus(fmt.Errorf("plugin %q failed with: %w", pl.Name(), st.AsError()))
					return
				}
				if keep {
					row[pl.index] = score
				}
			}
			s.lists[i][n] = fwk.NodeScore{Name: name, Score: score}
		}
		if row != nil {
			r.scored = generation
		}
	}
	if m.knows(active, nodes) {
		for n := range nodes {
			one(n)
		}
	} else {
		parallel.Until(ctx, len(nodes), one, "Score")
	}
	for i := range active {
		active[i].evaluations.Add(float64(len(nodes)))
	}
	if ctx.Err() != nil {
		return fwk.AsStatus(context.Cause(ctx))
	}
	for _, st := range s.failed {
		if st != nil {
			return st
		}
	}
	return nil
}

// normalize lets a plugin bring its scores to the common scale, and checks that they are on it.
func (s *scores) normalize(ctx context.Context, i int, pl scorer, state fwk.CycleState, pod *v1.Pod) *fwk.Status {
	if ext := pl.ScoreExtensions(); ext != nil {
		if st := ext.NormalizeScore(ctx, state, pod, s.lists[i]); !st.IsSuccess() {
			return fwk.AsStatus(fmt.Errorf("running NormalizeScore of plugin %q: %w", pl.Name(), st.AsError()))
		}
	}
	for _, score := range s.lists[i] {
		if score.Score < fwk.MinScore || score.Score > fwk.MaxScore {
			return fwk.AsStatus(fmt.Errorf("plugin %q returns an invalid score %d for node %s: it must be in [%d, %d]",
				pl.Name(), score.Score, score.Name, fwk.MinScore, fwk.MaxScore))
		}
	}
	return nil
}

// RunReservePluginsReserve lets plugins claim what the pod will use. The caller gives back if one
// fails.
func (p *Profile) RunReservePluginsReserve(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node string) *fwk.Status {
	for _, pl := range p.reserve {
		if st := pl.Reserve(ctx, state, pod, node); !st.IsSuccess() {
			if !st.IsRejected() {
				st = fwk.AsStatus(fmt.Errorf("running Reserve plugin %q: %w", pl.Name(), st.AsError()))
			}
			return named(st, pl)
		}
	}
	return nil
}

// RunReservePluginsUnreserve gives back in reverse order. Plugins must tolerate being called twice.
func (p *Profile) RunReservePluginsUnreserve(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node string) {
	for _, pl := range slices.Backward(p.reserve) {
		pl.Unreserve(ctx, state, pod, node)
	}
}

// Permit returns a status that says whether the pod may be bound: now, never, or after waiting, for
// which see WaitOnPermit.
func (p *Profile) Permit(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node string) *fwk.Status {
	timeouts := map[string]time.Duration{}
	for _, pl := range p.permit {
		st, wait := pl.Permit(ctx, state, pod, node)
		switch {
		case st.IsWait():
			timeouts[pl.Name()] = wait
		case st.IsRejected():
			return named(st, pl)
		case !st.IsSuccess():
			return named(fwk.AsStatus(fmt.Errorf("running Permit plugin %q: %w", pl.Name(), st.AsError())), pl)
		}
	}
	if len(timeouts) == 0 {
		return nil
	}
	p.shared.Waiting.add(pod, timeouts)
	return fwk.NewStatus(fwk.Wait, fmt.Sprintf("one or more plugins asked to wait and no plugin rejected pod %q", pod.Name))
}

// WaitOnPermit waits for a pod that Permit told to wait.
func (p *Profile) WaitOnPermit(ctx context.Context, pod *v1.Pod) *fwk.Status {
	return p.shared.Waiting.wait(ctx, pod)
}

// PreBind asks the PreBind plugins which of them have something to do, and runs these. Consecutive ones that allow it
// run side by side.
func (p *Profile) PreBind(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node string) *fwk.Status {
	groups, st := p.preFlight(ctx, state, pod, node)
	if !st.IsSuccess() {
		return st
	}
	began := time.Now()
	for _, group := range groups {
		if st = preBind(ctx, group, state, pod, node); !st.IsSuccess() {
			break
		}
	}
	ObservePoint("PreBind", p.Name, st.Code(), time.Since(began))
	return st
}

// preFlight returns the plugins that have something to do before the pod is bound, in groups that may run side by side.
func (p *Profile) preFlight(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node string) (groups [][]fwk.PreBindPlugin, st *fwk.Status) {
	began := time.Now()
	defer func() { ObservePoint("PreBindPreFlight", p.Name, st.Code(), time.Since(began)) }()
	together := false // whether the last group takes more
	for _, pl := range p.preBind {
		r, st := pl.PreBindPreFlight(ctx, state, pod, node)
		if st.IsSkip() {
			continue
		}
		if !st.IsSuccess() {
			return nil, named(fwk.AsStatus(fmt.Errorf("running PreBindPreFlight of plugin %q: %w", pl.Name(), st.AsError())), pl)
		}
		parallel := r != nil && r.AllowParallel
		if parallel && together {
			groups[len(groups)-1] = append(groups[len(groups)-1], pl)
		} else {
			groups = append(groups, []fwk.PreBindPlugin{pl})
		}
		together = parallel
	}
	return groups, nil
}

// preBind runs plugins side by side: not by the Parallelizer, because they are few, and wait rather than work.
func preBind(ctx context.Context, group []fwk.PreBindPlugin, state fwk.CycleState, pod *v1.Pod, node string) *fwk.Status {
	results := make([]*fwk.Status, len(group))
	var wg sync.WaitGroup
	for i, pl := range group {
		wg.Go(func() { results[i] = pl.PreBind(ctx, state, pod, node) })
	}
	wg.Wait()
	for i, st := range results {
		if st.IsRejected() {
			return named(st, group[i])
		}
		if !st.IsSuccess() {
			return named(fwk.AsStatus(fmt.Errorf("running PreBind plugin %q: %w", group[i].Name(), st.AsError())), group[i])
		}
	}
	return nil
}

// Bind runs the first Bind plugin that does not skip the pod.
func (p *Profile) Bind(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node string) *fwk.Status {
	var skipped []string
	for _, pl := range p.bind {
		st := pl.Bind(ctx, state, pod, node)
		if st.IsSkip() {
			skipped = append(skipped, pl.Name())
			continue
		}
		return named(st, pl)
	}
	return fwk.AsStatus(fmt.Errorf("all bind plugins skipped the pod: %s", strings.Join(skipped, ", ")))
}

// PostBind tells the plugins that the pod is bound.
func (p *Profile) PostBind(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node string) {
	for _, pl := range p.postBind {
		pl.PostBind(ctx, state, pod, node)
	}
}

func named(st *fwk.Status, p fwk.Plugin) *fwk.Status {
	if st == nil {
		return nil
	}
	if st.Plugin() == "" {
		st.SetPlugin(p.Name())
	}
	return st
}
