package pod

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/storage"
	storeerr "k8s.io/apiserver/pkg/storage/errors"
	"k8s.io/component-helpers/apps/poddisruptionbudget"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/apiserver/registry"
)

// maxDisrupted is how many granted evictions a budget remembers. When there are more, nobody looks
// after it.
const maxDisrupted = 2000

var budgetResource = policyv1.SchemeGroupVersion.WithResource("poddisruptionbudgets").GroupResource()

// budgets are what guards pods from eviction. A controller counts what they allow; each eviction takes
// one from that, before the controller counts again.
type budgets struct{ lookup *registry.Lookup }

// of returns the budgets that select a pod.
func (b budgets) of(ctx context.Context, p *corev1.Pod) ([]*policyv1.PodDisruptionBudget, error) {
	everything := storage.SelectionPredicate{Label: labels.Everything(), Field: fields.Everything()}
	list, err := registry.ListLive[*policyv1.PodDisruptionBudgetList](ctx, b.lookup, budgetResource, p.Namespace, everything)
	if err != nil {
		return nil, err
	}
	var out []*policyv1.PodDisruptionBudget
	for i := range list.Items {
		// A selector that is invalid matches nothing.
		s, err := metav1.LabelSelectorAsSelector(list.Items[i].Spec.Selector)
		if err == nil && s.Matches(labels.Set(p.Labels)) {
			out = append(out, &list.Items[i])
		}
	}
	return out, nil
}

// mayGoUnready reports whether a pod may be evicted without being counted, because it is not ready.
func mayGoUnready(b *policyv1.PodDisruptionBudget, p *corev1.Pod) bool {
	if _, ready := pods.ReadySince(p); ready {
		return false
	}
	if policy := b.Spec.UnhealthyPodEvictionPolicy; policy != nil && *policy == policyv1.AlwaysAllow {
		return true
	}
	return b.Status.CurrentHealthy >= b.Status.DesiredHealthy && b.Status.DesiredHealthy > 0
}

// spend takes one disruption from a budget as storage has it now, or says why there is none.
func (b budgets) spend(ctx context.Context, budget *policyv1.PodDisruptionBudget, pod string, dryRun bool) error {
	if dryRun {
		return grant(budget.DeepCopy(), pod, time.Now())
	}
	store := b.lookup.Store(budgetResource)
	if store == nil {
		return fmt.Errorf("%s are not served", budgetResource)
	}
	key, err := store.KeyFunc(genericapirequest.WithNamespace(ctx, budget.Namespace), budget.Name)
	if err != nil {
		return err
	}
	update := func(obj runtime.Object) (runtime.Object, error) {
		live, ok := obj.(*policyv1.PodDisruptionBudget)
		if !ok {
			return nil, fmt.Errorf("unexpected %T", obj)
		}
		return live, grant(live, pod, time.Now())
	}
	err = store.Storage.GuaranteedUpdate(ctx, key, &policyv1.PodDisruptionBudget{}, false,
		storage.NewUIDPreconditions(string(budget.UID)), storage.SimpleUpdate(update), false, nil)
	if status := apierrors.APIStatus(nil); errors.As(err, &status) {
		return err
	}
	return storeerr.InterpretUpdateError(err, budgetResource, budget.Name)
}

// grant notes in a budget that a pod is about to be deleted, or says why it may not be.
func grant(b *policyv1.PodDisruptionBudget, pod string, now time.Time) error {
	forbidden := func(text string) error {
		return apierrors.NewForbidden(schema.GroupResource{Group: policyv1.GroupName, Resource: "poddisruptionbudget"}, b.Name, errors.New(text))
	}
	st := &b.Status
	switch {
	case st.ObservedGeneration < b.Generation:
		return tooManyRequests(b)
	case st.DisruptionsAllowed < 0:
		return forbidden("pdb disruptions allowed is negative")
	case len(st.DisruptedPods) > maxDisrupted:
		return forbidden("DisruptedPods map too big - too many evictions not confirmed by PDB controller")
	case st.DisruptionsAllowed == 0:
		return refusal(0, whyNot(b))
	}
	if st.DisruptionsAllowed--; st.DisruptionsAllowed == 0 {
		poddisruptionbudget.UpdateDisruptionAllowedCondition(b)
	}
	if st.DisruptedPods == nil {
		st.DisruptedPods = map[string]metav1.Time{}
	}
	st.DisruptedPods[pod] = metav1.NewTime(now)
	return nil
}

// whyNot says why a budget allows no disruption.
func whyNot(b *policyv1.PodDisruptionBudget) string {
	c := meta.FindStatusCondition(b.Status.Conditions, policyv1.DisruptionAllowedCondition)
	said := c != nil && c.Status == metav1.ConditionFalse && c.Message != ""
	switch {
	case said && c.Reason == policyv1.SyncFailedReason:
		return fmt.Sprintf("The disruption budget %s does not allow evicting pods currently because it failed sync: %s", b.Name, c.Message)
	case b.Status.CurrentHealthy <= b.Status.DesiredHealthy:
		return fmt.Sprintf("The disruption budget %s needs %d healthy pods and has %d currently", b.Name, b.Status.DesiredHealthy, b.Status.CurrentHealthy)
	case said:
		return fmt.Sprintf("The disruption budget %s does not allow evicting pods currently (%s): %s", b.Name, c.Reason, c.Message)
	}
	return fmt.Sprintf("The disruption budget %s does not allow evicting pods currently", b.Name)
}

// tooManyRequests says that the controller has yet to look at the budget as it is.
func tooManyRequests(b *policyv1.PodDisruptionBudget) error {
	return refusal(10, fmt.Sprintf("The disruption budget %s is still being processed by the server.", b.Name))
}

// refusal asks the client to come back, after some seconds if it is not 0.
func refusal(seconds int, cause string) error {
	err := apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", seconds)
	err.ErrStatus.Details.Causes = append(err.ErrStatus.Details.Causes, metav1.StatusCause{Type: policyv1.DisruptionBudgetCause, Message: cause})
	return err
}
