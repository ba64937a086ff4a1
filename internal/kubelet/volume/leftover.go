package volume

import (
	"context"
	"errors"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"wherry.dev/internal/kubelet/csi"
)

// What could not be taken from the node is tried again after leaveBase, twice that, and so on, up to leaveMax, as upstream.
const (
	leaveBase = 500 * time.Millisecond
	leaveMax  = 2*time.Minute + 2*time.Second
)

// leavePatience is how long the last pod of a volume waits for it to be taken from the node. Nearly all are by then, and the pod
// is gone after its volume is.
const leavePatience = 2 * time.Second

// leftover is a volume that the node has and that no pod has any more. Until it is taken from the node, the node says that it
// uses it.
type leftover interface {
	name() string
	folder() string // with what the node knows of it; no two have the same
	// leave takes it from the node, unless a pod has it.
	leave(ctx context.Context, m *Mounter) error
}

// leftovers are those that could not be taken from the node: a driver has failed, or a program still uses the disk.
type leftovers struct {
	mu sync.Mutex
	// see begins to see to one, while there is a Run. A message to woken lets the next attempt begin.
	see  func(l leftover, woken <-chan struct{})
	due  map[string]leftover      // that nobody sees to, by their folders
	seen map[string]chan struct{} // what wakes those that are seen to
}

func (o *leftovers) add(l leftover) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.addLocked(l)
}

func (o *leftovers) addLocked(l leftover) {
	key := l.folder()
	switch woken := o.seen[key]; {
	case woken != nil:
		nudge(woken)
	case o.see == nil:
		if o.due == nil {
			o.due = map[string]leftover{}
		}
		o.due[key] = l
	default:
		woken = make(chan struct{}, 1)
		o.seen[key] = woken
		o.see(l, woken)
	}
}

// begin has see see to all that is due, and to all that comes; nil ends that.
func (o *leftovers) begin(see func(leftover, <-chan struct{})) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.see = see
	due := o.due
	o.due, o.seen = map[string]leftover{}, map[string]chan struct{}{}
	for _, l := range due {
		o.addLocked(l)
	}
}

// over ends what sees to a volume, unless there is a reason to look again.
func (o *leftovers) over(l leftover, woken <-chan struct{}) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	select {
	case <-woken:
		return false
	default:
		delete(o.seen, l.folder())
		return true
	}
}

// wake lets all that wait be tried again at once.
func (o *leftovers) wake() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, woken := range o.seen {
		nudge(woken)
	}
}

func nudge(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Run takes those volumes from the node that no pod has any more and that are still on it, until ctx ends: what could not be
// taken when the last pod let go of it, and what an earlier kubelet has left.
func (m *Mounter) Run(ctx context.Context) error {
	left, err := m.leftOver()
	if err != nil {
		klog.FromContext(ctx).Error(err, "Cannot tell which volumes are on the node")
	}
	var all sync.WaitGroup
	m.leftovers.begin(func(l leftover, woken <-chan struct{}) {
		all.Go(func() { m.insist(ctx, l, woken) })
	})
	for _, l := range left {
		m.leftovers.add(l)
	}
	<-ctx.Done()
	m.leftovers.begin(nil)
	all.Wait()
	return nil
}

// leftOver returns what may be left over: pods may have some of it.
func (m *Mounter) leftOver() (out []leftover, err error) {
	if m.CSI != nil {
		all, err := stagedOn(m.Dirs)
		if err != nil {
			return nil, err
		}
		for _, s := range all {
			out = append(out, s)
		}
	}
	disks, err := allDisks(m.Dirs, "*")
	for _, d := range disks {
		out = append(out, d)
	}
	return out, err
}

// insist has a volume taken from the node, however long that takes.
func (m *Mounter) insist(ctx context.Context, l leftover, woken <-chan struct{}) {
	for wait := leaveBase; ; wait = min(2*wait, leaveMax) {
		err := m.tryToLeave(ctx, l)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil && m.leftovers.over(l, woken):
			return
		case err == nil: // another pod has let go of it meanwhile, and has failed
			continue
		}
		log := klog.FromContext(ctx)
		if _, missing := errors.AsType[*csi.NotRegisteredError](err); missing {
			log = log.V(2)
			log.Info("A volume that no pod has stays on the node until its driver comes", "volume", l.name())
		} else {
			log.Error(err, "Cannot take a volume from the node that no pod has, trying again", "volume", l.name(), "in", wait)
		}
		select {
		case <-time.After(wait):
		case <-woken:
		case <-ctx.Done():
			return
		}
	}
}

// tryToLeave tries once. When the kubelet stops, it does not wait for the kernel to give up a disk that does not answer.
func (m *Mounter) tryToLeave(ctx context.Context, l leftover) error {
	done := make(chan error, 1)
	go func() { done <- l.leave(ctx, m) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-done:
		return err
	case <-time.After(leavePatience):
		return ctx.Err()
	}
}

// release takes a volume from the node that a pod has let go of, if no other pod has it. It does not wait for long: a driver that
// fails, or hangs, keeps nobody's pod, and is asked again.
func (m *Mounter) release(ctx context.Context, l leftover) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := l.leave(context.WithoutCancel(ctx), m); err != nil {
			klog.FromContext(ctx).Error(err, "Cannot take a volume from the node yet", "volume", l.name())
			m.leftovers.add(l)
		}
	}()
	timer := time.NewTimer(leavePatience)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	case <-ctx.Done():
	}
}
