package plugins

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	fwk "k8s.io/kube-scheduler/framework"

	"wherry.dev/internal/scheduler/framework"
	"wherry.dev/internal/scheduler/groups"
)

// victim is what is preempted as a whole: a pod, or a pod group of which the disruption mode is All.
type victim struct {
	pods     []fwk.PodInfo
	priority int32
	grouped  bool                        // it is of a pod group
	group    *schedulingv1beta1.PodGroup // nil for a pod, of a group or not
	// violations is how many of the pods no disruption budget spares (split).
	violations int
}

// priority returns that of a pod where it preempts or is preempted: in a pod group, the group's.
func (d *DefaultPreemption) priority(pod *v1.Pod) int32 {
	return groups.Priority(d.h.PodGroupManager().PodGroups(), pod)
}

// lower returns whom something of the priority may preempt on the nodes. Of pod groups, it has the pods on these nodes.
func (d *DefaultPreemption) lower(nodes []fwk.NodeInfo, priority int32) []victim {
	all := d.h.PodGroupManager().PodGroups()
	var out []victim
	at := map[types.UID]int{}
	for _, n := range nodes {
		for _, p := range n.GetPods() {
			pod := p.GetPod()
			own := d.priority(pod)
			if own >= priority {
				continue
			}
			group := groups.Of(all, pod)
			if group == nil || !wholly(group) {
				out = append(out, victim{pods: []fwk.PodInfo{p}, priority: own, grouped: group != nil})
				continue
			}
			i, ok := at[group.UID]
			if !ok {
				i = len(out)
				at[group.UID] = i
				out = append(out, victim{priority: own, grouped: true, group: group})
			}
			out[i].pods = append(out[i].pods, p)
		}
	}
	return out
}

// wholly reports whether the group is disrupted as a whole.
func wholly(group *schedulingv1beta1.PodGroup) bool {
	return group.Spec.DisruptionMode != nil && group.Spec.DisruptionMode.All != nil
}

// complete adds the pods of a group that are on other nodes than those it has.
func (d *DefaultPreemption) complete(v *victim) error {
	if v.group == nil {
		return nil
	}
	state, err := d.h.PodGroupManager().PodGroupStates().Get(v.group.Namespace, v.group.Name)
	if err != nil {
		return err
	}
	for _, pod := range state.ScheduledPods() {
		same := func(p fwk.PodInfo) bool { return p.GetPod().UID == pod.UID }
		if slices.ContainsFunc(v.pods, same) {
			continue
		}
		n, err := d.h.SnapshotSharedLister().NodeInfos().Get(pod.Spec.NodeName)
		if err != nil {
			return fmt.Errorf("pod %s/%s of a pod group: %w", pod.Namespace, pod.Name, err)
		}
		if i := slices.IndexFunc(n.GetPods(), same); i >= 0 {
			v.pods = append(v.pods, n.GetPods()[i])
		}
	}
	return nil
}

// podsOf returns the pods of victims.
func podsOf(victims []victim) []*v1.Pod {
	var out []*v1.Pod
	for _, v := range victims {
		for _, p := range v.pods {
			out = append(out, p.GetPod())
		}
	}
	return out
}

// compareVictims puts the more important one first: the one of the higher priority; a group, or a pod of a group, before
// any other pod; of these, the larger one; and then the one that has run longer.
func compareVictims(a, b victim) int {
	return cmp.Or(
		cmp.Compare(b.priority, a.priority),
		cmp.Compare(size(b), size(a)),
		a.start().Compare(b.start()),
	)
}

// size returns how many pods of a group end together, and 0 for a pod that is of none.
func size(v victim) int {
	if !v.grouped {
		return 0
	}
	return len(v.pods)
}

// start returns when the first of the pods has started.
func (v victim) start() time.Time {
	first := never
	for _, p := range v.pods {
		if t := startOf(p.GetPod()); t.Before(first) {
			first = t
		}
	}
	return first
}

// compareImportance puts the more important pod first: the one of the higher priority, and then the
// one that has run longer.
func compareImportance(a, b *v1.Pod) int {
	if pa, pb := framework.Priority(a), framework.Priority(b); pa != pb {
		return cmp.Compare(pb, pa)
	}
	return startOf(a).Compare(startOf(b))
}

// startOf returns when the pod has started: after all others if it has not.
func startOf(pod *v1.Pod) time.Time {
	if pod.Status.StartTime != nil {
		return pod.Status.StartTime.Time
	}
	return never
}

var never = time.Unix(math.MaxInt32*1000, 0)

// budgets are disruption budgets, and what each of them selects.
type budgets struct {
	all       []*policyv1.PodDisruptionBudget
	selectors []labels.Selector
}

// listBudgets returns the same ones as last time if no budget has changed.
func (d *DefaultPreemption) listBudgets() (*budgets, error) {
	all, err := d.budgets.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	slices.SortFunc(all, func(a, b *policyv1.PodDisruptionBudget) int { return cmp.Compare(a.UID, b.UID) })
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.last != nil && slices.Equal(d.last.all, all) {
		return d.last, nil
	}
	d.last = &budgets{all: all}
	for _, b := range all {
		selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
		if err != nil || selector.Empty() {
			selector = labels.Nothing()
		}
		d.last.selectors = append(d.last.selectors, selector)
	}
	return d.last, nil
}

// split returns those whose end a disruption budget does not allow, and the others. What a budget allows goes to the
// first ones.
func split(victims []victim, budgets *budgets) (protected, free []victim) {
	left := make([]int32, len(budgets.all))
	for i, b := range budgets.all {
		left[i] = b.Status.DisruptionsAllowed
	}
	for _, v := range victims {
		v.violations = 0
		for _, p := range v.pods {
			if budgets.violates(p.GetPod(), left) {
				v.violations++
			}
		}
		if v.violations > 0 {
			protected = append(protected, v)
		} else {
			free = append(free, v)
		}
	}
	return protected, free
}

// violates takes the end of a pod from what is left of each budget, and reports whether one has nothing left.
func (b *budgets) violates(pod *v1.Pod, left []int32) bool {
	violated := false
	for i, budget := range b.all {
		if budget.Namespace != pod.Namespace || len(pod.Labels) == 0 || !b.selectors[i].Matches(labels.Set(pod.Labels)) {
			continue
		}
		if _, counted := budget.Status.DisruptedPods[pod.Name]; counted {
			continue
		}
		left[i]--
		violated = violated || left[i] < 0
	}
	return violated
}
