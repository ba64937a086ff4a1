package volume

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"wherry.dev/internal/mount"
	"wherry.dev/internal/safepath"
)

// bindSubpath makes the part of a volume that a subPath names visible at target. The pod's
// containers may be writing to the volume meanwhile: a link of theirs that leads out of it is an error, as upstream. A
// missing path is created as directories, with the volume's own permissions.
func bindSubpath(root, sub, target string) error {
	if !filepath.IsLocal(sub) {
		return fmt.Errorf("subPath %q must be relative and must not contain '..'", sub)
	}
	dir, err := safepath.OpenStrict(root)
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	mode, err := dir.Mode()
	if err != nil {
		return err
	}
	f, err := dir.MakeAll(sub, mode)
	if errors.Is(err, unix.EXDEV) {
		return fmt.Errorf("subPath %q leads out of the volume", sub)
	}
	if err != nil {
		return fmt.Errorf("subPath %q: %w", sub, err)
	}
	defer func() { _ = f.Close() }()
	return bind(f, target)
}

// bind mounts what an open file refers to.
func bind(f *os.File, target string) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if err := makeTarget(target, info.IsDir()); err != nil {
		return err
	}
	if err := unix.Mount(safepath.Proc(f), target, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("bind subPath at %s: %w", target, err)
	}
	return nil
}

// makeTarget creates an empty file or directory to bind to, and unmounts an older bind.
func makeTarget(target string, isDir bool) error {
	if err := mount.UnmountStack(target); err != nil {
		return err
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
