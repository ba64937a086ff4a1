package localvolume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/klog/v2"

	"wherry.dev/internal/mount"
	"wherry.dev/internal/quota"
	"wherry.dev/internal/record"
	"wherry.dev/internal/safepath"
)

// openToAll is the mode of a volume: which user a pod runs as is not known, and nobody else gets to it.
const openToAll = 0o777

// makeDirectory makes the directory of a volume, unless it is there, and limits it to the volume's size, in bytes, if the
// file system can do that. It is on the disk when this returns: the volume that names it comes next, and must not outlive it.
func makeDirectory(root, name string, size int64) error {
	dir, err := safepath.Open(root)
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	if err := dir.Make(name, openToAll); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	there, err := folder(dir, name)
	if err != nil {
		return err // something else has its name
	}
	defer func() { _ = there.Close() }()
	if err := quota.Limit(there, uint64(size)); err != nil && !errors.Is(err, quota.ErrNone) {
		return err
	}
	return errors.Join(there.Sync(), record.SyncDir(root))
}

// folder opens a folder that has a name, not one to which a link of that name leads.
func folder(in *safepath.Dir, name string) (*os.File, error) {
	dir, err := in.Sub(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = dir.Close() }()
	return dir.Folder(".")
}

// limitDirectory limits the directory of a volume to another size, if it is limited.
func limitDirectory(root, name string, size int64) error {
	return onDirectory(root, name, func(there *os.File) error {
		if project, err := quota.Project(there); err != nil || project == 0 {
			return err
		}
		if err := quota.Limit(there, uint64(size)); !errors.Is(err, quota.ErrNone) {
			return err
		}
		return nil // limits were switched off
	})
}

// onDirectory calls f with the directory of a volume; not at all if there is none, or something else in its place.
func onDirectory(root, name string, f func(*os.File) error) error {
	dir, err := safepath.Open(root)
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	there, err := folder(dir, name)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(f(there), there.Close())
}

// making are the directories that have no volume yet, as far as this process has made them.
type making struct {
	mu sync.Mutex
	// busy are those that somebody works on.
	busy map[string]bool
	// open are those whose volume may not have been written, by claim.
	open map[string]string
}

// begin reports whether nobody works on a directory, and has nobody else begin until end.
func (m *making) begin(name string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.busy[name] {
		return false
	}
	if m.busy == nil {
		m.busy, m.open = map[string]bool{}, map[string]string{}
	}
	m.busy[name] = true
	return true
}

func (m *making) end(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.busy, name)
}

func (m *making) note(claim, name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.open[claim] = name
}

func (m *making) done(claim string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.open, claim)
}

func (m *making) of(claim string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.open[claim]
}

// giveUp removes the directory that was begun for a claim of that name which is not to have it any more. wanted is the
// one that it is to have; "" for none.
func (p *Provisioner) giveUp(ctx context.Context, claim, wanted string) error {
	begun := p.making.of(claim)
	if begun == "" || begun == wanted {
		return nil
	}
	if err := p.tidy(ctx, begun); err != nil {
		return err
	}
	p.making.done(claim)
	return nil
}

// leftovers is the key that stands for what an earlier process left.
const leftovers = ""

// sweep looks through the directories for those that have no volume.
func (p *Provisioner) sweep(ctx context.Context) error {
	entries, err := os.ReadDir(p.Root)
	if err != nil {
		return err
	}
	wanted, err := p.wanted()
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		if name := e.Name(); strings.HasPrefix(name, namePrefix) && !wanted[name] {
			errs = append(errs, p.tidy(ctx, name))
		}
	}
	return errors.Join(errs...)
}

// wanted are the names of the directories that have a volume, or are about to have one.
func (p *Provisioner) wanted() (map[string]bool, error) {
	out := map[string]bool{}
	volumes, err := p.volumeLister.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	for _, pv := range volumes {
		out[pv.Name] = true
	}
	claims, err := p.claimLister.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	for _, c := range claims {
		if p.mine(c) {
			out[volumeName(c)] = true
		}
	}
	return out, nil
}

// tidy removes a directory that never had a volume: there is none of its name, and nothing is in it. One with content
// stays, because somebody has kept the data and deleted the volume.
func (p *Provisioner) tidy(ctx context.Context, name string) error {
	if !p.making.begin(name) {
		return errBusy
	}
	defer p.making.end(name)
	_, err := p.client.CoreV1().PersistentVolumes().Get(ctx, name, metav1.GetOptions{})
	if err == nil {
		return nil
	}
	if !apierrors.IsNotFound(err) {
		return fmt.Errorf("look for volume %s: %w", name, err)
	}
	err = os.Remove(p.directory(name)) // only if it is empty
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if empty, lerr := isEmpty(p.directory(name)); lerr == nil && !empty {
		klog.FromContext(ctx).Info("A directory of local volumes has data and no PersistentVolume: it stays until somebody removes it",
			"directory", p.directory(name))
		return nil
	}
	return err
}

func isEmpty(dir string) (bool, error) {
	f, err := os.Open(dir)
	if err != nil {
		return false, err
	}
	names, err := f.Readdirnames(1)
	if len(names) > 0 {
		err = nil
	}
	return len(names) == 0, errors.Join(err, f.Close())
}

// removeDirectory removes the directory of a volume, with everything in it.
func (p *Provisioner) removeDirectory(ctx context.Context, name string) error {
	dir := filepath.Join(p.Root, name)
	users, err := mount.Showing(dir)
	if err != nil {
		return err
	}
	if len(users) > 0 {
		return fmt.Errorf("%w: it is still mounted at %s", errInUse, users[0])
	}
	if err := onDirectory(p.Root, name, quota.Release); err != nil {
		return err
	}
	return safepath.RemoveAllUntil(ctx, dir)
}

var errInUse = errors.New("the volume is in use")
