package storage

import (
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
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
	// databaseAhead is how much of the disk the database holds beyond its end: what is
	// written between two renewals twice, and as much again for what many small objects grow.
	databaseAhead = 48 << 20
	// reserveBytes is a file that is given back when the disk is full: half of it at once,
	// for the records of whoever else lives on it, and half of it step by step, for the log.
	reserveBytes = 32 << 20
	reserveStep  = 4 << 20
	// reserveLeast is what a start on a full disk holds of it before anything else, for
	// snapshots: without them nothing is permitted.
	reserveLeast = 2 * reserveStep
	// snapshotBytes is more than a snapshot takes: it has the members of the cluster.
	snapshotBytes = 1 << 20
	// openingBytes is what opening the data takes at the most: a copy of the end of the log,
	// which a full disk may have cut off, and the next file.
	openingBytes = 2*segmentBytes + 8<<20
	// refuseInodes is that for files: the next of the log and snapshots are some.
	refuseInodes = 64
	// quotaAt is the share of quotaBytes in use at which nothing new is taken.
	quotaAt = quotaBytes / 10 * 9
	// statusBytes is more than what the node has to say at a time, almost always.
	statusBytes = 64 << 10
	// An update may make an object grow by growthMost, and by a thousandth of the first half
	// of what the database holds ahead: so nobody gets to the other half, which is for what
	// the node has to say.
	growthMost  = 16 << 10
	growthShare = 1024
)

// ReasonInsufficientStorage is the reason of refusals for want of room, and the status
// is 507.
const ReasonInsufficientStorage metav1.StatusReason = "InsufficientStorage"

// space watches over the room that the embedded etcd's files have.
type space struct {
	dir      string // etcd's data
	database string
	log      logFiles
	reserve  disk.Reserve

	mu    sync.Mutex
	full  bool  // as of the last look
	held  int64 // the end of what the database holds
	short bool  // not all room was had that the log should hold
}

func newSpace(member string) *space {
	dir := filepath.Dir(member)
	return &space{
		dir:      dir,
		short:    true, // etcd's start has cut off what was held
		database: filepath.Join(member, "member", "snap", "db"),
		log:      logFiles{dir: filepath.Join(member, "member", "wal"), spare: filepath.Join(dir, "log-spare")},
		reserve:  disk.Reserve{Path: filepath.Join(dir, "reserve"), Size: reserveBytes},
	}
}

// outlook is what a look at the room finds.
type outlook struct {
	refusal  error // why nothing new can be taken, if so
	growth   int64 // by how much an update that is taken all the same may make an object grow
	within   int64 // bytes of the database that nothing has
	behind   int64 // bytes that are held for it behind its end
	short    bool  // the log may not get to the end of a write
	regained bool  // there is room again after there was none
}

// look finds out how much room there is, and keeps it. size and inUse are the database's.
func (s *space) look(size, inUse int64) outlook {
	room, err := disk.Look(s.dir)
	if err != nil {
		return outlook{refusal: apierrors.NewInternalError(err)}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	full := room.Free < refuseBelow || s.full && room.Free < refuseBelow+reserveBytes ||
		room.Inodes > 0 && (room.FreeInodes < refuseInodes || s.full && room.FreeInodes < 2*refuseInodes)
	var o outlook
	switch {
	case full:
		o.refusal = insufficient("the disk of the cluster's data is full: %s are free on %s, and nothing new is taken below %d MiB and %d inodes; "+
			"deletions still work: delete what is not needed, or free some space", free(room), s.dir, refuseBelow>>20, refuseInodes)
	case inUse > quotaAt:
		o.refusal = insufficient("the cluster's data has grown to %d MiB, and nothing new is taken above %d; "+
			"deletions go on: delete what is not needed", inUse>>20, quotaAt>>20)
	}
	o.regained = s.full && !full
	if s.full != full {
		s.say(room, full)
	}
	s.full = full
	if err := s.keepLocked(room, size); err != nil {
		klog.ErrorS(err, "No room is held for the cluster's data", "dir", s.dir)
	}
	o.within, o.behind, o.short = size-inUse, max(s.held-size, 0), s.short
	o.growth = growth(min(max(s.held, size), quotaBytes) - inUse)
	return o
}

// takes reports whether log and database have the room for a write of size bytes, and for all
// that may be on its way beside it. An object wants its pages in a row: those within the
// database are scattered.
func (o outlook) takes(size int64) bool {
	need := int64(1 << 20)
	if size > statusBytes {
		need = inFlightBytes + 2<<20
	}
	return !o.short && (o.behind >= need || o.within >= 4*need)
}

// growth is what an update may take of what is left.
func growth(left int64) int64 {
	return min(growthMost, max(0, left-databaseAhead/2)/growthShare)
}

// keepLocked holds what etcd's files will need. When the disk is full it gives half of the
// reserve back, and takes it again once there is room for twice as much: the refusals end
// between the two, so that the reserve's own room does not end them.
func (s *space) keepLocked(room disk.Room, size int64) error {
	var err error
	spend := func(n uint64) bool { // what is taken is to leave enough for not being full
		if s.full || room.Free < refuseBelow+n {
			return false
		}
		room.Free -= n
		return true
	}
	if s.held == 0 && s.full {
		return s.keepAtStart(size)
	}
	switch {
	case !s.log.ready() && (s.full || spend(logBytes)):
		err = s.keepLog()
	case s.short && (s.full || spend(3*behindBytes)):
		err = s.holdBehind()
	}
	if s.held-size < databaseAhead/4*3 && spend(databaseAhead) {
		err = errors.Join(err, s.holdAhead(size))
	}
	switch {
	case s.full:
		return errors.Join(err, s.reserve.GiveBackTo(reserveBytes/2))
	case spend(2 * reserveBytes):
		return errors.Join(err, s.reserve.Hold())
	}
	return err
}

// keepAtStart holds what there is on a disk that is full: first what etcd fails without, then
// what nothing is permitted without.
func (s *space) keepAtStart(size int64) error {
	err := s.holdBehind()
	err = errors.Join(err, disk.Reserve{Path: s.reserve.Path, Size: reserveLeast}.Hold(), s.holdAhead(size))
	if !s.log.ready() {
		err = errors.Join(err, s.keepLog())
	}
	return err
}

// holdBehind takes the blocks behind the log's files for them, from the reserve if need be.
func (s *space) holdBehind() error {
	err := s.fromReserve(s.log.behind)
	s.short = err != nil
	return err
}

// holdAhead takes the blocks behind the database's end for it: bbolt makes the file longer
// as it always does. A start on a full disk takes what there is.
func (s *space) holdAhead(size int64) error {
	var err error
	for ahead := int64(databaseAhead); ahead >= databaseAhead/8; ahead /= 2 {
		if err = holdTo(s.database, size+ahead); err == nil {
			s.held = size + ahead
			return nil
		}
	}
	s.held = size
	return err
}

// keepLog sees to the next file of the log. While the disk is full that is one of those
// that the log has released; when it has not yet, the next snapshot will make it do so.
func (s *space) keepLog() error {
	err := s.log.place(func(path string) error {
		if s.full {
			if err := s.log.reuse(path); !errors.Is(err, errNoneReleased) {
				return err
			}
		}
		return create(path)
	})
	if s.full && isNoRoom(err) {
		return nil
	}
	err = errors.Join(err, s.holdBehind())
	if !s.full {
		err = errors.Join(err, s.log.purge())
	}
	return err
}

// fromReserve gives the reserve back, step by step, until f finds room. Whoever fills the
// disk may be the first to find what was given.
func (s *space) fromReserve(f func() error) error {
	for left := int64(reserveBytes) - reserveStep; ; left -= reserveStep {
		err := f()
		if !isNoRoom(err) || left < 0 {
			return err
		}
		if err := s.reserve.GiveBackTo(left); err != nil {
			return err
		}
	}
}

// forSnapshot holds the room that etcd's next snapshot takes, until it is about to make it:
// somebody may be after all that is free.
func (s *space) forSnapshot() (giveBack func() error, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := disk.Reserve{Path: filepath.Join(s.dir, "snapshot-room"), Size: snapshotBytes}
	return r.GiveBackNow, s.fromReserve(r.Hold)
}

// snapshot returns the index of etcd's last one.
func (s *space) snapshot() (index uint64) {
	files, err := snapshots(filepath.Dir(s.database))
	if err != nil || len(files) == 0 {
		return 0
	}
	index, _ = snapshotIndex(slices.Max(files)) // 0 of another's file: every write will want a renewal
	return index
}

const snapshotSuffix = ".snap"

func snapshots(dir string) ([]string, error) {
	return filepath.Glob(filepath.Join(dir, "*-*"+snapshotSuffix))
}

// snapshotIndex returns the index of a snapshot, whose file has the name TERM-INDEX.snap.
func snapshotIndex(path string) (index uint64, ok bool) {
	name, ok := strings.CutSuffix(filepath.Base(path), snapshotSuffix)
	_, last, _ := strings.Cut(name, "-")
	index, err := strconv.ParseUint(last, 16, 64)
	return index, ok && err == nil
}

// dropUnrecorded removes snapshots later than the last one of which the log has a record: etcd
// was killed before it wrote that, and does not know them.
func dropUnrecorded(dir string, last uint64) error {
	files, err := snapshots(dir)
	for _, path := range files {
		if index, ok := snapshotIndex(path); ok && index > last {
			err = errors.Join(err, remove(path))
		}
	}
	return err
}

// isNoRoom reports whether something failed because the disk, or a quota on it, is used up.
func isNoRoom(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

// free says how much room there is: in bytes, and in inodes where they are short.
func free(room disk.Room) string {
	if room.Inodes > 0 && room.FreeInodes < refuseInodes {
		return fmt.Sprintf("%d MiB and %d inodes", room.Free>>20, room.FreeInodes)
	}
	return fmt.Sprintf("%d MiB", room.Free>>20)
}

func (s *space) say(room disk.Room, full bool) {
	if full {
		klog.ErrorS(nil, "The disk of the cluster's data is full: only deletions, statuses and leases are taken", "dir", s.dir, "free", free(room))
		return
	}
	klog.InfoS("The disk of the cluster's data has room again", "dir", s.dir, "free", free(room))
}

// forStart gives back what is held, one after the other, until there is room to start in:
// etcd takes the room behind the log's last entry anew.
func (s *space) forStart() error {
	if err := s.log.dropHalfMade(); err != nil {
		return err
	}
	for _, giveBack := range []func() error{s.reserve.GiveBack, s.log.dropSpare, s.dropAhead} {
		room, err := disk.Look(s.dir)
		if err != nil || room.Free >= 2*segmentBytes {
			return err
		}
		if err := giveBack(); err != nil {
			return err
		}
	}
	return nil
}

// dropAhead gives back what the database holds behind its end.
func (s *space) dropAhead() error {
	info, err := os.Stat(s.database)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return os.Truncate(s.database, info.Size())
}

func insufficient(format string, args ...any) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusInsufficientStorage,
		Reason: ReasonInsufficientStorage, Message: fmt.Sprintf(format, args...),
	}}
}
