package volume

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"wherry.dev/internal/safepath"
)

// The names that readers of live volumes know: ..data points to the directory with the newest
// content, and is replaced by a rename, so that a reader sees either the old files or the new ones,
// never a mixture.
const (
	dataLink = "..data"
	dataTmp  = "..data_tmp"
)

// writeAtomic makes files the content of the directory at path. group, if not nil, may read them.
// Containers have the directory read-only; one that got around that (root of a user namespace may
// mount as it likes) must still not be able to redirect what is written here.
func writeAtomic(path string, files map[string]file, group *int64) error {
	dir, err := safepath.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	old, err := dir.Readlink(dataLink)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if old != "" && same(dir, old, files, group) {
		return link(dir, files)
	}
	stamp := time.Now().UTC().Format("..2006_01_02_15_04_05.") + rand.Text()
	if err := fill(dir, stamp, files, group); err != nil {
		return errors.Join(err, dir.RemoveAll(stamp))
	}
	if err := swap(dir, stamp); err != nil {
		return errors.Join(err, dir.RemoveAll(stamp))
	}
	if err := link(dir, files); err != nil {
		return err
	}
	return sweep(dir, stamp, files)
}

// fill creates a directory with the files in dir.
func fill(dir *safepath.Dir, stamp string, files map[string]file, group *int64) error {
	if err := dir.Make(stamp, 0o755); err != nil {
		return err
	}
	in, err := dir.Sub(stamp)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	if err := ownFolder(in, ".", 0o755, group); err != nil {
		return err
	}
	for name, f := range files {
		if err := makeParents(in, name, group); err != nil {
			return err
		}
		if err := f.write(in, name, group); err != nil {
			return err
		}
	}
	return nil
}

func (f file) write(in *safepath.Dir, name string, group *int64) error {
	out, err := in.Create(name)
	if err != nil {
		return err
	}
	_, err = out.Write(f.data)
	if err == nil {
		err = own(out, f.uid, group)
	}
	if err == nil { // after chown, which may clear bits, and regardless of the umask
		err = out.Chmod(fileMode(f.mode, group))
	}
	return errors.Join(err, out.Close())
}

// makeParents creates the directories that a file's name contains.
func makeParents(in *safepath.Dir, name string, group *int64) error {
	for i, c := range name {
		if c != filepath.Separator {
			continue
		}
		made, err := in.MakeAll(name[:i], 0o755)
		if err != nil {
			return err
		}
		if err := errors.Join(made.Close(), ownFolder(in, name[:i], 0o755, group)); err != nil {
			return err
		}
	}
	return nil
}

// ownFolder sets a directory's mode, regardless of the umask. With an fsGroup, the directory and
// what is created in it belong to that group.
func ownFolder(in *safepath.Dir, path string, mode fs.FileMode, group *int64) error {
	if group != nil {
		mode |= fs.ModeSetgid
	}
	f, err := in.Folder(path)
	if err != nil {
		return err
	}
	return errors.Join(own(f, nil, group), f.Chmod(mode), f.Close())
}

// ownVolume is ownFolder for a volume.
func ownVolume(path string, mode fs.FileMode, group *int64) error {
	dir, err := safepath.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(ownFolder(dir, ".", mode, group), dir.Close())
}

// fileMode returns a file's mode; with an fsGroup its group may read.
func fileMode(mode int32, group *int64) fs.FileMode {
	m := fs.FileMode(mode).Perm()
	if group != nil {
		m |= 0o440
	}
	return m
}

func own(f *os.File, uid, gid *int64) error {
	if uid == nil && gid == nil {
		return nil
	}
	u, g := -1, -1
	if uid != nil {
		u = int(*uid)
	}
	if gid != nil {
		g = int(*gid)
	}
	return f.Chown(u, g)
}

// swap points ..data to the new directory.
func swap(dir *safepath.Dir, stamp string) error {
	if err := dir.RemoveAll(dataTmp); err != nil {
		return err
	}
	if err := dir.Symlink(stamp, dataTmp); err != nil {
		return err
	}
	return dir.Rename(dataTmp, dataLink)
}

// link creates the names that containers see: the first element of each path is a symlink into
// ..data.
func link(dir *safepath.Dir, files map[string]file) error {
	for name := range files {
		first, _, _ := strings.Cut(name, string(filepath.Separator))
		err := dir.Symlink(filepath.Join(dataLink, first), first)
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return nil
}

// sweep removes names that are no longer needed, and the directories of older content.
func sweep(dir *safepath.Dir, current string, files map[string]file) error {
	keep := map[string]bool{dataLink: true, current: true}
	for name := range files {
		first, _, _ := strings.Cut(name, string(filepath.Separator))
		keep[first] = true
	}
	names, err := dir.Names()
	if err != nil {
		return err
	}
	for _, name := range names {
		if keep[name] {
			continue
		}
		if err := dir.RemoveAll(name); err != nil {
			return fmt.Errorf("remove old content: %w", err)
		}
	}
	return nil
}

// same reports whether a directory in dir contains exactly these files.
func same(dir *safepath.Dir, old string, files map[string]file, group *int64) bool {
	in, err := dir.Sub(old)
	if err != nil {
		return false
	}
	defer func() { _ = in.Close() }()
	for name, f := range files {
		if !f.is(in, name, group) {
			return false
		}
	}
	n, err := count(in)
	return err == nil && n == len(files)
}

// is reports whether the file exists in the directory exactly as it should.
func (f file) is(in *safepath.Dir, name string, group *int64) bool {
	have, err := in.Regular(name)
	if err != nil {
		return false
	}
	defer func() { _ = have.Close() }()
	info, err := have.Stat()
	if err != nil || info.Mode().Perm() != fileMode(f.mode, group) {
		return false
	}
	data, err := safepath.ReadAll(have, int64(len(f.data)))
	return err == nil && bytes.Equal(data, f.data)
}

// count returns the number of files in a directory and below it.
func count(in *safepath.Dir) (n int, err error) {
	names, err := in.Names()
	for _, name := range names {
		sub, serr := in.Sub(name)
		if errors.Is(serr, unix.ENOTDIR) {
			n++
			continue
		}
		if serr != nil {
			return n, serr
		}
		below, cerr := count(sub)
		n += below
		err = errors.Join(err, cerr, sub.Close())
	}
	return n, err
}
