package volume

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"wherry.dev/internal/api/attachments"
	"wherry.dev/internal/kubelet/csi"
)

// CSI is what CSI volumes need besides.
type CSI struct {
	Drivers *csi.Drivers
	Client  kubernetes.Interface
}

// attaches reports whether a volume has to be attached to the node before it can be used.
func (p *csiJob) attaches() bool {
	return p.pv != nil && (p.driver == nil || p.driver.Spec.AttachRequired == nil || *p.driver.Spec.AttachRequired)
}

// attached waits until the volume is attached to the node. First the node says that it uses the volume: from then on
// nobody detaches it.
func (p *csiJob) attached(ctx context.Context) error {
	if !p.attaches() {
		return nil
	}
	err := p.m.Attached.await(ctx, attachments.VolumeName(p.driverName, p.handle), p.spec.name)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		if unknown := p.noRoom(ctx); unknown != nil {
			klog.FromContext(ctx).Error(unknown, "Cannot tell whether a node has room for a volume", "volume", p.name, "driver", p.driverName)
		}
	}
	if err != nil {
		return err
	}
	if err := p.attachment(ctx); err != nil {
		return &failedAt{p.step("MountVolume.WaitForAttach failed", "MapVolume.WaitForAttach failed"), err}
	}
	return nil
}

// attachment takes over what the attacher passes on to the node.
func (p *csiJob) attachment(ctx context.Context) error {
	id := attachments.Name(p.driverName, p.handle, p.m.NodeName)
	a, err := p.c.Client.StorageV1().VolumeAttachments().Get(ctx, id, metav1.GetOptions{})
	switch {
	case err != nil:
		return fmt.Errorf("volume %s has GET error for volume attachment %s: %w", p.handle, id, err)
	case a.DeletionTimestamp != nil:
		return errors.New("volume attachment is being deleted")
	case a.Status.Attached:
		p.context = a.Status.AttachmentMetadata
		return nil
	case a.Status.AttachError != nil:
		return errors.New(a.Status.AttachError.Message)
	}
	return fmt.Errorf("volume attachment %s is not attached", id)
}

// ReasonNoRoom is why a pod is rejected for which a driver can attach no more volumes, upstream's
// VolumeAttachmentLimitExceededReason.
const ReasonNoRoom = "VolumeAttachmentLimitExceeded"

// noRoom rejects a pod that has waited in vain if the node has no room for its volume, though the scheduler thought so: another
// pod in its place gets another node. The cluster is told what the driver says now. Drivers ask for that by the period in
// which they are refreshed (KEP-4876).
func (p *csiJob) noRoom(ctx context.Context) error {
	if csi.RefreshPeriod(p.driver) == 0 {
		return nil
	}
	a, err := p.c.Client.StorageV1().VolumeAttachments().Get(ctx, attachments.Name(p.driverName, p.handle, p.m.NodeName), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	why := a.Status.AttachError
	if a.Status.Attached || why == nil || codes.Code(ptr.Deref(why.ErrorCode, 0)) != codes.ResourceExhausted {
		return nil
	}
	err = p.c.Drivers.Refresh(ctx, p.driverName)
	p.m.Reject(p.pod, ReasonNoRoom, fmt.Sprintf("Node has reached its volume attachment limit, rejecting pod. "+
		"unmounted volumes=[%[1]s], unattached volumes=[%[1]s], failed to process volumes=[]: %[2]s", p.spec.name, why.Message))
	return err
}
