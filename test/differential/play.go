package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/component-helpers/scheduling/corev1"
	"sigs.k8s.io/yaml"
)

// What a watch has told by now. A scheduler that is later than that is asked again.
const (
	settled = 50 * time.Millisecond
	surely  = time.Second
)

// cluster plays a cluster, from nothing to nothing. It returns a report if the schedulers differ.
func (m *match) cluster(ctx context.Context, seed uint64) (report string, err error) {
	defer func() {
		if ctx.Err() == nil { // else all of it goes
			err = errors.Join(err, m.world.wipe(ctx))
		}
	}()
	d := roll(seed, 0)
	for ns := range strings.FieldsSeq(namespaces) {
		if err := m.world.label(ctx, "Namespace", "", ns, map[string]string{labelTeam: d.word(teams)}); err != nil {
			return "", err
		}
	}
	m.running = nil
	objects := d.cluster()
	known := map[string]*v1.Pod{}
	for _, o := range objects {
		if err := m.world.create(ctx, o); err != nil {
			return "", err
		}
		if p, ok := o.(*v1.Pod); ok {
			known[p.Namespace+"/"+p.Name] = p
		}
	}
	if err := pause(ctx, settled); err != nil {
		return "", err
	}
	for i, pod := range roll(seed, 1).incoming(m.pods) {
		if m.groups && i%3 == 0 {
			if report, err := m.playGroup(ctx, seed, i, known); report != "" || err != nil {
				return report, err
			}
		}
		report, best, err := m.both(ctx, seed, pod, known)
		if report != "" || err != nil {
			return report, err
		}
		if err := m.goOn(ctx, roll(seed, uint64(i)+2), pod, best, known); err != nil { //nolint:gosec // i is not negative
			return "", err
		}
	}
	return "", nil
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// outcome is what both say, if they agree.
type outcome struct {
	node    string
	victims []string
}

// both asks both schedulers about a pod, and again if they differ: one of them may have been late.
func (m *match) both(ctx context.Context, seed uint64, pod *v1.Pod,
	known map[string]*v1.Pod) (report string, _ outcome, err error) {
	m.asked++
	compare := func(ours, theirs answer) []string {
		return differences(ours, theirs, exceptions(pod), func(a, b answer) bool { return equallyGood(a, b, known) })
	}
	ours, theirs, err := m.ask(ctx, pod)
	if err != nil {
		return "", outcome{}, err
	}
	if len(compare(ours, theirs)) > 0 {
		if err := errors.Join(m.world.drop(ctx, pod.Namespace, pod.Name), pause(ctx, surely)); err != nil {
			return "", outcome{}, err
		}
		if ours, theirs, err = m.ask(ctx, pod); err != nil {
			return "", outcome{}, err
		}
		if all := compare(ours, theirs); len(all) > 0 {
			report, err = m.report(ctx, seed, []object{pod}, map[string]answer{"ours": ours, "upstream's": theirs}, all)
			return report, outcome{}, err
		}
		m.stale++
	}
	if ours.Node == "" {
		if ours.Nominated != "" {
			m.preempting++
		}
		return "", outcome{victims: slices.Compact(slices.Sorted(slices.Values(ours.Victims)))}, nil
	}
	m.placed++
	for _, plugin := range exceptions(pod) {
		ours = ours.without(plugin)
	}
	return "", outcome{node: ours.best()[0]}, nil // whichever they took
}

// exceptions returns the plugins whose scores for a pod differ, although ours are right. Upstream's NodeResourcesFit
// scores by containers alone, because the gate for resources of whole pods does not get to where it adds up; its
// BalancedAllocation and both filters do look at them.
func exceptions(pod *v1.Pod) []string {
	if pod.Spec.Resources != nil {
		return []string{"NodeResourcesFit"}
	}
	return nil
}

// ask creates the pod, and waits for both answers.
func (m *match) ask(ctx context.Context, pod *v1.Pod) (ours, theirs answer, err error) {
	if err := errors.Join(m.ours.expect("", pod), m.theirs.expect("", pod)); err != nil {
		return ours, theirs, err
	}
	if err := m.world.create(ctx, pod); err != nil {
		return ours, theirs, err
	}
	ours, err = m.ours.answer(ctx, pod)
	if err != nil {
		return ours, theirs, err
	}
	theirs, err = m.theirs.answer(ctx, pod)
	return ours, theirs, err
}

// goOn binds the pod or drops it, and changes a few other things.
func (m *match) goOn(ctx context.Context, d dice, pod *v1.Pod, o outcome, known map[string]*v1.Pod) error {
	w := m.world
	binds, err := m.binds(ctx, d, pod, o.node)
	if err != nil {
		return err
	}
	if binds {
		pod.Status.StartTime = new(metav1.NewTime(born.Add(time.Duration(len(known)) * time.Hour)))
		if err := w.bind(ctx, pod, o.node); err != nil {
			return err
		}
		known[pod.Namespace+"/"+pod.Name] = pod
	} else if err := w.drop(ctx, pod.Namespace, pod.Name); err != nil {
		return err
	}
	if len(o.victims) > 0 && d.chance(2) {
		for _, v := range o.victims {
			if err := m.end(ctx, d, v, known); err != nil {
				return err
			}
		}
	}
	changes := d.IntN(3)
	for range changes {
		if err := m.change(ctx, d, known); err != nil {
			return err
		}
	}
	if changes == 0 {
		return nil
	}
	return pause(ctx, settled)
}

// binds decides whether the pod is bound to a node that both agree on, and gives it its devices. One whose extended
// resources would have to be devices is not: a claim would have to be made for it.
func (m *match) binds(ctx context.Context, d dice, pod *v1.Pod, node string) (bool, error) {
	if node == "" || d.chance(4) {
		return false, nil
	}
	if asks := extendedOf(pod); asks != "" {
		u, err := m.world.client.Resource(kinds["Node"]).Get(ctx, node, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		if has, _, _ := unstructured.NestedString(u.Object, "status", "allocatable", string(asks)); has == "" {
			return false, nil
		}
	}
	return m.world.allocate(ctx, d, pod, node)
}

// change changes something in the cluster.
func (m *match) change(ctx context.Context, d dice, known map[string]*v1.Pod) error {
	w := m.world
	nodes, err := w.all(ctx, "Node")
	if err != nil {
		return err
	}
	if len(nodes) == 0 {
		return w.create(ctx, d.node(0))
	}
	node := nodes[d.IntN(len(nodes))]
	var pod string
	if len(known) > 0 {
		pod = one(d, slices.Sorted(maps.Keys(known))...)
	}
	switch d.IntN(8) {
	case 0, 1:
		if pod != "" {
			return m.end(ctx, d, pod, known)
		}
	case 2, 3:
		if pod != "" {
			namespace, name, _ := strings.Cut(pod, "/")
			return w.label(ctx, "Pod", namespace, name, map[string]string{labelApp: d.word(apps), labelTier: d.word(tiers)})
		}
	case 4:
		return w.label(ctx, "Namespace", "", d.word(namespaces), map[string]string{labelTeam: d.word(teams)})
	case 5:
		return m.comeOrGo(ctx, d, node)
	default:
		return w.change(ctx, node.GetName(), d.otherwise)
	}
	return nil
}

// comeOrGo removes a node, without its pods, or adds one. Never one with images: both schedulers count an image's
// nodes anew only for nodes that have changed themselves, and not all of what changes a node is the same for both.
func (m *match) comeOrGo(ctx context.Context, d dice, node unstructured.Unstructured) error {
	if images, _, _ := unstructured.NestedSlice(node.Object, "status", "images"); len(images) == 0 && d.chance(2) {
		return m.world.client.Resource(kinds["Node"]).Delete(ctx, node.GetName(), now)
	}
	n := d.node(1000 + d.IntN(1<<20))
	n.Status.Images = nil
	return m.world.create(ctx, n)
}

func (m *match) end(ctx context.Context, d dice, pod string, known map[string]*v1.Pod) error {
	namespace, name, _ := strings.Cut(pod, "/")
	if p := known[pod]; p != nil && len(p.Spec.ResourceClaims) > 0 {
		if err := m.world.release(ctx, d, p); err != nil {
			return err
		}
	}
	delete(known, pod)
	return m.world.drop(ctx, namespace, name)
}

// otherwise changes one thing of a node.
func (d dice) otherwise(n *v1.Node) {
	switch d.IntN(4) {
	case 0:
		d.label(n)
	case 1:
		n.Spec.Taints = d.taints()
	case 2:
		n.Spec.Unschedulable = !n.Spec.Unschedulable
	case 3:
		n.Status.Allocatable = d.room()
	}
	// Images stay, see comeOrGo.
}

// equallyGood reports whether two preemptions are: on different nodes, and by all rules that upstream documents for
// the choice between nodes. Violations of budgets are not counted here.
func equallyGood(a, b answer, known map[string]*v1.Pod) bool {
	if a.Nominated == b.Nominated || a.Nominated == "" || b.Nominated == "" {
		return false
	}
	return costOf(a, known) == costOf(b, known)
}

// costOf returns the highest priority of the victims, their number and the sum of priorities, and the earliest start
// of those with the highest.
func costOf(a answer, known map[string]*v1.Pod) string {
	var pods []*v1.Pod
	for _, v := range a.Victims {
		if p := known[v]; p != nil {
			pods = append(pods, p)
		}
	}
	if len(pods) == 0 {
		return "none"
	}
	most, sum := corev1.PodPriority(pods[0]), int64(0)
	for _, p := range pods {
		most, sum = max(most, corev1.PodPriority(p)), sum+int64(corev1.PodPriority(p))
	}
	pods = slices.DeleteFunc(pods, func(p *v1.Pod) bool { return corev1.PodPriority(p) != most })
	first := slices.MinFunc(pods, func(a, b *v1.Pod) int { return startOf(a).Compare(startOf(b)) })
	return fmt.Sprint(most, len(a.Victims), sum, " ", startOf(first))
}

func startOf(p *v1.Pod) time.Time {
	if p.Status.StartTime == nil {
		return time.Time{}
	}
	return p.Status.StartTime.Time
}

// report says all about a difference: what was asked about, what both said, and the cluster.
func (m *match) report(ctx context.Context, seed uint64, asked []object, answers any, all []string) (string, error) {
	var docs []string
	for _, o := range asked {
		content, err := asContent(o)
		if err != nil {
			return "", err
		}
		doc, err := asYAML(content)
		if err != nil {
			return "", err
		}
		docs = append(docs, doc)
	}
	said, err := yaml.Marshal(answers)
	if err != nil {
		return "", err
	}
	cluster, err := m.world.dump(ctx)
	return fmt.Sprintf("=== seed %d, %s\n%s\n--- what was asked about\n%s\n--- the answers\n%s\n--- the cluster\n%s",
		seed, asked[0].GetName(), strings.Join(all, "\n"), strings.Join(docs, "---\n"), said, cluster), err
}
