package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"k8s.io/klog/v2"

	"wherry.dev/internal/failpoint"
	"wherry.dev/internal/kubelet/criconfig"
	"wherry.dev/internal/kubelet/csi"
	"wherry.dev/internal/mount"
)

// A driver that fails to take a volume from the node is asked again after unstageBase, twice that, and so on, up to
// unstageMax, as upstream.
const (
	unstageBase = 500 * time.Millisecond
	unstageMax  = 2*time.Minute + 2*time.Second
)

// unstagePatience is how long the last pod of a volume waits for the driver to take it from the node. Nearly all are done by
// then, and the pod is gone after its volume is.
const unstagePatience = 2 * time.Second

// staged is a volume as the node has it.
type staged struct {
	driver, handle string
	files          csiFiles
	device         string // the name of its PersistentVolume, if it is a device
	attached       bool   // somebody attaches it
}

// stagedOn returns the volumes of drivers that the node has, or is about to have.
func stagedOn(dirs criconfig.Dirs) (out []staged, err error) {
	for _, pattern := range []string{filepath.Join("*", "*", volDataFile), filepath.Join(devicesFolder, "*", "data", volDataFile)} {
		all, err := filepath.Glob(filepath.Join(csiRoot(dirs), pattern))
		if err != nil {
			return nil, err
		}
		for _, path := range all {
			data, err := readVolData(filepath.Dir(path))
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return nil, err
			}
			s := staged{driver: data[keyDriver], handle: data[keyHandle], attached: data[keyAttachment] != ""}
			s.files = filesOf(dirs, s.driver, s.handle)
			if filepath.Base(filepath.Dir(path)) == "data" {
				s.device = filepath.Base(filepath.Dir(filepath.Dir(path)))
				s.files = deviceFiles(dirs, s.device)
			}
			out = append(out, s)
		}
	}
	return out, nil
}

// unstages are the volumes that no pod has any more, and that their drivers have failed to take from the node.
type unstages struct {
	mu sync.Mutex
	// see begins to see to one, while there is a Run. A message to woken lets the next attempt begin.
	see  func(s staged, woken <-chan struct{})
	due  map[string]staged        // that nobody sees to, by their data's folder
	seen map[string]chan struct{} // what wakes those that are seen to
}

func (u *unstages) add(s staged) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.addLocked(s)
}

func (u *unstages) addLocked(s staged) {
	key := s.files.data
	switch woken := u.seen[key]; {
	case woken != nil:
		nudge(woken)
	case u.see == nil:
		if u.due == nil {
			u.due = map[string]staged{}
		}
		u.due[key] = s
	default:
		woken = make(chan struct{}, 1)
		u.seen[key] = woken
		u.see(s, woken)
	}
}

// begin has see see to all that is due, and to all that comes; nil ends that.
func (u *unstages) begin(see func(staged, <-chan struct{})) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.see = see
	due := u.due
	u.due, u.seen = map[string]staged{}, map[string]chan struct{}{}
	for _, s := range due {
		u.addLocked(s)
	}
}

// over ends what sees to a volume, unless there is a reason to look again.
func (u *unstages) over(s staged, woken <-chan struct{}) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	select {
	case <-woken:
		return false
	default:
		delete(u.seen, s.files.data)
		return true
	}
}

// wake lets all that wait be tried again at once.
func (u *unstages) wake() {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, woken := range u.seen {
		nudge(woken)
	}
}

func nudge(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Run takes those volumes from the node that no pod has any more and that are still on it, until ctx ends: what their drivers
// failed to take, and what an earlier kubelet has left.
func (m *Mounter) Run(ctx context.Context) error {
	if m.CSI == nil {
		return nil
	}
	left, err := stagedOn(m.Dirs)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Cannot tell which volumes of CSI drivers are on the node")
	}
	var all sync.WaitGroup
	m.unstages.begin(func(s staged, woken <-chan struct{}) {
		all.Go(func() { m.insist(ctx, s, woken) })
	})
	for _, s := range left {
		m.unstages.add(s)
	}
	<-ctx.Done()
	m.unstages.begin(nil)
	all.Wait()
	return nil
}

// insist has a volume taken from the node.
func (m *Mounter) insist(ctx context.Context, s staged, woken <-chan struct{}) {
	for wait := unstageBase; ; wait = min(2*wait, unstageMax) {
		err := m.unstage(ctx, s)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil && m.unstages.over(s, woken):
			return
		case err == nil: // another pod has let go of it meanwhile, and has failed
			continue
		}
		log := klog.FromContext(ctx)
		if _, missing := errors.AsType[*csi.NotRegisteredError](err); missing {
			log = log.V(2)
			log.Info("A volume that no pod has stays on the node until its driver comes", "driver", s.driver, "handle", s.handle)
		} else {
			log.Error(err, "Cannot take a volume from the node that no pod has, trying again", "driver", s.driver, "handle", s.handle, "in", wait)
		}
		select {
		case <-time.After(wait):
		case <-woken:
		case <-ctx.Done():
			return
		}
	}
}

// release takes a volume from the node that a pod has let go of, if no other pod has it. It does not wait for long: a driver that
// fails, or hangs, keeps nobody's pod, and is asked again.
func (m *Mounter) release(ctx context.Context, s staged) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := m.unstage(context.WithoutCancel(ctx), s); err != nil {
			klog.FromContext(ctx).Error(err, "Cannot take a volume from the node yet", "driver", s.driver, "handle", s.handle)
			m.unstages.add(s)
		}
	}()
	timer := time.NewTimer(unstagePatience)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// unstage takes a volume from the node, unless a pod has it. Until that is done, the node says that it uses it.
func (m *Mounter) unstage(ctx context.Context, s staged) error {
	return m.aloneWith(ctx, s.driver, s.handle, func() error {
		data, err := readVolData(s.files.data)
		if errors.Is(err, fs.ErrNotExist) { // it is done
			return nil
		}
		if err != nil {
			return err
		}
		if had, err := s.had(m.Dirs, data); err != nil || had {
			return err
		}
		return m.unstageBy(ctx, s, data)
	})
}

// had reports whether a pod has the volume.
func (s staged) had(dirs criconfig.Dirs, data volData) (bool, error) {
	if s.device == "" {
		return publishedAnywhere(dirs, data)
	}
	links, err := filepath.Glob(filepath.Join(dirs.Pods(), "*", devicesFolder, csiFolder, s.device))
	return len(links) > 0, err
}

func (m *Mounter) unstageBy(ctx context.Context, s staged, data volData) error {
	if _, err := os.Lstat(s.files.staging); errors.Is(err, fs.ErrNotExist) { // the driver was never asked to stage it
		return m.leave(s.files)
	}
	if data[keyStaged] != "" { // whatever comes of it, a pod that is to have the volume has it staged again
		delete(data, keyStaged)
		if err := data.write(s.files.data); err != nil {
			return err
		}
	}
	err := m.CSI.Drivers.Call(ctx, s.driver, func(ctx context.Context, n csipb.NodeClient) error {
		can, err := csi.Can(ctx, n)
		if err != nil || !can[csipb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME] {
			return err
		}
		_, err = n.NodeUnstageVolume(ctx, &csipb.NodeUnstageVolumeRequest{VolumeId: s.handle, StagingTargetPath: s.files.staging})
		return err
	})
	if err = unlessUnknown(err, s.files.staging); err != nil {
		return fmt.Errorf("UnmountDevice failed for volume %q : %w", data[keySpecVolID], err)
	}
	listed, err := mount.Listed(s.files.staging)
	if err == nil && listed {
		err = fmt.Errorf("driver %s says that it has unstaged the volume %s, and it is still mounted at %s", s.driver, s.handle, s.files.staging)
	}
	if err != nil {
		return err
	}
	failpoint.At("csi-unstaged")
	return m.leave(s.files)
}

// leave has the node say that it does not use the volume any more.
func (m *Mounter) leave(files csiFiles) error {
	if err := files.remove(); err != nil {
		return err
	}
	m.Attached.report()
	return nil
}
