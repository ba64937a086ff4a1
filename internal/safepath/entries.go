package safepath

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Within opens a regular file or a folder for reading. It follows links as for any path, but what
// they lead to must lie in the folder. That way a folder with links to its own files by full path
// can be shown to others.
func (d *Dir) Within(path string) (*os.File, error) {
	top, err := os.Readlink(procPath(d.fd))
	if err != nil {
		return nil, err
	}
	full := filepath.Join(d.path, filepath.Clean("/"+path))
	f, err := os.OpenFile(full, unix.O_PATH, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	real, err := os.Readlink(procPath(int(f.Fd())))
	if err != nil {
		return nil, err
	}
	if real != top && !strings.HasPrefix(real, strings.TrimSuffix(top, "/")+"/") {
		return nil, &os.PathError{Op: "open", Path: full, Err: errOutside}
	}
	if info, err := f.Stat(); err != nil || !info.IsDir() {
		return reopen(f)
	}
	return os.Open(procPath(int(f.Fd())))
}

// errOutside is a permission error to callers that check for one.
var errOutside = fmt.Errorf("%w: the path leads out of the folder", fs.ErrPermission)

// Sub opens a folder in the folder as a root of its own. It does not follow a link as the last element.
func (d *Dir) Sub(path string) (*Dir, error) {
	fd, err := d.open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: filepath.Join(d.path, path), Err: err}
	}
	return &Dir{fd: fd, path: filepath.Join(d.path, path), strict: d.strict}, nil
}

// Folder opens a folder to list it, or to change its owner and mode by the descriptor.
func (d *Dir) Folder(path string) (*os.File, error) {
	fd, err := d.open(path, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: filepath.Join(d.path, path), Err: err}
	}
	return os.NewFile(uintptr(fd), filepath.Join(d.path, path)), nil
}

// Create makes a new file that only its owner can access.
func (d *Dir) Create(path string) (*os.File, error) {
	fd, err := d.resolve(path, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, 0o600)
	if err != nil {
		return nil, &os.PathError{Op: "create", Path: filepath.Join(d.path, path), Err: err}
	}
	return os.NewFile(uintptr(fd), filepath.Join(d.path, path)), nil
}

// The methods below work on names in the folder itself, without slashes.

// Make makes a folder with exactly this mode.
func (d *Dir) Make(name string, mode uint32) error {
	return d.entry("mkdir", name, func() error { return mkdir(d.fd, name, mode) })
}

// Symlink makes a link.
func (d *Dir) Symlink(target, name string) error {
	return d.entry("symlink", name, func() error { return unix.Symlinkat(target, d.fd, name) })
}

// Readlink reads a link.
func (d *Dir) Readlink(name string) (target string, err error) {
	err = d.entry("readlink", name, func() error {
		buf := make([]byte, unix.PathMax)
		n, err := unix.Readlinkat(d.fd, name, buf)
		target = string(buf[:max(n, 0)])
		return err
	})
	return target, err
}

// Rename renames an entry, and replaces what has the new name.
func (d *Dir) Rename(from, to string) error {
	if err := plain(to); err != nil {
		return err
	}
	return d.entry("rename", from, func() error { return unix.Renameat(d.fd, from, d.fd, to) })
}

// Remove removes an entry that is not a folder.
func (d *Dir) Remove(name string) error {
	return d.entry("remove", name, func() error { return unix.Unlinkat(d.fd, name, 0) })
}

// RemoveAll removes an entry and everything below it, like the function RemoveAll.
func (d *Dir) RemoveAll(name string) error {
	if err := plain(name); err != nil {
		return err
	}
	return new(remover).entry(d.fd, name, filepath.Join(d.path, name), 0)
}

// Names returns the names in the folder.
func (d *Dir) Names() ([]string, error) {
	f, err := d.Folder(".")
	if err != nil {
		return nil, err
	}
	names, err := f.Readdirnames(-1)
	return names, errors.Join(err, f.Close())
}

func (d *Dir) entry(op, name string, do func() error) error {
	err := plain(name)
	if err == nil {
		err = do()
	}
	if err != nil {
		return &os.PathError{Op: op, Path: filepath.Join(d.path, name), Err: err}
	}
	return nil
}

// plain refuses what cannot be the name of an entry.
func plain(name string) error {
	if name == "" || name == "." || name == ".." || strings.Contains(name, "/") {
		return fmt.Errorf("%q is not a plain file name: %w", name, unix.EINVAL)
	}
	return nil
}
