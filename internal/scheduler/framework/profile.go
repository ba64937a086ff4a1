package framework

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	fwk "k8s.io/kube-scheduler/framework"
)

// WeightedPlugin is a plugin with the weight of its score.
type WeightedPlugin struct {
	Plugin fwk.Plugin
	Weight int64
}

// Profile is the set of plugins behind one schedulerName. A plugin takes part in every extension
// point whose interface it implements, in the given order.
type Profile struct {
	Name    string
	plugins []WeightedPlugin

	queueSort  fwk.QueueSortPlugin
	preEnqueue []fwk.PreEnqueuePlugin
	preFilter  []fwk.PreFilterPlugin
	filter     []fwk.FilterPlugin
	postFilter []fwk.PostFilterPlugin
	preScore   []fwk.PreScorePlugin
	score      []scorer
	reserve    []fwk.ReservePlugin
	permit     []fwk.PermitPlugin
	preBind    []fwk.PreBindPlugin
	bind       []fwk.BindPlugin
	postBind   []fwk.PostBindPlugin
}

type scorer struct {
	fwk.ScorePlugin
	weight int64
}

// NewProfile sorts the plugins into their extension points. Exactly one must sort the queue, and at
// least one must bind.
func NewProfile(name string, plugins []WeightedPlugin) (*Profile, error) {
	p := &Profile{Name: name, plugins: plugins}
	for _, w := range plugins {
		if err := p.register(w); err != nil {
			return nil, err
		}
	}
	if p.queueSort == nil {
		return nil, fmt.Errorf("profile %s: no plugin sorts the queue; enable PrioritySort", name)
	}
	if len(p.bind) == 0 {
		return nil, fmt.Errorf("profile %s: no plugin binds pods; enable DefaultBinder", name)
	}
	return p, nil
}

func (p *Profile) register(w WeightedPlugin) error {
	if qs, ok := w.Plugin.(fwk.QueueSortPlugin); ok {
		if p.queueSort != nil {
			return fmt.Errorf("profile %s: %s and %s both sort the queue; disable one", p.Name, p.queueSort.Name(), qs.Name())
		}
		p.queueSort = qs
	}
	if sp, ok := w.Plugin.(fwk.ScorePlugin); ok {
		p.score = append(p.score, scorer{sp, max(1, w.Weight)})
	}
	p.preEnqueue = appendIf(p.preEnqueue, w.Plugin)
	p.preFilter = appendIf(p.preFilter, w.Plugin)
	p.filter = appendIf(p.filter, w.Plugin)
	p.postFilter = appendIf(p.postFilter, w.Plugin)
	p.preScore = appendIf(p.preScore, w.Plugin)
	p.reserve = appendIf(p.reserve, w.Plugin)
	p.permit = appendIf(p.permit, w.Plugin)
	p.preBind = appendIf(p.preBind, w.Plugin)
	p.bind = appendIf(p.bind, w.Plugin)
	p.postBind = appendIf(p.postBind, w.Plugin)
	return nil
}

func appendIf[T any](list []T, p fwk.Plugin) []T {
	if t, ok := p.(T); ok {
		return append(list, t)
	}
	return list
}

// Less reports whether a comes before b in the queue.
func (p *Profile) Less(a, b fwk.QueuedEntityInfo) bool { return p.queueSort.Less(a, b) }

// Events returns, by plugin, the cluster events that may make a pod schedulable that the plugin
// rejected. If a plugin names no events, all events count.
func (p *Profile) Events(ctx context.Context) (map[string][]fwk.ClusterEventWithHint, error) {
	out := map[string][]fwk.ClusterEventWithHint{}
	for _, w := range p.plugins {
		ext, ok := w.Plugin.(fwk.EnqueueExtensions)
		if !ok {
			out[w.Plugin.Name()] = []fwk.ClusterEventWithHint{{Event: fwk.ClusterEvent{Resource: fwk.WildCard, ActionType: fwk.All}}}
			continue
		}
		events, err := ext.EventsToRegister(ctx)
		if err != nil {
			return nil, fmt.Errorf("plugin %s: %w", w.Plugin.Name(), err)
		}
		out[w.Plugin.Name()] = events
	}
	return out, nil
}

// PreEnqueue returns a status that says whether a pod may enter the queue at all.
func (p *Profile) PreEnqueue(ctx context.Context, pod *v1.Pod) *fwk.Status {
	for _, pl := range p.preEnqueue {
		if st := pl.PreEnqueue(ctx, pod); !st.IsSuccess() {
			return named(st, pl)
		}
	}
	return nil
}

// PreFilter lets plugins prepare and narrow down the nodes. The set of names is nil if no node was
// excluded.
func (p *Profile) PreFilter(ctx context.Context, state fwk.CycleState, pod *v1.Pod, nodes []fwk.NodeInfo) (sets.Set[string], *fwk.Status) {
	var result *fwk.PreFilterResult
	skip := sets.New[string]()
	for _, pl := range p.preFilter {
		r, st := pl.PreFilter(ctx, state, pod, nodes)
		switch {
		case st.IsSkip():
			skip.Insert(pl.Name())
		case !st.IsSuccess():
			return nil, named(st, pl)
		}
		if result = result.Merge(r); !result.AllNodes() && len(result.NodeNames) == 0 {
			msg := fmt.Sprintf("node(s) didn't satisfy plugin(s) %v simultaneously", pl.Name())
			return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, msg).WithPlugin(pl.Name())
		}
	}
	state.SetSkipFilterPlugins(skip)
	if result.AllNodes() {
		return nil, nil
	}
	return result.NodeNames, nil
}

// Filter returns a status that says whether the pod can run on the node. The first plugin that
// rejects it decides.
func (p *Profile) Filter(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node fwk.NodeInfo) *fwk.Status {
	for _, pl := range p.filter {
		if state.GetSkipFilterPlugins().Has(pl.Name()) {
			continue
		}
		if st := pl.Filter(ctx, state, pod, node); !st.IsSuccess() {
			if !st.IsRejected() {
				st = fwk.AsStatus(fmt.Errorf("running %q filter plugin: %w", pl.Name(), st.AsError()))
			}
			return named(st, pl)
		}
	}
	return nil
}

// PostFilter asks the plugins for a node that could be made to fit, after none has fitted.
func (p *Profile) PostFilter(ctx context.Context, state fwk.CycleState, pod *v1.Pod, m fwk.NodeToStatusReader) (*fwk.PostFilterResult, *fwk.Status) {
	var reasons []string
	for _, pl := range p.postFilter {
		r, st := pl.PostFilter(ctx, state, pod, m)
		if st.IsSuccess() || !st.IsRejected() {
			return r, named(st, pl)
		}
		reasons = append(reasons, st.Reasons()...)
	}
	return nil, fwk.NewStatus(fwk.Unschedulable, reasons...)
}

// Score returns the sum of the weighted scores of every node, in the nodes' order.
func (p *Profile) Score(ctx context.Context, state fwk.CycleState, pod *v1.Pod, nodes []fwk.NodeInfo) ([]int64, *fwk.Status) {
	skip := sets.New[string]()
	for _, pl := range p.preScore {
		if st := pl.PreScore(ctx, state, pod, nodes); st.IsSkip() {
			skip.Insert(pl.Name())
		} else if !st.IsSuccess() {
			return nil, named(st, pl)
		}
	}
	state.SetSkipScorePlugins(skip)
	total := make([]int64, len(nodes))
	for _, pl := range p.score {
		if skip.Has(pl.Name()) {
			continue
		}
		scores, st := scoreAll(ctx, pl, state, pod, nodes)
		if !st.IsSuccess() {
			return nil, named(st, pl)
		}
		for i, s := range scores {
			if s.Score < fwk.MinScore || s.Score > fwk.MaxScore {
				return nil, named(fwk.AsStatus(fmt.Errorf("score %d of node %s is not in [%d, %d]", s.Score, s.Name, fwk.MinScore, fwk.MaxScore)), pl)
			}
			total[i] += s.Score * pl.weight
		}
	}
	return total, nil
}

func scoreAll(ctx context.Context, pl scorer, state fwk.CycleState, pod *v1.Pod, nodes []fwk.NodeInfo) (fwk.NodeScoreList, *fwk.Status) {
	scores := make(fwk.NodeScoreList, len(nodes))
	for i, n := range nodes {
		s, st := pl.Score(ctx, state, pod, n)
		if !st.IsSuccess() {
			return nil, st
		}
		scores[i] = fwk.NodeScore{Name: n.Node().Name, Score: s}
	}
	if ext := pl.ScoreExtensions(); ext != nil {
		if st := ext.NormalizeScore(ctx, state, pod, scores); !st.IsSuccess() {
			return nil, st
		}
	}
	return scores, nil
}

// Reserve lets plugins claim what the pod will use. If one fails, all of them give it back.
func (p *Profile) Reserve(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node string) *fwk.Status {
	for _, pl := range p.reserve {
		if st := pl.Reserve(ctx, state, pod, node); !st.IsSuccess() {
			p.Unreserve(ctx, state, pod, node)
			return named(st, pl)
		}
	}
	return nil
}

// Unreserve gives back in reverse order. Plugins must tolerate being called twice.
func (p *Profile) Unreserve(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node string) {
	for _, pl := range slices.Backward(p.reserve) {
		pl.Unreserve(ctx, state, pod, node)
	}
}

// Permit returns a status that says whether the pod may be bound. A plugin that wants to wait makes
// it an error, because waiting pods are not supported.
func (p *Profile) Permit(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node string) *fwk.Status {
	for _, pl := range p.permit {
		st, wait := pl.Permit(ctx, state, pod, node)
		if st.IsWait() {
			st = fwk.AsStatus(fmt.Errorf("permit plugin %s wants to wait %s, but this scheduler does not support waiting pods", pl.Name(), wait.Round(time.Millisecond)))
		}
		if !st.IsSuccess() {
			return named(st, pl)
		}
	}
	return nil
}

// Bind runs PreBind, the first Bind that does not skip, and PostBind.
func (p *Profile) Bind(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node string) *fwk.Status {
	for _, pl := range p.preBind {
		_, st := pl.PreBindPreFlight(ctx, state, pod, node)
		if st.IsSkip() {
			continue
		}
		if st.IsSuccess() {
			st = pl.PreBind(ctx, state, pod, node)
		}
		if !st.IsSuccess() {
			return named(st, pl)
		}
	}
	if st := p.bindFirst(ctx, state, pod, node); !st.IsSuccess() {
		return st
	}
	for _, pl := range p.postBind {
		pl.PostBind(ctx, state, pod, node)
	}
	return nil
}

func (p *Profile) bindFirst(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node string) *fwk.Status {
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

func named(st *fwk.Status, p fwk.Plugin) *fwk.Status {
	if st == nil {
		return nil
	}
	if st.Plugin() == "" {
		st.SetPlugin(p.Name())
	}
	return st
}
