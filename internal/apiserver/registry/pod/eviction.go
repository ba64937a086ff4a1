package pod

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/util/dryrun"
	"k8s.io/client-go/util/retry"
)

// Eviction is the endpoint pods/NAME/eviction: it marks the pod as disrupted, and
// deletes it. Pod disruption budgets are stored, but nothing counts healthy pods for them, so none
// stands in the way.
type Eviction struct {
	pods   *genericregistry.Store
	status *genericregistry.Store
}

var (
	_ rest.NamedCreater             = (*Eviction)(nil)
	_ rest.GroupVersionKindProvider = (*Eviction)(nil)
	_ rest.GroupVersionAcceptor     = (*Eviction)(nil)
)

// NewEviction returns the endpoint over the stores of pods and of their status.
func NewEviction(pods, status *genericregistry.Store) *Eviction { return &Eviction{pods, status} }

// New implements rest.Storage.
func (e *Eviction) New() runtime.Object { return &policyv1.Eviction{} }

// Destroy implements rest.Storage.
func (e *Eviction) Destroy() {}

// GroupVersionKind implements rest.GroupVersionKindProvider.
func (e *Eviction) GroupVersionKind(schema.GroupVersion) schema.GroupVersionKind {
	return policyv1.SchemeGroupVersion.WithKind("Eviction")
}

// AcceptsGroupVersion implements rest.GroupVersionAcceptor.
func (e *Eviction) AcceptsGroupVersion(gv schema.GroupVersion) bool {
	return gv == policyv1.SchemeGroupVersion
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
	deletion, err := deletionOf(eviction, opts)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	evict := func() error { return e.evict(ctx, name, deletion.DeepCopy()) }
	if deletion.Preconditions != nil && deletion.Preconditions.ResourceVersion != nil {
		err = evict() // the client wants to know about a conflict
	} else {
		err = retry.RetryOnConflict(retry.DefaultBackoff, evict)
	}
	if err != nil {
		return nil, err
	}
	return &metav1.Status{Status: metav1.StatusSuccess}, nil
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

func (e *Eviction) evict(ctx context.Context, name string, deletion *metav1.DeleteOptions) error {
	p, err := getPod(ctx, e.pods, name)
	if err != nil {
		return err
	}
	if !dryrun.IsDryRun(deletion.DryRun) && p.DeletionTimestamp == nil {
		updated, err := e.mark(ctx, name, deletion.Preconditions)
		if err != nil {
			return err
		}
		if pre := deletion.Preconditions; pre != nil && pre.ResourceVersion != nil {
			pre.ResourceVersion = &updated.ResourceVersion // our own write has changed it
		}
	}
	_, _, err = e.pods.Delete(ctx, name, rest.ValidateAllObjectFunc, deletion)
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
