package pod

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	policyv1beta1 "k8s.io/api/policy/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/util/wait"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/util/dryrun"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/apiserver/registry"
)

// Eviction is the endpoint pods/NAME/eviction: it marks the pod as disrupted, and deletes it, if the
// pod's disruption budget allows that.
type Eviction struct {
	pods    *genericregistry.Store
	status  *genericregistry.Store
	budgets budgets
}

var (
	_ rest.NamedCreater             = (*Eviction)(nil)
	_ rest.GroupVersionKindProvider = (*Eviction)(nil)
	_ rest.GroupVersionAcceptor     = (*Eviction)(nil)
)

// NewEviction returns the endpoint over the stores of pods and of their status. It finds budgets by
// lookup.
func NewEviction(pods, status *genericregistry.Store, lookup *registry.Lookup) *Eviction {
	return &Eviction{pods, status, budgets{lookup}}
}

// New implements rest.Storage.
func (e *Eviction) New() runtime.Object { return &policyv1.Eviction{} }

// Destroy implements rest.Storage.
func (e *Eviction) Destroy() {}

// GroupVersionKind implements rest.GroupVersionKindProvider.
func (e *Eviction) GroupVersionKind(schema.GroupVersion) schema.GroupVersionKind {
	return policyv1.SchemeGroupVersion.WithKind("Eviction")
}

// AcceptsGroupVersion implements rest.GroupVersionAcceptor. Older clients send v1beta1, which is the same.
func (e *Eviction) AcceptsGroupVersion(gv schema.GroupVersion) bool {
	return gv == policyv1.SchemeGroupVersion || gv == policyv1beta1.SchemeGroupVersion
}

// Create implements rest.NamedCreater.
func (e *Eviction) Create(ctx context.Context, name string, obj runtime.Object, validate rest.ValidateObjectFunc, opts *metav1.CreateOptions) (runtime.Object, error) {
	eviction, ok := obj.(*policyv1.Eviction)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("not a Eviction object: %T", obj))
	}
	if eviction.Name != name {
		return nil, apierrors.NewBadRequest("name in URL does not match name in Eviction object")
	}
	if validate != nil {
		if err := validate(ctx, eviction.DeepCopyObject()); err != nil {
			return nil, err
		}
	}
	if d := eviction.DeleteOptions; d != nil && ptr.Deref(d.IgnoreStoreReadErrorWithClusterBreakingPotential, false) {
		at := field.NewPath("deleteOptions", "ignoreStoreReadErrorWithClusterBreakingPotential")
		return nil, apierrors.NewInvalid(policyv1.SchemeGroupVersion.WithKind("Eviction").GroupKind(), name,
			field.ErrorList{field.Invalid(at, true, "can not be set for pod eviction, try after removing the option")})
	}
	deletion, err := deletionOf(eviction, opts)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	guarded, err := e.evictUnguarded(ctx, name, deletion)
	if err != nil {
		return nil, err
	}
	if guarded != nil {
		if refusal, err := e.evictGuarded(ctx, guarded, deletion); refusal != nil || err != nil {
			return refusal, err
		}
	}
	return &metav1.Status{Status: metav1.StatusSuccess}, nil
}

// patience is how long an eviction is tried again when others change the pod at the same time.
var patience = wait.Backoff{Steps: 20, Duration: 50 * time.Millisecond, Factor: 1, Jitter: 0.1}

// evictUnguarded evicts a pod that no budget guards, because it does not run any more or not yet. It
// returns a pod that one may guard.
func (e *Eviction) evictUnguarded(ctx context.Context, name string, deletion *metav1.DeleteOptions) (guarded *corev1.Pod, err error) {
	retriable := apierrors.IsConflict
	if versioned(deletion) {
		retriable = func(error) bool { return false } // the client wants to know about a conflict
	}
	err = retry.OnError(patience, retriable, func() error {
		p, err := getPod(ctx, e.pods, name)
		if err != nil {
			return err
		}
		ending := pods.IsTerminal(p.Status.Phase) || p.DeletionTimestamp != nil
		if !ending && p.Status.Phase != corev1.PodPending {
			guarded = p
			return nil
		}
		opts := deletion.DeepCopy()
		if !ending && !versioned(opts) {
			atVersion(opts, p) // it might become ready in this moment
		}
		return e.evict(ctx, p, opts)
	})
	return guarded, err
}

// evictGuarded evicts a pod if its budget allows that. The refusal is not an error, but is what the
// client gets.
func (e *Eviction) evictGuarded(ctx context.Context, p *corev1.Pod, deletion *metav1.DeleteOptions) (refusal runtime.Object, err error) {
	guards, err := e.budgets.of(ctx, p)
	switch {
	case err != nil:
		return nil, err
	case len(guards) > 1:
		return &metav1.Status{
			Status: metav1.StatusFailure, Code: 500,
			Message: "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
		}, nil
	case len(guards) == 0:
		return nil, e.evict(ctx, p, deletion.DeepCopy())
	}
	opts := deletion.DeepCopy()
	if mayGoUnready(guards[0], p) {
		atVersion(opts, p) // only if it has not become ready since
		err := e.evict(ctx, p, opts)
		if apierrors.IsConflict(err) && !versioned(deletion) {
			return nil, tooManyRequests(guards[0])
		}
		return nil, err
	}
	if err := e.budgets.spend(ctx, guards[0], p.Name, dryrun.IsDryRun(deletion.DryRun)); err != nil {
		return nil, err
	}
	return nil, e.evict(ctx, p, opts)
}

func versioned(d *metav1.DeleteOptions) bool {
	return d.Preconditions != nil && d.Preconditions.ResourceVersion != nil
}

// atVersion lets a deletion succeed only as long as the pod is as it was read.
func atVersion(d *metav1.DeleteOptions, p *corev1.Pod) {
	if d.Preconditions == nil {
		d.Preconditions = &metav1.Preconditions{}
	}
	d.Preconditions.ResourceVersion = &p.ResourceVersion
}

func deletionOf(e *policyv1.Eviction, opts *metav1.CreateOptions) (*metav1.DeleteOptions, error) {
	if e.DeleteOptions == nil {
		return &metav1.DeleteOptions{DryRun: opts.DryRun}, nil
	}
	d := e.DeleteOptions
	switch {
	case len(d.DryRun) == 0:
		d.DryRun = opts.DryRun
	case len(opts.DryRun) > 0 && !slices.Equal(d.DryRun, opts.DryRun):
		return nil, fmt.Errorf("Non-matching dry-run options in request and content: %v and %v", opts.DryRun, d.DryRun) //nolint:staticcheck // upstream's words
	}
	return d, nil
}

// evict marks and deletes a pod. It may change the options.
func (e *Eviction) evict(ctx context.Context, p *corev1.Pod, deletion *metav1.DeleteOptions) error {
	if !dryrun.IsDryRun(deletion.DryRun) && p.DeletionTimestamp == nil {
		updated, err := e.mark(ctx, p.Name, deletion.Preconditions)
		if err != nil {
			return err
		}
		if versioned(deletion) {
			deletion.Preconditions.ResourceVersion = &updated.ResourceVersion // our own write has changed it
		}
	}
	_, _, err := e.pods.Delete(ctx, p.Name, rest.ValidateAllObjectFunc, deletion)
	return err
}

// mark sets the condition that distinguishes a disrupted pod from one that failed.
func (e *Eviction) mark(ctx context.Context, name string, pre *metav1.Preconditions) (*corev1.Pod, error) {
	change := func(_ context.Context, _, old runtime.Object) (runtime.Object, error) {
		p := old.(*corev1.Pod).DeepCopy()
		if pre != nil && pre.UID != nil && *pre.UID != p.UID {
			return nil, conflict(name, "the UID in the precondition (%s) does not match the UID in record (%s). The object might have been deleted and then recreated", *pre.UID, p.UID)
		}
		if pre != nil && pre.ResourceVersion != nil && *pre.ResourceVersion != p.ResourceVersion {
			return nil, conflict(name, "the ResourceVersion in the precondition (%s) does not match the ResourceVersion in record (%s). The object might have been modified", *pre.ResourceVersion, p.ResourceVersion)
		}
		setCondition(&p.Status, corev1.PodCondition{
			Type:    corev1.DisruptionTarget,
			Status:  corev1.ConditionTrue,
			Reason:  "EvictionByEvictionAPI",
			Message: "Eviction API: evicting",
		})
		return p, nil
	}
	obj, _, err := e.status.Update(ctx, name, rest.DefaultUpdatedObjectInfo(nil, change),
		rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{})
	if err != nil {
		return nil, err
	}
	return obj.(*corev1.Pod), nil
}

func conflict(name, format string, args ...any) error {
	return apierrors.NewConflict(schema.GroupResource{Resource: "Pod"}, name, fmt.Errorf(format, args...))
}
