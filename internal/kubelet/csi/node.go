package csi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"
)

// annotationNodeIDs has, as JSON, what the node is called by each driver.
const annotationNodeIDs = "csi.volume.kubernetes.io/nodeid"

// Node is what the API server has of the node's drivers: the CSINode object, and an annotation and labels of the Node.
// Nothing is written that is there already.
type Node struct {
	Client kubernetes.Interface
	Name   string

	mu sync.Mutex // drivers come and go one after another
}

// Install tells of a driver.
func (n *Node) Install(ctx context.Context, driver string, info *spec.NodeGetInfoResponse) error {
	if info.GetNodeId() == "" {
		return errors.New("error adding CSI driver node info: driverNodeID must not be empty")
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	topology := info.GetAccessibleTopology().GetSegments()
	err := n.changeNode(ctx, func(node *v1.Node) error {
		if err := changeIDs(node, func(ids map[string]string) { ids[driver] = info.GetNodeId() }); err != nil {
			return err
		}
		return label(node, topology)
	})
	if err != nil {
		return fmt.Errorf("error updating Node object with CSI driver node info: %w", err)
	}
	want := storagev1.CSINodeDriver{
		Name: driver, NodeID: info.GetNodeId(), TopologyKeys: slices.Sorted(maps.Keys(topology)), Allocatable: allocatable(info),
	}
	if err := n.changeDrivers(ctx, driver, &want); err != nil {
		return fmt.Errorf("error updating CSINode object with CSI driver node info: %w", err)
	}
	return nil
}

// Update tells how many volumes of a driver the node can have, if the driver is still there.
func (n *Node) Update(ctx context.Context, driver string, info *spec.NodeGetInfoResponse) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	api := n.Client.StorageV1().CSINodes()
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		old, err := api.Get(ctx, n.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
		node := old.DeepCopy()
		for i := range node.Spec.Drivers {
			if d := &node.Spec.Drivers[i]; d.Name == driver {
				d.Allocatable = allocatable(info)
			}
		}
		if equality.Semantic.DeepEqual(old.Spec, node.Spec) {
			return nil
		}
		_, err = api.Update(ctx, node, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		return fmt.Errorf("error updating CSINode object with CSI driver node info: %w", err)
	}
	return nil
}

// allocatable is how many volumes of a driver the node can have; nil for any number.
func allocatable(info *spec.NodeGetInfoResponse) *storagev1.VolumeNodeResources {
	most := info.GetMaxVolumesPerNode()
	if most <= 0 {
		return nil
	}
	return &storagev1.VolumeNodeResources{Count: new(int32(min(most, math.MaxInt32)))}
}

// Uninstall tells that a driver is no longer there. The labels stay: volumes may still be here.
func (n *Node) Uninstall(ctx context.Context, driver string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.changeDrivers(ctx, driver, nil); err != nil {
		return fmt.Errorf("error uninstalling CSI driver from CSINode object %w", err)
	}
	err := n.changeNode(ctx, func(node *v1.Node) error {
		return changeIDs(node, func(ids map[string]string) { delete(ids, driver) })
	})
	if err != nil {
		return fmt.Errorf("error removing CSI driver node info from Node object %w", err)
	}
	return nil
}

// changeIDs changes what the node is called by its drivers.
func changeIDs(node *v1.Node, change func(map[string]string)) error {
	ids := map[string]string{}
	if before := node.Annotations[annotationNodeIDs]; before != "" {
		if err := json.Unmarshal([]byte(before), &ids); err != nil {
			return fmt.Errorf("failed to parse node's %q annotation value (%q) err=%w", annotationNodeIDs, before, err)
		}
	}
	change(ids)
	if len(ids) == 0 {
		delete(node.Annotations, annotationNodeIDs)
		return nil
	}
	doc, err := json.Marshal(ids)
	metav1.SetMetaDataAnnotation(&node.ObjectMeta, annotationNodeIDs, string(doc))
	return err
}

// label writes down where the node is for a driver, by which volumes' affinities select it.
func label(node *v1.Node, topology map[string]string) error {
	for k, v := range topology {
		if have, ok := node.Labels[k]; ok && have != v {
			return fmt.Errorf("detected topology value collision: driver reported %q:%q but existing label is %q:%q", k, v, k, have)
		}
		metav1.SetMetaDataLabel(&node.ObjectMeta, k, v)
	}
	return nil
}

// changeNode writes a node's labels and annotations as change leaves them.
func (n *Node) changeNode(ctx context.Context, change func(*v1.Node) error) error {
	nodes := n.Client.CoreV1().Nodes()
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		old, err := nodes.Get(ctx, n.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		node := old.DeepCopy()
		if err := change(node); err != nil {
			return err
		}
		if equality.Semantic.DeepEqual(old.ObjectMeta, node.ObjectMeta) {
			return nil
		}
		// The version makes it a conflict if somebody else has written the annotation since.
		meta := map[string]any{"resourceVersion": old.ResourceVersion, "labels": node.Labels, "annotations": map[string]any{annotationNodeIDs: nil}}
		if ids, ok := node.Annotations[annotationNodeIDs]; ok {
			meta["annotations"] = map[string]any{annotationNodeIDs: ids}
		}
		doc, err := json.Marshal(map[string]any{"metadata": meta})
		if err != nil {
			return err
		}
		_, err = nodes.Patch(ctx, n.Name, types.MergePatchType, doc, metav1.PatchOptions{})
		return err
	})
}

// changeDrivers makes a driver in the CSINode what it is to be; nil: it is not to be there.
func (n *Node) changeDrivers(ctx context.Context, driver string, want *storagev1.CSINodeDriver) error {
	api := n.Client.StorageV1().CSINodes()
	again := func(err error) bool { return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) }
	return retry.OnError(retry.DefaultBackoff, again, func() error {
		old, err := api.Get(ctx, n.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			if want == nil {
				return nil
			}
			return n.create(ctx, want)
		}
		if err != nil {
			return err
		}
		node := old.DeepCopy()
		node.Spec.Drivers = slices.DeleteFunc(node.Spec.Drivers, func(d storagev1.CSINodeDriver) bool { return d.Name == driver })
		i := slices.IndexFunc(old.Spec.Drivers, func(d storagev1.CSINodeDriver) bool { return d.Name == driver })
		if i >= 0 && want != nil && !replaces(want, &old.Spec.Drivers[i]) {
			// The API has a driver's names for good: it has to go first.
			if node, err = api.Update(ctx, node, metav1.UpdateOptions{}); err != nil {
				return err
			}
			i = -1
		}
		switch {
		case want != nil && i >= 0:
			node.Spec.Drivers = slices.Insert(node.Spec.Drivers, i, *want)
		case want != nil:
			node.Spec.Drivers = append(node.Spec.Drivers, *want)
		}
		if equality.Semantic.DeepEqual(old.Spec, node.Spec) {
			return nil
		}
		_, err = api.Update(ctx, node, metav1.UpdateOptions{})
		return err
	})
}

// replaces reports whether the API lets a driver take the place of what it was.
func replaces(now, was *storagev1.CSINodeDriver) bool {
	return now.NodeID == was.NodeID && slices.Equal(now.TopologyKeys, was.TopologyKeys)
}

// create makes the CSINode, which goes with its node.
func (n *Node) create(ctx context.Context, first *storagev1.CSINodeDriver) error {
	node, err := n.Client.CoreV1().Nodes().Get(ctx, n.Name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	_, err = n.Client.StorageV1().CSINodes().Create(ctx, &storagev1.CSINode{
		ObjectMeta: metav1.ObjectMeta{Name: n.Name, OwnerReferences: []metav1.OwnerReference{
			{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID},
		}},
		Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{*first}},
	}, metav1.CreateOptions{})
	return err
}
