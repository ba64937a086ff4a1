package safepath

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// ErrMounted means that something is mounted in a tree that is to be removed.
var ErrMounted = errors.New("is still mounted")

// deepest is how many folders are open at a time: a stranger can nest them as deep as the disk
// allows.
const deepest = 32

// RemoveAll removes path and everything below it. The way to it must be trusted. A mount in the
// tree stays, with its content, and is an error; what lies next to it is removed. A missing path
// counts as removed. A path that is not full, or the root, is refused: an accidentally empty name
// must not mean the process's working directory.
func RemoveAll(path string) error { return remove(path, new(remover)) }

// RemoveAllUntil is RemoveAll that stops when the context ends, with what it has not removed yet left.
func RemoveAllUntil(ctx context.Context, path string) error { return remove(path, &remover{ctx: ctx}) }

func remove(path string, r *remover) error {
	if err := Full(path); err != nil {
		return &os.PathError{Op: "remove", Path: path, Err: err}
	}
	path = filepath.Clean(path)
	parent, err := Open(filepath.Dir(path))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = parent.Close() }()
	return r.entry(parent.fd, filepath.Base(path), path, 0)
}

// Full refuses a path that does not begin at the root, and the root itself.
func Full(path string) error {
	if filepath.IsAbs(path) && filepath.Clean(path) != "/" {
		return nil
	}
	return errors.New("it is not an absolute path below /")
}

// Empty removes everything in a folder, which may be a mount, and keeps the folder. It refuses
// the paths that RemoveAll refuses.
func Empty(path string) error {
	if err := Full(path); err != nil {
		return &os.PathError{Op: "empty", Path: path, Err: err}
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return &os.PathError{Op: "open", Path: path, Err: err}
	}
	return new(remover).content(fd, path, 0)
}

// remover removes one tree.
type remover struct {
	top   int // the tree's root folder
	moved int
	ctx   context.Context // nil for one that does not end
}

// entry removes the entry of that name from an open folder.
func (r *remover) entry(parent int, name, path string, depth int) error {
	err := unix.Unlinkat(parent, name, 0)
	if err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	if !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EPERM) {
		return failed(path, err)
	}
	if depth == deepest {
		return r.raise(parent, name, path)
	}
	fd, oerr := unix.Openat2(parent, name, &unix.OpenHow{
		Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_SYMLINKS,
	})
	switch {
	case errors.Is(oerr, unix.ENOENT):
		return nil
	case errors.Is(oerr, unix.ENOTDIR), errors.Is(oerr, unix.ELOOP):
		return failed(path, err) // not a folder: return the first error
	case oerr != nil:
		return failed(path, oerr)
	}
	if err := r.content(fd, path, depth); err != nil {
		return err
	}
	if err := unix.Unlinkat(parent, name, unix.AT_REMOVEDIR); err != nil && !errors.Is(err, unix.ENOENT) {
		return failed(path, err)
	}
	return nil
}

// content removes everything in an open folder, and closes it.
func (r *remover) content(fd int, path string, depth int) error {
	if depth == 0 {
		r.top = fd
	}
	dir := os.NewFile(uintptr(fd), path)
	defer func() { _ = dir.Close() }()
	for {
		names, err := dir.Readdirnames(1000)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		var errs []error
		for _, name := range names {
			if r.ctx != nil && r.ctx.Err() != nil {
				return r.ctx.Err()
			}
			if err := r.entry(fd, name, filepath.Join(path, name), depth+1); err != nil {
				errs = append(errs, err)
			}
		}
		if len(errs) == len(names) {
			return errors.Join(errs...)
		}
		// Start again from the beginning: removals may have moved entries that were not read yet.
		if _, err := dir.Seek(0, io.SeekStart); err != nil {
			return err
		}
	}
}

// raise moves a folder that is too deep to the top of the tree, where the removal will get to it.
func (r *remover) raise(parent int, name, path string) error {
	for {
		r.moved++
		err := unix.Renameat2(parent, name, r.top, ".deep-"+strconv.Itoa(r.moved), unix.RENAME_NOREPLACE)
		if err == nil || errors.Is(err, unix.ENOENT) {
			return nil
		}
		if !errors.Is(err, unix.EEXIST) {
			return failed(path, err)
		}
	}
}

func failed(path string, err error) error {
	if errors.Is(err, unix.EXDEV) || errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("remove %s: it %w", path, ErrMounted)
	}
	return &os.PathError{Op: "remove", Path: path, Err: err}
}
