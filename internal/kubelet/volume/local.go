package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"wherry.dev/internal/mount"
	"wherry.dev/internal/safepath"
)

// local is a directory or a device of the node, which a PersistentVolume names. A directory is bound into the pod's own, and
// so is what is on a device; a device itself is linked there.
type local struct {
	placed
	m *Mounter
}

const (
	localFolder = "kubernetes.io~local-volume"
	localPlugin = "local-volume"
)

func (m *Mounter) locals() kind { return local{localFolder, m} }

func (local) is(s *spec) bool { return s.pv != nil && s.pv.Spec.Local != nil }

// ready: what is mounted is complete, because mounting is the last step. A device is looked up anew.
func (local) ready(dir string) (bool, error) { return mount.Mounted(dir) }

func (l local) tearDown(ctx context.Context, dir string) error {
	return l.m.leaveDisk(ctx, localPlugin, dir)
}

// removePlace removes the link or the empty directory at which a volume was. It must not remove more: if something is
// still mounted there, its content is not ours.
func removePlace(dir string) error {
	if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func (l local) setUp(ctx context.Context, s *spec, dir string) (time.Time, error) {
	path := s.pv.Spec.Local.Path
	if err := acceptable(path, l.m.Dirs.Root); err != nil {
		return time.Time{}, err
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o750); err != nil {
		return time.Time{}, err
	}
	switch {
	case s.block:
		return time.Time{}, linkDevice(path, dir)
	case isDisk(path) == nil:
		return time.Time{}, l.m.useDisk(ctx, dir, &diskUse{
			spec: s, plugin: localPlugin, id: s.pv.Name, is: diskRecord{Local: path},
			readOnly: s.readOnly, fsType: ptr.Deref(s.pv.Spec.Local.FSType, ""),
			connect: func(_ context.Context, r *diskRecord, _ func() error) (string, error) { return r.Local, nil },
		})
	}
	// Pods that share a volume come one after another: the first one gives it to its group.
	return time.Time{}, l.m.calls.alone(ctx, ofVolume, s.pv.Name, func() error { return l.bind(ctx, s, path, dir) })
}

// acceptable refuses paths that cannot be a volume: those that climb, and those that show one pod's files to another.
func acceptable(path, root string) error {
	switch {
	case path == "" || !filepath.IsAbs(path):
		return fmt.Errorf("invalid path: %q is not absolute", path)
	case slices.Contains(strings.Split(path, "/"), ".."):
		return fmt.Errorf("invalid path: %s must not contain '..'", path)
	case within(root, path), within(path, root):
		return fmt.Errorf("invalid path: %s has, or is among, the files that the kubelet keeps of its pods (%s)", path, root)
	}
	return nil
}

// within reports whether a path is dir or lies below it.
func within(dir, path string) bool {
	rel, err := filepath.Rel(filepath.Clean(dir), filepath.Clean(path))
	return err == nil && filepath.IsLocal(rel)
}

// bind mounts a directory. It is opened once: whatever takes its name meanwhile is not mounted, and not changed.
func (l local) bind(ctx context.Context, s *spec, path, dir string) error {
	from, err := openVolume(path)
	if err != nil {
		return err
	}
	defer func() { _ = from.Close() }()
	attributes, err := bindOptions(s.pv.Spec.MountOptions)
	if err != nil {
		return err
	}
	if !s.readOnly && !slices.Contains(s.pv.Spec.MountOptions, "ro") {
		if err := l.give(ctx, s, from); err != nil {
			return err
		}
	}
	if err := os.Mkdir(dir, 0o750); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if err := ctx.Err(); err != nil { // nobody waits for it any more
		return err
	}
	return mount.Attach(from, dir, attributes)
}

// openVolume opens a directory of the node, as a reference.
func openVolume(path string) (*os.File, error) {
	from, err := os.OpenFile(path, unix.O_PATH, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &failedAt{"MountVolume.NewMounter initialization failed", fmt.Errorf("path %q does not exist", path)}
	}
	if err != nil {
		return nil, err
	}
	info, err := from.Stat()
	switch {
	case err != nil:
	case info.Mode()&fs.ModeDevice != 0:
		err = fmt.Errorf("path %q is a device without a file system", path)
	case !info.IsDir():
		err = fmt.Errorf("path %q is not a directory", path)
	}
	if err != nil {
		return nil, errors.Join(err, from.Close())
	}
	return from, nil
}

// bindAttributes are the options that a bound directory can have for itself.
var bindAttributes = map[string]uint64{
	"ro": unix.MOUNT_ATTR_RDONLY, "nosuid": unix.MOUNT_ATTR_NOSUID, "nodev": unix.MOUNT_ATTR_NODEV, "noexec": unix.MOUNT_ATTR_NOEXEC,
	"noatime": unix.MOUNT_ATTR_NOATIME, "nodiratime": unix.MOUNT_ATTR_NODIRATIME, "nosymfollow": unix.MOUNT_ATTR_NOSYMFOLLOW,
	"bind": 0, "rw": 0, "suid": 0, "dev": 0, "exec": 0, "defaults": 0,
}

func bindOptions(options []string) (set uint64, err error) {
	for _, list := range options {
		for o := range strings.SplitSeq(list, ",") {
			attribute, ok := bindAttributes[o]
			if !ok {
				return 0, fmt.Errorf("mount option %q means nothing for a local directory", o)
			}
			set |= attribute
		}
	}
	return set, nil
}

// give makes the files of a volume accessible to the pod's group. The first of the pods that share a volume decides.
func (l local) give(ctx context.Context, s *spec, from *os.File) error {
	group := fsGroup(s.pod)
	if group == nil {
		return nil
	}
	others, err := l.m.others(s.pod.UID, s.pv.Name)
	if err != nil {
		return err
	}
	for _, b := range others {
		there, err := l.ready(b.Path)
		if err != nil {
			return err
		}
		if there {
			return l.warnOfGroup(s, from, *group)
		}
	}
	policy := ptr.Deref(s.pod.Spec.SecurityContext.FSGroupChangePolicy, v1.FSGroupChangeAlways)
	return safepath.GiveGroup(ctx, from, int(*group), policy == v1.FSGroupChangeOnRootMismatch)
}

// warnOfGroup tells a pod that it shares a volume with one of another group.
func (l local) warnOfGroup(s *spec, from *os.File, group int64) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(from.Fd()), &st); err != nil {
		return err
	}
	if int64(st.Gid) != group && l.m.Warn != nil {
		l.m.Warn(s.pod, "AlreadyMountedVolume", fmt.Sprintf(
			"The requested fsGroup is %d, but the volume %s has GID %d. The volume may not be shareable.", group, s.pv.Name, st.Gid))
	}
	return nil
}

// linkDevice makes a device known under a name of the pod's.
func linkDevice(path, link string) error {
	if err := isDisk(path); err != nil {
		return err
	}
	if have, err := os.Readlink(link); err == nil && have == path {
		return nil
	}
	if err := removePlace(link); err != nil {
		return err
	}
	return os.Symlink(path, link)
}
