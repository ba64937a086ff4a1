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
	// segmentBytes is a file of the write-ahead log. etcd begins the next one after the
	// write that goes past it.
	segmentBytes = 16 << 20
	// behindBytes is the room for that write: all that may be on its way at a time.
	behindBytes = inFlightBytes + 1<<20
	// logBytes is what the next file takes, and the room behind those that etcd has made.
	logBytes = segmentBytes + 3*behindBytes
	// keepSegments is how many files of the log stay while there is room.
	keepSegments = 5
)

// logFiles is the room of etcd's write-ahead log, whose files are
//
//	….wal  the log: the newest is written to, those before the last snapshot are released
//	0.tmp  and 1.tmp, by turns: what becomes the newest. etcd makes one ahead, with its room;
//	       a file that is there already it takes as it is.
//
// So both are always there: one is etcd's, the other waits to be it, made by us. On a full
// disk it is made of a released file, whose room nobody else can have taken meanwhile.
type logFiles struct {
	dir   string
	spare string // one that is being made, beside the folder
	// kept reports whether files that etcd has released are to stay nevertheless; nil is never.
	kept func() bool
}

func (l *logFiles) next() []string {
	return []string{filepath.Join(l.dir, "0.tmp"), filepath.Join(l.dir, "1.tmp")}
}

// ready reports whether the next two files are there.
func (l *logFiles) ready() bool {
	for _, path := range l.next() {
		if _, err := os.Stat(path); err != nil {
			return false
		}
	}
	return true
}

// stuck reports whether etcd has no room for its next file: it tries to take it once, and
// fails when the present one is full.
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
		// etcd may be about to make the file itself
		err := unix.Renameat2(unix.AT_FDCWD, l.spare, unix.AT_FDCWD, path, unix.RENAME_NOREPLACE)
		if !errors.Is(err, unix.EEXIST) {
			return err
		}
	}
	return nil
}

// behind takes the room behind the end of all that is or will be written to.
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
		return errors.Join(fmt.Errorf("make %s: %w", path, err), os.Remove(path))
	}
	return f.Sync()
}

// errNoneReleased says that etcd wants all files of its log.
var errNoneReleased = errors.New("no file of the log is released")

// reuse makes the oldest file of the log the spare one, when it is released. What was left
// of a crash while it did so is finished.
func (l *logFiles) reuse(path string) error {
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		err := l.drop(func(old string) error { return os.Rename(old, path) })
		if err != nil {
			return err
		}
	}
	return clearFile(path)
}

// purge removes what is released of more files than there need be.
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

// drop hands the oldest file to f, unless etcd holds it. The newest is etcd's, even when it
// has been closed for an instant to be opened under its new name. Whether a file that is released
// is to stay is asked once it is ours: etcd may miss a snapshot, and release it, at any moment.
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

// segments lists the log's files, the oldest first: their names begin with a number.
func (l *logFiles) segments() ([]string, error) {
	return filepath.Glob(filepath.Join(l.dir, "*.wal"))
}

// clearFile overwrites a file with zeros, where it is: the log ends with the first of them.
// They are on disk before anybody appends there.
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
			return fmt.Errorf("clear %s: %w", path, err)
		}
	}
	return f.Sync()
}

// dropHalfMade removes what a crash has left: a next file that is written to already was to
// become the newest that moment, and has no entry.
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

// dropBroken removes the copies that etcd makes of a file of the log before it cuts off the
// write in which it was killed.
func (l *logFiles) dropBroken() error {
	files, err := filepath.Glob(filepath.Join(l.dir, "*.broken"))
	for _, path := range files {
		err = errors.Join(err, remove(path))
	}
	return err
}

// dropSpare removes the one that etcd does not make at its start.
func (l *logFiles) dropSpare() error { return remove(l.next()[1]) }

// remove removes a file; one that is not there is no error.
func remove(path string) error {
	if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// isBlank reports whether nothing was written to a file of the log: a record begins with
// its length.
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

// holdTo takes the blocks of a file up to end, without making it longer: what is written
// there later goes onto blocks that nobody else can have taken.
func holdTo(path string, end int64) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if err := disk.Allocate(f, unix.FALLOC_FL_KEEP_SIZE, 0, end); err != nil {
		return fmt.Errorf("hold %d MiB of %s: %w", end>>20, path, err)
	}
	return nil
}
