package protection

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	clientset "k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
)

type volumes struct {
	client clientset.Interface
	lister corelisters.PersistentVolumeLister
}

// NewForVolumes returns the controller of persistent volumes, with the informers of f.
func NewForVolumes(client clientset.Interface, f informers.SharedInformerFactory) (*Controller, error) {
	all := f.Core().V1().PersistentVolumes()
	c := newController("pvprotection", &volumes{client, all.Lister()})
	return c, c.loop.Watch(all.Informer(), c.changed)
}

func (*volumes) finalizer() string { return "kubernetes.io/pv-protection" }

func (g *volumes) get(key string) (metav1.Object, error) {
	volume, err := g.lister.Get(key)
	if err != nil {
		return nil, err
	}
	return volume.DeepCopy(), nil
}

// used goes by the phase, which the controller that binds volumes writes.
func (*volumes) used(_ context.Context, obj metav1.Object) (bool, error) {
	volume, ok := obj.(*v1.PersistentVolume)
	return ok && volume.Status.Phase == v1.VolumeBound, nil
}

func (g *volumes) update(ctx context.Context, obj metav1.Object) error {
	volume, ok := obj.(*v1.PersistentVolume)
	if !ok {
		return fmt.Errorf("unexpected %T", obj)
	}
	_, err := g.client.CoreV1().PersistentVolumes().Update(ctx, volume, metav1.UpdateOptions{})
	return err
}
