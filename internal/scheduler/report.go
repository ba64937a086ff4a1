package scheduler

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"wherry.dev/internal/api/report"
	"wherry.dev/internal/scheduler/framework"
	"wherry.dev/internal/scheduler/plugins"
)

// namedNodes is how many nodes of a group a report names.
const namedNodes = 5

// ServeHTTP answers report.SchedulingPath with the report on a pod.
func (s *Scheduler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	out, ok := s.Report(r.Context(), types.UID(strings.TrimPrefix(r.URL.Path, report.SchedulingPath)), time.Now())
	if !ok {
		http.Error(w, report.NotScheduling, http.StatusNotFound)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(out); err != nil {
		klog.FromContext(r.Context()).V(2).Info("Cannot send a report", "err", err)
	}
}

// Report returns what the scheduler knows about a pod: where it waits, and why no node fits at this moment; or how
// its node was chosen. It reports false if it knows nothing.
func (s *Scheduler) Report(ctx context.Context, uid types.UID, now time.Time) (*report.Scheduling, bool) {
	out := &report.Scheduling{TypeMeta: metav1.TypeMeta{APIVersion: report.APIVersion, Kind: report.SchedulingKind}, UID: uid, At: now.UTC()}
	out.Choice = s.choices.of(uid)
	where, ok := s.queue.Find(uid)
	if !ok {
		return out, out.Choice != nil
	}
	info := &where.Info
	out.Queue = &report.Queue{
		Place: where.Place, Since: report.When(where.Since), Attempts: info.Attempts, Retry: report.When(where.Retry),
		Nominated: s.queue.Nominator().NodeOf(uid),
	}
	profile := s.profiles[info.GetPod().Spec.SchedulerName]
	for _, plugin := range sets.List(info.UnschedulablePlugins.Union(info.PendingPlugins)) {
		out.Queue.WaitsFor = append(out.Queue.WaitsFor, s.awaited(profile.Name, plugin))
	}
	if where.Place == "gated" {
		out.Queue.Gate = s.preEnqueue(ctx, info.GetPod()).Message()
	} else {
		out.Nodes = s.judge(ctx, profile, info)
	}
	return out, true
}

// awaited returns the events that a plugin waits for.
func (s *Scheduler) awaited(profile, plugin string) report.Awaited {
	out := report.Awaited{Plugin: plugin, Events: []string{}}
	for _, h := range s.hints[profile][plugin] {
		for _, action := range actions(h.Event.ActionType) {
			out.Events = append(out.Events, fmt.Sprintf("%v/%v", h.Event.Resource, action))
		}
	}
	slices.Sort(out.Events)
	out.Events = slices.Compact(out.Events)
	return out
}

// actions returns the actions that a set of them has. Every sort of update is one: Update.
func actions(set fwk.ActionType) (out []fwk.ActionType) {
	if set&fwk.Update == fwk.Update {
		out, set = append(out, fwk.Update), set&^fwk.Update
	}
	for a := fwk.ActionType(1); a <= fwk.All; a <<= 1 {
		if set&a != 0 && a.String() != "" {
			out = append(out, a)
		}
	}
	return out
}

// judge filters all nodes as a cycle would, between two of them, and without looking at what is remembered.
func (s *Scheduler) judge(ctx context.Context, profile *framework.Profile, info *framework.QueuedPodInfo) []report.NodeGroup {
	s.cycle.Lock()
	defer s.cycle.Unlock()
	s.cache.Update(s.snapshot)
	nodes, pod := s.snapshot.Nodes(), info.GetPod()
	state := framework.NewCycleState(info.PodInfo)
	narrowed, st := profile.PreFilter(ctx, state, pod, nodes)
	groups := &nodeGroups{byReason: map[string]*nodeGroup{}}
	if !st.IsSuccess() {
		for _, n := range nodes {
			groups.add(n, st)
		}
		return groups.report(func(g *nodeGroup) []string { return plugins.FixesEverywhere(g.status, pod) })
	}
	var by string
	if narrowed.By.Len() > 0 {
		by = strings.Join(sets.List(narrowed.By), ", ")
	}
	for _, n := range nodes {
		if narrowed.Names != nil && !narrowed.Names.Has(n.Node().Name) {
			groups.add(n, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "node(s) didn't satisfy plugin(s) ["+by+"]").WithPlugin(by))
			continue
		}
		groups.add(n, profile.RunFilterPluginsWithNominatedPods(ctx, state, pod, n))
	}
	return groups.report(func(g *nodeGroup) []string { return s.fixes(ctx, profile, state, info, g) })
}

// nodeGroups are nodes by why they were rejected.
type nodeGroups struct{ byReason map[string]*nodeGroup }

type nodeGroup struct {
	status *fwk.Status
	nodes  []fwk.NodeInfo
}

// add adds a node and what was said about it; nil if nothing speaks against it.
func (g *nodeGroups) add(n fwk.NodeInfo, st *fwk.Status) {
	if st == nil {
		st = fwk.NewStatus(fwk.Success)
	}
	key := fmt.Sprintf("%s\n%d\n%s", st.Plugin(), st.Code(), st.Message())
	if g.byReason[key] == nil {
		g.byReason[key] = &nodeGroup{status: st}
	}
	g.byReason[key].nodes = append(g.byReason[key].nodes, n)
}

// report returns the largest group first. fixes may be nil.
func (g *nodeGroups) report(fixes func(*nodeGroup) []string) []report.NodeGroup {
	var out []report.NodeGroup
	for _, group := range g.byReason {
		slices.SortFunc(group.nodes, func(a, b fwk.NodeInfo) int { return strings.Compare(a.Node().Name, b.Node().Name) })
		r := report.NodeGroup{
			Plugin: group.status.Plugin(), Reasons: group.status.Reasons(), Count: len(group.nodes),
			Never: group.status.Code() == fwk.UnschedulableAndUnresolvable,
		}
		for _, n := range group.nodes[:min(len(group.nodes), namedNodes)] {
			r.Names = append(r.Names, n.Node().Name)
		}
		if fixes != nil && !group.status.IsSuccess() {
			r.Fixes = fixes(group)
		}
		out = append(out, r)
	}
	slices.SortFunc(out, func(a, b report.NodeGroup) int {
		return cmp.Or(b.Count-a.Count, strings.Compare(a.Plugin, b.Plugin), slices.Compare(a.Reasons, b.Reasons))
	})
	return out
}

// fixes returns what would make the pod fit on the node of the group that lacks least.
func (s *Scheduler) fixes(ctx context.Context, profile *framework.Profile, state *framework.CycleState, info *framework.QueuedPodInfo, g *nodeGroup) []string {
	n := plugins.Closest(info.PodInfo, g.nodes)
	out := plugins.Fixes(ctx, g.status, info.PodInfo, n)
	if g.status.Code() != fwk.Unschedulable {
		return out
	}
	victims := inTheWay(ctx, profile, state, info.GetPod(), n)
	if len(victims) == 0 {
		return out
	}
	names := make([]string, 0, len(victims))
	most := framework.Priority(victims[0])
	for _, v := range victims {
		names = append(names, v.Namespace+"/"+v.Name)
		most = max(most, framework.Priority(v))
	}
	who := strings.Join(names, " and ")
	switch own := framework.Priority(info.GetPod()); {
	case most >= own:
		out = append(out, fmt.Sprintf("end %s on node %s, or give the pod a priority above %d, so that it preempts them", who, n.Node().Name, most))
	case framework.PreemptionPolicy(info.GetPod()) == v1.PreemptNever:
		out = append(out, fmt.Sprintf("end %s on node %s: the pod's preemptionPolicy is Never", who, n.Node().Name))
	default:
		out = append(out, fmt.Sprintf("preempt %s on node %s", who, n.Node().Name))
	}
	return out
}

// inTheWay returns the pods, the least important ones first, without which the pod would fit on the node; none if
// it would not fit there even alone.
func inTheWay(ctx context.Context, profile *framework.Profile, state *framework.CycleState, pod *v1.Pod, node fwk.NodeInfo) []*v1.Pod {
	there, with := node.Snapshot(), state.Clone()
	all := slices.Clone(there.GetPods())
	slices.SortStableFunc(all, func(a, b fwk.PodInfo) int {
		return cmp.Compare(framework.Priority(a.GetPod()), framework.Priority(b.GetPod()))
	})
	fits := func() bool { return profile.RunFilterPluginsWithNominatedPods(ctx, with, pod, there).IsSuccess() }
	remove := func(p fwk.PodInfo) bool {
		return there.RemovePod(klog.FromContext(ctx), p.GetPod()) == nil && profile.RunPreFilterExtensionRemovePod(ctx, with, pod, p, there).IsSuccess()
	}
	var gone []fwk.PodInfo
	for _, p := range all {
		if fits() {
			break
		}
		if !remove(p) {
			return nil
		}
		gone = append(gone, p)
	}
	if !fits() {
		return nil
	}
	var out []*v1.Pod
	for _, p := range slices.Backward(gone) { // the most important ones come back first
		there.AddPodInfo(p)
		if !profile.RunPreFilterExtensionAddPod(ctx, with, pod, p, there).IsSuccess() {
			return nil
		}
		if fits() {
			continue
		}
		if !remove(p) {
			return nil
		}
		out = append(out, p.GetPod())
	}
	slices.Reverse(out)
	return out
}
