package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/scheduling/corev1"
)

// group is a pod group that is asked about, with the pods of it that come.
type group struct {
	*schedulingv1beta1.PodGroup
	pods []*v1.Pod
	more bool // the group is there, with other pods
}

// another returns a group that is there with one more pod that comes.
func (d dice) another(g *group, name string, nodes []string) *group {
	p := d.member(g, nodes)
	p.Name, p.Spec.Priority = name, g.Spec.Priority
	return &group{PodGroup: g.PodGroup, pods: []*v1.Pod{p}, more: true}
}

// group returns a random group whose pods like each of the nodes to another degree, so that there is no tie between
// nodes: where one pod of a group goes decides what is left for the next.
func (d dice) group(name string, nodes []string) *group {
	g := &group{PodGroup: &schedulingv1beta1.PodGroup{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: d.word(namespaces)},
	}}
	n := 1 + d.IntN(5)
	shape := d.member(g, nodes)
	for i := range n {
		if i > 0 && d.chance(8) {
			other := d.member(g, nodes)
			other.Spec.Priority, other.Spec.PreemptionPolicy = shape.Spec.Priority, shape.Spec.PreemptionPolicy
			shape = other
		}
		p := shape.DeepCopy()
		p.Name = fmt.Sprint(name, "-", i)
		g.pods = append(g.pods, p)
	}
	g.Spec.Priority = shape.Spec.Priority
	if d.chance(3) {
		g.Spec.SchedulingPolicy.Basic = &schedulingv1beta1.BasicSchedulingPolicy{}
	} else {
		g.Spec.SchedulingPolicy.Gang = &schedulingv1beta1.GangSchedulingPolicy{MinCount: int32(1 + d.IntN(n))} //nolint:gosec // few
	}
	g.Spec.DisruptionMode = &schedulingv1beta1.DisruptionMode{Single: &schedulingv1beta1.SingleDisruptionMode{}}
	if d.chance(2) {
		g.Spec.DisruptionMode = &schedulingv1beta1.DisruptionMode{All: &schedulingv1beta1.AllDisruptionMode{}}
	}
	if d.chance(4) {
		key := one(d, v1.LabelTopologyZone, labelRack, v1.LabelHostname)
		g.Spec.SchedulingConstraints = &schedulingv1beta1.PodGroupSchedulingConstraints{
			Topology: []schedulingv1beta1.TopologyConstraint{{Key: key}},
		}
	}
	return g
}

// member returns a random pod of a group, without claims.
func (d dice) member(g *group, nodes []string) *v1.Pod {
	p := d.pod("")
	p.Namespace = g.Namespace
	p.Spec.SchedulerName = profileOrdered
	p.Spec.SchedulingGroup = &v1.PodSchedulingGroup{PodGroupName: new(g.Name)}
	p.Spec.Priority = new(corev1.PodPriority(p))
	p.Spec.Volumes, p.Spec.ResourceClaims = nil, nil
	p.Spec.Resources = nil // see exceptions
	for i := range p.Spec.Containers {
		c := &p.Spec.Containers[i]
		c.Resources.Claims = nil
		for name := range c.Resources.Requests {
			if strings.Contains(string(name), "/") {
				delete(c.Resources.Requests, name)
				delete(c.Resources.Limits, name)
			}
		}
	}
	if p.Spec.Affinity == nil {
		p.Spec.Affinity = &v1.Affinity{}
	}
	if p.Spec.Affinity.NodeAffinity == nil {
		p.Spec.Affinity.NodeAffinity = &v1.NodeAffinity{}
	}
	likes := p.Spec.Affinity.NodeAffinity
	likes.PreferredDuringSchedulingIgnoredDuringExecution = nil
	for i, at := range d.Perm(min(len(nodes), 100)) {
		likes.PreferredDuringSchedulingIgnoredDuringExecution = append(likes.PreferredDuringSchedulingIgnoredDuringExecution,
			v1.PreferredSchedulingTerm{Weight: int32(100 - i), Preference: v1.NodeSelectorTerm{ //nolint:gosec // up to 100
				MatchFields: []v1.NodeSelectorRequirement{{Key: metav1.ObjectNameField, Operator: v1.NodeSelectorOpIn, Values: []string{nodes[at]}}},
			}})
	}
	return p
}

// groupAnswer is what a scheduler says about a group.
type groupAnswer struct {
	Group   string            `json:"group"`
	Domains map[string]int64  `json:"domains,omitempty"` // the scores of those in which the group fits; none if it is one
	Pods    map[string]answer `json:"pods"`
	Victims []string          `json:"victims,omitempty"`
}

// placed returns how many of the pods have got a node, and nominated how many of them may have one.
func (a groupAnswer) placed() (placed, nominated int) {
	for _, p := range a.Pods {
		if p.Node != "" {
			placed++
		}
		if p.Nominated != "" {
			nominated++
		}
	}
	return placed, nominated
}

// answerGroup waits until the scheduler is done with all pods of a group.
func (s *scheduler) answerGroup(ctx context.Context, g *group) (groupAnswer, error) {
	w, err := s.wait(ctx, func(w writes) (time.Duration, bool) {
		for _, p := range w.pods {
			if p.condition == nil && p.node == "" {
				return 0, false
			}
		}
		return quietFor(w.result == nil), true
	})
	if err != nil {
		return groupAnswer{}, err
	}
	log, err := io.ReadAll(s.log)
	s.tap.release()
	a := groupAnswer{
		Group: "nothing", Domains: domainsOf(string(log)), Pods: map[string]answer{},
		Victims: slices.Compact(slices.Sorted(slices.Values(w.victims))),
	}
	if w.result != nil {
		a.Group = fmt.Sprintf("%s %s: %s", w.result.Status, w.result.Reason, w.result.Message)
	}
	for _, p := range g.pods {
		a.Pods[p.Name] = w.pods[nameOf(p)].answer()
	}
	return a, err
}

var scoredDomain = regexp.MustCompile(`"Calculated placement's final score for podGroup".* placement="([^"]*)" score=(-?\d+)`)

// domainsOf returns the scores of domains that a log has. Both log in the same words.
func domainsOf(log string) map[string]int64 {
	var out map[string]int64
	for _, m := range scoredDomain.FindAllStringSubmatch(log, -1) {
		n, err := strconv.ParseInt(m[2], 10, 64)
		if _, again := out[m[1]]; again || err != nil {
			continue
		}
		if out == nil {
			out = map[string]int64{}
		}
		out[m[1]] = n
	}
	return out
}

// bestDomains returns how many domains have the highest score.
func (a groupAnswer) bestDomains() (n int) {
	top := slices.Max(append(slices.Collect(maps.Values(a.Domains)), math.MinInt64))
	for _, score := range a.Domains {
		if score == top {
			n++
		}
	}
	return n
}

// askGroup creates the pods and then their group, so that none is tried before all are there, and waits for both answers.
func (m *match) askGroup(ctx context.Context, g *group) (ours, theirs groupAnswer, err error) {
	if err := errors.Join(m.ours.expect(nameOf(g), g.pods...), m.theirs.expect(nameOf(g), g.pods...)); err != nil {
		return ours, theirs, err
	}
	for _, p := range g.pods {
		if err := m.world.create(ctx, p); err != nil {
			return ours, theirs, err
		}
	}
	if !g.more {
		if err := pause(ctx, settled); err != nil {
			return ours, theirs, err
		}
		if err := m.world.create(ctx, g.PodGroup); err != nil {
			return ours, theirs, err
		}
	}
	ours, err = m.ours.answerGroup(ctx, g)
	if err != nil {
		return ours, theirs, err
	}
	theirs, err = m.theirs.answerGroup(ctx, g)
	return ours, theirs, err
}

// playGroup asks about a random group, the ith, and goes on with what both say.
func (m *match) playGroup(ctx context.Context, seed uint64, i int, known map[string]*v1.Pod) (report string, err error) {
	nodes, err := m.world.all(ctx, "Node")
	if err != nil {
		return "", err
	}
	var names []string
	for _, n := range nodes {
		names = append(names, n.GetName())
	}
	d := roll(seed, uint64(i)+1<<20) //nolint:gosec // i is not negative
	var g *group
	if len(m.running) > 0 && d.chance(3) {
		g = d.another(one(d, m.running...), fmt.Sprint("late-", i), names)
	} else {
		g = d.group(fmt.Sprint("group-", i), names)
	}
	report, a, err := m.bothGroup(ctx, seed, g, known)
	if report != "" || err != nil {
		return report, err
	}
	return "", m.goOnGroup(ctx, d, g, a, known)
}

// bothGroup asks both schedulers about a group, as both does about a pod.
func (m *match) bothGroup(ctx context.Context, seed uint64, g *group, known map[string]*v1.Pod) (report string, ours groupAnswer, err error) {
	m.asked += len(g.pods)
	budgets, err := m.world.typed.PolicyV1().PodDisruptionBudgets("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return "", ours, err
	}
	ours, theirs, err := m.askGroup(ctx, g)
	if err != nil {
		return "", ours, err
	}
	if len(groupDifferences(g, ours, theirs, known, budgets.Items)) > 0 {
		if err := errors.Join(m.dropGroup(ctx, g), pause(ctx, surely)); err != nil {
			return "", ours, err
		}
		if ours, theirs, err = m.askGroup(ctx, g); err != nil {
			return "", ours, err
		}
		if all := groupDifferences(g, ours, theirs, known, budgets.Items); len(all) > 0 {
			asked := []object{g.PodGroup}
			for _, p := range g.pods {
				asked = append(asked, p)
			}
			report, err = m.report(ctx, seed, asked, map[string]groupAnswer{"ours": ours, "upstream's": theirs}, all)
			return report, ours, err
		}
		m.stale++
	}
	placed, nominated := ours.placed()
	m.placed += placed
	m.preempting += nominated
	return "", ours, nil
}

func (m *match) dropGroup(ctx context.Context, g *group) error {
	for _, p := range g.pods {
		if err := m.world.drop(ctx, p.Namespace, p.Name); err != nil {
			return err
		}
	}
	if g.more {
		return nil
	}
	return m.world.client.Resource(kinds["PodGroup"]).Namespace(g.Namespace).Delete(ctx, g.Name, now)
}

// goOnGroup binds the pods that have got a node, or drops all of them.
func (m *match) goOnGroup(ctx context.Context, d dice, g *group, a groupAnswer, known map[string]*v1.Pod) error {
	if placed, _ := a.placed(); placed == 0 || d.chance(4) {
		return m.dropGroup(ctx, g)
	}
	for _, p := range g.pods {
		if a.Pods[p.Name].Node == "" {
			if err := m.world.drop(ctx, p.Namespace, p.Name); err != nil {
				return err
			}
			continue
		}
		p.Status.StartTime = new(metav1.NewTime(born.Add(time.Duration(len(known)) * time.Hour)))
		if err := m.world.bind(ctx, p, a.Pods[p.Name].Node); err != nil {
			return err
		}
		known[nameOf(p)] = p
	}
	if !g.more {
		m.running = append(m.running, g)
	}
	return pause(ctx, settled)
}

// otherwiseSaid reports whether ours has other words for why a pod of the group has no node: because others of its gang
// have none, or in the first one of the domains that there are, whichever that is.
func otherwiseSaid(g *group, why string) bool {
	return strings.Contains(why, "minCount (") || g.Spec.SchedulingConstraints != nil
}

// groupDifferences returns in what two answers about a group differ. The victims of a gang are each scheduler's own, but
// ours may cost no more.
func groupDifferences(g *group, ours, theirs groupAnswer, known map[string]*v1.Pod,
	budgets []policyv1.PodDisruptionBudget,
) []string {
	if noDomain(theirs.Group) {
		return nil
	}
	var out []string
	differ := func(what string, a, b any) { out = append(out, fmt.Sprintf("%s: ours %v, upstream's %v", what, a, b)) }
	result := func(s string) string { s, _, _ = strings.Cut(s, ":"); return s }
	if a, b := result(ours.Group), result(theirs.Group); a != b {
		differ("the group's condition", a, b)
	}
	if !maps.Equal(ours.Domains, theirs.Domains) {
		differ("scores of domains", ours.Domains, theirs.Domains)
	}
	if ours.bestDomains() > 1 {
		return out // whichever they took
	}
	for _, p := range g.pods {
		a, b := ours.Pods[p.Name], theirs.Pods[p.Name]
		if a.Node != b.Node {
			differ("node of "+p.Name, a.Node, b.Node)
		}
		why, _, _ := strings.Cut(a.Why, " preemption:")
		if why != b.Why && !otherwiseSaid(g, b.Why) {
			differ("why "+p.Name, a.Why, b.Why)
		}
	}
	placed, a := ours.placed()
	_, b := theirs.placed()
	basic := g.Spec.SchedulingPolicy.Gang == nil // its pods make room on their own first, which upstream's do not
	if placed == 0 && (a > 0) != (b > 0) && (b > 0 || !basic) {
		differ("preemption", fmt.Sprint(a, " nominated, ", ours.Victims), fmt.Sprint(b, " nominated, ", theirs.Victims))
	}
	x, y := groupCost(ours, known, budgets), groupCost(theirs, known, budgets)
	if placed == 0 && !basic && slices.Compare(x, y) > 0 {
		differ("cost of the victims", fmt.Sprint(x, ours.Victims), fmt.Sprint(y, theirs.Victims))
	}
	return out
}

// groupCost returns how many victims no budget spares, and the priorities of all, the highest one first.
func groupCost(a groupAnswer, known map[string]*v1.Pod, budgets []policyv1.PodDisruptionBudget) []int32 {
	out := []int32{0}
	for _, b := range budgets {
		spared := b.Status.DisruptionsAllowed
		for _, v := range a.Victims {
			p := known[v]
			if p == nil || p.Namespace != b.Namespace || p.Labels[labelApp] != b.Spec.Selector.MatchLabels[labelApp] {
				continue
			}
			if spared--; spared < 0 {
				out[0]++
			}
		}
	}
	for _, v := range a.Victims {
		if p := known[v]; p != nil {
			out = append(out, corev1.PodPriority(p))
		}
	}
	slices.SortFunc(out[1:], func(a, b int32) int { return int(b - a) })
	return out
}
