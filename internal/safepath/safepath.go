// Package safepath works on files and folders that strangers can write to while it
// does: containers in their volumes and root file systems, users in the folders that the
// node reads. Whatever is put there, and however fast it is replaced:
//
//   - a path within a folder never leads out of it (openat2, Linux 5.6)
//   - only regular files are opened to be read, and no more of them than was asked for:
//     nothing blocks on a pipe, wakes a device or fills the memory
//   - a removal follows no link and passes into no mount
//   - nothing is changed by name after it was looked at
//
// Everybody may use it; it knows nobody.
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

// ErrNotRegular says that what is to be read is a folder, pipe, socket or device.
var ErrNotRegular = errors.New("is not a regular file")

// ErrTooLarge says that a file has more in it than its reader takes.
var ErrTooLarge = errors.New("is too large")

// Dir is an open folder, the root for every path that is given to its methods: links
// in it are followed as a process would that is chrooted to it.
type Dir struct {
	fd   int
	path string
}

// Open opens a folder. The way to it must be trusted.
func Open(path string) (*Dir, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return &Dir{fd, path}, nil
}

// Close gives the folder back.
func (d *Dir) Close() error { return unix.Close(d.fd) }

// Mode is the folder's type and mode.
func (d *Dir) Mode() (uint32, error) {
	var st unix.Stat_t
	err := unix.Fstat(d.fd, &st)
	return st.Mode, err
}

// Path opens what a path leads to, of whatever kind, to point at and not to use (O_PATH).
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

// resolve is openat2. A rename elsewhere on the machine can make the kernel unsure that it
// stayed within the folder: then it wants to be asked again.
func (d *Dir) resolve(path string, flags, mode uint64) (fd int, err error) {
	how := unix.OpenHow{
		Flags: flags | unix.O_CLOEXEC, Mode: mode, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	}
	for range 100 {
		fd, err = unix.Openat2(d.fd, path, &how)
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) {
			break
		}
	}
	return fd, err
}

// MakeAll opens what a path leads to, after making the folders of it that are missing,
// with exactly that mode. The owner is root, and the group what the parent makes it.
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

// MakeAllFor does the same for a user who is the owner of what is made. Nobody may write
// to the folder yet: between being made and being given away another folder of it could
// take its place.
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

// makeAll goes down a path and has what is missing made, each in its open parent.
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

// mkdir makes a folder that has its mode from the first moment, whatever the umask: once
// it is there another file may have its name. The umask is that of a thread, which is
// thrown away, since it is never unlocked.
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

// Regular opens a regular file for reading. Links are followed, for folders of the node
// are often made of them, as a mounted ConfigMap is.
func Regular(path string) (*os.File, error) {
	f, err := os.OpenFile(path, unix.O_PATH, 0) // opens no pipe and no device
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return reopen(f)
}

// reopen opens for reading what a descriptor points at, once it is known to be a file.
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

// procPath leads to what a descriptor points at, whatever has its name now.
func procPath(fd int) string { return fmt.Sprintf("/proc/self/fd/%d", fd) }

// Proc is a path that leads to an open file, whatever has its name now: to read its real
// path, or to mount it.
func Proc(f *os.File) string { return procPath(int(f.Fd())) }

// ReadFile reads a regular file of at most so many bytes.
func ReadFile(path string, most int64) ([]byte, error) {
	f, err := Regular(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return ReadAll(f, most)
}

// ReadAll reads a file of at most so many bytes to its end.
func ReadAll(f *os.File, most int64) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(data)) > most {
		return nil, &os.PathError{Op: "read", Path: f.Name(), Err: fmt.Errorf("%w: it has more than %d bytes", ErrTooLarge, most)}
	}
	return data, err
}

// ConfigSize is more than any file of configuration has.
const ConfigSize = 10 << 20

// CheckFiles refuses a folder in which a file with one of the endings is not regular, or
// larger than ConfigSize: a library that reads the folder would block on a pipe. A folder
// that is not there has no such file.
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

// CheckFile is that for one file, as the operator names it to a library that reads it.
func CheckFile(path string) error {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, os.ErrNotExist): // a link to nothing, or removed meanwhile
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return &os.PathError{Op: "read", Path: path, Err: ErrNotRegular}
	case info.Size() > ConfigSize:
		return &os.PathError{Op: "read", Path: path, Err: fmt.Errorf("%w: it has more than %d bytes", ErrTooLarge, ConfigSize)}
	}
	return nil
}
