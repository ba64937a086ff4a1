package volumehealth

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/kubelet/metrics"
)

// askStorage asks a driver about what is behind it, and tells the cluster.
func (m *Manager) askStorage(ctx context.Context, driver string) error {
	var answer []*csipb.NodeGetStorageHealthResponse_StorageBackendHealth
	err := m.Drivers.Call(ctx, driver, func(ctx context.Context, c csipb.NodeClient) error {
		resp, err := c.NodeGetStorageHealth(ctx, &csipb.NodeGetStorageHealthRequest{})
		answer = resp.GetBackendHealth()
		return err
	})
	if err != nil {
		return err
	}
	conditions := storageConditions(answer)
	metrics.CSIStorageHealth.DeletePartialMatch(map[string]string{"driver_name": driver})
	for _, c := range conditions {
		metrics.CSIStorageHealth.WithLabelValues(driver, string(c.Status), c.Reason).Set(1)
	}
	return m.tell(ctx, driver, conditions)
}

// takeBack takes back what was told of drivers that are no longer there.
func (m *Manager) takeBack(ctx context.Context, there []string) {
	m.mu.Lock()
	gone := slices.DeleteFunc(slices.Sorted(maps.Keys(m.storage)), func(driver string) bool {
		return slices.Contains(there, driver)
	})
	m.mu.Unlock()
	for _, driver := range gone {
		metrics.CSIStorageHealth.DeletePartialMatch(map[string]string{"driver_name": driver})
		if err := m.tell(ctx, driver, nil); err != nil {
			klog.FromContext(ctx).Error(err, "Cannot take back what a CSI driver said, it is tried again", "driver", driver)
			continue
		}
		m.mu.Lock()
		delete(m.storage, driver)
		m.mu.Unlock()
	}
}

// tell makes the CSINode say what is wrong behind a driver. As long as nothing is, the API server is not asked.
func (m *Manager) tell(ctx context.Context, driver string, conditions []storagev1.StorageHealthCondition) error {
	m.mu.Lock()
	told, known := m.storage[driver]
	m.mu.Unlock()
	if known && len(told) == 0 && len(conditions) == 0 {
		return nil
	}
	if err := m.write(ctx, driver, conditions); err != nil {
		return fmt.Errorf("status of CSINode %s: %w", m.NodeName, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.storage == nil {
		m.storage = map[string][]storagev1.StorageHealthCondition{}
	}
	m.storage[driver] = conditions
	return nil
}

// write also removes what is said of drivers that the node does not have, from before this kubelet began.
func (m *Manager) write(ctx context.Context, driver string, conditions []storagev1.StorageHealthCondition) error {
	api := m.Client.StorageV1().CSINodes()
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		old, err := api.Get(ctx, m.NodeName, metav1.GetOptions{})
		if apierrors.IsNotFound(err) { // nor are there drivers
			return nil
		}
		if err != nil {
			return err
		}
		node, now := old.DeepCopy(), metav1.Now().Rfc3339Copy()
		want := storagev1.StorageHealth{Name: driver, HealthConditions: slices.Clone(conditions)}
		for i := range want.HealthConditions {
			want.HealthConditions[i].LastTransitionTime = since(old, driver, &want.HealthConditions[i], now)
		}
		node.Status.StorageHealth = slices.DeleteFunc(node.Status.StorageHealth, func(h storagev1.StorageHealth) bool {
			of := func(d storagev1.CSINodeDriver) bool { return d.Name == h.Name }
			return h.Name == driver || !slices.ContainsFunc(node.Spec.Drivers, of)
		})
		if len(want.HealthConditions) > 0 {
			node.Status.StorageHealth = append(node.Status.StorageHealth, want)
			slices.SortFunc(node.Status.StorageHealth, func(a, b storagev1.StorageHealth) int {
				return cmp.Compare(a.Name, b.Name)
			})
		}
		if equality.Semantic.DeepEqual(old.Status, node.Status) {
			return nil
		}
		_, err = api.UpdateStatus(ctx, node, metav1.UpdateOptions{})
		return err
	})
}

// since returns when a condition first appeared.
func since(old *storagev1.CSINode, driver string, c *storagev1.StorageHealthCondition, now metav1.Time) metav1.Time {
	for _, h := range old.Status.StorageHealth {
		for i := range h.HealthConditions {
			if h.Name == driver && compareProblems(&h.HealthConditions[i], c) == 0 {
				return h.HealthConditions[i].LastTransitionTime
			}
		}
	}
	return now
}

var storageStatuses = map[csipb.StorageHealthErrorType]storagev1.StorageHealthStatusType{
	csipb.StorageHealthErrorType_STORAGE_DEGRADED:    storagev1.StorageDegraded,
	csipb.StorageHealthErrorType_STORAGE_UNREACHABLE: storagev1.StorageUnreachable,
}

// accessModes are the API's for those of CSI.
var accessModes = map[csipb.VolumeCapability_AccessMode_Mode]v1.PersistentVolumeAccessMode{
	csipb.VolumeCapability_AccessMode_SINGLE_NODE_WRITER:        v1.ReadWriteOnce,
	csipb.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER:  v1.ReadWriteOnce,
	csipb.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER: v1.ReadWriteOncePod,
	csipb.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY:   v1.ReadOnlyMany,
	csipb.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY:    v1.ReadOnlyMany,
	csipb.VolumeCapability_AccessMode_MULTI_NODE_SINGLE_WRITER:  v1.ReadWriteMany,
	csipb.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER:   v1.ReadWriteMany,
}

// storageConditions returns what the API has of an answer, always in the same order and each condition once.
func storageConditions(answer []*csipb.NodeGetStorageHealthResponse_StorageBackendHealth) []storagev1.StorageHealthCondition {
	var out []storagev1.StorageHealthCondition
	for _, h := range answer {
		status, ok := storageStatuses[h.GetStatus()]
		if !ok {
			continue
		}
		c := storagev1.StorageHealthCondition{
			Status: status, Reason: reason(h.GetReason()), Message: pods.Shorten(h.GetMessage(), pods.MaxHealthMessage),
		}
		if mode, ok := accessModes[h.GetVolumeCapability().GetAccessMode().GetMode()]; ok {
			c.AccessMode = &mode
		}
		switch h.GetVolumeCapability().GetAccessType().(type) {
		case *csipb.VolumeCapability_Block:
			c.VolumeMode = new(v1.PersistentVolumeBlock)
		case *csipb.VolumeCapability_Mount:
			c.VolumeMode = new(v1.PersistentVolumeFilesystem)
		}
		out = append(out, c)
	}
	slices.SortFunc(out, func(a, b storagev1.StorageHealthCondition) int {
		return cmp.Or(compareProblems(&a, &b), cmp.Compare(a.Message, b.Message))
	})
	out = slices.CompactFunc(out, func(a, b storagev1.StorageHealthCondition) bool {
		return compareProblems(&a, &b) == 0
	})
	return out[:min(len(out), pods.MaxHealthConditions)]
}

// compareProblems orders conditions by all but their messages and times.
func compareProblems(a, b *storagev1.StorageHealthCondition) int {
	return cmp.Or(cmp.Compare(a.Status, b.Status), cmp.Compare(a.Reason, b.Reason),
		cmp.Compare(ptr.Deref(a.AccessMode, ""), ptr.Deref(b.AccessMode, "")),
		cmp.Compare(ptr.Deref(a.VolumeMode, ""), ptr.Deref(b.VolumeMode, "")))
}
