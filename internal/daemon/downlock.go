package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// downLock keeps two downs of one data dir apart. It is held on the folder itself: a file in it
// would be removed along with it.
type downLock struct {
	dir  *os.File
	made []string // folders that were not there, the data dir first
}

// lockDown waits until no other down is at work on the data dir, which need not exist.
func lockDown(ctx context.Context, dataDir string, progress func(string)) (*downLock, error) {
	l := &downLock{}
	for {
		made, err := makeFolders(dataDir)
		l.made = append(l.made, made...)
		if err != nil {
			return nil, errors.Join(err, l.release())
		}
		dir, err := os.Open(dataDir)
		if errors.Is(err, fs.ErrNotExist) {
			continue // another down has just removed it
		}
		if err != nil {
			return nil, errors.Join(err, l.release())
		}
		if err := waitLock(ctx, dir, progress); err != nil {
			return nil, errors.Join(fmt.Errorf("wait for another `wherry down` of %s: %w", dataDir, err), dir.Close(), l.release())
		}
		if sameFolder(dir, dataDir) {
			l.dir = dir
			return l, nil
		}
		if err := dir.Close(); err != nil { // the other one has removed it
			return nil, errors.Join(err, l.release())
		}
	}
}

// waitLock takes the lock on an open folder. An interrupt ends the wait, and soon afterwards the
// process.
func waitLock(ctx context.Context, dir *os.File, progress func(string)) error {
	err := unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if !errors.Is(err, unix.EWOULDBLOCK) {
		return err
	}
	progress("waiting for another `wherry down` to finish")
	done := make(chan error, 1)
	go func() { done <- unix.Flock(int(dir.Fd()), unix.LOCK_EX) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func sameFolder(dir *os.File, path string) bool {
	have, err := dir.Stat()
	if err != nil {
		return false
	}
	now, err := os.Stat(path)
	return err == nil && os.SameFile(have, now)
}

// makeFolders is os.MkdirAll, and returns what it made, the deepest first.
func makeFolders(path string) (made []string, err error) {
	var missing []string
	for p := path; ; p = filepath.Dir(p) {
		if _, err := os.Lstat(p); !errors.Is(err, fs.ErrNotExist) {
			break
		}
		missing = append(missing, p)
	}
	for i, p := range slices.Backward(missing) {
		if err := os.Mkdir(p, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return missing[i+1:], err
		}
	}
	return missing, nil
}

// release removes the folders that were made for the lock, if nothing has been put into them.
func (l *downLock) release() error {
	var errs []error
	for _, p := range l.made {
		errs = append(errs, removeEmpty(p))
	}
	if l.dir != nil {
		errs = append(errs, l.dir.Close())
	}
	return errors.Join(errs...)
}
