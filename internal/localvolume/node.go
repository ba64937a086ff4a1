package localvolume

import (
	"context"
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/component-helpers/storage/volume"
	"k8s.io/klog/v2"

	"wherry.dev/internal/api/nodes"
)

// place is a node on which volumes are made.
type place struct {
	node *v1.Node
	disk Disk
}

// host is the node's name among its labels, by which volumes find their node.
func host(node *v1.Node) string { return node.Labels[v1.LabelHostname] }

// on returns a node on which volumes are made and which can be asked; nil for another one, which is told when it can be.
func (p *Provisioner) on(name string) (*place, error) {
	node, err := p.nodeLister.Get(name)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	disk := p.Disk(node)
	if disk == nil || !nodes.IsReady(node) {
		return nil, nil
	}
	return &place{node, disk}, nil
}

// offers reports whether volumes are made on a node, though not now perhaps.
func (p *Provisioner) offers(name string) bool {
	node, err := p.nodeLister.Get(name)
	return err == nil && p.Disk(node) != nil
}

// of returns the node that has a volume, if it is one on which volumes are made, whether or not it can be asked.
func (p *Provisioner) of(pv *v1.PersistentVolume) (*v1.Node, error) {
	if pv.Spec.NodeAffinity == nil {
		return nil, nil
	}
	all, err := p.nodeLister.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	var found *v1.Node
	for _, n := range all {
		switch {
		case volume.CheckNodeAffinity(pv, n.Labels) != nil || p.Disk(n) == nil:
		case host(n) == n.Name:
			return n, nil // others may call themselves so, and do not have its volumes
		case found != nil:
			return nil, fmt.Errorf("volume %s is on one node, and %s and %s have the same label %s", pv.Name, found.Name, n.Name, v1.LabelHostname)
		default:
			found = n
		}
	}
	return found, nil
}

// at is of, if the node can be asked.
func (p *Provisioner) at(pv *v1.PersistentVolume) (*place, error) {
	node, err := p.of(pv)
	if err != nil || node == nil {
		return nil, err
	}
	return p.on(node.Name)
}

// hostOf returns the label by which volumes find the node. It is an error if they would find another one, too.
func (p *Provisioner) hostOf(node *v1.Node) (string, error) {
	name := host(node)
	if name == "" {
		return "", fmt.Errorf("node %s has no label %s", node.Name, v1.LabelHostname)
	}
	same, err := p.nodeLister.List(labels.SelectorFromSet(labels.Set{v1.LabelHostname: name}))
	if err != nil {
		return "", err
	}
	for _, n := range same {
		if n.Name != node.Name && name != node.Name {
			return "", fmt.Errorf("nodes %s and %s have the same label %s", node.Name, n.Name, v1.LabelHostname)
		}
	}
	return name, nil
}

// nodeChanged looks at everything of a node again when it appears, can be asked again, or has other labels.
func (p *Provisioner) nodeChanged(old, obj any) {
	was, _ := old.(*v1.Node)
	node, ok := obj.(*v1.Node)
	if !ok {
		if was != nil {
			p.forget(was.Name)
			p.wakeVolumes(was)
		}
		return
	}
	if was != nil && was.UID == node.UID && host(was) == host(node) && nodes.IsReady(was) == nodes.IsReady(node) && rootOf(p.Disk(was)) == rootOf(p.Disk(node)) {
		return
	}
	p.nodes.Add(node.Name)
}

func rootOf(d Disk) string {
	if d == nil {
		return ""
	}
	return d.Root()
}

// syncNode has everything of a node looked at again, and removes directories of which a process has left nothing else.
func (p *Provisioner) syncNode(ctx context.Context, name string) error {
	node, err := p.nodeLister.Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	p.forget(name)
	all, err := p.classLister.List(labels.Everything())
	if err != nil {
		return err
	}
	for _, c := range all {
		p.room.Add(roomKey(name, c.Name))
	}
	at, err := p.on(name)
	if err != nil || at == nil {
		return err
	}
	claims, err := p.claimLister.List(labels.Everything())
	if err != nil {
		return err
	}
	for _, c := range claims {
		if mine(c) == name {
			p.claims.AddObject(nil, c)
		}
		p.wakeGrowth(nil, c)
	}
	p.wakeVolumes(node)
	return p.sweep(ctx, at)
}

// wakeVolumes wakes the volumes of a node.
func (p *Provisioner) wakeVolumes(node *v1.Node) {
	all, err := p.volumeLister.List(labels.Everything())
	if err != nil {
		return // impossible: it is in memory
	}
	for _, pv := range all {
		if ours(pv) && pv.Spec.NodeAffinity != nil && volume.CheckNodeAffinity(pv, node.Labels) == nil {
			p.volumes.AddObject(nil, pv)
		}
	}
}

// begun is a directory whose volume may not have been written.
type begun struct{ node, name string }

func (p *Provisioner) note(claim string, b begun) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.begun[claim] = b
}

func (p *Provisioner) done(claim string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.begun, claim)
}

// giveUp removes the directory that was begun for a claim of that name which is not to have it any more. wanted is the
// one that it is to have; the zero value for none.
func (p *Provisioner) giveUp(ctx context.Context, claim string, wanted begun) error {
	p.mu.Lock()
	b, ok := p.begun[claim]
	p.mu.Unlock()
	if !ok || b == wanted {
		return nil
	}
	at, err := p.on(b.node)
	if err != nil {
		return err
	}
	if at != nil { // otherwise it is looked through when it is back
		if err := p.tidy(ctx, at, func(name string) bool { return name == b.name }); err != nil {
			return err
		}
	}
	p.done(claim)
	return nil
}

// sweep looks through the directories of a node for those that have no volume, and are not about to have one.
func (p *Provisioner) sweep(ctx context.Context, at *place) error {
	wanted := map[string]bool{}
	volumes, err := p.volumeLister.List(labels.Everything())
	if err != nil {
		return err
	}
	for _, pv := range volumes {
		wanted[pv.Name] = true
	}
	claims, err := p.claimLister.List(labels.Everything())
	if err != nil {
		return err
	}
	for _, c := range claims {
		if mine(c) == at.node.Name {
			wanted[volumeName(c)] = true
		}
	}
	return p.tidy(ctx, at, func(name string) bool { return !wanted[name] })
}

// tidy removes directories that never had a volume: there is none of their name, and nothing is in them. One with content
// stays, because somebody has kept the data and deleted the volume.
//
// Another process may be about to write a volume, if it has led until now. It makes the directory once more afterwards, and
// what was made since it was listed is not removed.
func (p *Provisioner) tidy(ctx context.Context, at *place, which func(name string) bool) error {
	list, err := at.disk.List(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, d := range list {
		if valid(d.Name) != nil || !which(d.Name) {
			continue
		}
		_, err := p.client.CoreV1().PersistentVolumes().Get(ctx, d.Name, metav1.GetOptions{})
		if err == nil {
			continue
		}
		if !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("look for volume %s: %w", d.Name, err))
			continue
		}
		data, err := at.disk.Tidy(ctx, d)
		if err != nil {
			errs = append(errs, err)
		}
		if data {
			klog.FromContext(ctx).Info("A directory of local volumes has data and no PersistentVolume: it stays until somebody removes it",
				"node", at.node.Name, "directory", directory(at.disk, d.Name))
		}
	}
	return errors.Join(errs...)
}
