package history

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"wherry.dev/internal/controller/claim"
	"wherry.dev/internal/controller/written"
)

// ErrCollision says that another revision has the name already. The owner's collision count must
// grow before the next try.
var ErrCollision = errors.New("another controller revision has the name already")

// Keeper writes the revisions of owners of one kind.
type Keeper struct {
	Client clientset.Interface
	Kind   Kind
	// Index has all revisions, by their controllers (claim.AddIndex).
	Index cache.Indexer
	// Writes has what was written, by the owner's key.
	Writes *written.Log
}

func keyOf(o metav1.Object) string { return cache.MetaObjectToName(o).String() }

// Claim adopts and releases revisions, and returns those that the owner has then. live reads the owner
// from the API server itself.
func (k *Keeper) Claim(ctx context.Context, o Owner, live claim.Live) ([]*appsv1.ControllerRevision, error) {
	all, err := claim.Candidates[*appsv1.ControllerRevision](k.Index, o)
	if err != nil {
		return nil, err
	}
	owner := claim.Owner[*appsv1.ControllerRevision]{
		Object: o.Object, Kind: k.Kind.GroupVersionKind, Live: live,
		Matches: func(rev *appsv1.ControllerRevision) bool { return o.Selector.Matches(labels.Set(rev.Labels)) },
		Patch: func(ctx context.Context, rev *appsv1.ControllerRevision, patch []byte) error {
			api := k.Client.AppsV1().ControllerRevisions(rev.Namespace)
			got, err := api.Patch(ctx, rev.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
			if err == nil {
				k.Writes.Wrote(keyOf(o), got)
			}
			return err
		},
	}
	return owner.Claim(ctx, all)
}

// Settle creates or numbers the current revision of a plan, and returns it as the API server has it.
func (k *Keeper) Settle(ctx context.Context, o Owner, p Plan) (*appsv1.ControllerRevision, error) {
	api := k.Client.AppsV1().ControllerRevisions(o.GetNamespace())
	var got *appsv1.ControllerRevision
	var err error
	switch {
	case p.Create:
		if got, err = api.Create(ctx, p.Current, metav1.CreateOptions{}); apierrors.IsAlreadyExists(err) {
			got, err = k.taken(ctx, o, p.Current)
		}
	case p.Renumber:
		got, err = api.Update(ctx, p.Current, metav1.UpdateOptions{})
	default:
		return p.Current, nil
	}
	if err != nil {
		return nil, fmt.Errorf("write controller revision %s/%s: %w", o.GetNamespace(), p.Current.Name, err)
	}
	k.Writes.Wrote(keyOf(o), got)
	return got, nil
}

// taken looks at the revision that has the name of a new one. It may be just that, written before a
// restart. That of an owner of this name that is gone will be gone as well.
func (k *Keeper) taken(ctx context.Context, o Owner, rev *appsv1.ControllerRevision) (*appsv1.ControllerRevision, error) {
	live, err := k.Client.AppsV1().ControllerRevisions(rev.Namespace).Get(ctx, rev.Name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	ref := claim.ControllerOf(live, k.Kind.GroupVersionKind)
	switch {
	case metav1.IsControlledBy(live, o.Object) && bytes.Equal(live.Data.Raw, rev.Data.Raw):
		return live, nil
	case ref != nil && ref.Name == o.GetName() && ref.UID != o.GetUID():
		return nil, fmt.Errorf("it is still that of the %s that had this name before", k.Kind.Kind)
	case metav1.GetControllerOfNoCopy(live) == nil && o.Selector.Matches(labels.Set(live.Labels)):
		return nil, errors.New("it has yet to be adopted")
	}
	return nil, ErrCollision
}

// Remove deletes a revision, unless it was changed since.
func (k *Keeper) Remove(ctx context.Context, o Owner, rev *appsv1.ControllerRevision) error {
	err := k.Client.AppsV1().ControllerRevisions(rev.Namespace).Delete(ctx, rev.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &rev.UID, ResourceVersion: &rev.ResourceVersion},
	})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete controller revision %s/%s: %w", rev.Namespace, rev.Name, err)
	}
	k.Writes.Deleted(keyOf(o), rev)
	return nil
}
