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

// wrote reports whether a pod's containers may have written much to the files that they get besides
// volumes: /etc/hosts and their termination message files.
func (m *Mounter) wrote(uid types.UID) bool {
	if _, err := os.Lstat(m.Dirs.EtcHosts(uid)); err == nil {
		return true
	}
	long, err := m.longMessages(uid)
	return err != nil || len(long) > 0
}

// clearWritten removes all of that except what a status has room for.
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

// longMessages returns the termination message files that are larger than a status has room for.
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

// keepEnd truncates a file to its end. The space is freed before the end is written again, because
// the disk may be full.
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
