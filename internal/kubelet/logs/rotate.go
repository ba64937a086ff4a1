package logs

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"wherry.dev/internal/safepath"
)

// Reopener makes the runtime write to a new file after a rename.
type Reopener interface {
	ReopenContainerLog(ctx context.Context, id string) error
}

// Limits are the limits on a container's logs.
type Limits struct {
	// MaxSize in bytes of the current file; 0 or less means no limit.
	MaxSize int64
	// MaxFiles of a container, including the current one; at least 2.
	MaxFiles int
}

// Rotate renames a log that has grown too large, makes the runtime open a new one, and removes the
// oldest files beyond the limit. It reports whether it rotated. If somebody removed the log, it
// makes the runtime open a new one: otherwise all further output would be lost.
func Rotate(ctx context.Context, rt Reopener, id, path string, l Limits, now time.Time) (bool, error) {
	info, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) {
		if err := rt.ReopenContainerLog(ctx, id); err != nil {
			return false, fmt.Errorf("reopen the removed log of container %s: %w", id, err)
		}
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if l.MaxSize <= 0 || info.Size() < l.MaxSize || !info.Mode().IsRegular() {
		return false, nil // Docker's is a link
	}
	old, err := rotated(path)
	if err != nil {
		return false, err
	}
	// The file that is rotated now becomes the newest of the old ones.
	for keep := max(l.MaxFiles-2, 0); len(old) > keep; old = old[1:] {
		if err := os.Remove(old[0]); err != nil {
			return false, err
		}
	}
	name, ok := freeName(path + "." + now.Format("20060102-150405"))
	if !ok {
		return false, nil
	}
	if err := os.Rename(path, name); err != nil {
		return false, err
	}
	if err := rt.ReopenContainerLog(ctx, id); err != nil {
		// The runtime still writes to the renamed file: rename it back.
		return false, errors.Join(fmt.Errorf("reopen log of container %s: %w", id, err), os.Rename(name, path))
	}
	return true, nil
}

// Compress compresses the rotated files of a log except for the newest, which may still be read.
func Compress(path string) error {
	old, err := rotated(path)
	if err != nil || len(old) == 0 {
		return err
	}
	for _, f := range old[:len(old)-1] {
		if !strings.HasSuffix(f, ".gz") {
			if err := compress(f); err != nil {
				return err
			}
		}
	}
	return nil
}

// Settle tidies up the log of a container that has ended and is not rotated any more: the newest
// file gets the log's name back if the rotation was interrupted before the runtime created another,
// and older files are compressed.
func Settle(path string) error {
	if !taken(path) {
		old, err := rotated(path)
		if err != nil {
			return err
		}
		if n := len(old); n > 0 && !strings.HasSuffix(old[n-1], ".gz") {
			if err := os.Rename(old[n-1], path); err != nil {
				return err
			}
		}
	}
	return Compress(path)
}

// freeName returns the name for a file that is being rotated: upstream's, with a number appended if
// a file from the same second has that name. A rename would overwrite that file.
func freeName(name string) (string, bool) {
	for i := range 1000 {
		candidate := name
		if i > 0 {
			candidate = fmt.Sprintf("%s-%03d", name, i)
		}
		if !taken(candidate) && !taken(candidate+".gz") {
			return candidate, true
		}
	}
	return "", false
}

func taken(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// rotated lists a container's older files, oldest first.
func rotated(path string) ([]string, error) {
	all, err := filepath.Glob(path + ".*")
	if err != nil {
		return nil, err
	}
	var out []string
	for _, f := range all {
		if strings.HasSuffix(f, ".tmp") {
			if err := os.Remove(f); err != nil { // left by an interrupted compression
				return nil, err
			}
			continue
		}
		if info, err := os.Lstat(f); err == nil && info.Mode().IsRegular() { // otherwise we did not create it
			out = append(out, f)
		}
	}
	slices.SortFunc(out, byAge)
	return out, nil
}

// byAge orders rotated files, oldest first; compression does not change a file's place.
func byAge(a, b string) int {
	return strings.Compare(strings.TrimSuffix(a, ".gz"), strings.TrimSuffix(b, ".gz"))
}

// compress replaces a file with its gzip.
func compress(path string) error {
	dir, name, err := folder(path)
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	tmp := name + ".tmp"
	if err := gzipTo(dir, name, tmp); err != nil {
		return errors.Join(err, dir.RemoveAll(tmp))
	}
	if err := dir.Rename(tmp, name+".gz"); err != nil {
		return err
	}
	err = dir.Remove(name)
	if errors.Is(err, os.ErrNotExist) {
		return dir.Remove(name + ".gz") // the container was removed meanwhile, together with its log
	}
	return err
}

func gzipTo(dir *safepath.Dir, from, to string) error {
	in, err := dir.Regular(from)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	out, err := dir.Create(to)
	if err != nil {
		return err
	}
	zw := gzip.NewWriter(out)
	_, err = io.Copy(zw, in)
	return errors.Join(err, zw.Close(), out.Chmod(0o640), out.Close())
}
