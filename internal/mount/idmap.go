package mount

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// Copy makes src, with what is mounted in it, visible at dst, which must exist. If userns is not
// nil, the owners of its files are translated accordingly (Linux 5.12, and a file system that
// supports it); what is mounted below src keeps its owners. If private is set, later mounts on
// one side do not show up on the other.
func Copy(src, dst string, userns *os.File, private bool) error {
	tree, err := clone(src, userns, private)
	if err != nil {
		return err
	}
	defer func() { _ = tree.Close() }()
	if err := unix.MoveMount(int(tree.Fd()), "", unix.AT_FDCWD, dst, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("mount %s at %s: %w", src, dst, err)
	}
	return nil
}

// CanTranslate returns an error if Copy cannot translate the owners in dir.
func CanTranslate(dir string, userns *os.File) error {
	tree, err := clone(dir, userns, true)
	if err != nil {
		return err
	}
	return tree.Close()
}

// clone makes the copy without attaching it anywhere.
func clone(src string, userns *os.File, private bool) (tree *os.File, err error) {
	fd, err := unix.OpenTree(unix.AT_FDCWD, src, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	if err != nil {
		return nil, fmt.Errorf("copy mount %s: %w", src, err)
	}
	tree = os.NewFile(uintptr(fd), src)
	defer func() {
		if err != nil {
			err = errors.Join(err, tree.Close())
		}
	}()
	if private {
		attr := &unix.MountAttr{Propagation: unix.MS_PRIVATE}
		if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, attr); err != nil {
			return nil, fmt.Errorf("make the copy of %s private: %w", src, err)
		}
	}
	if userns != nil {
		attr := &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(userns.Fd())}
		if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, attr); err != nil {
			return nil, fmt.Errorf("ID-map %s (its file system must support ID-mapped mounts): %w", src, err)
		}
	}
	return tree, nil
}

// RemoveCopies unmounts everything in a folder whose mounts were all made by Copy, and removes
// the folder. It makes the mounts private first: unmounting a copy must not unmount the original.
func RemoveCopies(dir string) error {
	points, err := Under(dir)
	if err != nil {
		return err
	}
	for _, p := range points {
		if err := unix.Mount("", p, "", unix.MS_PRIVATE, ""); err != nil {
			return fmt.Errorf("make %s private: %w", p, err)
		}
	}
	return RemoveTree(dir)
}

// CopyAll makes private copies of folders below scratch, which it creates, with translated
// owners: lower folders for an overlay (Linux 5.19). Once the overlay is mounted, RemoveCopies
// can remove the copies.
func CopyAll(dirs []string, scratch string, userns *os.File) ([]string, error) {
	copies := make([]string, len(dirs))
	for i, d := range dirs {
		copies[i] = filepath.Join(scratch, strconv.Itoa(i))
		if err := os.MkdirAll(copies[i], 0o711); err != nil {
			return nil, err
		}
		if err := Copy(d, copies[i], userns, true); err != nil {
			return nil, err
		}
	}
	return copies, nil
}
