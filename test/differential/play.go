package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/component-helpers/scheduling/corev1"
	"sigs.k8s.io/yaml"
)

// What a watch has told by now. A scheduler that is later than that is asked again.
const (
	settled = 100 * time.Millisecond
	surely  = time.Second
)

// cluster plays a cluster, from nothing to nothing. It returns a report if the schedulers differ.
func (m *match) cluster(ctx context.Context, seed uint64) (report string, err error) {
	defer func() { err = errors.Join(err, m.world.wipe(context.WithoutCancel(ctx))) }()
	objects := roll(seed, 0).cluster()
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
func (m *match) both(ctx context.Context, seed uint64, pod *v1.Pod, known map[string]*v1.Pod) (report string, _ outcome, err error) {
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
			report, err = m.report(ctx, seed, pod, ours, theirs, all)
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
	if err := errors.Join(m.ours.expect(pod), m.theirs.expect(pod)); err != nil {
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
	if o.node != "" && !d.chance(4) {
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
			if err := m.end(ctx, v, known); err != nil {
				return err
			}
		}
	}
	if d.chance(6) && len(known) > 0 {
		if err := m.end(ctx, one(d, slices.Sorted(maps.Keys(known))...), known); err != nil {
			return err
		}
	}
	if !d.chance(5) {
		return nil
	}
	nodes, err := w.all(ctx, "Node")
	if err != nil {
		return err
	}
	if err := w.change(ctx, nodes[d.IntN(len(nodes))].GetName(), d.otherwise); err != nil {
		return err
	}
	return pause(ctx, settled)
}

func (m *match) end(ctx context.Context, pod string, known map[string]*v1.Pod) error {
	delete(known, pod)
	namespace, name, _ := strings.Cut(pod, "/")
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
	// Images stay: upstream counts an image's nodes anew only for the nodes that have changed themselves.
}

// equallyGood reports whether two preemptions are: on different nodes, and by all rules that upstream documents for
// the choice between nodes. Violations of budgets are not counted here.
func equallyGood(a, b answer, known map[string]*v1.Pod) bool {
	if a.Nominated == b.Nominated || a.Nominated == "" || b.Nominated == "" {
		return false
	}
	return cmp.Compare(costOf(a, known), costOf(b, known)) == 0
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
	return fmt.Sprint(most, len(a.Victims), sum, " ", startOf(slices.MinFunc(pods, func(a, b *v1.Pod) int { return startOf(a).Compare(startOf(b)) })))
}

func startOf(p *v1.Pod) time.Time {
	if p.Status.StartTime == nil {
		return time.Time{}
	}
	return p.Status.StartTime.Time
}

// report says all about a difference.
func (m *match) report(ctx context.Context, seed uint64, pod *v1.Pod, ours, theirs answer, all []string) (string, error) {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(pod)
	if err != nil {
		return "", err
	}
	podDoc, err := asYAML(content)
	if err != nil {
		return "", err
	}
	answers, err := yaml.Marshal(map[string]answer{"ours": ours, "upstream's": theirs})
	if err != nil {
		return "", err
	}
	cluster, err := m.world.dump(ctx)
	return fmt.Sprintf("=== seed %d, pod %s\n%s\n--- the pod\n%s\n--- the answers\n%s\n--- the cluster\n%s",
		seed, pod.Name, strings.Join(all, "\n"), podDoc, answers, cluster), err
}
