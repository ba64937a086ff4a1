package volume

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// RemoveTree removes a folder and all below it, unless something is mounted in it:
// then it removes nothing, since the files would be somebody else's.
func RemoveTree(dir string) error {
	home, err := mountID(filepath.Dir(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		id, err := mountID(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil && id != home {
			err = fmt.Errorf("%s is still mounted", path)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("remove %s: %w", dir, err)
	}
	return os.RemoveAll(dir)
}

// mountID identifies the mount that a path is on, without following a symlink.
func mountID(path string) (uint64, error) {
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_MNT_ID, &st); err != nil {
		return 0, &os.PathError{Op: "statx", Path: path, Err: err}
	}
	return st.Mnt_id, nil
}
