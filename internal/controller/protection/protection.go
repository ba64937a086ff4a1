// Package protection keeps objects that were deleted while something still uses them: a claim while a pod
// has it, a volume while it is bound, a class of volume attributes while a claim or a volume names it, a
// pod group while pods of it run. Admission (StorageObjectInUseProtection, PodGroupProtection) gives them a
// finalizer; the controllers remove it from a deleted object that nothing uses, and add it to storage objects
// that were made without it.
package protection

import (
	"context"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientset "k8s.io/client-go/kubernetes"

	"wherry.dev/internal/controller"
)

// Controller protects the objects of one kind. Create one with NewForClaims, NewForVolumes,
// NewForAttributesClasses or NewForPodGroups.
type Controller struct {
	guard
	loop *controller.Loop
	// given: admission alone gives the finalizer, and who takes it off may do so.
	given bool
}

// guard is what is particular to a kind.
type guard interface {
	// finalizer is the one that protects.
	finalizer() string
	// get returns a copy of the object as the informer has it.
	get(key string) (metav1.Object, error)
	// used reports whether something uses a deleted object.
	used(ctx context.Context, obj metav1.Object) (bool, error)
	update(ctx context.Context, obj metav1.Object) error
}

func newController(name string, g guard) *Controller {
	c := &Controller{guard: g}
	c.loop = controller.NewLoop(name, c.reconcile)
	return c
}

// Run protects objects until ctx ends.
func (c *Controller) Run(ctx context.Context) error { return c.loop.Run(ctx) }

// changed wakes an object that lacks its finalizer, or may be one to lose it.
func (c *Controller) changed(old, obj any) {
	if m, ok := obj.(metav1.Object); ok && c.due(m) {
		c.loop.AddObject(old, obj)
	}
}

// letGo returns a handler that wakes the objects of a pod that is over, or gone.
func (c *Controller) letGo(over func(*v1.Pod) bool, objects func(*v1.Pod) []string) func(old, obj any) {
	wake := func(p *v1.Pod) {
		for _, key := range objects(p) {
			c.loop.Add(key)
		}
	}
	return func(old, obj any) {
		was, _ := old.(*v1.Pod)
		is, _ := obj.(*v1.Pod)
		if was != nil && (is == nil || is.UID != was.UID) {
			wake(was)
		}
		if is != nil && over(is) {
			wake(is)
		}
	}
}

// usedBy reports whether a pod uses something. It looks at those that the informer knows, and only if none of them does, at
// storage: the informer may be behind.
func usedBy(ctx context.Context, client clientset.Interface, namespace string, known []*v1.Pod, uses func(*v1.Pod) bool) (bool, error) {
	if slices.ContainsFunc(known, uses) {
		return true, nil
	}
	list, err := client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return false, err
	}
	for i := range list.Items {
		if uses(&list.Items[i]) {
			return true, nil
		}
	}
	return false, nil
}

// due reports whether there may be something to do: a deleted object has the finalizer, or another one lacks it.
func (c *Controller) due(obj metav1.Object) bool {
	deleted := obj.GetDeletionTimestamp() != nil
	return deleted == c.protected(obj) && (deleted || !c.given)
}

func (c *Controller) protected(obj metav1.Object) bool {
	return slices.Contains(obj.GetFinalizers(), c.finalizer())
}

func (c *Controller) reconcile(ctx context.Context, key string) error {
	obj, err := c.get(key)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if !c.due(obj) {
		return nil
	}
	if obj.GetDeletionTimestamp() == nil {
		obj.SetFinalizers(append(obj.GetFinalizers(), c.finalizer()))
		return c.write(ctx, key, obj)
	}
	used, err := c.used(ctx, obj)
	if err != nil {
		return fmt.Errorf("who uses %s: %w", key, err)
	}
	if used {
		return nil
	}
	obj.SetFinalizers(slices.DeleteFunc(obj.GetFinalizers(), func(f string) bool { return f == c.finalizer() }))
	return c.write(ctx, key, obj)
}

func (c *Controller) write(ctx context.Context, key string, obj metav1.Object) error {
	err := c.update(ctx, obj)
	if err == nil || apierrors.IsNotFound(err) {
		return nil
	}
	return fmt.Errorf("finalizer %s of %s: %w", c.finalizer(), key, err)
}
