package volume

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// The names that readers of live volumes know: ..data points to the folder of the
// newest content, and is replaced by a rename, so that a reader sees the old files
// or the new, never a mixture.
const (
	dataLink = "..data"
	dataTmp  = "..data_tmp"
)

// writeAtomic makes files the content of dir. group, if not nil, may read them.
func writeAtomic(dir string, files map[string]file, group *int64) error {
	old, err := os.Readlink(filepath.Join(dir, dataLink))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if old != "" && same(filepath.Join(dir, old), files, group) {
		return link(dir, files)
	}
	stamp, err := os.MkdirTemp(dir, time.Now().UTC().Format("..2006_01_02_15_04_05."))
	if err != nil {
		return err
	}
	if err := fill(stamp, files, group); err != nil {
		_ = os.RemoveAll(stamp)
		return err
	}
	if err := swap(dir, filepath.Base(stamp)); err != nil {
		_ = os.RemoveAll(stamp)
		return err
	}
	if err := link(dir, files); err != nil {
		return err
	}
	return sweep(dir, filepath.Base(stamp), files)
}

func fill(dir string, files map[string]file, group *int64) error {
	if err := ownFolder(dir, 0o755, group); err != nil {
		return err
	}
	for name, f := range files {
		path := filepath.Join(dir, name)
		if err := makeParents(dir, name, group); err != nil {
			return err
		}
		if err := os.WriteFile(path, f.data, 0o600); err != nil {
			return err
		}
		if err := own(path, f.uid, group); err != nil {
			return err
		}
		// Chmod after chown, which may clear bits, and regardless of the umask.
		if err := os.Chmod(path, fileMode(f.mode, group)); err != nil {
			return err
		}
	}
	return nil
}

func makeParents(dir, name string, group *int64) error {
	parts := strings.Split(filepath.Dir(name), string(filepath.Separator))
	path := dir
	for _, p := range parts {
		if p == "." {
			continue
		}
		path = filepath.Join(path, p)
		if err := os.Mkdir(path, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		if err := ownFolder(path, 0o755, group); err != nil {
			return err
		}
	}
	return nil
}

// ownFolder sets a folder's mode, whatever the umask; with an fsGroup it is that group's,
// and so is what is made in it.
func ownFolder(dir string, mode fs.FileMode, group *int64) error {
	if group != nil {
		mode |= fs.ModeSetgid
	}
	if err := own(dir, nil, group); err != nil {
		return err
	}
	return os.Chmod(dir, mode)
}

// fileMode is a file's mode; with an fsGroup its group may read.
func fileMode(mode int32, group *int64) fs.FileMode {
	m := fs.FileMode(mode).Perm()
	if group != nil {
		m |= 0o440
	}
	return m
}

func own(path string, uid, gid *int64) error {
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
	return os.Lchown(path, u, g)
}

// swap makes ..data point to the new folder.
func swap(dir, stamp string) error {
	tmp := filepath.Join(dir, dataTmp)
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Symlink(stamp, tmp); err != nil {
		return err
	}
	return os.Rename(tmp, filepath.Join(dir, dataLink))
}

// link makes the names that containers see: each first element of a path is a
// symlink into ..data.
func link(dir string, files map[string]file) error {
	for name := range files {
		first, _, _ := strings.Cut(name, string(filepath.Separator))
		err := os.Symlink(filepath.Join(dataLink, first), filepath.Join(dir, first))
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return nil
}

// sweep removes names that are no more, and the folders of older content.
func sweep(dir, current string, files map[string]file) error {
	keep := map[string]bool{dataLink: true, current: true}
	for name := range files {
		first, _, _ := strings.Cut(name, string(filepath.Separator))
		keep[first] = true
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if keep[e.Name()] {
			continue
		}
		if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
			return fmt.Errorf("remove old content: %w", err)
		}
	}
	return nil
}

// same tells whether a folder holds exactly these files.
func same(dir string, files map[string]file, group *int64) bool {
	seen := 0
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		f, ok := files[name]
		info, err := d.Info()
		if err != nil || !ok || info.Mode().Perm() != fileMode(f.mode, group) {
			return errors.Join(err, fs.ErrInvalid)
		}
		data, err := os.ReadFile(path)
		if err != nil || !bytes.Equal(data, f.data) {
			return errors.Join(err, fs.ErrInvalid)
		}
		seen++
		return nil
	})
	return err == nil && seen == len(files)
}
