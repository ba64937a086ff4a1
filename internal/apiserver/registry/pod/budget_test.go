package pod

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

type budgetChange func(*policyv1.PodDisruptionBudget)

func counted(allowed, healthy, desired int32) budgetChange {
	return func(b *policyv1.PodDisruptionBudget) {
		b.Status = policyv1.PodDisruptionBudgetStatus{ObservedGeneration: 2, DisruptionsAllowed: allowed, CurrentHealthy: healthy, DesiredHealthy: desired}
	}
}

func says(reason, message string) budgetChange {
	return func(b *policyv1.PodDisruptionBudget) {
		b.Status.Conditions = []metav1.Condition{{Type: policyv1.DisruptionAllowedCondition, Status: metav1.ConditionFalse, Reason: reason, Message: message}}
	}
}

func changed(b *policyv1.PodDisruptionBudget) { b.Generation = 3 }

func policy(p policyv1.UnhealthyPodEvictionPolicyType) budgetChange {
	return func(b *policyv1.PodDisruptionBudget) { b.Spec.UnhealthyPodEvictionPolicy = &p }
}

func crowded(b *policyv1.PodDisruptionBudget) {
	b.Status.DisruptedPods = map[string]metav1.Time{}
	for i := range maxDisrupted + 1 {
		b.Status.DisruptedPods[fmt.Sprint("x", i)] = metav1.Now()
	}
}

func aBudget(changes ...budgetChange) *policyv1.PodDisruptionBudget {
	b := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: "b", Generation: 2}}
	for _, c := range changes {
		c(b)
	}
	return b
}

func TestGrant(t *testing.T) {
	const tooMany = "Cannot evict pod as it would violate the pod's disruption budget."
	for name, tt := range map[string]struct {
		budget *policyv1.PodDisruptionBudget
		code   int32
		cause  string
		wait   int32
	}{
		"one of two":             {aBudget(counted(2, 4, 2)), 0, "", 0},
		"the last one":           {aBudget(counted(1, 3, 2)), 0, "", 0},
		"none":                   {aBudget(counted(0, 2, 2)), 429, "The disruption budget b needs 2 healthy pods and has 2 currently", 0},
		"not counted yet":        {aBudget(counted(1, 3, 2), changed), 429, "The disruption budget b is still being processed by the server.", 10},
		"less than none":         {aBudget(counted(-1, 3, 2)), 403, "pdb disruptions allowed is negative", 0},
		"nobody confirms":        {aBudget(counted(5, 9, 2), crowded), 403, "DisruptedPods map too big - too many evictions not confirmed by PDB controller", 0},
		"it cannot be counted":   {aBudget(counted(0, 0, 0), says(policyv1.SyncFailedReason, "oh")), 429, "The disruption budget b does not allow evicting pods currently because it failed sync: oh", 0},
		"for another reason":     {aBudget(counted(0, 3, 2), says("Because", "so")), 429, "The disruption budget b does not allow evicting pods currently (Because): so", 0},
		"for no known reason":    {aBudget(counted(0, 3, 2)), 429, "The disruption budget b does not allow evicting pods currently", 0},
		"as many as fit exactly": {aBudget(counted(1, 3, 2), func(b *policyv1.PodDisruptionBudget) { crowded(b); delete(b.Status.DisruptedPods, "x0") }), 0, "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			before := tt.budget.Status.DisruptionsAllowed
			err := grant(tt.budget, "p", time.Now())
			if tt.code == 0 {
				_, noted := tt.budget.Status.DisruptedPods["p"]
				if err != nil || !noted || tt.budget.Status.DisruptionsAllowed != before-1 {
					t.Errorf("%v, %+v", err, tt.budget.Status)
				}
				return
			}
			status := &apierrors.StatusError{}
			if !errors.As(err, &status) || status.ErrStatus.Code != tt.code {
				t.Fatalf("got %v", err)
			}
			if tt.code == 403 {
				if !strings.Contains(err.Error(), tt.cause) {
					t.Errorf("got %v", err)
				}
				return
			}
			d := status.ErrStatus.Details
			if err.Error() != tooMany || len(d.Causes) != 1 || d.Causes[0].Type != "DisruptionBudget" || d.Causes[0].Message != tt.cause || d.RetryAfterSeconds != tt.wait {
				t.Errorf("%v: %+v", err, d)
			}
		})
	}
}

func TestMayGoUnready(t *testing.T) {
	ready := &corev1.Pod{Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}}
	unready := &corev1.Pod{}
	for name, tt := range map[string]struct {
		budget *policyv1.PodDisruptionBudget
		pod    *corev1.Pod
		want   bool
	}{
		"ready":                        {aBudget(counted(1, 3, 2), policy(policyv1.AlwaysAllow)), ready, false},
		"always":                       {aBudget(counted(0, 0, 2), policy(policyv1.AlwaysAllow)), unready, true},
		"enough are healthy":           {aBudget(counted(0, 2, 2)), unready, true},
		"not enough are":               {aBudget(counted(0, 1, 2)), unready, false},
		"not enough are, by policy":    {aBudget(counted(0, 1, 2), policy(policyv1.IfHealthyBudget)), unready, false},
		"none need to be, it is early": {aBudget(counted(0, 0, 0)), unready, false},
	} {
		if got := mayGoUnready(tt.budget, tt.pod); got != tt.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
