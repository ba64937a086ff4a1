package disk

import (
	"errors"
	"sync"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/disk"
)

// usageAge is how old a measurement of the writable layers may be, as in containerd. A
// measurement that was quick is repeated sooner, so that a container filling the disk is noticed,
// but measuring takes at most a hundredth of the time (usageShare).
const (
	usageAge   = 10 * time.Second
	usageShare = 100
	// longest is how long one measurement may take: of a tree that is larger, the part counts that was
	// seen. Others wait for the answer.
	longest = 5 * time.Second
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
	used, err := disk.Tree(dir, disk.Bounds{Until: began.Add(longest)})
	if err != nil && !errors.Is(err, disk.ErrUnfinished) {
		return nil, err
	}
	u.took = time.Since(began)
	u.at, u.last = now, FilesystemUsage(now, dir, used.Bytes, used.Inodes)
	return u.last, nil
}

// FilesystemUsage returns CRI's form of a usage.
func FilesystemUsage(now time.Time, dir string, bytes, inodes uint64) *runtimeapi.FilesystemUsage {
	return &runtimeapi.FilesystemUsage{
		Timestamp: now.UnixNano(), FsId: &runtimeapi.FilesystemIdentifier{Mountpoint: dir},
		UsedBytes: &runtimeapi.UInt64Value{Value: bytes}, InodesUsed: &runtimeapi.UInt64Value{Value: inodes},
	}
}
