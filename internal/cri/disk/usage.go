package disk

import (
	"errors"
	"io/fs"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// usageAge is how old a measurement of the writable layers may be, as in containerd. A
// measurement that was quick is repeated sooner, so that a container filling the disk is noticed,
// but measuring takes at most a hundredth of the time (usageShare).
const (
	usageAge   = 10 * time.Second
	usageShare = 100
)

// Measured is a usage that is expensive to measure: every file is looked at.
type Measured struct {
	mu   sync.Mutex
	at   time.Time
	took time.Duration
	last *runtimeapi.FilesystemUsage
}

// Get measures dir, or returns the last result while it is recent.
func (u *Measured) Get(now time.Time, dir string) (*runtimeapi.FilesystemUsage, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.last != nil && now.Sub(u.at) < min(usageAge, usageShare*u.took) {
		return u.last, nil
	}
	began := time.Now()
	bytes, inodes, err := usage(dir)
	if err != nil {
		return nil, err
	}
	u.took = time.Since(began)
	u.at, u.last = now, FilesystemUsage(now, dir, bytes, inodes)
	return u.last, nil
}

// FilesystemUsage returns CRI's form of a usage.
func FilesystemUsage(now time.Time, dir string, bytes, inodes uint64) *runtimeapi.FilesystemUsage {
	return &runtimeapi.FilesystemUsage{
		Timestamp: now.UnixNano(), FsId: &runtimeapi.FilesystemIdentifier{Mountpoint: dir},
		UsedBytes: &runtimeapi.UInt64Value{Value: bytes}, InodesUsed: &runtimeapi.UInt64Value{Value: inodes},
	}
}

// usage adds up blocks and inodes below dir, each inode once. Files that disappear while it
// counts are left out.
func usage(dir string) (bytes, inodes uint64, err error) {
	type key struct{ dev, ino uint64 }
	linked := map[key]bool{}
	err = filepath.WalkDir(dir, func(p string, _ fs.DirEntry, err error) error {
		if err == nil {
			var st unix.Stat_t
			if err = unix.Lstat(p, &st); err == nil {
				if st.Nlink > 1 && st.Mode&unix.S_IFMT != unix.S_IFDIR {
					k := key{st.Dev, st.Ino}
					if linked[k] {
						return nil
					}
					linked[k] = true
				}
				bytes += uint64(st.Blocks) * 512
				inodes++
				return nil
			}
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	})
	return bytes, inodes, err
}
