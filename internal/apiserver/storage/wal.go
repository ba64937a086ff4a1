package storage

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"go.etcd.io/etcd/client/pkg/v3/fileutil"
	"golang.org/x/sys/unix"

	"wherry.dev/internal/disk"
)

const (
	// segmentBytes is the size of a file of the write-ahead log. etcd begins the next file after
	// the write that goes past it.
	segmentBytes = 16 << 20
	// behindBytes is the room for that write: all that may be in flight at a time.
	behindBytes = inFlightBytes + 1<<20
	// logBytes is what the next file takes, plus the room behind those that etcd has made.
	logBytes = segmentBytes + 3*behindBytes
	// keepSegments is how many files of the log stay while there is room. A start reads all that are there.
	keepSegments = 2
)

// logFiles manages the room of etcd's write-ahead log, whose files are
//
//	….wal  the log: the newest is written to, those before the last snapshot are released
//	0.tmp  and 1.tmp, in turn: the file that becomes the newest. etcd makes one ahead, with its
//	       room; a file that exists already is used as it is.
//
// So logFiles sees to it that both always exist: one is etcd's, the other is ours and waits to be
// used next. On a full disk ours is made from a released file, so that nobody else can take its
// room meanwhile.
type logFiles struct {
	dir   string
	spare string // a file that is being made, beside the folder
	// kept reports whether files that etcd has released must stay; nil means never.
	kept func() bool
}

func (l *logFiles) next() []string {
	return []string{filepath.Join(l.dir, "0.tmp"), filepath.Join(l.dir, "1.tmp")}
}

// ready reports whether the next two files exist.
func (l *logFiles) ready() bool {
	for _, path := range l.next() {
		if _, err := os.Stat(path); err != nil {
			return false
		}
	}
	return true
}

// stuck reports whether etcd has no room for its next file: it tries to allocate it once, and fails
// when the present file is full.
func (l *logFiles) stuck() bool {
	for _, path := range l.next() {
		if info, err := os.Stat(path); err == nil && info.Size() < segmentBytes {
			return true
		}
	}
	return false
}

// ends reports whether the present file is the last one for which etcd has room.
func (l *logFiles) ends() bool {
	return l.stuck() || !slices.ContainsFunc(l.next(), func(path string) bool {
		_, err := os.Stat(path)
		return err == nil
	})
}

// place makes a file and puts it where one is missing.
func (l *logFiles) place(fresh func(path string) error) error {
	if err := fresh(l.spare); err != nil {
		return err
	}
	for _, path := range l.next() {
		// etcd may be about to make the file itself.
		err := unix.Renameat2(unix.AT_FDCWD, l.spare, unix.AT_FDCWD, path, unix.RENAME_NOREPLACE)
		if !errors.Is(err, unix.EEXIST) {
			return err
		}
	}
	return nil
}

// behind allocates room behind the end of every file that is or will be written to.
func (l *logFiles) behind() error {
	segments, err := l.segments()
	if err != nil {
		return err
	}
	paths := l.next()
	if n := len(segments); n > 0 {
		paths = append(paths, segments[n-1])
	}
	for _, path := range paths {
		if hold := holdTo(path, segmentBytes+behindBytes); !errors.Is(hold, fs.ErrNotExist) {
			err = errors.Join(err, hold)
		}
	}
	return err
}

// create makes a new spare file.
func create(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if err := disk.Allocate(f, 0, 0, segmentBytes); err != nil {
		return errors.Join(fmt.Errorf("create %s: %w", path, err), os.Remove(path))
	}
	return f.Sync()
}

// errNoneReleased means that etcd still needs all files of its log.
var errNoneReleased = errors.New("etcd has released no file of its log")

// reuse makes the spare file from the oldest file of the log, if that is released. If a crash
// interrupted it, it finishes the file.
func (l *logFiles) reuse(path string) error {
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		err := l.drop(func(old string) error { return os.Rename(old, path) })
		if err != nil {
			return err
		}
	}
	return clearFile(path)
}

// purge removes released files while there are more than keepSegments.
func (l *logFiles) purge() error {
	for {
		segments, err := l.segments()
		if err != nil || len(segments) <= keepSegments {
			return err
		}
		if err := l.drop(os.Remove); err != nil {
			if errors.Is(err, errNoneReleased) {
				return nil
			}
			return err
		}
	}
}

// drop hands the oldest file to f, unless etcd holds it. It never hands out the newest, which is
// etcd's even in the instant when it is closed and not yet opened under its new name. It calls kept
// only after it has locked the file: etcd may miss a snapshot, and release the file, at any moment.
func (l *logFiles) drop(f func(path string) error) error {
	segments, err := l.segments()
	if err != nil {
		return err
	}
	if len(segments) < 2 {
		return errNoneReleased
	}
	lock, err := fileutil.TryLockFile(segments[0], os.O_WRONLY, 0o600)
	if errors.Is(err, fileutil.ErrLocked) {
		return errNoneReleased
	}
	if err != nil {
		return err
	}
	if l.kept != nil && l.kept() {
		return errors.Join(errNoneReleased, lock.Close())
	}
	return errors.Join(f(segments[0]), lock.Close())
}

// segments lists the log's files, oldest first: their names begin with a number.
func (l *logFiles) segments() ([]string, error) {
	return filepath.Glob(filepath.Join(l.dir, "*.wal"))
}

// clearFile overwrites a file with zeros in place, because the log ends at the first zero. The
// zeros are on disk before anybody appends there.
func clearFile(path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	zeros := make([]byte, 1<<20)
	for left := max(info.Size(), segmentBytes); left > 0; left -= int64(len(zeros)) {
		if _, err := f.Write(zeros[:min(left, int64(len(zeros)))]); err != nil {
			return fmt.Errorf("zero %s: %w", path, err)
		}
	}
	return f.Sync()
}

// dropHalfMade removes what a crash has left: a next file that has data was about to become the
// newest, and has no entry yet.
func (l *logFiles) dropHalfMade() error {
	for _, path := range l.next() {
		blank, err := isBlank(path)
		if errors.Is(err, fs.ErrNotExist) || blank {
			continue
		}
		if err := errors.Join(err, os.Remove(path)); err != nil {
			return err
		}
	}
	return remove(l.spare)
}

// dropBroken removes the copies that etcd makes of a file of the log before it cuts off the write
// during which it was killed.
func (l *logFiles) dropBroken() error {
	files, err := filepath.Glob(filepath.Join(l.dir, "*.broken"))
	for _, path := range files {
		err = errors.Join(err, remove(path))
	}
	return err
}

// dropSpare removes the next file that etcd does not make when it starts.
func (l *logFiles) dropSpare() error { return remove(l.next()[1]) }

// remove removes a file. It is not an error if there is none.
func remove(path string) error {
	if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// isBlank reports whether nothing was written to a file of the log. It looks at the beginning,
// because a record begins with its length.
func isBlank(path string) (bool, error) {
	f, err := os.Open(path)
	if err != nil {
		return false, err
	}
	defer func() { _ = f.Close() }()
	head := make([]byte, 8)
	n, err := f.Read(head)
	if errors.Is(err, io.EOF) {
		return true, nil
	}
	return bytes.Equal(head[:n], make([]byte, n)), err
}

// holdTo allocates the blocks of a file up to end without making the file longer, so that what is
// written there later lands on blocks that nobody else can have taken.
func holdTo(path string, end int64) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if err := disk.Allocate(f, unix.FALLOC_FL_KEEP_SIZE, 0, end); err != nil {
		return fmt.Errorf("reserve %d MiB for %s: %w", end>>20, path, err)
	}
	return nil
}
