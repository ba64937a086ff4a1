package volume

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// bindSubpath makes the part of a volume that a subPath names visible at target.
// Every element is resolved inside the volume (openat2, RESOLVE_IN_ROOT), so that
// no symlink that a container planted leads out of it. A missing path is made as
// folders, with the volume's own permissions.
func bindSubpath(root, sub, target string) error {
	if !filepath.IsLocal(sub) {
		return fmt.Errorf("subPath %q must be relative and must not contain '..'", sub)
	}
	dir, err := unix.Open(root, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: root, Err: err}
	}
	defer func() { _ = unix.Close(dir) }()
	fd, err := openIn(dir, sub)
	if errors.Is(err, unix.ENOENT) {
		if err = makeIn(dir, sub); err == nil {
			fd, err = openIn(dir, sub)
		}
	}
	if err != nil {
		return fmt.Errorf("subPath %q: %w", sub, err)
	}
	defer func() { _ = unix.Close(fd) }()
	return bindFD(fd, target)
}

func openIn(dir int, path string) (int, error) {
	return unix.Openat2(dir, path, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	})
}

// makeIn makes the missing folders of a path, each inside its parent.
func makeIn(dir int, path string) error {
	var st unix.Stat_t
	if err := unix.Fstat(dir, &st); err != nil {
		return err
	}
	done := ""
	for part := range strings.SplitSeq(filepath.Clean(path), string(filepath.Separator)) {
		parent := dir
		if done != "" {
			fd, err := openIn(dir, done)
			if err != nil {
				return err
			}
			parent = fd
		}
		err := unix.Mkdirat(parent, part, st.Mode&0o7777)
		if err == nil {
			err = unix.Fchmodat(parent, part, st.Mode&0o7777, 0)
		} else if errors.Is(err, unix.EEXIST) {
			err = nil
		}
		if parent != dir {
			_ = unix.Close(parent)
		}
		if err != nil {
			return err
		}
		done = filepath.Join(done, part)
	}
	return nil
}

// bindFD binds what an open descriptor refers to.
func bindFD(fd int, target string) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if err := makeTarget(target, st.Mode&unix.S_IFMT == unix.S_IFDIR); err != nil {
		return err
	}
	src := fmt.Sprintf("/proc/self/fd/%d", fd)
	if err := unix.Mount(src, target, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("bind subPath at %s: %w", target, err)
	}
	return nil
}

// makeTarget makes an empty file or folder to bind to, and takes an older bind off.
func makeTarget(target string, isDir bool) error {
	for unix.Unmount(target, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW) == nil {
	}
	if err := os.MkdirAll(filepath.Dir(target), 0o750); err != nil {
		return err
	}
	info, err := os.Lstat(target)
	if err == nil && info.IsDir() == isDir {
		return nil
	}
	if err == nil {
		if err := os.Remove(target); err != nil {
			return err
		}
	}
	if isDir {
		return os.Mkdir(target, 0o750)
	}
	f, err := os.OpenFile(target, os.O_CREATE|os.O_WRONLY, 0o640)
	if err != nil {
		return err
	}
	return f.Close()
}
