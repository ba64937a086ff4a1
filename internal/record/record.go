// Package record keeps small durable records: one JSON document per file, replaced atomically, so
// that after a crash at any moment a reader finds either the old or the new version, complete,
// never a mixture.
//
// A record belongs to one writer; callers serialise their own updates.
package record

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// tmpMark begins the name of every unfinished write, by which IsTemporary and Sweep know it.
const tmpMark = ".tmp-"

// envelope is the outer form of a record. Every record has a version, so that a later release can
// tell what it reads.
type envelope struct {
	Version int             `json:"version"`
	Data    json.RawMessage `json:"data"`
}

// CorruptError names a record that cannot be read; what to do about it is up to the caller.
type CorruptError struct {
	Path string
	Err  error
}

func (e *CorruptError) Error() string { return fmt.Sprintf("record %s is corrupt: %v", e.Path, e.Err) }
func (e *CorruptError) Unwrap() error { return e.Err }

// Write replaces the record at path (mode 0600) and returns once it is durable.
func Write(path string, version int, v any) error {
	doc, err := encode(path, version, v)
	if err != nil {
		return err
	}
	return WriteFile(path, doc, 0o600)
}

// WriteNew writes a record that does not exist yet. The caller makes it durable, together with
// what belongs to it.
func WriteNew(path string, version int, v any) error {
	doc, err := encode(path, version, v)
	if err != nil {
		return err
	}
	return os.WriteFile(path, doc, 0o600)
}

// WriteCached is Write for a record that only has to outlive the process: it reaches the disk
// when the kernel writes it. For a small record, an fsync costs more than everything else.
func WriteCached(path string, version int, v any) error {
	doc, err := encode(path, version, v)
	if err != nil {
		return err
	}
	return WriteFileCached(path, doc, 0o600)
}

func encode(path string, version int, v any) ([]byte, error) {
	doc, err := json.Marshal(struct {
		Version int `json:"version"`
		Data    any `json:"data"`
	}{version, v})
	if err != nil {
		return nil, fmt.Errorf("encode record %s: %w", path, err)
	}
	return doc, nil
}

// Read decodes the record at path into v and returns its version. The error is fs.ErrNotExist if
// there is no record, and a *CorruptError for anything that does not decode.
func Read(path string, v any) (version int, err error) {
	doc, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	var e envelope
	if err := json.Unmarshal(doc, &e); err != nil {
		return 0, &CorruptError{path, err}
	}
	if e.Version == 0 || len(e.Data) == 0 {
		return 0, &CorruptError{path, errors.New("no version or no data")}
	}
	if err := json.Unmarshal(e.Data, v); err != nil {
		return e.Version, &CorruptError{path, err}
	}
	return e.Version, nil
}

// WriteFile replaces path with data: temporary file, fsync, rename, fsync of the folder. On a
// full disk, a file that already has the same content counts as written.
func WriteFile(path string, data []byte, mode fs.FileMode) error {
	err := replace(path, data, mode)
	if errors.Is(err, unix.ENOSPC) && says(path, data, mode) {
		return nil
	}
	return err
}

// WriteFileCached replaces path with data atomically, without waiting for the disk. What a killed
// writer leaves is overwritten by the next write of the same path.
func WriteFileCached(path string, data []byte, mode fs.FileMode) error {
	tmp := filepath.Join(filepath.Dir(path), tmpMark+filepath.Base(path))
	err := os.WriteFile(tmp, data, mode)
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		_ = os.Remove(tmp)
	}
	return err
}

func says(path string, data []byte, mode fs.FileMode) bool {
	info, err := os.Stat(path)
	if err != nil || info.Mode() != mode {
		return false
	}
	have, err := os.ReadFile(path)
	return err == nil && bytes.Equal(have, data)
}

func replace(path string, data []byte, mode fs.FileMode) (err error) {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, tmpMark+filepath.Base(path)+"-")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	if err := writeSync(f, data, mode); err != nil {
		_ = f.Close()
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := f.Close(); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	return SyncDir(dir)
}

func writeSync(f *os.File, data []byte, mode fs.FileMode) error {
	if err := f.Chmod(mode); err != nil {
		return err
	}
	if _, err := f.Write(data); err != nil {
		return err
	}
	return f.Sync()
}

// Remove removes the record. It is not an error if there is none.
func Remove(path string) error {
	if err := os.Remove(path); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	return SyncDir(filepath.Dir(path))
}

// Sweep removes what interrupted writes left in dir. Only the owner of dir may call it, and only
// before it writes.
func Sweep(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if IsTemporary(e.Name()) {
			if err := os.Remove(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// IsTemporary reports whether a file name belongs to an unfinished write.
func IsTemporary(name string) bool { return strings.HasPrefix(name, tmpMark) }

// SyncDir makes renames and removals in dir durable.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer func() { _ = d.Close() }()
	return d.Sync()
}
