package main

import (
	"context"
	"strconv"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	"wherry.dev/test/extension/api"
)

var resource = schema.GroupResource{Group: api.GroupVersion.Group, Resource: "notes"}

// notes keeps notes in memory: they can be created, read and deleted.
type notes struct {
	rest.TableConvertor

	mu      sync.Mutex
	version uint64
	all     map[types.NamespacedName]*api.Note
}

var (
	_ rest.Getter               = (*notes)(nil)
	_ rest.Lister               = (*notes)(nil)
	_ rest.Creater              = (*notes)(nil)
	_ rest.GracefulDeleter      = (*notes)(nil)
	_ rest.Scoper               = (*notes)(nil)
	_ rest.SingularNameProvider = (*notes)(nil)
	_ rest.ShortNamesProvider   = (*notes)(nil)
)

func newNotes() *notes {
	return &notes{TableConvertor: rest.NewDefaultTableConvertor(resource), all: map[types.NamespacedName]*api.Note{}}
}

func (*notes) New() runtime.Object     { return &api.Note{} }
func (*notes) NewList() runtime.Object { return &api.NoteList{} }
func (*notes) Destroy()                {}
func (*notes) NamespaceScoped() bool   { return true }
func (*notes) GetSingularName() string { return "note" }
func (*notes) ShortNames() []string    { return []string{"nt"} }

func key(ctx context.Context, name string) types.NamespacedName {
	return types.NamespacedName{Namespace: request.NamespaceValue(ctx), Name: name}
}

func (n *notes) Get(ctx context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.getLocked(key(ctx, name))
}

func (n *notes) getLocked(key types.NamespacedName) (*api.Note, error) {
	if have := n.all[key]; have != nil {
		return have.DeepCopy(), nil
	}
	return nil, apierrors.NewNotFound(resource, key.Name)
}

// List returns the notes of a namespace, or of all; only labels select.
func (n *notes) List(ctx context.Context, opts *internalversion.ListOptions) (runtime.Object, error) {
	selector := labels.Everything()
	if opts != nil && opts.LabelSelector != nil {
		selector = opts.LabelSelector
	}
	namespace := request.NamespaceValue(ctx)
	n.mu.Lock()
	defer n.mu.Unlock()
	list := &api.NoteList{ListMeta: metav1.ListMeta{ResourceVersion: strconv.FormatUint(n.version, 10)}}
	for key, note := range n.all {
		if (namespace == "" || key.Namespace == namespace) && selector.Matches(labels.Set(note.Labels)) {
			list.Items = append(list.Items, *note.DeepCopy())
		}
	}
	return list, nil
}

func (n *notes) Create(ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc, opts *metav1.CreateOptions) (runtime.Object, error) {
	note, ok := obj.(*api.Note)
	if !ok {
		return nil, apierrors.NewBadRequest("not a note")
	}
	rest.FillObjectMetaSystemFields(note)
	if err := validate(ctx, note); err != nil {
		return nil, err
	}
	key := key(ctx, note.Name)
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.all[key] != nil {
		return nil, apierrors.NewAlreadyExists(resource, note.Name)
	}
	if len(opts.DryRun) == 0 {
		n.version++
		note.ResourceVersion = strconv.FormatUint(n.version, 10)
		n.all[key] = note.DeepCopy()
	}
	return note, nil
}

func (n *notes) Delete(ctx context.Context, name string, validate rest.ValidateObjectFunc, opts *metav1.DeleteOptions) (runtime.Object, bool, error) {
	key := key(ctx, name)
	note, err := n.Get(ctx, name, nil)
	if err != nil {
		return nil, false, err
	}
	if err := validate(ctx, note); err != nil {
		return nil, false, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	have, err := n.getLocked(key)
	if err != nil {
		return nil, false, err
	}
	if opts == nil || len(opts.DryRun) == 0 {
		n.version++
		delete(n.all, key)
	}
	return have, true, nil
}
