package volume

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"wherry.dev/internal/kubelet/criconfig"
)

// wrote reports whether a pod's containers may have left much in the files that they get
// besides volumes: /etc/hosts, and those for their last words.
func (m *Mounter) wrote(uid types.UID) bool {
	if _, err := os.Lstat(m.Dirs.EtcHosts(uid)); err == nil {
		return true
	}
	long, err := m.longMessages(uid)
	return err != nil || len(long) > 0
}

// clearWritten removes all of that but the words that a status has.
func (m *Mounter) clearWritten(uid types.UID) error {
	long, err := m.longMessages(uid)
	if gone := os.Remove(m.Dirs.EtcHosts(uid)); !errors.Is(gone, fs.ErrNotExist) {
		err = errors.Join(err, gone)
	}
	for _, path := range long {
		err = errors.Join(err, keepEnd(path, criconfig.MaxMessage))
	}
	return err
}

// longMessages are the files that have more than a status takes.
func (m *Mounter) longMessages(uid types.UID) (long []string, err error) {
	files, err := filepath.Glob(filepath.Join(m.Dirs.Containers(uid), "*", "*"))
	for _, f := range files {
		info, ierr := os.Lstat(f)
		if ierr == nil && info.Mode().IsRegular() && info.Size() > criconfig.MaxMessage {
			long = append(long, f)
		}
	}
	return long, err
}

// keepEnd cuts all but the end of a file off. The room is given back before the end is
// written again: the disk may be full.
func keepEnd(path string, most int64) error {
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	end := make([]byte, most)
	size, err := f.Seek(0, io.SeekEnd)
	if err == nil {
		_, err = f.ReadAt(end, size-most)
	}
	if err == nil {
		err = f.Truncate(0)
	}
	if err == nil {
		_, err = f.WriteAt(end, 0)
	}
	return errors.Join(err, f.Close())
}
