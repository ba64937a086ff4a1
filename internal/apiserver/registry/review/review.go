// Package review answers questions about who somebody is and what they may do: TokenReview,
// SubjectAccessReview and their kin. None of them is stored.
package review

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"
)

// question is an endpoint that answers only POST. T is the object that is both question and answer.
type question[T runtime.Object] struct {
	newT       func() T
	singular   string
	namespaced bool
	answer     func(ctx context.Context, q T) (T, error)
}

var (
	_ rest.Creater              = question[runtime.Object]{}
	_ rest.Scoper               = question[runtime.Object]{}
	_ rest.SingularNameProvider = question[runtime.Object]{}
)

func (q question[T]) New() runtime.Object     { return q.newT() }
func (q question[T]) Destroy()                {}
func (q question[T]) NamespaceScoped() bool   { return q.namespaced }
func (q question[T]) GetSingularName() string { return q.singular }

// Create implements rest.Creater.
func (q question[T]) Create(ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc, _ *metav1.CreateOptions) (runtime.Object, error) {
	in, ok := obj.(T)
	if !ok {
		return nil, fmt.Errorf("not a %T: %T", in, obj)
	}
	if validate != nil {
		if err := validate(ctx, obj.DeepCopyObject()); err != nil {
			return nil, err
		}
	}
	return q.answer(ctx, in)
}
