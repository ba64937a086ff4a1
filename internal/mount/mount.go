// Package mount has the mount operations that Wherry needs. Each is idempotent: doing it twice,
// or again after a crash, is not an error. The kernel's mountinfo is the only truth; nothing is
// remembered here.
package mount

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"wherry.dev/internal/safepath"
)

// Mounted reports whether path is a mount point.
func Mounted(path string) (bool, error) {
	ok, err := mountinfo.Mounted(path)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	return ok, err
}

// Tmpfs mounts a tmpfs at dir (made if missing) unless something is mounted there already.
// sizeBytes 0 means the kernel's default, half of the memory.
func Tmpfs(dir string, mode os.FileMode, sizeBytes int64) error {
	if err := os.MkdirAll(dir, mode); err != nil {
		return err
	}
	if ok, err := Mounted(dir); err != nil || ok {
		return err
	}
	data := fmt.Sprintf("mode=%o", mode.Perm())
	if sizeBytes > 0 {
		data += fmt.Sprintf(",size=%d", sizeBytes)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NODEV|unix.MS_NOSUID, data); err != nil {
		return fmt.Errorf("mount tmpfs at %s: %w", dir, err)
	}
	return nil
}

// HugePages mounts a file system whose files use huge pages of the given size, unless something
// is mounted there already. dir must exist.
func HugePages(dir string, pageBytes int64) error {
	if ok, err := Mounted(dir); err != nil || ok {
		return err
	}
	if err := unix.Mount("nodev", dir, "hugetlbfs", 0, fmt.Sprintf("pagesize=%d", pageBytes)); err != nil {
		return fmt.Errorf("mount hugetlbfs at %s: %w", dir, err)
	}
	return nil
}

// Bind makes src visible at dst, recursively, and read-only if asked. dst must exist.
func Bind(src, dst string, readOnly bool) error {
	if ok, err := Mounted(dst); err != nil || ok {
		return err
	}
	if err := unix.Mount(src, dst, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("bind %s at %s: %w", src, dst, err)
	}
	if !readOnly {
		return nil
	}
	if err := unix.Mount("", dst, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		_ = unix.Unmount(dst, unix.MNT_DETACH)
		return fmt.Errorf("make %s read-only: %w", dst, err)
	}
	return nil
}

// Unmount unmounts the topmost mount at path, lazily, so that a busy file cannot block it. It is
// no error if path is not a mount point or does not exist.
func Unmount(path string) error {
	err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	if err == nil || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
		return nil
	}
	return fmt.Errorf("unmount %s: %w", path, err)
}

// UnmountStack is Unmount for everything that is mounted at path, one over another.
func UnmountStack(path string) error {
	for {
		err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("unmount %s: %w", path, err)
		}
	}
}

// Under lists the mount points at and below dir, deepest first; stacked mounts
// appear as often as they are stacked.
func Under(dir string) ([]string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	infos, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		return nil, err
	}
	points := make([]string, 0, len(infos))
	for _, i := range infos {
		points = append(points, i.Mountpoint)
	}
	sort.Slice(points, func(a, b int) bool {
		return strings.Count(points[a], "/") > strings.Count(points[b], "/")
	})
	return points, nil
}

// Showing returns the mount points, other than those on the way to it, at which a directory or a part of it is visible.
func Showing(dir string) ([]string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	all, err := mountinfo.GetMounts(nil)
	if err != nil {
		return nil, err
	}
	return showing(dir, all), nil
}

// of returns the mount that a directory is on, nil if there is none.
func of(dir string, all []*mountinfo.Info) (on *mountinfo.Info) {
	for _, m := range all {
		if isWithin(m.Mountpoint, dir) && (on == nil || len(m.Mountpoint) >= len(on.Mountpoint)) {
			on = m // of those at the same place, the last one covers the others
		}
	}
	return on
}

// ErrMountsBelow says that a directory cannot become a mount point: what is mounted below it would be out of sight.
var ErrMountsBelow = errors.New("something is mounted below it")

// Share has what is mounted in a directory, by whomever, appear to all who share it: the machine, and containers to which it
// was given with mount propagation. Where the directory is on a mount that is not shared, it becomes one of its own; the
// error is then ErrMountsBelow if something is mounted in it already.
func Share(dir string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	all, err := mountinfo.GetMounts(nil)
	if err != nil {
		return err
	}
	on := of(dir, all)
	if on == nil || strings.Contains(on.Optional, "shared:") {
		return nil
	}
	if on.Mountpoint != dir {
		if slices.ContainsFunc(all, func(m *mountinfo.Info) bool { return isWithin(dir, m.Mountpoint) }) {
			return fmt.Errorf("share what is mounted in %s: %w", dir, ErrMountsBelow)
		}
		if err := unix.Mount(dir, dir, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mount %s on itself: %w", dir, err)
		}
	}
	if err := unix.Mount("", dir, "", unix.MS_SHARED|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("share what is mounted in %s: %w", dir, err)
	}
	return nil
}

// showing finds the mount that the directory is on, and those of the same file system that begin at or below it.
func showing(dir string, all []*mountinfo.Info) []string {
	on := of(dir, all)
	if on == nil {
		return nil
	}
	inside := filepath.Join(on.Root, strings.TrimPrefix(dir, on.Mountpoint))
	var out []string
	for _, m := range all {
		if m != on && m.Major == on.Major && m.Minor == on.Minor && isWithin(inside, m.Root) {
			out = append(out, m.Mountpoint)
		}
	}
	return out
}

// isWithin reports whether a clean path is dir or lies below it.
func isWithin(dir, path string) bool {
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}

// UnmountUnder unmounts everything at and below dir, which must be a full path.
func UnmountUnder(dir string) error {
	if err := safepath.Full(dir); err != nil {
		return fmt.Errorf("unmount all below %q: %w", dir, err)
	}
	points, err := Under(dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, p := range points {
		errs = append(errs, Unmount(p))
	}
	return errors.Join(errs...)
}

// IsTmpfs reports whether path lies on a tmpfs.
func IsTmpfs(path string) (bool, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return false, fmt.Errorf("statfs %s: %w", path, err)
	}
	return st.Type == unix.TMPFS_MAGIC, nil
}

// Attach makes an open directory visible at dst, which must exist, with the attributes (MOUNT_ATTR_…). It appears there
// complete, or not at all. What is mounted below the directory does not.
func Attach(from *os.File, dst string, attributes uint64) error {
	fd, err := unix.OpenTree(int(from.Fd()), "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)
	if err != nil {
		return fmt.Errorf("copy mount of %s: %w", from.Name(), err)
	}
	tree := os.NewFile(uintptr(fd), from.Name())
	defer func() { _ = tree.Close() }()
	if attributes != 0 {
		attr := &unix.MountAttr{Attr_set: attributes}
		if attributes&(unix.MOUNT_ATTR_NOATIME|unix.MOUNT_ATTR_STRICTATIME) != 0 {
			attr.Attr_clr = unix.MOUNT_ATTR__ATIME // they exclude each other
		}
		if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, attr); err != nil {
			return fmt.Errorf("set the options of the mount of %s: %w", from.Name(), err)
		}
	}
	if err := unix.MoveMount(fd, "", unix.AT_FDCWD, dst, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("mount %s at %s: %w", from.Name(), dst, err)
	}
	return nil
}

// Listed reports whether the kernel's table has a mount at path. Unlike Mounted it asks no file system, which may hang
// or be broken. What it is mounted in must be a folder that does answer.
func Listed(path string) (bool, error) {
	in, err := filepath.EvalSymlinks(filepath.Dir(path))
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	path = filepath.Join(in, filepath.Base(path))
	infos, err := mountinfo.GetMounts(func(i *mountinfo.Info) (skip, stop bool) { return i.Mountpoint != path, i.Mountpoint == path })
	return len(infos) > 0, err
}
