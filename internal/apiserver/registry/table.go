package registry

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"
)

// Table defines how `kubectl get` prints objects.
type Table[T Object] struct {
	Columns []metav1.TableColumnDefinition
	// Cells returns one value for each column.
	Cells func(obj T, now time.Time) []any
	// Conditions marks rows that clients may omit or dim; optional.
	Conditions func(obj T) []metav1.TableRowCondition
}

// Column describes a column. Wide ones are shown only by -o wide.
func Column(name, kind, format, description string, wide bool) metav1.TableColumnDefinition {
	c := metav1.TableColumnDefinition{Name: name, Type: kind, Format: format, Description: description}
	if wide {
		c.Priority = 1
	}
	return c
}

// NewTableConvertor returns what prints objects that are not stored by a row.
func NewTableConvertor[T Object](table Table[T], resource schema.GroupResource) rest.TableConvertor {
	return tableConvertor[T]{table, resource}
}

// tableConvertor implements rest.TableConvertor for a row.
type tableConvertor[T Object] struct {
	table    Table[T]
	resource schema.GroupResource
}

func (c tableConvertor[T]) ConvertToTable(ctx context.Context, obj, opts runtime.Object) (*metav1.Table, error) {
	if c.table.Cells == nil {
		return rest.NewDefaultTableConvertor(c.resource).ConvertToTable(ctx, obj, opts)
	}
	table := &metav1.Table{Rows: []metav1.TableRow{}} // none is told as an empty list
	now := time.Now()
	add := func(o runtime.Object) error {
		t, ok := o.(T)
		if !ok {
			return errNotAcceptable{c.resource}
		}
		row := metav1.TableRow{Cells: c.table.Cells(t, now), Object: runtime.RawExtension{Object: o}}
		if c.table.Conditions != nil {
			row.Conditions = c.table.Conditions(t)
		}
		table.Rows = append(table.Rows, row)
		return nil
	}
	if err := eachItem(obj, add); err != nil {
		return nil, err
	}
	if m, err := meta.ListAccessor(obj); err == nil {
		table.ResourceVersion = m.GetResourceVersion()
		table.Continue = m.GetContinue()
		table.RemainingItemCount = m.GetRemainingItemCount()
	} else if m, err := meta.CommonAccessor(obj); err == nil {
		table.ResourceVersion = m.GetResourceVersion()
	}
	if o, ok := opts.(*metav1.TableOptions); !ok || !o.NoHeaders {
		table.ColumnDefinitions = c.table.Columns
	}
	return table, nil
}

func eachItem(obj runtime.Object, add func(runtime.Object) error) error {
	if meta.IsListType(obj) {
		return meta.EachListItem(obj, add)
	}
	return add(obj)
}

// errNotAcceptable is the answer to a request for a table of something that has none.
type errNotAcceptable struct{ resource schema.GroupResource }

func (e errNotAcceptable) Error() string {
	return "the resource " + e.resource.String() + " does not support being converted to a Table"
}

// Status implements apierrors.APIStatus.
func (e errNotAcceptable) Status() metav1.Status {
	return metav1.Status{
		Status: metav1.StatusFailure, Code: 406,
		Reason: metav1.StatusReason("NotAcceptable"), Message: e.Error(),
	}
}
