package protection

import (
	"context"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	clientset "k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
)

type attributesClasses struct {
	client  clientset.Interface
	lister  storagelisters.VolumeAttributesClassLister
	claims  corelisters.PersistentVolumeClaimLister
	volumes corelisters.PersistentVolumeLister
}

// NewForAttributesClasses returns the controller of volume attributes classes, with the informers of f.
func NewForAttributesClasses(client clientset.Interface, f informers.SharedInformerFactory) (*Controller, error) {
	all := f.Storage().V1().VolumeAttributesClasses()
	claims, volumes := f.Core().V1().PersistentVolumeClaims(), f.Core().V1().PersistentVolumes()
	c := newController("vacprotection", &attributesClasses{client, all.Lister(), claims.Lister(), volumes.Lister()})
	if err := c.loop.Watch(all.Informer(), c.changed); err != nil {
		return nil, err
	}
	if err := c.loop.Watch(claims.Informer(), c.userChanged); err != nil {
		return nil, err
	}
	return c, c.loop.Watch(volumes.Informer(), c.userChanged)
}

// userChanged wakes the classes that a claim or a volume no longer names.
func (c *Controller) userChanged(old, obj any) {
	now := classesOf(obj)
	for _, name := range classesOf(old) {
		if !slices.Contains(now, name) {
			c.loop.Add(name)
		}
	}
}

// classesOf returns the classes that a claim or a volume names: what it wants, what it has, and what it
// is being changed to.
func classesOf(obj any) []string {
	var named []*string
	switch o := obj.(type) {
	case *v1.PersistentVolumeClaim:
		named = append(named, o.Spec.VolumeAttributesClassName, o.Status.CurrentVolumeAttributesClassName)
		if o.Status.ModifyVolumeStatus != nil {
			named = append(named, &o.Status.ModifyVolumeStatus.TargetVolumeAttributesClassName)
		}
	case *v1.PersistentVolume:
		named = append(named, o.Spec.VolumeAttributesClassName)
	}
	var out []string
	for _, name := range named {
		if name != nil && *name != "" {
			out = append(out, *name)
		}
	}
	return out
}

func (*attributesClasses) finalizer() string { return "kubernetes.io/vac-protection" }

func (g *attributesClasses) get(key string) (metav1.Object, error) {
	class, err := g.lister.Get(key)
	if err != nil {
		return nil, err
	}
	return class.DeepCopy(), nil
}

func (g *attributesClasses) used(_ context.Context, obj metav1.Object) (bool, error) {
	volumes, err := g.volumes.List(labels.Everything())
	if err != nil {
		return false, err
	}
	for _, v := range volumes {
		if slices.Contains(classesOf(v), obj.GetName()) {
			return true, nil
		}
	}
	claims, err := g.claims.List(labels.Everything())
	if err != nil {
		return false, err
	}
	for _, claim := range claims {
		if slices.Contains(classesOf(claim), obj.GetName()) {
			return true, nil
		}
	}
	return false, nil
}

func (g *attributesClasses) update(ctx context.Context, obj metav1.Object) error {
	class, ok := obj.(*storagev1.VolumeAttributesClass)
	if !ok {
		return fmt.Errorf("unexpected %T", obj)
	}
	_, err := g.client.StorageV1().VolumeAttributesClasses().Update(ctx, class, metav1.UpdateOptions{})
	return err
}
