package bootstrap

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"golang.org/x/time/rate"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// flowManager is the field manager of the objects that every server starts with; upstream's name.
const flowManager = "api-priority-and-fairness-config-producer-v1"

// Flow keeps the flow schemas and priority levels that every server starts with as they are.
// Upstream looks once a minute; this looks when one of them has come, changed or gone.
type Flow struct {
	client kubernetes.Interface
	wake   chan struct{}
}

// NewFlow returns what keeps the objects through client, and hears of them from informers that are started later.
func NewFlow(client kubernetes.Interface, shared informers.SharedInformerFactory) *Flow {
	k := &Flow{client: client, wake: make(chan struct{}, 1)}
	changed := cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { k.changed() },
		UpdateFunc: func(_, _ any) { k.changed() },
		DeleteFunc: func(any) { k.changed() },
	}
	flows := shared.Flowcontrol().V1()
	for _, informer := range []cache.SharedIndexInformer{flows.FlowSchemas().Informer(), flows.PriorityLevelConfigurations().Informer()} {
		if _, err := informer.AddEventHandler(changed); err != nil {
			panic(err) // impossible: the informer has not been started, let alone stopped
		}
	}
	return k
}

func (k *Flow) changed() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// make creates the objects that are missing, and restores others.
func (k *Flow) make(ctx context.Context) error {
	_, err := k.ensure(ctx)
	return err
}

// keep keeps the objects until ctx ends. Another server that wants something
// else, as one of another version does, is overruled no more often than upstream would.
func (k *Flow) keep(ctx context.Context) error {
	const burst = 10
	limit := rate.NewLimiter(rate.Every(time.Minute), burst)
	for {
		select {
		case <-k.wake:
		case <-ctx.Done():
			return nil
		}
		repaired, err := k.ensure(ctx)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // told to stop
		}
		if err != nil {
			klog.FromContext(ctx).Error(err, "Failed to restore objects of priority and fairness, will retry")
			k.changed()
		}
		if repaired || err != nil {
			if limit.Wait(ctx) != nil {
				return nil //nolint:nilerr // told to stop
			}
		}
	}
}

// ensure does what is needed, and returns whether that was anything. Priority levels come first,
// because the schemas name them.
func (k *Flow) ensure(ctx context.Context) (repaired bool, err error) {
	api := k.client.FlowcontrolV1()
	cached := metav1.ListOptions{ResourceVersion: "0"}
	levels, err := api.PriorityLevelConfigurations().List(ctx, cached)
	if err != nil {
		return false, fmt.Errorf("list priority levels: %w", err)
	}
	flows, err := api.FlowSchemas().List(ctx, cached)
	if err != nil {
		return false, fmt.Errorf("list flow schemas: %w", err)
	}
	for _, plan := range flowPlans(bootstrap.MandatoryPriorityLevelConfigurations,
		bootstrap.SuggestedPriorityLevelConfigurations, pointers(levels.Items), restoreLevel) {
		repaired = true
		if err := carryOut(ctx, plan, api.PriorityLevelConfigurations()); err != nil {
			return repaired, err
		}
	}
	for _, plan := range flowPlans(bootstrap.MandatoryFlowSchemas, bootstrap.SuggestedFlowSchemas, pointers(flows.Items), restoreSchema) {
		repaired = true
		if err := carryOut(ctx, plan, api.FlowSchemas()); err != nil {
			return repaired, err
		}
	}
	return repaired, nil
}

func pointers[T any](items []T) []*T {
	out := make([]*T, len(items))
	for i := range items {
		out[i] = &items[i]
	}
	return out
}

// flowPlan is a change of one object: exactly one field is set.
type flowPlan[T any] struct{ create, update, remove T }

// flowPlans decides which objects to create, to change and to remove. The mandatory ones are always
// restored; the suggested ones unless their annotation apf.kubernetes.io/autoupdate-spec is false or,
// where it is missing, somebody has changed their spec. What the annotation says to be kept, and is
// not among them, is a leftover of another version.
func flowPlans[T metav1.Object](mandatory, suggested, have []T, restore func(want, have T) (T, bool)) []flowPlan[T] {
	var out []flowPlan[T]
	wanted := slices.Concat(mandatory, suggested)
	for i, want := range wanted {
		at := slices.IndexFunc(have, func(o T) bool { return o.GetName() == want.GetName() })
		if at < 0 {
			out = append(out, flowPlan[T]{create: want})
			continue
		}
		keep := i < len(mandatory) || keepsSpec(have[at])
		next, changed := restore(want, have[at])
		if !keep {
			next, changed = restore(have[at], have[at])
		}
		if now, ok := autoUpdate(have[at]); !ok || now != keep {
			annotations := next.GetAnnotations()
			if annotations == nil {
				annotations = map[string]string{}
			}
			annotations[flowcontrolv1.AutoUpdateAnnotationKey] = strconv.FormatBool(keep)
			next.SetAnnotations(annotations)
			changed = true
		}
		if changed {
			out = append(out, flowPlan[T]{update: next})
		}
	}
	for _, o := range have {
		ours := slices.ContainsFunc(wanted, func(w T) bool { return w.GetName() == o.GetName() })
		if now, ok := autoUpdate(o); ok && now && !ours {
			out = append(out, flowPlan[T]{remove: o})
		}
	}
	return out
}

// autoUpdate returns what the annotation says, and whether it says anything.
func autoUpdate(o metav1.Object) (update, ok bool) {
	update, err := strconv.ParseBool(o.GetAnnotations()[flowcontrolv1.AutoUpdateAnnotationKey])
	return update, err == nil
}

// keepsSpec reports whether the server keeps the spec of a suggested object.
func keepsSpec(o metav1.Object) bool {
	update, ok := autoUpdate(o)
	return ok && update || !ok && o.GetGeneration() == 1
}

// restoreSchema returns a copy of have with the spec of want, and whether it differs from have.
func restoreSchema(want, have *flowcontrolv1.FlowSchema) (*flowcontrolv1.FlowSchema, bool) {
	out := have.DeepCopy()
	out.Spec = *want.Spec.DeepCopy()
	return out, !apiequality.Semantic.DeepEqual(out.Spec, have.Spec)
}

// restoreLevel does the same for priority levels. The shares of the exempt one are the
// administrator's.
func restoreLevel(want, have *flowcontrolv1.PriorityLevelConfiguration) (*flowcontrolv1.PriorityLevelConfiguration, bool) {
	out := have.DeepCopy()
	out.Spec = *want.Spec.DeepCopy()
	if want.Name == flowcontrolv1.PriorityLevelConfigurationNameExempt && have.Spec.Exempt != nil {
		out.Spec.Exempt = have.Spec.Exempt.DeepCopy()
	}
	return out, !apiequality.Semantic.DeepEqual(out.Spec, have.Spec)
}

// carryOut makes the change. What somebody else has changed at the same time is looked at again with
// the event of that change.
func carryOut[T interface {
	metav1.Object
	comparable
	DeepCopy() T
}](ctx context.Context, plan flowPlan[T], client keeper[T]) error {
	var none, of T
	var err error
	switch {
	case plan.create != none:
		of = plan.create
		_, err = client.Create(ctx, of.DeepCopy(), metav1.CreateOptions{FieldManager: flowManager})
	case plan.update != none:
		of = plan.update
		_, err = client.Update(ctx, of, metav1.UpdateOptions{FieldManager: flowManager})
	default:
		of = plan.remove
		version := of.GetResourceVersion()
		err = client.Delete(ctx, of.GetName(), metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: &version}})
	}
	if err != nil && !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) && !apierrors.IsNotFound(err) {
		return fmt.Errorf("%T %s: %w", of, of.GetName(), err)
	}
	return nil
}
