package framework

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
)

// A profile's lists hold its plugins so that their calls are measured. Filter and Score, which are called for each node,
// are measured by those who call them.

type measuredPreEnqueue struct {
	fwk.PreEnqueuePlugin
	*meter
}

func measurePreEnqueue(_ string, pl fwk.PreEnqueuePlugin) fwk.PreEnqueuePlugin {
	return measuredPreEnqueue{pl, newMeter(pl.Name(), "PreEnqueue")}
}

func (p measuredPreEnqueue) PreEnqueue(ctx context.Context, pod *v1.Pod) *fwk.Status {
	began := p.Begin()
	st := p.PreEnqueuePlugin.PreEnqueue(ctx, pod)
	p.end(began, st)
	return st
}

type measuredPreFilter struct {
	fwk.PreFilterPlugin
	*meter
	add, remove *meter
}

func measurePreFilter(profile string, pl fwk.PreFilterPlugin) fwk.PreFilterPlugin {
	return &measuredPreFilter{
		pl, counting(pl.Name(), "PreFilter", profile),
		newMeter(pl.Name(), "PreFilterExtensionAddPod"), newMeter(pl.Name(), "PreFilterExtensionRemovePod"),
	}
}

func (p *measuredPreFilter) PreFilter(ctx context.Context, state fwk.CycleState, pod *v1.Pod,
	nodes []fwk.NodeInfo,
) (*fwk.PreFilterResult, *fwk.Status) {
	began := p.Begin()
	r, st := p.PreFilterPlugin.PreFilter(ctx, state, pod, nodes)
	p.end(began, st)
	return r, st
}

func (p *measuredPreFilter) PreFilterExtensions() fwk.PreFilterExtensions {
	if ext := p.PreFilterPlugin.PreFilterExtensions(); ext != nil {
		return measuredExtensions{ext, p}
	}
	return nil
}

type measuredExtensions struct {
	fwk.PreFilterExtensions
	of *measuredPreFilter
}

func (e measuredExtensions) AddPod(ctx context.Context, state fwk.CycleState, pod *v1.Pod, add fwk.PodInfo, node fwk.NodeInfo) *fwk.Status {
	began := e.of.add.Begin()
	st := e.PreFilterExtensions.AddPod(ctx, state, pod, add, node)
	e.of.add.end(began, st)
	return st
}

func (e measuredExtensions) RemovePod(ctx context.Context, state fwk.CycleState, pod *v1.Pod, remove fwk.PodInfo, node fwk.NodeInfo) *fwk.Status {
	began := e.of.remove.Begin()
	st := e.PreFilterExtensions.RemovePod(ctx, state, pod, remove, node)
	e.of.remove.end(began, st)
	return st
}

type measuredPostFilter struct {
	fwk.PostFilterPlugin
	*meter
}

func measurePostFilter(_ string, pl fwk.PostFilterPlugin) fwk.PostFilterPlugin {
	return measuredPostFilter{pl, newMeter(pl.Name(), "PostFilter")}
}

func (p measuredPostFilter) PostFilter(ctx context.Context, state fwk.CycleState, pod *v1.Pod,
	m fwk.NodeToStatusReader,
) (*fwk.PostFilterResult, *fwk.Status) {
	began := p.Begin()
	r, st := p.PostFilterPlugin.PostFilter(ctx, state, pod, m)
	p.end(began, st)
	return r, st
}

type measuredPodGroupPostFilter struct {
	fwk.PodGroupPostFilterPlugin
	*meter
}

func measurePodGroupPostFilter(_ string, pl fwk.PodGroupPostFilterPlugin) fwk.PodGroupPostFilterPlugin {
	return measuredPodGroupPostFilter{pl, newMeter(pl.Name(), "PodGroupPostFilter")}
}

func (p measuredPodGroupPostFilter) PodGroupPostFilter(ctx context.Context, state fwk.PodGroupCycleState,
	group fwk.PodGroupInfo, schedule fwk.PodGroupSchedulingFunc,
) (*fwk.PodGroupPostFilterResult, *fwk.Status) {
	began := p.Begin()
	r, st := p.PodGroupPostFilterPlugin.PodGroupPostFilter(ctx, state, group, schedule)
	p.end(began, st)
	return r, st
}

type measuredPlacementGenerate struct {
	fwk.PlacementGeneratePlugin
	*meter
}

func measurePlacementGenerate(_ string, pl fwk.PlacementGeneratePlugin) fwk.PlacementGeneratePlugin {
	return measuredPlacementGenerate{pl, newMeter(pl.Name(), "PlacementGenerate")}
}

func (p measuredPlacementGenerate) GeneratePlacements(ctx context.Context, state fwk.PodGroupCycleState,
	group fwk.PodGroupInfo, parent *fwk.Placement,
) (*fwk.GeneratePlacementsResult, *fwk.Status) {
	began := p.Begin()
	r, st := p.PlacementGeneratePlugin.GeneratePlacements(ctx, state, group, parent)
	p.end(began, st)
	return r, st
}

type measuredPreScore struct {
	fwk.PreScorePlugin
	*meter
}

func measurePreScore(profile string, pl fwk.PreScorePlugin) fwk.PreScorePlugin {
	return measuredPreScore{pl, counting(pl.Name(), "PreScore", profile)}
}

func (p measuredPreScore) PreScore(ctx context.Context, state fwk.CycleState, pod *v1.Pod, nodes []fwk.NodeInfo) *fwk.Status {
	began := p.Begin()
	st := p.PreScorePlugin.PreScore(ctx, state, pod, nodes)
	p.end(began, st)
	return st
}

type measuredScore struct {
	fwk.ScorePlugin
	normalize *meter
}

func (p measuredScore) ScoreExtensions() fwk.ScoreExtensions {
	if ext := p.ScorePlugin.ScoreExtensions(); ext != nil {
		return measuredNormalize{ext, p.normalize}
	}
	return nil
}

type measuredNormalize struct {
	fwk.ScoreExtensions
	*meter
}

func (p measuredNormalize) NormalizeScore(ctx context.Context, state fwk.CycleState, pod *v1.Pod, scores fwk.NodeScoreList) *fwk.Status {
	began := p.Begin()
	st := p.ScoreExtensions.NormalizeScore(ctx, state, pod, scores)
	p.end(began, st)
	return st
}

type measuredReserve struct {
	fwk.ReservePlugin
	reserve, unreserve *meter
}

func measureReserve(_ string, pl fwk.ReservePlugin) fwk.ReservePlugin {
	return measuredReserve{pl, newMeter(pl.Name(), "Reserve"), newMeter(pl.Name(), "Unreserve")}
}

func (p measuredReserve) Reserve(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node string) *fwk.Status {
	began := p.reserve.Begin()
	st := p.ReservePlugin.Reserve(ctx, state, pod, node)
	p.reserve.end(began, st)
	return st
}

func (p measuredReserve) Unreserve(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node string) {
	began := p.unreserve.Begin()
	p.ReservePlugin.Unreserve(ctx, state, pod, node)
	p.unreserve.end(began, nil)
}

type measuredPermit struct {
	fwk.PermitPlugin
	*meter
}

func measurePermit(_ string, pl fwk.PermitPlugin) fwk.PermitPlugin {
	return measuredPermit{pl, newMeter(pl.Name(), "Permit")}
}

func (p measuredPermit) Permit(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node string) (*fwk.Status, time.Duration) {
	began := p.Begin()
	st, wait := p.PermitPlugin.Permit(ctx, state, pod, node)
	p.end(began, st)
	return st, wait
}

type measuredPreBind struct {
	fwk.PreBindPlugin
	*meter
	preFlight *meter
}

func measurePreBind(_ string, pl fwk.PreBindPlugin) fwk.PreBindPlugin {
	return measuredPreBind{pl, newMeter(pl.Name(), "PreBind"), newMeter(pl.Name(), "PreBindPreFlight")}
}

func (p measuredPreBind) PreBindPreFlight(ctx context.Context, state fwk.CycleState, pod *v1.Pod,
	node string,
) (*fwk.PreBindPreFlightResult, *fwk.Status) {
	began := p.preFlight.Begin()
	r, st := p.PreBindPlugin.PreBindPreFlight(ctx, state, pod, node)
	p.preFlight.end(began, st)
	return r, st
}

func (p measuredPreBind) PreBind(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node string) *fwk.Status {
	began := p.Begin()
	st := p.PreBindPlugin.PreBind(ctx, state, pod, node)
	p.end(began, st)
	return st
}

type measuredBind struct {
	fwk.BindPlugin
	*meter
}

func measureBind(_ string, pl fwk.BindPlugin) fwk.BindPlugin {
	return measuredBind{pl, newMeter(pl.Name(), "Bind")}
}

func (p measuredBind) Bind(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node string) *fwk.Status {
	began := p.Begin()
	st := p.BindPlugin.Bind(ctx, state, pod, node)
	p.end(began, st)
	return st
}

type measuredPostBind struct {
	fwk.PostBindPlugin
	*meter
}

func measurePostBind(_ string, pl fwk.PostBindPlugin) fwk.PostBindPlugin {
	return measuredPostBind{pl, newMeter(pl.Name(), "PostBind")}
}

func (p measuredPostBind) PostBind(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node string) {
	began := p.Begin()
	p.PostBindPlugin.PostBind(ctx, state, pod, node)
	p.end(began, nil)
}
