package disruption

import (
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/component-helpers/apps/poddisruptionbudget"

	"wherry.dev/internal/api/pods"
)

const (
	// DeletionTimeout is for how long an eviction that was granted may take to delete its pod. After that
	// it is believed to have failed.
	DeletionTimeout = 2 * time.Minute
	// StaleTimeout is after how long a pod that was to be disrupted, and still lives, will not be.
	StaleTimeout = 2 * time.Minute
)

// facts are all that a plan follows from.
type facts struct {
	budget *policyv1.PodDisruptionBudget
	// pods are those that the budget selects.
	pods []*v1.Pod
	// scales are the replicas that the controllers of the pods should have, by their UIDs. They are
	// needed only if the budget asks for a share (needsScale).
	scales map[types.UID]int32
	now    time.Time
}

// plan is what has to be done.
type plan struct {
	// status is the budget with another status, or nil if it has it already.
	status *policyv1.PodDisruptionBudget
	events []event
	// recheck is after how long to look again although nothing happened; 0 if never.
	recheck time.Duration
}

// event is told about a pod or, if that is nil, about the budget.
type event struct {
	pod                   *v1.Pod
	kind, reason, message string
}

// needsScale reports whether a budget cannot be told from its pods alone.
func needsScale(b *policyv1.PodDisruptionBudget) bool {
	return b.Spec.MaxUnavailable != nil || b.Spec.MinAvailable != nil && b.Spec.MinAvailable.Type == intstr.String
}

// planFor decides which status a budget has.
func planFor(f facts) (plan, error) {
	var p plan
	expected, desired, err := f.expect()
	if err != nil {
		return p, err
	}
	next := f.budget.DeepCopy()
	next.Status = policyv1.PodDisruptionBudgetStatus{
		ExpectedPods: expected, DesiredHealthy: desired, ObservedGeneration: f.budget.Generation,
		DisruptedPods: f.disrupted(&p), Conditions: next.Status.Conditions,
	}
	st := &next.Status
	st.CurrentHealthy = f.healthy(st.DisruptedPods)
	// Without pods nothing is allowed: when the first one comes, this may be known late.
	if expected > 0 {
		st.DisruptionsAllowed = max(0, st.CurrentHealthy-st.DesiredHealthy)
	}
	poddisruptionbudget.UpdateDisruptionAllowedCondition(next)
	if !equality.Semantic.DeepEqual(f.budget.Status, next.Status) {
		p.status = next
		f.remark(&p)
	}
	return p, nil
}

// expect returns how many pods there should be, and how many of them should be healthy.
func (f facts) expect() (expected, desired int32, err error) {
	spec := &f.budget.Spec
	expected = int32(len(f.pods))
	if needsScale(f.budget) {
		expected = 0
		for _, n := range f.scales {
			expected += n
		}
	}
	switch {
	case spec.MaxUnavailable != nil:
		n, err := intstr.GetScaledValueFromIntOrPercent(spec.MaxUnavailable, int(expected), true)
		return expected, max(0, expected-int32(n)), err
	case spec.MinAvailable != nil:
		n, err := intstr.GetScaledValueFromIntOrPercent(spec.MinAvailable, int(expected), true)
		return expected, int32(n), err
	}
	return 0, 0, nil
}

// disrupted returns the pods whose eviction was granted, and which have yet to be deleted.
func (f facts) disrupted(p *plan) map[string]metav1.Time {
	out := map[string]metav1.Time{}
	for _, pod := range f.pods {
		since, granted := f.budget.Status.DisruptedPods[pod.Name]
		if !granted || pod.DeletionTimestamp != nil {
			continue
		}
		left := since.Add(DeletionTimeout).Sub(f.now)
		if left <= 0 {
			p.events = append(p.events, event{pod, v1.EventTypeWarning, "NotDeleted",
				fmt.Sprintf("Pod was expected by PDB %s/%s to be deleted but it wasn't", f.budget.Namespace, f.budget.Name)})
			continue
		}
		out[pod.Name] = since
		if p.recheck == 0 || left < p.recheck {
			p.recheck = left
		}
	}
	return out
}

func (f facts) healthy(disrupted map[string]metav1.Time) (n int32) {
	for _, pod := range f.pods {
		_, granted := disrupted[pod.Name]
		if _, ready := pods.ReadySince(pod); ready && !granted && pod.DeletionTimestamp == nil {
			n++
		}
	}
	return n
}

// remark tells of a budget that does not mean much.
func (f facts) remark(p *plan) {
	if len(f.pods) == 0 {
		p.events = append(p.events, event{nil, v1.EventTypeNormal, "NoPods", "No matching pods found"})
	}
	unmanaged := func(pod *v1.Pod) bool { return metav1.GetControllerOfNoCopy(pod) == nil }
	if needsScale(f.budget) && slices.ContainsFunc(f.pods, unmanaged) {
		p.events = append(p.events, event{nil, v1.EventTypeWarning, "UnmanagedPods", fmt.Sprintf(
			"Pods selected by this PodDisruptionBudget (selector: %v) were found to be unmanaged. "+
				"As a result, the status of the PDB cannot be calculated correctly, which may result in undefined behavior. "+
				"To account for these pods please set \".spec.minAvailable\" field of the PDB to an integer value.", f.budget.Spec.Selector)})
	}
}

// failed returns the budget with a status that allows nothing and says why, or nil if it has it already.
func failed(b *policyv1.PodDisruptionBudget, why error) *policyv1.PodDisruptionBudget {
	next := b.DeepCopy()
	next.Status.DisruptionsAllowed = 0
	changed := meta.SetStatusCondition(&next.Status.Conditions, metav1.Condition{
		Type: policyv1.DisruptionAllowedCondition, Status: metav1.ConditionFalse, Reason: policyv1.SyncFailedReason,
		Message: why.Error(), ObservedGeneration: b.Status.ObservedGeneration,
	})
	if !changed && b.Status.DisruptionsAllowed == 0 {
		return nil
	}
	return next
}

// staleIn returns after how long a pod's condition DisruptionTarget is to be taken back: 0 is at once. It
// never is if the pod is on its way, has ended, or is ended by its kubelet, which may take long.
func staleIn(pod *v1.Pod, now time.Time) (wait time.Duration, ever bool) {
	c := pods.FindCondition(&pod.Status, v1.DisruptionTarget)
	if c == nil || c.Status != v1.ConditionTrue || c.Reason == v1.PodReasonTerminationByKubelet ||
		pod.DeletionTimestamp != nil || pods.IsTerminal(pod.Status.Phase) {
		return 0, false
	}
	return max(0, c.LastTransitionTime.Add(StaleTimeout).Sub(now)), true
}
