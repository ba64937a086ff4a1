// Package safepath works on files and folders that strangers can write to at the same
// time: containers in their volumes and root file systems, users in the folders that the
// node reads. Whatever they put there, and however fast they replace it:
//
//   - a path within a folder never leads out of it (openat2, Linux 5.6)
//   - only regular files are opened for reading, and no more is read than was asked for:
//     nothing blocks on a pipe, triggers a device or fills the memory
//   - a removal follows no link and enters no mount
//   - nothing is changed by name after it was checked
//
// Any package may use it; it depends on none of them.
package safepath

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrNotRegular means that the thing to read is a folder, pipe, socket or device.
var ErrNotRegular = errors.New("is not a regular file")

// ErrTooLarge means that a file is larger than its reader allows.
var ErrTooLarge = errors.New("is too large")

// Dir is an open folder, the root for every path passed to its methods: links in it are followed
// as in a chroot to it.
type Dir struct {
	fd   int
	path string
	// strict: a link that leads out of it is an error (EXDEV), rather than followed as in a chroot.
	strict bool
}

// Open opens a folder. The way to it must be trusted.
func Open(path string) (*Dir, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return &Dir{fd: fd, path: path}, nil
}

// OpenStrict is Open of a folder in which a link that leads out of it, to its parent or to a full path, is an error (EXDEV).
func OpenStrict(path string) (*Dir, error) {
	d, err := Open(path)
	if err == nil {
		d.strict = true
	}
	return d, err
}

// Close closes the folder.
func (d *Dir) Close() error { return unix.Close(d.fd) }

// Mode returns the folder's type and mode.
func (d *Dir) Mode() (uint32, error) {
	var st unix.Stat_t
	err := unix.Fstat(d.fd, &st)
	return st.Mode, err
}

// Path opens what a path leads to, of whatever kind, only as a reference (O_PATH).
func (d *Dir) Path(path string) (*os.File, error) {
	fd, err := d.open(path, unix.O_PATH)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// Regular opens a regular file for reading.
func (d *Dir) Regular(path string) (*os.File, error) {
	f, err := d.Path(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return reopen(f)
}

// open resolves a path.
func (d *Dir) open(path string, flags uint64) (fd int, err error) {
	return d.resolve(path, flags, 0)
}

// resolve is openat2. A rename elsewhere on the machine can make the kernel unsure whether it
// stayed within the folder; then it has to be asked again.
func (d *Dir) resolve(path string, flags, mode uint64) (fd int, err error) {
	how := unix.OpenHow{
		Flags: flags | unix.O_CLOEXEC, Mode: mode, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	}
	if d.strict {
		how.Resolve = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS
	}
	for range 100 {
		fd, err = unix.Openat2(d.fd, path, &how)
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) {
			break
		}
	}
	return fd, err
}

// MakeAll opens what a path leads to, after making the missing folders with exactly this mode.
// Their owner is root, and their group is the one that the parent gives them.
func (d *Dir) MakeAll(path string, mode uint32) (*os.File, error) {
	f, err := d.Path(path)
	if !errors.Is(err, unix.ENOENT) {
		return f, err
	}
	if err := d.makeAll(path, func(parent int, name string) error { return mkdir(parent, name, mode) }); err != nil {
		return nil, err
	}
	return d.Path(path)
}

// MakeAllFor is MakeAll for a user who becomes the owner of what is made. Nobody else may have
// write access to the folder yet: between mkdir and chown another of its folders could take the
// new one's place.
func (d *Dir) MakeAllFor(owner int, path string, mode uint32) (*os.File, error) {
	f, err := d.Path(path)
	if !errors.Is(err, unix.ENOENT) {
		return f, err
	}
	err = d.makeAll(path, func(parent int, name string) error {
		if err := mkdir(parent, name, mode); err != nil || owner == 0 {
			return err
		}
		return unix.Fchownat(parent, name, owner, owner, unix.AT_SYMLINK_NOFOLLOW)
	})
	if err != nil {
		return nil, err
	}
	return d.Path(path)
}

// makeAll walks down a path and calls mkdir for each element, in its open parent.
func (d *Dir) makeAll(path string, mkdir func(parent int, name string) error) error {
	done := "."
	for part := range strings.SplitSeq(strings.Trim(filepath.Clean("/"+path), "/"), "/") {
		parent, err := d.open(done, unix.O_PATH|unix.O_DIRECTORY)
		if err == nil {
			err = errors.Join(mkdir(parent, part), unix.Close(parent))
		}
		done = filepath.Join(done, part)
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return &os.PathError{Op: "mkdir", Path: done, Err: err}
		}
	}
	return nil
}

// mkdir makes a folder that has its mode from the first moment, regardless of the umask:
// afterwards, another file may already have its name. The umask is changed for one thread, which
// is discarded because it is never unlocked.
func mkdir(parent int, name string, mode uint32) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		err := unix.Unshare(unix.CLONE_FS)
		if err == nil {
			unix.Umask(0)
			err = unix.Mkdirat(parent, name, mode&0o7777)
		}
		done <- err
	}()
	return <-done
}

// Regular opens a regular file for reading. It follows links, because folders of the node often
// consist of them, as a mounted ConfigMap does.
func Regular(path string) (*os.File, error) {
	f, err := os.OpenFile(path, unix.O_PATH, 0) // opens no pipe and no device
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return reopen(f)
}

// Direct opens a regular file for reading if there is no link on the way to it.
func Direct(path string) (*os.File, error) {
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS}
	fd, err := unix.Openat2(unix.AT_FDCWD, path, &how)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	f := os.NewFile(uintptr(fd), path)
	defer func() { _ = f.Close() }()
	return reopen(f)
}

// reopen opens for reading what an O_PATH descriptor refers to, after checking that it is a regular file.
func reopen(f *os.File) (*os.File, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, &os.PathError{Op: "open", Path: f.Name(), Err: ErrNotRegular}
	}
	fd, err := unix.Open(procPath(int(f.Fd())), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: f.Name(), Err: err}
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

// procPath returns a path to what a descriptor refers to, whatever has its name now.
func procPath(fd int) string { return fmt.Sprintf("/proc/self/fd/%d", fd) }

// Proc returns a path to an open file, whatever has its name now: to read its real path, or to
// mount it.
func Proc(f *os.File) string { return procPath(int(f.Fd())) }

// ReadFile reads a regular file of at most that many bytes.
func ReadFile(path string, most int64) ([]byte, error) {
	f, err := Regular(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return ReadAll(f, most)
}

// ReadAll reads a file of at most that many bytes to its end.
func ReadAll(f *os.File, most int64) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(data)) > most {
		return nil, &os.PathError{Op: "read", Path: f.Name(), Err: fmt.Errorf("%w: it has more than %d bytes", ErrTooLarge, most)}
	}
	return data, err
}

// ConfigSize is more than any configuration file needs.
const ConfigSize = 10 << 20

// CheckFiles returns an error if a file with one of the endings in a folder is not regular, or is
// larger than ConfigSize: a library that reads the folder would block on a pipe. A missing folder
// has no such file.
func CheckFiles(dir string, endings ...string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() || !slices.Contains(endings, filepath.Ext(e.Name())) {
			continue
		}
		if err := CheckFile(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// CheckFile is the same for one file, whose path the operator configures for a library that reads it.
func CheckFile(path string) error {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, os.ErrNotExist): // a link to nothing, or removed in the meantime
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return &os.PathError{Op: "read", Path: path, Err: ErrNotRegular}
	case info.Size() > ConfigSize:
		return &os.PathError{Op: "read", Path: path, Err: fmt.Errorf("%w: it has more than %d bytes", ErrTooLarge, ConfigSize)}
	}
	return nil
}
