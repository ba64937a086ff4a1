package storage

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"wherry.dev/internal/disk"
)

const (
	// refuseBelow is the free space at which nothing new is taken. What is still
	// allowed then (deletions, statuses, leases) fits into what etcd's files hold already.
	refuseBelow = 48 << 20
	// databaseAhead is how much of the disk the database holds beyond its end.
	databaseAhead = 32 << 20
	// reserveBytes is a file that is given back when the disk is full, for etcd's snapshots
	// and for the records of whoever else lives on it.
	reserveBytes = 32 << 20
	// segmentBytes is a file of the write-ahead log; etcd holds the next one, too.
	segmentBytes = 16 << 20
	// openingBytes is what opening the data takes at the most: a copy of the end of the log,
	// which a full disk may have cut off, and the next file.
	openingBytes = 2*segmentBytes + 8<<20
	// quotaAt is the share of quotaBytes in use at which nothing new is taken: at all of
	// it etcd itself refuses even deletions.
	quotaAt = quotaBytes / 10 * 9
)

// ReasonInsufficientStorage is the reason of refusals for want of room, and the status
// is 507.
const ReasonInsufficientStorage metav1.StatusReason = "InsufficientStorage"

// space watches over the room that the embedded etcd's files have.
type space struct {
	dir      string // etcd's data
	database string
	wal      string
	reserve  disk.Reserve

	mu   sync.Mutex
	full bool  // as of the last look
	held int64 // the size of the database for which room ahead was last taken
}

func newSpace(member string) *space {
	return &space{
		dir:      filepath.Dir(member),
		database: filepath.Join(member, "member", "snap", "db"),
		wal:      filepath.Join(member, "member", "wal"),
		reserve:  disk.Reserve{Path: filepath.Join(filepath.Dir(member), "reserve"), Size: reserveBytes},
	}
}

// look says why nothing new can be taken, if so. size and inUse are the database's.
// regained tells that there is room again after there was none.
func (s *space) look(size, inUse int64) (regained bool, refusal error) {
	room, err := disk.Look(s.dir)
	if err != nil {
		return false, apierrors.NewInternalError(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	full := room.Free < refuseBelow || s.full && room.Free < refuseBelow+reserveBytes
	switch {
	case full:
		refusal = insufficient("the disk of the cluster's data is full: %d MiB are free on %s, and nothing new is taken below %d; "+
			"deletions go on: delete what is not needed, or make room", room.Free>>20, s.dir, refuseBelow>>20)
	case inUse > quotaAt:
		refusal = insufficient("the cluster's data has grown to %d MiB, and nothing new is taken above %d; "+
			"deletions go on: delete what is not needed", inUse>>20, quotaAt>>20)
	}
	regained = s.full && !full
	if s.full != full {
		s.say(room, full)
	}
	s.full = full
	s.keepLocked(room, size)
	return regained, refusal
}

// keepLocked gives the reserve back when the disk is full, takes it again once there is
// room for twice as much, and keeps room ahead of the database. The refusals end between
// the two, so that the reserve's own room does not end them.
func (s *space) keepLocked(room disk.Room, size int64) {
	var err error
	switch {
	case s.full:
		err = s.reserve.GiveBack()
	case room.Free >= refuseBelow+2*reserveBytes:
		err = s.reserve.Hold()
		if err == nil && size > s.held {
			s.held = size
			err = holdAhead(s.database, size)
		}
	}
	if err != nil {
		klog.ErrorS(err, "No room is held for the cluster's data", "dir", s.dir)
	}
}

func (s *space) say(room disk.Room, full bool) {
	if full {
		klog.ErrorS(nil, "The disk of the cluster's data is full: only deletions, statuses and leases are taken", "dir", s.dir, "freeMiB", room.Free>>20)
		return
	}
	klog.InfoS("The disk of the cluster's data has room again", "dir", s.dir, "freeMiB", room.Free>>20)
}

// holdAhead takes the blocks behind the database's end for it, without making the file
// longer: bbolt grows it as it always does, onto blocks that nobody else can have taken.
func holdAhead(path string, size int64) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, size+databaseAhead); err != nil {
		return fmt.Errorf("hold %d MiB: %w", databaseAhead>>20, err)
	}
	return nil
}

// forStart gives back all that is held when there is no room to start in: etcd takes the
// room behind the log's last entry anew, and at the same time that of the log's next file.
func (s *space) forStart() error {
	room, err := disk.Look(s.dir)
	if err != nil || room.Free >= 2*segmentBytes {
		return err
	}
	files, err := filepath.Glob(filepath.Join(s.wal, "*.tmp"))
	for _, f := range files {
		err = errors.Join(err, os.Remove(f))
	}
	if info, statErr := os.Stat(s.database); statErr == nil {
		err = errors.Join(err, os.Truncate(s.database, info.Size())) // what is held behind its end
	}
	return errors.Join(err, s.reserve.GiveBack())
}

// nextSegment reports whether etcd has the next file of its log, with the room for it.
// When it could not make one it does not try again, and fails once the present one is
// full.
func (s *space) nextSegment() bool {
	files, err := filepath.Glob(filepath.Join(s.wal, "*.tmp"))
	return err == nil && slices.ContainsFunc(files, func(path string) bool {
		info, err := os.Stat(path)
		return err == nil && info.Size() >= segmentBytes
	})
}

func insufficient(format string, args ...any) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusInsufficientStorage,
		Reason: ReasonInsufficientStorage, Message: fmt.Sprintf(format, args...),
	}}
}
