package garbagecollector

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
)

// client is the api of a real API server.
type client struct {
	metadata metadata.Interface
	mapper   interface {
		RESTMapping(kind schema.GroupKind, versions ...string) (*meta.RESTMapping, error)
	}
}

var _ api = client{}

func (c client) mapping(id identity) (*meta.RESTMapping, error) {
	gvk := schema.FromAPIVersionAndKind(id.APIVersion, id.Kind)
	m, err := c.mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	if meta.IsNoMatchError(err) {
		return nil, fmt.Errorf("%s %s: %w", id.APIVersion, id.Kind, errNotServed)
	}
	return m, err
}

func (c client) resolve(id identity) (identity, error) {
	m, err := c.mapping(id)
	if err != nil {
		return id, err
	}
	if m.Scope.Name() != meta.RESTScopeNameNamespace {
		id.Namespace = ""
	} else if id.Namespace == "" {
		return id, errNoNamespace
	}
	return id, nil
}

func (c client) resource(id identity) (metadata.ResourceInterface, error) {
	m, err := c.mapping(id)
	if err != nil {
		return nil, err
	}
	return c.metadata.Resource(m.Resource).Namespace(id.Namespace), nil
}

func (c client) get(ctx context.Context, id identity) (facts, error) {
	r, err := c.resource(id)
	if err != nil {
		return facts{}, err
	}
	obj, err := r.Get(ctx, id.Name, metav1.GetOptions{})
	if err != nil {
		return facts{}, verdict(err, id.Name)
	}
	return factsOf(schema.FromAPIVersionAndKind(id.APIVersion, id.Kind), obj), nil
}

func (c client) delete(ctx context.Context, live facts, policy metav1.DeletionPropagation) error {
	r, err := c.resource(live.identity)
	if err != nil {
		return err
	}
	return verdict(r.Delete(ctx, live.Name, metav1.DeleteOptions{
		Preconditions:     &metav1.Preconditions{UID: &live.UID, ResourceVersion: &live.version},
		PropagationPolicy: &policy,
	}), live.Name)
}

// A strategic merge patch finds references by their UID, and needs no version. The API server
// refuses a patch with the UID of another object.

func (c client) dropReferences(ctx context.Context, id identity, owners []types.UID) error {
	type drop struct {
		Patch string    `json:"$patch"`
		UID   types.UID `json:"uid"`
	}
	var refs []drop
	for _, uid := range owners {
		refs = append(refs, drop{"delete", uid})
	}
	err := c.patch(ctx, id, types.StrategicMergePatchType, fields{"uid": id.UID, "ownerReferences": refs})
	if !apierrors.IsUnsupportedMediaType(err) {
		return err
	}
	live, err := c.get(ctx, id)
	if err != nil {
		return err
	}
	return c.setReferences(ctx, live, id.UID, slices.DeleteFunc(slices.Clone(live.owners), func(r metav1.OwnerReference) bool {
		return slices.Contains(owners, r.UID)
	}))
}

func (c client) unblockReferences(ctx context.Context, live facts) error {
	refs := slices.Clone(live.owners)
	for i := range refs {
		refs[i].BlockOwnerDeletion = new(bool)
	}
	err := c.patch(ctx, live.identity, types.StrategicMergePatchType, fields{
		"uid": live.UID, "resourceVersion": live.version, "ownerReferences": refs,
	})
	if !apierrors.IsUnsupportedMediaType(err) {
		return err
	}
	return c.setReferences(ctx, live, live.UID, refs)
}

// setReferences serves kinds without strategic merge patches.
func (c client) setReferences(ctx context.Context, live facts, uid types.UID, refs []metav1.OwnerReference) error {
	if live.UID != uid {
		return errAbsent
	}
	return c.patch(ctx, live.identity, types.MergePatchType, fields{
		"uid": uid, "resourceVersion": live.version, "ownerReferences": refs,
	})
}

func (c client) removeFinalizer(ctx context.Context, live facts, finalizer string) error {
	left := slices.DeleteFunc(slices.Clone(live.finalizers), func(f string) bool { return f == finalizer })
	return c.patch(ctx, live.identity, types.MergePatchType, fields{
		"uid": live.UID, "resourceVersion": live.version, "finalizers": left,
	})
}

type fields map[string]any

func (c client) patch(ctx context.Context, id identity, kind types.PatchType, metadata fields) error {
	r, err := c.resource(id)
	if err != nil {
		return err
	}
	body, err := json.Marshal(fields{"metadata": metadata})
	if err != nil {
		return err
	}
	_, err = r.Patch(ctx, id.Name, kind, body, metav1.PatchOptions{})
	return verdict(err, id.Name)
}

// verdict tells what the API server says of the object from failures. A 404 that does not come from
// the object's storage (a group that is not served any more, a proxy) is a failure.
func verdict(err error, name string) error {
	switch {
	case err == nil:
		return nil
	case apierrors.IsConflict(err):
		return fmt.Errorf("%w: %w", errChanged, err)
	case !apierrors.IsNotFound(err):
		return err
	}
	status, ok := apierrors.StatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
	if ok {
		return fmt.Errorf("no answer about %s: %s: %w", name, status.Message, withoutStatus{err})
	}
	return fmt.Errorf("%w: %w", errAbsent, err)
}

// withoutStatus keeps an error's words only.
type withoutStatus struct{ err error }

func (w withoutStatus) Error() string { return w.err.Error() }

// factsOf returns what counts of an object of the kind.
func factsOf(gvk schema.GroupVersionKind, obj metav1.Object) facts {
	version, kind := gvk.ToAPIVersionAndKind()
	return facts{
		identity:   identity{APIVersion: version, Kind: kind, Namespace: obj.GetNamespace(), Name: obj.GetName(), UID: obj.GetUID()},
		version:    obj.GetResourceVersion(),
		owners:     obj.GetOwnerReferences(),
		deleting:   obj.GetDeletionTimestamp() != nil,
		finalizers: obj.GetFinalizers(),
	}
}
