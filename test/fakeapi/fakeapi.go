// Package fakeapi has client-go's fake API server with an API server's versions: it refuses an update of what somebody else
// has changed meanwhile.
package fakeapi

import (
	"errors"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// New returns a fake API server that has some objects. Each gets a version if it has none, and a new one with each create and
// update; an update of another version than the stored one is a conflict, one without a version is not. Patches leave the
// version as it is.
func New(objs ...runtime.Object) *fake.Clientset {
	last := 1000 // the fake runs one reaction at a time
	next := func(obj runtime.Object) runtime.Object {
		obj = obj.DeepCopyObject()
		if m, err := meta.Accessor(obj); err == nil {
			last++
			m.SetResourceVersion(strconv.Itoa(last))
		}
		return obj
	}
	var stored []runtime.Object
	for _, o := range objs {
		if m, err := meta.Accessor(o); err == nil && m.GetResourceVersion() == "" {
			o = next(o)
		}
		stored = append(stored, o)
	}
	c := fake.NewClientset(stored...)
	react := clienttesting.ObjectReaction(c.Tracker())
	c.PrependReactor("create", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
		create, ok := a.(clienttesting.CreateActionImpl)
		if !ok || create.Subresource != "" {
			return false, nil, nil
		}
		create.Object = next(create.Object)
		return react(create)
	})
	c.PrependReactor("update", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
		update, ok := a.(clienttesting.UpdateActionImpl)
		if !ok {
			return false, nil, nil
		}
		is, err := meta.Accessor(update.Object)
		if err != nil {
			return true, nil, err
		}
		stored, err := c.Tracker().Get(a.GetResource(), a.GetNamespace(), is.GetName())
		if err != nil {
			return true, nil, err
		}
		was, err := meta.Accessor(stored)
		if err != nil {
			return true, nil, err
		}
		if v := is.GetResourceVersion(); v != "" && v != was.GetResourceVersion() {
			return true, nil, apierrors.NewConflict(a.GetResource().GroupResource(), is.GetName(), errors.New("the object has been modified"))
		}
		update.Object = next(update.Object)
		return react(update)
	})
	return c
}
