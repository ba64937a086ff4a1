package volume

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"wherry.dev/internal/kubelet/criconfig"
)

// Attached is what the node and the controller that attaches volumes tell each other: which volumes the node uses, and
// which ones it may use.
type Attached struct {
	// Report, if not nil, has the node's status written, with VolumesInUse.
	Report func()
	// Written, if not nil, is Report for whoever waits until the API server has it. It returns the version of the node that
	// has what is in use from now on.
	Written func(ctx context.Context) (version string, err error)

	// patience replaces attachTime in tests.
	patience time.Duration

	mu   sync.Mutex
	node *v1.Node
	seen chan struct{} // closed, and replaced, when the node's status is another one
}

// report has the node's status written, if there is anybody who reads it.
func (a *Attached) report() {
	if a != nil && a.Report != nil {
		a.Report()
	}
}

// NodeSeen takes over which volumes the API server has as used by and as attached to the node.
func (a *Attached) NodeSeen(n *v1.Node) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.node = n
	if a.seen != nil {
		close(a.seen)
		a.seen = nil
	}
}

// look returns the node as last seen, and what is closed when there is another one.
func (a *Attached) look() (*v1.Node, <-chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.seen == nil {
		a.seen = make(chan struct{})
	}
	return a.node, a.seen
}

// attachTime is how long a pod waits until it is told that its volume is not attached yet, as upstream's
// podAttachAndMountTimeout.
const attachTime = 2*time.Minute + 3*time.Second

// await waits until the node may use the volume that a pod has under another name. First the node says that it uses the
// volume, which has been written down: from then on nobody detaches it. What the server said before that does not count: the
// node may have stopped using the volume since, which somebody is about to see.
func (a *Attached) await(ctx context.Context, name v1.UniqueVolumeName, volume string) error {
	waiting, cancel := context.WithTimeout(ctx, cmp.Or(a.patience, attachTime))
	defer cancel()
	err := a.awaitWithin(waiting, name)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	const text = "Unable to attach or mount volumes: unmounted volumes=[%s], unattached volumes=[%s], failed to process volumes=[]: %w"
	return &Failure{Reason: "FailedMount", err: fmt.Errorf(text, volume, volume, err)} //nolint:staticcheck // upstream's words
}

func (a *Attached) awaitWithin(ctx context.Context, name v1.UniqueVolumeName) error {
	since := ""
	if a.Written != nil {
		var err error
		if since, err = a.Written(ctx); err != nil {
			return err
		}
	}
	for {
		node, next := a.look()
		if node != nil && !older(node, since) && usedAndAttached(&node.Status, name) {
			return nil
		}
		select {
		case <-next:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// older reports whether a node is older than a version.
func older(node *v1.Node, than string) bool {
	order, err := resourceversion.CompareResourceVersion(node.ResourceVersion, than)
	return err == nil && order < 0
}

func usedAndAttached(st *v1.NodeStatus, name v1.UniqueVolumeName) bool {
	return slices.Contains(st.VolumesInUse, name) &&
		slices.ContainsFunc(st.VolumesAttached, func(a v1.AttachedVolume) bool { return a.Name == name })
}

// VolumesInUse returns the attached volumes that the node has, or is about to have, as the disk knows them. Whoever
// detaches volumes leaves these alone.
func VolumesInUse(dirs criconfig.Dirs) ([]v1.UniqueVolumeName, error) {
	ofDrivers, err := csiInUse(dirs)
	if err != nil {
		return nil, err
	}
	ofDisks, err := disksInUse(dirs)
	if err != nil {
		return nil, err
	}
	all := slices.Concat(ofDrivers, ofDisks)
	slices.Sort(all)
	return slices.Compact(all), nil
}
