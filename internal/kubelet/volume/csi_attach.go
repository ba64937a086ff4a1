package volume

import (
	"context"
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

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
	if err := p.m.Attached.await(ctx, attachments.VolumeName(p.driverName, p.handle), p.spec.name); err != nil {
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
