package localvolume

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"wherry.dev/internal/api/classes"
	"wherry.dev/internal/api/cluster"
)

// patience is after how long the disk is looked at again while a claim waits for room: nobody tells when there is some.
const patience = 30 * time.Second

// pace is patience among many nodes: no more than a few of them are looked at in a second.
func (p *Provisioner) pace() time.Duration {
	all, err := p.nodeLister.List(labels.Everything())
	if err != nil {
		return patience // impossible: it is in memory
	}
	return max(patience, time.Duration(len(all))*300*time.Millisecond)
}

// looked is what a disk had free, and when, by the monotonic clock.
type looked struct {
	free int64
	at   time.Time
}

// forget has a node's disk looked at before anything is said of it.
func (p *Provisioner) forget(node string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.looked, node)
}

// free returns how many bytes a new volume can have, which is not older than half of what pace says.
func (p *Provisioner) free(ctx context.Context, at *place) (int64, error) {
	p.mu.Lock()
	last, ok := p.looked[at.node.Name]
	p.mu.Unlock()
	if ok && time.Since(last.at) < p.pace()/2 {
		return last.free, nil
	}
	free, err := at.disk.Free(ctx)
	if err != nil {
		return 0, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.looked[at.node.Name] = looked{free, time.Now()}
	return free, nil
}

// roomKey names the room that a node has for volumes of a class.
func roomKey(node, class string) string { return node + "/" + class }

// wakeRoom has the room of all nodes for volumes of a class looked at.
func (p *Provisioner) wakeRoom(class string) {
	all, err := p.nodeLister.List(labels.Everything())
	if err != nil {
		return // impossible: it is in memory
	}
	for _, n := range all {
		if p.Disk(n) != nil {
			p.room.Add(roomKey(n.Name, class))
		}
	}
}

// roomName is the same for a class and a node at all times.
func roomName(node, class string) string {
	sum := sha256.Sum256([]byte(class + "/" + node))
	return "local-" + hex.EncodeToString(sum[:10])
}

// roomChanged puts right what somebody has changed.
func (p *Provisioner) roomChanged(old, obj any) {
	for _, o := range []any{obj, old} {
		c, ok := o.(*storagev1.CSIStorageCapacity)
		if !ok {
			continue
		}
		owner := slices.IndexFunc(c.OwnerReferences, func(o metav1.OwnerReference) bool { return o.Kind == "Node" })
		if c.Namespace == metav1.NamespaceSystem && owner >= 0 && c.Name == roomName(c.OwnerReferences[owner].Name, c.StorageClassName) {
			p.room.Add(roomKey(c.OwnerReferences[owner].Name, c.StorageClassName))
		}
	}
}

// syncRoom tells the scheduler how much room a node has for volumes of a class.
func (p *Provisioner) syncRoom(ctx context.Context, key string) error {
	node, class, _ := strings.Cut(key, "/")
	api, name := p.client.StorageV1().CSIStorageCapacities(metav1.NamespaceSystem), roomName(node, class)
	have, err := p.roomLister.CSIStorageCapacities(metav1.NamespaceSystem).Get(name)
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	want, err := p.roomFor(ctx, node, class)
	switch {
	case err != nil:
		return err
	case want == nil && have == nil, want == keepRoom:
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
	case have.Capacity == nil || have.Capacity.Cmp(*want.Capacity) != 0 || !equality.Semantic.DeepEqual(have.OwnerReferences, want.OwnerReferences):
		next := have.DeepCopy()
		next.Capacity, next.OwnerReferences = want.Capacity, want.OwnerReferences
		if _, err := api.Update(ctx, next, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("tell the room of class %s: %w", class, err)
		}
	}
	if p.tooLarge(class, want.Capacity.Value()) {
		p.room.AddAfter(key, p.pace())
	}
	return nil
}

// keepRoom stands for what has been told and stays: the node cannot be asked now. Pods are not placed on such a node anyway.
var keepRoom = new(storagev1.CSIStorageCapacity)

// roomFor returns what to tell; nil for nothing: volumes of that class, or on that node, are not made here.
func (p *Provisioner) roomFor(ctx context.Context, name, class string) (*storagev1.CSIStorageCapacity, error) {
	c, err := p.classLister.Get(class)
	if apierrors.IsNotFound(err) || err == nil && c.Provisioner != classes.LocalProvisioner {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	node, err := p.nodeLister.Get(name)
	if apierrors.IsNotFound(err) {
		return keepRoom, nil // the garbage collector removes it, or the node comes back
	}
	if err != nil {
		return nil, err
	}
	if p.Disk(node) == nil {
		if node.Annotations[cluster.AnnotationVolumes] == cluster.NoVolumes {
			return nil, nil
		}
		return keepRoom, nil // a server of an older version says it for its own node
	}
	at, err := p.on(name)
	if err != nil {
		return nil, err
	}
	if at == nil {
		return keepRoom, nil
	}
	free, err := p.free(ctx, at)
	if err != nil {
		return nil, err
	}
	return &storagev1.CSIStorageCapacity{
		ObjectMeta: metav1.ObjectMeta{
			Name: roomName(name, class), Namespace: metav1.NamespaceSystem,
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}},
		},
		StorageClassName: class, Capacity: resource.NewQuantity(free, resource.BinarySI),
		NodeTopology: &metav1.LabelSelector{MatchLabels: map[string]string{v1.LabelHostname: host(node)}},
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
