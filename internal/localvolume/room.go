package localvolume

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"wherry.dev/internal/api/classes"
)

// roomStep is how exactly the room is told: what a log writes is no news.
const roomStep = 64 << 20

// patience is after how long the disk is looked at again while a claim waits for room: nobody tells when there is some.
const patience = 30 * time.Second

// free returns how many bytes a new volume can have.
func (p *Provisioner) free() (int64, error) {
	room, err := p.Look(p.Root)
	if err != nil {
		return 0, err
	}
	kept := uint64(0)
	if p.Reserve != nil {
		kept = p.Reserve(room)
	}
	if room.Free < kept {
		return 0, nil
	}
	return int64(room.Free-kept) / roomStep * roomStep, nil
}

// lookAgain has everything looked at again.
func (p *Provisioner) lookAgain() {
	p.claims.Add(leftovers)
	if all, err := p.claimLister.List(labels.Everything()); err == nil { // it never fails: it is in memory
		for _, c := range all {
			p.claimChanged(nil, c)
			p.wakeGrowth(nil, c)
		}
	}
	if all, err := p.volumeLister.List(labels.Everything()); err == nil {
		for _, pv := range all {
			p.volumeChanged(nil, pv)
		}
	}
	if all, err := p.classLister.List(labels.Everything()); err == nil {
		for _, c := range all {
			p.room.Add(c.Name)
		}
	}
}

// roomName is the same for a class and a node at all times.
func (p *Provisioner) roomName(class string) string {
	sum := sha256.Sum256([]byte(class + "/" + p.Node))
	return "local-" + hex.EncodeToString(sum[:10])
}

// roomChanged puts right what somebody has changed.
func (p *Provisioner) roomChanged(old, obj any) {
	for _, o := range []any{obj, old} {
		if c, ok := o.(*storagev1.CSIStorageCapacity); ok {
			if c.Namespace == metav1.NamespaceSystem && c.Name == p.roomName(c.StorageClassName) {
				p.room.Add(c.StorageClassName)
			}
			return
		}
	}
}

// syncRoom tells the scheduler how much room there is for volumes of a class.
func (p *Provisioner) syncRoom(ctx context.Context, class string) error {
	api, name := p.client.StorageV1().CSIStorageCapacities(metav1.NamespaceSystem), p.roomName(class)
	have, err := p.roomLister.CSIStorageCapacities(metav1.NamespaceSystem).Get(name)
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	want, err := p.roomFor(class)
	switch {
	case err != nil:
		return err
	case want == nil && have == nil:
		return nil
	case want == nil:
		if err := api.Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete the room of class %s: %w", class, err)
		}
		return nil
	case have == nil:
		if _, err := api.Create(ctx, want, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("tell the room of class %s: %w", class, err)
		}
	case have.Capacity == nil || have.Capacity.Cmp(*want.Capacity) != 0:
		next := have.DeepCopy()
		next.Capacity = want.Capacity
		if _, err := api.Update(ctx, next, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("tell the room of class %s: %w", class, err)
		}
	}
	if p.tooLarge(class, want.Capacity.Value()) {
		p.room.AddAfter(class, patience)
	}
	return nil
}

// roomFor returns what to tell; nil for a class whose volumes are not made here.
func (p *Provisioner) roomFor(name string) (*storagev1.CSIStorageCapacity, error) {
	class, err := p.classLister.Get(name)
	if apierrors.IsNotFound(err) || err == nil && class.Provisioner != classes.LocalProvisioner {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	node, err := p.nodeLister.Get(p.Node)
	if apierrors.IsNotFound(err) {
		return nil, nil // it is told when the node is there
	}
	if err != nil {
		return nil, err
	}
	free, err := p.free()
	if err != nil {
		return nil, err
	}
	return &storagev1.CSIStorageCapacity{
		ObjectMeta: metav1.ObjectMeta{
			Name: p.roomName(name), Namespace: metav1.NamespaceSystem,
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}},
		},
		StorageClassName: name, Capacity: resource.NewQuantity(free, resource.BinarySI),
		NodeTopology: &metav1.LabelSelector{MatchLabels: map[string]string{v1.LabelHostname: node.Labels[v1.LabelHostname]}},
	}, nil
}

// tooLarge reports whether a claim of the class waits for more room than there is.
func (p *Provisioner) tooLarge(class string, free int64) bool {
	all, err := p.claimLister.List(labels.Everything())
	if err != nil {
		return false // impossible: it is in memory
	}
	return slices.ContainsFunc(all, func(c *v1.PersistentVolumeClaim) bool {
		want := c.Spec.Resources.Requests[v1.ResourceStorage]
		return waits(c) && className(c) == class && want.Value() > free
	})
}
