package disk

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Used is what files take.
type Used struct{ Bytes, Inodes uint64 }

// Bounds end a count early. The zero value sets none.
type Bounds struct {
	// Enough bytes or inodes are no longer counted once they are exceeded; 0 for all of them.
	EnoughBytes, EnoughInodes uint64
	// Until is when to stop; zero for never.
	Until time.Time
}

// ErrUnfinished is returned with what was counted until Bounds.Until.
var ErrUnfinished = errors.New("counting files takes too long")

// Tree adds up blocks and inodes below dir, dir included and each inode once. Strangers may write to the
// tree meanwhile: no link is followed and no mount crossed, it may be deeper than a path can be long, what
// disappears does not count, and one file is open at a time.
func Tree(dir string, b Bounds) (Used, error) {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return Used{}, nil
	}
	t := tree{bounds: b, linked: map[inode]bool{}}
	if errors.Is(err, unix.ENOTDIR) {
		var st unix.Stat_t
		if err := unix.Lstat(dir, &st); err != nil {
			return Used{}, gone(dir, err)
		}
		t.add(&st)
		return t.used, nil
	}
	if err != nil {
		return Used{}, fmt.Errorf("measure %s: %w", dir, err)
	}
	err = t.walk(fd)
	if err != nil && !errors.Is(err, ErrUnfinished) {
		err = fmt.Errorf("measure %s: %w", dir, err)
	}
	return t.used, err
}

func gone(dir string, err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return fmt.Errorf("measure %s: %w", dir, err)
}

type inode struct{ dev, ino uint64 }

// level is a folder that is being counted: the folders in it that are not counted yet.
type level struct {
	inode
	left []string
}

type tree struct {
	bounds Bounds
	used   Used
	linked map[inode]bool
	seen   int
}

var errEnough = errors.New("enough")

// walk counts the tree below an open folder, and closes it. It goes down by name and up by "..": if that
// leads elsewhere, somebody has moved the folder meanwhile, and the rest of the tree is left out.
func (t *tree) walk(fd int) error {
	defer func() { _ = unix.Close(fd) }()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	t.add(&st)
	top, err := t.folder(fd, &st)
	if err != nil {
		return done(err)
	}
	stack := []level{top}
	for len(stack) > 0 {
		here := &stack[len(stack)-1]
		if len(here.left) == 0 {
			if stack = stack[:len(stack)-1]; len(stack) == 0 {
				return nil
			}
			up, same := open(fd, "..", stack[len(stack)-1].inode)
			if !same {
				return nil
			}
			_ = unix.Close(fd)
			fd = up
			continue
		}
		name := here.left[len(here.left)-1]
		here.left = here.left[:len(here.left)-1]
		down, err := unix.Openat(fd, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			continue // it is gone, or no folder any more
		}
		if err := unix.Fstat(down, &st); err != nil || st.Dev != here.dev { // a mount
			_ = unix.Close(down)
			continue
		}
		_ = unix.Close(fd)
		fd = down
		next, err := t.folder(fd, &st)
		if err != nil {
			return done(err)
		}
		stack = append(stack, next)
	}
	return nil
}

func done(err error) error {
	if errors.Is(err, errEnough) {
		return nil
	}
	return err
}

// open opens a folder and reports whether it is the one that was meant.
func open(parent int, name string, want inode) (fd int, same bool) {
	fd, err := unix.Openat(parent, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, false
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || (inode{st.Dev, st.Ino}) != want {
		_ = unix.Close(fd)
		return -1, false
	}
	return fd, true
}

// folder counts what is directly in an open folder.
func (t *tree) folder(fd int, self *unix.Stat_t) (level, error) {
	l := level{inode: inode{self.Dev, self.Ino}}
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return l, err
	}
	dir := os.NewFile(uintptr(dup), "folder")
	defer func() { _ = dir.Close() }()
	for {
		names, err := dir.Readdirnames(1000)
		for _, name := range names {
			var st unix.Stat_t
			if unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil || st.Dev != self.Dev {
				continue // gone, or a mount
			}
			t.add(&st)
			if st.Mode&unix.S_IFMT == unix.S_IFDIR {
				l.left = append(l.left, name)
			}
		}
		if err := t.over(len(names)); err != nil {
			return l, err
		}
		if errors.Is(err, io.EOF) || errors.Is(err, fs.ErrNotExist) {
			return l, nil
		}
		if err != nil {
			return l, err
		}
	}
}

// over returns why to stop, looking at the clock now and then.
func (t *tree) over(more int) error {
	b := t.bounds
	if b.EnoughBytes > 0 && t.used.Bytes > b.EnoughBytes || b.EnoughInodes > 0 && t.used.Inodes > b.EnoughInodes {
		return errEnough
	}
	const often = 1000
	if t.seen += more + 1; t.seen >= often {
		t.seen = 0
		if !b.Until.IsZero() && time.Now().After(b.Until) {
			return ErrUnfinished
		}
	}
	return nil
}

func (t *tree) add(st *unix.Stat_t) {
	if st.Nlink > 1 && st.Mode&unix.S_IFMT != unix.S_IFDIR {
		k := inode{st.Dev, st.Ino}
		if t.linked[k] {
			return
		}
		t.linked[k] = true
	}
	t.used.Bytes += uint64(st.Blocks) * 512
	t.used.Inodes++
}
