package volume

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"wherry.dev/internal/api/attachments"
	"wherry.dev/internal/kubelet/csi"
)

// CSI is what CSI volumes need besides.
type CSI struct {
	Drivers *csi.Drivers
	Client  kubernetes.Interface
	// Report has the node's status written, with VolumesInUse.
	Report func()

	mu   sync.Mutex
	node *v1.NodeStatus
	seen chan struct{} // closed, and replaced, when the node's status is another one
}

func (c *CSI) report() {
	if c.Report != nil {
		c.Report()
	}
}

// NodeSeen takes over which volumes the API server has as used by and as attached to the node.
func (c *CSI) NodeSeen(n *v1.Node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.node = &n.Status
	if c.seen != nil {
		close(c.seen)
		c.seen = nil
	}
}

// look returns the node's status as last seen, and what is closed when there is another one.
func (c *CSI) look() (*v1.NodeStatus, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.seen == nil {
		c.seen = make(chan struct{})
	}
	return c.node, c.seen
}

// attachTime is how long a pod waits until it is told that its volume is not attached yet, as upstream's
// podAttachAndMountTimeout.
const attachTime = 2*time.Minute + 3*time.Second

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
	waiting, cancel := context.WithTimeout(ctx, attachTime)
	defer cancel()
	name := attachments.VolumeName(p.driverName, p.handle)
	told := false
	for {
		node, next := p.c.look()
		used := node != nil && slices.Contains(node.VolumesInUse, name)
		if used && attachedTo(node, name) {
			break
		}
		if !used && !told {
			p.c.report()
			told = true
		}
		select {
		case <-next:
		case <-waiting.Done():
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			const text = "Unable to attach or mount volumes: unmounted volumes=[%s], unattached volumes=[%s], failed to process volumes=[]: %w"
			return &Failure{Reason: "FailedMount", err: fmt.Errorf(text, p.spec.name, p.spec.name, waiting.Err())} //nolint:staticcheck // upstream's words
		}
	}
	if err := p.attachment(ctx); err != nil {
		return &failedAt{p.step("MountVolume.WaitForAttach failed", "MapVolume.WaitForAttach failed"), err}
	}
	return nil
}

func attachedTo(node *v1.NodeStatus, name v1.UniqueVolumeName) bool {
	for i := range node.VolumesAttached {
		if node.VolumesAttached[i].Name == name {
			return true
		}
	}
	return false
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
