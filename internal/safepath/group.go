package safepath

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// The modes that a group needs to work with a tree. New files in it get the group, too.
const (
	groupFile   = 0o660
	groupFolder = 0o770 | unix.S_ISGID
)

// deepestGroup is how deep folders may be nested: each is open while those below it are looked at.
const deepestGroup = 250

// ErrTooDeep means that a tree's folders are nested too deep.
var ErrTooDeep = errors.New("has folders that are nested too deep")

// GiveGroup gives a tree to a group, and lets the group read and write everything. It follows no link, enters no mount,
// and does what is open, whatever has its name by then. Folders come after what is in them, the root last: if the root
// is as it should be, all was done. With ifNeeded that is enough. It stops when the context ends.
func GiveGroup(ctx context.Context, root *os.File, gid int, ifNeeded bool) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(root.Fd()), &st); err != nil {
		return &os.PathError{Op: "stat", Path: root.Name(), Err: err}
	}
	if ifNeeded && int(st.Gid) == gid && st.Mode&groupFolder == groupFolder {
		return nil
	}
	fd, err := list(int(root.Fd()))
	if err != nil {
		return &os.PathError{Op: "open", Path: root.Name(), Err: err}
	}
	g := giver{ctx, gid}
	if err := g.content(fd, root.Name(), 0); err != nil {
		return err
	}
	return g.give(int(root.Fd()), &st, root.Name())
}

type giver struct {
	ctx context.Context
	gid int
}

// list opens the folder that a descriptor refers to, for reading.
func list(folder int) (fd int, err error) {
	return unix.Openat(folder, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
}

// content gives away everything in an open folder, and closes it.
func (g giver) content(fd int, path string, depth int) error {
	dir := os.NewFile(uintptr(fd), path)
	defer func() { _ = dir.Close() }()
	if depth == deepestGroup {
		return fmt.Errorf("%s %w (more than %d)", path, ErrTooDeep, deepestGroup)
	}
	for {
		names, err := dir.Readdirnames(1000)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		for _, name := range names {
			if err := g.ctx.Err(); err != nil {
				return err
			}
			if err := g.entry(fd, name, filepath.Join(path, name), depth); err != nil {
				return err
			}
		}
	}
}

// entry gives away one entry of an open folder, and what is in it. What vanishes meanwhile needs no group.
func (g giver) entry(parent int, name, path string, depth int) error {
	fd, err := unix.Openat2(parent, name, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_SYMLINKS,
	})
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EXDEV) { // vanished, or a mount
		return nil
	}
	if err != nil {
		return &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer func() { _ = unix.Close(fd) }()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return &os.PathError{Op: "stat", Path: path, Err: err}
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		below, err := list(fd)
		if err != nil {
			return &os.PathError{Op: "open", Path: path, Err: err}
		}
		if err := g.content(below, path, depth+1); err != nil {
			return err
		}
	}
	return g.give(fd, &st, path)
}

// give changes what a descriptor refers to.
func (g giver) give(fd int, st *unix.Stat_t, path string) error {
	want := uint32(groupFile)
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		want = 0 // it has no mode of its own
	case unix.S_IFDIR:
		want = groupFolder
	}
	if int(st.Gid) == g.gid && st.Mode&want == want {
		return nil
	}
	if err := unix.Fchownat(fd, "", -1, g.gid, unix.AT_EMPTY_PATH|unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return &os.PathError{Op: "chown", Path: path, Err: err}
	}
	if want == 0 {
		return nil
	}
	if err := unix.Chmod(procPath(fd), st.Mode&0o7777|want); err != nil {
		return &os.PathError{Op: "chmod", Path: path, Err: err}
	}
	return nil
}
