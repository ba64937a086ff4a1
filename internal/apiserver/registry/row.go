package registry

import (
	"context"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/names"
	"k8s.io/client-go/tools/cache"

	"wherry.dev/internal/apiserver/refusal"
	"wherry.dev/internal/apiserver/stacks"
	"wherry.dev/internal/trace"
)

// Row defines one resource. T is the type of its objects, a pointer.
type Row[T Object] struct {
	// Resource is the resource in the version in which it is stored. That of T serves as the hub, so
	// the two are one unless a kind is about to be stored in a newer version.
	Resource schema.GroupVersionResource
	// Also are the other versions, or groups, in which it is served; the scheme converts.
	Also       []schema.GroupVersion
	Kind       string
	Singular   string
	ShortNames []string
	Categories []string
	Namespaced bool

	New     func() T
	NewList func() runtime.Object

	// CheckName checks names; if nil, any path segment is allowed.
	CheckName validation.ValidateNameFunc

	Strategy Strategy[T]
	// Status, when set, gives the resource a /status endpoint, and Scale a /scale endpoint.
	Status *Strategy[T]
	Scale  *Scale[T]

	// Fields returns the values of the selectable fields besides metadata.name and
	// metadata.namespace; FieldLabels are their names.
	Fields      func(obj T) fields.Set
	FieldLabels []string
	// Index is a selectable field that the watch cache indexes, or nil.
	Index *Index[T]

	// Traced makes the creation of an object a step that `wherry trace` draws.
	Traced bool

	// ReturnDeleted has a deletion answered with the object, and not with a status. It is for the kinds that upstream
	// answers so.
	ReturnDeleted bool

	// TTL is how long objects live, in seconds; nil means for ever.
	TTL func(obj T) uint64

	Table Table[T]

	// Customize is called with the finished stores, to replace or wrap what the row alone cannot
	// express. Status is nil if there is none.
	Customize func(main, status *genericregistry.Store)
	// Endpoints adds subresources, or replaces the main endpoint (key "").
	Endpoints func(*Endpoints[T]) map[string]rest.Storage
}

// Index is a selectable field, and how to get its value alone: that is asked for with every event.
type Index[T Object] struct {
	Field string
	Value func(obj T) string
}

// Endpoints is what a row makes its additional endpoints from.
type Endpoints[T Object] struct {
	Main   *Store
	Status *StatusStore // nil if the row has none
	row    Row[T]
	scheme *runtime.Scheme
}

// Update returns an endpoint that only updates existing objects, with a strategy of its own.
func (e *Endpoints[T]) Update(hooks Strategy[T]) *StatusStore {
	store := *e.Main.Store
	e.row.setStrategy(&store, e.scheme, hooks)
	store.CreateStrategy, store.DeleteStrategy = e.Main.CreateStrategy, e.Main.DeleteStrategy
	return &StatusStore{&store}
}

// Definition is a Row of any type.
type Definition interface {
	// GVR names the resource, in the version in which it is stored.
	GVR() schema.GroupVersionResource
	// AddToScheme registers the fields that can be selected.
	AddToScheme(s *runtime.Scheme) error
	// Build opens the resource's storage.
	Build(s *runtime.Scheme, opts generic.RESTOptionsGetter) (*Built, error)
}

// Built is the opened storage of a row.
type Built struct {
	GVR       schema.GroupVersionResource
	Served    []schema.GroupVersion
	Store     *Store
	Endpoints map[string]rest.Storage // by path: "pods", "pods/status"
}

// Store serves a resource.
type Store struct {
	*genericregistry.Store
	shortNames, categories []string
	traced                 bool
}

// ShortNames implements rest.ShortNamesProvider.
func (s *Store) ShortNames() []string { return s.shortNames }

// Categories implements rest.CategoriesProvider.
func (s *Store) Categories() []string { return s.categories }

// Create implements rest.Creater.
func (s *Store) Create(ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc, opts *metav1.CreateOptions) (out runtime.Object, err error) {
	err = inTurns(ctx, func(ctx context.Context) (err error) {
		stacks.Run(func() { out, err = s.Store.Create(ctx, obj, validate, opts) })
		return err
	})
	if err == nil && s.traced {
		s.recordCreation(ctx, out)
	}
	return out, err
}

// recordCreation records a span that began when the request came in and is over now.
func (s *Store) recordCreation(ctx context.Context, obj runtime.Object) {
	o, ok := obj.(metav1.Object)
	start, from := request.ReceivedTimestampFrom(ctx)
	if ok && from { // else nobody waits for it
		trace.RecordObject(ctx, string(o.GetUID()), "apiserver: create "+s.SingularQualifiedResource.Resource, start, time.Now())
	}
}

// Update implements rest.Updater.
func (s *Store) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo, create rest.ValidateObjectFunc,
	update rest.ValidateObjectUpdateFunc, forceAllowCreate bool, opts *metav1.UpdateOptions,
) (runtime.Object, bool, error) {
	return updateIn(ctx, s.Store, name, info, create, update, forceAllowCreate, opts)
}

// updateIn updates an object of the store.
func updateIn(ctx context.Context, store *genericregistry.Store, name string, info rest.UpdatedObjectInfo, create rest.ValidateObjectFunc,
	update rest.ValidateObjectUpdateFunc, forceAllowCreate bool, opts *metav1.UpdateOptions,
) (out runtime.Object, created bool, err error) {
	err = inTurns(ctx, func(ctx context.Context) (err error) {
		stacks.Run(func() {
			out, created, err = store.Update(ctx, name, refusal.Of(info), create, update, forceAllowCreate, opts)
		})
		return err
	})
	return out, created, err
}

// Delete implements rest.GracefulDeleter.
func (s *Store) Delete(ctx context.Context, name string, validate rest.ValidateObjectFunc, opts *metav1.DeleteOptions) (out runtime.Object, gone bool, err error) {
	stacks.Run(func() { out, gone, err = s.Store.Delete(ctx, name, validate, opts) })
	return out, gone, err
}

var (
	_ rest.StandardStorage    = (*Store)(nil)
	_ rest.ShortNamesProvider = (*Store)(nil)
	_ rest.CategoriesProvider = (*Store)(nil)
)

// GVR implements Definition.
func (r Row[T]) GVR() schema.GroupVersionResource { return r.Resource }

// served returns the versions, of whatever group, in which the resource is served.
func (r Row[T]) served() []schema.GroupVersion {
	return append([]schema.GroupVersion{r.Resource.GroupVersion()}, r.Also...)
}

// AddToScheme implements Definition. Whoever serves the kind in another group names its fields there. A kind without
// fields of its own has those that the scheme knows of all kinds.
func (r Row[T]) AddToScheme(s *runtime.Scheme) error {
	if len(r.FieldLabels) == 0 {
		return nil
	}
	allowed := append([]string{"metadata.name"}, r.FieldLabels...)
	if r.Namespaced {
		allowed = append(allowed, "metadata.namespace")
	}
	convert := func(label, value string) (string, string, error) {
		if slices.Contains(allowed, label) {
			return label, value, nil
		}
		return "", "", fmt.Errorf("field label not supported: %s", label)
	}
	for _, gv := range r.served() {
		if gv.Group != r.Resource.Group {
			continue
		}
		if err := s.AddFieldLabelConversionFunc(gv.WithKind(r.Kind), convert); err != nil {
			return err
		}
	}
	return nil
}

// Build implements Definition.
func (r Row[T]) Build(s *runtime.Scheme, opts generic.RESTOptionsGetter) (*Built, error) {
	group := r.Resource.GroupResource()
	attrs := r.attrs
	store := &genericregistry.Store{
		NewFunc:                   func() runtime.Object { return r.New() },
		NewListFunc:               r.NewList,
		DefaultQualifiedResource:  group,
		SingularQualifiedResource: schema.GroupResource{Group: group.Group, Resource: r.Singular},
		PredicateFunc: func(label labels.Selector, field fields.Selector) storage.SelectionPredicate {
			p := storage.SelectionPredicate{Label: label, Field: field, GetAttrs: attrs}
			if r.Index != nil {
				p.IndexFields = []string{r.Index.Field}
			}
			return p
		},
		TableConvertor:      tableConvertor[T]{r.Table, group},
		ReturnDeletedObject: r.ReturnDeleted,
	}
	if r.TTL != nil {
		store.TTLFunc = func(obj runtime.Object, _ uint64, _ bool) (uint64, error) { return r.TTL(obj.(T)), nil }
	}
	r.setStrategy(store, s, r.Strategy)
	if err := store.CompleteWithOptions(r.storeOptions(opts, attrs)); err != nil {
		return nil, fmt.Errorf("storage of %s: %w", group, err)
	}
	return r.endpoints(s, store), nil
}

func (r Row[T]) endpoints(s *runtime.Scheme, store *genericregistry.Store) *Built {
	name := r.Resource.Resource
	main := &Store{store, r.ShortNames, r.Categories, r.Traced}
	built := &Built{GVR: r.Resource, Served: r.served(), Store: main, Endpoints: map[string]rest.Storage{name: main}}
	points := &Endpoints[T]{Main: main, row: r, scheme: s}
	if r.Status != nil {
		points.Status = points.Update(*r.Status)
		built.Endpoints[name+"/status"] = points.Status
	}
	if r.Scale != nil {
		built.Endpoints[name+"/scale"] = &scaleStore[T]{main, *r.Scale, r.Resource}
	}
	if r.Customize != nil {
		r.Customize(store, points.statusStore())
	}
	if r.Endpoints == nil {
		return built
	}
	for sub, endpoint := range r.Endpoints(points) {
		if sub == "" {
			built.Endpoints[name] = endpoint
			continue
		}
		built.Endpoints[name+"/"+sub] = endpoint
	}
	return built
}

func (e *Endpoints[T]) statusStore() *genericregistry.Store {
	if e.Status == nil {
		return nil
	}
	return e.Status.store
}

func (r Row[T]) setStrategy(store *genericregistry.Store, s *runtime.Scheme, hooks Strategy[T]) {
	checkName := r.CheckName
	if checkName == nil {
		checkName = pathSegment
	}
	st := strategy[T]{
		ObjectTyper: s, NameGenerator: names.SimpleNameGenerator,
		Strategy: hooks, namespaced: r.Namespaced, checkName: checkName,
		versions: r.served(),
	}
	store.CreateStrategy, store.UpdateStrategy, store.ResetFieldsStrategy = st, st, st
	store.DeleteStrategy = st
	if hooks.Graceful != nil {
		store.DeleteStrategy = gracefulStrategy[T]{st}
	}
}

func (r Row[T]) storeOptions(opts generic.RESTOptionsGetter, attrs storage.AttrFunc) *generic.StoreOptions {
	out := &generic.StoreOptions{RESTOptions: opts, AttrFunc: attrs}
	if r.Index == nil {
		return out
	}
	out.TriggerFunc = storage.IndexerFuncs{r.Index.Field: func(obj runtime.Object) string { return r.Index.Value(obj.(T)) }}
	out.Indexers = &cache.Indexers{storage.FieldIndex(r.Index.Field): func(obj any) ([]string, error) {
		o, ok := obj.(T)
		if !ok {
			return nil, fmt.Errorf("index of %s: unexpected %T", r.Resource.Resource, obj)
		}
		return []string{r.Index.Value(o)}, nil
	}}
	return out
}

// attrs returns what selectors can select.
func (r Row[T]) attrs(obj runtime.Object) (labels.Set, fields.Set, error) {
	o, ok := obj.(T)
	if !ok {
		return nil, nil, fmt.Errorf("%s: unexpected %T", r.Resource.Resource, obj)
	}
	set := fields.Set{}
	if r.Fields != nil {
		set = r.Fields(o)
	}
	set["metadata.name"] = o.GetName()
	if r.Namespaced {
		set["metadata.namespace"] = o.GetNamespace()
	}
	return o.GetLabels(), set, nil
}

func pathSegment(name string, prefix bool) []string {
	if prefix {
		return metaPathSegmentPrefix(name)
	}
	return metaPathSegmentName(name)
}

var _ Definition = Row[*metav1.PartialObjectMetadata]{}
